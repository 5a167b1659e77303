"""Timers of a process function: when they fire, in which order, and what moves them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.model.ids import MAX_TIME
from headrace.operators import process
from tests.operators.rig import Row, values
from tests.operators.taps import Quiet, Tap, Total, rig, tap


def test_a_timer_fires_in_the_epoch_whose_watermark_reaches_it() -> None:
    r = rig(Quiet())
    assert r.epoch([tap("a", at=5)], watermark=14) == []
    assert r.epoch(watermark=15) == [Row(Total("a", 15), 15)]
    assert r.report.fired == 1
    assert r.epoch(watermark=99) == []


def test_setting_a_timer_again_moves_it() -> None:
    r = rig(Quiet())
    r.epoch([tap("a", at=5)], watermark=6)
    assert r.epoch([tap("a", at=9)], watermark=18) == []
    assert r.epoch(watermark=19) == [Row(Total("a", 19), 19)]


def test_a_timer_taken_back_does_not_fire() -> None:
    r = rig(Quiet())
    r.epoch([tap("a", at=5)], watermark=6)
    r.epoch([tap("a", -1, at=7)], watermark=8)
    assert r.epoch(watermark=99) == []


def test_a_timer_for_a_time_that_has_passed_fires_with_the_epoch() -> None:
    r = rig(Quiet())
    r.epoch([], watermark=100)
    assert r.epoch([tap("a", at=5)]) == [Row(Total("a", 15), 15)]


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_a_timer_for_a_time_that_has_passed_fires_even_if_it_was_spilled(limit: int) -> None:
    r = rig(Quiet(), overlay_limit_bytes=limit)
    r.epoch([], watermark=100)
    assert len(r.epoch([tap("a", at=5)], [tap("b", at=6)])) == 2
    assert r.epoch(watermark=200) == []


def test_the_end_of_time_fires_everything() -> None:
    r = rig(Quiet())
    r.epoch([tap("a", at=5), tap("b", at=1 << 60)], watermark=6)
    assert len(r.epoch(watermark=MAX_TIME, final=True)) == 2


class Alarms(hr.Process[Tap, Total, str]):
    """``n`` > 0 adds a timer for that time, < 0 takes it away; a timer at 10 sets one at 20 and one at 21."""

    ends: hr.Timers
    first: hr.Timer

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
        if event.n > 0:
            self.ends.add(hr.Timestamp(event.n))
        else:
            self.ends.discard(hr.Timestamp(-event.n))
        if self.first.get() is None:
            self.first.set(hr.Timestamp(15))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        yield Total(timer.name, ctx.timestamp)  # type: ignore[arg-type]
        if ctx.timestamp == 10:
            self.ends.add(hr.Timestamp(20))
            self.ends.add(hr.Timestamp(21))


def test_timers_fire_in_the_order_of_their_times_once_each() -> None:
    r = rig(Alarms())
    assert r.epoch([tap("a", 30), tap("a", 11), tap("a", 30), tap("a", 12), tap("a", -12)], watermark=1) == []
    assert values(r.epoch([tap("a", 9)], watermark=30)) == [
        Total("ends", 9),
        Total("ends", 11),
        Total("first", 15),
        Total("ends", 30),
    ]


def test_a_timer_set_while_timers_fire_fires_in_the_same_pass_if_due() -> None:
    r = rig(Alarms())
    r.epoch([tap("a", 10)], watermark=1)
    assert values(r.epoch(watermark=20)) == [Total("ends", 10), Total("first", 15), Total("ends", 20)]
    assert values(r.epoch(watermark=21)) == [Total("ends", 21)]


def test_a_timer_that_sets_itself_for_ever_is_an_error_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_REARMS", 50)

    class Ever(Quiet):
        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:  # type: ignore[override]
            self.quiet.set(ctx.timestamp + hr.seconds(1))

    r = rig(Ever())
    r.epoch([tap("a")], watermark=1)
    with pytest.raises(FunctionFailed, match="set again 50 times") as caught:
        r.epoch(watermark=MAX_TIME)
    assert ".errors" not in caught.value.next_move, "they would not take it"
    assert caught.value.failure.key == "a"


class Nap(hr.Process[Tap, Total, str]):
    wake: hr.WallTimer

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
        self.wake.set(hr.Timestamp(ctx.now + hr.Duration(event.n)))  # type: ignore[arg-type]

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        yield Total(ctx.key, ctx.now)  # type: ignore[arg-type]


def test_a_wall_timer_fires_without_rows_and_says_when_it_is_due() -> None:
    r = rig(Nap())
    r.epoch([tap("a", 50), tap("b", 70)], clock=100)
    assert r.report.next_due_us == 150
    assert values(r.epoch(clock=150)) == [Total("a", 150)]
    assert r.report.next_due_us == 170
    assert values(r.epoch(clock=500)) == [Total("b", 500)]
    assert r.report.next_due_us is None
