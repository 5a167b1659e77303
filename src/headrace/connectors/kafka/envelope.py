"""Rows of a changelog in the envelope of Debezium, as JSON: ``{"before": …, "after": …, "op": …}``.

A row that comes in has the operation ``c`` and no ``before``, one that goes ``d`` and no ``after``. A row and what it
replaces are one message, ``u``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.text import json_documents
from headrace.model.row_kind import AFTER, BEFORE, DELETE, INSERT, holds_or_goes

if TYPE_CHECKING:
    from headrace.model.batch import Int64s, Rows
    from headrace.model.rows import RowCodec

ENVELOPE: Final = "debezium-json"
_CREATED, _UPDATED, _DELETED = b'"c"', b'"u"', b'"d"'
_NULL: Final = b"null"


def envelopes(rows: Rows, codec: RowCodec) -> tuple[Int64s, pa.Array]:
    """The positions of the rows that are messages, and their values."""
    kinds = np.full(len(rows), INSERT, np.int8) if rows.kinds is None else rows.kinds
    updated = np.append(False, (kinds[:-1] == BEFORE) & (kinds[1:] == AFTER))
    # Half a pair is a row that goes, or one that comes.
    gone = (kinds == DELETE) | ((kinds == BEFORE) & ~np.append(updated[1:], False))
    said = np.flatnonzero(holds_or_goes(kinds) | gone)
    documents = json_documents(rows.record_batch, codec)
    place = np.arange(len(rows))
    before = _documents(documents, np.where(gone, place, np.where(updated, place - 1, -1))[said])
    after = _documents(documents, np.where(gone, -1, place)[said])
    operations = pa.array([_CREATED, _UPDATED, _DELETED], pa.binary())
    operation = operations.take(pa.array(np.where(gone, 2, updated.astype(np.int64))[said]))
    texts = [b'{"before":', before, b',"after":', after, b',"op":', operation, b"}"]
    parts = [pa.scalar(text, pa.binary()) if isinstance(text, bytes) else text for text in texts]
    return said, pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _documents(documents: pa.Array, at: Int64s) -> pa.Array:
    return documents.take(pa.array(at, mask=at < 0)).fill_null(_NULL)
