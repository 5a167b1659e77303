"""`source.kafka` with a real broker: what is decoded, where reading starts and goes on, what is told."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import headrace as hr
from headrace.errors import BadRow, EpochFailed, InputLost, SettingsError
from headrace.model.ids import MIN_TIME
from headrace.read.store import Store, newest_manifests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.kafka import Broker

pytestmark = pytest.mark.spark

NOON = int(hr.timestamp("2024-01-01T12:00:00"))


class Click(hr.Record):
    user: str
    n: int
    at: hr.Timestamp
    part: int = -1


class Letter(hr.Record):
    """A field for every part of a message."""

    user: int
    text: str
    at: hr.Timestamp
    topic: str
    part: int
    at_offset: int
    headers: dict[str, str] = {}
    color: str = "grey"


def new_topic(broker: Broker, partitions: int = 1) -> str:
    return broker.topic(f"t-{uuid.uuid4().hex[:12]}", partitions)


def send(broker: Broker, topic: str, *values: Any, partition: int = 0, **more: Any) -> None:
    """Messages in one partition; what is not text or bytes goes as JSON."""
    plain = (value if value is None or isinstance(value, str | bytes) else json.dumps(value) for value in values)
    broker.send(topic, *({"value": value, "partition": partition, **more} for value in plain))


def abort(broker: Broker, topic: str, *values: Any) -> None:
    """Messages of a transaction that comes to nothing."""
    from confluent_kafka import Producer

    out = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 0})
    out.init_transactions(90)
    out.begin_transaction()
    for value in values:
        out.produce(topic, value=json.dumps(value), partition=0)
    out.flush(90)
    out.abort_transaction(90)


def clicks(numbers: range, second: int = 0) -> list[dict[str, Any]]:
    return [{"user": f"u{n % 3}", "n": n, "at": f"2024-01-01T12:00:{second:02}Z"} for n in numbers]


def collect(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for file in path.rglob("*.json*") for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def numbers(path: Path) -> list[int]:
    return sorted(row["n"] for row in collect(path))


def copying(source: Any, out: Path, row_type: Any = Click, errors: Path | None = None) -> hr.App:
    """A program that writes down what it reads."""
    app = hr.App("copying")
    rows = app.read("rows", source, row_type)
    rows.write(hr.sink.files(out))
    if errors is not None:
        rows.errors.write(hr.sink.files(errors))
    return app


def catch_up(app: hr.App, store: Path, session: SparkSession, **settings: Any) -> None:
    app.start(until="caught_up", store=store, spark=session, parallelism=1, **settings).wait()


def wait_until(done: Callable[[], bool], run: hr.Run | None = None, seconds: float = 300.0) -> None:
    """Longer than two minutes: so long a consumer of Spark may wait for a broker before its task is tried again."""
    ends = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < ends, f"it did not happen in time; Spark is at:\n{where_spark_is()}"
        if run is not None:
            run.wait(0.05)
        else:
            time.sleep(0.05)


def where_spark_is() -> str:
    """What the threads do that run queries and tasks."""
    from pyspark import SparkContext

    jvm = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
    stacks = jvm.java.lang.Thread.getAllStackTraces()
    told = []
    for thread in stacks.keySet():
        if str(thread.getName()).startswith(("stream execution", "Executor task launch", "kafka-admin")):
            told.append("\n  ".join([thread.getName(), *(str(frame) for frame in list(stacks[thread])[:25])]))
    return "\n".join(told)


class Note(hr.Record):
    body: str | None = None
    user: str | None = None


def size(message: bytes) -> int:
    return len(message)


def test_every_part_of_a_message_reaches_its_field_as_json_text_or_bytes(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    letters, notes = new_topic(kafka, 2), new_topic(kafka)
    headers = [("trace-id", b"old"), ("trace-id", b"abc"), ("via", b"web"), ("none", None)]
    send(kafka, letters, {"text": "hi"}, partition=1, key="17", headers=headers, timestamp=NOON // 1000)
    send(kafka, letters, {"text": "ü", "color": "red"}, key="18", timestamp=NOON // 1000 + 1)
    send(kafka, notes, "plain", None, key="ann")
    app, at = hr.App("letters"), cast("dict[str, Any]", {"brokers": kafka.bootstrap})
    parts = hr.source.kafka(
        letters,
        key=Letter.user,
        timestamp=Letter.at,
        topic_field=Letter.topic,
        partition=Letter.part,
        offset="at_offset",
        headers="headers",
        **at,
    )
    app.read("letters", parts, Letter).write(hr.sink.files(tmp_path / "letters"))
    kept = hr.source.kafka(notes, format="text", key=Note.user, tombstones="keep", **at)
    app.read("notes", kept, Note).write(hr.sink.files(tmp_path / "notes"))
    named = hr.source.kafka(pattern=f"{letters}|nothing", format="text", headers={"trace-id": "user"}, **at)
    app.read("named", named, Note).write(hr.sink.files(tmp_path / "named"))
    raw = app.read("raw", hr.source.kafka(notes, format="bytes", **at), bytes)
    raw.map(size).write(hr.sink.files(tmp_path / "sizes"))
    catch_up(app, tmp_path / "store", kafka_spark)
    assert collect(tmp_path / "letters") == sorted(
        [
            {
                "user": 17, "text": "hi", "at": "2024-01-01T12:00:00Z", "topic": letters, "part": 1, "at_offset": 0,
                "headers": {"trace-id": "abc", "via": "web", "none": ""}, "color": "grey",
            },
            {
                "user": 18, "text": "ü", "at": "2024-01-01T12:00:00.001Z", "topic": letters, "part": 0, "at_offset": 0,
                "headers": {}, "color": "red",
            },
        ],
        key=lambda row: json.dumps(row, sort_keys=True),
    )  # fmt: skip
    assert collect(tmp_path / "notes") == [{"body": "plain", "user": "ann"}, {"body": None, "user": "ann"}]
    assert {row["user"] for row in collect(tmp_path / "named")} == {"abc", None}
    assert collect(tmp_path / "sizes") == [{"value": 5}], "by default a tombstone is no row"


BAD = {
    "not json": "JSON",
    '{"user": "a", "n": "many", "at": "2024-01-01T12:00:00Z"}': "Expected `int`, got `str` - at `$.n`",
    '{"user": "a", "at": "2024-01-01T12:00:00Z"}': "missing required field `n`",
    '{"user": "a", "n": 1, "at": 1704110400}': "at is not an ISO time",
    "": "not a JSON object",
    "null": "",
    "[1]": "",
    b'{"user": "\xff", "n": 1}': "JSON",
}


def test_undecodable_messages_go_to_errors_or_stop_the_job_with_their_place(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic(kafka)
    send(kafka, topic, *clicks(range(2)), *BAD, None, *clicks(range(2, 3)))
    source = hr.source.kafka(topic, brokers=kafka.bootstrap, tombstones="error")
    catch_up(copying(source, tmp_path / "out", Click, tmp_path / "bad"), tmp_path / "one", kafka_spark)
    assert numbers(tmp_path / "out") == [0, 1, 2]
    told = {row["error"].partition(": ")[0]: row["error"].partition(": ")[2] for row in collect(tmp_path / "bad")}
    assert set(told) == {f"topic {topic}, partition 0, offset {offset}" for offset in range(2, 3 + len(BAD))}
    for offset, reason in enumerate([*BAD.values(), "a tombstone"], 2):
        assert reason in told[f"topic {topic}, partition 0, offset {offset}"]

    with pytest.raises(BadRow) as stopped:
        catch_up(copying(source, tmp_path / "none"), tmp_path / "two", kafka_spark)
    assert stopped.value.where.startswith(f"topic {topic}, partition 0, offset ")
    assert stopped.value.expected == "a row of Click" and ".errors" in stopped.value.next_move


def test_a_restart_goes_on_where_the_last_epoch_ended_also_from_latest(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    topic, out, store = new_topic(kafka, 2), tmp_path / "out", tmp_path / "store"
    send(kafka, topic, *clicks(range(10)))
    app = copying(hr.source.kafka(topic, brokers=kafka.bootstrap, start="latest"), out)
    catch_up(app, store, kafka_spark)
    assert not collect(out), "what was there before the first start is not read"
    assert Store(str(store)).epochs() == [0], "where it starts is published before any message comes"

    send(kafka, topic, *clicks(range(10, 20)))
    send(kafka, topic, *clicks(range(20, 30)), partition=1)
    catch_up(app, store, kafka_spark)
    assert numbers(out) == list(range(10, 30))

    send(kafka, topic, *clicks(range(30, 80)))
    send(kafka, topic, *clicks(range(80, 130)), partition=1)
    catch_up(copying(hr.source.kafka(topic, brokers=kafka.bootstrap, max_per_epoch=40), out), store, kafka_spark)
    assert numbers(out) == list(range(10, 130)), "nothing is lost or doubled"
    behind = [manifest.behind["rows"] for manifest in newest_manifests(Store(str(store)), 0)]
    assert [each.left for each in behind[-3:]] == [60, 20, 0], "epochs are bounded, and say what is left"
    assert [each.percent for each in behind[-3:]] == [40, 80, None], "of what was left when this run began"
    inside = "".join(file.read_text(errors="replace") for file in store.rglob("*.json"))
    assert topic in inside and kafka.bootstrap not in inside, "the store knows offsets, not how to connect"


def test_reading_starts_at_a_time_or_at_offsets_and_sees_committed_messages_only(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic(kafka, 2)
    for n, message in enumerate(clicks(range(4))):
        send(kafka, topic, message, timestamp=NOON // 1000 + n * 1000)
    send(kafka, topic, *clicks(range(4, 6)), partition=1, timestamp=NOON // 1000 - 1)
    abort(kafka, topic, *clicks(range(6, 9)))
    app = hr.App("starts")
    at_time = hr.source.kafka(topic, brokers=kafka.bootstrap, start="2024-01-01T12:00:02Z")
    app.read("at_time", at_time, Click).write(hr.sink.files(tmp_path / "time"))
    at_offsets = hr.source.kafka(topic, brokers=kafka.bootstrap, start={0: 3, 1: "earliest"})
    app.read("at_offsets", at_offsets, Click).write(hr.sink.files(tmp_path / "offsets"))
    catch_up(app, tmp_path / "store", kafka_spark)
    assert numbers(tmp_path / "time") == [2, 3], "a partition without newer messages is read from its end"
    assert numbers(tmp_path / "offsets") == [3, 4, 5], "and what a transaction took back is never read"


@pytest.mark.timeout(1200)
def test_a_running_job_waits_for_the_slowest_partition_finds_new_ones_and_survives_the_death_of_the_broker(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    topic, out, store = new_topic(kafka, 2), tmp_path / "out", tmp_path / "store"
    send(kafka, topic, *clicks(range(3), second=50))
    app = hr.App("timed")
    rows = app.read("rows", hr.source.kafka(topic, brokers=kafka.bootstrap), Click, time=Click.at)
    rows.write(hr.sink.files(out))
    counted = rows.key_by(Click.user).window(hr.tumbling("20s")).aggregate(n=hr.count()).named("counted")
    counted.finals().write(hr.sink.files(tmp_path / "counted"))
    run = app.start(store=store, spark=kafka_spark, parallelism=1, epoch="200ms")
    try:
        wait_until(lambda: len(collect(out)) == 3, run)
        silent = newest_manifests(Store(str(store)), 1)[0].time.sources["rows"].splits[f"{topic}-1"]
        assert silent.max_us == MIN_TIME, "it has said nothing, and is waited for"
        send(kafka, topic, *clicks(range(3, 4), second=10), partition=1)
        wait_until(lambda: len(collect(out)) == 4, run)
        seen = newest_manifests(Store(str(store)), 1)[0].time.sources["rows"].splits
        assert {split: time.max_us for split, time in seen.items()} == {
            f"{topic}-0": NOON + 50_000_000,
            f"{topic}-1": NOON + 10_000_000,
        }
        assert not collect(tmp_path / "counted"), "the window of 12:00:00 is open: partition 1 stands at 12:00:10"
        send(kafka, topic, *clicks(range(4, 5), second=45), partition=1)
        wait_until(lambda: [row["n"] for row in collect(tmp_path / "counted")] == [1], run)

        kafka.stop(hard=True)
        kafka.start()
        kafka.add_partitions(topic, 3)
        send(kafka, topic, *clicks(range(5, 15), second=55))
        send(kafka, topic, *clicks(range(15, 25), second=55), partition=2)
        wait_until(lambda: len(numbers(out)) >= 25, run)
    finally:
        run.stop()
    assert numbers(out) == list(range(25))


def test_messages_that_kafka_deleted_stop_the_job_unless_it_may_go_on(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic, out, store = new_topic(kafka), tmp_path / "out", tmp_path / "store"
    send(kafka, topic, *clicks(range(30)))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 25)]).values():
        deleted.result(90)
    with pytest.raises(InputLost) as lost:
        source = hr.source.kafka(topic, brokers=kafka.bootstrap, start={0: 10})
        catch_up(copying(source, out), store, kafka_spark)
    assert lost.value.where == f"topic {topic}, partition 0"
    assert lost.value.expected == "offsets 10 to 29, which come next"
    assert 'on_data_loss="skip"' in lost.value.next_move
    source = hr.source.kafka(topic, brokers=kafka.bootstrap, start={0: 10}, on_data_loss="skip")
    catch_up(copying(source, out), store, kafka_spark)
    assert numbers(out) == list(range(25, 30))


def test_a_missing_topic_and_a_refused_login_are_told_in_words_and_without_secrets(
    kafka: Broker, kafka_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = hr.source.kafka("nobody-made-this", brokers=kafka.bootstrap)
    with pytest.raises(EpochFailed) as failed:
        catch_up(copying(source, tmp_path / "out"), tmp_path / "one", kafka_spark, restarts=0)
    assert failed.value.what == "Kafka has no such topic"
    assert "nobody-made-this" in failed.value.where

    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret-word")
    login = {"sasl_username": "ann", "sasl_password": hr.secret("KAFKA_PASSWORD")}
    source = hr.source.kafka("any", brokers=kafka.bootstrap, security_protocol="SASL_PLAINTEXT", **login)
    app = copying(source, tmp_path / "out")
    with pytest.raises(SettingsError) as refused:
        catch_up(app, tmp_path / "two", kafka_spark)
    assert refused.value.what == "the Kafka brokers refuse this client"
    written = b"".join(file.read_bytes() for file in (tmp_path / "two").rglob("*") if file.is_file())
    assert "s3cret-word" not in f"{refused.value}{refused.value.__cause__}{app.explain()}{written!r}"
