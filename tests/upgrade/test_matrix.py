"""Program changes × kinds of state, as data: an old program runs and dies, a new one goes on with the right answers, or
is refused with the sentence that a person needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace as hr
from headrace.errors import UpgradeRefused
from tests.upgrade.pages import VALUE, Hit, Make, Said, Version, add, keeping, run_old


class Change(NamedTuple):
    before: Make
    after: Make
    says: str | None = None
    """Of a refusal, a part of what is said; None: the program starts …"""
    gives: Any = None
    """… and gives this, in order."""
    reached: str = "12:30"
    """The watermark that the old program came to; its rows are of 12:10 and 12:20."""


def append(state: Any, event: Hit) -> None:
    state.append(event.n)


def put(state: Any, event: Hit) -> None:
    state[event.n] = state.get(event.n, 0) + 1


def set_timer(state: Any, event: Hit) -> None:
    state.set(event.at + hr.minutes(50))


LIST = keeping(hr.ListState[int], append, list)
MAP = keeping(hr.MapState[int, int], put, lambda state: dict(state.items()))


def rolling(*, name: str = "kept", was: str | None = None, key: Any = Hit.page, **aggs: Any) -> Make:
    return lambda hits: hits.key_by(key).aggregate(**aggs).named(name, was=was)


def windowed(window: Any, *, name: str = "kept", was: str | None = None, more: Any = None, **aggs: Any) -> Make:
    return lambda hits: hits.key_by(Hit.page).window(window, **(more or {})).aggregate(**aggs).named(name, was=was)


class Listed(hr.WindowProcess[Hit, tuple[str, int], str]):
    def on_window(self, rows: Sequence[Hit], ctx: hr.WindowContext[str]) -> Iterator[tuple[str, int]]:
        yield ctx.key, sum(row.n for row in rows)


class Pair(hr.Record):
    page: str
    left: int
    right: int


def joined(within: Any, how: Any = "inner") -> Make:
    def make(hits: Any) -> Any:
        left, right = hits.where("n < 3").key_by(Hit.page), hits.where("n > 2").key_by(Hit.page)
        pairs = left.join(right, within=within, how=how).named("kept")
        return pairs.map(lambda a, b: Pair(a.page if a else b.page, a.n if a else 0, b.n if b else 0), output=Pair)

    return make


class Known(hr.BroadcastProcess[Hit, Hit, Said, str]):
    pages: hr.BroadcastState[str, int]

    def on_broadcast(self, event: Hit, ctx: hr.BroadcastContext[str]) -> None:
        self.pages[event.page] = event.n

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, repr(sorted(self.pages.items())))


class Renamed(hr.BroadcastProcess[Hit, Hit, Said, str]):
    known: hr.BroadcastState[str, int] = hr.state(was="pages")

    def on_broadcast(self, event: Hit, ctx: hr.BroadcastContext[str]) -> None:
        self.known[event.page] = event.n

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, repr(sorted(self.known.items())))


class ByNumber(hr.BroadcastProcess[Hit, Hit, Said, str]):
    pages: hr.BroadcastState[int, int]

    def on_broadcast(self, event: Hit, ctx: hr.BroadcastContext[str]) -> None:
        self.pages[event.n] = event.n

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, repr(sorted(self.pages.items())))


class Other(hr.BroadcastProcess[Hit, Hit, Said, str]):
    others: hr.BroadcastState[str, int]

    def on_broadcast(self, event: Hit, ctx: hr.BroadcastContext[str]) -> None:
        self.others[event.page] = event.n

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, repr(sorted(self.others.items())))


class InTurn(hr.Process[Hit, Said, str]):
    total: hr.ValueState[int]

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Said]:
        self.total.set(self.total.get(0) + event.n)
        yield Said(ctx.key, f"{self.total.get()}")


class Longer(hr.Record):
    page: str
    at: hr.Timestamp
    n: float
    more: str = "new"


class LongerInTurn(hr.Process[Longer, Said, str]):
    total: hr.ValueState[float]

    def on_event(self, event: Longer, ctx: hr.Context[str]) -> Iterator[Said]:
        self.total.set(self.total.get(0) + event.n)
        yield Said(ctx.key, f"{self.total.get()} {event.more}")


def in_turn(order: Any, *, name: str = "kept", was: str | None = None) -> Make:
    return lambda hits: hits.key_by(Hit.page).process(InTurn(), order=order).named(name, was=was)


def longer(hits: Any) -> Any:
    rows = hits.select(Longer, page="page", at="at", n="cast(n AS DOUBLE)", more="'came'")
    return rows.key_by(Longer.page).process(LongerInTurn(), order="time").named("kept")


def broadcast(function: Any, order: Any = "arrival") -> Make:
    def make(hits: Any) -> Any:
        small, large = hits.where("n < 3"), hits.where("n > 2")
        return large.key_by(Hit.page).connect(small.broadcast()).process(function, order=order).named("kept")

    return make


def matched(
    *stages: tuple[str, str], within: str = "1h", name: str = "kept", was: str | None = None, **more: Any
) -> Make:
    """A pattern of stages, one then the other; what matches says how many rows it took."""
    pattern = hr.pattern(*stages[0])
    for stage in stages[1:]:
        pattern = pattern.then(*stage)

    def make(hits: Any) -> Any:
        step = hits.key_by(more.get("key", Hit.page)).match(pattern.within(within), **more.get("options", {}))
        first, last = stages[0][0], stages[-1][0]
        return step.named(name, was=was).select(page=f"{last}.page", jump=f"{first}.n * 100 + {last}.n")

    return make


def timed_out(*stages: tuple[str, str], within: str) -> Make:
    def make(hits: Any) -> Any:
        pattern = hr.pattern(*stages[0]).then(*stages[1]).within(within)
        step = hits.key_by(Hit.page).match(pattern).named("kept")
        return step.timed_out.select(page=f"{stages[0][0]}.page", waited_for="match.waiting_for")

    return make


def ruled(*, name: str = "kept", was: str | None = None) -> Make:
    """A rule that comes as a row, with the first hit of the old program."""

    def make(hits: Any) -> Any:
        rules = hits.where("n = 2").map(lambda hit: RULE, output=hr.PatternRule)
        step = hits.key_by(Hit.page).match(rules.broadcast()).named(name, was=was)
        return step.select(page="last(rows.page)", rule="match.rule", total="sum(rows.n)")

    return make


def recognized(rest: str) -> Make:
    def make(hits: Any) -> Any:
        return hits.app.sql(f"SELECT * FROM hits MATCH_RECOGNIZE (PARTITION BY page ORDER BY at {rest})", name="kept")

    return make


LOW, FIVE = ("low", "n < 4"), ("five", "n = 5")
JUMP = matched(LOW, FIVE)
RULE = hr.PatternRule("r", "low [n < 4], then five [n = 5], within 1h")
FALL = "MEASURES A.n AS low, B.n AS top PATTERN (A B) DEFINE A AS n < 4, B AS n > 4"

HOUR = hr.tumbling("1h")
TOTAL = {"total": hr.sum("n")}
WAITED = [("a", "2"), ("a", "7"), ("b", "3")]

CHANGES: dict[str, Change] = {
    # Values, lists, maps: names.
    "a value goes on": Change(VALUE, VALUE, gives=[("a", "7")]),
    "a step is renamed": Change(VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), name="new", was="kept"),
                                gives=[("a", "7")]),
    "a step is renamed without was=": Change(VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), name="new"),
                                             says=r'`kept` fits the new step `new`: say \.named\("new", was="kept"\)'),
    "a step is renamed without was=, and its state with it": Change(
        VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), name="new", state="sum", state_was="held"),
        says=r'`kept` fits the new step `new`: say \.named\("new", was="kept"\)',
    ),
    "was= names no step": Change(VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), name="new", was="nobody"),
                                 says="is to go on with 'nobody', and the store has no such step"),
    "a state is renamed": Change(
        VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), state="sum", state_was="held"), gives=[("a", "7")]
    ),
    "a state is renamed without was=": Change(
        VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), state="sum"),
        says=r'`held` fits the new state `sum`: say hr\.state\(was="held"\)',
    ),
    "was= names no state": Change(
        VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), beside={}, state="sum", state_was="nobody"),
        says="the store has no such state",
    ),
    "a state is added": Change(VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(),
                                              beside={"other": hr.ListState[str]}), gives=[("a", "7")]),
    "a state is taken out": Change(keeping(hr.ValueState[int], add, lambda s: s.get(), beside={"other": hr.Timer}),
                                   VALUE, gives=[("a", "7")]),
    # Kinds and types.
    "a value becomes a list": Change(VALUE, LIST, says="'kept.held' was stored as another kind of state"),
    "a list becomes a map": Change(LIST, MAP, says="another kind of state"),
    "a value becomes another type": Change(
        VALUE, keeping(hr.ValueState[str], lambda s, e: s.set("x"), lambda s: s.get()), says="cannot be read as its new"
    ),
    "a value is widened": Change(
        VALUE, keeping(hr.ValueState[float], add, lambda s: s.get()), gives=[("a", "7.0")]
    ),
    "elements of a list are widened": Change(LIST, keeping(hr.ListState[int | None], append, list),
                                             gives=[("a", "[2, 5]")]),
    "elements of a list become text": Change(LIST, keeping(hr.ListState[str], lambda s, e: s.append("x"), list),
                                             says="int → str"),
    "values of a map are widened": Change(
        MAP, keeping(hr.MapState[int, float], put, lambda s: dict(s.items())), gives=[("a", "{2: 1.0, 5: 1}")]
    ),
    "keys of a map become text": Change(
        MAP, keeping(hr.MapState[str, int], lambda s, e: s.update({"x": 1}),
                     lambda s: dict(s.items())), says="int → str",
    ),
    "a ttl is added": Change(VALUE, keeping(hr.ValueState[int], add, lambda s: s.get(), ttl="1d"), gives=[("a", "7")]),
    "the key becomes another": Change(VALUE, lambda hits: hits.key_by(Hit.n).aggregate(**TOTAL).named("kept"),
                                      says="was something else"),
    "the keys have another type": Change(rolling(**TOTAL), rolling(key=Hit.n, **TOTAL),
                                         says="headrace rewrite .* --key kept="),
    # Timers.
    "timers go on": Change(
        keeping(hr.Timer, set_timer, lambda s: None), keeping(hr.Timer, lambda s, e: None, lambda s: None),
        gives=[("a", "None"), ("a", "held fired"), ("b", "held fired")],
    ),
    "a timer changes its clock": Change(
        keeping(hr.Timer, set_timer, lambda s: None), keeping(hr.WallTimer, lambda s, e: None, lambda s: None),
        says="a timer on event time, as stored",
    ),
    # Rolling aggregates and rows.
    "an aggregate goes on": Change(rolling(**TOTAL), rolling(**TOTAL), gives=[("a", 7)]),
    "an aggregate is written in other words": Change(
        rolling(total=hr.sum("n * 2", where="n > 0")), rolling(total=hr.sum("(n*2)", where="(n > 0)")),
        gives=[("a", 14)],
    ),
    "an aggregate means something else": Change(
        rolling(**TOTAL), rolling(total=hr.sum("n * 2")),
        says=r"`total` of the step 'kept' means something else than what is stored under that name",
    ),
    "an aggregate gets a condition": Change(rolling(**TOTAL), rolling(total=hr.sum("n", where="n > 1")),
                                            says="total=sum\\('n'\\), as stored"),
    "an aggregate becomes another": Change(rolling(**TOTAL), rolling(total=hr.max("n")), says="means something else"),
    "an aggregate is added": Change(rolling(**TOTAL), rolling(**TOTAL, rows=hr.count()), gives=[("a", 7, 1)]),
    "an aggregate is taken out": Change(rolling(**TOTAL, rows=hr.count()), rolling(**TOTAL), gives=[("a", 7)]),
    "a horizon gets longer": Change(rolling(total=hr.sum("n", over="10m")), rolling(total=hr.sum("n", over="50m")),
                                    gives=[("a", 5)]),
    "a horizon is taken away": Change(rolling(total=hr.sum("n", over="10m")), rolling(**TOTAL),
                                      says="means something else"),
    "a reduced row goes on as the latest": Change(
        lambda hits: hits.key_by(Hit.page).reduce(lambda a, b: b.replace(n=a.n + b.n)).named("kept"),
        lambda hits: hits.key_by(Hit.page).latest().named("kept"), gives=[("a", 5)],
    ),
    "a reduced row becomes an aggregate": Change(
        lambda hits: hits.key_by(Hit.page).reduce(lambda a, b: b.replace(n=a.n + b.n)).named("kept"),
        rolling(**TOTAL), says="was something else",
    ),
    # Windows: slices, sessions, row by row.
    "windows go on": Change(windowed(HOUR, **TOTAL), windowed(HOUR, **TOTAL), gives=[("a", 7), ("b", 3)]),
    "windows are renamed": Change(windowed(HOUR, **TOTAL), windowed(HOUR, name="new", was="kept", **TOTAL),
                                  gives=[("a", 7), ("b", 3)]),
    "windows change their size": Change(windowed(HOUR, **TOTAL), windowed(hr.tumbling("2h"), **TOTAL),
                                        says="tumbling windows of 1h, event time, as stored"),
    "windows change their clock": Change(windowed(HOUR, **TOTAL), windowed(hr.tumbling("1h", clock="wall"), **TOTAL),
                                         says="were changed while some are still open"),
    "windows become sessions": Change(windowed(HOUR, **TOTAL), windowed(hr.session("30m"), **TOTAL),
                                      says="would store its windows in another way than before"),
    "windows wait longer for late rows": Change(
        windowed(HOUR, **TOTAL), windowed(HOUR, more={"allow_late": "5m"}, **TOTAL),
        gives=[("a", 7, "on_time"), ("b", 3, "on_time")],
    ),
    "an aggregate of windows is added": Change(
        windowed(HOUR, **TOTAL), windowed(HOUR, **TOTAL, rows=hr.count(), most=hr.max("n", where="n > 0")),
        gives=[("a", 7, 1, 5), ("b", 3, 0, None)],
    ),
    "an aggregate of windows is added that must not be null": Change(
        windowed(HOUR, **TOTAL), windowed(HOUR, **TOTAL, most=hr.max("n")),
        says="that are open have no `most`, which must not be null",
    ),
    "an aggregate of windows means something else": Change(windowed(HOUR, **TOTAL), windowed(HOUR, total=hr.sum("x")),
                                                           says="means something else"),
    "sessions change their gap": Change(
        windowed(hr.session("20m"), **TOTAL), windowed(hr.session("5m"), **TOTAL), gives=[("a", 5), ("b", 3)],
    ),
    "windows of a function change their size": Change(
        lambda hits: hits.key_by(Hit.page).window(HOUR).process(Listed()).named("kept"),
        lambda hits: hits.key_by(Hit.page).window(hr.tumbling("30m")).process(Listed()).named("kept"),
        gives=[("a", 5), ("a", 7), ("b", 3)],
    ),
    "windows of rows become windows of aggregates": Change(
        lambda hits: hits.key_by(Hit.page).window(HOUR).process(Listed()).named("kept"), windowed(HOUR, **TOTAL),
        says="would store its windows in another way",
    ),
    # Broadcast states.
    "a broadcast state goes on": Change(broadcast(Known()), broadcast(Known()), gives=[("a", "[('a', 2)]")]),
    "a broadcast state is renamed": Change(broadcast(Known()), broadcast(Renamed()), gives=[("a", "[('a', 2)]")]),
    "the keys of a broadcast state have another type": Change(
        broadcast(Known()), broadcast(ByNumber()), says="another type than those that are stored",
    ),
    "a broadcast state is taken out": Change(
        broadcast(Known()), broadcast(Other()), says="the state 'kept.pages' is stored",
    ),
    # Rows that wait for their time.
    "rows that wait go on": Change(in_turn("time"), in_turn("time"), gives=WAITED, reached="12:05"),
    "rows that wait get another order": Change(in_turn("time"), in_turn(("time", "n")), gives=WAITED, reached="12:05"),
    "a step in which rows wait is renamed": Change(
        in_turn("time"), in_turn("time", name="new", was="kept"), gives=WAITED, reached="12:05",
    ),
    "rows that wait get another type": Change(
        in_turn("time"), longer, gives=[("a", "2.0 new"), ("a", "7.0 came"), ("b", "3.0 new")], reached="12:05",
    ),
    "rows are to wait from now on": Change(in_turn("arrival"), in_turn("time"), gives=[("a", "7")]),
    "rows that wait are to wait no more": Change(
        in_turn("time"), in_turn("arrival"), says="rows wait in the step 'kept' to be handled in the order",
        reached="12:05",
    ),
    "rows that waited are to wait no more": Change(in_turn("time"), in_turn("arrival"), gives=[("a", "7")]),
    "rules that wait go on": Change(
        broadcast(Known(), "time"), broadcast(Known(), "time"), reached="12:05",
        gives=[("a", "[('a', 2)]"), ("b", "[('a', 2)]")],
    ),
    "rules that wait are to wait no more": Change(
        broadcast(Known(), "time"), broadcast(Known()), says="handles rows as they come", reached="12:15",
    ),
    # Patterns: partial matches, and the rows that wait.
    "partial matches go on": Change(JUMP, JUMP, gives=[("a", 205)]),
    "rows of a pattern that wait go on": Change(JUMP, JUMP, reached="12:05", gives=[("a", 205)]),
    "a step that matches is renamed": Change(JUMP, matched(LOW, FIVE, name="new", was="kept"), gives=[("a", 205)]),
    "a stage gets another condition": Change(JUMP, matched(("low", "n > 9"), FIVE), gives=[("a", 205)]),
    "a stage is added behind the one that matched": Change(
        JUMP, matched(LOW, ("mid", "n = 5"), ("end", "n = 6")), gives=[],
    ),
    "a stage is added before the one that matched": Change(
        JUMP, matched(("first", "n = 99"), LOW, FIVE), gives=[("a", None)],
    ),
    "the stage that matched is gone": Change(JUMP, matched(("other", "n = 1"), FIVE), gives=[]),
    "a pattern gets less time": Change(JUMP, matched(LOW, FIVE, within="20m"), gives=[]),
    "a pattern gets more time": Change(
        matched(LOW, FIVE, within="25m"), matched(LOW, FIVE, within="2h"), gives=[("a", 205)],
    ),
    "partial matches that get less time are over": Change(
        timed_out(LOW, FIVE, within="1h"), timed_out(LOW, FIVE, within="25m"),
        gives=[("a", "five"), ("b", "five")],
    ),
    "partial matches get another key": Change(
        JUMP, matched(LOW, FIVE, key=Hit.n), says="headrace rewrite .* --key kept=",
    ),
    "partial matches go by the wall clock": Change(
        JUMP, matched(LOW, FIVE, options={"clock": "wall"}), reached="12:05", says="wait in the step 'kept'",
    ),
    "partial matches become a rolling aggregate": Change(JUMP, rolling(**TOTAL), says="was something else"),
    "a pattern becomes rules": Change(JUMP, ruled(), says="another kind of state"),
    # Rules that come as rows.
    "rules and their partial matches go on": Change(ruled(), ruled(), gives=[("a", "r", 7)]),
    "rows of rules that wait go on": Change(ruled(), ruled(), reached="12:05", gives=[("a", "r", 7)]),
    "a step of rules is renamed": Change(ruled(), ruled(name="new", was="kept"), gives=[("a", "r", 7)]),
    "rules become a pattern": Change(ruled(), JUMP, says="another kind of state"),
    # Row patterns in SQL.
    "a row pattern goes on": Change(recognized(FALL), recognized(FALL), gives=[("a", 2, 5)]),
    "a row pattern means something else": Change(
        recognized(FALL), recognized(FALL.replace("n > 4", "n = 6 OR n = 5")), gives=[("a", 2, 5)],
    ),
    "a row pattern has other variables": Change(
        recognized(FALL), recognized("MEASURES Y.n AS top PATTERN (X Y) DEFINE X AS n = 2, Y AS n = 5"),
        gives=[("a", 5)],
    ),
    "a row pattern becomes a pattern": Change(recognized(FALL), JUMP, says="cannot be read as its new type"),
    # Joins.
    "an interval join gets other bounds": Change(joined(("0s", "1h")), joined(("0s", "40m")), gives=[("a", 2, 5)]),
    "an interval join becomes a window join": Change(joined(("0s", "1h")), joined(HOUR), says="was something else"),
    "a window join gets other windows": Change(joined(HOUR), joined(hr.tumbling("2h")),
                                               says="were changed while some are still open"),
}  # fmt: skip


def values_of(row: Any) -> tuple[Any, ...]:
    """A row without what no case is about."""
    names = [name for name in row.__struct_fields__ if name not in ("at", "window_start", "window_end", "x")]
    return tuple(getattr(row, name) for name in names)


def told(rows: Sequence[Any]) -> list[Any]:
    return sorted(
        (row if isinstance(row, tuple) else values_of(row) for row in rows), key=lambda row: tuple(map(repr, row))
    )


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_program_goes_on_rightly_or_is_refused_in_words(tmp_path: Path, change: Change) -> None:
    run_old(tmp_path, change.before, change.reached)
    if change.says is not None:
        with pytest.raises(UpgradeRefused, match=change.says):
            Version(tmp_path, change.after)
        # What was refused has changed nothing: the old program goes on.
        with Version(tmp_path, change.before) as old:
            assert old.fates == {}
        return
    with Version(tmp_path, change.after, parallelism=3) as new:
        rows = new.epoch(("a", "12:40", 5), watermark="12:40")
        rows += new.epoch(watermark="14:00")
        assert told(rows) == change.gives
