"""What a row says of a stream that corrects itself, and what kind a stream is.

A stream is *append*: every row stands for itself. Or *upsert*: a row replaces the earlier one of its unique key. Or a
*changelog*: every row has a kind. ``+I`` comes in, ``-D`` goes; ``-U`` goes and the ``+U`` behind it stands in its
place. What goes is byte for byte what came. Kinds are a column of numbers beside the fields, which append and upsert
streams do not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Kinds = npt.NDArray[np.int8]
"""The kind of each row of a batch."""
INSERT: Final = 0
BEFORE: Final = 1
AFTER: Final = 2
DELETE: Final = 3
SIGNS: Final = ("+I", "-U", "+U", "-D")
"""Kind → how people write it; the kinds that take a row back are the odd ones."""


def takes_back(kinds: Kinds) -> npt.NDArray[np.bool_]:
    """Which rows take back one that came before."""
    return (kinds & 1).astype(np.bool_)


def holds_or_goes(kinds: Kinds) -> npt.NDArray[np.bool_]:
    """The rows that say all to whoever finds rows by key: a ``-U`` says no more than the ``+U`` behind it."""
    says: npt.NDArray[np.bool_] = kinds != BEFORE
    return says


@dataclass(frozen=True)
class StreamKind:
    """What the rows of a stream are to each other."""

    rows: Literal["append", "upsert", "changelog"] = "append"
    key: tuple[str, ...] | None = None
    """The columns of which no two rows that hold have the same values; None: no columns are known to be such."""
    scattered: bool = False
    """Whether rows of one unique key may come out of several shards: what goes may then come behind what stands in its
    place, and only the sum of all is right."""

    @property
    def corrects(self) -> bool:
        """Whether a later row says something of an earlier one."""
        return self.rows != "append"

    def __str__(self) -> str:
        if not self.corrects:
            return self.rows
        if self.key is None:
            return f"{self.rows}, no unique key is known"
        by = ", ".join(self.key) or "nothing: one row"
        return f"{self.rows} by {by}{', from several shards' * self.scattered}"


APPEND: Final = StreamKind()
