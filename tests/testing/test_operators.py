"""Every shipped operator passes the suite that tries to break operators, and operators that cheat do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.model.batch import Keys, Rows
from headrace.model.rows import codec_of
from headrace.operators.contract import Operator, TaskInfo
from headrace.operators.process import ProcessOperator
from headrace.operators.rolling import ReduceOperator
from headrace.operators.stateless import FilterOperator, MapOperator
from headrace.testing import EpochInput, verify_operator, verify_step


class Sale(hr.Record):
    shop: str
    item: str
    cents: int
    at: hr.Timestamp
    rate: float = 0.5


class Note(hr.Record):
    shop: str
    what: str


def sales(count: int, start: int, rng: random.Random) -> list[Sale]:
    return [
        Sale(rng.choice("abcd"), rng.choice("xyz"), rng.randrange(100), hr.Timestamp(start + rng.randrange(20)))
        for _ in range(count)
    ]


def some_epochs(seed: int = 1) -> list[EpochInput]:
    """Rows in order and out of it, late ones, an epoch without rows, clocks that move, and the end."""
    rng = random.Random(seed)
    return [
        EpochInput(sales(9, 0, rng), watermark=5, clock=100),
        EpochInput(sales(5, 10, rng), watermark=18, clock=110),
        EpochInput([], watermark=25, clock=135),
        EpochInput(sales(6, 15, rng)),
        EpochInput(sales(4, 40, rng), watermark=45, clock=160),
        EpochInput(sales(2, 60, rng), watermark=2**60, clock=400, final=True),
    ]


def read_sales(name: str = "shop") -> tuple[hr.App, hr.Stream[Sale]]:
    app = hr.App(name)
    return app, app.read("sales", hr.source.items([]), Sale, time=Sale.at)


# --- process functions


class Everything(hr.Process[Sale, Note, str]):
    """Every kind of state and timer, a side output and a counter; tells all it sees."""

    total: hr.ValueState[int]
    brief: hr.ValueState[int] = hr.state(ttl=hr.ttl("15ms", clock="event"))
    items: hr.MapState[str, int] = hr.state(ttl=hr.ttl("30ms", clock="wall", refresh="read"))
    trail: hr.ListState[str] = hr.state(max_len=3)
    all: hr.ListState[int]
    most: hr.ReducingState[int] = hr.state(reduce=max)
    quiet: hr.Timer
    many: hr.Timers
    wall: hr.WallTimer
    odd: hr.Side[Sale]
    seen: hr.Counter

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Note]:
        if event.cents == 13:
            raise ValueError("thirteen")
        self.seen.inc(event.cents)
        self.total.set(self.total.get(0) + event.cents)
        yield Note(ctx.key, f"{self.brief.get()} {sorted(self.items.items())} {list(self.trail)} {len(self.all)}")
        self.brief.set(event.cents)
        self.items[event.item] = self.items.get(event.item, 0) + 1
        self.trail.append(event.item)
        self.all.append(event.cents)
        self.most.add(event.cents)
        if event.cents % 3 == 0:
            self.odd.emit(event)
            self.items.pop("x", None)
        if event.cents % 7 == 0:
            self.all.clear()
        self.quiet.set(hr.Timestamp(event.at + 10))
        self.many.add(hr.Timestamp(event.at // 4 * 4 + 8))
        self.wall.set(hr.Timestamp(ctx.now + 25))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Note]:
        yield Note(ctx.key, f"{timer.name} at {ctx.timestamp}: {self.total.get()} {list(self.all)} {self.most.get()}")
        if timer.name == "quiet":
            self.odd.emit(Sale(ctx.key, "quiet", 0, ctx.timestamp))
            self.most.clear()
        if timer.name == "many" and ctx.timestamp % 3 == 0:
            self.many.add(hr.Timestamp(ctx.timestamp + 1))


def test_a_process_function_with_every_kind_of_state_passes() -> None:
    _, rows = read_sales()
    verify_step(rows.where("cents <> 13").key_by(Sale.shop).process(Everything()), some_epochs_without(13))


def some_epochs_without(cents: int) -> list[EpochInput]:
    return [
        EpochInput([row for row in epoch.rows if row.cents != cents], epoch.watermark, epoch.clock, epoch.final)
        for epoch in some_epochs()
    ]


def test_a_process_function_whose_errors_and_late_rows_are_read_passes() -> None:
    _, rows = read_sales()
    step = rows.key_by(Sale.shop).process(Everything())
    step.errors, step.late
    epochs = [EpochInput([row.replace(cents=13) if i % 5 == 0 else row for i, row in enumerate(epoch.rows)],
                         epoch.watermark, epoch.clock, epoch.final) for epoch in some_epochs()]  # fmt: skip
    verify_step(step, epochs)


class FailingTimers(Everything):
    """Fails in the middle of what a timer does, now and then."""

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Note]:
        yield from super().on_timer(timer, ctx)
        self.all.clear()
        self.items["timer"] = 1
        self.many.add(hr.Timestamp(ctx.timestamp + 2))
        if ctx.timestamp % 2:
            raise ValueError(f"odd {timer.name}")
        self.many.clear()


def test_a_process_function_whose_timers_fail_passes() -> None:
    _, rows = read_sales()
    step = rows.key_by(Sale.shop).process(FailingTimers())
    step.errors
    verify_step(step, some_epochs(seed=4))


def test_a_process_function_keyed_by_several_columns_passes() -> None:
    class Count(hr.Process[Sale, Note, Any]):
        n: hr.ValueState[int]

        def on_event(self, event: Sale, ctx: hr.Context[Any]) -> Iterable[Note]:
            self.n.set(self.n.get(0) + 1)
            return [Note(event.shop, f"{ctx.key} {self.n.get()}")]

    _, rows = read_sales()
    verify_step(rows.key_by(Sale.shop, Sale.item).process(Count()), some_epochs())


# --- rolling steps


def add(a: Sale, b: Sale) -> Sale:
    return a.replace(cents=a.cents + b.cents, at=b.at)


Keyed = hr.KeyedStream[Sale, Any]


class Concat(hr.Aggregator[Sale, str, str]):
    def zero(self) -> str:
        return ""

    def add(self, acc: str, x: Sale) -> str:
        return acc + x.item

    def merge(self, a: str, b: str) -> str:
        return a + b

    def result(self, acc: str) -> str:
        return acc.upper()


def every_aggregate() -> dict[str, hr.types.Agg[Any]]:
    return {
        "n": hr.count(),
        "big": hr.count(where="cents > 50"),
        "total": hr.sum("cents"),
        "rates": hr.sum("rate * cents"),
        "mean": hr.avg("cents"),
        "least": hr.min("cents"),
        "most": hr.max("item", by="cents"),
        "first": hr.first("cents"),
        "last": hr.last("item"),
        "kinds": hr.count_distinct("item"),
        "all": hr.collect("cents"),
        "best": hr.top("cents", 2),
        "half": hr.quantile("cents", 0.5),
        "own": Concat(),
    }


ROLLING: dict[str, Callable[[Keyed], hr.types.StepStream[Any, Sale]]] = {
    "reduce": lambda keyed: keyed.reduce(add),
    "reduce per epoch": lambda keyed: keyed.reduce(add, fire=hr.per_epoch()),
    "latest": lambda keyed: keyed.latest(),
    "aggregate": lambda keyed: keyed.aggregate(**every_aggregate()),
    "aggregate per row": lambda keyed: keyed.aggregate(**every_aggregate(), fire=hr.per_row()),
}


@pytest.mark.parametrize("late", [False, True], ids=["late rows counted", "late rows read"])
@pytest.mark.parametrize("name", ROLLING)
def test_a_rolling_step_passes(name: str, late: bool) -> None:
    _, rows = read_sales()
    step = ROLLING[name](rows.key_by(Sale.shop)).named("rolled")
    if late:
        step.late
    verify_step(step, some_epochs())


@pytest.mark.parametrize("name", ROLLING)
def test_a_rolling_step_over_rows_without_time_passes(name: str) -> None:
    rows = hr.App("shop").read("sales", hr.source.items([]), Sale)
    verify_step(ROLLING[name](rows.key_by(Sale.shop)).named("rolled"), some_epochs())


def test_a_failing_reduce_whose_errors_are_read_passes() -> None:
    def picky(a: Sale, b: Sale) -> Sale:
        if b.cents % 3 == 0:
            raise ValueError("three")
        return add(a, b)

    _, rows = read_sales()
    step = rows.key_by(Sale.shop).reduce(picky).named("rolled")
    step.errors
    verify_step(step, some_epochs())


# --- steps without state


def shout(sale: Sale) -> Note:
    if sale.cents % 10 == 3:
        raise ValueError("three")
    return Note(sale.shop, sale.item.upper())


def parts(sale: Sale) -> Iterator[Note]:
    for n in range(sale.cents % 4):
        if sale.cents % 10 == 3 and n == 2:
            raise ValueError("three")
        yield Note(sale.shop, f"{n}")


def cheap(sale: Sale) -> bool:
    return 100 // (sale.cents % 10) > 20 if sale.cents % 10 != 1 else False


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(2, "cents", pc.multiply(batch.column("cents"), 2))


STATELESS: dict[str, Callable[[hr.Stream[Sale]], hr.Stream[Any]]] = {
    "map": lambda rows: rows.map(shout),
    "flat_map": lambda rows: rows.flat_map(parts),
    "filter": lambda rows: rows.filter(cheap),
    "map_batches": lambda rows: rows.map_batches(double, Sale),
    "polars": lambda rows: rows.map_batches(lambda frame: frame, Sale, form="polars"),
    "pandas": lambda rows: rows.map_batches(lambda frame: frame, Sale, form="pandas"),
    "where": lambda rows: rows.where("cents % 3 = 1 AND item <> 'x'"),
    "select": lambda rows: rows.select("shop", half="cents / 2", name="upper(item)"),
    "with_columns": lambda rows: rows.with_columns(cents="cents * 2", big="cents > 50"),
}


@pytest.mark.parametrize("name", STATELESS)
def test_a_step_without_state_passes(name: str) -> None:
    _, rows = read_sales()
    step = STATELESS[name](rows)
    if name in ("map", "flat_map", "filter"):
        step.errors
    verify_step(step, some_epochs())


class Click(hr.Record, tag="click"):
    page: str


class Buy(hr.Record, tag="buy"):
    page: str
    cents: int


def test_only_passes() -> None:
    events = hr.App("shop").read("events", hr.source.items([]), Click | Buy)
    rows = [Click("a"), Buy("b", 2), Click("c"), Buy("a", 4)]
    verify_step(events.only(Buy), [rows, [], rows[:1], rows * 3])
    verify_step(events.only(Click), [rows])


def test_an_operator_is_verified_without_a_program_too() -> None:
    codec = codec_of(Sale)
    verify_operator(
        lambda: ReduceOperator("rolled", add, codec, key_type=str),
        some_epochs(),
        row_type=Sale,
        key=lambda row: row.shop,
        time=lambda row: row.at,
    )
    verify_operator(lambda: MapOperator("map", lambda row: row.replace(cents=1), codec), some_epochs(), row_type=codec)


def test_clocks_may_be_given_as_text() -> None:
    def at(text: str) -> hr.Timestamp:
        return hr.timestamp(text)

    _, rows = read_sales()
    step = rows.where("cents <> 13").key_by(Sale.shop).process(Everything())
    given = [Sale("a", "x", 1, at("2024-01-01T12:00Z"))]
    verify_step(step, [EpochInput(given, watermark="2024-01-01T12:00:01Z", clock="2024-01-01T12:00Z")])


# --- cheats are found


def process(function: Any) -> Callable[[], Operator]:
    decls = declarations(type(function))
    kind = type(function)
    return lambda: ProcessOperator("cheat", kind(), decls, codec_of(Note), key_type=str)


def caught(make: Callable[[], Operator], epochs: Sequence[Any], *, keyed: bool = True, **options: Any) -> str:
    with pytest.raises(AssertionError) as found:
        verify_operator(make, epochs, row_type=Sale, key=(lambda row: row.shop) if keyed else None, **options)
    return str(found.value)


def rows_of(*cents: int, shop: str = "a") -> list[Sale]:
    return [Sale(shop, "x", each, hr.Timestamp(0)) for each in cents]


def test_a_function_that_remembers_in_itself_is_found() -> None:
    class Forgetful(hr.Process[Sale, Note, str]):
        def __init__(self) -> None:
            self.count = 0

        def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Note]:
            self.count += 1
            yield Note(ctx.key, f"{self.count}")

    found = caught(process(Forgetful()), [rows_of(1, 2), rows_of(3)])
    assert "by another worker each epoch: epoch 1, outlet main: other rows than in one batch" in found
    assert "missing (1): 1 × Note(shop='a', what='3') at None" in found
    assert "more (1): 1 × Note(shop='a', what='1') at None" in found


def test_a_function_that_mixes_keys_is_found() -> None:
    class Mixing(hr.Process[Sale, Note, str]):
        last: hr.ValueState[int]

        def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Note]:
            vars(self)["before"] = [*vars(self).get("before", []), ctx.key]
            yield Note(ctx.key, f"{len(set(vars(self)['before']))}")

    assert "other rows" in caught(process(Mixing()), [rows_of(1) + rows_of(2, shop="b")])


def test_a_function_that_is_not_deterministic_is_found() -> None:
    dice = random.Random()

    class Dice(hr.Process[Sale, Note, str]):
        def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Note]:
            yield Note(ctx.key, f"{dice.random()}")

    assert caught(process(Dice()), [rows_of(1)]).startswith("in one batch, again: epoch 0")


class PerBatch(Operator):
    """Says something about batches, which are none of its business."""

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        if len(rows):
            self.emit(rows.take(rows.times.argsort(kind="stable") if rows.times is not None else slice(0, 1)))  # type: ignore[arg-type]


def test_an_operator_whose_order_depends_on_batches_is_found() -> None:
    rows = [Sale("a", "x", i, hr.Timestamp(at)) for i, at in enumerate([5, 3, 9, 1])]
    options: Any = {"row_type": Sale, "time": lambda row: row.at}
    with pytest.raises(AssertionError, match="row by row: .*the same rows as in one batch, in another order"):
        verify_operator(lambda: PerBatch("batch"), [rows], **options)
    keyed: Any = {**options, "key": lambda row: row.shop}
    with pytest.raises(AssertionError, match="one key alone .*in another order"):
        verify_operator(lambda: PerBatch("batch"), [rows], **keyed)


def test_an_operator_that_chokes_on_an_empty_batch_is_found() -> None:
    class Choking(FilterOperator):
        def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
            assert rows.objects[0] is not None
            super().process(port, rows, keys)

    def make() -> Operator:
        return Choking("choking", lambda row: True, codec_of(Sale))

    assert caught(make, [rows_of(1, 2)], keyed=False).startswith("with empty batches in between: it raised IndexError")


def test_an_operator_that_shows_a_task_that_was_given_up_is_found() -> None:
    class Leaking(Operator):
        def __init__(self) -> None:
            super().__init__("leaking")
            self.held: list[Sale] = []

        def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
            self.held += rows.objects

        def finish(self) -> None:
            held, self.held = self.held, []
            self.emit(Rows.of_objects(codec_of(Sale), held))

    found = caught(Leaking, [rows_of(1, 2, 3)], keyed=False)
    assert found.startswith("after two attempts that were given up: epoch 0, outlet main")


def test_a_report_that_depends_on_batches_is_found() -> None:
    class Miscounting(MapOperator):
        def handle(self, rows: Rows) -> None:
            super().handle(rows)
            self.report.counters["batches"] = self.report.counters.get("batches", 0) + 1

        def begin(self, task: TaskInfo, state: Any) -> None:
            super().begin(task, state)
            self.report.counters = {}

    found = caught(lambda: Miscounting("map", lambda row: row, codec_of(Sale)), [rows_of(1, 2)], keyed=False)
    assert found == "row by row: epoch 0 reports counter batches 2, in one batch 1"


def test_epochs_that_prove_nothing_are_refused() -> None:
    make: Any = lambda: FilterOperator("none", lambda row: False, codec_of(Sale))  # noqa: E731
    assert "nothing would be proved" in caught(make, [rows_of(1)], keyed=False)


def test_what_has_no_operator_is_refused_in_words() -> None:
    _, rows = read_sales()
    with pytest.raises(hr.ProgramError, match="has no operator of its own"):
        verify_step(rows, [[]])


def test_rows_that_lost_the_source_s_time_need_it_said() -> None:
    _, rows = read_sales()
    notes = rows.map(shout)
    step = notes.key_by(Note.shop).latest().named("newest")
    with pytest.raises(hr.ProgramError, match="the time of these rows is not known"):
        verify_step(step, [[Note("a", "x")]])
    verify_step(step, [[Note("a", "3"), Note("a", "2")]], time=lambda row: int(row.what))
