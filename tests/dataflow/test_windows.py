"""Windows as they are said: what comes of them in the graph, and every mistake at the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import KeyedNode, TapNode
from headrace.errors import ProgramError
from headrace.model.keyspec import WHOLE_STREAM
from headrace.windows.kinds import Cumulating, RowCount, Session, Sliding, Tumbling, Unbounded
from headrace.windows.spec import WindowSpec
from headrace.windows.triggers import EveryRows, OnDelta, Periodic, Timeout

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int = 0
    gap: hr.Duration = hr.Duration(1)
    shop: str = ""


class Hourly(hr.Record):
    card: str
    window_start: hr.Timestamp
    total: int
    pane: str = "?"
    note: str = "none"


class Alert(hr.Record):
    card: str


class Visit(hr.WindowProcess[Tx, Alert, str]):
    nth: hr.ValueState[int]
    seen: hr.ListState[int] = hr.state(scope="window")
    odd: hr.Side[Tx]

    def on_window(self, rows: Sequence[Tx], ctx: hr.WindowContext[str]) -> Iterator[Alert]:
        yield Alert(ctx.key)


def bigger(a: Tx, b: Tx) -> Tx:
    return a if a.cents > b.cents else b


def read(*, timed: bool = True) -> hr.Stream[Tx]:
    return hr.App("shop").read("tx", hr.source.items([]), Tx, time=Tx.at if timed else None)


@pytest.fixture
def tx() -> hr.KeyedStream[Tx, str]:
    return read().key_by(Tx.card)


def spec(stream: hr.Stream[Any]) -> WindowSpec:
    node = stream.node
    assert isinstance(node, KeyedNode) and isinstance(node.spec, WindowSpec)
    return node.spec


def mistake(call: Callable[[], Any], *parts: str) -> None:
    with pytest.raises(ProgramError) as caught:
        call()
    assert "test_windows.py:" in caught.value.where, str(caught.value)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


# -- kinds, triggers, evictors -------------------------------------------------------------------------------------


def test_windows_are_said_in_spans() -> None:
    assert hr.tumbling("1h") == Tumbling(3_600_000_000)
    assert hr.tumbling(timedelta(days=1), offset="2h") == Tumbling(86_400_000_000, 7_200_000_000)
    assert hr.tumbling("1h", offset=hr.hours(-1) + hr.minutes(1)) == Tumbling(3_600_000_000, 60_000_000)
    assert hr.sliding("10s", every="4s", clock="wall") == Sliding(10_000_000, 4_000_000, 0, "wall")
    assert hr.cumulating("1m", every="20s", offset="1s") == Cumulating(60_000_000, 20_000_000, 1_000_000)
    assert hr.session("30m") == Session(1_800_000_000)
    assert hr.session(Tx.gap) == hr.session("gap") == Session(None, "gap")
    assert hr.session("cents * 1000000") == Session(None, "cents * 1000000")
    assert hr.session(hr.col("gap") * 2, clock="wall") == Session(None, "(gap * 2)", "wall")
    assert hr.unbounded() == Unbounded()
    assert hr.rows(5) == RowCount(5, 5)
    assert hr.rows(5, every=2) == RowCount(5, 2)


def test_the_gap_of_a_session_as_text_is_sql_over_the_row(tx: hr.KeyedStream[Tx, str]) -> None:
    tx.window(hr.session("cents * 1000000")).aggregate(n=hr.count())
    mistake(lambda: tx.window(hr.session("often")), "neither a span nor SQL over a row", "often", '"30m"', "cents")
    mistake(lambda: tx.window(hr.session("card")), "the gap of a session must be a span")


def test_triggers_are_said_in_spans_and_rows() -> None:
    assert hr.early("1s") == Periodic(1_000_000, "wall")
    assert hr.every("1s") == Periodic(1_000_000, "event")
    assert hr.every(rows=3) == EveryRows(3)
    assert hr.on_delta(Tx.cents, 5) == OnDelta(5.0, "cents")
    assert hr.timeout("1s", of=hr.every(rows=3), since="newest") == Timeout(1_000_000, EveryRows(3), True)


def test_wrong_spans_and_numbers_are_refused() -> None:
    mistake(lambda: hr.tumbling("0s"), "the size of a window", "above zero")
    mistake(lambda: hr.tumbling(hr.seconds(-1)), "must be greater than zero")
    mistake(lambda: hr.tumbling("often"), "cannot read the size of a window")
    mistake(lambda: hr.tumbling("1h", clock="moon"), "no such clock")  # type: ignore[arg-type]
    mistake(lambda: hr.sliding("1h", every="0s"), "every must be greater")
    mistake(lambda: hr.cumulating("1h", every="7m"), "must be a multiple of every", "1h3m")
    mistake(lambda: hr.tumbling("-1h"), "the size of a window is negative", "without a minus sign")
    mistake(lambda: hr.session("-1s"), "the gap of a session is negative")
    mistake(lambda: hr.session("30 minutes"), "cannot read the gap of a session")
    mistake(lambda: hr.rows(0), "n of rows must be a whole number")
    mistake(lambda: hr.rows(2, every=0), "every")
    mistake(lambda: hr.rows(True), "n of rows must be a whole number")
    mistake(lambda: hr.early("0s"), "must be greater than zero")
    mistake(hr.every, "neither")
    mistake(lambda: hr.every("1s", rows=3), "both")
    mistake(lambda: hr.every(rows=0), "rows above 0")
    mistake(lambda: hr.on_delta("cents", "much"), "the threshold must be a number")  # type: ignore[arg-type]
    mistake(lambda: hr.timeout("1s", of="soon"), "another trigger")  # type: ignore[arg-type]
    mistake(lambda: hr.timeout("1s", of=hr.timeout("2s")), "a timeout of a timeout")
    mistake(lambda: hr.timeout("1s", since="ever"), "since= must be first or newest")  # type: ignore[arg-type]
    mistake(lambda: hr.keep_rows(0), "n of keep_rows must be a whole number")
    mistake(lambda: hr.keep_span("0s"), "must be greater than zero")
    mistake(lambda: hr.keep_delta("cents", 0), "the threshold must be greater than zero")


# -- results -------------------------------------------------------------------------------------------------------


def test_aggregates_have_the_key_the_window_and_the_results(tx: hr.KeyedStream[Tx, str]) -> None:
    hourly = tx.window(hr.tumbling("1h")).aggregate(total=hr.sum(Tx.cents), n=hr.count())
    assert hourly.node.codec.annotations == {
        "card": str, "window_start": hr.Timestamp, "window_end": hr.Timestamp, "total": int, "n": int,
    }  # fmt: skip
    assert hourly.node.placed_by == ("card",)
    assert not hourly.node.kind.corrects


def test_results_that_may_come_again_say_when_they_came(tx: hr.KeyedStream[Tx, str]) -> None:
    for options in ({"fire": hr.early("1s")}, {"allow_late": "1h"}):
        again = tx.window(hr.tumbling("1h"), **options).aggregate(n=hr.count())
        assert again.node.codec.names == ["card", "window_start", "window_end", "n", "pane"]
        assert again.node.kind.corrects, "later results replace earlier ones"
        assert not again.finals().node.kind.corrects
    added = tx.window(hr.tumbling("1h"), fire=hr.early("1s"), panes="discard").aggregate(n=hr.count())
    assert not added.node.kind.corrects, "results that add up replace nothing"


def test_windows_without_bounds_have_no_columns_for_them(tx: hr.KeyedStream[Tx, str]) -> None:
    assert tx.window(hr.rows(10)).aggregate(n=hr.count()).node.codec.names == ["card", "n"]
    ever = tx.window(hr.unbounded(), fire=hr.per_epoch()).aggregate(n=hr.count())
    assert ever.node.codec.names == ["card", "n", "pane"]


def test_a_type_of_ones_own_is_filled_by_name(tx: hr.KeyedStream[Tx, str]) -> None:
    hourly = tx.window(hr.tumbling("1h")).aggregate(Hourly, total=hr.sum("cents"))
    assert hourly.node.codec.type is Hourly
    mistake(lambda: tx.window(hr.rows(3)).aggregate(Hourly, total=hr.sum("cents")), "window_start")
    mistake(lambda: tx.window(hr.tumbling("1h")).aggregate(Hourly, n=hr.count()), "no field 'n'")
    mistake(lambda: tx.window(hr.tumbling("1h")).aggregate(pane=hr.count()), "the name of another column")
    mistake(lambda: tx.window(hr.tumbling("1h")).aggregate(), "aggregate without aggregates")
    mistake(lambda: tx.window(hr.tumbling("1h")).aggregate(n=hr.count(over="5m")), "n with over=")


def test_reduced_rows_keep_their_type(tx: hr.KeyedStream[Tx, str]) -> None:
    best = tx.window(hr.session("30m")).reduce(bigger)
    assert best.node.codec.type is Tx
    assert best.node.placed_by == ("card",)


def test_a_window_function_names_its_step(tx: hr.KeyedStream[Tx, str]) -> None:
    visits = tx.window(hr.session("30m")).process(Visit())
    visits.side(Visit.odd).write(hr.sink.console())
    visits.write(hr.sink.console())
    reachable(visits.app)
    assert visits.node.name == "visit"
    assert [decl.scope for decl in visits.node.decls] == ["key", "window", "key"]  # type: ignore[attr-defined]


def test_windows_over_the_whole_stream_have_one_key() -> None:
    total = read().window(hr.tumbling("1h")).aggregate(total=hr.sum(Tx.cents)).named("total")
    assert total.node.key == WHOLE_STREAM  # type: ignore[attr-defined]
    assert total.node.codec.names == ["window_start", "window_end", "total"]


def test_a_step_says_in_words_what_it_does(tx: hr.KeyedStream[Tx, str]) -> None:
    held = tx.window(hr.sliding("1h", every="5m"), allow_late="1m", evict=hr.keep_rows(5))
    told = spec(held.aggregate(n=hr.count())).tell()
    assert told == (
        "sliding windows of 1h every 5m, event time",
        "allows rows to be 1m late",
        "keeps every row until its window goes",
        "keeps the newest 5 rows when it fires",
    )
    assert "sliding windows of 1h" in repr(held)
    counted = [tx.window(rows).aggregate(n=hr.count()) for rows in (hr.rows(1), hr.rows(3), hr.rows(9, every=3))]
    assert [spec(step).tell()[0] for step in counted] == [
        "windows of 1 row", "windows of 3 rows", "windows of 9 rows, after every 3 rows"
    ]  # fmt: skip
    fired = tx.window(hr.session("1m"), fire=hr.timeout("5s", of=hr.every(rows=3)), panes="discard")
    assert spec(fired.reduce(bigger)).tell() == (
        "session windows of 1m, event time",
        "fires after every 3 rows",
        "fires after waiting for 5s",
        "discards what it has given out",
    )


def test_what_fires_on_event_time_wants_the_watermark(tx: hr.KeyedStream[Tx, str]) -> None:
    def wants(assigner: Any, fire: Any = None) -> bool:
        return spec(tx.window(assigner, fire=fire).aggregate(n=hr.count())).uses_watermark

    assert wants(hr.tumbling("1h"))
    assert wants(hr.unbounded(), hr.every("1m"))
    assert not wants(hr.unbounded(), hr.every("1m", clock="wall"))
    assert not wants(hr.tumbling("1h", clock="wall"))
    assert not wants(hr.rows(3))
    assert not wants(hr.unbounded(), hr.timeout("1m", of=hr.every(rows=3)))


# -- other ways out ------------------------------------------------------------------------------------------------


def test_late_rows_and_final_results_are_streams(tx: hr.KeyedStream[Tx, str]) -> None:
    hourly = tx.window(hr.tumbling("1h"), allow_late="1h").aggregate(total=hr.sum("cents")).named("hourly")
    late, finals = hourly.late.node, hourly.finals().node
    assert isinstance(late, TapNode) and late.codec.type is Tx
    assert isinstance(finals, TapNode) and finals.codec is hourly.node.codec
    assert hourly.finals().node is finals


def test_ways_out_that_nothing_can_take_are_refused(tx: hr.KeyedStream[Tx, str]) -> None:
    discarding = tx.window(hr.tumbling("1h"), fire=hr.early("1s"), panes="discard").aggregate(n=hr.count())
    mistake(discarding.finals, "no final results")
    counted = tx.window(hr.rows(3)).aggregate(n=hr.count())
    mistake(counted.finals, "windows without an end have no final results")
    mistake(lambda: counted.late, ".late needs windows in")
    mistake(lambda: tx.window(hr.tumbling("1h", clock="wall")).aggregate(n=hr.count()).late, ".late needs windows in")


# -- mistakes ------------------------------------------------------------------------------------------------------


def test_wrong_arguments_of_window_are_refused(tx: hr.KeyedStream[Tx, str]) -> None:
    mistake(lambda: tx.window("1h"), "window takes a kind of window", "hr.tumbling('1h')")  # type: ignore[arg-type]
    mistake(lambda: tx.window(hr.tumbling("1h"), fire="1s"), "fire= takes a trigger")  # type: ignore[arg-type]
    mistake(lambda: tx.window(hr.tumbling("1h"), fire=Bare), "add the parentheses")  # type: ignore[arg-type]
    mistake(lambda: tx.window(hr.tumbling("1h"), panes="some"), "panes=")  # type: ignore[arg-type]
    mistake(lambda: tx.window(hr.tumbling("1h"), allow_late=hr.seconds(-1)), "cannot be negative")
    mistake(lambda: tx.window(hr.tumbling("1h"), evict=3), "evict=")  # type: ignore[arg-type]
    mistake(lambda: tx.window(hr.unbounded()), "an unbounded window needs fire=", "say when results are given out")
    mistake(
        lambda: tx.window(hr.unbounded(), fire=hr.per_epoch(), allow_late="1h"),
        "allow_late= needs windows in",
    )
    mistake(lambda: tx.window(hr.tumbling("1h", clock="wall"), allow_late="1h"), "allow_late= needs windows in")
    mistake(lambda: tx.window(hr.rows(3), fire=hr.per_row()), "fire= beside it")
    mistake(lambda: tx.window(hr.rows(3), panes="discard"), "panes= beside it")
    mistake(lambda: tx.window(hr.rows(3), evict=hr.keep_rows(3)), "evict= beside it")


def test_what_needs_event_time_is_refused_without() -> None:
    untimed = read(timed=False).key_by(Tx.card)
    mistake(lambda: untimed.window(hr.tumbling("1h")), "need a source with event time", 'clock="wall"')
    mistake(lambda: untimed.window(hr.unbounded(), fire=hr.every("1m")), "needs event time")
    mistake(
        lambda: untimed.window(hr.unbounded(), fire=hr.per_epoch(), evict=hr.keep_span("1m")),
        "keep_span needs",
    )
    wall = read().key_by(Tx.card)
    mistake(
        lambda: wall.window(hr.tumbling("1h", clock="wall"), fire=hr.early("1s", clock="event")),
        "needs event time",
    )
    untimed.window(hr.tumbling("1h", clock="wall")).aggregate(n=hr.count())
    untimed.window(hr.rows(3)).aggregate(n=hr.count())


def test_columns_of_windows_are_checked(tx: hr.KeyedStream[Tx, str]) -> None:
    mistake(lambda: tx.window(hr.session(hr.col("gpa"))), "gpa", "gap")
    mistake(lambda: tx.window(hr.session(Tx.shop)), "the gap of a session must be a span")
    mistake(lambda: tx.window(hr.unbounded(), fire=hr.on_delta("shop", 1)), "on_delta compares numbers")
    mistake(lambda: tx.window(hr.unbounded(), fire=hr.on_delta("cent", 1)), "cents")
    mistake(lambda: tx.window(hr.tumbling("1h"), evict=hr.keep_delta("cent", 1)), "cents")
    mistake(lambda: tx.window(hr.tumbling("1h"), evict=hr.keep_delta("shop", 1)), "keep_delta compares numbers", "str")
    mistake(lambda: tx.window(hr.session("1m"), fire=hr.on_delta("cents", 1)), "on_delta does not support")


class Bare(hr.Trigger):
    def on_row(self, row: Any, ctx: hr.TriggerContext) -> hr.TriggerResult:
        return hr.TriggerResult.FIRE


class Once(hr.Trigger):
    done: hr.ValueState[bool]

    def on_merge(self, ctx: hr.TriggerContext) -> None:
        pass


class Timed(hr.Trigger):
    later: hr.Timer


def test_triggers_of_ones_own_declare_states(tx: hr.KeyedStream[Tx, str]) -> None:
    held = tx.window(hr.tumbling("1h"), fire=Once()).aggregate(n=hr.count())
    assert [(decl.name, decl.kind) for decl in spec(held).trigger_decls] == [("done", "value")]
    mistake(lambda: tx.window(hr.session("1m"), fire=Bare()), "Bare", "on_merge")
    mistake(lambda: tx.window(hr.session("1m"), fire=Once()), "Once.done", "ReducingState")
    mistake(lambda: tx.window(hr.tumbling("1h"), fire=Timed()), "Timed.later", "ctx.set_timer")


class Alarmed(hr.WindowProcess[Tx, Alert, str]):
    later: hr.Timer

    def on_window(self, rows: Sequence[Tx], ctx: hr.WindowContext[str]) -> None: ...


class Lasting(hr.WindowProcess[Tx, Alert, str]):
    seen: hr.ListState[int] = hr.state(scope="window", ttl="1h")

    def on_window(self, rows: Sequence[Tx], ctx: hr.WindowContext[str]) -> None: ...


class Last(hr.WindowProcess[Tx, Alert, str]):
    seen: hr.ValueState[int] = hr.state(scope="window")

    def on_window(self, rows: Sequence[Tx], ctx: hr.WindowContext[str]) -> None: ...


class Silent(hr.WindowProcess[Tx, Alert, str]):
    pass


class OfAlerts(hr.WindowProcess[Alert, Alert, str]):
    def on_window(self, rows: Sequence[Alert], ctx: hr.WindowContext[str]) -> None: ...


def test_window_functions_are_checked(tx: hr.KeyedStream[Tx, str]) -> None:
    held: Any = tx.window(hr.tumbling("1h"))
    mistake(lambda: held.process(Visit), "add the parentheses")
    mistake(lambda: held.process(bigger), "hr.WindowProcess[In, Out, Key]")
    mistake(lambda: held.process(Silent()), "has no on_window")
    mistake(lambda: held.process(OfAlerts()), "takes rows of another type")
    mistake(lambda: held.process(Alarmed()), "Alarmed.later")
    mistake(lambda: held.process(Lasting()), "cannot have a ttl: it goes with its window")
    mistake(lambda: held.process(Visit(), of={"n": 3}), "n= is no aggregate")
    mistake(lambda: held.process(Visit(), of=3), "of=")
    held.process(Last())
    mistake(lambda: tx.window(hr.session("1m")).process(Last()), "cannot be merged when sessions merge")


def test_only_window_functions_have_states_of_windows() -> None:
    with pytest.raises(ProgramError, match="option that does not fit"):

        class Wrong(hr.Process[Tx, Alert, str]):
            seen: hr.ValueState[int] = hr.state(scope="window")


def test_rolling_steps_take_the_triggers_that_they_know(tx: hr.KeyedStream[Tx, str]) -> None:
    mistake(lambda: tx.aggregate(n=hr.count(), fire=hr.every(rows=3)), "hr.per_row()", "hr.unbounded()")
