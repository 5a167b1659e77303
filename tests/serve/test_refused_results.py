"""A result that cannot be given, a sum beyond 64 bits, as every reader is told: what, which state, which key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

import headrace as hr
from headrace.errors import FunctionFailed, HeadraceError
from headrace.testing import Harness
from tests.cli.calling import call
from tests.serve.served import Served
from tests.serve.test_http_events import Listener
from tests.serve.test_resp_messages import listen, messages
from tests.serve.tweets import fetch


class Reading(hr.Record):
    place: str
    at: hr.Timestamp
    n: int = 0


WHAT = "the sum 'total' leaves 64 bits"


class Running(NamedTuple):
    """A job whose key ``big`` has a sum that cannot be given."""

    store: Path
    push: Callable[..., None]
    """Publishes an epoch with these numbers, each for a place."""


@pytest.fixture(params=["tumbling", "session"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    app = hr.App("places")
    rows = app.read("rows", hr.source.items([]), Reading, time=Reading.at)
    window = hr.tumbling("1h") if request.param == "tumbling" else hr.session("1h")
    hourly = rows.key_by(Reading.place).window(window).aggregate(total=hr.sum("n")).named("hourly").queryable()
    hourly.show()
    with Harness(app, start="2024-01-01T12:00", store=tmp_path / "store") as h:

        def push(**numbers: int) -> None:
            h.push(rows, *(Reading(place, h.at("12:00:01"), n) for place, n in numbers.items()))
            h.epoch(watermark="12:00:02")

        for _ in range(2):
            push(big=2**62, fine=1)
        yield Running(tmp_path / "store", push)


@pytest.fixture
def store(running: Running) -> Path:
    return running.store


@pytest.fixture
def served(store: Path) -> Iterator[Served]:
    with Served(store) as served:
        served.wait_for(1)
        yield served


STATE = "/v1/jobs/places/state/hourly"


@pytest.mark.parametrize(
    "path", ["/big", "/big/windows", "/big/windows?from=2024-01-01", "?format=parquet", "?format=csv", "?format=json"]
)
def test_http_says_that_it_cannot_be_given_with_state_and_key(served: Served, path: str) -> None:
    answer = fetch(served.url, STATE + path)
    assert answer.status == 422
    error = json.loads(answer.body)["error"]
    assert (error["what"], error["where"], error["found"]) == (WHAT, "state hourly", "key big")
    assert "DECIMAL(38,0)" in error["next_move"]
    assert fetch(served.url, STATE + "/fine").status == 200
    assert served.app.jobs.downloads == 0


@pytest.mark.parametrize("words", [("GET", "hourly:big"), ("MGET", "hourly:fine", "hourly:big"),
                                   ("HGETALL", "hourly:big"), ("XRANGE", "hourly:big", "-", "+")])  # fmt: skip
def test_redis_says_so_on_one_line_with_state_and_key(served: Served, words: tuple[str, ...]) -> None:
    with redis.Redis(port=served.port) as client:
        with pytest.raises(redis.ResponseError) as refused:
            client.execute_command(*words)
        assert str(refused.value).startswith(f"state hourly: {WHAT}; expected sums from -9223372036854775808")
        assert "; found key big; next: " in str(refused.value)
        assert b'"total":2' in client.execute_command("GET", "hourly:fine")


def test_clients_and_stores_name_state_and_key(served: Served, store: Path) -> None:
    for url in (served.url, served.redis_url):
        with hr.Client(url) as client, pytest.raises(HeadraceError, match=WHAT) as refused:
            client.state("hourly")["big"]
        assert "state hourly" in str(refused.value) and "key big" in str(refused.value)
    view = hr.Store(store).state("hourly")
    asks: list[Any] = [lambda: view["big"], lambda: view.windows("big"), lambda: view.get_many(["big"]), view.to_polars]
    for ask in asks:
        with pytest.raises(FunctionFailed, match=WHAT) as named:
            ask()
        assert (named.value.where, named.value.found) == ("state hourly", "key big")


def test_the_state_command_reads_the_key_that_is_asked_for_alone(store: Path) -> None:
    found = call("state", store, "hourly", "fine")
    assert found.exit_code == 0 and '"total": 2' in found.stdout.replace('"total":2', '"total": 2')
    refused = call("state", store, "hourly", "big")
    assert refused.exit_code != 0
    assert WHAT in refused.stderr and "key big" in refused.stderr


def test_a_misspelt_state_is_refused_with_the_nearest_name(served: Served) -> None:
    with redis.Redis(port=served.port) as client:
        with pytest.raises(redis.ResponseError) as asked:
            client.get("hourly2:big")
        for channel in ("hourly2:big", "hourly2"):
            with pytest.raises(redis.ResponseError) as listened:
                client.execute_command("SUBSCRIBE", "hourly:fine", channel)
            assert str(listened.value) == str(asked.value) == "no state 'hourly2'; did you mean 'hourly'?"
        assert client.pubsub_channels() == []
        assert client.execute_command("KEYS", "hourly2:*") == []
    error = json.loads(fetch(served.url, "/v1/jobs/places/state/hourli/big").body)["error"]
    assert error["next_move"].startswith("did you mean 'hourly'? ")


def totals(listener: Any, count: int) -> list[tuple[str, int]]:
    """Channel and sum of the next messages."""
    return [(channel, value.get("value", value)["total"]) for _, channel, value in messages(listener, count)]


def test_redis_leaves_out_the_message_of_that_key_alone(running: Running, served: Served) -> None:
    state, key = listen(served, 3, "hourly"), listen(served, 3, "hourly:big", "hourly:fine")
    pattern = listen(served, 3, patterns=("hourly:*",))
    running.push(big=1, fine=1, other=5)
    assert sorted(totals(state, 2)) == [("hourly", 3), ("hourly", 5)]
    assert totals(key, 1) == [("hourly:fine", 3)]
    assert sorted(totals(pattern, 2)) == [("hourly:fine", 3), ("hourly:other", 5)]
    running.push(big=-(2**62))
    expected = 2**62 + 1
    assert totals(state, 1) == [("hourly", expected)]
    assert totals(key, 1) == totals(pattern, 1) == [("hourly:big", expected)]
    for listener in (state, key, pattern):
        listener.close()


def test_http_tells_listeners_that_it_cannot_be_given_and_goes_on(running: Running, served: Served) -> None:
    path = "/v1/jobs/places/changes?state=hourly"
    with Listener(served, path) as state, Listener(served, f"{path}&key=big&key=fine") as keys:
        kind, data = keys.next()
        assert (kind, data["key"], data["error"]["what"]) == ("failed", "big", WHAT)
        assert (data["error"]["status"], data["error"]["found"]) == (422, "key big")
        assert [event[0] for event in (keys.next(), keys.next(), state.next())] == ["change", "epoch", "epoch"]
        running.push(big=1, fine=1)
        assert sorted((kind, data["key"]) for kind, data in (state.next(), state.next())) == [
            ("change", "fine"),
            ("failed", "big"),
        ]
        # It was told already that this key has no value.
        assert [(kind, data.get("key")) for kind, data in (keys.next(), keys.next())] == [
            ("change", "fine"),
            ("epoch", None),
        ]
        running.push(big=-(2**62))
        kind, data = keys.next()
        assert (kind, data["key"], data["value"]["total"]) == ("change", "big", 2**62 + 1)


def test_a_client_that_watches_the_key_is_told_so(served: Served) -> None:
    for url in (served.url, served.redis_url):
        with hr.Client(url) as client, pytest.raises(HeadraceError, match=WHAT):
            next(client.state("hourly").watch("big"))
