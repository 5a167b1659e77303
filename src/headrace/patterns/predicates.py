"""Which rows of a batch fit a condition: evaluated in columns, once per batch, whoever asks.

Patterns of several steps over one stream, and rules by the hundred, have conditions in common. What a condition says of
the rows of a batch is kept with the batch, by the expression that it is, however its text is spaced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.sql.evaluate.expressions import compile_predicate
from headrace.sql.same import expression_identity

if TYPE_CHECKING:
    from headrace.model.batch import Rows

Mask = npt.NDArray[np.bool_]


def rows_that_fit(rows: Rows, text: str) -> Mask:
    """Whether a condition holds, row by row. Callers must not change the answer."""
    masks = rows.masks
    if masks is None:
        masks = rows.masks = {}
    identity = expression_identity(text)
    mask = masks.get(identity)
    if mask is None:
        mask = masks[identity] = predicate(text, rows.codec.schema)(rows.record_batch)
    return mask


@lru_cache(maxsize=4096)
def predicate(text: str, schema: pa.Schema) -> Callable[[Any], Mask]:
    """The function that evaluates a text; made once per worker."""
    return compile_predicate(text, schema, f"pattern, {text!r}")
