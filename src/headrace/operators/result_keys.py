"""The columns of results that hold the key, part by part, from the bytes of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.model.keys import decode_columns
from headrace.operators.keyed import decode_keys, key_parts

if TYPE_CHECKING:
    from headrace.model.columns import Column
    from headrace.model.rows import RowCodec


class ResultKeys:
    """How keys become columns of one type of results: in bulk where their types allow it."""

    def __init__(self, codec: RowCodec, key_fields: Sequence[str], key_type: Any) -> None:
        """``key_fields``: the column of each part of the key; results need not have it."""
        self._fields = tuple(key_fields)
        self._key_type = key_type
        self._columns: dict[str, Column] = {name: codec.columns[name] for name in key_fields if name in codec.columns}
        whole = len(self._columns) == len(self._fields) and not any(each.packed for each in self._columns.values())
        self._kinds = [each.arrow for each in self._columns.values()] if whole else None

    def of(self, encoded: pa.BinaryArray) -> dict[str, pa.Array]:
        """The columns that results have, for these keys."""
        if not self._columns:
            return {}
        if self._kinds is not None and (found := decode_columns(encoded, self._kinds)) is not None:
            return dict(zip(self._fields, found, strict=True))
        parts = dict(zip(self._fields, key_parts(decode_keys(encoded.to_pylist(), self._key_type), len(self._fields))))
        return {name: column.encode(parts[name]) for name, column in self._columns.items()}
