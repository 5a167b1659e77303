"""Rows that are taken back go from targets that find rows by key: what stands there is what holds, after any crash."""

from __future__ import annotations

import io
import json
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.console.sink import ConsoleSink
from headrace.connectors.staged import read_batches
from headrace.errors import ProgramError
from headrace.model.batch import Rows
from headrace.model.row_kind import AFTER, BEFORE, DELETE, INSERT, Kinds
from headrace.model.rows import codec_of
from headrace.testing import Harness
from headrace.testing.staging import Staging
from tests.services.postgres import Postgres
from tests.services.redis import Redis


class Tx(hr.Record):
    card: str
    region: str
    cents: int


class Total(hr.Record):
    card: str
    region: str
    total: int


def shop(write: Callable[[hr.Stream[Any], str], None]) -> tuple[hr.App, hr.Stream[Tx]]:
    """Two outputs: cards with more than nothing, and regions that have any of these."""
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(Total, total=hr.sum("cents"), region=hr.last("region")).named("totals")
    rich = totals.where("total > 0")
    regions = rich.key_by("region").aggregate(cards=hr.count(), total=hr.sum("total")).named("regions")
    write(rich, "card")
    write(regions, "region")
    return app, tx


def play(app: hr.App, tx: hr.Stream[Tx], seed: int, store: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random epochs, some of them with a crash; gives back what has to stand in both targets."""
    chance = random.Random(seed)
    totals: dict[str, tuple[str, int]] = {}
    with Harness(app, store=store, sinks=True) as h:
        for _ in range(8):
            rows = [
                Tx(chance.choice("abc"), chance.choice("xy"), chance.randint(-9, 9))
                for _ in range(chance.randint(1, 5))
            ]
            for row in rows:
                totals[row.card] = row.region, totals.get(row.card, ("", 0))[1] + row.cents
            h.push(tx, *rows)
            match chance.choice(["", "", "before_publish", "published"]):
                case "":
                    h.epoch()
                case point:
                    h.crash(at=point)
                    if point == "before_publish":
                        h.epoch()
    rich = {card: held for card, held in totals.items() if held[1] > 0}
    regions: dict[str, tuple[int, int]] = {}
    for region, total in rich.values():
        cards, amount = regions.get(region, (0, 0))
        regions[region] = cards + 1, amount + total
    return rich, regions


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("undo", [None, "1h"])
def test_a_table_of_postgres_has_the_rows_that_hold(postgres: Postgres, tmp_path: Path, seed: int, undo: Any) -> None:
    import psycopg

    dsn = postgres.database()
    app, tx = shop(lambda rows, key: rows.write(hr.sink.postgres(f"by_{key}", dsn=dsn, key=key, undo=undo)))
    rich, regions = play(app, tx, seed, tmp_path / "store")
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT card, region, total FROM by_card").fetchall()
        assert {card: tuple(rest) for card, *rest in found} == rich, f"seed {seed}"
        found = connection.execute("SELECT region, cards, total FROM by_region").fetchall()
        assert {region: tuple(rest) for region, *rest in found} == regions, f"seed {seed}"


@pytest.mark.parametrize("seed", range(6))
def test_hashes_of_redis_are_those_of_rows_that_hold(redis_server: Redis, tmp_path: Path, seed: int) -> None:
    name = uuid.uuid4().hex
    app, tx = shop(
        lambda rows, key: rows.write(hr.sink.redis(key=f"{name}:{key}:{{{key}}}", url=redis_server.url, as_="hash"))
    )
    rich, regions = play(app, tx, seed, tmp_path / "store")
    with redis_server.client() as client:
        found = {key.decode().rpartition(":")[2]: client.hgetall(key) for key in client.keys(f"{name}:card:*")}
        assert {card: (row[b"region"].decode(), int(row[b"total"])) for card, row in found.items()} == rich
        found = {key.decode().rpartition(":")[2]: client.hgetall(key) for key in client.keys(f"{name}:region:*")}
        assert {region: (int(row[b"cards"]), int(row[b"total"])) for region, row in found.items()} == regions


@pytest.mark.parametrize("seed", range(4))
def test_strings_of_redis_are_rows_that_hold(redis_server: Redis, tmp_path: Path, seed: int) -> None:
    name = uuid.uuid4().hex
    app, tx = shop(lambda rows, key: rows.write(hr.sink.redis(key=f"{name}:{key}:{{{key}}}", url=redis_server.url)))
    rich, regions = play(app, tx, seed, tmp_path / "store")
    with redis_server.client() as client:
        for key, held in (("card", rich), ("region", regions)):
            found = {each.decode().rpartition(":")[2]: client.get(each) for each in client.keys(f"{name}:{key}:*")}
            assert {each: json.loads(row)["total"] for each, row in found.items()} == {k: v[1] for k, v in held.items()}


def test_whole_rows_in_fields_of_one_hash_go_field_by_field(redis_server: Redis, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    app, tx = shop(
        lambda rows, key: rows.write(
            hr.sink.redis(key=f"{name}:{key}", url=redis_server.url, as_="hash", field=f"{{{key}}}")
        )
    )
    rich, regions = play(app, tx, 3, tmp_path / "store")
    with redis_server.client() as client:
        assert {card.decode() for card in client.hkeys(f"{name}:card")} == set(rich)
        assert {region.decode() for region in client.hkeys(f"{name}:region")} == set(regions)


def test_a_message_without_a_value_takes_back_that_of_its_key(tmp_path: Path) -> None:
    codec = codec_of(Total)
    sink = hr.sink.kafka("totals", key="card").bind(codec, "out")
    staging = Staging(tmp_path)
    writer = sink.open_writer(codec, staging.task(0, 0, "out"))
    kinds: Kinds = np.array([INSERT, BEFORE, AFTER, DELETE], np.int8)
    rows = [Total("a", "x", 1), Total("b", "x", 2), Total("b", "x", 3), Total("c", "x", 4)]
    writer.write(Rows.of_objects(codec, rows, None, kinds))
    table = pa.Table.from_batches(read_batches(writer.finish(), staging.release(0)))
    assert table.column("key").to_pylist() == [b"a", b"b", b"c"]
    assert [value and b'"total"' in value for value in table.column("value").to_pylist()] == [True, True, None]


REFUSED: dict[str, Callable[[hr.Stream[Any]], None]] = {
    "another key": lambda rows: rows.write(hr.sink.postgres("t", dsn="x", key="cards")),
    "no key any more": lambda rows: rows.map(lambda row: Total("", row.region, 1), output=Total).write(
        hr.sink.kafka("t", key="region")
    ),
    "by topic": lambda rows: rows.write(hr.sink.kafka("t", key="region", topic_field="region")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sinks_that_would_take_back_other_rows_or_none_refuse_the_stream(name: str) -> None:
    def write(rows: hr.Stream[Any], key: str) -> None:
        if key == "region":
            with pytest.raises(ProgramError) as refused:
                REFUSED[name](rows)
            assert "take back" in refused.value.what or "taken back" in refused.value.what
            assert refused.value.next_move

    shop(write)


def test_versions_go_on_to_sinks_that_find_no_rows_by_the_key_of_a_stream(tmp_path: Path) -> None:
    """Another reader makes a changelog of a stream; who cannot take one is given what he was given without it."""
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(Total, total=hr.sum("cents"), region=hr.last("region")).named("totals")
    doubled = totals.map(lambda row: row.replace(total=row.total * 2), output=Total)
    doubled.key_by("region").aggregate(n=hr.count()).named("regions").write(hr.sink.discard())
    seen: list[Any] = []
    doubled.write(hr.sink.call(lambda rows, epoch: seen.extend(row.total for row in rows)))
    with Harness(app, sinks=True) as h:
        for cents in (1, 2):
            h.push(tx, Tx("a", "x", cents))
            h.epoch()
    assert seen == [2, 6]


def test_a_screen_and_a_list_show_what_is_taken_back() -> None:
    from rich.console import Console

    out = io.StringIO()
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(Total, total=hr.sum("cents"), region=hr.last("region")).named("totals")
    counts = totals.key_by("region").aggregate(cards=hr.count()).named("counts")
    collected = hr.sink.collect()
    counts.write(ConsoleSink(10, Console(file=out)))
    counts.write(collected)
    with Harness(app, sinks=True) as h:
        for region in ("x", "y"):
            h.push(tx, Tx("a", region, 1))
            h.epoch()
    assert [line.partition(": ")[2] for line in out.getvalue().splitlines()] == [
        '+I {"region":"x","cards":1}',
        '-D {"region":"x","cards":1}',
        '+I {"region":"y","cards":1}',
    ]
    assert [(sign, row.region) for sign, row in collected.changes] == [("+I", "x"), ("-D", "x"), ("+I", "y")]
    assert [row.region for row in collected.rows] == ["x", "y"]
