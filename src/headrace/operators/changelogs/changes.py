"""``changes``: rows of a changelog that stand for themselves, with their kind as a field of theirs or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.model.batch import Keys, Rows
from headrace.model.row_kind import INSERT, SIGNS, takes_back
from headrace.operators.changelogs.pairs import drop_equal_pairs
from headrace.operators.contract import Operator

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_SIGNS: Final = pa.array(SIGNS)


class VersionsOperator(Operator):
    """The rows that came in or replaced others; those that were taken back are left out."""

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if len(rows):
            assert rows.kinds is not None, f"step {self.step} takes a changelog"
            kept = np.flatnonzero(~takes_back(rows.kinds))
            self.emit(rows.take(kept).with_kinds(None))


class InsertsOperator(Operator):
    """Rows of a stream that corrects nothing, among those of one that does: all of them come in."""

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if len(rows):
            self.emit(rows.with_kinds(np.full(len(rows), INSERT, np.int8)))


class SignedOperator(Operator):
    """All rows, with their kind as a further column."""

    def __init__(self, step: str, codec: RowCodec) -> None:
        super().__init__(step)
        self.codec = codec
        """Of the rows that come out: the kind is their last field."""

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if len(rows):
            if rows.kinds is not None:
                rows = drop_equal_pairs(rows, timed=False)
            # Rows of a stream that corrects nothing all come in.
            kinds = np.full(len(rows), INSERT, np.int8) if rows.kinds is None else rows.kinds
            self.emit(Rows.of_columns(self.codec, [*rows.columns, _SIGNS.take(pa.array(kinds))], rows.times))
