"""JSON behind the id of a schema in Kafka's messages, without a broker; what Spark makes of it is tried with Spark."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.connectors.kafka.sink import KafkaSink
from headrace.errors import ProgramError, SinkFailed
from headrace.model.rows import codec_of
from tests.formats.test_kafka_avro import staged
from tests.services.registry import FakeRegistry
from tests.sources.test_files_spark import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Level(Enum):
    LOW = "low"


class Line(hr.Record):
    sku: str
    count: int = 1


class Sale(hr.Record):
    shop: str
    cents: int
    at: hr.Timestamp
    price: Decimal = Decimal(1)
    note: str | None = None
    raw: bytes = b""
    took: timedelta = timedelta(0)
    level: Level = Level.LOW
    lines: list[Line] = []
    tags: dict[str, float] = {}


SALE = Sale("Ulm", 5, hr.Timestamp(1_000_000), lines=[Line("a")])


def sink(registry: Any, **given: Any) -> KafkaSink:
    made = hr.sink.kafka("sales", format="json", registry=registry, **given).bind(codec_of(Sale), "out")
    assert isinstance(made, KafkaSink)
    return made


def test_documents_stand_behind_the_id_of_the_schema_that_the_rows_have(registry: FakeRegistry) -> None:
    assert staged(sink(registry.url), [SALE]) == [b"\x00\x00\x00\x00\x01" + next(codec_of(Sale).to_json([SALE]))]
    assert list(registry.subjects) == ["sales-value"] and registry.schemas[1]["schemaType"] == "JSON"
    schema = json.loads(registry.schemas[1]["schema"])
    assert schema["title"] == "Sale" and schema["required"] == ["shop", "cents", "at"]
    assert schema["properties"] == {
        "shop": {"type": "string"},
        "cents": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "price": {"type": "string"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "took": {"type": "string", "format": "duration"},
        "level": {"enum": ["low"]},
        "lines": {"type": "array", "items": {
            "type": "object",
            "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["sku"],
        }},
        "tags": {"type": "object", "additionalProperties": {"type": "number"}},
    }  # fmt: skip


def test_a_given_schema_is_registered_or_looked_up(registry: FakeRegistry) -> None:
    own = {"title": "shop.Sale", "type": "object"}
    with pytest.raises(SinkFailed, match="does not have this schema"):
        staged(sink(registry.url, schema=own, register=False, subject="{record}"), [SALE])
    assert staged(sink(registry.url, schema=own, subject="{record}"), [SALE])[0].startswith(b"\x00\x00\x00\x00\x01{")
    assert list(registry.subjects) == ["shop.Sale"]
    assert staged(sink(registry.url, subject="shop.Sale", register=False), [SALE])[0][4] == 1
    with pytest.raises(ProgramError, match="schema= is no schema of Json"):
        sink(registry.url, schema="{")
    with pytest.raises(ProgramError, match="a source of JSON needs no schema"):
        hr.source.kafka("sales", registry=registry.url, schema=own)


@pytest.mark.spark
def test_spark_passes_over_the_id_and_tells_a_message_without_one(spark: SparkSession) -> None:
    codec = codec_of(Line)
    source = hr.source.kafka("lines", registry="http://nowhere:8081").bind(codec)
    contents = [b'\x00\x00\x00\x00\x07{"sku": "a", "count": 2}', b'{"sku": "b"}', b'\x00\x00\x00\x00\x07{"sku"']
    messages = [("lines", 0, n, None, each, None) for n, each in enumerate(contents)]
    columns = (
        "topic STRING, `partition` INT, `offset` BIGINT, key BINARY, value BINARY, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    good, bad = apply(spark.createDataFrame(messages, columns), source.spark(codec))
    assert codec.to_objects([column.combine_chunks() for column in good.toArrow().columns]) == [Line("a", 2)]
    told = {each.where[-1]: each for each in (source.explain_bad(codec, row.raw) for row in bad.collect())}
    assert told["1"].reason == "it does not begin as messages with a schema id do" and told["1"].text == '{"sku": "b"}'
    assert "truncated" in told["2"].reason and told["2"].text == '{"sku"', "what is shown stands behind the id"
