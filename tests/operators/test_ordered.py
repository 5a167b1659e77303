"""``process(fn, order="time")``: as if every row had come at its moment, whatever way the rows came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.errors import FunctionFailed
from headrace.model.rows import codec_of
from headrace.operators import keyed
from headrace.operators.order_spec import TimeOrder
from headrace.operators.ordered import OrderedProcessOperator
from headrace.operators.process import ProcessOperator
from headrace.testing import EpochInput, verify_step
from tests.operators.rig import Rig, Row, values

END = 245


class Tap(hr.Record):
    user: str
    n: int
    at: hr.Timestamp


class Seen(hr.Record):
    user: str
    what: str


TAPS = codec_of(Tap)


def tap(user: str, at: int, n: int = 0) -> Tap:
    return Tap(user, n, hr.Timestamp(at))


class Trail(hr.Process[Tap, Seen, str]):
    """Says what it sees, and 10 µs after the newest row that there is quiet."""

    count: hr.ValueState[int]
    quiet: hr.Timer

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Seen]:
        self.count.set(self.count.get(0) + 1)
        self.quiet.set(event.at + hr.Duration(10))
        yield Seen(ctx.key, f"{self.count.get()}: {event.at} {event.n}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
        yield Seen(ctx.key, f"quiet at {ctx.timestamp} after {self.count.get()}")


def operator(function: Any = None, *by: str) -> OrderedProcessOperator:
    function = function or Trail()
    decls, out = declarations(type(function)), codec_of(Seen)
    return OrderedProcessOperator("step", function, decls, (TAPS,), out, TimeOrder(by), key_type=str)


def rig(function: Any = None, *by: str, **options: Any) -> Rig:
    return Rig(operator(function, *by), TAPS, lambda row: row.user, **options)


def said(rows: Sequence[Row], user: str = "a") -> list[str]:
    return [row.what for row in values(rows) if row.user == user]


def test_rows_wait_for_the_watermark_and_come_by_time_from_all_epochs() -> None:
    r = rig()
    assert r.epoch([tap("a", 50), tap("b", 9)], [tap("a", 7)], watermark=5) == []
    assert r.epoch([tap("a", 30), tap("a", 6)], watermark=5) == []
    out = r.epoch([tap("a", 8)], watermark=39)
    assert said(out) == ["1: 6 0", "2: 7 0", "3: 8 0", "quiet at 18 after 3", "4: 30 0"]
    assert [row.at for row in out if row.value.user == "a"] == [6, 7, 8, 18, 30]
    assert said(out, "b") == ["1: 9 0", "quiet at 19 after 1"]
    assert said(r.epoch(watermark=60)) == ["quiet at 40 after 4", "5: 50 0", "quiet at 60 after 5"]


def test_rows_of_one_time_come_by_the_columns_that_the_user_names_then_by_all_that_is_in_them() -> None:
    r = rig(None, "n")
    assert said(r.epoch([tap("a", 5, n) for n in (3, 1)], [tap("a", 5, 2)], watermark=5)) == [
        "1: 5 1", "2: 5 2", "3: 5 3",
    ]  # fmt: skip
    once, again = rig(), rig()
    rows = [tap("a", 5, n) for n in (3, 1, 200, 2, 2)]
    first = said(once.epoch(rows, watermark=5))
    assert first == said(again.epoch(rows[3:], rows[:3][::-1], watermark=5))


def test_a_timer_fires_behind_the_rows_of_its_time() -> None:
    out = rig().epoch([tap("a", 10), tap("a", 20), tap("a", 31)], watermark=31)
    assert said(out) == ["1: 10 0", "2: 20 0", "quiet at 30 after 2", "3: 31 0"]


def test_late_rows_and_rows_without_a_time_never_come_to_the_function() -> None:
    r = rig(outlets=["late"])
    r.epoch([tap("a", 50)], watermark=20)
    assert said(r.epoch([tap("a", 30), tap("a", 20)], watermark=40)) == ["1: 30 0", "quiet at 40 after 1"]
    assert r.out["late"] == [Row(tap("a", 20), 20)]
    assert r.report.late == 1
    unread = rig()
    unread.time = lambda row: row.at if row.n else -(2**63)
    assert said(unread.epoch([tap("a", 9), tap("a", 7, 1)], watermark=10)) == ["1: 7 1"]
    assert unread.report.late == 1


def test_the_watermark_is_right_before_the_row_and_at_the_time_of_a_timer() -> None:
    seen: list[tuple[str, int, int]] = []

    class Look(hr.Process[Tap, Seen, str]):
        due: hr.Timer

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            seen.append(("row", int(ctx.timestamp), int(ctx.watermark)))
            self.due.set(event.at - hr.Duration(3))

        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
            seen.append(("timer", int(ctx.timestamp), int(ctx.watermark)))

    r = rig(Look())
    r.epoch([], watermark=3)
    r.epoch([tap("a", 8), tap("a", 7)], watermark=100)
    # A timer for a time that has passed fires before the next later row; the watermark never goes back.
    assert seen == [("row", 7, 6), ("timer", 4, 7), ("row", 8, 7), ("timer", 5, 8)]


def test_what_expires_by_event_time_is_judged_at_each_row() -> None:
    class Recent(hr.Process[Tap, Seen, str]):
        last: hr.ValueState[int] = hr.state(ttl=hr.ttl("10us", clock="event"))
        seen: hr.MapState[int, int] = hr.state(ttl=hr.ttl("10us", clock="event"))
        some: hr.ListState[int] = hr.state(ttl=hr.ttl("10us", clock="event"), max_len=3)

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Seen]:
            yield Seen(ctx.key, f"{event.at}: {self.last.get()} {list(self.seen.items())} {list(self.some)}")
            self.last.set(event.n)
            self.seen[event.n] = int(event.at)
            self.some.append(event.n)

    rows = [tap("a", 20, 1), tap("a", 29, 2), tap("a", 30, 3), tap("a", 41, 4)]
    wanted = ["20: None [] []", "29: 1 [(1, 20)] [1]", "30: 2 [(2, 29)] [2]", "41: None [] []"]
    assert said(rig(Recent()).epoch(rows, watermark=50)) == wanted
    r = rig(Recent(), ttl={"last": "event", "seen": "event", "some": "event"})
    cut = []
    for row in rows:
        cut += said(r.epoch([row], watermark=int(row.at)))
        r.fold()
    assert cut == wanted


def test_an_epoch_that_was_given_up_leaves_no_rows_behind() -> None:
    r = rig()
    r.attempt([tap("a", 1), tap("a", 2)], finish=False)
    assert said(r.epoch([tap("a", 5)], watermark=5)) == ["1: 5 0"]


def test_a_failing_row_goes_to_errors_and_is_undone() -> None:
    class Picky(Trail):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Seen]:
            yield from super().on_event(event, ctx)
            if event.n == 13:
                raise ValueError("thirteen")

    r = rig(Picky(), outlets=["errors"])
    out = r.epoch([tap("a", 5), tap("a", 3, 13), tap("a", 1)], watermark=9)
    assert said(out) == ["1: 1 0", "2: 5 0"]
    assert [(row.value.key, row.at) for row in r.out["errors"]] == [("a", 3)]
    with pytest.raises(FunctionFailed, match="thirteen"):
        rig(Picky()).epoch([tap("a", 3, 13)], watermark=9)


def test_a_timer_that_is_set_for_the_past_for_ever_is_found_out() -> None:
    class Restless(Trail):
        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
            self.quiet.set(ctx.timestamp)
            yield from ()

    with pytest.raises(FunctionFailed, match="was set again"):
        rig(Restless()).epoch([tap("a", 3)], watermark=99)


def test_rows_that_wait_are_let_go_by_folds_when_they_have_been_handled() -> None:
    r = rig()
    r.epoch([tap("a", 10), tap("a", 90)], watermark=1)
    r.epoch(watermark=50)
    r.fold()
    tables = {name: table.rows for name, table in r.runs[0][1].tables.items()}
    assert tables["!waiting"] == 1
    assert said(r.epoch(watermark=90)) == ["2: 90 0"]


def test_the_index_holds_one_row_for_each_key_however_many_rows_wait() -> None:
    r = rig()
    r.epoch([tap(user, 100 + i) for i in range(50) for user in "ab"], watermark=1)
    assert {name: table.rows for name, table in r.runs[0][1].tables.items()} == {"!event": 2, "!waiting": 100}
    r.epoch(watermark=120)
    assert r.runs[0][1].tables["!event"].rows == 4


def test_a_key_with_more_rows_than_are_handled_at_once_comes_in_stretches_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed, "_FIRST_PIECE_ROWS", 50)
    monkeypatch.setattr(keyed, "_MIN_PIECE_ROWS", 50)
    monkeypatch.setattr(keyed, "MAX_PIECE_ROWS", 50)
    random = Random(3)
    rows = [tap("hot" if i % 3 else f"u{i % 50}", 1000 + random.randrange(300), i) for i in range(3000)]
    # More of one time than are handled at once.
    rows += [tap("hot", 1100, i) for i in range(3000, 3100)]
    wanted = sorted((row for row in rows if row.user == "hot"), key=lambda row: (row.at, row.n))
    for limit in (1, 1 << 40):
        r = rig(None, "n", overlay_limit_bytes=limit)
        out = []
        for start in range(0, len(rows), 700):
            out += r.epoch(rows[start : start + 400], rows[start + 400 : start + 700], watermark=900)
        out += r.epoch(watermark=1150)
        out += r.epoch(watermark=2000)
        said_rows = [what for what in said(out, "hot") if "quiet" not in what]
        assert said_rows == [f"{i}: {row.at} {row.n}" for i, row in enumerate(wanted, 1)]


def test_the_contract_of_operators_is_kept() -> None:
    taps = hr.App("taps").read("taps", hr.source.items([]), Tap, time=Tap.at)
    step = taps.key_by(Tap.user).process(Trail(), order="time")
    random = Random(5)
    epochs = [
        EpochInput([tap(random.choice("abc"), start + random.randrange(20), n) for n in range(12)], watermark=start + 8)
        for start in (0, 15, 30)
    ]
    verify_step(step, [*epochs, EpochInput(watermark=100)])


# --- whatever the cuts, the order, the shards and the memory


class Everything(hr.Process[Tap, Seen, str]):
    """One of each kind of state; what it says depends on all that came before."""

    total: hr.ValueState[int]
    recent: hr.MapState[int, int] = hr.state(ttl=hr.ttl("23us", clock="event"))
    lasts: hr.ListState[int] = hr.state(ttl=hr.ttl("42us", clock="event", refresh="read"), max_len=4)
    quiet: hr.Timer
    ends: hr.Timers
    odd: hr.Side[Tap]
    hits: hr.Counter

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Seen]:
        self.hits.inc()
        self.total.set(self.total.get(0) * 3 % 1009 + event.n)
        self.recent[event.n] = self.recent.get(event.n, 0) + 1
        self.lasts.append(event.n)
        self.quiet.set(event.at + hr.Duration(15))
        self.ends.add(event.at + hr.Duration(30 if event.n % 2 else -20))
        if event.n % 3 == 0:
            self.odd.emit(event)
        yield self.say(ctx, f"{event.n}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
        self.total.set(self.total.get(0) + 1)
        yield self.say(ctx, timer.name)

    def say(self, ctx: hr.Context[str], what: str) -> Seen:
        state = f"{self.total.get()} {sorted(self.recent.items())} {list(self.lasts)} {list(self.ends)}"
        return Seen(ctx.key, f"{ctx.timestamp} {what}: {state}")


DECLS = declarations(Everything)


def at_their_moment(rows: Sequence[Tap]) -> list[Row]:
    """The same function where rows come in order, and time goes on in epochs of its own: with each row and timer."""
    plain = ProcessOperator("step", Everything(), DECLS, codec_of(Seen), key_type=str)
    r = Rig(plain, TAPS, lambda row: row.user)
    out = []
    for time in range(100, 250, STEP_US):
        out += r.epoch(watermark=time - 1)
        out += r.epoch(sorted((row for row in rows if row.at == time), key=lambda row: row.n))
    return out


STEP_US = 5
"""All rows and timers are of multiples of it, and no entry expires at one: the two ways judge those differently."""
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 11), st.integers(0, 5)), min_size=1, max_size=24)


@settings(max_examples=15)
@given(rows=ROWS, random=st.randoms(use_true_random=False), limit=st.sampled_from([1, 4000, 1 << 40]))
def test_the_result_is_that_of_rows_that_come_at_their_moment(
    rows: list[tuple[str, int, int]], random: Random, limit: int
) -> None:
    taps = [tap(user, 100 + 10 * time, n) for user, time, n in set(rows)]
    wanted = at_their_moment(taps)
    decls, out = declarations(Everything), codec_of(Seen)
    ordered = OrderedProcessOperator("step", Everything(), decls, (TAPS,), out, TimeOrder(("n",)), key_type=str)
    r = Rig(ordered, TAPS, lambda row: row.user, overlay_limit_bytes=limit, outlets=["side:odd"])
    random.shuffle(taps)
    found: list[Row] = []
    odd: list[Row] = []
    while taps:
        count = random.randint(1, 8)
        batch, taps = taps[:count], taps[count:]
        r.parallelism = random.randint(1, 3)
        # As far as no row to come is late.
        reached = min((int(row.at) - 1 for row in taps), default=150)
        found += r.epoch(batch[: count // 2], batch[count // 2 :], watermark=random.randint(99, max(99, reached)))
        odd += r.out.get("side:odd", [])
        if random.random() < 0.5:
            r.fold(newest=random.choice([None, 2]))
    found += r.epoch(watermark=END)
    odd += r.out.get("side:odd", [])
    for user in "abc":
        assert said(found, user) == said(wanted, user)
    assert sorted(row.value.n for row in odd) == sorted(n for _, _, n in set(rows) if n % 3 == 0)
