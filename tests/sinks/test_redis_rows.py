"""What rows become in Redis, and which wishes are refused while a program is built."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.connectors.redis import guard as redis_guard
from headrace.connectors.redis import rows as redis_rows
from headrace.errors import BadRow, ProgramError
from headrace.model.rows import codec_of
from headrace.testing.staging import Staging, stage_rows
from tests.services.redis import Redis
from tests.sinks.redis_sales import CODEC, READERS, SALES, Sale, bound


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path)


# --- what rows become


class Parcel(hr.Record):
    id: int
    at: hr.Timestamp
    day: date
    weight: float
    price: Decimal
    ok: bool
    tags: list[str]
    raw: bytes
    box: Sale | None = None


PARCEL = Parcel(7, hr.timestamp("2024-01-01T12:00:00.5"), date(2024, 1, 2), 2.0, Decimal("1.50"), True, ["a"], b"\xff",
                Sale("x", 1))  # fmt: skip


def write(server: Redis, staging: Staging, rows: list[Any], shape: Any, codec: Any, **options: Any) -> None:
    sink = bound(server, shape, uuid.uuid4().hex, codec, **options)
    sink.release(stage_rows(sink, codec, staging, 0, [rows]), staging.release(0))


def test_a_string_is_a_document(redis_server: Redis, client: Any, name: str, staging: Staging) -> None:
    codec = codec_of(Parcel)
    write(redis_server, staging, [PARCEL], "string", codec, key=f"{name}:{{id}}:{{day}}")
    assert codec.from_json(client.get(f"{name}:7:2024-01-02")) == PARCEL
    write(redis_server, staging, [PARCEL], "string", codec, key=f"{name}:m", format="msgpack")
    assert msgspec.msgpack.decode(client.get(f"{name}:m"), type=Parcel) == PARCEL
    write(redis_server, staging, [5], "string", codec_of(int), key=f"{name}:{{value}}")
    assert client.get(f"{name}:5") == b'{"value":5}'


def test_the_fields_of_a_hash_are_text(redis_server: Redis, client: Any, name: str, staging: Staging) -> None:
    write(redis_server, staging, [PARCEL], "hash", codec_of(Parcel), key=name)
    assert client.hgetall(name) == {
        b"id": b"7", b"at": b"2024-01-01T12:00:00.5Z", b"day": b"2024-01-02", b"weight": b"2.0", b"price": b"1.5",
        b"ok": b"true", b"tags": b'["a"]', b"raw": b"\xff", b"box": b'{"shop":"x","n":1,"note":null}',
    }  # fmt: skip


def test_a_field_that_has_no_value_any_more_leaves_the_hash_and_others_stay(
    redis_server: Redis, client: Any, name: str, staging: Staging
) -> None:
    client.hset(f"{name}:a", "owner", "somebody else")
    sink = bound(redis_server, "hash", name)
    sink.release(stage_rows(sink, CODEC, staging, 0, [[Sale("a", 1, "x")]]), staging.release(0))
    sink.release(stage_rows(sink, CODEC, staging, 1, [[Sale("a", 2)]]), staging.release(1))
    assert client.hgetall(f"{name}:a") == {b"owner": b"somebody else", b"shop": b"a", b"n": b"2"}


def test_a_hash_may_hold_a_document_per_row(redis_server: Redis, client: Any, name: str, staging: Staging) -> None:
    write(redis_server, staging, SALES[:3], "hash", CODEC, key=name, field="shop-{shop}")
    found = client.hgetall(name)
    assert {key: CODEC.from_json(value) for key, value in found.items()} == {
        f"shop-{row.shop}".encode(): row for row in SALES[:3]
    }


def test_what_a_stream_was_given_can_be_read_as_a_source(
    redis_server: Redis, client: Any, name: str, staging: Staging
) -> None:
    codec = codec_of(Parcel)
    for field in (None, "payload"):
        key = f"{name}-{field}"
        write(redis_server, staging, [PARCEL], "stream", codec, key=key, field=field)
        reader: Any = hr.source.redis_stream(key, url=redis_server.url, field=field).reader(codec)
        [split] = reader.splits(reader.initial(), reader.latest(reader.initial(), None))
        [batch] = reader.read(split)
        assert codec.to_objects(batch.columns) == [PARCEL]


@pytest.mark.parametrize("shape", ["string", "hash"])
def test_rows_may_expire(redis_server: Redis, client: Any, name: str, staging: Staging, shape: str) -> None:
    write(redis_server, staging, SALES[:1], shape, CODEC, key=name, ttl="1h")
    assert 3_500_000 < client.pttl(name) <= 3_600_000


def test_a_stream_may_be_bounded(redis_server: Redis, client: Any, name: str, staging: Staging) -> None:
    write(redis_server, staging, [Sale("a", i) for i in range(1000)], "stream", CODEC, key=name, maxlen=100)
    assert 100 <= client.xlen(name) < 300


def test_the_newest_row_of_a_key_wins_in_an_epoch_of_many_pieces(
    redis_server: Redis, client: Any, name: str, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_rows, "PACK_ROWS", 3)
    monkeypatch.setattr(redis_guard, "GROUP_ROWS", 7)
    sink = bound(redis_server, "string", name)
    rows = [Sale(f"s{i % 4}", i) for i in range(40)]
    sink.release(stage_rows(sink, CODEC, staging, 0, [rows]), staging.release(0))
    assert sorted(row.n for row in READERS["string"](client, name)) == [36, 37, 38, 39]


# --- what is refused


def test_a_row_without_its_key_is_a_bad_row(redis_server: Redis, name: str, staging: Staging) -> None:
    with pytest.raises(BadRow, match="no note"):
        write(redis_server, staging, [Sale("a", 1)], "string", CODEC, key=f"{name}:{{note}}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": "a:{shp}"}, "did you mean shop"),
        ({"key": "a:{shop:>10}"}, "no template"),
        ({"key": "a:{shop"}, "no template"),
        ({"key": "a:{}"}, "no template"),
        ({"key": "a", "as_": "set"}, "cannot become this"),
        ({"key": "a", "format": "xml"}, "no such format"),
        ({"key": "a", "as_": "stream", "ttl": "1h"}, "maxlen"),
        ({"key": "a", "maxlen": 5}, "maxlen cannot"),
        ({"key": "a", "as_": "hash", "format": "msgpack"}, "field="),
        ({"key": "a", "field": "x"}, "no fields"),
        ({"key": "a", "ttl": "soon"}, "cannot read ttl"),
        ({"key": "a", "url": "localhost:6379"}, "invalid address"),
    ],
)
def test_wrong_options_are_found_while_the_program_is_built(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        hr.sink.redis(**options).bind(CODEC, "out")


def test_plain_values_have_no_fields_and_lists_are_no_keys() -> None:
    with pytest.raises(ProgramError, match="field="):
        hr.sink.redis(key="a", as_="hash").bind(codec_of(int), "out")
    with pytest.raises(ProgramError, match="cannot hold tags"):
        hr.sink.redis(key="a:{tags}").bind(codec_of(Parcel), "out")


def test_streams_take_no_updates() -> None:
    app = hr.App("sales")
    totals = (
        app.read("sales", hr.source.items(SALES), Sale)
        .key_by(Sale.shop)
        .reduce(lambda a, b: a.replace(n=a.n + b.n))
        .named("totals")
    )
    totals.write(hr.sink.redis(key="shop:{shop}", as_="hash"))
    with pytest.raises(ProgramError, match="can only append rows"):
        totals.write(hr.sink.redis(key="sales", as_="stream"))
