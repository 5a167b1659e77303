"""A program as users write them, checked by mypy --strict and pyright strict. It says everything that exists."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import Enum
from typing import assert_type

import headrace as hr


# -- App, Record, read ---------------------------------------------------------
class Kind(Enum):
    SALE = "sale"
    REFUND = "refund"


class Tx(hr.Record):  # frozen msgspec Struct; tx.replace(cents=3) copies
    card: str
    merchant: str
    at: hr.Timestamp  # int µs at run time, TIMESTAMP in Spark, ISO text in JSON
    cents: int = 0  # evolution: a new field needs a default
    kind: Kind = Kind.SALE
    limit: int | None = None


app = hr.App("fraud")
tx = app.read(
    "tx", hr.source.files(hr.var("folder", "tx/")), Tx, time=Tx.at, out_of_order="5s", idle=timedelta(seconds=30)
)
assert_type(tx, hr.Stream[Tx])
tx.errors.write(hr.sink.files("dead/"))  # undecodable rows; without this line they stop the job
assert_type(tx.errors, hr.Stream[hr.Failed])


# -- process functions: everything kept or said is declared by annotation -------
class Alert(hr.Record):
    card: str
    at: hr.Timestamp


class Fraud(hr.Process[Tx, Alert, str]):  # in, out, key (default Any)
    small: hr.ValueState[bool]  # get() -> bool | None; get(False) -> bool
    shops: hr.MapState[str, int] = hr.state(ttl=hr.ttl("7d", clock="event"), was="merchants")
    recent: hr.ListState[Tx] = hr.state(max_len=10)
    most: hr.ReducingState[int] = hr.state(reduce=max)
    quiet: hr.Timer  # one per key, set() replaces; WallTimer; Timers = many
    odd: hr.Side[Tx]
    hits: hr.Counter

    def __init__(self, limit: int) -> None:  # driver; shipped to the workers
        self.limit = limit

    def open(self) -> None: ...  # once per worker, not per epoch; close() too

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Alert]:
        self.shops[event.merchant] = n = self.shops.get(event.merchant, 0) + 1
        self.recent.append(event)
        self.most.add(event.cents)
        self.hits.inc()
        if n > 100:
            self.odd.emit(event)
        if self.small.get() and event.cents > self.limit:
            yield Alert(ctx.key, event.at)
        if event.cents < 100:
            self.small.set(True)
            self.quiet.set(event.at + hr.seconds(60))  # ctx: key timestamp watermark now epoch

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        self.small.clear()


alerts = tx.key_by(Tx.card).process(Fraud(limit=50_000))  # step "fraud"; .named("x", was="fraud") overrides
assert_type(alerts, hr.StepStream[Alert, Tx])
alerts.side(Fraud.odd).write(hr.sink.files("odd/", format="parquet"))
assert_type(alerts.side(Fraud.odd), hr.Stream[Tx])
assert_type(alerts.late, hr.Stream[Tx])
alerts.late.write(hr.sink.discard())


# -- rolling aggregates ----------------------------------------------------------
class Total(hr.Record):
    card: str  # key columns by name
    total: int
    n: int = 0


totals = (
    tx.where("cents > 0")
    .where(hr.col("merchant") != "test")
    .key_by(Tx.card)
    .aggregate(Total, total=hr.sum(Tx.cents, where="cents < 10000"), n=hr.count())
    .named("totals", was="sums")
    .queryable()
)
assert_type(totals, hr.StepStream[Total, Tx])
totals.write(hr.sink.files("totals/"), name="totals_out")
loose = tx.key_by("card", Tx.merchant).aggregate(total=hr.sum("cents"), last=hr.last(Tx.at)).named("loose")
assert_type(loose, hr.StepStream[hr.Row, Tx])
loose.show()
largest = tx.key_by(lambda t: t.card).reduce(lambda a, b: a if a.cents > b.cents else b).named("largest")
assert_type(largest, hr.StepStream[Tx, Tx])
largest.key_by(Tx.card).latest().named("newest").queryable()


# -- streams ------------------------------------------------------------------------
def words(row: Tx) -> Iterable[str]:
    return row.merchant.split()


def enrich(row: Tx) -> Alert:
    return Alert(row.card, row.at)


assert_type(tx.map(enrich), hr.Stream[Alert])
assert_type(tx.map(lambda t: t.card, output=str), hr.Stream[str])
assert_type(tx.flat_map(words), hr.Stream[str])
assert_type(tx.filter(lambda t: t.cents > 0), hr.Stream[Tx])
assert_type(tx.select(Alert), hr.Stream[Alert])
assert_type(tx.select(Alert, at="at + INTERVAL '1' SECOND"), hr.Stream[Alert])
assert_type(tx.select("card", Tx.at, double=hr.col("cents") * 2), hr.Stream[hr.Row])
assert_type(tx.with_columns(double="cents * 2"), hr.Stream[hr.Row])
assert_type(tx.union(tx), hr.Stream[Tx])
assert_type(tx.map_batches(lambda batch: batch, output=Tx), hr.Stream[Tx])
assert_type(tx.key_by(lambda t: t.cents), hr.KeyedStream[Tx, int])
assert_type(tx.key_by(Tx.at), hr.KeyedStream[Tx, hr.Timestamp])
assert_type(tx.key_by(Tx.kind), hr.KeyedStream[Tx, Kind])
assert_type(tx.key_by(Tx.limit), hr.KeyedStream[Tx, int | None])
tx.key_by(hr.col("card"))
assert_type(tx.named("renamed"), hr.Stream[Tx])


class Click(hr.Record, tag=True):
    user: str


class Scroll(hr.Record, tag=True):
    user: str
    lines: int


Event = Click | Scroll
events: hr.Stream[Click | Scroll] = app.read("events", hr.source.items([Click("a"), Scroll("b", 3)]), Event)
assert_type(events.only(Click), hr.Stream[Click])

# -- time: what must not type-check is in wrong.py -----------------------------------
later = hr.timestamp("2024-01-01T12:00") + hr.minutes(5)
assert_type(later, hr.Timestamp)
assert_type(later - hr.timestamp("2024-01-01"), hr.Duration)


# -- an aggregator of one's own ---------------------------------------------------------
class Mean(hr.Aggregator[Tx, tuple[int, int], float]):
    def zero(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, acc: tuple[int, int], x: Tx) -> tuple[int, int]:
        return (acc[0] + x.cents, acc[1] + 1)

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return (a[0] + b[0], a[1] + b[1])

    def result(self, acc: tuple[int, int]) -> float:
        return acc[0] / acc[1]


tx.key_by(Tx.card).aggregate(mean=Mean()).named("means").write(hr.sink.collect())

# -- run, test, ask ------------------------------------------------------------------------
if __name__ == "__main__":
    print(app.explain())
    app.run(until="stopped", store="./state", parallelism=2)  # "caught_up": resumable; "drained": final


def started() -> None:
    run = app.start(until="caught_up")
    run.wait()
    run.stop()


def test_small_then_large() -> None:
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(tx, Tx("c", "m", h.at("12:00:00"), 50), Tx("c", "m", h.at("12:00:30"), 90_000))
        h.epoch(watermark="12:02:00")  # exactly one epoch; clock= moves the wall clock
        assert h.take(alerts) == [Alert("c", h.at("12:00:30"))]
        assert h.state(alerts, Fraud.small, key="c") is None
