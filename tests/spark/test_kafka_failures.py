"""What Spark's Kafka connector says when it fails, as it said it, becomes an error that tells the next move."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import EpochFailed, HeadraceError, InputLost, ProgramError, SettingsError
from headrace.plan.compile import compile_app
from headrace.spark.failures import kafka_error

LOST = (
    "Some data may have been lost because they are not available in Kafka any more;\neither the data was aged out by "
    "Kafka or the topic may have been deleted before all the data in the\ntopic was processed.\nIf you don't want "
    "your streaming query to fail on such cases, set the source option failOnDataLoss to false.\nReason: "
)


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        (
            LOST + "Partition t-1 offset was changed from 100 to 5.\nThis could be either 1) a user error …",
            InputLost,
            ("topic t, partition 1", "offset 100", "ends at offset 5", 'on_data_loss="skip"'),
        ),
        (
            LOST + "Could not read records in offset [50, 100) for topic partition t-0\nwith consumer group spark-…",
            InputLost,
            ("topic t, partition 0", "offsets 50 to 99", "--fresh"),
        ),
        (LOST + "something new", InputLost, ("source lines", "something new")),
        (
            "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this "
            "topic-partition.\n=== Streaming Query ===",
            EpochFailed,
            ("Kafka has no such topic", "kafka t (text)"),
        ),
        (
            "assertion failed: If startingOffsets contains specific offsets, you must specify all TopicPartitions.\n"
            "Use -1 for latest, -2 for earliest, if you don't care.\nSpecified: Set(t-0) Assigned: Set(t-0, t-1)",
            ProgramError,
            ("offsets for t-0, t-1", "offsets for t-0\n"),
        ),
        (
            "org.apache.kafka.common.errors.IllegalSaslStateException: Unexpected handshake request with client "
            "mechanism PLAIN, enabled mechanisms are []\n=== Streaming Query ===",
            SettingsError,
            ("refuse this client", "enabled mechanisms", "sasl_mechanism"),
        ),
        (
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: listNodes",
            EpochFailed,
            ("do not answer", "Timed out"),
        ),
        ("Failed to create new KafkaAdminClient\n=== Streaming Query ===", EpochFailed, ("do not answer",)),
    ],
)
def test_an_account_of_the_connector_becomes_an_error_with_a_next_move(
    text: str, kind: type[HeadraceError], parts: tuple[str, ...]
) -> None:
    app = hr.App("reading")
    app.read("lines", hr.source.kafka("t", format="text"), str).write(hr.sink.discard())
    told = kafka_error(RuntimeError(text), compile_app(app, parallelism=1, key_groups=128))
    assert type(told) is kind and told.next_move
    for part in parts:
        assert part in str(told)


def test_other_errors_are_left_to_others() -> None:
    app = hr.App("reading")
    app.read("lines", hr.source.kafka("t", format="text"), str).write(hr.sink.discard())
    assert kafka_error(RuntimeError("out of memory"), compile_app(app, parallelism=1, key_groups=128)) is None
