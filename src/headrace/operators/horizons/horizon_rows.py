"""What is kept of rows as long as they may lie in a horizon, and which of it results depend on.

Kept are the values that aggregates look at, a column for each expression, by key and time in a table of whole rows
(`headrace.state.rows.table`). They are kept for the longest horizon and an eighth more. By the watermark: rows that lie
further back are forgotten, whatever a fold has left of them, so that results depend on the rows alone. The eighth lets
sums and counts go on: the rows that left a horizon since a key was last seen have to be there to be taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.aggregates.declare import Declared
from headrace.aggregates.lifting import Values
from headrace.model.batch import Int64s, Rows, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.model.meaning import kept_column
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.operators.matching import Mask, shifted
from headrace.sql.evaluate.expressions import compile_predicate
from headrace.state.rows.find import GatheredRows, KeyTimes
from headrace.state.rows.table import RowTable

_LONGER: Final = 8
"""Rows are kept longer than the longest horizon by one part in so many."""


def slack_us(longest_us: int) -> int:
    """How much longer than the longest horizon rows are kept."""
    return longest_us // _LONGER + 1


class KeptColumns:
    """The columns that are kept of rows of one type; aggregates that look at the same thing share one."""

    def __init__(self, aggs: Iterable[Declared[Any]], taken: RowCodec, where: str) -> None:
        fields: dict[str, Any] = {}
        self._computes: dict[str, Callable[[Rows], pa.Array]] = {}
        for agg in aggs:
            for text in (agg.column, agg.by):
                name = self.value(text)
                if text is not None and name is not None:
                    values = Values(taken, text, where)
                    fields[name], self._computes[name] = values.type | None, values.array
            name = self.condition(agg.where)
            if agg.where is not None and name is not None:
                fields[name], self._computes[name] = bool | None, _holds(agg.where, taken, where)
        # Rows that were kept for an earlier program lack the columns of aggregates that came later.
        self.codec = codec_of(row_type("Kept", fields, nullable=True)) if fields else None
        self.names = tuple(fields)

    def value(self, text: str | None) -> str | None:
        """The column of an expression."""
        return None if text is None else kept_column("value", text)

    def condition(self, text: str | None) -> str | None:
        """The column of what a ``where`` says."""
        return None if text is None else kept_column("where", text)

    def arrays(self, rows: Rows) -> list[pa.Array]:
        """What is kept of rows, column by column."""
        if self.codec is None:
            return []
        made = [compute(rows) for compute in self._computes.values()]
        # Spark writes its own zone on times, and other names on the elements of lists.
        return [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(made, self.codec.schema, strict=True)
        ]


def _holds(text: str, taken: RowCodec, where: str) -> Callable[[Rows], pa.Array]:
    predicate = compile_predicate(text, taken.schema, where)
    return lambda rows: pa.array(predicate(rows.record_batch))


class Lately(NamedTuple):
    """Keys that have new rows, and what was known of them before."""

    hashes: UInt64s
    keys: pa.BinaryArray
    newest: Int64s
    """Time of the newest row before these; the beginning of time for a key without."""
    known: Mask
    """Keys whose earlier accumulators can be gone on from."""
    asked_from: Int64s
    asked_upto: Int64s
    """Times of the first and the last result that are wanted; the last is no earlier than any row."""


class KeptRows:
    """Rows kept by one step, seen from one task."""

    def __init__(
        self, table: RowTable, spans: Sequence[tuple[int, bool]], forgotten_us: int, codec: RowCodec | None
    ) -> None:
        """``spans``: of each aggregate, and whether it goes on. ``forgotten_us``: rows up to this time are."""
        self._table = table
        self._codec = codec
        self._forgotten_us = forgotten_us
        self._longest_us = max(span for span, _ in spans)
        self._whole_us = max((span for span, goes_on in spans if not goes_on), default=0)
        """The longest horizon that is needed whole."""
        self._ends_us = sorted({span for span, _ in spans if span > self._whole_us})
        """Longer ones: of those, only what came and went."""

    def goes_on(self, over_us: int) -> bool:
        """Whether of a horizon of this length only what came and went is found, where something is known of the key."""
        return over_us > self._whole_us

    def find(self, lately: Lately) -> GatheredRows:
        """The rows that the results wanted depend on, beside the new ones and the accumulators that are known."""
        whole = np.where(
            lately.known, shifted(lately.asked_from, -self._whole_us), shifted(lately.asked_from, -self._longest_us)
        )
        found = [self._between(lately, whole, lately.newest)]
        first = np.minimum(lately.asked_from, lately.newest)
        reached = whole
        for span_us in self._ends_us:
            after = shifted(first, -span_us)
            # Times that were asked for already must not be found twice.
            upto = np.minimum(shifted(lately.asked_upto, -span_us), np.minimum(reached, lately.newest))
            found.append(self._between(lately, after, np.where(lately.known, upto, MIN_TIME)))
            reached = np.minimum(reached, after)
        return GatheredRows([part for each in found for part in each.parts], self._codec)

    def _between(self, lately: Lately, after: Int64s, upto: Int64s) -> GatheredRows:
        """Rows with after < time ≤ upto; of keys where there are no such times, none."""
        after = np.maximum(after, self._forgotten_us)
        some = np.flatnonzero(after < upto)
        keys = lately.keys.take(pa.array(some))
        wanted = KeyTimes(lately.hashes[some], keys, after[some] + 1, upto[some])
        return self._table.find(wanted, buffered=True, fresh=True).recoded(some)

    def add(
        self, hashes: UInt64s, keys: pa.BinaryArray, at: Int64s, columns: Sequence[pa.Array], expires: Int64s
    ) -> None:
        """Keeps new rows, in the order in which they came."""
        if len(at):
            self._table.add(hashes, keys, at, columns, expires=expires)
