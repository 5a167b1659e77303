"""Whether Kafka still has the messages that a job has read, for a job that goes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.connectors.kafka.client import ANSWER_S, Cluster, confluent_kafka, kafka_error
from headrace.connectors.source_contract import SURE, Replay

Positions = Mapping[str, Mapping[str, int]]
"""Topic → partition → the next offset to read, as Spark writes it."""


def find_messages(cluster: Cluster, start: Positions, end: Positions) -> Replay:
    """Asks for the oldest message of each partition. One that came later was read from its first message on."""
    client: Any = confluent_kafka()
    consumer = cluster.consumer({"group.id": "headrace"})
    try:
        for topic, partitions in end.items():
            for partition, reached in partitions.items():
                first = start.get(topic, {}).get(partition, 0)
                if first >= reached:
                    continue
                asked = client.TopicPartition(topic, int(partition))
                try:
                    oldest, newest = consumer.get_watermark_offsets(asked, timeout=ANSWER_S)
                except client.KafkaException as raised:
                    return Replay("unknown", f"it could not be asked ({kafka_error(raised).name()})")
                if oldest > first:
                    return Replay("lost", f"messages {first} to {oldest - 1} of {topic}-{partition} were deleted")
                if newest < reached:
                    return Replay("lost", f"{topic}-{partition} ends at {newest}: the topic was made anew")
    finally:
        consumer.close()
    return SURE
