"""What fires at the end of an epoch goes on to the next level as it comes, and does not pile up in the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.model.wire import read_frames, read_rows
from headrace.operators import keyed, process, rolling
from headrace.plan.physical import Program
from headrace.runtime import framing
from headrace.runtime.framing import FrameCutter
from headrace.testing import Harness


class Tap(hr.Record):
    user: str
    at: hr.Timestamp


class Quiet(hr.Process[Tap, Tap, str]):
    quiet: hr.Timer

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
        self.quiet.set(event.at)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Tap]:
        yield Tap(ctx.key, ctx.timestamp)


class Ordered(Quiet):
    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Tap]:  # type: ignore[override]
        yield event


def first_letter(tap: Any) -> str:
    return str(tap.user[0])


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows lay in a task whenever it was asked for what goes on."""
    sizes: list[int] = []
    plans: dict[FrameCutter, Program] = {}
    begin, drain = FrameCutter.__init__, FrameCutter.drain

    def remember(cutter: FrameCutter, program: Program, level: int, task: int) -> None:
        begin(cutter, program, level, task)
        plans[cutter] = program

    def watch(cutter: FrameCutter, *, last: bool = False) -> list[pa.RecordBatch]:
        batches = list(drain(cutter, last=last))
        read = [frame for batch in batches for frame in read_frames(batch)]
        edges = plans[cutter].edges
        sizes.append(sum(read_rows(frame, edges[frame.edge].schema).num_rows for frame in read))
        return batches

    monkeypatch.setattr(FrameCutter, "__init__", remember)
    monkeypatch.setattr(FrameCutter, "drain", watch)
    # A task gathers nothing.
    monkeypatch.setattr(framing, "_SHARD_BYTES", 1)
    monkeypatch.setattr(framing, "_LEAST_BYTES", 1)
    return sizes


@pytest.mark.parametrize("step", ["timers", "aggregate", "order"])
def test_rows_of_the_end_of_an_epoch_leave_the_task_piece_by_piece(
    step: str, drained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CHUNK_KEYS", 8)
    monkeypatch.setattr(rolling, "_EMIT_ROWS", 8)
    monkeypatch.setattr(keyed, "_FIRST_PIECE_ROWS", 8)
    app = hr.App("taps")
    taps = app.read("taps", hr.source.items([]), Tap, time=Tap.at)
    by_user = taps.key_by(Tap.user)
    steps: dict[str, Callable[[], hr.Stream[Any]]] = {
        "timers": lambda: by_user.process(Quiet()),
        "aggregate": lambda: by_user.aggregate(last=hr.max("at")).named("newest").changes(),
        "order": lambda: by_user.process(Ordered(), order="time"),
    }
    # A result for every row: otherwise rows would be counted before the exchange.
    counts = steps[step]().key_by(first_letter).aggregate(n=hr.count(), fire=hr.per_row()).named("counts")
    with Harness(app, parallelism=1) as h:
        h.push(taps, *(Tap(f"u{i}", hr.Timestamp(i)) for i in range(100)))
        chain_first = len(drained)
        h.epoch(watermark=1000)
        assert [row.n for row in h.take(counts)] == list(range(1, 101))
    fired = [size for size in drained[chain_first:] if size]
    assert fired[0] == 100, "the chain's own rows"
    assert sum(fired[1:]) == 100
    assert max(fired[1:]) <= 8
