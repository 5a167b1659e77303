"""One state of one epoch: keys as people write them, values as JSON and MessagePack, pages, parts and windows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.model.job import DeclaredState
from headrace.read.follow import Follower
from headrace.read.forms import PACKED, encode
from headrace.read.paging import EXACT_ROWS
from headrace.read.patterns import Pattern
from headrace.read.reader import Reader
from headrace.read.store import Store
from headrace.testing import Harness
from tests.effort import examples
from tests.serve.made_store import SECOND_US, START_US, MadeStore, lists, maps, timers, values

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    return MadeStore(store_path)


def open_state(made: MadeStore | Harness, address: str) -> Reader:
    path = made.path if isinstance(made, MadeStore) else made.store
    snapshot = Follower(Store(path)).look()
    assert snapshot is not None
    table = snapshot.table(address)
    assert table is not None
    return table


# --- keys


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("tweet-42", "tweet-42"),
        ("", ""),
        ("a:b c/ü\n", "a:b c/ü\n"),
        ('"quoted"', '"quoted"'),
        (42, "42"),
        (-(2**63), "-9223372036854775808"),
        (True, "true"),
        (1.5, "1.5"),
        (("mill", 3), '["mill", 3]'),
        (("mill", None), '["mill", null]'),
        (date(2024, 1, 2), '"2024-01-02"'),
        (b"\x00\xff", '"AP8="'),
        (UUID("12345678-1234-5678-1234-567812345678"), "12345678-1234-5678-1234-567812345678"),
    ],
)
def test_a_key_is_found_by_the_text_that_people_write(made: MadeStore, key: Any, text: str) -> None:
    made.epoch({"count": [values("views", [(key, 7)])]})
    table = open_state(made, "count.views")
    assert table.get(table.key(text)) == b"7"
    [found] = table.page(0, 10).keys
    assert table.text(found) == text


def test_what_cannot_be_a_key_is_told_so(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [(1, 1)])]})
    table = open_state(made, "count.views")
    with pytest.raises(ValueError, match="no key of count.views"):
        table.key("abc")
    with pytest.raises(ValueError):
        table.key_of(b"\xff")


# --- values


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 2**63, 1.5, True, "text", "", [1, [2]], {"a": {"b": None}}, {1: 2}, {"x": 1.0}, b"\x00",
        datetime(2024, 1, 1, tzinfo=UTC), [],
    ],
)  # fmt: skip
def test_a_value_comes_as_json_and_as_it_is_stored(made: MadeStore, value: Any) -> None:
    made.epoch({"count": [values("views", [("a", value)])]})
    table = open_state(made, "count.views")
    key = table.key("a")
    assert table.get(key) == msgspec.json.encode(value)
    assert msgspec.msgpack.decode(table.get(key, PACKED) or b"") == value
    assert table.get_many([key, b"sb", key]) == [msgspec.json.encode(value), None, msgspec.json.encode(value)]


def test_names_that_are_no_text_are_keys_in_json(made: MadeStore) -> None:
    assert encode({(1, "a"): {None: [{(2,): 3}]}}, "json") == b'{"[1, \\"a\\"]":{"null":[{"[2]":3}]}}'


def test_many_keys_at_once_are_the_same_as_one_by_one(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [(f"k{i}", i, None if i % 3 else START_US) for i in range(200)])]})
    made.epoch({"count": [values("views", [(f"k{i}", None if i % 2 else i * 10) for i in range(50)])]})
    table = open_state(made, "count.views")
    keys = [table.key(f"k{i}") for i in range(210)] * 2
    one_by_one = [table.get(key) for key in keys]
    assert table.get_many(keys) == one_by_one
    # So many that some are looked up in bulk, and the last of them one by one.
    assert table.get_many(keys * 5) == list(table.each_of(keys * 5)) == one_by_one * 5
    assert [table.has(key) for key in keys] == [table.get(key) is not None for key in keys]


def test_expired_values_are_not_there_and_others_tell_when_they_end(made: MadeStore) -> None:
    rows = [("over", 1, START_US), ("soon", 2, START_US + SECOND_US), ("forever", 3)]
    made.epoch({"count": [values("views", rows)]}, states={"count": {"views": DeclaredState("value", "wall")}})
    table = open_state(made, "count.views")
    assert [table.get(table.key(key)) for key in ("over", "soon", "forever")] == [None, b"2", b"3"]
    assert [table.expires_us(table.key(key)) for key in ("soon", "forever")] == [START_US + SECOND_US, None]
    assert not table.stable
    assert (table.now_us, table.count(), len(table.page(0, 10).keys)) == (START_US, 2, 2)


# --- parts


def test_entries_fields_and_elements(made: MadeStore) -> None:
    made.epoch(
        {
            "fraud": [
                maps("shops", [("c", "baker", 2), ("c", "bank", {"n": 1})]),
                maps("sizes", [("c", 7, 1), ("c", 8, 2)]),
                lists("recent", [("c", 1, "x"), ("c", 2, "y")]),
                timers("checks", [("c", START_US)]),
                values("row", [("c", {"card": "c", "n": 3}), ("d", 5)]),
            ]
        }
    )
    tables = {name: open_state(made, f"fraud.{name}") for name in ("shops", "sizes", "recent", "checks", "row")}
    key = tables["shops"].key("c")
    assert tables["shops"].fields(key) == {"baker": 2, "bank": {"n": 1}}
    assert [tables["shops"].field(key, name) for name in ("baker", "none")] == [2, None]
    assert tables["sizes"].fields(key) == {"7": 1, "8": 2}
    assert [tables["sizes"].field(key, name) for name in ("7", "9", "x")] == [1, None, None]
    assert tables["recent"].elements(key) == ["x", "y"]
    assert tables["checks"].elements(key) == [START_US]
    assert tables["row"].fields(key) == {"card": "c", "n": 3}
    assert [table.has(tables["row"].key("none")) for table in tables.values()] == [False] * 5
    with pytest.raises(TypeError):
        tables["row"].fields(tables["row"].key("d"))
    with pytest.raises(TypeError):
        tables["row"].elements(key)
    assert tables["shops"].get(key) == b'{"baker":2,"bank":{"n":1}}'


# --- pages


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_pages_give_every_key_once(made: MadeStore, count: int) -> None:
    made.epoch({"count": [values("views", [(f"k{i}", i) for i in range(3000)])]})
    made.epoch({"count": [values("views", [(f"k{i}", None) for i in range(100)])]})
    table = open_state(made, "count.views")
    keys: list[bytes] = []
    at: int | None = 0
    while at is not None:
        page = table.page(at, count)
        keys += page.keys
        at = page.next_hash
    assert sorted(map(table.text, keys)) == sorted(f"k{i}" for i in range(100, 3000))
    assert table.estimate() == table.count() == 2900


def test_a_page_holds_about_as_many_keys_as_asked_for(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [(f"k{i}", i) for i in range(20_000)])]})
    page = open_state(made, "count.views").page(0, 100)
    assert 100 <= len(page.keys) < 400


def test_entries_of_one_key_are_one_key_of_a_page(made: MadeStore) -> None:
    made.epoch({"fraud": [maps("shops", [(f"c{i}", j, 1) for i in range(300) for j in range(20)])]})
    table = open_state(made, "fraud.shops")
    assert sorted(map(table.text, table.page(0, 10**6).keys)) == sorted(f"c{i}" for i in range(300))


def test_a_page_gives_what_matches(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("user-1", 1), ("user-2", 2), ("bot-1", 3)])]})
    table = open_state(made, "count.views")
    assert sorted(map(table.text, table.page(0, 10, Pattern("user-*")).keys)) == ["user-1", "user-2"]


def test_the_number_of_keys_of_a_large_state_is_told_from_a_sample(made: MadeStore) -> None:
    count = EXACT_ROWS + 50_000
    made.epoch({"count": [values("views", [(i, i) for i in range(count)])]})
    assert open_state(made, "count.views").estimate() == pytest.approx(count, rel=0.1)


# --- windows of single keys


class View(hr.Record):
    tweet: str
    at: hr.Timestamp
    n: int | None = 1
    x: float = 0.0
    who: str = ""


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(0, 59), st.integers(0, 59), st.one_of(st.none(), st.integers(-5, 5)),
        st.sampled_from([0.0, -1.5, 2.5, float("nan")]), st.sampled_from(["", "u", "v"]),
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    epochs=st.lists(ROWS, min_size=1, max_size=4),
    kind=st.sampled_from(["tumbling", "sliding", "cumulating"]),
    discard=st.booleans(),
)
def test_windows_of_one_key_are_those_that_the_whole_view_shows(
    epochs: list[Any], kind: str, discard: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    window = {
        "tumbling": hr.tumbling("10m"),
        "sliding": hr.sliding("20m", every="5m"),
        "cumulating": hr.cumulating("30m", every="10m"),
    }[kind]
    app = hr.App("tweets")
    read = app.read("views", hr.source.items([]), View, time=View.at)
    panes = "discard" if discard else "accumulate"
    step = (
        read.key_by(View.tweet)
        .window(window, fire=hr.early("1m") if discard else None, panes=panes, allow_late="15m")
        .aggregate(
            n=hr.sum("n"), mean=hr.avg("n"), low=hr.min("x"), high=hr.max("x"), some=hr.count(where="n > 0"),
            first=hr.first("who"), last=hr.last("who"), best=hr.max("who", by="n"), least=hr.min("who"),
        )
        .named("counts")
        .queryable()
    )  # fmt: skip
    with Harness(app, start="2024-01-01T12:00", store=tmp_path_factory.mktemp("windows") / "store") as h:
        for number, rows in enumerate(epochs):
            h.push(read, *(View(k, h.at(f"12:{m:02}:{s:02}"), n, x, who) for k, m, s, n, x, who in rows))
            h.epoch(watermark=f"12:{number * 15:02}")
            if number == 1:
                h.maintain()
        if not any(epochs):
            return
        view: Any = Store(h.store).state("counts")
        table = open_state(h, "counts")
        for name in "abcd":
            key = table.key(name)
            assert repr(table.value(key)) == repr(view.get(name))
            assert repr(table.windows(key)) == repr(view.windows(name))  # type: ignore[attr-defined]
        assert step is not None


def test_windows_are_fields_by_their_ends_and_the_value_is_the_newest(store_path: Path) -> None:
    app = hr.App("tweets")
    read = app.read("views", hr.source.items([]), View, time=View.at)
    hourly = read.key_by(View.tweet).window(hr.tumbling("1h"), allow_late="5h").aggregate(n=hr.sum("n")).named("hourly")
    hourly.queryable()
    with Harness(app, start="2024-01-01T12:00", store=store_path) as h:
        h.push(read, View("a", h.at("12:10"), 3), View("a", h.at("13:10"), 4))
        h.epoch(watermark="12:30")
        table = open_state(h, "hourly")
        key = table.key("a")
        assert table.kind == "windows"
        fields = table.fields(key)
        assert fields is not None
        assert list(fields) == [
            "2024-01-01T12:00:00Z/2024-01-01T13:00:00Z",
            "2024-01-01T13:00:00Z/2024-01-01T14:00:00Z",
        ]
        assert [value["n"] for value in fields.values()] == [3, 4]
        assert table.value(key)["n"] == 4
        [piece] = table.pieces()
        assert sorted(piece) == ["n", "pane", "tweet", "window_end", "window_start"]
        assert table.fields(table.key("none")) is None
