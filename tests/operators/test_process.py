"""A process function at work: events, state, side outputs, counters, late rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.errors import EpochFailed
from headrace.model.ids import MIN_TIME
from headrace.model.rows import codec_of
from headrace.operators.process import ProcessOperator
from tests.operators.rig import Rig, Row, values
from tests.operators.taps import Sum, Tap, Total, rig, tap


def test_state_of_a_key_lives_on_in_the_next_epoch() -> None:
    r = rig(Sum())
    assert values(r.epoch([tap("a"), tap("b", 5), tap("a", 2)])) == [Total("a", 1), Total("a", 3), Total("b", 5)]
    assert values(r.epoch([tap("b")], [tap("a")])) == [Total("b", 6), Total("a", 4)]


def test_a_crashed_epoch_leaves_no_trace() -> None:
    r = rig(Sum())
    r.epoch([tap("a")])
    r.attempt([tap("a", 100), tap("c", 100)])
    assert values(r.epoch([tap("a"), tap("c")])) == [Total("a", 2), Total("c", 1)]


def test_rows_of_a_key_keep_their_order_across_interleaved_keys() -> None:
    class Trail(hr.Process[Tap, Total, str]):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> list[Total]:
            return [Total(event.user, event.n)]

    rows = [tap("ab"[i % 2], i) for i in range(20)]
    out = values(rig(Trail()).epoch(rows))
    assert [row.n for row in out if row.user == "a"] == list(range(0, 20, 2))
    assert [row.n for row in out if row.user == "b"] == list(range(1, 20, 2))


def test_an_empty_batch_and_an_empty_epoch_do_nothing() -> None:
    r = rig(Sum())
    assert r.epoch([]) == []
    assert r.epoch() == []
    assert r.runs == []


@pytest.mark.parametrize("result", [None, [], (), iter(())])
def test_a_function_may_give_nothing_in_any_form(result: Any) -> None:
    class Quiet(hr.Process[Tap, Total, str]):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Any:
            return result

    assert rig(Quiet()).epoch([tap("a")]) == []


def test_rows_keep_the_time_of_the_event_that_made_them() -> None:
    class Twice(hr.Process[Tap, Total, str]):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Total]:
            for _ in range(event.n):
                yield Total(event.user, ctx.timestamp)  # type: ignore[arg-type]

    out = rig(Twice()).epoch([tap("a", 2, at=7), tap("b", 0, at=8), tap("a", 1, at=9)])
    assert out == [Row(Total("a", 7), 7), Row(Total("a", 7), 7), Row(Total("a", 9), 9)]


def test_rows_of_a_stream_without_time_have_none() -> None:
    r = rig(Sum(), timed=False)
    assert r.epoch([tap("a")]) == [Row(Total("a", 1), None)]


def test_the_context_tells_key_clock_watermark_and_epoch() -> None:
    seen: list[Any] = []

    class Look(hr.Process[Tap, Total, str]):
        later: hr.Timer

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            seen.append(("event", ctx.key, ctx.timestamp, ctx.watermark, ctx.now, ctx.epoch))
            self.later.set(hr.Timestamp(50))

        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
            seen.append((timer.name, ctx.key, ctx.timestamp, ctx.watermark, ctx.now, ctx.epoch))

    r = rig(Look())
    r.epoch([tap("a", at=10)], watermark=20, clock=1000)
    r.epoch([tap("b", at=30)], watermark=60, clock=2000)
    assert seen == [
        ("event", "a", 10, MIN_TIME, 1000, 0),
        ("event", "b", 30, 20, 2000, 1),
        ("later", "a", 50, 60, 2000, 1),
        ("later", "b", 50, 60, 2000, 1),
    ]


def test_keys_that_share_a_hash_stay_apart() -> None:
    r = rig(Sum(), hash_of=lambda key: 7)
    r.epoch([tap("a"), tap("b", 2)])
    assert sorted(values(r.epoch([tap("a"), tap("b", 2), tap("c", 3)])), key=lambda row: row.user) == [
        Total("a", 2),
        Total("b", 4),
        Total("c", 3),
    ]


def test_a_key_of_another_shard_is_refused() -> None:
    from headrace.state.lookup import Layers
    from headrace.state.shard import ShardState

    r = rig(Sum())
    layers = Layers([], lo=0, hi=1, groups=16)
    state = ShardState(layers, lo=0, hi=1, groups=16, spill=lambda tables: None, overlay_limit_bytes=1 << 30)
    r.attempt()
    r.operator.begin(hr_task(), state)
    with pytest.raises(EpochFailed, match="does not own"):
        for user in "abcdefgh":
            r.operator.process(0, *r.rows([tap(user)], lambda row: 0))


def hr_task() -> Any:
    from headrace.operators.contract import TaskInfo

    return TaskInfo(0, 0, 0)


# --- side outputs, counters


class Split(hr.Process[Tap, Total, str]):
    odd: hr.Side[Tap]
    seen: hr.Counter

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Total]:
        self.seen.inc()
        if event.n % 2:
            self.odd.emit(event)
        else:
            yield Total(event.user, event.n)


def test_side_rows_go_to_their_own_outlet_with_their_time() -> None:
    r = rig(Split(), outlets=["side:odd"])
    rows = [tap("a", 1, at=3), tap("a", 2, at=4)]
    assert r.epoch(rows) == [Row(Total("a", 2), 4)]
    assert r.out["side:odd"] == [Row(rows[0], 3)]


def test_side_rows_that_nobody_reads_are_dropped() -> None:
    assert values(rig(Split()).epoch([tap("a", 1), tap("a", 2)])) == [Total("a", 2)]


def test_counters_count_each_epoch_anew() -> None:
    r = rig(Split())
    r.epoch([tap("a"), tap("b")])
    assert r.report.counters == {"seen": 2}
    r.epoch([tap("a")])
    assert r.report.counters == {"seen": 1}
    assert (r.report.rows_in, r.report.rows_out) == (1, 0)


# --- late rows


def test_late_rows_are_counted_and_delivered_all_the_same() -> None:
    r = rig(Sum())
    r.epoch([tap("a", at=50)], watermark=10)
    assert len(r.epoch([tap("a", at=10), tap("a", at=11)])) == 2
    assert r.report.late == 1


def test_late_rows_go_to_who_reads_them_instead() -> None:
    r = rig(Sum(), outlets=["late"])
    r.epoch([tap("a", at=50)], watermark=10)
    assert values(r.epoch([tap("a", 5, at=10), tap("a", at=11)])) == [Total("a", 2)]
    assert r.out["late"] == [Row(tap("a", 5, at=10), 10)]
    assert r.report.late == 1


# --- keys, objects, pieces


@pytest.mark.parametrize(
    ("key_type", "key"),
    [(int, lambda row: row.n), (tuple[str, int], lambda row: (row.user, row.n)), (Any, lambda row: None)],
)
def test_the_key_comes_back_as_what_it_was(key_type: Any, key: Callable[[Tap], Any]) -> None:
    seen: list[Any] = []

    class Look(hr.Process[Tap, Total, Any]):
        def on_event(self, event: Tap, ctx: hr.Context[Any]) -> None:
            seen.append(ctx.key)

    operator = ProcessOperator("step", Look(), (), codec_of(Total), key_type=key_type)
    Rig(operator, codec_of(Tap), key).epoch([tap("a", 3)])
    assert seen == [key(tap("a", 3))]


def test_the_users_own_object_stays_as_it_is() -> None:
    function = Sum()
    rig(function).epoch([tap("a")])
    assert vars(function) == {}


def test_a_batch_is_handled_in_pieces_that_fit_into_memory() -> None:
    class Heavy(hr.Process[Tap, Total, str]):
        text: hr.ValueState[str]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Total]:
            self.text.set((self.text.get("") + "x" * 200)[:2000])
            yield Total(event.user, len(self.text.get("")))

    rows = [tap(f"u{i % 4000}", i) for i in range(20_000)]
    roomy, tight = rig(Heavy()), rig(Heavy(), overlay_limit_bytes=2_000_000)
    wanted = sorted(map(str, values(roomy.epoch(rows))))
    assert sorted(map(str, values(tight.epoch(rows)))) == wanted
    assert tight.spills > 1
    assert sorted(map(str, values(tight.epoch(rows)))) == sorted(map(str, values(roomy.epoch(rows))))
