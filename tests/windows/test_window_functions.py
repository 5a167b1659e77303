"""Functions of windows and triggers of one's own: their states, what merging does to them, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.testing.operators import EpochInput, verify_step
from headrace.testing.rig import values
from tests.windows.stepping import All, Event, both, events, rig_of

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


def source(app: hr.App | None = None) -> hr.KeyedStream[Event, str]:
    app = app or hr.App("functions")
    return app.read("events", hr.source.items([]), Event, time=Event.at).key_by(Event.key)


class Told(hr.Record):
    key: str
    what: str


# -- states ------------------------------------------------------------------------------------------------------


class Counting(hr.WindowProcess[Event, Told, str]):
    windows: hr.ValueState[int]
    fired: hr.ValueState[int] = hr.state(scope="window")
    seen: hr.ListState[int] = hr.state(scope="window", max_len=3)
    by_n: hr.MapState[int, int] = hr.state(scope="window")
    most: hr.ReducingState[int] = hr.state(scope="window", reduce=max)
    every: hr.AggregatingState[Event, list[int]] = hr.state(scope="window", aggregator=All())
    odd: hr.Side[Event]
    calls: hr.Counter

    def on_window(self, rows: Sequence[Event], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        self.calls.inc()
        if self.fired.get() is None:
            self.windows.set(self.windows.get(0) + 1)
        self.fired.set(self.fired.get(0) + 1)
        for row in rows:
            self.seen.append(row.n)
            self.by_n[row.n] = self.by_n.get(row.n, 0) + 1
            self.most.add(row.n)
            self.every.add(row)
            if row.n % 2:
                self.odd.emit(row)
        yield Told(
            ctx.key,
            f"{ctx.pane} {self.windows.get()} {self.fired.get()} {list(self.seen)} {dict(self.by_n)} {self.most.get()} "
            f"{self.every.get()}",
        )


def test_states_of_a_window_go_with_it_and_those_of_the_key_stay() -> None:
    step = source().window(hr.tumbling("10us"), allow_late="5us", panes="discard").process(Counting())
    step.side(Counting.odd)
    rig = rig_of(step, outlets=("side:odd",))
    told = values(rig.epoch(events("a1@1 a2@2"), watermark=9))
    assert [row.what for row in told] == ["on_time 1 1 [1, 2] {1: 1, 2: 1} 2 [1, 2]"]
    assert [(row.value.n, row.at) for row in rig.out["side:odd"]] == [(1, 9)]
    told = values(rig.epoch(events("a1@1 a4@3 a5@12"), watermark=10))
    assert [row.what for row in told] == ["late 1 2 [2, 1, 4] {1: 2, 2: 1, 4: 1} 4 [1, 2, 1, 4]"]
    told = values(rig.epoch(watermark=30))
    assert [row.what for row in told] == ["on_time 2 1 [5] {5: 1} 5 [5]"]
    assert rig.report.counters == {"calls": 1}


def test_functions_with_states_are_the_same_however_they_are_run() -> None:
    step = source().window(hr.sliding("10us", every="5us"), allow_late="5us", panes="discard").process(Counting())
    step.side(Counting.odd)
    verify_step(
        step,
        [
            EpochInput(events("a1@1 b2@2 a3@7"), watermark=5),
            EpochInput(events("a4@8 b5@3"), watermark=12),
            EpochInput(events("a6@6 a7@13"), watermark=16),
            EpochInput([], watermark=60),
        ],
    )


class Merging(hr.WindowProcess[Event, Told, str]):
    seen: hr.ListState[int] = hr.state(scope="window")
    by_n: hr.MapState[int, int] = hr.state(scope="window")
    most: hr.ReducingState[int] = hr.state(scope="window", reduce=max)
    every: hr.AggregatingState[Event, list[int]] = hr.state(scope="window", aggregator=All())

    def on_window(self, rows: Sequence[Event], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        for row in rows:
            self.seen.append(row.n)
            self.by_n[row.n] = int(ctx.window.start)
            self.most.add(row.n)
            self.every.add(row)
        yield Told(ctx.key, f"{list(self.seen)} {dict(self.by_n)} {self.most.get()} {self.every.get()}")


def test_sessions_that_become_one_put_their_states_together() -> None:
    step = source().window(hr.session("10us"), fire=hr.per_epoch(), panes="discard").process(Merging())
    rig = rig_of(step)
    told = values(rig.epoch(events("a1@0 a5@18"), watermark=0))
    assert [row.what for row in told] == ["[1] {1: 0} 1 [1]", "[5] {5: 18} 5 [5]"]
    told = values(rig.epoch(events("a3@9"), watermark=0))
    assert [row.what for row in told] == ["[1, 5, 3] {1: 0, 3: 0, 5: 18} 5 [1, 5, 3]"]
    rig.epoch(watermark=100)
    told = values(rig.epoch(events("a2@200"), watermark=100))
    assert [row.what for row in told] == ["[2] {2: 200} 2 [2]"], "nothing is left of a session that is gone"


def test_merging_states_is_the_same_however_it_is_run() -> None:
    step = (
        source().window(hr.session("10us"), fire=hr.per_epoch(), panes="discard", allow_late="5us").process(Merging())
    )
    verify_step(
        step,
        [
            EpochInput(events("a1@0 a5@18 b3@4 b4@2"), watermark=2),
            EpochInput(events("a3@9 b5@14 a8@40"), watermark=8),
            EpochInput(events("a4@29 b2@25"), watermark=30),
            EpochInput(events("a9@60"), watermark=99),
        ],
    )


# -- one row instead of all ----------------------------------------------------------------------------------------


class Of(hr.WindowProcess[hr.Row, Told, str]):
    def on_window(self, rows: Sequence[hr.Row], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        [row] = rows
        yield Told(ctx.key, f"{row.key} {row.n} {row.seen} {row.window_start} {ctx.window.end} {ctx.pane}")


class Whole(hr.Record):
    key: str
    n: int
    window_end: hr.Timestamp
    note: str = "none"


class OfTyped(hr.WindowProcess[Whole, Told, str]):
    def on_window(self, rows: Sequence[Whole], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        yield Told(ctx.key, repr(rows[0]))


def test_a_function_may_be_given_aggregates_instead_of_rows() -> None:
    step = source().window(hr.tumbling("10us")).process(Of(), of={"n": hr.count(), "seen": hr.collect("n")})
    told = values(rig_of(step).epoch(events("a1@1 a2@2"), watermark=9))
    assert [row.what for row in told] == ["a 2 [1, 2] 0 10 on_time"]


def test_a_function_may_be_given_aggregates_in_a_type_of_its_own() -> None:
    step = source().window(hr.tumbling("10us")).process(OfTyped(), of={"n": hr.count()})
    told = values(rig_of(step).epoch(events("a1@1 a2@2"), watermark=9))
    assert [row.what for row in told] == ["Whole(key='a', n=2, window_end=10, note='none')"]


class OfReduced(hr.WindowProcess[Event, Told, str]):
    def on_window(self, rows: Sequence[Event], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        yield Told(ctx.key, f"{rows[0].seen} {ctx.window.start}")


def test_a_function_may_be_given_a_reduced_row() -> None:
    step = source().window(hr.tumbling("10us")).process(OfReduced(), of=both)
    told = values(rig_of(step).epoch(events("a1@1 a2@2 a3@3"), watermark=9))
    assert [row.what for row in told] == ["[1, 2, 3] 0"]


@pytest.mark.parametrize("of", [{"n": hr.count(), "seen": hr.collect("n")}, both])
@pytest.mark.parametrize("window", [hr.tumbling("10us"), hr.session("4us"), hr.rows(3, every=2)])
def test_combinations_are_the_same_however_they_are_run(window: Any, of: Any) -> None:
    function: Any = OfReduced() if of is both else OfRows()
    fire = None if window.timed is False else hr.every(rows=2)
    step = source().window(window, fire=fire, panes="discard" if fire else "accumulate").process(function, of=of)
    rows = [events("a1@1 b2@2 a3@7 a4@3"), events("a5@8 b6@3 b7@5 a8@22"), events("a9@2 b1@4")]
    verify_step(step, [EpochInput(each, watermark=2 * i) for i, each in enumerate(rows)])


class OfRows(hr.WindowProcess[hr.Row, Told, str]):
    def on_window(self, rows: Sequence[hr.Row], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        yield Told(ctx.key, f"{rows[0].n} {rows[0].seen} {ctx.window}")


# -- triggers of one's own -----------------------------------------------------------------------------------------


class Bursts(hr.Trigger):
    """Fires on the third row, when event time is 5 µs beyond a row, and when nothing came for 20 µs of the clock."""

    rows: hr.ReducingState[int] = hr.state(reduce=lambda a, b: a + b)
    times: hr.MapState[int, int]

    def on_row(self, row: Any, ctx: hr.TriggerContext) -> hr.TriggerResult:
        self.rows.add(1)
        self.times[int(row.at)] = 1
        ctx.set_timer(hr.Timestamp(int(row.at) + 5))
        ctx.set_wall_timer(hr.Timestamp(int(ctx.now) + 20))
        return hr.TriggerResult.FIRE if self.rows.get() == 3 else hr.TriggerResult.CONTINUE

    def on_event_time(self, at: hr.Timestamp, ctx: hr.TriggerContext) -> hr.TriggerResult:
        return hr.TriggerResult.FIRE if len(self.times) > 1 else hr.TriggerResult.CONTINUE

    def on_wall_time(self, at: hr.Timestamp, ctx: hr.TriggerContext) -> hr.TriggerResult:
        return hr.TriggerResult.FIRE_AND_PURGE

    def on_merge(self, ctx: hr.TriggerContext) -> None:
        for at in self.times:
            ctx.set_timer(hr.Timestamp(at + 5))


def seen(rows: list[Any]) -> list[Any]:
    return [row.seen for row in rows]


def test_a_trigger_of_ones_own_is_asked_for_each_row_and_time() -> None:
    step = source().window(hr.tumbling("100us"), fire=Bursts()).aggregate(seen=hr.collect("n")).named("step")
    rig = rig_of(step)
    assert seen(values(rig.epoch(events("a1@10 a2@11"), watermark=9, clock=0))) == []
    assert seen(values(rig.epoch(events("a3@12 a4@13"), watermark=9, clock=5))) == [[1, 2, 3]]
    assert rig.report.next_due_us == 20
    assert seen(values(rig.epoch(watermark=15, clock=6))) == [[1, 2, 3, 4]]
    assert seen(values(rig.epoch(watermark=17, clock=7))) == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert seen(values(rig.epoch(watermark=17, clock=20))) == [[1, 2, 3, 4]]
    assert seen(values(rig.epoch(watermark=18, clock=21))) == [], "an emptied window gives nothing"
    assert seen(values(rig.epoch(events("a5@14"), watermark=18, clock=22))) == []
    assert seen(values(rig.epoch(watermark=19, clock=23))) == [[5]]
    assert seen(values(rig.epoch(watermark=99, clock=90))) == [], "the end of the window is not among its times"
    assert seen(values(rig.out["finals"])) == [[5]], "what the clock has thrown away is gone"


@pytest.mark.parametrize(
    ("window", "fire"),
    [
        (hr.tumbling("20us"), Bursts()),
        (hr.sliding("20us", every="10us"), hr.timeout("7us", of=Bursts())),
        (hr.session("4us"), Bursts()),
        (hr.session("4us"), hr.timeout("7us", of=Bursts())),
    ],
)
def test_a_trigger_of_ones_own_is_the_same_however_it_is_run(window: Any, fire: Any) -> None:
    step = source().window(window, fire=fire, allow_late="3us").aggregate(seen=hr.collect("n")).named("step")
    step.finals()
    verify_step(
        step,
        [
            EpochInput(events("a1@10 b2@11 a3@13 a4@3"), watermark=2, clock=0),
            EpochInput(events("a5@8 b6@3 b7@14 a8@22"), watermark=9, clock=7),
            EpochInput(events("a9@12 b1@14"), watermark=18, clock=19),
            EpochInput([], watermark=30, clock=60),
            EpochInput(events("a9@70"), watermark=90, clock=61),
        ],
    )


class Endless(hr.Trigger):
    def on_row(self, row: Any, ctx: hr.TriggerContext) -> hr.TriggerResult:
        ctx.set_timer(hr.Timestamp(int(row.at)))
        return hr.TriggerResult.CONTINUE

    def on_event_time(self, at: hr.Timestamp, ctx: hr.TriggerContext) -> hr.TriggerResult:
        ctx.set_timer(at)
        return hr.TriggerResult.CONTINUE


class Wrong(hr.Trigger):
    def on_row(self, row: Any, ctx: hr.TriggerContext) -> hr.TriggerResult:
        return True  # type: ignore[return-value]


@pytest.mark.parametrize(("fire", "words"), [(Endless(), "again and again"), (Wrong(), "no hr.TriggerResult")])
def test_a_trigger_that_goes_wrong_is_told(fire: hr.Trigger, words: str) -> None:
    step = source().window(hr.tumbling("10us"), fire=fire).aggregate(n=hr.count()).named("step")
    with pytest.raises(FunctionFailed, match=words):
        rig_of(step).epoch(events("a1@1"), watermark=5)


# -- what goes wrong -----------------------------------------------------------------------------------------------


class Picky(hr.WindowProcess[Event, Told, str]):
    calls: hr.ValueState[int]
    in_window: hr.ValueState[int] = hr.state(scope="window")

    def on_window(self, rows: Sequence[Event], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        self.calls.set(self.calls.get(0) + 1)
        self.in_window.set(self.in_window.get(0) + 1)
        yield Told(ctx.key, f"{self.calls.get()} {self.in_window.get()}")
        if any(row.n == 13 for row in rows):
            raise ValueError("unlucky")


def test_a_failing_window_stops_the_task_with_its_key() -> None:
    step = source().window(hr.tumbling("10us")).process(Picky())
    with pytest.raises(FunctionFailed, match="unlucky") as caught:
        rig_of(step).epoch(events("a13@1"), watermark=9)
    assert "key a" in str(caught.value)


def test_a_failing_window_becomes_a_row_of_errors_and_is_undone() -> None:
    step = source().window(hr.tumbling("10us"), allow_late="10us", panes="discard").process(Picky())
    rig = rig_of(step, outlets=("errors",))
    assert values(rig.epoch(events("a13@1 b1@1"), watermark=9)) == [Told("b", "1 1")]
    [failed] = rig.out["errors"]
    assert failed.value.key == "a" and "unlucky" in failed.value.error and failed.at == 9
    assert values(rig.epoch(events("a1@1 b2@2"), watermark=12)) == [Told("a", "1 1"), Told("b", "2 2")]


class NoThirteen(hr.Aggregator[Event, list[int], list[int]]):
    """Refuses a value after it has already changed its accumulator."""

    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: Event) -> list[int]:
        acc.append(x.n)
        if x.n == 13:
            raise ValueError("unlucky")
        return acc

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, acc: list[int]) -> list[int]:
        return acc


def no_thirteen(a: Event, b: Event) -> Event:
    if b.n == 13:
        raise ValueError("unlucky")
    return both(a, b)


@pytest.mark.parametrize("window", [hr.tumbling("10us"), hr.sliding("10us", every="5us"), hr.session("5us")])
@pytest.mark.parametrize("fire", [None, hr.per_row(), hr.every(rows=2)])
@pytest.mark.parametrize("verb", ["own", "reduce"])
def test_a_refused_row_counts_nowhere(window: Any, fire: Any, verb: str) -> None:
    held = source().window(window, fire=fire, panes="discard" if fire is not None else "accumulate")
    step: Any = held.reduce(no_thirteen) if verb == "reduce" else held.aggregate(n=hr.count(), seen=NoThirteen())
    step = step.named("step")
    _ = step.errors
    rows = [events("a1@1 a13@4 a2@8 b13@2 b3@3 b4@4"), events("a5@9 a6@22 a13@23 a13@27 a8@24")]
    rig = rig_of(step, outlets=("errors",))
    for watermark, each in enumerate(rows):
        for row in values(rig.epoch(each, watermark=watermark)):
            # A row that is alone was seen by no function.
            assert 13 not in row.seen[1 if verb == "reduce" else 0 :]
            assert verb == "reduce" or row.n == len(row.seen)
        if verb == "own":
            assert len(rig.out["errors"]) == sum(row.n == 13 for row in each), "each row is told once"
    if fire is None or verb == "own":
        ends = [EpochInput(rows[0], watermark=0), EpochInput(rows[1], watermark=12), EpochInput([], watermark=99)]
        verify_step(step, ends)


def test_a_refused_row_stops_the_task_where_nobody_reads_errors() -> None:
    step = source().window(hr.session("10us")).aggregate(seen=NoThirteen()).named("step")
    with pytest.raises(FunctionFailed, match="unlucky") as caught:
        rig_of(step).epoch(events("a13@1"), watermark=9)
    assert "NoThirteen.add" in str(caught.value)


def test_a_session_without_a_gap_is_an_error() -> None:
    step = source().window(hr.session(Event.gap)).aggregate(seen=hr.collect("n")).named("step")
    with pytest.raises(FunctionFailed, match="above 0"):
        rig_of(step).epoch(events("a1@1"), watermark=9)
    rig = rig_of(step, outlets=("errors",))
    rig.epoch(events("a1@1"), watermark=9)
    assert len(rig.out["errors"]) == 1


def broken(older: Event, newer: Event) -> float:
    raise ValueError("unlucky")


class Broken(hr.Evictor):
    def keep(self, rows: Sequence[Any], times: Sequence[int]) -> list[bool]:
        raise ValueError("unlucky")


class LastOnes(hr.Evictor):
    after = True

    def keep(self, rows: Sequence[Any], times: Sequence[int]) -> list[bool]:
        return [row.n % 10 == 1 for row in rows]


def test_an_evictor_may_be_ones_own() -> None:
    step = source().window(hr.unbounded(), fire=hr.per_epoch(), evict=LastOnes()).aggregate(seen=hr.collect("n"))
    rig = rig_of(step.named("step"))
    assert seen(values(rig.epoch(events("a1@0 a2@0 a11@0")))) == [[1, 2, 11]]
    assert seen(values(rig.epoch(events("a5@0")))) == [[1, 11, 5]]


@pytest.mark.parametrize(
    "options",
    [
        {"fire": hr.on_delta(broken, 1)},
        {"fire": hr.every(rows=2), "evict": Broken()},
        {"fire": hr.every(rows=2), "evict": hr.keep_delta(broken, 1)},
    ],
)
def test_a_function_of_triggers_and_evictors_that_raises_is_told(options: Any) -> None:
    step = source().window(hr.unbounded(), **options).aggregate(seen=hr.collect("n")).named("step")
    with pytest.raises(FunctionFailed, match="unlucky"):
        rig_of(step).epoch(events("a1@0 a2@0"))


@pytest.mark.parametrize("verb", ["own", "reduce", "evictor"])
def test_a_window_of_kept_rows_that_fails_becomes_a_row_of_errors(verb: str) -> None:
    held = source().window(hr.tumbling("10us"), evict=Broken() if verb == "evictor" else hr.keep_rows(5))
    made: Any = held.reduce(no_thirteen) if verb == "reduce" else held.aggregate(seen=NoThirteen())
    made = made.named("step")
    rows = events("a1@1 a13@2 b3@3 b4@4")
    with pytest.raises(FunctionFailed, match="unlucky"):
        rig_of(made).epoch(rows, watermark=9)
    rig = rig_of(made, outlets=("errors",))
    told = values(rig.epoch(rows, watermark=9))
    assert [row.key for row in told] == ([] if verb == "evictor" else ["b"])
    assert {(row.value.key, row.at) for row in rig.out["errors"]} >= {("a", 9)}


# -- rows without a window -----------------------------------------------------------------------------------------


def test_rows_without_a_time_are_late() -> None:
    step = source().window(hr.tumbling("10us")).aggregate(seen=hr.collect("n")).named("step")
    rig = rig_of(step)
    rig.time = lambda row: int(row.at) if row.n else -(2**63) + 1
    rig.epoch(events("a0@1 a1@1"), watermark=5)
    assert [row.value.n for row in rig.out["late"]] == [0]


def test_results_of_unbounded_windows_have_the_time_of_their_newest_row() -> None:
    step = source().window(hr.unbounded(), fire=hr.every(rows=2), panes="discard").aggregate(n=hr.count()).named("step")
    rig = rig_of(step)
    assert [row.at for row in rig.epoch(events("a1@7 a2@3 a3@1 a4@2"))] == [7, 2]


@pytest.mark.parametrize(
    ("window", "fire", "due"),
    [
        (hr.tumbling("10us", clock="wall"), None, 9),
        (hr.session("10us", clock="wall"), None, 12),
        (hr.tumbling("100us"), hr.early("10us"), 10),
        (hr.unbounded(), hr.timeout("4us"), 7),
        (hr.tumbling("100us"), None, None),
        (hr.tumbling("100us"), hr.per_epoch(), None),
    ],
)
def test_a_step_says_when_the_wall_clock_makes_something_due(window: Any, fire: Any, due: int | None) -> None:
    step = source().window(window, fire=fire).aggregate(seen=hr.collect("n")).named("step")
    rig = rig_of(step)
    rig.epoch(clock=0)
    rig.epoch(events("a1@5"), clock=3)
    assert rig.report.next_due_us == due


def test_a_window_may_hold_more_than_memory_takes_at_once() -> None:
    step = source().window(hr.tumbling("1000us")).process(Sums())
    rig = rig_of(step, overlay_limit_bytes=20_000)
    for epoch in range(3):
        rows = [Event(f"k{i % 3}", i, hr.Timestamp(i % 1000)) for i in range(epoch, 1500, 3)]
        rig.epoch(*(rows[start : start + 100] for start in range(0, len(rows), 100)), watermark=0)
    assert rig.spills > 3
    told = values(rig.epoch(watermark=999))
    assert sum(int(row.what.split()[0]) for row in told) == 1500
    assert sum(int(row.what.split()[1]) for row in told) == sum(range(1500))
    assert not values(rig.epoch(watermark=5000))


class Sums(hr.WindowProcess[Event, Told, str]):
    def on_window(self, rows: Sequence[Event], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        yield Told(ctx.key, f"{len(rows)} {sum(row.n for row in rows)}")


# -- what does not fit -------------------------------------------------------------------------------------------


class Noting(hr.WindowProcess[Event, Told, str]):
    by_text: hr.MapState[str, int] = hr.state(scope="window")
    by_number: hr.MapState[float, int] = hr.state(scope="window")
    by_pair: hr.MapState[tuple[str, int], int] = hr.state(scope="window")

    def __init__(self, name: str, given: Any) -> None:
        self.name = name
        self.given = given

    def on_window(self, rows: Sequence[Event], ctx: hr.WindowContext[str]) -> Iterator[Told]:
        if rows[0].n:
            getattr(self, self.name)[self.given] = 1
        return iter(())


@pytest.mark.parametrize(
    ("name", "given"),
    [("by_text", 5), ("by_text", None), ("by_text", "a\ud800"), ("by_number", "5"), ("by_pair", ("a", 1.5))],
)
def test_a_key_of_a_windows_map_that_its_type_does_not_allow_stops_the_epoch(name: str, given: Any) -> None:
    # The window stays for late rows, and what was noted with it.
    step = source().window(hr.tumbling("10us"), allow_late="1s").process(Noting(name, given)).named("step")
    rig = rig_of(step)
    with pytest.raises(FunctionFailed) as refused:
        rig.epoch(events("a0@1 b1@1"), watermark=9)
    assert refused.value.what.startswith(f"the state {name!r} was given {given!r}, which its type cannot hold")
    assert (refused.value.where, refused.value.found) == ("step step", "key b")


def test_keys_that_the_types_of_maps_allow_are_stored_and_read_again() -> None:
    for name, given in (("by_text", "a"), ("by_number", 5), ("by_number", 1.5), ("by_pair", ("a", 1))):
        step = source().window(hr.tumbling("10us"), allow_late="1s").process(Noting(name, given)).named("step")
        rig = rig_of(step)
        rig.epoch(events("b1@1"), watermark=9)
        rig.epoch(events("b1@1"), watermark=10)
