"""Targets of one row per key, real ones, that a rewind brings back without any former row having been kept."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.errors import SinkFailed
from headrace.testing import Harness
from tests.services.messages import read_messages
from tests.services.redis import Redis
from tests.sinks.postgres_tables import query

if TYPE_CHECKING:
    from tests.services.kafka import Broker


class Sale(hr.Record):
    shop: str
    cents: int


class Total(hr.Record):
    shop: str
    cents: int


Shown = Callable[[], dict[str, int]]


def check(tmp_path: Path, new_sink: Callable[[], Any], shown: Shown, *, above: int = 0) -> None:
    """Writes, goes back and on, twice; a program that is restarted in between writes to the same target."""

    def start(start_from: str = "") -> tuple[Harness, Any]:
        app = hr.App("sales")
        sales = app.read("sales", hr.source.items([]), Sale)
        totals = sales.key_by(Sale.shop).aggregate(Total, cents=hr.sum("cents")).named("totals")
        (totals.where(f"cents >= {above}") if above else totals).write(new_sink(), name="table")
        return Harness(app, store=tmp_path / "store", sinks=True, start_from=start_from), sales

    def passing(totals: dict[str, int]) -> dict[str, int]:
        return {shop: cents for shop, cents in totals.items() if cents >= above}

    h, sales = start()
    with h:
        h.push(sales, Sale("a", 10), Sale("b", 20))
        h.epoch()
        h.savepoint("before")
        for _ in range(2):
            h.push(sales, Sale("a", 1), Sale("new", 10), Sale("b", -5))
            h.epoch()
        end = passing({"a": 12, "b": 10, "new": 20})
        assert shown() == end
        h.rewind("before")
        assert shown() == passing({"a": 10, "b": 20})
        h.epoch()
        assert shown() == end
        h.maintain()
    h, sales = start("before")
    with h:
        assert shown() == end, "it goes on: the timeline began with this very epoch"
        h.rewind("before", again=True)
        assert shown() == passing({"a": 10, "b": 20})
        h.push(sales, Sale("a", 1))
        h.epoch()
        assert shown() == passing({"a": 11, "b": 20})


@pytest.mark.parametrize("above", [0, 11])
def test_a_table_of_postgres_without_former_rows(dsn: str, tmp_path: Path, above: int) -> None:
    def shown() -> dict[str, int]:
        return dict(query(dsn, "SELECT shop, cents FROM sales"))  # type: ignore[arg-type]

    check(tmp_path, lambda: hr.sink.postgres("sales", dsn=dsn, key="shop"), shown, above=above)


def test_a_table_whose_former_rows_were_kept_too_late(dsn: str, tmp_path: Path) -> None:
    """Former rows bring a table back as far as they go, and the state does behind that."""
    kept: list[str | None] = [None]

    def start(start_from: str = "") -> tuple[Harness, Any]:
        app = hr.App("sales")
        sales = app.read("sales", hr.source.items([]), Sale)
        totals = sales.key_by(Sale.shop).aggregate(Total, cents=hr.sum("cents")).named("totals")
        totals.write(hr.sink.postgres("sales", dsn=dsn, key="shop", undo=kept[0]), name="table")
        return Harness(app, store=tmp_path / "store", sinks=True, start_from=start_from), sales

    for undo in (None, "1h"):
        kept[0] = undo
        h, sales = start()
        with h:
            for _ in range(2):
                h.push(sales, Sale("a", 1), Sale(f"{h.published}", 1))
                h.epoch()
    h, sales = start("2")
    with h:
        assert dict(query(dsn, "SELECT shop, cents FROM sales")) == {"a": 3, "-1": 1, "0": 1, "1": 1}  # type: ignore[arg-type]
        h.rewind(0)
        assert dict(query(dsn, "SELECT shop, cents FROM sales")) == {"a": 1, "-1": 1}  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["string", "hash"])
@pytest.mark.parametrize("above", [0, 11])
def test_keys_of_redis_without_former_rows(redis_server: Redis, tmp_path: Path, shape: Any, above: int) -> None:
    name = uuid.uuid4().hex

    def shown() -> dict[str, int]:
        with redis_server.client() as client:
            keys = client.keys(f"{name}:*")
            if shape == "string":
                rows = [json.loads(client.get(key)) for key in keys]
            else:
                rows = [{each.decode(): value.decode() for each, value in client.hgetall(key).items()} for key in keys]
        return {row["shop"]: int(row["cents"]) for row in rows}

    def new_sink() -> Any:
        return hr.sink.redis(key=f"{name}:{{shop}}", url=redis_server.url, as_=shape)

    check(tmp_path, new_sink, shown, above=above)


def newest_values(kafka: Broker, topic: str) -> dict[str, int]:
    """What is left of a topic when it is compacted."""
    values: dict[str, int] = {}
    for message in read_messages(kafka.bootstrap, topic):
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if value is None:
            values.pop(key.decode(), None)
        else:
            values[key.decode()] = json.loads(value)["cents"]
    return values


@pytest.mark.parametrize("above", [0, 11])
def test_a_compacted_topic(kafka: Broker, tmp_path: Path, above: int) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"

    def new_sink() -> Any:
        return hr.sink.kafka(topic, brokers=kafka.bootstrap, key="shop", create={"cleanup.policy": "compact"})

    check(tmp_path, new_sink, lambda: newest_values(kafka, topic), above=above)


def test_a_topic_whose_messages_are_read_one_by_one_is_refused_before_anything_changes(
    kafka: Broker, tmp_path: Path
) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    with pytest.raises(SinkFailed, match="none of them can be taken back") as refused:
        check(
            tmp_path,
            lambda: hr.sink.kafka(topic, brokers=kafka.bootstrap, key="shop", create=True),
            lambda: newest_values(kafka, topic),
        )
    assert refused.value.found == "cleanup.policy=delete"
    assert "--hold table" in (refused.value.next_move or "")
    assert newest_values(kafka, topic) == {"a": 12, "b": 10, "new": 20}
