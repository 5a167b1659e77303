"""A process function at work: events, timers, side outputs, counters, late rows, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.errors import EpochFailed, FunctionFailed, StoreError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.rows import codec_of
from headrace.operators import timers
from headrace.operators.process import ProcessOperator
from tests.operators.rig import Rig, Row, values


class Tap(hr.Record):
    user: str
    n: int
    at: hr.Timestamp


class Total(hr.Record):
    user: str
    n: int


def tap(user: str, n: int = 1, at: int = 0) -> Tap:
    return Tap(user, n, hr.Timestamp(at))


def rig(function: Any, out: Any = Total, **options: Any) -> Rig:
    operator = ProcessOperator("step", function, declarations(type(function)), codec_of(out), key_type=str)
    return Rig(operator, codec_of(Tap), lambda row: row.user, **options)


class Sum(hr.Process[Tap, Total, str]):
    total: hr.ValueState[int]

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Total]:
        self.total.set(self.total.get(0) + event.n)
        yield Total(ctx.key, self.total.get(0))


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


# --- timers


class Quiet(hr.Process[Tap, Total, str]):
    """Says when a user was quiet for 10 µs; n < 0 takes the timer back."""

    quiet: hr.Timer

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
        if event.n < 0:
            self.quiet.clear()
        else:
            self.quiet.set(hr.Timestamp(int(event.at) + 10))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        assert timer is self.quiet
        assert self.quiet.get() is None
        yield Total(ctx.key, ctx.timestamp)  # type: ignore[arg-type]


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
    monkeypatch.setattr(timers, "MAX_REARMS", 50)

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


# --- failures


class Fragile(hr.Process[Tap, Total, str]):
    total: hr.ValueState[int]
    seen: hr.MapState[int, int]
    trail: hr.ListState[int] = hr.state(max_len=3)
    quiet: hr.Timer
    ends: hr.Timers
    odd: hr.Side[Tap]

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Total]:
        self.total.set(self.total.get(0) + event.n)
        self.seen[event.n] = self.seen.get(event.n, 0) + 1
        self.trail.append(event.n)
        self.ends.add(hr.Timestamp(1000 + event.n))
        self.odd.emit(event)
        yield Total(f"{list(self.trail)} {sorted(self.seen.items())}", self.total.get(0))
        if event.n == 13:
            self.seen.clear()
            self.trail.clear()
            self.quiet.set(hr.Timestamp(5))
            raise ValueError("thirteen")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        yield Total(timer.name, ctx.timestamp)  # type: ignore[arg-type]
        if ctx.timestamp == 1001:
            self.total.clear()
            raise KeyError("timer")


def test_a_failing_function_stops_the_task_and_tells_where() -> None:
    r = rig(Fragile())
    with pytest.raises(FunctionFailed) as caught:
        r.epoch([tap("bob", 13, at=7)])
    failure: Any = caught.value.failure
    assert failure.step == "step"
    assert failure.function == "Fragile.on_event"
    assert failure.error == "ValueError: thirteen"
    assert failure.file == __file__
    assert 'raise ValueError("thirteen")' in Path(__file__).read_text().splitlines()[failure.line - 1]
    assert failure.key == "bob"
    assert '"bob"' in failure.row and "13" in failure.row
    assert "headrace/operators" not in failure.trace
    assert ".errors" in caught.value.next_move


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_where_errors_are_read_the_failing_call_is_undone_and_its_row_goes_there(limit: int) -> None:
    r = rig(Fragile(), outlets=["errors", "side:odd"], overlay_limit_bytes=limit)
    r.epoch([tap("a", 1, at=3), tap("a", 2, at=3), tap("a", 3, at=3)])
    assert values(r.epoch([tap("a", 13, at=4), tap("a", 4, at=5)])) == [
        Total("[2, 3, 4] [(1, 1), (2, 1), (3, 1), (4, 1)]", 10)
    ]
    assert values(r.out["side:odd"]) == [tap("a", 4, at=5)]
    [failed] = r.out["errors"]
    assert failed.at == 4
    assert failed.value.step == "step" and failed.value.error == "ValueError: thirteen"
    assert (failed.value.key, failed.value.timer) == ("a", "")
    assert b'"n":13' in failed.value.row
    assert r.epoch(watermark=999) == []  # The timer that the failing call set was undone too.


def test_a_failing_timer_has_fired_but_changed_nothing() -> None:
    r = rig(Fragile(), outlets=["errors"])
    r.epoch([tap("a", 1)])
    assert values(r.epoch(watermark=2000)) == []
    [failed] = r.out["errors"]
    assert (failed.value.error, failed.value.key, failed.value.timer) == ("KeyError: 'timer'", "a", "ends")
    assert (failed.value.row, failed.at) == (b"", 1001)
    assert values(r.epoch([tap("a", 5)], watermark=3000))[0].n == 6


def test_returning_a_row_instead_of_yielding_it_is_explained() -> None:
    class Slip(hr.Process[Tap, Total, str]):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Any:
            return Total("a", 1)

    with pytest.raises(FunctionFailed, match="yield the row"):
        rig(Slip()).epoch([tap("a")])


def test_a_value_that_does_not_fit_its_declaration_is_found_before_it_is_stored() -> None:
    class Wrong(hr.Process[Tap, Total, str]):
        total: hr.ValueState[int]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            self.total.set("many")  # type: ignore[arg-type]

    with pytest.raises(FunctionFailed, match="'total' was given 'many'"):
        rig(Wrong()).epoch([tap("a")])


def test_stored_values_of_another_type_are_the_stores_error_not_the_functions() -> None:
    class Text(hr.Process[Tap, Total, str]):
        total: hr.ValueState[str]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            self.total.set(self.total.get("") + "x")

    before = rig(Sum())
    before.epoch([tap("a")])
    after = rig(Text())
    after.runs = before.runs
    with pytest.raises(StoreError, match="does not fit"):
        after.epoch([tap("a")])


def test_open_and_close_run_around_everything_and_their_failures_are_told() -> None:
    calls: list[str] = []

    class Opens(Sum):
        def open(self) -> None:
            calls.append("open")

        def close(self) -> None:
            raise OSError("gone")

    r = rig(Opens())
    r.epoch([tap("a")])
    r.epoch([tap("a")])
    assert calls == ["open"]
    with pytest.raises(FunctionFailed, match="gone") as caught:
        r.operator.close()
    assert ".errors" not in caught.value.next_move


def test_a_state_cannot_be_used_outside_of_a_call() -> None:
    class Early(Sum):
        def open(self) -> None:
            self.total.get()

    with pytest.raises(FunctionFailed, match="on_event and on_timer only"):
        rig(Early())


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


def test_a_state_stored_as_another_kind_is_refused() -> None:
    class Many(hr.Process[Tap, Total, str]):
        total: hr.MapState[str, int]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None: ...

    before = rig(Sum())
    before.epoch([tap("a")])
    after = rig(Many())
    after.runs = before.runs
    with pytest.raises(StoreError, match="another kind"):
        after.epoch([tap("a")])


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


class Word(hr.Record):
    key: str


@pytest.mark.parametrize("reads_errors", [False, True])
def test_a_text_that_is_returned_is_not_taken_for_rows_of_letters(reads_errors: bool) -> None:
    class Greet(hr.Process[Word, str, str]):
        def on_event(self, event: Word, ctx: hr.Context[str]) -> Any:
            return "hello"

    app = hr.App("greeting")
    events = app.read("events", hr.source.items([]), Word)
    greetings = events.key_by(Word.key).process(Greet())
    greetings.show()
    if reads_errors:
        greetings.errors.show()
    with hr.testing.Harness(app) as h:
        h.push(events, Word("a"))
        if reads_errors:
            h.epoch()
            assert "'hello', which is neither None nor an iterable" in h.take(greetings.errors)[0].error
            assert h.take(greetings) == []
        else:
            with pytest.raises(hr.HeadraceError, match="'hello', which is neither None nor an iterable"):
                h.epoch()
