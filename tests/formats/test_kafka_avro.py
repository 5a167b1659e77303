"""Avro in Kafka's messages with a schema registry, without a broker: what tasks read and stage, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.kafka.rows import encode_messages
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.kafka.source import KafkaSource
from headrace.connectors.source_contract import BadRows
from headrace.errors import EpochFailed, ProgramError, SettingsError, SinkFailed, SinkUnavailable
from headrace.model.rows import codec_of
from headrace.model.wire import ROW_BAD, ROW_SPLIT
from headrace.plan.rules.decoding import plan_decoding
from headrace.plan.ship import dump_program, load_program
from headrace.runtime.source_rows import SourceRows, beside_bad
from headrace.testing.taps import compile_with_taps
from tests.services.registry import FakeRegistry, running_registry


class Sale(hr.Record):
    shop: str
    cents: int
    at: hr.Timestamp = hr.Timestamp(0)
    note: str | None = None


SALES = [Sale("Ulm", 5, hr.Timestamp(1_000_000)), Sale("Bonn", -7, hr.Timestamp(2_000_000), "late"), Sale("Ulm", 0)]


def record(name: str, **fields: Any) -> str:
    said = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "fields": said})


V1 = record("Sale", shop="string", cents="int")
V2 = json.dumps(
    {"type": "record", "name": "Sale", "fields": [
        {"name": "cents", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "till", "type": "int", "default": 0},
        {"name": "shop", "type": "string"},
    ]}
)  # fmt: skip


def source(registry: Any, row_type: Any = Sale, **given: Any) -> KafkaSource:
    made = hr.source.kafka("sales", format="avro", registry=registry, **given).bind(codec_of(row_type))
    assert isinstance(made, KafkaSource)
    return made


def sink(registry: Any, **given: Any) -> KafkaSink:
    made = hr.sink.kafka("sales", format="avro", registry=registry, **given).bind(codec_of(Sale), "out")
    assert isinstance(made, KafkaSink)
    return made


def handed_out(values: list[bytes | None], **fields: list[Any]) -> pa.RecordBatch:
    """What Spark's connector gives of messages, as `MessageRows.pieces` asks it."""
    count = len(values)
    columns = {
        "value": pa.array(values, pa.binary()),
        "__split": pa.array(["sales-0"] * count),
        "__place": pa.array([f"topic sales, partition 0, offset {n}" for n in range(count)]),
        "__bad": pa.nulls(count, pa.string()),
        **fields,
    }
    return pa.RecordBatch.from_pydict(columns)


def read(made: KafkaSource, pieces: pa.RecordBatch, row_type: Any = Sale) -> tuple[list[Any], list[str]]:
    codec = codec_of(row_type)
    # It travels to a worker first.
    rows = load_program(dump_program(made.decoder(codec)))
    good: list[Any] = []
    bad: list[str] = []
    for part in rows.read(pieces):
        if isinstance(part, BadRows):
            told = [made.explain_bad(codec, text) for text in part.texts]
            bad += [f"{each.where}: {each.reason}" for each in told]
        else:
            assert part.schema.names == [*codec.schema.names, ROW_SPLIT]
            good += codec.to_objects(part.columns[:-1])
    return good, bad


def serialized(registry: FakeRegistry, schema: str, *rows: dict[str, Any]) -> list[bytes]:
    """As producers with Confluent's own serializer write them."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    write = AvroSerializer(SchemaRegistryClient({"url": registry.url}), schema)
    return [write(row, SerializationContext("sales", MessageField.VALUE)) for row in rows]


def test_messages_of_several_schemas_are_read_side_by_side(registry: FakeRegistry) -> None:
    old = serialized(registry, V1, {"shop": "Ulm", "cents": 5}, {"shop": "Bonn", "cents": 6})
    new = serialized(registry, V2, {"shop": "Köln", "cents": 7, "note": "x", "till": 3})
    found, bad = read(source(registry.url), handed_out([old[0], new[0], old[1]]))
    assert found == [Sale("Ulm", 5), Sale("Köln", 7, note="x"), Sale("Bonn", 6)] and not bad


def test_each_schema_is_asked_for_once(registry: FakeRegistry) -> None:
    made = source(registry.url)
    values = serialized(registry, V1, *({"shop": "Ulm", "cents": n} for n in range(3)))
    registry.asked.clear()
    rows = made.decoder(codec_of(Sale))
    assert rows is not None
    for _ in range(3):
        assert list(rows.read(handed_out(values)))
    registry.away = True
    assert read(made, handed_out(values))[0] == [Sale("Ulm", n) for n in range(3)], "another decoder, in this process"
    assert registry.asked == ["GET /schemas/ids/1"]


def test_what_cannot_be_read_is_told_with_its_place(registry: FakeRegistry) -> None:
    good = serialized(registry, V1, {"shop": "Ulm", "cents": 5})[0]
    other = registry.add("other", record("Other", a="int"))
    values = [b"", b"{}", good[:-1], b"\x00\x00\x00\x00\x63ab", bytes([0, 0, 0, 0, other, 2]), good + b"!", good]
    found, bad = read(source(registry.url), handed_out(values))
    assert found == [Sale("Ulm", 5)]
    assert [line.removeprefix("topic sales, partition 0, offset ") for line in bad] == [
        "0: it ends too early",
        "1: it ends too early",
        "2: it ends too early",
        "3: the schema registry has no schema 99",
        f"4: schema {other}: record Other has no field shop, cents",
        "5: more bytes follow than its schema says",
    ]


def test_other_parts_of_a_message_fill_their_fields_and_tombstones_are_rows_of_defaults(registry: FakeRegistry) -> None:
    class Kept(hr.Record):
        id: str
        shop: str = "none"
        cents: int = 0

    made = source(registry.url, Kept, key="id", tombstones="keep")
    rows = made.decoder(codec_of(Kept))
    assert rows is not None and rows.pieces[-1].endswith("AS `__field_id`") and rows.keep == "true"
    value = serialized(registry, V1, {"shop": "Ulm", "cents": 5})[0]
    found, bad = read(made, handed_out([value, None], __field_id=pa.array(["a", "b"])), Kept)
    assert sorted(found, key=repr) == [Kept("a", "Ulm", 5), Kept("b")] and not bad
    assert source(registry.url).decoder(codec_of(Sale)).keep == "`value` IS NOT NULL"  # type: ignore[union-attr]


def test_the_row_type_is_held_against_the_newest_schema_when_a_run_starts(registry: FakeRegistry) -> None:
    codec = codec_of(Sale)
    made = source(registry.url)
    assert made.spark(codec).decoded, "the subject is not there yet"
    registry.add("sales-value", record("Sale", shop="string"))
    with pytest.raises(ProgramError, match=r"sales-value, schema 1: record Sale has no field cents") as caught:
        made.spark(codec)
    assert 'source.kafka("sales")' in str(caught.value)


def test_a_registry_that_does_not_answer_is_asked_again_later(registry: FakeRegistry) -> None:
    patient = {"url": registry.url, "max.retries": 0}
    registry.away = True
    with pytest.raises(EpochFailed, match="the schema registry does not answer, asked for schema 5"):
        read(source(patient), handed_out([b"\x00\x00\x00\x00\x05"]))
    with pytest.raises(EpochFailed, match="does not answer"):
        source({"url": "http://127.0.0.1:1", "max.retries": 0}).spark(codec_of(Sale))
    with pytest.raises(SinkUnavailable, match="does not answer"):
        sink(patient)._row_encoder(codec_of(Sale))


def test_a_login_is_a_secret_and_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", "ann:hunter2")
    with running_registry("ann:hunter2") as guarded:
        guarded.add("sales-value", V1)
        given = {"url": guarded.url, "basic.auth.user.info": hr.secret("REGISTRY_LOGIN")}
        made = source(given)
        made.spark(codec_of(Sale))
        assert b"hunter2" not in pickle.dumps(made) and "hunter2" not in repr(made.binary)
        with pytest.raises(SettingsError, match="refuses the login") as caught:
            source(guarded.url).spark(codec_of(Sale))
        assert "hr.secret" in str(caught.value)
    with pytest.raises(EpochFailed) as away:
        source({"url": "http://ann:hunter2@127.0.0.1:1", "max.retries": 0}).spark(codec_of(Sale))
    assert "hunter2" not in str(away.value)


def staged(made: KafkaSink, rows: list[Any]) -> list[bytes]:
    codec = codec_of(type(rows[0]))
    batch = pa.RecordBatch.from_arrays(codec.to_arrays(rows), schema=codec.schema)
    values: list[bytes] = encode_messages(batch, codec, made.message_form(codec)).column("value").to_pylist()
    return values


def test_messages_have_the_bytes_that_confluents_serializer_writes(registry: FakeRegistry) -> None:
    values = staged(sink(registry.url), SALES)
    text = registry.schemas[1]["schema"]
    said = [{"shop": row.shop, "cents": row.cents, "at": int(row.at), "note": row.note} for row in SALES]
    assert values == serialized(registry, text, *said)
    assert registry.subjects == {"sales-value": [1]}
    assert read(source(registry.url), handed_out(list(values)))[0] == SALES


def test_the_schema_is_looked_up_where_the_sink_is_not_to_register_it(registry: FakeRegistry) -> None:
    with pytest.raises(SinkFailed, match="no subject sales-value") as caught:
        staged(sink(registry.url, register=False), SALES)
    assert "register=True" in str(caught.value)
    kinds = {"shop": "string", "cents": "int", "note": ["null", "string"]}
    registry.add("sales-value", record("Sale", **kinds, at="long"))
    with pytest.raises(SinkFailed, match="at is Timestamp, which long cannot say"):
        staged(sink(registry.url, register=False), SALES)
    id = registry.add("sales-value", record("Sale", **kinds, at={"type": "long", "logicalType": "timestamp-micros"}))
    values = staged(sink(registry.url, register=False), SALES)
    assert values[0][:5] == bytes([0, 0, 0, 0, id]) and len(registry.schemas) == 2
    own = record("Sale", at={"type": "long", "logicalType": "timestamp-millis"}, **kinds)
    with pytest.raises(SinkFailed, match="the subject sales-value does not have this schema"):
        staged(sink(registry.url, register=False, schema=own), SALES)


def test_a_schema_that_the_registry_refuses_is_told_in_its_words(registry: FakeRegistry) -> None:
    registry.add("sales-value", V1)
    registry.refuse.add("sales-value")
    with pytest.raises(SinkFailed, match="does not go with the earlier ones of subject sales-value") as caught:
        staged(sink(registry.url), SALES)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in str(caught.value) and "subject=" in str(caught.value)


@pytest.mark.parametrize(
    ("subject", "name"),
    [(None, "sales-value"), ("{record}", "Sale"), ("{topic}-{record}", "sales-Sale"), ("all", "all")],
)
def test_subjects_are_named_by_topic_record_or_both(registry: FakeRegistry, subject: str | None, name: str) -> None:
    staged(sink(registry.url, subject=subject), SALES)
    assert list(registry.subjects) == [name]


def test_without_a_registry_messages_are_bare(tmp_path: Path) -> None:
    file = tmp_path / "sale.avsc"
    file.write_text(V1)

    class Bare(hr.Record):
        shop: str
        cents: int

    rows = [Bare("Ulm", 3)]
    made = hr.sink.kafka("sales", format="avro", schema=file).bind(codec_of(Bare), "out")
    assert isinstance(made, KafkaSink) and staged(made, rows) == [b"\x06Ulm\x06"]
    for schema in (V1, json.loads(V1), file, str(file), None):
        assert read(source(None, Bare, schema=schema), handed_out([b"\x06Ulm\x06"]), Bare) == (rows, [])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hr.source.kafka("a", format="text", registry="http://r"), "registry= is for Avro and Protobuf"),
        (lambda: hr.sink.kafka("a", schema=V1), "schema= is for Avro and Protobuf"),
        (lambda: hr.sink.kafka("a", format="avro", subject="x"), "subject= is for a schema registry"),
        (lambda: sink("http://r", subject="{shop}"), "names no subject"),
        (lambda: sink("http://r", value="shop"), "value= is for text and bytes"),
        (lambda: hr.source.kafka("a", format="avro", registry={"port": 8081}), "registry= names a schema registry"),
        (lambda: hr.source.kafka("a", format="avro", schema="{"), "schema= is no schema of Avro"),
        (lambda: source("http://r", schema=V1), "a source has a registry or a schema"),
        (lambda: source("http://r", dict[int, str]), "a map whose keys are not text"),
        (
            lambda: source(None, schema=record("A")),
            "has no field shop, cents",
        ),
    ],
)
def test_a_mistake_is_found_while_the_program_is_built(make: Any, says: str) -> None:
    with pytest.raises(ProgramError) as caught:
        make()
    assert says in str(caught.value)


def test_workers_decode_and_evaluate_unless_only_the_jvm_can(registry: FakeRegistry) -> None:
    def planned(time: str) -> Any:
        app = hr.App("sales")
        sales = app.read("sales", hr.source.kafka("sales", format="avro", registry=registry.url), Sale, time=time)
        sales.where("cents > 0").write(hr.sink.collect())
        return plan_decoding(compile_with_taps(app, 1, None, feed_sinks=True)[0]).sources[0]

    assert not planned("to_timestamp(soundex(shop))").decoded
    plan = planned("at")
    assert plan.decoded
    values = serialized(registry, V1, {"shop": "Ulm", "cents": 5})
    rows = plan.source.decoder(plan.codec)
    bad, batch = SourceRows(plan).decode(rows, [handed_out([*values, b""])])
    assert batch.column(ROW_SPLIT).to_pylist() == ["sales-0"] and batch.column("cents").to_pylist() == [5]
    assert "it ends too early" in bad.column(ROW_BAD)[0].as_py()
    both = pa.Table.from_batches(beside_bad(rows, plan.codec.schema, [handed_out([*values, b""])]))
    assert both.num_rows == 2 and both.column(ROW_SPLIT).to_pylist().count("sales-0") == 1
