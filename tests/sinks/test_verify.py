"""`verify_sink` has teeth: each way of breaking the contract is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, ClassVar

import pytest

from headrace.connectors.sink_contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.connectors.staged import PartWriter, arrow_writer, encode_arrow, read_rows
from headrace.errors import SinkFailed, SinkUnavailable
from headrace.model.batch import Rows
from headrace.model.record import Record
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec
from headrace.testing.sinks import SinkTarget, verify_sink


class Number(Record):
    n: int


NUMBERS = [Number(i) for i in range(9)]


class Table:
    """What a server would keep: rows, the store that they came from, and the newest epoch they came with."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.newest = (-1, -1)
        self.job = ""
        self.lock = RLock()
        self.calls_left: int | None = None
        """How many calls still reach it; None: all do."""

    def call(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise SinkUnavailable("connection refused")

    @contextmanager
    def failing(self, number: int) -> Iterator[None]:
        self.calls_left = number
        yield
        self.calls_left = None

    def stop(self) -> None:
        self.calls_left = 0

    def start(self) -> None:
        self.calls_left = None


TABLES: list[Table] = []
"""A sink is pickled; so that copies meet the same table, they know its number."""


class Honest(Sink):
    kind: ClassVar[str] = "honest"
    guarantee: Guarantee = "exactly once"
    accepts_updates: ClassVar[bool] = False

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def table(self) -> Table:
        return TABLES[self.number]

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def rows(self, parts: Sequence[StagedPart], ctx: Release) -> list[Any]:
        assert self.codec is not None
        self.claim(ctx)
        return [row for batch in read_rows(parts, ctx, self.codec) for row in batch]

    def claim(self, ctx: Release) -> None:
        self.table.job = self.table.job or ctx.job
        if self.table.job != ctx.job:
            raise SinkFailed("this table is another store's")

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        rows = self.rows(parts, ctx)
        self.table.call()
        with self.table.lock:
            if (int(ctx.timeline), ctx.epoch) > self.table.newest:
                self.table.call()
                self.table.rows.extend(rows)
                self.table.newest = (int(ctx.timeline), ctx.epoch)


class AtLeastOnce(Honest):
    guarantee: Guarantee = "at least once"

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        self.table.call()
        self.table.rows.extend(self.rows(parts, ctx))


class ShowsAgain(AtLeastOnce):
    guarantee: Guarantee = "exactly once"


class ForgetsAPart(Honest):
    def rows(self, parts: Sequence[StagedPart], ctx: Release) -> list[Any]:
        return super().rows(parts[1:], ctx)


class RemembersTooEarly(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if (int(ctx.timeline), ctx.epoch) > self.table.newest:
            self.table.newest = (int(ctx.timeline), ctx.epoch)
            self.table.rows.extend(self.rows(parts, ctx))


class ShowsPartByPart(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if (int(ctx.timeline), ctx.epoch) > self.table.newest:
            for part in parts:
                self.table.rows.extend(self.rows([part], ctx))
            self.table.newest = (int(ctx.timeline), ctx.epoch)


class ComparesTimelinesAsText(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        rows = self.rows(parts, ctx)
        with self.table.lock:
            if self.table.newest == (-1, -1) or (ctx.timeline, ctx.epoch) > self.table.newest:
                self.table.rows.extend(rows)
                self.table.newest = (ctx.timeline, ctx.epoch)  # type: ignore[assignment]


class RemembersOnlyTheLast(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        rows = self.rows(parts, ctx)
        if (int(ctx.timeline), ctx.epoch) != self.table.newest:
            self.table.rows.extend(rows)
            self.table.newest = (int(ctx.timeline), ctx.epoch)


class LooksBeforeItReads(Honest):
    """Between looking and writing another driver may come."""

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if (int(ctx.timeline), ctx.epoch) > self.table.newest:
            rows = self.rows(parts, ctx)
            with self.table.lock:
                self.table.rows.extend(rows)
                self.table.newest = max(self.table.newest, (int(ctx.timeline), ctx.epoch))


class TakesOtherStoresForItself(Honest):
    """Looks at numbers of epochs alone."""

    def claim(self, ctx: Release) -> None:
        pass


class SwallowsWhatFails(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        try:
            super().release(parts, ctx)
        except SinkUnavailable:
            return


class SaysFailedForUnavailable(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        try:
            super().release(parts, ctx)
        except SinkUnavailable as error:
            raise SinkFailed("no connection") from error


class GivesUpForGood(Honest):
    """After a failure it does not connect anew."""

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if self.__dict__.get("broken"):
            return
        try:
            super().release(parts, ctx)
        except SinkUnavailable:
            self.__dict__["broken"] = True
            raise


class ForgetsToRollBack(Honest):
    """The second call fails, the first one stays."""

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        rows = self.rows(parts, ctx)
        if (int(ctx.timeline), ctx.epoch) > self.table.newest:
            self.table.call()
            self.table.rows.extend(rows)
            self.table.call()
            self.table.newest = (int(ctx.timeline), ctx.epoch)


class KnowsOneThread(Honest):
    def start(self) -> None:
        self.thread = get_ident()

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert get_ident() == self.thread, "this connection belongs to another thread"
        super().release(parts, ctx)


class _Leaky(PartWriter):
    shown: list[Any]

    def write(self, rows: Rows) -> None:
        self.shown.extend(rows.objects)
        super().write(rows)


class ShowsWhileStaging(Honest):
    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        writer = _Leaky(task, encode_arrow, "arrow")
        writer.shown = self.table.rows
        return writer


class SharesAFileBetweenAttempts(Honest):
    """A task's attempts write to one place, so what is released is what all of them wrote."""

    staged: ClassVar[dict[tuple[int, int], list[Any]]] = {}

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        # Each task of each target begins with an empty place; its attempts do not.
        return _Shared(task, self.staged.setdefault((self.number, task.shard + 100 * task.epoch), []))

    def rows(self, parts: Sequence[StagedPart], ctx: Release) -> list[Any]:
        return [row for part in parts for row in self.staged[self.number, int(part.extra["task"])]]


class _Shared(StageWriter):
    def __init__(self, task: StageTask, place: list[Any]) -> None:
        self.task = task
        self.place = place
        self.count = 0

    def write(self, rows: Rows) -> None:
        self.place.extend(rows.objects)
        self.count += len(rows)

    def finish(self) -> list[StagedPart]:
        number = str(self.task.shard + 100 * self.task.epoch)
        return [StagedPart(rows=self.count, size_bytes=0, format="", extra={"task": number})] if self.count else []


def new_target(made: type[Honest]) -> SinkTarget:
    TABLES.append(Table())
    number, table = len(TABLES) - 1, TABLES[-1]
    return SinkTarget(lambda: made(number), lambda: list(table.rows), table.stop, table.start, table.failing)


@pytest.mark.parametrize("made", [Honest, AtLeastOnce])
def test_an_honest_sink_passes(made: type[Honest]) -> None:
    verify_sink(lambda: new_target(made), Number, NUMBERS)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (ShowsAgain, "released twice: rows are there more than once"),
        (ForgetsAPart, "rows are missing"),
        (RemembersTooEarly, "died at part 0: rows are missing"),
        (ShowsPartByPart, "died at part 1: rows are there more than once"),
        (ShowsWhileStaging, "visible before"),
        (KnowsOneThread, "another thread"),
        (SharesAFileBetweenAttempts, "two attempts of one task: rows are there more than once"),
        (ComparesTimelinesAsText, "newer timeline: rows are missing"),
        (RemembersOnlyTheLast, "older .* more than once"),
        (LooksBeforeItReads, "another driver released while this one did: rows are there more than once"),
        (TakesOtherStoresForItself, "the same epoch of another store was released: rows are missing"),
        (SwallowsWhatFails, "unavailable at part 0: the error was swallowed"),
        (SaysFailedForUnavailable, "SinkUnavailable became SinkFailed"),
        (GivesUpForGood, "unavailable at part 0: rows are missing"),
        (ForgetsToRollBack, "call 1 failed: rows are there more than once"),
    ],
)
def test_every_broken_promise_is_found(made: type[Honest], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        verify_sink(lambda: new_target(made), Number, NUMBERS)


class Version(Record):
    key: int
    n: int


class Upserts(Honest):
    """Keeps the newest row of each key; comparing epochs is what keeps an older one away."""

    accepts_updates: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        rows = self.rows(parts, ctx)
        with self.table.lock:
            number = (int(ctx.timeline), ctx.epoch)
            if self.compares and number < self.table.newest:
                return
            fresh = {row.key for row in rows}
            self.table.rows[:] = [row for row in self.table.rows if row.key not in fresh] + rows
            self.table.newest = max(self.table.newest, number)


class UpsertsBlindly(Upserts):
    compares: ClassVar[bool] = False


def test_an_older_version_of_a_row_must_not_come_back() -> None:
    rows = [Version(i, 0) for i in range(9)]
    versions = Version(1, 0), Version(1, 1)
    verify_sink(lambda: new_target_for(Upserts), Version, rows, versions=versions)
    verify_sink(lambda: new_target_for(UpsertsBlindly), Version, rows)
    with pytest.raises(AssertionError, match="brought an older version back"):
        verify_sink(lambda: new_target_for(UpsertsBlindly), Version, rows, versions=versions)


def new_target_for(made: type[Honest]) -> SinkTarget:
    target = new_target(made)
    return SinkTarget(target.make, target.read)
