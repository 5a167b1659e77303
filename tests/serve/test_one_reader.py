"""One state, one answer: random programs asked the same questions through every way there is to read a state.

The ways: `hr.Store`, `Harness.state`, the Redis protocol, HTTP, and `hr.Client` over both. The questions: one key, many
keys, windows, windows between two times, a walk over all keys, how many keys there are; of the newest epoch, and of one
in the past.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis.strategies as st
import msgspec
import polars as pl
import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings

import headrace as hr
from headrace.model.time import format_time
from headrace.testing import Harness
from tests.effort import examples
from tests.serve.served import Served
from tests.serve.tweets import fetch

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")

MINUTE_US = 60_000_000
NO_COUNT = 10**14
"""A number beyond this is a time: nothing else is as large here."""
START = "2024-01-01T12:00"


class Visit(hr.Record):
    """Something with times inside of an event."""

    since: hr.Timestamp
    n: int


class Event(hr.Record):
    text: str
    number: int
    raw: bytes
    maybe: str | None
    at: hr.Timestamp
    n: int
    page: str
    price: Decimal
    seen: datetime
    visits: list[Visit]


class Keeper(hr.Process[Event, Event, Any]):
    """Keeps something of every kind."""

    last: hr.ValueState[int]
    brief: hr.ValueState[str] = hr.state(ttl="20m")
    pages: hr.MapState[str, int]
    by_number: hr.MapState[int, str]
    recent: hr.ListState[int]
    latest: hr.ValueState[hr.Timestamp]
    by_time: hr.MapState[hr.Timestamp, Visit]
    times: hr.ListState[tuple[int, datetime]]
    checks: hr.Timers

    def on_event(self, event: Event, ctx: hr.Context[Any]) -> Iterator[Event]:
        if event.n == 0:
            self.last.clear()
            self.pages.clear()
        else:
            self.last.set(event.n)
            self.pages[event.page] = self.pages.get(event.page, 0) + event.n
        self.brief.set(event.page)
        self.by_number[event.n] = event.page
        self.recent.append(event.n)
        self.latest.set(event.at)
        self.by_time[event.at] = event.visits[0]
        self.times.append((event.n, event.seen))
        self.checks.add(event.at + hr.minutes(event.n))
        yield from ()

    def on_timer(self, timer: Any, ctx: hr.Context[Any]) -> Iterator[Event]:
        yield from ()


class Total(hr.Aggregator[Event, int, int]):
    """An aggregate of one's own: its windows are kept one by one."""

    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Event) -> int:
        return acc + x.n

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


KEYS: dict[str, tuple[Any, ...]] = {
    "text": (Event.text,),
    "number": (Event.number,),
    "raw": (Event.raw,),
    "maybe": (Event.maybe,),
    "pair": (Event.text, Event.number),
    "time": (Event.at,),
    "pair with a time": (Event.text, Event.at),
    "pair with null": (Event.maybe, Event.number),
}
PAST_OF = ("text", "pair with a time")
"""Kinds of keys for which the past is asked, too."""
WINDOWS = {
    "tumbling": (hr.tumbling("10m"), {}),
    "sliding": (hr.sliding("20m", every="10m"), {}),
    "cumulating": (hr.cumulating("30m", every="10m"), {}),
    "sessions": (hr.session("5m"), {"allow_late": "10m"}),
    "late": (hr.tumbling("10m"), {"allow_late": "15m"}),
}
ARCHIVED = ("tumbling", "sliding", "cumulating")
WINDOWED = (*WINDOWS, "own", "counted", "fired")
_STATES = ("last", "brief", "pages", "by_number", "recent", "latest", "by_time", "times", "checks")
STATES = (
    *(f"keeper.{name}" for name in _STATES),
    "totals",
    "newest",
)
MATCHING = ("matched.partial", "ruled.partial", "ruled.rules", "recognized.partial")


def program(
    key: tuple[Any, ...], windowed: Collection[str], keep: str | None, archive: Path | None = None
) -> tuple[hr.App, Any, dict[str, Any]]:
    app = hr.App("app")
    events = app.read("events", hr.source.items([]), Event, time=Event.at)
    keyed = events.key_by(*key)
    aggs: Any = {
        "rows": hr.count(),
        "total": hr.sum("n"),
        "mean": hr.avg("n"),
        "first_page": hr.first("page"),
        "pages": hr.count_distinct("page"),
        "largest": hr.top("n", 2),
        "newest": hr.max("at"),
        "price": hr.sum("price"),
        "mean_price": hr.avg("price"),
        "highest": hr.top("price", 2),
        "dearest": hr.max("page", by="price"),
        "prices": hr.collect("price"),
    }
    steps: dict[str, Any] = {
        "keeper": keyed.process(Keeper()).named("keeper").queryable(),
        "totals": keyed.aggregate(**aggs).named("totals").queryable(),
        "newest": keyed.latest().named("newest").queryable(),
    }
    how: Any = {} if keep is None else {"keep": keep}
    lists = ("pages", "largest", "highest", "prices")
    for name, (window, more) in WINDOWS.items():
        if name not in windowed:
            continue
        kept: Any = how if name in ARCHIVED else {}
        if archive is not None and name in ARCHIVED:
            kept = kept | {"archive": str(archive / name)}
        mine = {each: agg for each, agg in aggs.items() if each not in lists} if keep and kept else aggs
        steps[name] = keyed.window(window, **more).aggregate(**mine).named(name).queryable(**kept)
    if "own" in windowed:
        own = keyed.window(hr.tumbling("10m")).aggregate(own=Total(), price=hr.sum("price"))
        steps["own"] = own.named("own").queryable()
    if "counted" in windowed:
        counted = keyed.window(hr.rows(3)).aggregate(
            rows=hr.count(), **{each: aggs[each] for each in ("price", "mean_price", *lists)}
        )
        steps["counted"] = counted.named("counted").queryable()
    if "fired" in windowed:
        fired = keyed.window(hr.tumbling("10m"), fire=hr.on_delta("n", 3)).aggregate(total=hr.sum("n"))
        steps["fired"] = fired.named("fired").queryable()
    return app, events, steps


def matching(app: hr.App, keyed: Any) -> dict[str, Any]:
    """Steps with partial matches: of a pattern, of rules that come as rows, and of a row pattern in SQL."""
    pattern = hr.pattern("one", "n > 0").then("many", "n < 3").one_or_more().then("end", "n = 7").within("1h")
    rules = app.read("rules", hr.source.items([]), hr.PatternRule)
    recognized = app.sql(
        "SELECT * FROM events MATCH_RECOGNIZE (PARTITION BY text ORDER BY at MEASURES A.n AS first_n "
        "PATTERN (A B+ C) DEFINE A AS n > 0, B AS n < 3, C AS n = 7)", name="recognized",
    )  # fmt: skip
    recognized.write(hr.sink.collect())
    return {
        "rules": rules,
        "matched": keyed.match(pattern).named("matched"),
        "ruled": keyed.match(rules.broadcast()).named("ruled"),
        "recognized": recognized,
    }


RULES = [
    hr.PatternRule("one", "a [n > 0], then any b [n > 1], then c [n = 7], within 2h"),
    hr.PatternRule("ü:x", "a [page = '/'], next b [n = 7]"),
]


def event(fields: list[Any], at_us: int, n: int, page: str, price: Decimal) -> Event:
    seen = datetime(2024, 1, 1, 12, tzinfo=UTC) + n * timedelta(microseconds=1)
    return Event(*fields, hr.Timestamp(at_us), n, page, price, seen, [Visit(hr.Timestamp(at_us + n), n)])


TEXTS = st.sampled_from(["a", "b", "ü:x y", "7", "null", '"null"', '""null""', '"a"', "[1]", ""])
EVENTS = st.lists(
    st.tuples(
        TEXTS,
        st.sampled_from([0, 7, -8, 2**40]),
        st.sampled_from([b"", b"\x00\xff", b"a"]),
        st.none() | TEXTS,
        st.integers(0, 45),
        st.integers(0, 3),
        st.sampled_from(["/", "/a"]),
        st.sampled_from(["1.50", "2.50", "3.00", "-0.25", "100", "0.000000000000000001"]).map(Decimal),
    ),
    min_size=1,
    max_size=12,
)
EPOCHS = st.lists(st.tuples(EVENTS, st.integers(0, 60)), min_size=1, max_size=4)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=examples(2), report_multiple_bugs=False)
@given(
    epochs=EPOCHS,
    windowed=st.lists(st.sampled_from(WINDOWED), min_size=2, max_size=3, unique=True),
    keep=st.sampled_from([None, "1h"]),
)
def test_every_way_to_read_a_state_gives_the_same_answers(
    key: str, epochs: Any, windowed: list[str], keep: str | None
) -> None:
    app, events, steps = program(KEYS[key], windowed, keep)
    with tempfile.TemporaryDirectory() as folder, Harness(app, start=START, store=Path(folder) / "store") as h:
        start_us = h.at("12:00")
        reached = 0
        for rows, minute in epochs:
            for *fields, at, n, page, price in rows:
                h.push(events, event(fields, start_us + at * MINUTE_US, n, page, price))
            reached = max(reached, minute)
            h.epoch(watermark=start_us + reached * MINUTE_US)
        with Served(h.store) as served:
            served.wait_for(len(epochs) - 1)
            with redis.Redis(port=served.port, decode_responses=True) as client:
                Asked(h, steps, served, client).compare_all()
                if key in PAST_OF and len(epochs) > 1:
                    Asked(h, steps, served, client, at=len(epochs) - 2).compare_all()


def test_partial_matches_and_rules_are_the_same_in_every_way(tmp_path: Path) -> None:
    key = KEYS["pair with a time"]
    app, events, steps = program(key, (), None)
    steps |= matching(app, events.key_by(*key))
    with Harness(app, start=START, store=tmp_path / "store") as h:
        start_us = h.at("12:00")
        h.push(steps["rules"], *RULES)
        for reached, rows in ((3, [(1, 1), (2, 2), (3, 2)]), (5, [(4, 1), (5, 3)])):
            for at, n in rows:
                h.push(events, event(["a", 7, b"\x00\xff", None], start_us + at * MINUTE_US, n, "/", Decimal("1.5")))
            h.epoch(watermark=start_us + reached * MINUTE_US)
        store = hr.Store(h.store)
        assert all(len(store.state(address)) for address in MATCHING)
        with Served(h.store) as served:
            served.wait_for(1)
            with redis.Redis(port=served.port, decode_responses=True) as client:
                for past in (None, 0):
                    Asked(h, steps, served, client, at=past).compare_all()


@pytest.mark.parametrize("key", ["text", "pair with null"])
@settings(max_examples=examples(4), report_multiple_bugs=False)
@given(epochs=EPOCHS, keep=st.sampled_from([None, "1h"]))
def test_a_window_reads_the_same_before_and_after_it_went_to_the_archive(
    key: str, epochs: Any, keep: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        app, events, _ = program(KEYS[key], ARCHIVED, keep, Path(folder) / "archive")
        with Harness(app, start=START, store=Path(folder) / "store", sinks=True) as h:
            start_us = h.at("12:00")
            for rows, _ in epochs:
                for *fields, at, n, page, price in rows:
                    h.push(events, event(fields, start_us + at * MINUTE_US, n, page, price))
                h.epoch(watermark=start_us)
            opened = all_windows(h.store)
            h.epoch(watermark=start_us + 80 * MINUTE_US)
            after = hr.Store(h.store)
            for (address, key_), windows in opened.items():
                view = after.state(address, empty_ok=True)
                assert repr(view.between(key_)) == repr(windows), address
                assert keep is not None or key_ not in view


def all_windows(store: Any) -> dict[tuple[str, Any], Any]:
    """The windows of every key of the states that have an archive."""
    views = {address: hr.Store(store).state(address) for address in ARCHIVED}
    return {(address, key): view.windows(key) for address, view in views.items() for key in view}


class Asked:
    """One published epoch, asked in every way."""

    def __init__(
        self, h: Harness, steps: dict[str, Any], served: Served, client: redis.Redis, at: int | None = None
    ) -> None:
        """``at``: an epoch of the past; None: the newest."""
        self.h = h
        self.steps = steps
        self.served = served
        self.redis = client
        self.at = at
        matching = MATCHING if "matched" in steps else ()
        self.addresses = (*STATES, *matching, *(name for name in WINDOWED if name in steps))
        self.store = hr.Store(h.store) if at is None else hr.Store(f"{h.store}@{at}")
        self.behind = "" if at is None else f"@{at}"
        """What stands behind an address inside of a key of Redis."""

    def compare_all(self) -> None:
        with hr.Client(self.served.redis_url) as by_redis, hr.Client(self.served.url) as by_http:
            one, other = (each if self.at is None else each.at(self.at) for each in (by_redis, by_http))
            for address in self.addresses:
                view = self.store.state(address, empty_ok=True)
                expected = {key: view[key] for key in view}
                assert same(view, expected)
                if not expected:
                    # What has never held anything has no address yet, if no program declares it.
                    continue
                for client in (one, other):
                    assert same_from_afar(client.state(address), from_afar(expected))
                self.compare_frames(address, view, one, other)
                if self.at is None:
                    self.compare_sql(address, view)
                if self.at is None:
                    self.compare_harness(address, expected)
                self.compare_pages(address, expected)
                for key, value in expected.items():
                    self.compare_key(address, view.kind, key, value)
                if address in WINDOWED:
                    typed = [client.state(address) for client in (one, other)]
                    self.compare_windows(address, view, typed, list(expected))
                for key in ("nobody", 12345, b"nobody", None, ("nobody", 1)):
                    if key not in expected:
                        assert key not in view and view.get_many([key]) == [None]

    def compare_harness(self, address: str, expected: dict[Any, Any]) -> None:
        step, _, state = address.partition(".")
        if step == "recognized":
            return  # A query gives no handle of its state.
        for key, value in expected.items():
            owner: Any = Keeper if step == "keeper" else self.steps[step]
            answer = self.h.state(self.steps[step], *([getattr(owner, state)] if state else []), key=key)
            # The rows of `latest` are stored as they are, so nobody tells which text in them is a decimal.
            assert from_afar(plain(answer, value)) == from_afar(value), address

    def compare_frames(self, address: str, view: Any, by_redis: hr.Client, by_http: hr.Client) -> None:
        frame = view.to_polars()
        answer = fetch(self.served.url, self.path(f"{address}?format=arrow"))
        with pa.ipc.open_stream(answer.body) as stream:
            exported: Any = pl.from_arrow(stream.read_all())
        for other in (exported, by_http.state(address).to_polars()):
            assert other.schema == frame.schema and other.equals(frame), address
        # Decimals are text on the other way; the times of windows and timers are times on all.
        plain_frame = by_redis.state(address).to_polars()
        assert (plain_frame.columns, plain_frame.shape) == (frame.columns, frame.shape)
        for name, dtype in frame.schema.items():
            if name in ("window_start", "window_end") or (view.kind, name) == ("timers", "at"):
                assert dtype == plain_frame.schema[name] == pl.Datetime("us", "UTC"), address

    def compare_sql(self, address: str, view: Any) -> None:
        """Every column that a DataFrame and a table have in common holds the same."""
        name = ".".join(f'"{part}"' for part in address.split("."))
        answer = self.store.sql(f"SELECT * FROM {name}")
        rows = view.to_polars().to_dicts()
        assert len(answer) == len(rows)
        shared = [column for column in answer.columns if rows and column in rows[0]]
        in_frame = in_order([as_sql(row[column]) for column in shared] for row in rows)
        assert in_frame == in_order([as_sql(row[column]) for column in shared] for row in answer.rows()), address

    def compare_key(self, address: str, kind: str, key: Any, value: Any) -> None:
        text = written(key)
        name = f"{address}{self.behind}:{text}"
        told = shown(value)
        if kind == "map":
            assert {entry: json.loads(raw) for entry, raw in self.redis.hgetall(name).items()} == told
        elif kind in ("list", "timers"):
            assert [json.loads(raw) for raw in self.redis.lrange(name, 0, -1)] == told
        else:
            assert json.loads(self.redis.get(name)) == json.loads(self.redis.mget([name])[0]) == told
        assert self.redis.exists(name) == 1
        assert self.http(f"{address}/{quote(text, safe='')}") == told

    def compare_pages(self, address: str, expected: dict[Any, Any]) -> None:
        names = sorted(f"{address}:{written(key)}" for key in expected)
        if self.at is None:
            assert sorted(self.redis.scan_iter(f"{address}:*", count=3)) == names
        entries: list[Any] = []
        after = "0"
        while after is not None:
            page = self.http(f"{address}?limit=3&after={after}")
            entries += page["entries"]
            after = page["next"]
        told = [[in_json(key), shown(value)] for key, value in expected.items()]
        assert in_order([entry["key"], entry["value"]] for entry in entries) == in_order(told)
        assert self.http(f"{address}?count=true")["keys"] == len(expected)
        asked = {"keys": [in_json(key) for key in expected]}
        answer = fetch(self.served.url, self.path(f"{address}/get"), "POST", asked).json
        assert answer["values"] == [shown(value) for value in expected.values()]

    def compare_windows(self, address: str, view: Any, clients: list[Any], keys: list[Any]) -> None:
        for key in keys:
            windows = view.windows(key)
            assert list(windows.values())[-1] == view[key]
            assert view.between(key) == windows
            text = written(key)
            fields = self.redis.hgetall(f"{address}{self.behind}:{text}")
            assert [json.loads(raw) for raw in fields.values()] == [shown(each) for each in windows.values()]
            told = self.http(f"{address}/{quote(text, safe='')}/windows")
            assert [each["value"] for each in told] == [shown(each) for each in windows.values()]
            if key == keys[0]:
                assert [client.windows(key) for client in clients] == [from_afar(windows)] * 2
            ends = sorted({window.end for window in windows})
            for start, end in ((ends[0], None), (None, ends[0]), (ends[0] - 10 * MINUTE_US, ends[-1])):
                some = view.between(key, start, end)
                if key == keys[0] and end is not None:
                    assert [client.between(key, start, end) for client in clients] == [from_afar(some)] * 2
                assert some == {
                    window: value
                    for window, value in windows.items()
                    if (start is None or window.start >= start) and (end is None or window.end <= end)
                }
        frame = view.to_polars()
        assert len(frame) == sum(len(view.windows(key)) for key in keys)

    def http(self, path: str) -> Any:
        return fetch(self.served.url, self.path(path)).json

    def path(self, path: str) -> str:
        at = "" if self.at is None else f"{'&' if '?' in path else '?'}at={self.at}"
        return f"/v1/jobs/app/state/{path}{at}"


def same(view: Any, expected: dict[Any, Any]) -> bool:
    """Whether a mapping gives these keys and values, by every question that a mapping can be asked."""
    keys = list(expected)
    assert view.get_many([*keys, *keys[:2]]) == [expected[key] for key in [*keys, *keys[:2]]]
    assert [view[key] for key in keys] == list(expected.values())
    assert all(key in view for key in keys)
    assert sorted(view, key=repr) == sorted(keys, key=repr)
    assert len(view) == len(expected)
    assert in_order(view.scan()) == in_order(expected.items())
    for prefix in ("a", "7", "[", '"', "n"):
        assert in_order(view.scan(prefix)) == in_order(
            (key, value) for key, value in expected.items() if written(key).startswith(prefix)
        )
    return True


def same_from_afar(view: Any, expected: dict[Any, Any]) -> bool:
    """The same in few requests, because each takes its time."""
    assert view.get_many(list(expected)) == list(expected.values())
    assert in_order(view.scan()) == in_order(expected.items())
    assert len(view) == len(expected)
    return True


def from_afar(value: Any) -> Any:
    """A value as it comes over a wire that has no decimals, without its type."""
    if isinstance(value, dict):
        return {key: from_afar(each) for key, each in value.items()}
    if isinstance(value, list):
        return [from_afar(each) for each in value]
    return str(value) if isinstance(value, Decimal) else value


def as_sql(value: Any) -> Any:
    """A cell as a table of SQL and a DataFrame both have it: times as numbers, whatever has no columns as JSON text.

    Inside of a cell only a table, which knows types, says fields that are left out: null and false, of partial matches.
    """
    if isinstance(value, datetime):
        return int(hr.timestamp(value))
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return as_sql(json.loads(value))
        except ValueError:
            return value
    if isinstance(value, dict):
        return [as_sql(each) for each in value.values() if each is not None and each is not False]
    if isinstance(value, list | tuple):
        return [as_sql(each) for each in value]
    if isinstance(value, str):
        try:
            return Decimal(value).normalize()
        except ArithmeticError:
            return value
    return value.normalize() if isinstance(value, Decimal) else value


def in_order(pairs: Iterable[Any]) -> list[Any]:
    return sorted(pairs, key=repr)


def plain(answer: Any, like: Any) -> Any:
    """What a harness gives, without its type."""
    if isinstance(answer, list):
        return [plain(*pair) for pair in zip(answer, like)]
    if isinstance(answer, dict):
        return {name: plain(each, like[name]) for name, each in answer.items()}
    if isinstance(answer, tuple) and isinstance(like, list):
        return [plain(*pair) for pair in zip(answer, like)]
    if isinstance(answer, msgspec.Struct):
        return {name: plain(getattr(answer, name), like[name]) for name in like}
    return answer


def written(key: Any) -> str:
    """A key as people write it."""
    if not isinstance(key, str):
        return json.dumps(in_json(key))
    return f'"{key}"' if key.strip('"') == "null" and len(key) % 2 == 0 else key


def in_json(key: Any) -> Any:
    """A key in a document of JSON."""
    if isinstance(key, tuple):
        return [in_json(part) for part in key]
    if isinstance(key, Decimal):
        return str(key)
    if isinstance(key, datetime):
        return format_time(hr.timestamp(key))
    if isinstance(key, int) and key > NO_COUNT:
        return format_time(key)
    return base64.b64encode(key).decode() if isinstance(key, bytes) else key


def name_of(name: Any) -> str:
    """The name of an entry in JSON."""
    plain_name = in_json(name)
    return plain_name if isinstance(plain_name, str) else json.dumps(plain_name)


def shown(value: Any) -> Any:
    """A value in JSON."""
    if isinstance(value, dict):
        return {name_of(name): shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    return in_json(value)
