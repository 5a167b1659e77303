"""``map_async`` through the public API: in chains and levels, with windows of time behind it, crashes and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.dataflow.stream import Stream
from headrace.errors import FunctionFailed, ProgramError
from headrace.testing import Harness
from headrace.testing.operators import verify_step
from tests.effort import examples


class Order(hr.Record):
    shop: str
    n: int
    at: hr.Timestamp = hr.Timestamp(0)


class Rich(hr.Record):
    shop: str
    n: int
    city: str


CITIES = {"s1": "Basel", "s2": "Ulm"}


class Shops(hr.AsyncFunction[Order, Rich]):
    async def open(self) -> None:
        self.cities = dict(CITIES)

    async def call(self, row: Order) -> Rich:
        await asyncio.sleep(0)
        return Rich(row.shop, row.n, self.cities[row.shop])


async def enrich(row: Order) -> Rich:
    return Rich(row.shop, row.n, CITIES[row.shop])


class Service:
    """A service outside of the job, which the test makes answer or not; requests find it by name."""

    running: dict[str, Service] = {}

    def __init__(self, name: str) -> None:
        self.asked: list[int] = []
        self.silent: set[int] = set()
        """Those that get no answer yet."""
        self._changed = threading.Condition()
        self._asking: list[Callable[[], None]] = []
        Service.running[name] = self

    async def ask(self, row: Order) -> Rich:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self.asked.append(row.n)
            self._asking.append(lambda: loop.call_soon_threadsafe(event.set))
        while row.n in self.silent:
            await event.wait()
            event.clear()
        return Rich(row.shop, row.n, "here")

    def answer(self, *numbers: int) -> None:
        self.silent -= set(numbers)
        with self._changed:
            asking = list(self._asking)
        for wake in asking:
            with contextlib.suppress(RuntimeError):  # its loop is closed: the process that asked has died
                wake()


class Remote(hr.AsyncFunction[Order, Rich]):
    def __init__(self, service: str) -> None:
        self.service = service

    async def call(self, row: Order) -> Rich:
        return await Service.running[self.service].ask(row)


def orders(count: int, shop: str = "s1") -> list[Order]:
    return [Order(shop, n) for n in range(count)]


@pytest.mark.parametrize("fn", [Shops(), enrich])
def test_rows_are_enriched_in_their_order(fn: Any) -> None:
    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order)
    rich = source.map_async(fn)
    rich.show()
    with Harness(app) as h:
        h.push(source, *orders(250), Order("s2", 1))
        h.epoch()
        assert h.take(rich) == [Rich("s1", n, "Basel") for n in range(250)] + [Rich("s2", 1, "Ulm")]


def test_it_works_behind_a_keyed_step_and_before_another() -> None:
    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order)
    newest = source.key_by(Order.shop).latest().named("newest").changes()
    rich = newest.map_async(enrich)
    counted = rich.key_by(Rich.city).aggregate(n=hr.count()).named("counted")
    counted.show()
    with Harness(app) as h:
        h.push(source, *orders(5), *orders(3, "s2"))
        h.epoch()
        assert sorted(h.take(rich), key=repr) == [Rich("s1", 4, "Basel"), Rich("s2", 2, "Ulm")]
        assert sorted((row.city, row.n) for row in h.take(counted)) == [("Basel", 1), ("Ulm", 1)]


def test_event_times_are_kept_and_answers_come_before_the_time_of_their_epoch() -> None:
    class Timely(hr.Process[Rich, str, str]):
        due: hr.Timer

        def on_event(self, event: Rich, ctx: hr.Context[str]) -> Any:
            self.due.set(ctx.timestamp)
            yield f"{event.n} at {ctx.timestamp}"

        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Any:
            yield f"fired {ctx.timestamp}"

    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order, time=Order.at)
    timely = source.map_async(enrich, ordered=False).key_by(Rich.shop).process(Timely())
    timely.show()
    with Harness(app) as h:
        h.push(source, Order("s1", 1, hr.Timestamp(10)), Order("s2", 2, hr.Timestamp(30)))
        h.epoch()
        assert sorted(h.take(timely)) == ["1 at 10", "2 at 30", "fired 10"]
        assert h.counters(timely) == {}, "nothing is late"


def test_a_failing_row_stops_the_job_or_goes_to_errors() -> None:
    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order)
    source.map_async(enrich).show()
    with Harness(app) as h:
        h.push(source, Order("s9", 7))
        with pytest.raises(FunctionFailed) as caught:
            h.epoch()
        assert "enrich" in str(caught.value)
        assert "s9" in str(caught.value)

    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order)
    rich = source.map_async(enrich)
    rich.errors.show()
    with Harness(app) as h:
        h.push(source, Order("s9", 7), Order("s1", 8))
        h.epoch()
        assert h.take(rich) == [Rich("s1", 8, "Basel")]
        [failed] = h.take(rich.errors)
        assert b'"s9"' in failed.row


@pytest.mark.parametrize("point", ["state_opening", "outputs_staged", "before_publish", "published"])
def test_a_crash_asks_again_and_every_row_comes_out_once(point: str, tmp_path: Path) -> None:
    service = Service(point)
    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order)
    rich = source.map_async(Remote(point))
    rich.show()
    with Harness(app, store=tmp_path / "s") as h:
        h.push(source, *orders(5))
        h.crash(at=point)
        if point != "published":
            h.epoch()
        assert h.take(rich) == [Rich("s1", n, "here") for n in range(5)]
    asked_twice = point in ("outputs_staged", "before_publish")
    assert sorted(service.asked) == sorted([*range(5)] * (2 if asked_twice else 1))


@pytest.mark.parametrize("fn", [Shops(), enrich])
def test_no_way_of_running_it_changes_what_comes_out(fn: Any) -> None:
    source = hr.App("shop").read("orders", hr.source.items([]), Order, time=Order.at)
    rows = [Order(f"s{1 + n % 2}", n, hr.Timestamp(n)) for n in range(30)]
    verify_step(source.map_async(fn, capacity=3), [rows[:12], [], rows[12:]])
    failing = source.map_async(fn)
    failing.errors.show()
    verify_step(failing, [[Order("s9", 1), *rows], rows])


def test_no_way_of_running_a_lookup_changes_what_comes_out() -> None:
    source = hr.App("shop").read("orders", hr.source.items([]), Order, time=Order.at)

    async def city_of(shop: str) -> str | None:
        return CITIES.get(shop)

    rows = [Order(f"s{1 + n % 3}", n, hr.Timestamp(n)) for n in range(30)]
    for cache in (None, "10m"):
        found = source.lookup(city_of, by=Order.shop, capacity=1, cache=cache)
        verify_step(Stream(found.app, found.node), [rows[:12], [], rows[12:]])


# --- requests that outlive their epoch


def carrying(name: str) -> tuple[hr.App, Service, Any, Any]:
    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order, time=Order.at)
    rich = source.map_async(Remote(name), ordered=False, wait="carry")
    rich.show()
    return app, Service(name), source, rich


def numbers(rows: list[Rich]) -> list[int]:
    return sorted(row.n for row in rows)


def test_an_open_request_is_carried_and_answered_later_without_asking_again() -> None:
    app, service, source, rich = carrying("carried")
    service.silent = {1, 3}
    with Harness(app) as h:
        h.push(source, *orders(4))
        h.epoch()
        assert numbers(h.take(rich)) == [0, 2]
        h.push(source, Order("s1", 9))
        h.epoch()
        assert numbers(h.take(rich)) == [9]
        service.answer(3)
        h.epoch()
        assert numbers(h.take(rich)) == [3]
        service.answer(1)
        h.drain()
        assert numbers(h.take(rich)) == [1]
    assert sorted(service.asked) == [0, 1, 2, 3, 9], "each was asked once: the requests stayed in flight"


def test_carried_rows_are_part_of_the_checkpoint_and_asked_again_by_a_new_process(tmp_path: Path) -> None:
    app, service, source, rich = carrying("restarted")
    service.silent = {1}
    with Harness(app, store=tmp_path / "s") as h:
        h.push(source, *orders(3))
        h.epoch()
        assert numbers(h.take(rich)) == [0, 2]
        h.restart()
        h.epoch()
        assert service.asked.count(1) == 2
        service.answer(1)
        h.crash(at="before_publish")
        h.drain()
        assert numbers(h.take(rich)) == [1]


def test_an_epoch_that_dies_with_open_requests_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    app, service, source, rich = carrying("died")
    service.silent = {1}
    with Harness(app, store=tmp_path / "s") as h:
        h.push(source, *orders(3))
        h.crash(at="before_publish")
        h.epoch()
        assert numbers(h.take(rich)) == [0, 2]
        service.answer(1)
        h.drain()
        assert numbers(h.take(rich)) == [1]


def test_a_row_keeps_its_event_time_while_it_is_carried() -> None:
    app = hr.App("shop")
    service = Service("timed")
    source = app.read("orders", hr.source.items([]), Order, time=Order.at, out_of_order="1h")
    rich = source.map_async(Remote("timed"), ordered=False, wait="carry")

    class At(hr.Process[Rich, int, str]):
        def on_event(self, event: Rich, ctx: hr.Context[str]) -> Any:
            yield int(ctx.timestamp)

    times = rich.key_by(Rich.shop).process(At())
    times.show()
    service.silent = {0}
    with Harness(app) as h:
        h.push(source, Order("s1", 0, hr.Timestamp(77)), Order("s1", 1, hr.Timestamp(88)))
        h.epoch()
        assert h.take(times) == [88]
        service.answer(0)
        h.epoch()
        assert h.take(times) == [77]


def test_more_than_the_capacity_is_not_carried() -> None:
    app = hr.App("shop")
    service = Service("full")
    source = app.read("orders", hr.source.items([]), Order)
    rich = source.map_async(Remote("full"), ordered=False, wait="carry", capacity=2)
    rich.show()
    service.silent = set(range(5))
    helper = threading.Thread(target=lambda: _answer_as_asked(service, 3), daemon=True)
    with Harness(app) as h:
        h.push(source, *orders(5))
        helper.start()
        h.epoch()
        assert len(h.take(rich)) >= 3, "two may stay open, so the others were waited for"
        service.answer(*range(5))
        h.drain()


def _answer_as_asked(service: Service, count: int) -> None:
    for n in range(count):
        while n not in service.asked:
            threading.Event().wait(0.001)
        service.answer(n)


def test_rows_that_are_equal_have_a_request_each() -> None:
    app, service, source, rich = carrying("twins")
    service.silent = {1}
    with Harness(app) as h:
        h.push(source, Order("s1", 1), Order("s1", 1))
        h.epoch()
        service.answer(1)
        h.drain()
        assert numbers(h.take(rich)) == [1, 1]
    assert service.asked == [1, 1]


Move = tuple[str, int]
NAMES = ("push", "push_silent", "answer", "epoch", "crash", "published", "restart")
MOVES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=8)


@settings(max_examples=examples(20))
@given(MOVES)
def test_whatever_happens_every_row_comes_out_once(moves: list[Move]) -> None:
    app, service, source, rich = carrying("anything")
    pushed: list[int] = []
    came: list[int] = []
    with Harness(app) as h:
        for move, count in moves:
            if move.startswith("push"):
                new = list(range(len(pushed), len(pushed) + count))
                service.silent |= set(new) if move == "push_silent" else set()
                h.push(source, *(Order("s1", n) for n in new))
                pushed += new
            elif move == "answer":
                service.answer(*sorted(service.silent)[:count])
            elif move == "epoch":
                h.epoch()
            elif move == "restart":
                h.restart()
            else:
                h.crash(at="published" if move == "published" else "before_publish")
            came += numbers(h.take(rich))
        service.answer(*pushed)
        h.drain()
        came += numbers(h.take(rich))
    assert sorted(came) == pushed


# --- mistakes


def plain(row: Order) -> Rich:
    return Rich(row.shop, row.n, "")


async def untyped(row):  # type: ignore[no-untyped-def]
    return row


async def many(row: Order) -> Any:
    yield row


class NoCall(hr.AsyncFunction[Order, Rich]):
    pass


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fn": plain}, "async def plain"),
        ({"fn": untyped}, "output="),
        ({"fn": many}, "return one row per call"),
        ({"fn": Shops}, "add the parentheses"),
        ({"fn": NoCall()}, "async def call"),
        ({"fn": "enrich"}, "hr.AsyncFunction"),
        ({"capacity": 0}, "capacity=1"),
        ({"timeout": "0s"}, "timeout"),
        ({"timeout": "soon"}, "cannot read timeout"),
        ({"retry": 3}, "hr.retry(3"),
        ({"wait": "never"}, '"carry"'),
        ({"wait": "carry"}, "ordered=False"),
    ],
)
def test_mistakes_are_found_while_the_program_is_built(given: dict[str, Any], words: str) -> None:
    source = hr.App("shop").read("orders", hr.source.items([]), Order)
    with pytest.raises(ProgramError) as caught:
        source.map_async(given.pop("fn", enrich), **given)
    assert words in str(caught.value)
    assert "test_asynchronous.py" in str(caught.value)


@pytest.mark.parametrize("given", [(-1,), ("3",), (3, "100ms", 0.5)])
def test_a_retry_that_makes_no_sense_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(ProgramError):
        hr.retry(*given)


def test_a_step_that_carries_requests_needs_a_name() -> None:
    app = hr.App("shop")
    source = app.read("orders", hr.source.items([]), Order)
    rich = source.map_async(enrich, ordered=False, wait="carry")
    rich.show()
    with pytest.raises(ProgramError, match=r"\.named"):
        app.explain()
    rich.named("enriched")
    assert "open ones are carried" in app.explain()
    assert "loop" not in app.explain()


def test_a_coroutine_given_to_map_is_told_of_map_async() -> None:
    source = hr.App("shop").read("orders", hr.source.items([]), Order)
    with pytest.raises(ProgramError, match="map_async"):
        source.map(enrich)
