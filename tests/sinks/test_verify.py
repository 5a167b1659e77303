"""`verify_sink` has teeth: each way of breaking the contract is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from headrace.model.batch import Rows
from headrace.model.record import Record
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec
from headrace.sinks.contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.sinks.staged import PartWriter, arrow_writer, encode_arrow, read_rows
from headrace.testing.sinks import SinkTarget, verify_sink


class Number(Record):
    n: int


NUMBERS = [Number(i) for i in range(9)]
SHOWN: list[Any] = []


class Honest(Sink):
    kind: ClassVar[str] = "honest"
    guarantee: ClassVar[Guarantee] = "exactly once"
    accepts_updates: ClassVar[bool] = False

    def __init__(self, done: set[tuple[str, int]]) -> None:
        self.done = done

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def rows(self, parts: Sequence[StagedPart], ctx: Release) -> list[Any]:
        assert self.codec is not None
        return [row for batch in read_rows(parts, ctx, self.codec) for row in batch]

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if (ctx.timeline, ctx.epoch) not in self.done:
            SHOWN.extend(self.rows(parts, ctx))
            self.done.add((ctx.timeline, ctx.epoch))


class AtLeastOnce(Honest):
    guarantee: ClassVar[Guarantee] = "at least once"

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        SHOWN.extend(self.rows(parts, ctx))


class ShowsAgain(AtLeastOnce):
    guarantee: ClassVar[Guarantee] = "exactly once"


class ForgetsAPart(Honest):
    def rows(self, parts: Sequence[StagedPart], ctx: Release) -> list[Any]:
        return super().rows(parts[1:], ctx)


class RemembersTooEarly(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if (ctx.timeline, ctx.epoch) not in self.done:
            self.done.add((ctx.timeline, ctx.epoch))
            SHOWN.extend(self.rows(parts, ctx))


class ShowsPartByPart(Honest):
    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if (ctx.timeline, ctx.epoch) not in self.done:
            for part in parts:
                SHOWN.extend(self.rows([part], ctx))
            self.done.add((ctx.timeline, ctx.epoch))


class _Leaky(PartWriter):
    def write(self, rows: Rows) -> None:
        SHOWN.extend(rows.objects)
        super().write(rows)


class ShowsWhileStaging(Honest):
    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return _Leaky(task, encode_arrow, "arrow")


def new_target(made: type[Honest]) -> SinkTarget:
    SHOWN.clear()
    done: set[tuple[str, int]] = set()
    return SinkTarget(lambda: made(done), lambda: list(SHOWN))


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
    ],
)
def test_every_broken_promise_is_found(made: type[Honest], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        verify_sink(lambda: new_target(made), Number, NUMBERS)
