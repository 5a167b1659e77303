"""Programs of every shape, in the harness: what flows where, when it fires, what is late, what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.testing import Harness


class Sale(hr.Record):
    shop: str
    item: str
    at: hr.Timestamp
    cents: int = 1


class Note(hr.Record):
    name: str
    what: str
    at: hr.Timestamp = hr.Timestamp(0)


def texts(rows: list[Note]) -> list[str]:
    return sorted(f"{row.name} {row.what}" for row in rows)


def shop(name: str = "shop", **time: Any) -> tuple[hr.App, hr.Stream[Sale]]:
    app = hr.App(name)
    return app, app.read("sales", hr.source.items([]), Sale, **({"time": Sale.at} | time))


class Count(hr.Process[Sale, Note, str]):
    """Counts rows per key and tells it a minute after the last one."""

    n: hr.ValueState[int]
    quiet: hr.Timer
    cheap: hr.Side[Sale]

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> None:
        if event.cents < 0:
            raise ValueError("negative")
        self.n.set(self.n.get(0) + 1)
        self.quiet.set(event.at + hr.minutes(1))
        if event.cents < 10:
            self.cheap.emit(event)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Note]:
        yield Note(ctx.key, f"{self.n.get(0)}", ctx.timestamp)


# --- ways out of a step


def test_late_rows_are_counted_and_handled() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Count())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00")))
        h.epoch(watermark="12:00:30")
        h.push(sales, Sale("a", "x", h.at("12:00:30")), Sale("a", "x", h.at("12:00:31")))
        h.epoch()
        assert h.counters(step) == {"late": 1}
        assert h.state(step, Count.n, "a") == 3


def test_late_rows_go_to_late_where_it_is_read() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Count())
    late = step.late
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00")))
        h.epoch(watermark="12:00:30")
        h.push(sales, Sale("a", "x", h.at("12:00:30")), Sale("a", "x", h.at("12:00:31")))
        h.epoch()
        assert h.take(late) == [Sale("a", "x", h.at("12:00:30"))]
        assert h.counters(step) == {"late": 1}
        assert h.state(step, Count.n, "a") == 2


def test_a_failing_row_goes_to_errors_where_they_are_read_and_leaves_no_trace_in_the_state() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Count())
    errors = step.errors
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00")), Sale("a", "x", h.at("12:00:30"), -1))
        h.epoch()
        [failed] = h.take(errors)
        assert failed.step == "count"
        assert failed.error == "ValueError: negative"
        assert b'"cents":-1' in failed.row.replace(b" ", b"")
        assert h.state(step, Count.n, "a") == 1
        assert h.state(step, Count.quiet, "a") == h.at("12:01")


@pytest.mark.parametrize("verb", ["map", "flat_map", "filter"])
def test_errors_of_a_step_without_state_stop_it_or_are_read(verb: str) -> None:
    def bad(sale: Sale) -> Any:
        if sale.cents == 0:
            raise ZeroDivisionError("no cents")
        return {"map": sale, "flat_map": [sale, sale], "filter": True}[verb]

    for read in (False, True):
        app, sales = shop()
        step = sales.filter(bad) if verb == "filter" else getattr(sales, verb)(bad, output=Sale)
        errors = step.errors if read else None
        with Harness(app) as h:
            h.push(sales, Sale("a", "x", hr.Timestamp(1)), Sale("b", "x", hr.Timestamp(2), 0))
            if errors is None:
                with pytest.raises(FunctionFailed, match="no cents"):
                    h.epoch()
                continue
            h.epoch()
            assert {row.shop for row in h.take(step)} == {"a"}
            assert [failed.error for failed in h.take(errors)] == ["ZeroDivisionError: no cents"]


def test_errors_of_several_steps_flow_together() -> None:
    app, sales = shop()

    def shout(sale: Sale) -> Note:
        return Note(sale.shop, f"{10 // sale.cents}", sale.at)

    mapped = sales.map(shout)
    counted = sales.key_by(Sale.shop).process(Count())
    errors = mapped.errors.union(counted.errors)
    with Harness(app) as h:
        h.push(sales, Sale("a", "x", hr.Timestamp(1), 0), Sale("b", "x", hr.Timestamp(2), -1))
        h.epoch()
        assert sorted(failed.step for failed in h.take(errors)) == ["count", mapped.node.label]


def test_a_side_output_is_a_stream_like_any_other() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Count())
    dear = step.side(Count.cheap).where("cents > 4").key_by(Sale.item).reduce(lambda a, b: b).named("dear")
    with Harness(app) as h:
        h.push(sales, *(Sale("a", f"{cents % 2}", hr.Timestamp(1), cents) for cents in (1, 5, 50, 6, 7)))
        h.epoch()
        assert [sale.cents for sale in h.take(step.side(Count.cheap))] == [1, 5, 6, 7]
        assert sorted(sale.cents for sale in h.take(dear)) == [5, 6, 7]


# --- shapes


def test_a_union_has_the_rows_of_all_its_streams_and_waits_for_the_slowest() -> None:
    app, sales = shop()
    more = app.read("more", hr.source.items([]), Sale, time=Sale.at)
    step = sales.union(more).key_by(Sale.shop).process(Count())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00")), Sale("b", "x", h.at("13:00")))
        h.epoch()
        assert h.take(step) == []
        h.push(more, Sale("a", "x", h.at("12:00:10")))
        h.epoch()
        assert h.take(step) == []
        h.push(more, Sale("c", "x", h.at("12:30")))
        h.epoch()
        assert h.take(step) == [Note("a", "2", h.at("12:01:10"))]


def test_a_stream_united_with_itself_has_its_rows_twice() -> None:
    app, sales = shop()
    both = sales.union(sales)
    counted = both.key_by(Sale.shop).aggregate(n=hr.count()).named("counted")
    with Harness(app) as h:
        h.push(sales, Sale("a", "x", hr.Timestamp(1)))
        h.epoch()
        assert len(h.take(both)) == 2
        assert [row.n for row in h.take(counted)] == [2]


class ByText(hr.Process[Note, Note, str]):
    """Counts what it is told, per text, and tells the total with the first timer behind it."""

    names: hr.MapState[str, int]
    soon: hr.Timer

    def on_event(self, event: Note, ctx: hr.Context[str]) -> None:
        self.names[event.name] = self.names.get(event.name, 0) + 1
        self.soon.set(hr.Timestamp(event.at + 1))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Note]:
        yield Note(ctx.key, ",".join(self.names), ctx.timestamp)


def test_two_keyed_steps_fire_in_the_epoch_whose_rows_made_them_due() -> None:
    app, sales = shop()
    first = sales.key_by(Sale.shop).process(Count())
    second = first.key_by(Note.what).process(ByText())
    with Harness(app, start="2024-01-01T12:00", parallelism=3) as h:
        h.push(sales, *(Sale(name, "x", h.at("12:00")) for name in "abbcd"))
        h.epoch()
        assert h.take(second) == []
        h.push(sales, Sale("z", "x", hr.Timestamp(h.at("12:01") + 2)))
        h.epoch()
        assert texts(h.take(first)) == ["a 1", "b 2", "c 1", "d 1"]
        assert texts(h.take(second)) == ["1 a,c,d", "2 b"]


def test_steps_on_the_key_that_rows_already_have_need_no_exchange() -> None:
    app, sales = shop()
    totals = sales.key_by(Sale.shop).reduce(lambda a, b: b.replace(cents=a.cents + b.cents)).named("totals")
    large = totals.changes().where("cents > 3")
    rich = large.key_by(Sale.shop).aggregate(times=hr.count(), most=hr.max("cents")).named("rich")
    with Harness(app, parallelism=3) as h:
        for epoch in range(3):
            h.push(sales, *(Sale(name, "x", hr.Timestamp(epoch), 2) for name in "abcab"))
            h.epoch()
        assert sorted(row.cents for row in h.take(totals) if row.shop == "a") == [2, 4, 6, 8, 10, 12]
        assert sorted((row.shop, row.times, row.most) for row in h.take(rich)) == [
            ("a", 1, 4), ("a", 3, 8), ("a", 5, 12), ("b", 1, 4), ("b", 3, 8), ("b", 5, 12), ("c", 1, 4), ("c", 2, 6),
        ]  # fmt: skip
        assert h.published == 2


def test_a_step_reads_rows_of_two_levels() -> None:
    app, sales = shop()
    counted = sales.key_by(Sale.shop).process(Count())
    told = sales.map(lambda sale: Note(sale.item, "sold", sale.at), output=Note)
    both = told.union(counted)
    texted = both.key_by(Note.what).process(ByText())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00")), Sale("a", "y", h.at("12:00")))
        h.epoch(watermark="12:01")
        assert texts(h.take(both)) == ["a 2", "x sold", "y sold"]
        assert texts(h.take(texted)) == ["sold x,y"]
        h.epoch(watermark="12:02")
        assert texts(h.take(texted)) == ["2 a"]


def test_siblings_of_one_key_share_rows_and_not_state() -> None:
    app, sales = shop()
    keyed = sales.key_by(Sale.shop, Sale.item)
    totals = keyed.aggregate(total=hr.sum("cents")).named("totals")
    newest = keyed.latest().named("newest")
    with Harness(app) as h:
        h.push(sales, Sale("a", "x", hr.Timestamp(9), 4), Sale("a", "x", hr.Timestamp(3), 5))
        h.epoch()
        assert [(row.shop, row.item, row.total) for row in h.take(totals)] == [("a", "x", 9)]
        assert [row.cents for row in h.take(newest)] == [4]


def test_expressions_functions_and_batches_in_one_chain() -> None:
    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    app, sales = shop()
    chain = (
        sales.where("cents > 1")
        .with_columns(Sale, cents="cents * 10")
        .flat_map(lambda sale: [sale, sale.replace(shop="copy")], output=Sale)
        .map_batches(double, Sale)
        .filter(lambda sale: sale.cents < 40)
        .select("shop", euros="cents / 100")
    )
    with Harness(app) as h:
        h.push(sales, *(Sale("a", "x", hr.Timestamp(1), cents) for cents in (1, 2, 3, 4)))
        h.epoch()
        assert [(row.shop, row.euros) for row in h.take(chain)] == [
            ("a", 0.2), ("copy", 0.2), ("a", 0.3), ("copy", 0.3),
        ]  # fmt: skip


def test_rows_that_a_batch_function_kept_have_their_own_time() -> None:
    def cheap(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.less(batch.column("cents"), 5))

    class Times(hr.Process[Sale, Note, str]):
        def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Note]:
            yield Note(ctx.key, f"{ctx.timestamp}")

    app, sales = shop()
    step = sales.map_batches(cheap, Sale).key_by(Sale.shop).process(Times())
    with Harness(app) as h:
        h.push(sales, Sale("a", "x", hr.Timestamp(10)), Sale("a", "x", hr.Timestamp(500), 9))
        h.epoch()
        assert texts(h.take(step)) == ["a 10"]


class Click(hr.Record, tag="click"):
    user: str
    page: str


class Buy(hr.Record, tag="buy"):
    user: str
    cents: int


def test_a_tagged_union_is_parted_by_only_and_kept_whole_by_a_process_function() -> None:
    class Funnel(hr.Process[Click | Buy, Note, str]):  # type: ignore[misc]
        pages: hr.ListState[str]
        last: hr.ValueState[Click | Buy]  # type: ignore[misc]

        def on_event(self, event: Click | Buy, ctx: hr.Context[str]) -> Iterator[Note]:
            self.last.set(event)
            if isinstance(event, Click):
                self.pages.append(event.page)
            else:
                yield Note(ctx.key, f"{event.cents} after {','.join(self.pages)}")

    app = hr.App("funnel")
    events = app.read("events", hr.source.items([]), Click | Buy)
    clicks, buys = events.only(Click), events.only(Buy)
    funnel = events.key_by("user").process(Funnel())
    with Harness(app) as h:
        h.push(events, Click("a", "home"), Buy("b", 5), Click("a", "shoes"))
        h.epoch()
        h.push(events, Buy("a", 9))
        h.epoch()
        assert h.take(clicks) == [Click("a", "home"), Click("a", "shoes")]
        assert sorted(buy.cents for buy in h.take(buys)) == [5, 9]
        assert texts(h.take(funnel)) == ["a 9 after home,shoes", "b 5 after "]
        assert h.state(funnel, Funnel.last, "a") == Buy("a", 9)


# --- clocks


class Alarm(hr.Process[Sale, Note, str]):
    ring: hr.WallTimer
    soon: hr.Timer

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> None:
        self.ring.set(ctx.now + hr.seconds(event.cents))
        self.soon.set(event.at + hr.seconds(event.cents))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Note]:
        yield Note(ctx.key, timer.name, ctx.timestamp)
        if timer.name == "ring" and ctx.key == "again":
            self.ring.set(ctx.timestamp + hr.seconds(10))


def test_wall_timers_fire_by_the_clock_without_rows() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Alarm())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00"), 5), Sale("again", "x", h.at("12:00"), 10))
        h.epoch()
        h.epoch(clock="12:00:04.999")
        assert h.take(step) == []
        h.epoch(clock="12:00:05")
        assert h.take(step) == [Note("a", "ring", h.at("12:00:05"))]
        h.epoch(clock="12:00:32")
        assert h.take(step) == [Note("again", "ring", h.at(f"12:00:{at}")) for at in (10, 20, 30)]
        assert h.state(step, Alarm.ring, "again") == h.at("12:00:40")


def test_overdue_timers_fire_in_the_first_epoch_after_a_restart() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Alarm())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00"), 5))
        h.epoch()
        h.restart()
        h.epoch(clock="15:00", watermark="15:00")
        assert h.take(step) == [Note("a", "ring", h.at("12:00:05")), Note("a", "soon", h.at("12:00:05"))]
        h.restart()
        h.epoch(clock="16:00", watermark="16:00")
        assert h.take(step) == []


def test_a_timer_set_for_a_time_that_has_passed_fires_with_the_epoch() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Alarm())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.epoch(watermark="13:00")
        h.push(sales, Sale("a", "x", h.at("12:00"), 5))
        h.epoch()
        assert h.take(step) == [Note("a", "soon", h.at("12:00:05"))]


def test_a_silent_source_holds_time_until_it_is_idle_and_again_when_it_speaks() -> None:
    app, sales = shop()
    more = app.read("more", hr.source.items([]), Sale, time=Sale.at, idle="30s")
    step = sales.union(more).key_by(Sale.shop).process(Count())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("11:00")), Sale("b", "x", h.at("11:30")))
        h.epoch()
        h.epoch(clock="12:00:29")
        assert h.take(step) == []
        h.epoch(clock="12:00:30")
        assert texts(h.take(step)) == ["a 1"]
        h.push(more, Sale("c", "x", h.at("11:10")))
        h.push(sales, Sale("d", "x", h.at("11:40")))
        h.epoch(clock="12:00:31")
        assert h.counters(step) == {"late": 1}
        # The source that spoke holds time again, but time never goes back: c was late and is due already.
        assert texts(h.take(step)) == ["c 1"]
        h.epoch(clock="12:01:01")
        assert texts(h.take(step)) == ["b 1"]


def test_a_where_that_drops_rows_does_not_stop_time() -> None:
    app, sales = shop()
    step = sales.where("cents > 1").key_by(Sale.shop).process(Count())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00"), 2))
        h.epoch()
        h.push(sales, Sale("b", "x", h.at("12:30"), 1))
        h.epoch()
        assert texts(h.take(step)) == ["a 1"]


class Brief(hr.Process[Sale, Note, str]):
    walled: hr.ValueState[int] = hr.state(ttl=hr.ttl("10s"))
    evented: hr.MapState[str, int] = hr.state(ttl=hr.ttl("10s", clock="event"))

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Note]:
        yield Note(ctx.key, f"{self.walled.get()} {dict(self.evented)}", ctx.timestamp)
        if event.cents > 1:
            self.walled.set(event.cents)
            self.evented[event.item] = event.cents


def test_state_expires_by_the_wall_clock_or_by_event_time() -> None:
    app, sales = shop()
    step = sales.key_by(Sale.shop).process(Brief())

    def ask(h: Harness, at: str, clock: str) -> str:
        h.push(sales, Sale("a", "?", h.at(at)))
        h.epoch(clock=clock, watermark=at)
        return h.take(step)[-1].what

    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale("a", "x", h.at("12:00"), 5))
        h.epoch()
        assert ask(h, "12:00:01", "12:00:09.999") == "5 {'x': 5}"
        assert ask(h, "12:00:10", "12:00:10") == "None {'x': 5}"
        assert h.state(step, Brief.walled, "a") is None
        # Judged by the watermark as an epoch begins: the epoch that reaches 12:00:10 still sees it.
        assert h.state(step, Brief.evented, "a") is None
        h.restart()
        assert ask(h, "12:00:11", "12:00:11") == "None {}"


# --- keys


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_keys_of_every_type_come_back_as_they_were(parallelism: int) -> None:
    class Wide(hr.Record):
        text: str
        n: int
        yes: bool
        data: bytes
        at: hr.Timestamp
        maybe: str | None = None

    app = hr.App("keys")
    wide = app.read("wide", hr.source.items([]), Wide)
    fields = ["text", "n", "yes", "data", "at", "maybe"]
    steps = {name: wide.key_by(name).aggregate(rows=hr.count()).named(f"by_{name}") for name in fields}
    by_all = wide.key_by(*fields[:4]).aggregate(rows=hr.count()).named("by_all")
    by_call = wide.key_by(lambda row: (row.text, -row.n)).aggregate(rows=hr.count()).named("by_call")
    rows = [
        Wide("é" * i, -(10**i), i % 2 == 0, bytes(range(i)), hr.Timestamp(i), None if i % 3 else f"{i}")
        for i in range(9)
    ]
    with Harness(app, parallelism=parallelism) as h:
        h.push(wide, *rows, *rows)
        h.epoch()
        for name, step in steps.items():
            keys = [getattr(row, name) for row in rows]
            expected = {key: 2 * keys.count(key) for key in keys}
            assert {getattr(row, name): row.rows for row in h.take(step)} == expected
            assert [h.state(step, key=key).rows for key in keys] == [expected[key] for key in keys]
        assert {(row.text, row.n, row.yes, row.data): row.rows for row in h.take(by_all)} == {
            (row.text, row.n, row.yes, row.data): 2 for row in rows
        }
        assert sorted(row.rows for row in h.take(by_call)) == [2] * 9
