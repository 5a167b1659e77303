"""Avro and Protobuf through a real broker: decoded by workers, in front of the JVM where only that can go on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.connectors.formats.registry import StoredSchema
from headrace.model.keys import encode_key
from headrace.read.store import Store, files_of
from headrace.replay.replaying import KeyReplay, find_places
from headrace.spark.query import read_again
from headrace.state.moments import AtEpoch
from tests.formats.protos import class_of
from tests.formats.test_kafka_avro import record, serialized
from tests.services.messages import read_messages
from tests.services.registry import FakeRegistry, running_registry
from tests.spark.test_kafka_source import NOON, catch_up, collect, new_topic, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.services.kafka import Broker

pytestmark = pytest.mark.spark


class Sale(hr.Record):
    shop: str
    cents: int
    at: hr.Timestamp
    note: str = "none"
    part: int = -1


class Total(hr.Record):
    shop: str
    cents: int = 0


class Sum(hr.Process[Sale, Total, str]):
    total: hr.ValueState[int]

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Any:
        self.total.set(self.total.get(0) + event.cents)
        yield Total(event.note, self.total.get(0))


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
V1 = record("Sale", shop="string", cents="int", at=MICROS)
V2 = record("Sale", at=MICROS, cents="long", shop="string", note="NOTE").replace(
    '"type": "NOTE"', '"type": ["null", "string"], "default": null'
)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running


def sale(number: int, **more: Any) -> dict[str, Any]:
    return {"shop": ("Ulm", "Bonn")[number % 2], "cents": number, "at": NOON + number * 1_000_000, **more}


def test_avro_of_several_schemas_goes_in_and_protobuf_out_once(
    kafka: Broker, kafka_spark: SparkSession, registry: FakeRegistry, tmp_path: Path
) -> None:
    topic, out = new_topic(kafka, 2), new_topic(kafka)
    app = hr.App("selling")
    source = hr.source.kafka(
        topic, brokers=kafka.bootstrap, format="avro", registry=registry.url, partition=Sale.part, tombstones="skip"
    )
    sales = app.read("sales", source, Sale, time=Sale.at)
    sales.errors.write(hr.sink.files(tmp_path / "bad"))
    sales.write(hr.sink.files(tmp_path / "rows"))
    totals = sales.where("cents > 0").key_by(Sale.shop).aggregate(Total, cents=hr.sum("cents")).named("totals")
    totals.write(hr.sink.kafka(out, brokers=kafka.bootstrap, format="protobuf", key="shop", registry=registry.url))

    send(kafka, topic, *serialized(registry, V1, sale(1), sale(2)))
    send(kafka, topic, *serialized(registry, V2, sale(3, note="x")), b"{}", None, partition=1)
    catch_up(app, tmp_path / "store", kafka_spark)
    send(kafka, topic, *serialized(registry, V2, sale(5, note=None)), *serialized(registry, V1, sale(4)))
    catch_up(app, tmp_path / "store", kafka_spark)

    rows = sorted(collect(tmp_path / "rows"), key=lambda row: row["cents"])
    assert [(row["cents"], row["note"], row["part"]) for row in rows] == [
        (1, "none", 0), (2, "none", 0), (3, "x", 1), (4, "none", 0), (5, "none", 0),
    ]  # fmt: skip
    assert [row["error"] for row in collect(tmp_path / "bad")] == [
        f"topic {topic}, partition 1, offset 1: it ends too early"
    ]
    assert list(registry.subjects) == ["sales-value", f"{out}-value"]
    id = registry.subjects[f"{out}-value"][0]
    cls = class_of(StoredSchema(id, "PROTOBUF", registry.schemas[id]["schema"]))
    messages = read_messages(kafka.bootstrap, out)
    assert {message.value()[:6] for message in messages} == {bytes([0, 0, 0, 0, id, 0])}
    told = [cls.FromString(message.value()[6:]) for message in messages]
    assert sorted((each.shop, each.cents) for each in told) == [("Bonn", 4), ("Bonn", 9), ("Ulm", 2), ("Ulm", 6)]


def test_expressions_that_only_the_jvm_evaluates_come_behind_the_worker_also_in_replays(
    kafka: Broker, kafka_spark: SparkSession, registry: FakeRegistry, tmp_path: Path
) -> None:
    topic = new_topic(kafka, 2)
    app = hr.App("sounding")
    source = hr.source.kafka(topic, brokers=kafka.bootstrap, format="avro", registry=registry.url)
    sales = app.read("sales", source, Sale, time=Sale.at)
    sales.errors.write(hr.sink.files(tmp_path / "bad"))
    sounds = sales.with_columns(Sale, note="soundex(shop)")
    sounds.key_by(Sale.shop).process(Sum()).queryable().write(hr.sink.files(tmp_path / "sums"))
    send(kafka, topic, *serialized(registry, V1, sale(1), sale(2)))
    catch_up(app, tmp_path / "store", kafka_spark)
    send(kafka, topic, b"", *serialized(registry, V1, sale(3)), partition=1)
    catch_up(app, tmp_path / "store", kafka_spark)
    assert sorted((row["shop"], row["cents"]) for row in collect(tmp_path / "sums")) == [
        ("B500", 1), ("B500", 4), ("U450", 2),
    ]  # fmt: skip
    assert len(collect(tmp_path / "bad")) == 1

    files = files_of(Store(tmp_path / "store"))
    places = find_places(files, AtEpoch(0), None)
    with KeyReplay(
        app, files, "sum", encode_key("Bonn"), places, read_by_spark=partial(read_again, kafka_spark)
    ) as run:  # fmt: skip
        assert [event.row.cents for event in run.run() if event.number] == [3] and run.verdict().same
