"""Redis as a target that is compared with state and filled from it, on a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.keyed_target import parts_of
from headrace.connectors.redis.rows import encode_pack, unpack_rows
from headrace.errors import ProgramError, SinkFailed, SinkUnavailable
from headrace.model.batch import Rows
from headrace.testing.staging import Staging, stage_rows
from tests.services.redis import Redis
from tests.sinks.redis_sales import CODEC, READERS, Sale, bound

ROWS = [Sale("a", 1, "x"), Sale("b", 2), Sale("c", 3, "y")]


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis_server.client() as client:
        yield client


class Filled:
    def __init__(self, server: Redis, client: Any, folder: Path, shape: str, **options: Any) -> None:
        self.name = uuid.uuid4().hex
        self.client, self.shape = client, shape
        self.staging = Staging(folder)
        self.sink: Any = bound(server, shape, self.name, **options)
        self.release(0, *ROWS)
        self.target = self.sink.keyed("staging")

    def release(self, epoch: int, *rows: Sale) -> None:
        parts = stage_rows(self.sink, CODEC, self.staging, epoch, [list(rows)])
        self.sink.release(parts, self.staging.release(epoch))

    def compare(self, *rows: Sale, write: bool = False, at: Any = (0, 0)) -> Any:
        return self.target.compare(parts_of(self.sink, Rows.of_objects(CODEC, list(rows))), at, write=write)

    @property
    def rows(self) -> list[Sale]:
        return sorted(READERS[self.shape](self.client, self.name), key=lambda sale: sale.shop)


@pytest.fixture(params=["string", "hash"])
def filled(request: pytest.FixtureRequest, redis_server: Redis, client: Any, tmp_path: Path) -> Filled:
    return Filled(redis_server, client, tmp_path, request.param)


def test_rows_that_are_missing_or_differ_are_counted_shown_and_written(filled: Filled) -> None:
    assert filled.target.position() == (0, 0)
    assert filled.compare(*ROWS).agrees
    filled.client.delete(f"{filled.name}:a")
    if filled.shape == "hash":
        filled.client.hset(f"{filled.name}:b", "note", "not there before")
    else:
        filled.client.set(f"{filled.name}:b", '{"shop":"b","n":0}')
    found = filled.compare(*ROWS)
    assert (found.rows, found.missing, found.different) == (3, 1, 1)
    shown = [(each.kind, each.key.rpartition(":")[2]) for each in found.examples]
    assert shown == [("missing", "a"), ("different", "b")]
    assert filled.rows != ROWS
    assert not filled.compare(*ROWS, write=True).agrees
    assert filled.rows == ROWS and filled.compare(*ROWS).agrees


def test_what_is_of_another_epoch_is_neither_read_nor_written(filled: Filled) -> None:
    filled.release(1, Sale("a", 10))
    before = filled.rows
    assert filled.compare(*ROWS, write=True) is None
    assert filled.compare(*ROWS, write=True, at=None) is None
    assert filled.target.find_extra((0, 0)) is None
    assert filled.rows == before and filled.target.position() == (0, 1)


def test_an_epoch_that_is_half_there_is_waited_for(filled: Filled) -> None:
    filled.client.hset(f"guard-{filled.name}", "complete", "0")
    with pytest.raises(SinkUnavailable, match="released only in part"):
        filled.target.position()
    assert filled.compare(*ROWS) is None


def test_keys_that_no_row_had_are_told_and_deleted(filled: Filled) -> None:
    filled.compare(*ROWS[:2])
    filled.client.rpush(f"{filled.name}:list", "of another type")
    found = filled.target.find_extra((0, 0))
    assert found.extra == 1 and found.examples[0].key.endswith(":c")
    # What the job adds after it was looked for is its own, and comes later.
    filled.release(1, Sale("d", 4))
    assert filled.target.delete_extra((0, 0)) is None
    assert filled.target.delete_extra((0, 1)) == 1
    filled.client.delete(f"{filled.name}:list")
    assert [sale.shop for sale in filled.rows] == ["a", "b", "d"]


def test_keys_that_come_after_they_were_missed_are_none_of_those(filled: Filled) -> None:
    filled.compare(*ROWS[:2])
    assert filled.target.find_extra((0, 0)).extra == 1
    filled.compare(ROWS[2])
    assert filled.target.find_extra((0, 0)).extra == 0


def test_rows_that_are_fields_of_one_hash_are_places_too(redis_server: Redis, client: Any, tmp_path: Path) -> None:
    key = f"all-{uuid.uuid4().hex}"
    filled = Filled(redis_server, client, tmp_path, "hash", key=key, field="f:{shop}")
    client.hset(key, mapping={"f:ghost": "1", "own": "2"})
    client.hdel(key, "f:a")
    assert filled.compare(*ROWS, write=True).missing == 1
    found = filled.target.find_extra((0, 0))
    assert (found.extra, found.examples[0].target) == (1, "f:ghost")
    assert filled.target.delete_extra((0, 0)) == 1
    assert sorted(client.hkeys(key)) == [b"f:a", b"f:b", b"f:c", b"own"]


def test_a_key_of_another_type_is_told(filled: Filled) -> None:
    if filled.shape == "string":
        pytest.skip("a string takes the place of anything")
    filled.client.delete(f"{filled.name}:a")
    filled.client.set(f"{filled.name}:a", "text")
    assert filled.compare(*ROWS).different == 1
    with pytest.raises(SinkFailed, match="refused to write"):
        filled.compare(*ROWS, write=True)


def test_the_whole_database_is_not_deleted(redis_server: Redis, client: Any, tmp_path: Path) -> None:
    filled = Filled(redis_server, client, tmp_path, "string", key="{shop}{n}")
    filled.target.find_extra((0, 0))
    with pytest.raises(ProgramError, match="every key of the database"):
        filled.target.delete_extra((0, 0))


def test_an_output_that_has_nothing_there_may_be_filled(redis_server: Redis, client: Any, tmp_path: Path) -> None:
    filled = Filled(redis_server, client, tmp_path, "hash")
    client.delete(f"guard-{filled.name}", *client.keys(f"{filled.name}:*"))
    assert filled.target.position() is None
    assert filled.compare(*ROWS, write=True, at=None).missing == 3
    assert filled.rows == ROWS


def test_a_stream_is_no_such_target(redis_server: Redis, client: Any) -> None:
    assert bound(redis_server, "stream", uuid.uuid4().hex).keyed("staging") is None


def test_packs_are_read_as_they_were_made() -> None:
    strings = encode_pack([b"string", 3_600_000_000_000, 0, b"\xff k", b"v" * 70_000, b"", b""])
    assert list(unpack_rows(strings)) == [(b"\xff k", []), (b"", [])]
    fields = encode_pack([b"hash", 0, 70_000, b"k", 4, b"a", b"1", b"b", b"2", 1, b"c", b"l", 0, 2, b"x", b"y"])
    assert list(unpack_rows(fields)) == [(b"k", [b"a", b"b"]), (b"l", [])]
