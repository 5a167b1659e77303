"""Keys that are no text, over the network: written in any way that means them, told in one, found by every reader."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
import redis

import headrace as hr
from tests.cli.calling import call_json
from tests.serve.made_store import MadeStore, values
from tests.serve.served import Served
from tests.serve.test_resp_messages import listen, messages
from tests.serve.tweets import fetch

WRITTEN: list[tuple[str, Any, list[str]]] = [
    ("decimal", Decimal("12.5"), ['"12.5"', "12.5", "12.50", "1.25e1", '"12.500"']),
    ("whole decimal", Decimal(100), ['"100"', "100", "1e2", "100.0"]),
    ("small decimal", Decimal("0.000000000000000001"), ['"1E-18"', "0.000000000000000001", "1e-18"]),
    ("float", 0.1, ["0.1", "0.10", "1e-1"]),
    ("whole float", 5.0, ["5.0", "5", "5.00"]),
    ("large float", 1e300, ["1e+300", "1e300"]),
    ("zero", -0.0, ["0.0", "-0.0", "0"]),
    ("infinite float", float("inf"), ['"Infinity"', "Infinity"]),
    ("pair that is infinite", ("a", -float("inf")), ['["a", "-Infinity"]', '["a",-Infinity]']),
    ("int", -7, ["-7"]),
    ("bool", True, ["true"]),
    ("date", date(2024, 2, 29), ['"2024-02-29"', "2024-02-29"]),
    ("pair", ("a", 7), ['["a", 7]', '["a",7]', ' [ "a" , 7 ] ']),
    ("pair of numbers", (1.5, Decimal("2.50")), ['[1.5, "2.5"]', "[1.50,2.5]"]),
    ("uuid", UUID(int=7), [str(UUID(int=7))]),
]


@pytest.mark.parametrize(("key", "texts"), [each[1:] for each in WRITTEN], ids=[each[0] for each in WRITTEN])
def test_a_key_is_found_however_it_is_written_and_told_in_one_way(store_path: Path, key: Any, texts: list[str]) -> None:
    made = MadeStore(store_path)
    made.epoch({"sums": [values("value", [(key, 1)])]})
    with Served(made.path) as served, redis.Redis(port=served.port, decode_responses=True) as client:
        served.wait_for(0)
        names = [f"sums:{text}" for text in texts]
        assert list(client.scan_iter("sums:*")) == client.keys() == [names[0]]
        assert client.mget(names) == [client.get(name) for name in names] == ["1"] * len(names)
        assert client.exists(*names) == len(names)
        for text in texts:
            assert fetch(served.url, f"/v1/jobs/tweets/state/sums/{quote(text, safe='')}").json == 1
        (entry,) = fetch(served.url, "/v1/jobs/tweets/state/sums?limit=10").json["entries"]
        assert entry["value"] == 1
        # Whoever listens hears of it under the name that they gave.
        listener = listen(served, 3, *names)
        made.epoch({"sums": [values("value", [(key, 2)])]})
        assert sorted(messages(listener, len(names))) == sorted(("message", name, 2) for name in names)
        listener.close()


@pytest.mark.parametrize("protocol", ["redis", "http"])
@pytest.mark.parametrize(("key", "texts"), [each[1:] for each in WRITTEN], ids=[each[0] for each in WRITTEN])
def test_a_client_finds_and_gives_keys_of_their_own_type(
    store_path: Path, key: Any, texts: list[str], protocol: str
) -> None:
    made = MadeStore(store_path)
    made.epoch({"sums": [values("value", [(key, 1)])]})
    with Served(made.path) as served, hr.Client(served.redis_url if protocol == "redis" else served.url) as client:
        served.wait_for(0)
        view = client.state("sums", int, key=type(key) if not isinstance(key, tuple) else None)
        assert (view[key], view.get_many([key]), key in view) == (1, [1], True)
        assert list(view.scan()) == [(key, 1)]
        watching = view.watch(key)
        assert next(watching) == 1
        made.epoch({"sums": [values("value", [(key, 2)])]})
        assert next(watching) == 2
        watching.close()  # type: ignore[attr-defined]


def test_null_and_the_text_null_are_two_keys_by_every_way(store_path: Path) -> None:
    made = MadeStore(store_path)
    keys = {"null": None, '"null"': "null", '""null""': '"null"', "a": "a"}
    made.epoch({"sums": [values("value", [(key, text) for text, key in keys.items()])]})
    with Served(made.path) as served, redis.Redis(port=served.port, decode_responses=True) as client:
        served.wait_for(0)
        assert sorted(client.scan_iter("sums:*")) == sorted(f"sums:{text}" for text in keys)
        for text, key in keys.items():
            assert json.loads(client.get(f"sums:{text}")) == text
            assert fetch(served.url, f"/v1/jobs/tweets/state/sums/{quote(text, safe='')}").json == text
            assert call_json("state", made.path, "sums", text)["value"] == text
            assert hr.Store(made.path).state("sums")[key] == text
        entries = fetch(served.url, "/v1/jobs/tweets/state/sums?limit=10").json["entries"]
        assert {entry["key"]: entry["value"] for entry in entries} == {key: text for text, key in keys.items()}
        asked = fetch(served.url, "/v1/jobs/tweets/state/sums/get", "POST", {"keys": list(keys.values())}).json
        assert asked["values"] == list(keys)
        # A reply that is kept goes when its key changes.
        made.epoch({"sums": [values("value", [(None, "new"), ("null", "other")])]})
        served.wait_for(1)
        assert [client.get("sums:null"), client.get('sums:"null"')] == ['"new"', '"other"']
