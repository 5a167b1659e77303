"""Reading what is in a topic, as a consumer does."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Message

READ_S = 90.0


def read_messages(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Everything a reader of committed messages sees now, partition after partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": uuid.uuid4().hex,
        "isolation.level": isolation,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        "log_level": 0,
    }
    consumer = Consumer(config)
    try:
        partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: dict[int, list[Message]] = {number: [] for number in sorted(partitions)}
        ended: set[int] = set()
        until = time.monotonic() + READ_S
        while len(ended) < len(partitions):
            if time.monotonic() > until:
                raise TimeoutError(f"{topic}: the end of partitions {sorted(set(partitions) - ended)} does not come")
            for message in consumer.consume(10_000, timeout=0.1):
                error = message.error()
                if error is None:
                    found[message.partition()].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise RuntimeError(f"{topic}: {error}")
        return [message for number in found for message in found[number]]
    finally:
        consumer.close()
