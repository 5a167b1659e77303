"""Waiting for what was written: whether a source has been read up to an offset, in the words of that source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.redis.positions import Position, read_id
from headrace.errors import Unreachable
from headrace.model.watermarks import WAITED
from headrace.read.snapshot import reaches
from tests.serve.made_store import MadeStore, values
from tests.serve.served import Served
from tests.serve.test_client import both, url_of

READ = '{"clicks": {"id": "1700000000000-10", "n": 12, "from": ["0-0", 0]}}'


@pytest.mark.parametrize(
    ("entry", "reached"),
    [
        ("1700000000000-10", True),
        ("1700000000000-9", True),
        ("1700000000000-11", False),
        ("999999999999-99", True),
        ("1699999999999-18446744073709551615", True),
        ("1700000000001-0", False),
        ("10000000000000-0", False),
        ("1700000000000", False),
        ("earliest", False),
        ("", False),
    ],
)
def test_entries_of_a_redis_stream_come_one_after_the_other(entry: str, reached: bool) -> None:
    assert reaches(READ, {"clicks": {"id": entry}}) is reached
    assert reaches(READ, {"clicks": entry}) is reached
    assert reaches(READ, entry) is reached


def test_a_source_that_waited_for_others_has_still_one_thing_that_it_counts() -> None:
    assert reaches(json.dumps({"rows": 7, WAITED: 3}), 7)
    assert reaches(json.dumps({"clicks": {"id": "6-0"}, WAITED: 3}), "5-0")
    assert not reaches(json.dumps({"rows": 2, WAITED: 9}), 7)


def test_a_position_as_the_source_keeps_it_is_reached_by_every_later_one() -> None:
    begun = Position(read_id("5-0"), 1, ((0, 0), 0))
    later = begun.moved(read_id("10-0"), 2)
    for read, wanted, reached in ((later, begun, True), (begun, begun, True), (begun, later, False)):
        text = json.dumps({"clicks": read.to_json()})
        assert reaches(text, {"clicks": wanted.to_json()}) is reached


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        ('{"clicks": {"start": "earliest"}}', "5-0"),
        ('{"clicks": {"start": "6-0"}}', {"clicks": {"id": "5-0"}}),
        ('{"a": {"id": "6-0"}, "b": {"id": "4-0"}}', {"a": "5-0", "b": "5-0"}),
        ('{"a": {"id": "6-0"}, "b": {"id": "4-0"}}', "5-0"),
        ('{"file": "b"}', {"file": "a"}),
        ('{"rows": 7}', "5-0"),
        ('{"id": "6-0"}', 5),
        ("", "5-0"),
    ],
)
def test_what_is_not_known_to_be_read_is_not_reached(read: str, wanted: Any) -> None:
    assert not reaches(read, wanted)


@both
def test_whoever_added_an_entry_waits_until_it_is_read(protocol: str, tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    made.epoch({"count": [values("views", [("a", 1)])]}, offsets=f"v2\n{{}}\nhits:{READ}")
    with Served(made.path) as served, hr.Client(url_of(served, protocol), timeout="60s") as client:
        for offset in ({"clicks": {"id": "1700000000000-3"}}, {"clicks": "1700000000000-10"}, "1699999999999-11"):
            assert client.wait_for(offset={"hits": offset}) == 0
        with pytest.raises(Unreachable):
            client.wait_for(offset={"hits": {"clicks": {"id": "1700000000000-11"}}}, timeout="100ms")
