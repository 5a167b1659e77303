"""A program as users write them, checked by mypy --strict and pyright strict. It says everything that exists."""

from collections.abc import Iterable, Iterator, Sequence
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


# -- types that changed -----------------------------------------------------------
class OldAlert(hr.Record):
    card: str
    euros: float


class NewAlert(hr.Record):
    number: str = hr.field(was="card")
    cents: int
    tags: list[str] = hr.field(default_factory=list[str])


@hr.migrate(OldAlert, NewAlert)
def to_cents(old: OldAlert) -> NewAlert:
    return NewAlert(old.card, round(old.euros * 100))


assert_type(to_cents(OldAlert("c", 1.5)).number, str)

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
assert_type(alerts, hr.types.StepStream[Alert, Tx])
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
assert_type(totals, hr.types.StepStream[Total, Tx])
totals.changes().write(hr.sink.files("totals/"), name="totals_out")
assert_type(totals.changes(), hr.Stream[Total])
loose = tx.key_by("card", Tx.merchant).aggregate(total=hr.sum("cents"), last=hr.last(Tx.at)).named("loose")
assert_type(loose, hr.types.StepStream[hr.Row, Tx])
loose.show()


class Features(hr.Record):
    card: str
    sum_1h: int
    n_24h: int


features = (
    tx.key_by(Tx.card)
    .aggregate(Features, sum_1h=hr.sum("cents", over="1h"), n_24h=hr.count(over=timedelta(hours=24)))
    .named("features")
    .queryable()
)
assert_type(features, hr.types.StepStream[Features, Tx])
train = tx.key_by(Tx.card).join_asof(features.changes().key_by(Features.card), tolerance="7d")
assert_type(train, hr.types.Joined[Tx, Features | None])
largest = tx.key_by(lambda t: t.card).reduce(lambda a, b: a if a.cents > b.cents else b).named("largest")
assert_type(largest, hr.types.StepStream[Tx, Tx])
largest.key_by(Tx.card).latest().named("newest").queryable()


# -- windows, firing -------------------------------------------------------------
class Hourly(hr.Record):
    card: str  # key columns, window_start, window_end and pane by name
    window_start: hr.Timestamp
    total: int
    pane: str = ""


by_hour = (
    tx.where("cents > 0")
    .key_by(Tx.card)
    .window(hr.tumbling("1h"), fire=hr.early("1s"), panes="accumulate", allow_late="1h")
    .aggregate(Hourly, total=hr.sum(Tx.cents, where="cents < 10000"))
    .named("by_hour")
)
assert_type(by_hour, hr.types.WindowStream[Hourly, Tx])
assert_type(by_hour.finals(), hr.Stream[Hourly])
assert_type(by_hour.late, hr.Stream[Tx])
by_hour.finals().write(hr.sink.files("by_hour/", format="parquet"))
by_hour.late.write(hr.sink.files("too_late/"))
everything = tx.window(hr.sliding("1h", every="5m")).aggregate(n=hr.count()).named("everything")
assert_type(everything, hr.types.WindowStream[hr.Row, Tx])
everything.show()


class Sitting(hr.WindowProcess[Tx, Alert, str]):
    nth: hr.ValueState[int]  # per key; hr.state(scope="window") per window
    seen: hr.ListState[int] = hr.state(scope="window")

    def on_window(self, rows: Sequence[Tx], ctx: hr.WindowContext[str]) -> Iterator[Alert]:
        assert_type(ctx.window.start, hr.Timestamp)
        if ctx.pane != "late":
            yield Alert(ctx.key, ctx.window.end)


class Counted(hr.WindowProcess[hr.Row, Alert, str]):
    def on_window(self, rows: Sequence[hr.Row], ctx: hr.WindowContext[str]) -> Iterator[Alert]:
        if rows[0].n > 10:
            yield Alert(ctx.key, ctx.window.end)


class Bursts(hr.Trigger):
    rows: hr.ReducingState[int] = hr.state(reduce=lambda a, b: a + b)

    def on_row(self, row: Tx, ctx: hr.TriggerContext) -> hr.TriggerResult:
        self.rows.add(1)
        ctx.set_timer(row.at + hr.minutes(5))
        return hr.TriggerResult.FIRE if row.cents > 1000 else hr.TriggerResult.CONTINUE

    def on_event_time(self, at: hr.Timestamp, ctx: hr.TriggerContext) -> hr.TriggerResult:
        return hr.TriggerResult.FIRE_AND_PURGE

    def on_merge(self, ctx: hr.TriggerContext) -> None:
        ctx.set_timer(ctx.window.end)


sittings = tx.key_by(Tx.card).window(hr.session("30m")).process(Sitting())
assert_type(sittings, hr.types.WindowStream[Alert, Tx])
sittings.show()
in_bursts = tx.key_by(Tx.card).window(hr.session("30m"), fire=Bursts())
assert_type(in_bursts.process(Counted(), of={"n": hr.count()}).named("in_bursts"), hr.types.WindowStream[Alert, Tx])
assert_type(in_bursts.reduce(lambda a, b: a if a.cents > b.cents else b), hr.types.WindowStream[Tx, Tx])
last_ten = tx.key_by(Tx.card).window(hr.rows(10, every=5)).process(Sitting(), of=lambda a, b: b).named("last_ten")
assert_type(last_ten, hr.types.WindowStream[Alert, Tx])
recent = tx.key_by(Tx.kind).window(hr.unbounded(), fire=hr.every("1m"), evict=hr.keep_span("1h"))
assert_type(recent, hr.types.Windowed[Tx, Kind])


# -- two streams by one key -----------------------------------------------------------
class Refund(hr.Record):
    card: str
    at: hr.Timestamp


refunds = app.read("refunds", hr.source.files("refunds/"), Refund, time=Refund.at)
pairs = tx.key_by(Tx.card).join(refunds.key_by(Refund.card), within=("0s", "1h")).named("net")  # right.time - left.time
assert_type(pairs, hr.types.Joined[Tx, Refund])
net = pairs.select(Alert, card="left.card", at="right.at")
assert_type(net, hr.Stream[Alert])
assert_type(pairs.select(card="left.card"), hr.Stream[hr.Row])
assert_type(pairs.map(lambda t, r: r.at - t.at, output=hr.Duration), hr.Stream[hr.Duration])
net.write(hr.sink.discard())
pairs.unmatched_left.write(hr.sink.files("unrefunded/"))  # emitted when the hour is over
assert_type(pairs.unmatched_left, hr.Stream[Tx])
assert_type(pairs.late_right, hr.Stream[Refund])


def first_or_none(row: Tx, refund: Refund | None) -> Alert:
    return Alert(row.card, row.at if refund is None else refund.at)


outer = tx.key_by(Tx.card).join(refunds.key_by(Refund.card), within=("-5m", "5m"), how="left", bounds="[)")
assert_type(outer, hr.types.Joined[Tx, Refund | None])
outer.map(first_or_none).named("outer").write(hr.sink.discard())
hourly = tx.key_by(Tx.card).join(refunds.key_by(Refund.card), within=hr.tumbling("1h"), how="full")
assert_type(hourly, hr.types.Joined[Tx | None, Refund | None])
assert_type(hourly.unmatched_right, hr.Stream[Refund])
held = refunds.key_by(Refund.card).join_asof(totals.changes().key_by(Total.card), tolerance="7d").named("held")
assert_type(held, hr.types.Joined[Refund, Total | None])
held.select(card="left.card", total="right.total").write(hr.sink.discard())
newest = totals.key_by(Total.card).join(totals.key_by(Total.card), within=None, how="right", ttl="7d")
assert_type(newest, hr.types.Joined[Total | None, Total])


class Net(hr.CoProcess[Tx, Refund, Alert, str]):
    owed: hr.ValueState[int]

    def on_left(self, event: Tx, ctx: hr.Context[str]) -> None:
        self.owed.set(self.owed.get(0) + event.cents)

    def on_right(self, event: Refund, ctx: hr.Context[str]) -> Iterator[Alert]:
        yield Alert(ctx.key, event.at)


connected = tx.key_by(Tx.card).connect(refunds.key_by(Refund.card)).process(Net()).named("connected")
assert_type(connected, hr.types.ConnectedStream[Alert, Tx, Refund])
assert_type(connected.late_left, hr.Stream[Tx])
connected.write(hr.sink.discard())


class Both(hr.CoWindowProcess[Tx, Refund, Alert, str]):
    def on_window(self, lefts: Sequence[Tx], rights: Sequence[Refund], ctx: hr.WindowContext[str]) -> Iterator[Alert]:
        yield Alert(ctx.key, ctx.window.end)


grouped = tx.key_by(Tx.card).co_group(refunds.key_by(Refund.card), hr.session("30m"))
assert_type(grouped.process(Both()), hr.types.ConnectedStream[Alert, Tx, Refund])
assert_type(grouped.map(lambda ts, rs: len(ts) - len(rs), output=int), hr.types.ConnectedStream[int, Tx, Refund])


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
clicks_and_scrolls: hr.Stream[Click | Scroll] = events.only(Click | Scroll)
lines_of_both: hr.Stream[Scroll] = events.only(Click | Scroll).only(Scroll)

# -- time: what must not type-check is in wrong.py -----------------------------------
later = hr.timestamp("2024-01-01T12:00") + hr.minutes(5)
assert_type(later, hr.Timestamp)
assert_type(later - hr.timestamp("2024-01-01"), hr.Duration)


# -- broadcast rules, and feedback ---------------------------------------------------------
class Limit(hr.Record):
    merchant: str
    cents: int


class OverLimit(hr.BroadcastProcess[Tx, Limit, Alert, str]):
    limits: hr.BroadcastState[str, Limit]  # writable in on_broadcast only
    count: hr.ValueState[int]

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Alert]:
        limit = self.limits.get(event.merchant)
        assert_type(limit, Limit | None)
        if limit is not None and event.cents > limit.cents:
            yield Alert(ctx.key, event.at)

    def on_broadcast(self, event: Limit, ctx: hr.BroadcastContext[str]) -> None:
        self.limits[event.merchant] = event
        ctx.for_each_key(self.count, lambda key, count: count.set(0))


limits = app.read("limits", hr.source.items(list[Limit]()), Limit)
over = tx.key_by(Tx.card).connect(limits.broadcast()).process(OverLimit())
assert_type(over, hr.types.StepStream[Alert, Tx])
over.show()

again = app.loop("again", Tx)
assert_type(again, hr.types.Loop[Tx])
tried = tx.union(again).map(lambda t: t.replace(cents=t.cents - 1), output=Tx)
tried.where("cents > 0").feed(again)
tried.show()


# -- how far time has come, and sources that wait for each other ------------------------
class Adaptive(hr.WatermarkGenerator[Tx]):
    newest: int = 0

    def on_row(self, row: Tx, at: hr.Timestamp) -> None:
        self.newest = max(self.newest, int(at))

    def on_epoch(self) -> hr.Timestamp | None:
        return hr.Timestamp(self.newest)


adaptive = app.read("adaptive", hr.source.items(list[Tx]()), Tx, time=Tx.at, watermark=Adaptive(), idle="1m")
assert_type(adaptive, hr.Stream[Tx])
flushed = app.read(
    "flushed", hr.source.items(list[Tx]()), Tx, time=Tx.at, watermark=hr.watermarks.punctuated("kind = 'refund'"),
    align="tx", max_drift="1m",
)  # fmt: skip
adaptive.union(flushed).show()


# -- asking others ----------------------------------------------------------------------
class Shop(hr.AsyncFunction[str, Limit]):  # async open/close; or a plain async def
    async def call(self, row: str) -> Limit:
        return Limit(row, 100)


async def score(row: Tx) -> Alert:
    return Alert(row.card, row.at)


async def find(merchant: str) -> Limit | None:
    return Limit(merchant, 100) if merchant else None


scored = tx.map_async(score, capacity=50, timeout="2s", retry=hr.retry(3, "100ms"), ordered=False)
assert_type(scored, hr.Stream[Alert])
scored.errors.show()
scored.show()
found = tx.lookup(find, by=Tx.merchant, cache="10m")
assert_type(found, hr.types.Joined[Tx, Limit | None])
found.map(lambda t, limit: t.cents if limit is None else limit.cents, output=int).show()
assert_type(
    tx.lookup(Shop(), by=Tx.merchant, timeout="2s", retry=hr.retry(3, "100ms")), hr.types.Joined[Tx, Limit | None]
)


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
