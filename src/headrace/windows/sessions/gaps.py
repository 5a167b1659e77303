"""How long each row of a session keeps it open: one gap for all, or what the row itself says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, Rows
from headrace.sql.evaluate.expressions import compile_exprs
from headrace.windows.kinds import Session

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Bools = npt.NDArray[np.bool_]


class Gaps:
    """How long each row keeps its session open."""

    def __init__(self, assigner: Session, taken: RowCodec, step: str) -> None:
        self._gap_us = assigner.gap_us
        self._compute = None
        if assigner.gap_sql is not None:
            wanted = pa.schema([("gap", pa.int64())])
            self._compute = compile_exprs({"gap": assigner.gap_sql}, taken.schema, wanted, f"step {step}")

    def of(self, rows: Rows) -> Int64s:
        """In microseconds; 0 where a row says none that could be one."""
        if self._gap_us is not None:
            return np.full(len(rows), self._gap_us, np.int64)
        assert self._compute is not None
        found = self._compute(rows.record_batch).column(0).fill_null(0).to_numpy(zero_copy_only=False)
        gaps: Int64s = np.maximum(found, 0)
        return gaps
