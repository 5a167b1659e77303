"""A result that cannot be given, a sum beyond 64 bits, as every reader is told: what, which state, which key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.errors import FunctionFailed, HeadraceError
from headrace.testing import Harness
from tests.cli.calling import call
from tests.serve.served import Served
from tests.serve.tweets import fetch


class Reading(hr.Record):
    place: str
    at: hr.Timestamp
    n: int = 0


WHAT = "the sum 'total' leaves 64 bits"


@pytest.fixture(params=["tumbling", "session"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    app = hr.App("places")
    rows = app.read("rows", hr.source.items([]), Reading, time=Reading.at)
    window = hr.tumbling("1h") if request.param == "tumbling" else hr.session("1h")
    hourly = rows.key_by(Reading.place).window(window).aggregate(total=hr.sum("n")).named("hourly").queryable()
    hourly.show()
    with Harness(app, start="2024-01-01T12:00", store=tmp_path / "store") as h:
        for n in (2**62, 2**62):
            h.push(rows, Reading("big", h.at("12:00:01"), n), Reading("fine", h.at("12:00:01"), 1))
            h.epoch(watermark="12:00:02")
        yield tmp_path / "store"


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
    assert "DECIMAL" in error["next_move"].upper()
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
