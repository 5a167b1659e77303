"""The broker of a measurement, the topics in it, and what a reader of committed messages sees there.

Events are JSON, ``{"key": "user-000123", "value": 42, "at": 1700000000000000}``; every engine answers each with
``{"key", "count", "total", "at"}``, where count and total run per key and `at` is that of the event. So a reader can
tell from the answers alone whether each event was counted once, and how old it is.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.services.kafka import Broker

PARTITIONS = 2
_LOOK_S = 0.05
_TELL_S = 2.0
_FEW_PER_S = 20.0
_READ_S = 120.0


class Answer(msgspec.Struct):
    key: str
    count: int
    total: int
    at: int


class BenchmarkBroker(Broker):
    """A broker that is given time to optimise itself, unlike one for tests."""

    def _command(self, *words: str) -> list[str]:
        return [self._java, "-Xmx1g", "-cp", f"{self._jars}/*", *words]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def new_topic(self, name: str) -> str:
        return self.topic(f"{name}-{uuid.uuid4().hex[:8]}", PARTITIONS)


@dataclass(frozen=True)
class Filled:
    """A topic with events, and what their counts come to."""

    topic: str
    events: int
    checksum: int


def fill(broker: Broker, topic: str, *, events: int, keys: int) -> Filled:
    rng = np.random.default_rng(7)
    ids = rng.integers(0, keys, events)
    values = rng.integers(0, 100, events).tolist()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 0})
    for n, (key, value) in enumerate(zip(ids.tolist(), values, strict=True)):
        producer.produce(topic, event(key, value, 0), b"user-%06d" % key)
        if n % 10_000 == 0:
            while len(producer) > 200_000:
                producer.poll(0.05)
    producer.flush()
    counts = np.bincount(ids)
    return Filled(topic, events, int((counts * (counts + 1) // 2).sum()))


def event(key: int, value: int, at_us: int) -> bytes:
    return b'{"key":"user-%06d","value":%d,"at":%d}' % (key, value, at_us)


def _reader(broker: Broker, **more: object) -> Consumer:
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        **more,
    }
    return Consumer(config)


class Visible(threading.Thread):
    """Writes down how many messages of a topic are committed, whenever there are more; reads none of them."""

    def __init__(self, broker: Broker, topic: str, tell: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._consumer = _reader(broker)
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._tell = tell
        self._told_s = 0.0
        self._over = threading.Event()
        self.steps: list[tuple[float, int]] = []
        """Moments, and messages that were to be seen then, with one more for each transaction and partition."""

    def run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        ends = [self._consumer.get_watermark_offsets(each, timeout=10) for each in self._partitions]
        seen = sum(end[1] for end in ends if end is not None)
        if seen and (not self.steps or seen > self.steps[-1][1]):
            self.steps.append((time.time(), seen))
            if self.steps[-1][0] - self._told_s > _TELL_S:
                self._told_s = self.steps[-1][0]
                self._tell(seen)

    @property
    def seen(self) -> int:
        return self.steps[-1][1] if self.steps else 0

    def finish(self) -> list[tuple[float, int]]:
        self._over.set()
        self.join()
        self.look()
        self._consumer.close()
        return self.steps


@dataclass(frozen=True)
class Answers:
    """The committed answers of a topic."""

    rows: int
    checksum: int
    """The sum of their counts."""
    counted_once: int
    """The checksum that so many answers per key have if the counts of each key are 1, 2, 3 and so on."""


def count_answers(broker: Broker, topic: str) -> Answers:
    decode = msgspec.json.Decoder(Answer).decode
    by_key: Counter[str] = Counter()
    checksum = 0
    for values in _committed(broker, topic):
        answers = list(map(decode, values))
        by_key.update(answer.key for answer in answers)
        checksum += sum(answer.count for answer in answers)
    once = sum(count * (count + 1) // 2 for count in by_key.values())
    return Answers(by_key.total(), checksum, once)


def _committed(broker: Broker, topic: str) -> Iterator[list[bytes]]:
    consumer = _reader(broker)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended: set[int] = set()
    until = time.monotonic() + _READ_S
    while len(ended) < PARTITIONS and time.monotonic() < until:
        values = []
        for message in consumer.consume(20_000, timeout=0.2):
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        yield values
    consumer.close()


class Trickle(threading.Thread):
    """Writes events at a steady pace, each with the moment at which it was written.

    First only a few: what gathers while an engine starts would be old before it is read. `go` begins the real pace.
    """

    def __init__(self, broker: Broker, topic: str, *, rate: float, keys: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        self._topic, self._rate, self._keys = topic, rate, keys
        self._going = threading.Event()
        self._over = threading.Event()

    def run(self) -> None:
        rng = np.random.default_rng(11)
        self._write(rng, _FEW_PER_S, self._going)
        self._write(rng, self._rate, self._over)
        self._producer.flush()

    def _write(self, rng: np.random.Generator, rate: float, until: threading.Event) -> None:
        began, written = time.time(), 0
        while not until.wait(0.004):
            due = int((time.time() - began) * rate)
            for key, value in rng.integers(0, (self._keys, 100), (due - written, 2)).tolist():
                at_us = time.time_ns() // 1000
                self._producer.produce(self._topic, event(key, value, at_us), b"user-%06d" % key)
            written = due
            self._producer.poll(0)

    def go(self) -> None:
        self._going.set()

    def finish(self) -> None:
        self._going.set()
        self._over.set()
        self.join()


class Ages(threading.Thread):
    """Reads answers as they are committed: how old their events are at that moment, in milliseconds."""

    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = _reader(broker, **{"fetch.wait.max.ms": 10, "fetch.min.bytes": 1})
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._over = threading.Event()
        self.seen: list[tuple[float, float]] = []
        """Moment at which an answer was read, and the age of its event."""

    def run(self) -> None:
        decode = msgspec.json.Decoder(Answer).decode
        while not self._over.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                now = time.time()
                self.seen.append((now, now * 1000 - decode(message.value()).at / 1000))

    def finish(self) -> None:
        self._over.set()
        self.join()
        self._consumer.close()
