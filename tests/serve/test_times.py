"""Times are ISO text wherever people read, and numbers of microseconds where programs ask for them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import msgspec
import pytest
import redis

import headrace as hr
from headrace.model.time import format_time
from headrace.model.time_shape import TimeShape, time_writer
from headrace.plan import compile as compiling
from headrace.plan.state_times import times_of
from headrace.testing import Harness
from tests.cli.calling import call_json
from tests.serve.served import Served
from tests.serve.test_http_events import Listener as Events
from tests.serve.test_resp_messages import listen, messages
from tests.serve.tweets import fetch

NOON = "2024-01-01T12:00:00Z"
NOON_US = 1_704_110_400_000_000
LATER = "2024-01-01T12:00:00.000007Z"


class Place(hr.Record):
    since: hr.Timestamp
    n: int


class Visit(hr.Record):
    user: str
    at: hr.Timestamp
    seen: datetime
    places: list[Place]
    left: hr.Timestamp | None = None


class Diary(hr.Process[Visit, Visit, Any]):
    last: hr.ValueState[Visit]
    entries: hr.MapState[hr.Timestamp, Place]
    times: hr.ListState[hr.Timestamp]
    remind: hr.Timers

    def on_event(self, event: Visit, ctx: hr.Context[Any]) -> Iterator[Visit]:
        self.last.set(event)
        self.entries[event.at] = event.places[0]
        self.times.append(event.at)
        self.remind.add(event.at + hr.hours(1))
        yield from ()

    def on_timer(self, timer: Any, ctx: hr.Context[Any]) -> Iterator[Visit]:
        yield from ()


def program() -> tuple[hr.App, Any]:
    app = hr.App("app")
    visits = app.read("visits", hr.source.items([]), Visit, time=Visit.at)
    visits.key_by(Visit.user).process(Diary()).named("diary").queryable()
    visits.key_by(Visit.at).latest().named("by_time").queryable()
    visits.key_by(Visit.user, Visit.at).aggregate(rows=hr.count(), newest=hr.max("at")).named("pairs").queryable()
    hourly = visits.key_by(Visit.user).window(hr.tumbling("1h")).aggregate(first=hr.min("at"), all=hr.collect("at"))
    hourly.named("hourly").queryable()
    return app, visits


def push(h: Harness, visits: Any) -> None:
    noon = hr.Timestamp(NOON_US)
    h.push(visits, Visit("a", noon, datetime(2024, 1, 1, 12, tzinfo=UTC), [Place(noon + hr.Duration(7), 5)]))
    h.epoch(watermark="12:00")


def fill(path: Path) -> None:
    app, visits = program()
    with Harness(app, start="2024-01-01T12:00", store=path) as h:
        push(h, visits)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("times") / "store"
    fill(path)
    return path


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Served]:
    with Served(store) as server:
        server.wait_for(0)
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with redis.Redis(port=served.port, decode_responses=True) as connected:
        yield connected


PLACE = {"since": LATER, "n": 5}
PLACE_US = {"since": NOON_US + 7, "n": 5}
VISIT = {"user": "a", "at": NOON, "seen": NOON, "places": [PLACE], "left": None}
VISIT_US = {"user": "a", "at": NOON_US, "seen": NOON_US, "places": [PLACE_US], "left": None}
HOUR = {"user": "a", "window_start": NOON, "window_end": "2024-01-01T13:00:00Z", "first": NOON, "all": [NOON]}
HOUR_US = {
    "user": "a", "window_start": NOON_US, "window_end": NOON_US + 3_600_000_000, "first": NOON_US, "all": [NOON_US],
}  # fmt: skip
ANSWERS = {
    "diary.last/a": (VISIT, VISIT_US),
    "diary.entries/a": ({NOON: PLACE}, {str(NOON_US): PLACE_US}),
    "diary.times/a": ([NOON], [NOON_US]),
    "diary.remind/a": (["2024-01-01T13:00:00Z"], [NOON_US + 3_600_000_000]),
    f"by_time/{NOON}": (VISIT, VISIT_US),
    f'pairs/["a","{NOON}"]': (
        {"user": "a", "at": NOON, "rows": 1, "newest": NOON},
        {"user": "a", "at": NOON_US, "rows": 1, "newest": NOON_US},
    ),
    "hourly/a": (HOUR, HOUR_US),
}


def test_http_answers_with_text_and_with_numbers_where_they_are_asked_for(served: Served) -> None:
    for path, (text, numbers) in ANSWERS.items():
        state, _, key = path.partition("/")
        url = f"/v1/jobs/app/state/{state}/{quote(key, safe='')}"
        assert fetch(served.url, url).json == text
        assert fetch(served.url, f"{url}?times=us").json == numbers
    refused = fetch(served.url, "/v1/jobs/app/state/hourly/a?times=ms")
    assert (refused.status, refused.json["error"]["expected"]) == (400, "iso or us")


def test_windows_pages_and_lists_of_keys_write_all_their_times_in_one_way(served: Served) -> None:
    for times, hour, visit, key in (("iso", HOUR, VISIT, NOON), ("us", HOUR_US, VISIT_US, NOON_US)):
        window = {"start": hour["window_start"], "end": hour["window_end"], "value": hour}
        base = "/v1/jobs/app/state"
        assert fetch(served.url, f"{base}/hourly/a/windows?times={times}").json == [window]
        between = f"{base}/hourly/a/windows?times={times}&from={NOON}&to={NOON_US + 3_600_000_000}"
        assert fetch(served.url, between).json["windows"] == [window]
        page = fetch(served.url, f"{base}/by_time?limit=5&times={times}").json
        assert page["entries"] == [{"key": key, "value": visit}]
        many = fetch(served.url, f"{base}/by_time/get?times={times}", "POST", {"keys": [NOON, NOON_US]}).json
        assert many["values"] == [visit, visit]
        assert fetch(served.url, f"{base}/by_time?prefix=2024-01-01T12&times={times}").json["entries"]
        told = fetch(served.url, f"{base}/diary.entries?format=ndjson&times={times}").json
        assert told == {"key": "a", "entry": key, "value": PLACE if times == "iso" else PLACE_US}
        assert fetch(served.url, f"{base}/hourly?format=json&times={times}").json == [hour]
        rows = fetch(served.url, f"{base}/diary.last?format=csv&times={times}").body.decode()
        [row] = csv.DictReader(io.StringIO(rows))
        assert [row["at"], row["seen"], json.loads(row["places"])] == [*map(str, (key, key)), visit["places"]]
        rows = fetch(served.url, f"{base}/hourly?format=csv&times={times}").body.decode()
        [row] = csv.DictReader(io.StringIO(rows))
        assert [row["window_start"], row["first"]] == [str(key), str(key)]


def test_redis_answers_with_text_and_takes_keys_that_are_times_in_both_ways(client: Any) -> None:
    assert json.loads(client.get("diary.last:a")) == VISIT
    assert {name: json.loads(value) for name, value in client.hgetall("diary.last:a").items()} == VISIT
    assert json.loads(client.hget("diary.last:a", "places")) == [PLACE]
    assert {name: json.loads(value) for name, value in client.hgetall("diary.entries:a").items()} == {NOON: PLACE}
    assert [json.loads(client.hget("diary.entries:a", name)) for name in (NOON, str(NOON_US))] == [PLACE, PLACE]
    assert client.lrange("diary.times:a", 0, -1) == [f'"{NOON}"']
    assert client.lindex("diary.remind:a", 0) == '"2024-01-01T13:00:00Z"'
    assert list(client.scan_iter("by_time:*")) == [f'by_time:"{NOON}"']
    for key in (f'"{NOON}"', NOON, NOON_US, "2024-01-01T13:00:00+01:00"):
        assert json.loads(client.get(f"by_time:{key}")) == VISIT
    assert client.exists(f'pairs:["a", "{NOON}"]', f'pairs:["a", {NOON_US}]') == 2
    assert [json.loads(value) for value in client.hgetall("hourly:a").values()] == [HOUR]
    [(_, fields)] = client.xrange("hourly:a")
    assert {name: json.loads(value) for name, value in fields.items()} == HOUR
    assert client.execute_command("HEADRACE.WINDOWS", "hourly", b"sa")[6][:2] == [NOON, "2024-01-01T13:00:00Z"]


def test_messagepack_has_numbers(served: Served) -> None:
    with redis.Redis(port=served.port, db=1) as packed:
        assert msgspec.msgpack.decode(packed.get("hourly:a")) == HOUR_US
        assert packed.hkeys("diary.entries:a") == [str(NOON_US).encode()]


def test_changes_are_told_in_the_same_way(tmp_path: Path) -> None:
    app, visits = program()
    with Harness(app, start="2024-01-01T12:00", store=tmp_path / "store") as h:
        push(h, visits)
        with Served(h.store) as served:
            served.wait_for(0)
            changes = "/v1/jobs/app/changes?state=by_time"
            with (
                Events(served, f"{changes}&key={NOON_US}") as by_key,
                Events(served, f"{changes}&times=us") as numbers,
            ):
                assert (data := by_key.next()[1])["key"] == NOON and data["value"] == VISIT
                assert by_key.next() == ("epoch", {"epoch": 0, "watermark": NOON})
                assert numbers.next() == ("epoch", {"epoch": 0, "watermark": NOON_US})
                names = f"by_time:{NOON}", f"by_time:{NOON_US}", "by_time"
                listener = listen(served, 3, *names)
                push(h, visits)
                told = {channel: value for _, channel, value in messages(listener, 3)}
                assert told == {
                    names[0]: VISIT, names[1]: VISIT, names[2]: {"key": f'"{NOON}"', "value": VISIT, "epoch": 1},
                }  # fmt: skip
                listener.close()
                assert (data := numbers.next()[1])["key"] == NOON_US and data["value"] == VISIT_US


def test_the_command_shows_text(store: Path) -> None:
    def told(*words: str) -> Any:
        return call_json("state", store, *words)

    assert told("diary.last", "a")["value"] == VISIT
    assert told("diary.entries", "a")["value"] == {NOON: PLACE}
    assert told("diary.remind", "a")["value"] == ["2024-01-01T13:00:00Z"]
    assert told("hourly")["entries"] == [{"key": "a", "value": HOUR}]
    for key in (NOON, str(NOON_US)):
        assert (told("by_time", key)["key"], told("by_time", key)["value"]) == (NOON, VISIT)


def test_typed_reads_are_exact_by_every_way(served: Served, store: Path) -> None:
    noon = hr.Timestamp(NOON_US)
    visit = Visit("a", noon, datetime(2024, 1, 1, 12, tzinfo=UTC), [Place(hr.Timestamp(NOON_US + 7), 5)])
    views: list[Any] = [hr.Store(store)]
    with hr.Client(served.redis_url) as one, hr.Client(served.url) as other:
        for source in (*views, one, other):
            assert source.state("diary.last", Visit)["a"] == visit
            assert source.state("by_time", Visit)[noon] == visit
            assert list(source.state("by_time", Visit).scan("2024-01")) == [(noon, visit)]
            assert source.state("diary.entries", dict[hr.Timestamp, Place])["a"] == {noon: visit.places[0]}
            assert source.state("diary.times", list[hr.Timestamp])["a"] == [noon]
            assert source.state("hourly")["a"] == HOUR_US
        watching = one.state("by_time", Visit).watch(noon)
        assert next(iter(watching)) == visit
        watching.close()  # type: ignore[attr-defined]


def test_a_store_without_the_description_is_read_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "step_times", lambda node, names: {})
    fill(tmp_path / "store")
    with Served(tmp_path / "store") as served:
        served.wait_for(0)
        with redis.Redis(port=served.port, decode_responses=True) as client:
            visit = json.loads(client.get("diary.last:a"))
            assert visit == {**VISIT_US, "seen": NOON}
            assert list(client.scan_iter("by_time:*")) == [f"by_time:{NOON_US}"]
            assert client.hkeys("diary.entries:a") == [str(NOON_US)]
            # What a window is, and when a timer is due, everybody knows without.
            assert json.loads(client.get("hourly:a"))["window_start"] == NOON
            assert client.lindex("diary.remind:a", 0) == '"2024-01-01T13:00:00Z"'


class Node(hr.Record):
    at: hr.Timestamp
    inner: list[Node]


class Span(TypedDict):
    began: hr.Timestamp
    n: int


class Begun(hr.Record, tag="begun"):
    at: hr.Timestamp


class Counted(hr.Record, tag="counted"):
    at: int


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 7, 7),
        (hr.Duration, 7, 7),
        (hr.Timestamp | None, None, None),
        (hr.Timestamp | None, NOON_US, NOON),
        (hr.Timestamp | int, NOON_US, NOON_US),
        (hr.Timestamp | str, "2024", "2024"),
        (datetime, "2024-01-01T12:00:00", NOON),
        (tuple[int, hr.Timestamp], [7, NOON_US], [7, NOON]),
        (tuple[hr.Timestamp, ...], [NOON_US, NOON_US], [NOON, NOON]),
        (dict[str, list[hr.Timestamp]], {"a": [NOON_US]}, {"a": [NOON]}),
        (
            Node,
            {"at": NOON_US, "inner": [{"at": NOON_US, "inner": []}]},
            {"at": NOON, "inner": [{"at": NOON, "inner": []}]},
        ),
        (list[Span], [{"began": NOON_US, "n": 7}], [{"began": NOON, "n": 7}]),
        (Begun | Counted, {"type": "begun", "at": NOON_US}, {"type": "begun", "at": NOON}),
        (Begun | Counted, {"type": "counted", "at": NOON_US}, {"type": "counted", "at": NOON_US}),
    ],
)
def test_what_is_a_time_is_told_by_the_annotation(annotation: Any, value: Any, expected: Any) -> None:
    shape = times_of(annotation)
    if shape is not None:
        assert msgspec.json.decode(msgspec.json.encode(shape), type=TimeShape) == shape
    replace = time_writer(shape, format_time)
    assert (value if replace is None else replace(value)) == expected
