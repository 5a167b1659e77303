"""What the rows of a source say about time, noted while they pass: one mark per split, for the markers of a chain task.

A mark is the largest event time seen; or the largest time that rows themselves said is complete; or what a watermark
generator of the user's says once the task has read all its rows. Marks are the only thing that moves time, so they are
taken before any filter, and a task that is run again must come to the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StoreError
from headrace.model.batch import Int64s, Rows
from headrace.model.ids import MIN_TIME
from headrace.operators.failures import function_failed

if TYPE_CHECKING:
    from headrace.model.generators import GeneratorPlan, WatermarkGenerator
    from headrace.model.watermarks import SourceTime
    from headrace.plan.physical import SourcePlan


class LargestTimes:
    """The largest event time per split. Rows without event time say nothing about time."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.kept: dict[str, str] = {}
        """Split → what its generator keeps, as text."""

    def see(self, rows: Rows, times: Int64s, splits: pa.Array | None, said: pa.Array | None) -> None:
        """Takes note of a batch. ``said``: the time that each row says is complete, where rows do."""
        self.see_times(times, splits)

    def see_times(self, times: Int64s, splits: pa.Array | None) -> None:
        """Takes note of rows by their times alone."""
        for split, mine in _by_split(splits):
            self.note(split, int((times if mine is None else times[mine]).max()))

    def note(self, split: str, time_us: int) -> None:
        if time_us > self.marks.get(split, MIN_TIME):
            self.marks[split] = time_us

    def finish(self) -> None:
        """All rows of the task have been seen."""


class SaidTimes(LargestTimes):
    """The largest time that rows said is complete. A split whose rows say nothing holds time where it is."""

    def see(self, rows: Rows, times: Int64s, splits: pa.Array | None, said: pa.Array | None) -> None:
        assert said is not None, "a source whose rows tell how far time has come was read without what they say"
        super().see(rows, read_times(said), splits, None)

    def note(self, split: str, time_us: int) -> None:
        self.marks[split] = max(time_us, self.marks.get(split, MIN_TIME))


class GeneratedTimes(LargestTimes):
    """What the generator of each split says."""

    def __init__(self, source: str, plan: GeneratorPlan, before: SourceTime) -> None:
        super().__init__()
        self._source = source
        self._plan = plan
        self._before = before.splits if before.said_by == plan.name else {}
        self._generators: dict[str, WatermarkGenerator[Any]] = {}

    def see(self, rows: Rows, times: Int64s, splits: pa.Array | None, said: pa.Array | None) -> None:
        for split, mine in _by_split(splits):
            generator = self._generators.get(split)
            if generator is None:
                known = self._before.get(split)
                made = self._plan.make("" if known is None else known.kept, f"source {self._source}")
                generator = self._generators[split] = made
            some = rows if mine is None else rows.take(mine)
            self._feed(generator, some, times if mine is None else times[mine])

    def _feed(self, generator: WatermarkGenerator[Any], rows: Rows, times: Int64s) -> None:
        row = None
        try:
            if self._plan.columnar:
                generator.on_rows(rows.record_batch, times)
                return
            on_row: Any = generator.on_row
            for row, at in zip(rows.objects, times.tolist(), strict=True):
                on_row(row, at)
        except Exception as error:
            called: Any = generator.on_rows if self._plan.columnar else generator.on_row
            function = self._plan.function or called
            raise function_failed(error, step=self._source, function=function, row=row) from error

    def finish(self) -> None:
        for split, generator in self._generators.items():
            try:
                said: Any = generator.on_epoch()
                if said is not None and not isinstance(said, int):
                    raise TypeError(f"it returned {said!r:.100}, which is neither a timestamp nor None")
                self.kept[split] = self._plan.keep(generator)
            except StoreError:
                raise
            except Exception as error:
                raise function_failed(error, step=self._source, function=generator.on_epoch) from error
            self.marks[split] = MIN_TIME if said is None else max(MIN_TIME, said)


def open_marking(source: SourcePlan, before: SourceTime) -> LargestTimes | None:
    """What looks at the rows of a source in one task; None where it has no event time."""
    if source.time is None:
        return None
    if source.generator is not None:
        return GeneratedTimes(source.name, source.generator, before)
    return LargestTimes() if source.mark is None else SaidTimes()


def read_times(column: pa.Array) -> Int64s:
    """Event times as numbers. A row without one belongs to the beginning of time: it is late, never ahead."""
    if column.null_count:
        column = pc.fill_null(column, MIN_TIME)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _by_split(splits: pa.Array | None) -> Iterator[tuple[str, Int64s | None]]:
    """The splits of a batch with the positions of their rows (None: all of them); without splits one nameless."""
    if splits is None or splits.null_count == len(splits):
        yield "", None
        return
    encoded = pc.fill_null(splits, "").dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], None
        return
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    for code, split in enumerate(names):
        yield split, np.flatnonzero(codes == code)
