"""Another event time for rows: ``timed_by=``. The rows stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.model.ids import MIN_TIME
from headrace.operators.changelogs.pairs import mend_kinds
from headrace.operators.stateless import ExprOperator
from headrace.sql.evaluate.expressions import compile_exprs

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

_TIME: Final = pa.schema([pa.field("time", pa.timestamp("us", "UTC"))])


class RetimeOperator(ExprOperator):
    """Rows with the time that an expression gives; where it gives none, a row has none."""

    def __init__(self, step: str, text: str, codec: RowCodec) -> None:
        super().__init__(step, (), codec, codec)
        self.text = text
        self._time = compile_exprs({"time": text}, codec.schema, _TIME, f"step {step}")

    def _apply(self, rows: Rows) -> None:
        times = self._time(rows.batch).column(0).cast(pa.int64()).fill_null(MIN_TIME).to_numpy(zero_copy_only=False)
        # Where a batch was halved, so may a pair have been.
        whole = rows if rows.kinds is None else rows.with_kinds(mend_kinds(rows.kinds))
        self.emit(whole.with_times(times))
