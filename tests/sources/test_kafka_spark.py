"""What Spark makes of Kafka's messages, without a broker: the same columns, filled by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.model.rows import codec_of
from tests.sources.test_files_spark import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MESSAGE = (
    "topic STRING, `partition` INT, `offset` BIGINT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Letter(hr.Record):
    body: str
    headers: dict[str, str] = {}
    trace: str | None = None


class Raw(hr.Record):
    body: str
    headers: dict[str, bytes] = {}


def read(spark: SparkSession, headers: Any, row_type: Any, given: list[Any]) -> tuple[list[Any], list[str]]:
    """Rows by their offsets, which are their bodies as well; and what is said of those that are bad."""
    codec = codec_of(row_type)
    source = hr.source.kafka("letters", brokers="nowhere:9092", format="text", value="body", headers=headers).bind(
        codec
    )
    messages = [("letters", 0, n, None, str(n).encode(), each) for n, each in enumerate(given)]
    good, bad = apply(spark.createDataFrame(messages, MESSAGE), source.spark(codec))
    rows = codec.to_objects([column.combine_chunks() for column in good.toArrow().columns])
    told = [source.explain_bad(codec, row.raw) for row in bad.collect()]
    return rows, [f"{each.where}: {each.reason}" for each in told]


def test_a_header_that_is_no_text_makes_a_bad_row_alone_and_among_all(spark: SparkSession) -> None:
    given = [
        [("trace", b"abc"), ("none", None)],
        None,
        [("via", b"web"), ("trace", b"\xff")],
        [("trace", b"\xff"), ("trace", "ü".encode())],
        [],
    ]
    rows, bad = read(spark, "headers", Letter, given)
    assert {row.body: row.headers for row in rows} == {
        "0": {"trace": "abc", "none": ""},
        "1": {},
        "3": {"trace": "ü"},
        "4": {},
    }, "of the same name the last one counts"
    assert bad == ["topic letters, partition 0, offset 2: headers is not UTF-8 text: header trace"]

    rows, bad = read(spark, {"trace": Letter.trace}, Letter, given)
    assert {row.body: row.trace for row in rows} == {"0": "abc", "1": None, "3": "ü", "4": None}
    assert len(bad) == 1 and "offset 2: trace is not UTF-8 text" in bad[0]

    rows, bad = read(spark, "headers", Raw, given)
    assert rows[2].headers == {"via": b"web", "trace": b"\xff"} and bad == [], "bytes are taken as they are"
