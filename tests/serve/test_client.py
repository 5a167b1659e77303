"""`hr.Client`: the same over both protocols, typed as a store's views are, from any of several servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.client.client import parse_servers
from headrace.errors import Forbidden, ProgramError, StoreError, Unreachable
from headrace.model.ids import MAX_TIME
from headrace.model.window import Window
from headrace.net.access import add_user
from tests.serve.certificates import make_server_tls
from tests.serve.made_store import MadeStore, maps, values
from tests.serve.served import Served
from tests.serve.tweets import Hourly, Totals, Tweets, View

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")
both = pytest.mark.parametrize("protocol", ["redis", "http"])


def url_of(served: Served, protocol: str) -> str:
    return served.redis_url if protocol == "redis" else served.url


@pytest.fixture(scope="module")
def tweets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tweets]:
    with Tweets(tmp_path_factory.mktemp("client") / "store") as running:
        running.push(("a", "12:01", 1), ("b", "12:02", 2))
        running.push(("a", "12:10", 5), ("a", "13:10", 7), watermark="13:05")
        yield running


@pytest.fixture(scope="module")
def served(tweets: Tweets) -> Iterator[Served]:
    with Served(tweets.path) as server:
        server.wait_for(1)
        yield server


@pytest.fixture(params=["redis", "http"])
def client(served: Served, request: pytest.FixtureRequest) -> Iterator[hr.Client]:
    with hr.Client(url_of(served, request.param)) as made:
        yield made


# --- the same views as a store's


def test_values_have_the_type_that_was_asked_for(client: hr.Client, tweets: Tweets) -> None:
    store = hr.Store(tweets.path)
    assert client.state("watch.seen", int)["a"] == 3
    assert client.state("totals", Totals)["a"] == Totals("a", 3, 13 / 3)
    assert client.state("last", View)["b"] == store.state("last", View)["b"]
    assert client.state("watch.sizes", dict[int, int])["a"] == {1: 1, 5: 1, 7: 1}
    assert client.state("watch.recent", list[int])["a"] == [1, 5, 7]
    assert client.state("watch.raw", bytes)["a"] == b"\x00\xff"
    assert client.state("hourly", Hourly)["a"] == store.state("hourly", Hourly)["a"]
    assert client.state("by_pair")["a", 5] == {"tweet": "a", "n": 5, "views": 1}


def test_a_view_is_a_mapping_like_a_stores(client: hr.Client, tweets: Tweets) -> None:
    remote, local = client.state("watch.seen", int), hr.Store(tweets.path).state("watch.seen", int)
    assert dict(remote) == dict(local)
    assert (len(remote), sorted(remote), "a" in remote, "x" in remote) == (2, ["a", "b"], True, False)
    assert (remote.get("x"), remote.get("x", 7)) == (None, 7)
    assert remote.get_many(["b", "x", "a", "b"]) == [1, None, 3, 1]
    assert remote.get_many([]) == []
    assert dict(remote.scan(prefix="b")) == {"b": 1}
    assert (remote.kind, remote.address, remote.epoch) == ("value", "watch.seen", 1)
    with pytest.raises(KeyError, match="'x'"):
        remote["x"]


def test_windows_of_a_key_are_given_by_their_ends(client: hr.Client, tweets: Tweets) -> None:
    windows = client.state("hourly", Hourly).windows("a")
    assert windows == hr.Store(tweets.path).state("hourly", Hourly).windows("a")
    assert next(iter(windows)) == Window(hr.timestamp("2024-01-01T12:00"), hr.timestamp("2024-01-01T13:00"))
    with pytest.raises(ProgramError, match="no windows"):
        client.state("totals").windows("a")


def test_a_whole_state_is_a_dataframe_like_a_stores(client: hr.Client, tweets: Tweets) -> None:
    store = hr.Store(tweets.path)
    for address, kind, order in (
        ("watch.seen", int, ["key"]), ("last", View, ["key"]), ("watch.sizes", dict[int, int], ["key", "entry"]),
        ("watch.recent", list[int], ["key", "index"]), ("hourly", None, ["tweet", "window_start"]),
        ("hourly", Hourly, ["tweet", "window_start"]),
        ("totals", None, ["key"]),
    ):  # fmt: skip
        here: Any = client.state(address, kind).to_polars().sort(order)
        there: Any = store.state(address, kind).to_polars().sort(order)
        assert here.equals(there), address


def test_the_client_tells_epoch_age_and_states(client: hr.Client) -> None:
    assert client.epoch == 1
    assert client.age > timedelta(0)
    assert {"hourly", "watch.seen"} <= set(client.states())


def test_a_view_tells_what_its_newest_answer_is_of(client: hr.Client) -> None:
    hourly, totals = client.state("hourly", Hourly), client.state("totals", Totals)
    assert (hourly.epoch, hourly.age, hourly.watermark) == (-1, None, None)
    assert hourly["a"].impressions == 7
    assert (hourly.epoch, hourly.watermark) == (1, hr.timestamp("2024-01-01T13:05"))
    first = hourly.age
    assert first is not None
    # Time goes on though nobody asks.
    assert hourly.age is not None and hourly.age > first
    assert abs(client.age - hourly.age) < timedelta(minutes=1)
    # Another state has not been asked for.
    assert (totals.epoch, totals.age, totals.watermark) == (-1, None, None)


ASKED: dict[str, Callable[[Any], object]] = {
    "get_many": lambda view: view.get_many(["a", "x"]),
    "no keys": lambda view: view.get_many([]),
    "windows": lambda view: view.windows("a"),
    "between": lambda view: view.between("a"),
    "scan": lambda view: list(view.scan()),
    "len": len,
    "kind": lambda view: view.kind,
    "watch": lambda view: next(view.watch("a")),
    "to_polars": lambda view: view.to_polars(),
}


@pytest.mark.parametrize("asked", ASKED)
def test_every_answer_says_its_watermark(asked: str, client: hr.Client) -> None:
    view = client.state("hourly", Hourly)
    ASKED[asked](view)
    assert (view.epoch, view.watermark) == (1, hr.timestamp("2024-01-01T13:05"))
    assert view.age is not None and view.age > timedelta(0)


@both
def test_a_step_without_event_time_has_no_watermark(protocol: str, tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    made.epoch({"count": [values("value", [("a", 1)])]})
    with Served(tmp_path / "store") as served, hr.Client(url_of(served, protocol)) as client:
        view = client.state("count", int)
        watched = view.watch("a")
        for ask in (lambda: view["a"], lambda: len(view), lambda: view.kind, lambda: next(watched)):
            ask()
            assert (view.epoch, view.watermark) == (0, None)
        watched.close()  # type: ignore[attr-defined]


@both
def test_the_watermark_of_drained_input_is_told(protocol: str, tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    made.epoch({"count": [values("value", [("a", 1)])]}, watermark_us=MAX_TIME)
    with Served(tmp_path / "store") as served, hr.Client(url_of(served, protocol)) as client:
        view = client.state("count", int)
        watched = view.watch("a")
        for ask in (lambda: view["a"], lambda: view.kind, lambda: next(watched)):
            ask()
            assert view.watermark == MAX_TIME
        watched.close()  # type: ignore[attr-defined]


@both
def test_keys_and_entries_may_be_times(protocol: str, tmp_path: Path) -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    made = MadeStore(tmp_path / "store")
    made.epoch({"at": [values("value", [(noon, 1)])], "per": [maps("hour", [("k", noon, 2)])]})
    with Served(tmp_path / "store") as served, hr.Client(url_of(served, protocol)) as client:
        view = client.state("at", int, key=datetime)
        assert (view[noon], list(view)) == (1, [noon])
        assert client.state("per.hour", dict[datetime, int])["k"] == {noon: 2}


@both
def test_a_long_walk_gives_every_key_once(protocol: str, tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    made.epoch({"many": [values("value", [(f"key-{i}", i) for i in range(5_000)])]})
    with Served(tmp_path / "store") as served, hr.Client(url_of(served, protocol)) as client:
        view = client.state("many", int)
        pairs = list(view.scan())
        assert (len(pairs), dict(pairs)) == (5_000, {f"key-{i}": i for i in range(5_000)})
        assert view.get_many([f"key-{i}" for i in range(5_000)]) == list(range(5_000))
        assert sorted(view.scan(prefix="key-499")) == [("key-499", 499), *((f"key-{i}", i) for i in range(4990, 5000))]


# --- mistakes


def test_mistakes_are_told_in_the_words_of_the_server(client: hr.Client) -> None:
    with pytest.raises(StoreError, match="hourly") as caught:
        client.state("hurly")["a"]
    assert "localhost" in caught.value.where
    with pytest.raises(StoreError, match="does not fit the type") as wrong:
        client.state("watch.seen", str)["a"]
    assert wrong.value.expected == "str"
    assert wrong.value.where == "state watch.seen, key a"


def test_a_client_that_was_closed_says_so(served: Served) -> None:
    client = hr.Client(served.redis_url)
    client.close()
    with pytest.raises(ProgramError, match="was closed"):
        client.epoch


@pytest.mark.parametrize("url", ["", "ftp://x", "localhost:port", "http://a,redis://b", "http://a/path", []])
def test_what_names_no_server_is_refused(url: Any) -> None:
    with pytest.raises(ProgramError):
        hr.Client(url)


def test_servers_are_named_in_several_ways() -> None:
    assert [str(each) for each in parse_servers(["a", "b:1", "[::1]:2"])] == [
        "redis://a:6399", "redis://b:1", "redis://[::1]:2",
    ]  # fmt: skip
    [server] = parse_servers("rediss://web:hr_t%20k@host")
    assert (server.user, server.token, server.port, server.secure) == ("web", "hr_t k", 6399, True)
    assert parse_servers("https://host")[0].port == 443


# --- who may read


@both
def test_tokens_and_tls_are_spoken(protocol: str, tweets: Tweets, tmp_path: Path) -> None:
    tls, trusted = make_server_tls(tmp_path)
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("watch.seen",))
    with Served(tweets.path, users=users, tls=tls) as served:
        served.wait_for(1)
        url = url_of(served, protocol)
        with hr.Client(url, token=token, tls=trusted) as client:
            assert client.state("watch.seen", int)["a"] == 3
            with pytest.raises(Forbidden):
                client.state("hourly")["a"]
            assert client.states() == ["watch.seen"]
        with hr.Client(url, token="hr_wrong", tls=trusted) as client, pytest.raises(Forbidden):
            client.epoch
        with hr.Client(url, token=token, timeout="2s") as client, pytest.raises(Unreachable, match="certificate"):
            client.epoch


# --- following the job


@both
def test_whoever_waits_for_an_epoch_reads_what_it_wrote(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store") as served:
        with hr.Client(url_of(served, protocol), timeout="200ms") as impatient, pytest.raises(Unreachable):
            impatient.state("watch.seen", int)["a"]
        with hr.Client(url_of(served, protocol), timeout="60s") as client:
            for count in range(1, 4):
                epoch = tweets.push(("a", "12:01", 1))
                assert client.wait_for(epoch) >= epoch
                assert client.state("watch.seen", int)["a"] == count
            with pytest.raises(Unreachable, match="not come that far"):
                client.wait_for(99, timeout="50ms")


@both
def test_a_watched_key_gives_its_value_now_and_after_each_change(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store") as served:
        tweets.push(("a", "12:01", 1))
        with hr.Client(url_of(served, protocol)) as client:
            watched = client.state("watch.seen", int).watch("a")
            assert next(watched) == 1
            served.wait_for(tweets.push(("b", "12:02", 1)))
            tweets.push(("a", "12:03", 1))
            assert next(watched) == 2
            absent = client.state("watch.raw", bytes).watch("c")
            assert next(absent) is None
            tweets.push(("c", "12:03", 1))
            assert next(absent) == b"\x00\xff"
            watched.close()  # type: ignore[attr-defined]
            absent.close()  # type: ignore[attr-defined]


@both
def test_threads_share_a_client(protocol: str, served: Served) -> None:
    found: list[int] = []
    with hr.Client(url_of(served, protocol)) as client:
        view = client.state("watch.seen", int)

        def read() -> None:
            for _ in range(20):
                found.append(view["a"])

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == [3] * 160


# --- awaiting


@both
def test_the_same_can_be_awaited(protocol: str, served: Served, tweets: Tweets) -> None:
    async def ask() -> None:
        async with hr.AsyncClient(url_of(served, protocol)) as client:
            seen = client.state("watch.seen", int)
            answers = await asyncio.gather(*(seen.get(key) for key in ("a", "b", "x") * 10))
            assert answers == [3, 1, None] * 10
            assert await seen.get("x", 7) == 7
            assert await seen.get_many(["a", "x"]) == [3, None]
            assert {key: value async for key, value in seen.scan()} == {"a": 3, "b": 1}
            assert (await seen.count(), await seen.kind(), await client.epoch()) == (2, "value", 1)
            assert await client.age() > timedelta(0)
            assert "hourly" in await client.states()
            assert (seen.epoch, seen.watermark) == (1, hr.timestamp("2024-01-01T13:05"))
            assert seen.age is not None and seen.age > timedelta(0)
            hourly = client.state("hourly", Hourly)
            assert len(await hourly.windows("a")) == 2
            assert len(await hourly.to_polars()) == 3
            assert (await seen.to_polars()).columns == ["key", "value"]
            assert await client.wait_for(1) == 1
            watched = seen.watch("a")
            assert await anext(watched) == 3
            await watched.aclose()  # type: ignore[attr-defined]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.wait_for(99)
            # What was cut off in the middle is not taken for the answer of the next question.
            assert await seen.get("a") == 3

    asyncio.run(ask())
