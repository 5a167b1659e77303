"""Sending staged messages with one producer: in order, in bounded memory, and not for ever.

The producer's own queue has no limit here; instead a batch is only handed over when few messages are on their way. So
no message is ever refused for lack of room, which would let a later one of the same key overtake it.

A producer that gets nowhere is given up: after `DOWN_S` where the client says that no broker is there, after
`STALLED_S` in any case. Its messages are dropped, and the release comes again with a new one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice, repeat
from typing import Any, Final

import pyarrow as pa

from headrace.connectors.kafka.client import Cluster, confluent_kafka, is_refusal
from headrace.connectors.kafka.rows import too_large
from headrace.errors import HeadraceError, SinkUnavailable

DOWN_S: Final = 3.0
STALLED_S: Final = 45.0
_SLICE_S: Final = 1.0
"""A call into the library lasts no longer, so that an interrupt is noticed."""
_LOOK_S: Final = 0.1
"""How often somebody looks whether a step still has a chance."""
_MEET_S: Final = 0.5
_DROPPED: Final = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_REPORT_LOOKS: Final = 20
_CHUNK_ROWS: Final = 5_000
_CHUNK_BYTES: Final = 8 * 2**20
_CHUNKS_UNDERWAY: Final = 10

SETTINGS: Final[Mapping[str, Any]] = {
    # The choice of Kafka's own clients, so that rows of a key meet those that other programs write.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    # A transaction that follows another at once meets the end of the one before, which takes a few milliseconds. The
    # pause doubles each time, up to a second.
    "retry.backoff.ms": 10,
}
"""What a user may change."""

_FIXED: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_097_151,
    "delivery.report.only.error": True,
}


class _Step:
    """A call into the library on a thread of its own.

    Some calls do not keep to the time they are given while the coordinator of transactions is away. One that is left
    behind changes nothing: the next producer of the same name shuts this one out.
    """

    def __init__(self, step: Callable[..., Any], *arguments: Any) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None
        self._step = step
        self._arguments = arguments
        threading.Thread(target=self._run, name="headrace-kafka", daemon=True).start()

    def _run(self) -> None:
        try:
            self._step(*self._arguments)
        except Exception as error:
            self.error = error
        self.ended.set()


class Sender:
    """One producer from its making to its first error."""

    def __init__(self, cluster: Cluster, topic: str, extra: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._topic = topic
        self._failed: Any = None
        """The first message that could not be delivered: its error, and its size."""
        self._refused: Any = None
        """What a broker had against us, where it closed the connection."""
        self._down_since: float | None = None
        self.stalled = False
        settings = {name: value for name, value in SETTINGS.items() if name not in cluster.options}
        calls = {"on_delivery": self._note_delivery, "error_cb": self._note_error}
        self._producer: Any = cluster.producer({**settings, **_FIXED, **calls, **extra})
        self._meet_brokers()

    def _meet_brokers(self) -> None:
        """Connects. A producer that numbers its messages has to be given its own number first; it would look every half
        second whether there is a broker to ask, and the first look comes too early for any."""
        # Whoever is not met will be missed when something is sent, and told of there.
        with suppress(confluent_kafka().KafkaException):
            self._producer.list_topics(self._topic, timeout=_MEET_S)

    @property
    def producer(self) -> Any:
        return self._producer

    def _note_delivery(self, error: Any, message: Any) -> None:
        # Messages that are dropped because another one failed are not the reason for anything.
        if error is not None and self._failed is None and error.name() not in _DROPPED:
            self._failed = (error, len(message.value() or b"") + len(message.key() or b""))

    def _note_error(self, error: Any) -> None:
        if is_refusal(error):
            self._refused = error
        if error.name() == "_ALL_BROKERS_DOWN" and self._down_since is None:
            self._down_since = time.monotonic()

    def send(self, batch: pa.RecordBatch) -> None:
        """Hands the messages of a batch over; returns before they are delivered."""
        mean_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
        chunk_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // mean_bytes))
        messages = map(self._producer.produce, *_arguments(batch, self._topic))
        try:
            for _ in range(0, batch.num_rows, chunk_rows):
                self._wait(chunk_rows * _CHUNKS_UNDERWAY)
                deque(islice(messages, chunk_rows), maxlen=0)
        except confluent_kafka().KafkaException as raised:
            raise self._error(raised, "a message could not be sent") from raised

    def drain(self) -> None:
        """Waits until every message is delivered."""
        self._wait(0)

    def _wait(self, underway: int) -> None:
        """Until at most so many messages are on their way."""
        producer = self._producer
        producer.poll(0)
        left, moved_at = len(producer), time.monotonic()
        while True:
            self._check_delivered()
            if left <= underway:
                return
            if underway:
                producer.poll(0.01)
            else:
                producer.flush(_SLICE_S)
            before, left = left, len(producer)
            if left != before:
                moved_at, self._down_since = time.monotonic(), None
            self._check_progress(moved_at, "messages are not delivered")

    def call(self, doing: str, step: Callable[..., Any], *arguments: Any) -> None:
        """A step of a transaction, resumed until it is done."""
        began = time.monotonic()
        while True:
            error = self._watch(_Step(step, *arguments, STALLED_S), began, doing)
            if error is None:
                self._down_since = None
                return
            if not isinstance(error, confluent_kafka().KafkaException):
                raise error
            if not error.args[0].retriable():
                self._hear_reports()
                raise self._error(error, doing) from error

    def _hear_reports(self) -> None:
        """A message that was refused makes every step of its transaction fail, and may be told of behind that."""
        # Where the producer itself is done for (a newer one took its place), looking raises that again.
        with suppress(confluent_kafka().KafkaException):
            for _ in range(_REPORT_LOOKS):
                self._producer.poll(_LOOK_S)
                if self._failed is not None or not len(self._producer):
                    return

    def _watch(self, step: _Step, began: float, doing: str) -> Exception | None:
        """Waits for a step, not longer than for anything else; its error, if it has one."""
        while not step.ended.wait(_LOOK_S):
            self._producer.poll(0)
            self._check_progress(began, doing)
        return step.error

    def _check_progress(self, moved_at: float, doing: str) -> None:
        now = time.monotonic()
        down_s = 0.0 if self._down_since is None else now - max(self._down_since, moved_at)
        if down_s < DOWN_S and now - moved_at < STALLED_S:
            return
        self.stalled = True
        if self._refused is not None:
            raise self._cluster.error(self._refused, doing)
        raise SinkUnavailable(
            f"Kafka does not answer: {doing}",
            where=self._cluster.where,
            expected=f"a broker at {self._cluster.brokers!r}",
            found=f"nothing for {now - moved_at:.0f} s" + (", no broker can be reached" if self._down_since else ""),
            next_move="start the broker, or correct brokers=…; the rows stay staged in the store",
        )

    def _check_delivered(self) -> None:
        if self._failed is not None:
            raise self._error(None, "a message was not delivered")

    def _error(self, raised: Any, doing: str) -> HeadraceError:
        """A message that was refused is the reason for everything that comes after it."""
        error, size_bytes = (raised.args[0], None) if self._failed is None else self._failed
        if error.code() == confluent_kafka().KafkaError.MSG_SIZE_TOO_LARGE:
            return too_large(size_bytes, self._cluster.where)
        return self._cluster.error(error, doing)

    def abort(self) -> None:
        """Ends the open transaction, so that readers need not wait for its timeout; in vain where nobody answers."""
        try:
            self._producer.abort_transaction(5.0)
        except confluent_kafka().KafkaException:
            pass  # the next producer of this name ends it

    def drop(self) -> None:
        """Nothing of what is still queued is sent any more."""
        self._producer.purge()
        self._producer = None


def _arguments(batch: pa.RecordBatch, topic: str) -> list[Any]:
    """The arguments of ``produce`` as columns: topic, value, key, partition, two callbacks, timestamp, headers."""
    names = batch.schema.names

    def column(name: str, absent: Any) -> Any:
        return batch.column(name).to_pylist() if name in names else repeat(absent)

    topics = [each or topic for each in column("topic", None)] if "topic" in names else repeat(topic)
    values, keys = column("value", None), column("key", None)
    arguments = [topics, values, keys, column("partition", -1), repeat(None), repeat(None), column("timestamp", 0)]
    return [*arguments, column("headers", None)] if "headers" in names else arguments
