"""Messages reach a real broker once, whatever happens between staging and the commit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import headrace as hr
from headrace.connectors.kafka import release as kafka_release
from headrace.connectors.kafka import sending as kafka_sending
from headrace.connectors.sink_contract import Sink
from headrace.errors import Fenced, ProgramError, SinkFailed, SinkUnavailable
from headrace.model.crash import Crash
from headrace.model.rows import codec_of
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows
from tests.services.messages import read_messages

if TYPE_CHECKING:
    from confluent_kafka import Message

    from tests.services.kafka import Broker


class Sale(hr.Record):
    shop: str
    cents: int


SALES = [Sale(f"shop {n % 3}", n) for n in range(9)]
CODEC = codec_of(Sale)


def new_name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def started(sink: Sink, row_type: Any = Sale) -> Sink:
    bound = sink.bind(codec_of(row_type), "out")
    bound.start()
    return bound


def sales_in(kafka: Broker, topic: str) -> list[Sale]:
    return [CODEC.from_json(message.value()) for message in read_messages(kafka.bootstrap, topic)]


def release(sink: Sink, staging: Staging, epoch: int, rows: list[Any], row_type: Any = Sale) -> None:
    sink.release(stage_rows(sink, codec_of(row_type), staging, epoch, [rows]), staging.release(epoch))


def written(kafka: Broker, sink: hr.sink.Sink, topic: str, rows: list[Any], folder: Path) -> list[Message]:
    """What is in the topic after one epoch with these rows."""
    row_type = type(rows[0])
    bound = started(sink, row_type)
    release(bound, Staging(folder), 0, rows, row_type)
    bound.close()
    return read_messages(kafka.bootstrap, topic)


# -- the contract -------------------------------------------------------------------------------------------------


def targets(kafka: Broker, guarantee: Any, *, stops: bool) -> Callable[[], SinkTarget]:
    def new_target() -> SinkTarget:
        topic = kafka.topic(new_name(), 2)
        return SinkTarget(
            lambda: hr.sink.kafka(topic, brokers=kafka.bootstrap, key=Sale.shop, guarantee=guarantee),
            lambda: sales_in(kafka, topic),
            stop=kafka.stop if stops else None,
            start=kafka.start if stops else None,
        )

    return new_target


def test_the_exactly_once_sink_keeps_the_contract(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # While the broker is away, a release waits this long for an answer before it says so.
    monkeypatch.setattr(kafka_release, "ANSWER_S", 1.0)
    verify_sink(targets(kafka, "exactly_once", stops=True), Sale, SALES, staged=("inline",))


def test_the_at_least_once_sink_keeps_the_contract(kafka: Broker) -> None:
    verify_sink(targets(kafka, "at_least_once", stops=False), Sale, SALES, staged=("inline",))


def test_a_broker_that_dies_during_a_release_costs_a_retry_and_nothing_else(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sending, "DOWN_S", 0.5)
    topic, other = kafka.topic(new_name()), kafka.topic(new_name())
    exact = started(hr.sink.kafka(topic, brokers=kafka.bootstrap))
    plain = started(hr.sink.kafka(other, brokers=kafka.bootstrap, guarantee="at_least_once"))
    staging = Staging(tmp_path)
    for sink in (exact, plain):
        release(sink, staging, 0, SALES[:3])
    parts = stage_rows(exact, CODEC, staging, 1, [SALES[3:6], SALES[6:]])
    struck = staging.release(1)
    struck.meanwhile, struck.meanwhile_at = lambda: kafka.stop(hard=True), 1
    try:
        for sink, ctx in ((exact, struck), (plain, staging.release(1))):
            with pytest.raises(SinkUnavailable, match="Kafka does not answer"):
                sink.release(parts, ctx)
    finally:
        kafka.start()
    for sink in (exact, plain):
        sink.release(parts, staging.release(1))
    assert sales_in(kafka, topic) == SALES
    assert set(sales_in(kafka, other)) == set(SALES)


def test_a_driver_that_was_thought_dead_is_shut_out_in_the_middle_of_its_transaction(
    kafka: Broker, tmp_path: Path
) -> None:
    topic = kafka.topic(new_name())
    made = hr.sink.kafka(topic, brokers=kafka.bootstrap)
    old, new = started(made), started(made)
    staging = Staging(tmp_path)
    parts = stage_rows(old, CODEC, staging, 0, [SALES[:4], SALES[4:]])
    sleeping = staging.release(0)
    sleeping.meanwhile, sleeping.meanwhile_at = lambda: new.release(parts, staging.release(0)), 1
    with pytest.raises(Fenced, match="another driver of this job writes to Kafka"):
        old.release(parts, sleeping)
    assert sales_in(kafka, topic) == SALES
    old.release(parts, staging.release(0))  # it finds out that the epoch is there, and shuts nobody out
    release(new, staging, 1, [Sale("new", 1)])
    assert sales_in(kafka, topic) == [*SALES, Sale("new", 1)]


def test_an_epoch_that_outlasts_its_transaction_is_continued_where_it_was(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s = 0.0

    def let_time_pass() -> None:
        nonlocal passed_s
        passed_s += 30

    clock = SimpleNamespace(time=time.time, sleep=time.sleep, monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr(kafka_release, "time", clock)
    topic = kafka.topic(new_name())
    made = hr.sink.kafka(topic, brokers=kafka.bootstrap, transaction_timeout_ms=60_000)
    sink = started(made)
    staging = Staging(tmp_path)
    parts = stage_rows(sink, CODEC, staging, 0, [SALES[:3], SALES[3:6], SALES[6:]])
    slow = staging.release(0)
    slow.meanwhile, slow.meanwhile_at, slow.dies_at = let_time_pass, 1, 2
    with suppress(Crash):
        sink.release(parts, slow)
    assert len(sales_in(kafka, topic)) == 6, "what could not wait is out"
    started(made).release(parts, staging.release(0))
    assert sales_in(kafka, topic) == SALES


def test_two_jobs_that_write_to_one_topic_do_not_disturb_each_other(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(new_name())
    made = hr.sink.kafka(topic, brokers=kafka.bootstrap)
    staging = Staging(tmp_path)
    sinks = {job: started(made) for job in ("one", "two")}
    for epoch in range(2):
        for job, sink in sinks.items():
            ctx = staging.release(epoch)
            ctx.job = job
            sink.release(stage_rows(sink, CODEC, staging, epoch, [[Sale(job, epoch)]]), ctx)
    assert sales_in(kafka, topic) == [Sale("one", 0), Sale("two", 0), Sale("one", 1), Sale("two", 1)]


def test_a_transactional_id_is_one_outputs_of_one_store(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, name = kafka.topic(new_name()), new_name()
    made = hr.sink.kafka(topic, brokers=kafka.bootstrap, transactional_id=name)
    staging = Staging(tmp_path)

    def attempt(epoch: int, job: str, output: str, sale: Sale) -> None:
        sink = made.bind(CODEC, output)
        ctx = staging.release(epoch, output)
        ctx.job = job
        try:
            sink.release(stage_rows(sink, CODEC, staging, epoch, [[sale]]), ctx)
        finally:
            sink.close()

    with monkeypatch.context() as earlier:
        # Notes of earlier versions name nobody, and count as ours.
        earlier.setattr(kafka_release, "ReleaseMark", _EarlierMark)
        attempt(0, "one", "sales", SALES[0])
    attempt(0, "one", "sales", SALES[0])
    attempt(1, "one", "sales", SALES[1])
    for epoch, job, output in ((0, "two", "sales"), (2, "two", "sales"), (1, "one", "others")):
        with pytest.raises(SinkFailed, match=f"the transactional id {name} is another output's") as caught:
            attempt(epoch, job, output, Sale("other", epoch))
        assert "epoch 1 of output sales of store one" in str(caught.value)
        assert f"--delete --group {name}" in str(caught.value)
    attempt(2, "one", "renamed", SALES[2])
    assert sales_in(kafka, topic) == SALES[:3]
    _delete_group(kafka, name)
    attempt(0, "two", "sales", SALES[3])
    assert sales_in(kafka, topic) == SALES[:4], "what the error says helps"


class _EarlierMark(kafka_release.ReleaseMark, frozen=True):
    def __post_init__(self) -> None:
        for name in ("job", "output"):
            msgspec.structs.force_setattr(self, name, "")


def _delete_group(kafka: Broker, name: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for deleted in admin.delete_consumer_groups([name]).values():
        deleted.result(60)


# -- messages -----------------------------------------------------------------------------------------------------


class Order(hr.Record):
    id: int
    shop: str | None
    at: hr.Timestamp
    to: str | None = None
    place: int = 0
    price: float = 1.5


def test_json_messages_are_rows_with_their_key_headers_time_partition_and_topic(kafka: Broker, tmp_path: Path) -> None:
    topic, other = kafka.topic(new_name(), 3), kafka.topic(new_name(), 3)
    at = hr.timestamp("2024-05-01T10:00:00.123456Z")
    orders = [Order(1, "a", at, None, 2), Order(2, None, at, other, 1, 2.0)]
    sink = hr.sink.kafka(
        topic, brokers=[kafka.bootstrap], key=(Order.shop, Order.id), partition=Order.place, timestamp="at",
        topic_field=Order.to, headers={"shop": Order.shop, "n": "id"},
    )  # fmt: skip
    [first] = written(kafka, sink, topic, orders, tmp_path)
    [second] = read_messages(kafka.bootstrap, other)
    codec = codec_of(Order)
    assert [codec.from_json(message.value()) for message in (first, second)] == orders
    assert (first.key(), second.key()) == (b'["a",1]', b"[null,2]")
    assert (first.partition(), second.partition()) == (2, 1)
    assert first.timestamp()[1] == 1_714_557_600_123
    assert first.headers() == [("shop", b"a"), ("n", b"1")]
    assert second.headers() == [("shop", None), ("n", b"2")]


class Note(hr.Record):
    key: str
    text: str | None


class Blob(hr.Record):
    key: bytes
    body: bytes | None


def test_text_and_bytes_are_one_column_and_null_is_a_tombstone(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(new_name())
    sink = hr.sink.kafka(topic, brokers=kafka.bootstrap, format="text", key=Note.key)
    notes = written(kafka, sink, topic, [Note("a", "grüezi"), Note("a", None)], tmp_path)
    assert [(m.key(), m.value()) for m in notes] == [(b"a", "grüezi".encode()), (b"a", None)]
    topic = kafka.topic(new_name())
    sink = hr.sink.kafka(topic, brokers=kafka.bootstrap, format="bytes", value="body", key="key")
    blobs = written(kafka, sink, topic, [Blob(b"\x00\xff", b"\x01\n\x02"), Blob(b"k", None)], tmp_path)
    assert [(m.key(), m.value()) for m in blobs] == [(b"\x00\xff", b"\x01\n\x02"), (b"k", None)]


class Circle(hr.Record, tag=True):
    r: float


class Square(hr.Record, tag=True):
    side: list[int]


def test_unions_and_nested_rows_are_written_as_their_codec_says(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(new_name())
    codec = codec_of(Circle | Square)
    sink = hr.sink.kafka(topic, brokers=kafka.bootstrap).bind(codec, "out")
    staging = Staging(tmp_path)
    shapes = [Circle(1.0), Square([1, 2])]
    sink.release(stage_rows(sink, codec, staging, 0, [shapes]), staging.release(0))
    texts = [message.value() for message in read_messages(kafka.bootstrap, topic)]
    assert [codec.from_json(text) for text in texts] == shapes
    assert texts[0] == b'{"type":"Circle","r":1.0}'


def test_a_key_goes_to_the_partition_that_kafkas_own_clients_choose(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(new_name(), 7)
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}  # of Kafka's own tests
    sink = hr.sink.kafka(topic, brokers=kafka.bootstrap, key="shop")
    found = written(kafka, sink, topic, [Sale(key, 1) for key in hashes], tmp_path)
    chosen = {message.key().decode(): message.partition() for message in found}
    assert chosen == {key: (hash & 0x7FFFFFFF) % 7 for key, hash in hashes.items()}


def test_many_messages_keep_their_order_within_a_partition(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.topic(new_name())
    rows = [Sale("x" * (n % 50), n) for n in range(120_000)]
    sink = hr.sink.kafka(topic, brokers=kafka.bootstrap, compression_type="lz4")
    found = written(kafka, sink, topic, rows, tmp_path)
    assert [CODEC.from_json(message.value()).cents for message in found] == list(range(120_000))


# -- what is refused, and in which words ----------------------------------------------------------------------------


def test_a_missing_topic_is_told_with_the_command_that_makes_it_or_is_made(kafka: Broker, tmp_path: Path) -> None:
    topic = new_name()
    with pytest.raises(SinkFailed, match=f"kafka-topics.sh --create --topic {topic}"):
        started(hr.sink.kafka(topic, brokers=kafka.bootstrap))
    made = {"create": {"cleanup.policy": "compact"}, "partitions": 3, "topic_field": "shop"}
    with pytest.raises(SinkFailed, match="a compacted topic needs a key"):
        written(kafka, hr.sink.kafka(topic, brokers=kafka.bootstrap, **made), topic, [Sale("", 1)], tmp_path)
    sink = hr.sink.kafka(topic, brokers=kafka.bootstrap, key="cents", **made)
    other = new_name()
    assert len(written(kafka, sink, topic, [Sale("", 1), Sale(other, 2)], tmp_path)) == 1
    assert len(read_messages(kafka.bootstrap, other)) == 1, "topics of rows are made too"
    from confluent_kafka.admin import AdminClient

    made = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(topic, timeout=60).topics[topic]
    assert len(made.partitions) == 3


def test_a_broker_that_is_not_there_is_worth_a_retry(kafka: Broker) -> None:
    from tests.services import free_port

    with pytest.raises(SinkUnavailable, match="start the broker, or correct brokers"):
        started(hr.sink.kafka("t", brokers=f"127.0.0.1:{free_port()}"))


def test_a_message_that_is_too_large_is_told_with_its_size_before_its_epoch_is_published(
    kafka: Broker, tmp_path: Path
) -> None:
    topic = kafka.topic(new_name())
    sink = started(hr.sink.kafka(topic, brokers=kafka.bootstrap, key="shop", message_max_bytes=2000))
    with pytest.raises(SinkFailed, match=r"a message of [\d,]+ bytes is too large") as caught:
        stage_rows(sink, CODEC, Staging(tmp_path), 0, [[Sale("small", 1), Sale("x" * 3000, 2)]])
    assert "at most 2,000 bytes" in str(caught.value) and "with the key b'xxx" in str(caught.value)


def test_a_message_that_the_topic_refuses_is_told_with_its_size_and_leaves_nothing_open(
    kafka: Broker, tmp_path: Path
) -> None:
    topic = new_name()
    create = {"max.message.bytes": "1000"}
    sink = started(hr.sink.kafka(topic, brokers=kafka.bootstrap, create=create))
    staging = Staging(tmp_path)
    with pytest.raises(
        SinkFailed, match=r"a message of 3,0\d\d bytes is too large.*\n.*max.message.bytes of the topic"
    ):
        release(sink, staging, 0, [Sale("x" * 3000, 1)])
    # A reader of committed messages would wait here for the transaction, if it were still open.
    release(started(hr.sink.kafka(topic, brokers=kafka.bootstrap)), staging, 0, [Sale("small", 1)])
    assert sales_in(kafka, topic) == [Sale("small", 1)]


def test_rows_that_replace_earlier_ones_need_a_key(kafka: Broker) -> None:
    app = hr.App("shop")
    totals = app.read("sales", hr.source.items(SALES), Sale).key_by(Sale.shop).aggregate(n=hr.count())
    totals.write(hr.sink.kafka("totals", brokers="b:9092", key="shop"))
    with pytest.raises(ProgramError, match="can only append rows, and these are updates"):
        totals.write(hr.sink.kafka("all", brokers="b:9092"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hr.sink.kafka("t", brokers="b", compresion_type="zstd"), "compresion.type"),
        (lambda: hr.sink.kafka("t", brokers="b", compression_type="best"), "best"),
        (lambda: hr.sink.kafka("t", brokers="b", acks=1), "a release waits for all replicas"),
        (lambda: hr.sink.kafka("t", brokers="b", format="xml"), "json, text, bytes, avro"),
        (lambda: hr.sink.kafka("t", brokers=""), "needs a topic and brokers"),
        (lambda: hr.sink.kafka("t", brokers="b", key=len), "key takes columns"),
        (lambda: hr.sink.kafka("t", brokers="b", guarantee="exactly"), '"exactly_once" or "at_least_once"'),
        (lambda: hr.sink.kafka("t", brokers="b", key="shopp").bind(CODEC, "out"), "did you mean shop"),
        (lambda: hr.sink.kafka("t", brokers="b", timestamp="cents").bind(CODEC, "out"), "a Timestamp or datetime"),
        (lambda: hr.sink.kafka("t", brokers="b", format="bytes").bind(CODEC, "out"), "which column is the bytes"),
        (lambda: hr.sink.kafka("t", brokers="b", format="text", value="cents").bind(CODEC, "out"), "a str"),
    ],
)
def test_mistakes_are_told_while_the_program_is_built(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ProgramError) as caught:
        make()
    assert says in str(caught.value)
    assert 'sink.kafka("t")' in str(caught.value)


def test_secrets_are_seen_nowhere(monkeypatch: pytest.MonkeyPatch, kafka: Broker) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "swordfish")
    sink = hr.sink.kafka(
        "t", brokers=kafka.bootstrap, security_protocol="sasl_plaintext", sasl_mechanism="PLAIN",
        sasl_username="me", sasl_password=hr.secret("KAFKA_PASSWORD"),
    )  # fmt: skip
    app = hr.App("shop")
    app.read("sales", hr.source.items(SALES), Sale).write(sink)
    with pytest.raises(SinkFailed) as caught:
        started(sink)  # the broker speaks no SASL
    seen = [app.explain(), repr(sink), repr(sink.__dict__), str(caught.value), sink.describe()]
    assert not [text for text in seen if "swordfish" in text]
