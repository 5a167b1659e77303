"""Walks over all keys: no page costs more than its share, however many keys are dead and however large values are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.net.access import Limits
from headrace.read.follow import Follower
from headrace.read.paging import MOST_ROWS, Page
from headrace.read.reader import Reader
from headrace.read.store import Store
from tests.serve.made_store import START_US, MadeStore, Row, maps, values
from tests.serve.served import Served
from tests.serve.tweets import fetch

KEYS = 12_000
LEFT = [f"k{i}" for i in range(0, KEYS, 1000)]


@pytest.fixture(scope="module")
def mostly_dead(tmp_path_factory: pytest.TempPathFactory) -> MadeStore:
    """A state of which one key in a thousand is left, and one of which none is."""
    made = MadeStore(tmp_path_factory.mktemp("paging") / "store")
    names = [f"k{i}" for i in range(KEYS)]
    gone = [name for name in names if name not in LEFT]
    views: list[Row] = [(name, 1) for name in names]
    none: list[Row] = [(name, "x", 1) for name in names]
    brief: list[Row] = [(name, 1) if name in LEFT else (name, 1, START_US + 1) for name in names]
    made.epoch({"count": [values("views", views), maps("none", none)], "brief": [values("value", brief)]})
    views, none = [(name, None) for name in gone], [(name, None, None) for name in names]
    made.epoch(
        {"count": [values("views", views), maps("none", none)]}, clock_us=START_US + 2, watermark_us=START_US + 2
    )
    return made


@pytest.fixture(scope="module")
def served(mostly_dead: MadeStore) -> Iterator[Served]:
    with Served(mostly_dead.path) as server:
        server.wait_for(1)
        yield server


def pages_of(table: Reader, count: int) -> Iterator[Page]:
    at: int | None = 0
    while at is not None:
        page = table.page(at, count)
        yield page
        at = page.next_hash


# --- keys that are dead


@pytest.mark.parametrize("address", ["count.views", "brief"])
@pytest.mark.parametrize("count", [1, 5, 1000])
def test_a_walk_over_dead_keys_takes_few_steps_and_gives_the_living_once(
    mostly_dead: MadeStore, address: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Follower(Store(mostly_dead.path)).look()
    table = None if snapshot is None else snapshot.table(address)
    assert table is not None
    steps = 0
    keys_of = table._walk.keys

    def counted(low: int, high: int) -> list[bytes]:
        nonlocal steps
        steps += 1
        return keys_of(low, high)

    monkeypatch.setattr(table._walk, "keys", counted)
    pages = list(pages_of(table, count))
    assert sorted(table.text(key) for page in pages for key in page.keys) == sorted(LEFT)
    # A step for each row, or a few of them, is what makes a server stand still.
    assert steps <= 16 * len(pages) and len(pages) <= len(LEFT) + 3
    assert all(len(page.keys) <= count and page.looked_at <= 2 * MOST_ROWS for page in pages)


def test_one_scan_looks_at_a_bounded_number_of_rows_and_may_find_nothing(served: Served) -> None:
    with redis.Redis(port=served.port, decode_responses=True) as client:
        cursor, found = client.scan(0, match="count.none:*")
        assert cursor and not found
        assert list(client.scan_iter(match="count.none:*")) == client.keys("count.none:*") == []
        for count in (1, 10, 10_000):
            found = list(client.scan_iter(count=count))
            assert sorted(found) == sorted(f"{state}:{key}" for state in ("count.views", "brief") for key in LEFT)


def test_others_have_their_turn_while_a_client_scans_over_and_over(served: Served) -> None:
    most = 0

    async def look() -> None:
        """Has its turn whenever others have."""
        nonlocal most
        while (before := served.resp.total_commands) < wanted:
            await asyncio.sleep(0)
            most = max(most, served.resp.total_commands - before)

    with redis.Redis(port=served.port, socket_timeout=90) as client:
        client.ping()
        wanted = served.resp.total_commands + 300
        looking = asyncio.run_coroutine_threadsafe(look(), served.loop)
        with client.pipeline(transaction=False) as pipeline:
            for number in range(300):
                pipeline.scan(0, match="count.none:*").echo(number)
            told = pipeline.execute()
        looking.result(90)
        assert told[1::2] == [b"%d" % number for number in range(300)]
    assert 0 < most < 200


@pytest.mark.parametrize("protocol", ["redis", "http"])
def test_a_client_goes_on_over_empty_pages(served: Served, protocol: str) -> None:
    with hr.Client(served.redis_url if protocol == "redis" else served.url) as client:
        assert sorted(client.state("count.views").scan()) == sorted((key, 1) for key in LEFT)
        assert list(client.state("count.views").scan(prefix="k11")) == [("k11000", 1)]
        assert list(client.state("count.none").scan()) == []


def test_a_page_of_http_says_where_to_go_on_if_all_that_it_looked_at_was_dead(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.serve.http.reading.SCAN_ROWS", 1)
    state = "/v1/jobs/tweets/state/count.none"
    page = fetch(served.url, f"{state}?limit=1").json
    assert page["entries"] == [] and page["next"] is not None
    pages = 1
    while page["next"] is not None:
        page = fetch(served.url, f"{state}?limit=1&after={page['next']}").json
        pages += 1
    assert page["entries"] == [] and pages < 10


# --- values that are large


def walked(read: Any) -> list[list[int]]:
    """Lengths of the values of each page."""
    pages = []
    after: Any = 0
    while after is not None:
        lengths, after = read(after)
        pages.append(lengths)
    return pages


def test_pages_end_before_their_values_are_more_than_a_reply_may_hold(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [(f"k{i}", "x" * 3000) for i in range(40)])]})
    made.epoch({"large": [values("value", [("long", "x" * 20_000), *((f"k{i}", "x") for i in range(9))])]})
    with Served(made.path, limits=Limits(reply_bytes=10_000)) as served, redis.Redis(port=served.port) as client:
        served.wait_for(1)

        def over_redis(after: int) -> tuple[list[int], int | None]:
            *_, (following, *told) = client.execute_command("HEADRACE.PAGE", "count.views", "", after, 100)
            return list(map(len, told[1::2])), None if following == b"-1" else int(following)

        def over_http(after: Any, state: str = "count.views") -> tuple[list[int], str | None]:
            page = fetch(served.url, f"/v1/jobs/tweets/state/{state}?limit=100&after={after}").json
            return [len(entry["value"]) for entry in page["entries"]], page["next"]

        assert walked(over_redis) == [[3002] * 3] * 13 + [[3002]]
        assert walked(over_http) == [[3000] * 3] * 13 + [[3000]]
        # What is too large by itself is refused, as GET refuses it; over HTTP it is a page of its own.
        pages = walked(lambda after: over_http(after, "large"))
        assert [20_000] in pages and sorted(length for page in pages for length in page) == [1] * 9 + [20_000]
        with pytest.raises(redis.ResponseError, match="a reply may have 10000 bytes"):
            after = 0
            while after >= 0:
                after = int(client.execute_command("HEADRACE.PAGE", "large", "", after, 100)[-1][0])
