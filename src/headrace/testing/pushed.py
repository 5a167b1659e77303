"""The rows that a test has pushed: the sources of a harness, with positions that count them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.connectors.program.sources import WrittenRows
from headrace.errors import InputLost
from headrace.model.amounts import count_of
from headrace.model.watermarks import derive_waiting
from headrace.testing.playing import read_counts

if TYPE_CHECKING:
    from headrace.plan.physical import Program, SourcePlan
    from headrace.state.manifest import JobState


class PushedRows:
    """Rows by source, and the split that each came from. A position is the number of rows up to it."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._rows: dict[str, list[Any]] = {source: [] for source in sources}
        self._splits: dict[str, list[str]] = {source: [] for source in self._rows}
        self._before: dict[str, int] = {}
        """Rows of each source that harnesses before this one have read from the same store."""

    def begin(self, offsets: str) -> None:
        """Counts from what the store has read."""
        self._before = read_counts(offsets)

    def add(self, source: str, rows: Sequence[Any], split: str) -> None:
        self._rows[source].extend(rows)
        self._splits[source].extend([split] * len(rows))

    def add_written(self, sources: Iterable[SourcePlan]) -> None:
        """Adds rows that stand in the program itself, unless the store has read them already."""
        for source in sources:
            if isinstance(source.source, WrittenRows) and not self.counts()[source.name]:
                self.add(source.name, source.source.rows, "")

    def counts(self) -> dict[str, int]:
        """The positions behind all rows."""
        return {source: self._before.get(source, 0) + len(rows) for source, rows in self._rows.items()}

    def between(self, before: str, after: str) -> tuple[dict[str, list[Any]], dict[str, list[str]]]:
        """The rows between two entries of Spark's log, and their splits."""
        start, end = read_counts(before), read_counts(after)
        rows: dict[str, list[Any]] = {}
        splits: dict[str, list[str]] = {}
        for source, stop in end.items():
            skipped = self._before.get(source, 0)
            mine = slice(start.get(source, skipped) - skipped, stop - skipped)
            rows[source], splits[source] = self._rows[source][mine], self._splits[source][mine]
        return rows, splits

    def check(self, offsets: str) -> None:
        """Raises InputLost where an epoch is to read more than was pushed."""
        pushed = self.counts()
        for source, count in read_counts(offsets).items():
            before = self._before.get(source, 0)
            if pushed.get(source, before) < count:
                raise InputLost(
                    "rows that were read before have to be pushed again, because an output is held",
                    where=f"source {source}",
                    expected=count_of(count - before, "row"),
                    found=count_of(pushed.get(source, before) - before, "row"),
                    next_move="push the same rows once more, then run the epoch",
                )


def paced_counts(state: JobState | None, program: Program, counts: Mapping[str, int]) -> dict[str, int]:
    """Positions of aligned sources that are too far ahead as a whole: their rows stay queued."""
    if state is None:
        return {}
    read = read_counts(state.manifest.offsets)
    order = derive_waiting(state.manifest.time, program.timed, state.manifest.clock_us)
    return {name: read.get(name, 0) for name, hold in order.paced.items() if hold.whole and name in counts}
