"""Changes that come from outside: rows that replace each other by key, and those of a table as Debezium tells them.

Whatever comes for a key last is what holds; so a change that comes twice changes nothing. A key that goes and was not
there says nothing either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import EpochFailed
from headrace.model.batch import Keys, Rows
from headrace.model.keys import encode_columns
from headrace.model.row_kind import DELETE, INSERT
from headrace.operators.changelogs.normalise import NormaliseOperator
from headrace.operators.contract import Operator
from headrace.operators.keyed import KeyedBatch
from headrace.sql.evaluate.expressions import compile_predicate

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_AFTER: Final = pa.array(["c", "r", "u"])


class UpsertOperator(NormaliseOperator):
    """The net effect of each epoch on each key, of rows that replace each other."""

    def __init__(self, step: str, codec: RowCodec, deleted: str | None, key_type: Any = None) -> None:
        super().__init__(step, codec, key_type)
        self._deleted = None if deleted is None else compile_predicate(deleted, codec.schema, f"step {step}")

    def handle(self, port: int, batch: KeyedBatch) -> None:
        if self._deleted is not None:
            kinds = np.where(self._deleted(batch.rows.record_batch), DELETE, INSERT).astype(np.int8)
            batch = batch._replace(rows=batch.rows.with_kinds(kinds))
        super().handle(port, batch)


class EnvelopeOperator(Operator):
    """Rows as they became, and of those that went their key. Messages without an operation (tombstones) say nothing."""

    def __init__(self, step: str, codec: RowCodec, key: tuple[str, ...]) -> None:
        super().__init__(step)
        self.codec = codec
        """Of the rows of the table."""
        self.key = key

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        columns = dict(zip(rows.codec.schema.names, rows.columns, strict=True))
        op, before, after = columns["op"], columns["before"], columns["after"]
        comes, goes = _mask(pc.is_in(op, _AFTER)), _mask(pc.equal(op, "d"))
        self._check(op, comes | goes, comes & after.is_null().to_numpy(zero_copy_only=False), goes & _none(before))
        # A row whose key has changed leaves the one it had.
        both = np.flatnonzero(comes & ~_none(before))
        moved = np.zeros(len(rows), np.bool_)
        if len(both):
            places = pa.array(both)
            old, new = (encode_columns(self._key_of(each.take(places))) for each in (before, after))
            moved[both] = _mask(pc.not_equal(old, new))
        leaves = goes | moved
        # What goes stands before what comes of the same message.
        at = np.repeat(np.arange(len(rows)), 2)
        out = np.stack([leaves, comes], axis=1).reshape(-1)
        gone = np.tile([True, False], len(rows))[out]
        at = at[out]
        made = [self._column(field, before, after, at, gone) for field in self.codec.schema]
        kinds = np.where(gone, DELETE, INSERT).astype(np.int8)
        self.emit(Rows.of_columns(self.codec, made, None if rows.times is None else rows.times[at], kinds))

    def _column(self, field: pa.Field, before: pa.Array, after: pa.Array, at: Any, gone: Any) -> pa.Array:
        """A column of what came; of what goes there is its key alone."""
        new = pc.struct_field(after, field.name).take(pa.array(at, mask=gone)).cast(field.type)
        if field.name in self.key:
            old = pc.struct_field(before, field.name).take(pa.array(at, mask=~gone)).cast(field.type)
            return pc.if_else(pa.array(gone), old, new)
        # Nobody reads it of a row that goes, but a column without null must have none.
        blank = pa.array([_blank(field.type)], field.type)
        cells = pa.concat_arrays([new, blank])
        return cells.take(pa.array(np.where(gone, len(new), np.arange(len(new)))))

    def _key_of(self, rows: pa.Array) -> list[pa.Array]:
        return [pc.struct_field(rows, name).cast(self.codec.schema.field(name).type) for name in self.key]

    def _check(self, op: pa.Array, known: Any, without_after: Any, without_before: Any) -> None:
        said = op.is_valid().to_numpy(zero_copy_only=False)
        for wrong, found, way in (
            (_mask(pc.equal(op, "t")), "a truncation (op t), which says of no row that it goes",
             "let the connector skip truncations (skipped.operations), and take the table in anew"),
            (said & ~known, "an operation that is none of c, r, u and d", "read changes of rows only"),
            (without_after, "a row that comes without `after`", "look at the transforms of the connector"),
            (without_before, "a row that goes without `before`, which has its key",
             "give the table a replica identity with its primary key"),
        ):  # fmt: skip
            if wrong.any():
                raise EpochFailed(
                    "a change of a table cannot be applied",
                    where=f"step {self.step}",
                    expected="rows with before, after and op, as Debezium writes them",
                    found=f"{found}: op {op[int(np.flatnonzero(wrong)[0])].as_py()}",
                    next_move=way,
                )


def _blank(kind: pa.DataType) -> Any:
    """Some value of a type."""
    kinds = pa.types
    if kinds.is_struct(kind):
        return {kind.field(i).name: _blank(kind.field(i).type) for i in range(kind.num_fields)}
    if kinds.is_nested(kind):
        return []
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return ""
    if kinds.is_temporal(kind):
        return pa.scalar(0, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind).as_py()
    return False if kinds.is_boolean(kind) else b"" if kinds.is_binary(kind) else 0


def _mask(holds: Any) -> Any:
    return holds.fill_null(False).to_numpy(zero_copy_only=False)


def _none(column: pa.Array) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False)
