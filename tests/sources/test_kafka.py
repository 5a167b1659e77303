"""`source.kafka` without a broker and without a JVM: what Spark's connector is told, and mistakes that are found."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.source_contract import SparkRead
from headrace.errors import ProgramError
from headrace.model.rows import codec_of


class Click(hr.Record):
    user: str
    at: hr.Timestamp
    n: int = 1


class Line(hr.Record):
    line: str
    user: str | None = None


class Everything(hr.Record):
    body: bytes
    user: int
    at: hr.Timestamp
    topic: str
    part: int
    where: int
    trace: str | None = None


def read(row_type: Any, *topics: str, **given: Any) -> SparkRead:
    codec = codec_of(row_type)
    return hr.source.kafka(list(topics) or "clicks", **given).bind(codec).spark(codec)


def test_json_comes_from_the_value_and_every_partition_is_a_split() -> None:
    found = read(Click, brokers=["a:1", "b:2"], max_per_epoch=500)
    assert found.format == "kafka"
    assert found.options == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.isolation.level": "read_committed",
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "subscribe": "clicks",
        "maxOffsetsPerTrigger": "500",
    }
    assert found.prepare[0].startswith("from_json(") and "`at` STRING" in found.prepare[0]
    assert found.columns["n"] == "coalesce(__json.`n`, CAST('1' AS BIGINT))"
    assert found.split == "concat(topic, '-', CAST(`partition` AS STRING))"
    assert found.keep == "`value` IS NOT NULL"
    assert found.bad is not None and found.raw is not None and "offset" in found.raw


def test_parts_of_a_message_go_to_the_fields_named_for_them() -> None:
    found = read(
        Everything,
        format="bytes",
        key="user",
        timestamp=Everything.at,
        topic_field="topic",
        partition="part",
        offset=Everything.where,
        headers={"trace-id": Everything.trace},
        value="body",
    )
    assert found.columns["user"] == "`__user`" and "`__user`" in found.prepare[0]
    assert found.columns["at"] == "CAST(`timestamp` AS TIMESTAMP)"
    assert found.columns["where"] == "CAST(`offset` AS BIGINT)"
    assert "'trace-id'" in " ".join(found.prepare)
    assert found.options["includeHeaders"] == "true"


def test_the_value_need_not_hold_what_other_parts_say() -> None:
    assert "`user`" not in read(Click, key=Click.user).prepare[0]


def test_the_only_field_left_takes_a_text_or_bytes() -> None:
    assert "try_validate_utf8" in read(Line, format="text", key="user").prepare[0]
    assert read(str, format="text").columns == {"value": "`__value`"}
    assert read(bytes, format="bytes").columns == {"value": "`value`"}


@pytest.mark.parametrize(
    ("start", "options"),
    [
        ("latest", {"startingOffsets": "latest"}),
        ("2024-01-01T00:00:00Z", {"startingTimestamp": "1704067200000"}),
        (datetime(2024, 1, 1, tzinfo=UTC), {"startingTimestamp": "1704067200000"}),
        (hr.timestamp("2024-01-01"), {"startingTimestamp": "1704067200000"}),
        ({0: 5, 1: "latest"}, {"startingOffsets": '{"clicks": {"0": 5, "1": -1}}'}),
        ({"clicks": {0: "earliest"}}, {"startingOffsets": '{"clicks": {"0": -2}}'}),
    ],
)
def test_a_start_can_be_said_in_many_ways(start: Any, options: dict[str, str]) -> None:
    assert options.items() <= read(Click, start=start).options.items()


def test_one_set_of_security_options_serves_source_and_sink(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", 'p"w')
    authority = tmp_path / "ca.pem"
    authority.write_text("PEM")
    given = hr.source.kafka(
        "clicks",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="ann",
        sasl_password=hr.secret("KAFKA_PASSWORD"),
        ssl_ca_location=str(authority),
        isolation_level="read_uncommitted",
        groupIdPrefix="shop",
    )
    options = given.bind(codec_of(Click)).spark(codec_of(Click)).options
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="p\\"w";'
    )
    assert options["kafka.ssl.truststore.certificates"] == "PEM"
    assert options["kafka.isolation.level"] == "read_uncommitted"
    assert options["groupIdPrefix"] == "shop"
    assert not [name for name in options if "username" in name or "password" in name]


def test_secrets_are_neither_shown_nor_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    monkeypatch.setenv("KAFKA_BROKERS", "hidden-host:9092")
    given = hr.source.kafka(
        "clicks",
        brokers=hr.secret("KAFKA_BROKERS"),
        sasl_username="ann",
        sasl_password=hr.secret("KAFKA_PASSWORD"),
    )
    codec = codec_of(Click)
    shown = repr(given.bind(codec).spark(codec))
    shipped = pickle.dumps(given)
    assert "s3cret" not in shown and "hidden-host" not in shown
    assert b"s3cret" not in shipped and b"hidden-host" not in shipped


def test_tombstones_are_left_out_kept_or_bad() -> None:
    assert read(Click, tombstones="keep").keep is None
    error = read(Click, tombstones="error")
    assert error.keep is None and error.raw is not None and "tombstone" in error.raw


def test_explain_tells_topic_and_format() -> None:
    app = hr.App("shop")
    app.read("clicks", hr.source.kafka("clicks"), Click).write(hr.sink.discard())
    assert "read kafka clicks (json)" in app.explain()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (hr.source.kafka, "neither"),
        (lambda: hr.source.kafka("a", pattern="b"), "both"),
        (lambda: hr.source.kafka("a,b"), "'a,b' is no name of a topic"),
        (lambda: hr.source.kafka(pattern="("), "no regular expression"),
        (lambda: hr.source.kafka("a", brokers=" "), "no brokers"),
        (lambda: hr.source.kafka("a", format="xml"), "format cannot be 'xml'"),
        (lambda: hr.source.kafka("a", start="sometime"), "invalid start="),
        (lambda: hr.source.kafka("a", start={0: -5}), "invalid offset in start="),
        (lambda: hr.source.kafka("a", start={"b": {0: 1}}), "invalid offsets in start="),
        (lambda: hr.source.kafka(["a", "b"], start={0: 1}), "those of one topic"),
        (lambda: hr.source.kafka("a", max_per_epoch=0), "max_per_epoch cannot be 0"),
        (lambda: hr.source.kafka("a", group_id="mine"), "offsets are kept in the store"),
        (lambda: hr.source.kafka("a", startingOffsets="latest"), "use start="),
        (lambda: hr.source.kafka("a", minPartitions=8), "stay in order"),
        (lambda: hr.source.kafka("a", key=5), "key= takes a field"),
        (lambda: hr.source.kafka("a", tombstones="drop"), "tombstones cannot be 'drop'"),
        (lambda: read(Click, sasl_username="ann"), "the login at the brokers is not complete"),
        (lambda: read(Click, ssl_ca_location="/no/such/file"), "file of ssl_ca_location cannot be read"),
        (lambda: read(Click, key="usr"), "did you mean user"),
        (lambda: read(Click, key="user", topic_field=Click.user), "cannot take two parts"),
        (lambda: read(Click, timestamp=Click.user), "cannot take the timestamp"),
        (lambda: read(Click, partition="user"), "cannot take the partition"),
        (lambda: read(Click, headers="user"), "cannot take the headers"),
        (lambda: read(Click, format="text"), "3 fields could take it"),
        (lambda: read(str, format="bytes"), "cannot take the value"),
    ],
)
def test_a_mistake_is_found_while_the_program_is_built(make: Any, says: str) -> None:
    with pytest.raises(ProgramError) as caught:
        make()
    assert says in str(caught.value)
    assert caught.value.expected and caught.value.next_move and caught.value.where
