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


# -- sinks that find rows by a key of their own -----------------------------------------------------------------------


class Order(hr.Record):
    id: int
    customer: str
    cents: int


class Customer(hr.Record):
    name: str
    city: str


class Orders:
    """Orders beside their customers, joined by name, and so in shards that have nothing to do with the orders' ids."""

    def __init__(self) -> None:
        self.app = hr.App("orders")
        self.orders = self.app.read("orders", hr.source.items([]), Order)
        self.customers = self.app.read("customers", hr.source.items([]), Customer)
        orders = self.orders.key_by("id").latest().named("newest_orders")
        customers = self.customers.key_by("name").latest().named("newest_customers")
        pairs = orders.key_by("customer").join(customers.key_by("name"), within=None).named("lines")
        self.lines = pairs.select(id="left.id", cents="left.cents", city="right.city")

    def play(self, seed: int, **options: Any) -> dict[int, tuple[int, str]]:
        """Random epochs on three shards; gives back what has to stand in a target by id."""
        chance = random.Random(seed)
        orders: dict[int, Order] = {}
        customers: dict[str, Customer] = {}
        with Harness(self.app, sinks=True, parallelism=3, **options) as h:
            for _ in range(8):
                for _ in range(chance.randint(1, 6)):
                    order = Order(chance.randrange(4), chance.choice("abcd"), chance.randint(0, 99))
                    customer = Customer(chance.choice("abcd"), chance.choice(["oslo", "rome", "bern"]))
                    orders[order.id], customers[customer.name] = order, customer
                    h.push(self.orders, order)
                    h.push(self.customers, customer)
                match chance.choice(["", "", "before_publish", "published"]):
                    case "":
                        h.epoch()
                    case point:
                        h.crash(at=point)
                        if point == "before_publish":
                            h.epoch()
        return {
            order.id: (order.cents, customers[order.customer].city)
            for order in orders.values()
            if order.customer in customers
        }


@pytest.mark.parametrize("seed", range(4))
def test_a_sink_by_a_key_that_moves_between_shards_has_the_rows_that_hold(
    redis_server: Redis, tmp_path: Path, seed: int
) -> None:
    name, shop = uuid.uuid4().hex, Orders()
    assert str(shop.lines.node.kind) == "changelog by id, from several shards"
    shop.lines.write(hr.sink.redis(key=f"{name}:{{id}}", url=redis_server.url, as_="hash"), name="cached")
    assert "cached_rows: top" in shop.app.explain()
    wanted = shop.play(seed, store=tmp_path)
    with redis_server.client() as client:
        found = {int(key.decode().rpartition(":")[2]): client.hgetall(key) for key in client.keys(f"{name}:*")}
    assert {id: (int(row[b"cents"]), row[b"city"].decode()) for id, row in found.items()} == wanted


def test_of_several_rows_that_hold_for_one_key_of_a_sink_one_is_there_until_the_last_goes(
    redis_server: Redis, tmp_path: Path
) -> None:
    name, shop = uuid.uuid4().hex, Orders()
    shop.lines.write(hr.sink.redis(key=f"{name}:{{city}}", url=redis_server.url, as_="hash"), name="cities")
    wanted = shop.play(7, store=tmp_path)
    with redis_server.client() as client:
        found = {key.decode().rpartition(":")[2]: client.hgetall(key) for key in client.keys(f"{name}:*")}
    assert set(found) == {city for _, city in wanted.values()}
    assert all(wanted[int(row[b"id"])] == (int(row[b"cents"]), city) for city, row in found.items())


@pytest.mark.parametrize("seed", range(3))
def test_a_table_of_delta_that_is_merged_by_key_has_the_rows_that_hold(tmp_path: Path, seed: int) -> None:
    deltalake = pytest.importorskip("deltalake")
    app, tx = shop(lambda rows, key: rows.write(hr.sink.delta(str(tmp_path / key), key=key)))
    rich, regions = play(app, tx, seed, tmp_path / "store")
    found = deltalake.DeltaTable(str(tmp_path / "card")).to_pyarrow_table().to_pylist()
    assert {row["card"]: (row["region"], row["total"]) for row in found} == rich
    assert len(found) == len(rich)
    found = deltalake.DeltaTable(str(tmp_path / "region")).to_pyarrow_table().to_pylist()
    assert {row["region"]: (row["cards"], row["total"]) for row in found} == regions


def test_a_table_of_delta_by_key_takes_the_last_row_of_an_epoch_and_null_as_a_key(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")

    class Maybe(hr.Record):
        card: str | None
        cents: int

    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Maybe)
    newest = tx.key_by("card").reduce(lambda a, b: b).named("newest")
    newest.write(hr.sink.delta(str(tmp_path / "t"), key="card"))
    with Harness(app, sinks=True) as h:
        h.push(tx, Maybe("a", 1), Maybe(None, 2), Maybe("a", 3))
        h.epoch()
        h.push(tx, Maybe(None, 5))
        h.epoch()
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert sorted((row["card"] or "", row["cents"]) for row in found) == [("", 5), ("a", 3)]


@pytest.mark.parametrize("batch", [True, False])
def test_a_function_is_called_with_what_rows_are(batch: bool) -> None:
    seen: list[Any] = []
    take = (lambda rows, epoch: seen.extend(rows)) if batch else (lambda row, epoch: seen.append(row))

    def write(rows: hr.Stream[Any], key: str) -> None:
        if key == "region":
            rows.write(hr.sink.call(take, batch=batch, kinds=True))

    app, tx = shop(write)
    with Harness(app, sinks=True) as h:
        for cents in (5, -9, 20):
            h.push(tx, Tx("a", "x", cents))
            h.epoch()
    assert [(sign, row.total) for sign, row in seen] == [("+I", 5), ("-D", 5), ("+I", 16)]


def test_changes_are_written_in_the_envelope_of_debezium(tmp_path: Path) -> None:
    codec = codec_of(Total)
    sink = hr.sink.kafka("totals", key="card", format="debezium-json").bind(codec, "out")
    staging = Staging(tmp_path)
    writer = sink.open_writer(codec, staging.task(0, 0, "out"))
    kinds: Kinds = np.array([INSERT, BEFORE, AFTER, DELETE, BEFORE], np.int8)
    rows = [Total(card, "x", n) for n, card in enumerate("abbcd", 1)]
    writer.write(Rows.of_objects(codec, rows, None, kinds))
    table = pa.Table.from_batches(read_batches(writer.finish(), staging.release(0)))
    said = [json.loads(value) for value in table.column("value").to_pylist()]
    totals = [(each["op"], *((each[side] or {}).get("total") for side in ("before", "after"))) for each in said]
    assert totals == [("c", None, 1), ("u", 2, 3), ("d", 4, None), ("d", 5, None)]
    assert table.column("key").to_pylist() == [b"a", b"b", b"c", b"d"]


def test_a_stream_whose_rows_replace_each_other_comes_to_an_envelope_with_what_they_replace() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(total=hr.sum("cents")).named("totals")
    totals.write(hr.sink.kafka("totals", key="card", format="debezium-json"))
    assert "totals_normalised" in app.explain()
    early = tx.key_by(lambda row: row.card).latest().named("newest")
    with pytest.raises(ProgramError, match="write has to know which row replaces which"):
        early.write(hr.sink.kafka("newest", key="card", format="debezium-json"))
