"""`kafka`: the messages of Kafka topics, as Spark's own connector reads them.

Spark keeps the offsets in its log, and the log in the manifest: a restart goes on behind the last published epoch, and
no consumer group is used. Every partition of a topic is a split of its own, so the watermark waits for the slowest;
partitions and, with a pattern, topics that appear later are read from their beginning.

How a message becomes a row is in `messages`, and in `decoded` where the worker decodes it; what Spark's connector is
told is in `options`. The connector is not part of Spark: its jars are the business of ``spark/connectors.py``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from headrace.connectors.formats.binary import SUBJECT, BinaryFormat
from headrace.connectors.kafka.client import ANSWER_S, Cluster, confluent_kafka, kafka_error
from headrace.connectors.kafka.decoded import MessageRows
from headrace.connectors.kafka.messages import (
    WHERE,
    Format,
    MessageParts,
    Tombstones,
    explain_message,
    field_name,
    message_read,
    place_value,
)
from headrace.connectors.kafka.options import (
    batch_options,
    broker_list,
    check_options,
    client_options,
    start_options,
)
from headrace.connectors.reading import check_positive
from headrace.connectors.source_contract import (
    EPOCH_ROWS_AT_MOST,
    SURE,
    BadInput,
    Passage,
    Replay,
    Source,
    SparkRead,
    WorkerRows,
)
from headrace.errors import ProgramError
from headrace.model.ids import MIN_TIME

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


DataLoss = Literal["stop", "skip"]

BROKERS: Final = "localhost:9092"
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class KafkaSource(Source):
    kind: ClassVar[str] = "kafka"
    python: ClassVar[bool] = False
    connector: str = "kafka"

    def __init__(
        self,
        topics: str | Sequence[str] | None,
        *,
        pattern: str | None,
        brokers: str | Sequence[str],
        format: Format,
        start: Any,
        max_per_epoch: int | None,
        fields: Mapping[str, Any],
        tombstones: Tombstones,
        on_data_loss: DataLoss,
        schema: Any,
        registry: Any,
        options: Mapping[str, Any],
    ) -> None:
        """`fields`: part of a message → the field that takes it, as the user gave it."""
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics or ())
        self.pattern = pattern
        self.format = format
        self.tombstones = tombstones
        self.on_data_loss = on_data_loss
        self._check_topics()
        _check_word("format", format, get_args(Format), self.where)
        _check_word("tombstones", tombstones, get_args(Tombstones), self.where)
        _check_word("on_data_loss", on_data_loss, get_args(DataLoss), self.where)
        self.brokers = broker_list(brokers, self.where)
        self.start = start_options(start, self.topics, self.where)
        self.max_per_epoch = check_positive("max_per_epoch", max_per_epoch, self.where)
        self.parts = _parts(fields, self.where)
        binary = BinaryFormat.of(format, schema, registry, self.where)
        self.framed = binary is not None and format == "json"
        """Whether JSON stands behind the id of a schema, which is passed over."""
        if binary is not None and self.framed and binary.given is not None:
            raise ProgramError(
                "a source of JSON needs no schema",
                where=self.where,
                expected='format="json" with registry= alone: the id in front of a document is passed over',
                found="schema=",
                next_move="leave schema= out: the fields of the row type say what is read",
            )
        self.binary = None if self.framed else binary
        self._rows: MessageRows | None = None
        self.options = check_options(options, self.where)

    @property
    def where(self) -> str:
        return f"source.kafka({self._topic_names()})"

    def _topic_names(self) -> str:
        if self.pattern is not None:
            return f'pattern="{self.pattern}"'
        return ", ".join(f'"{topic}"' for topic in self.topics)

    @property
    def has_splits(self) -> bool:
        return True

    def bind(self, codec: RowCodec) -> KafkaSource:
        bound = copy.copy(self)
        bound.parts = place_value(codec, self.parts, self.format, self.where)
        if self.binary is not None:
            self.binary.check_reading(codec, bound._in_value(codec))
            bound._rows = MessageRows(self.binary, codec, bound._read(codec, {}), WHERE)
        return bound

    def _in_value(self, codec: RowCodec) -> list[str]:
        """The fields that the value of a message fills."""
        placed = {field for field, _ in self.parts.by_field()}
        return [name for name in codec.schema.names if name not in placed]

    def _read(self, codec: RowCodec, options: Mapping[str, str]) -> SparkRead:
        return message_read(codec, self.format, self.parts, self.tombstones, options, framed=self.framed)

    def spark(self, codec: RowCodec) -> SparkRead:
        if self.binary is not None:
            for topic in self.topics:
                # By this name producers' own serializers register what they write, unless they are told otherwise.
                self.binary.check_subject(SUBJECT.format(topic=topic), codec, self._in_value(codec))
        return self._read(codec, self._spark_options())

    def decoder(self, codec: RowCodec) -> WorkerRows | None:
        return self._rows

    def batch_reads(self, codec: RowCodec, passage: Passage) -> list[SparkRead]:
        read = self.spark(codec)
        return [replace(read, options=batch_options(read.options, passage))] if passage.end else []

    def explain_bad(self, codec: RowCodec, raw: str) -> BadInput:
        return explain_message(codec, self.format, self.parts, raw)

    def check_replay(self, passage: Passage) -> Replay:
        options = {name: value for name, value in self.options.items() if name == name.lower()}
        return find_messages(Cluster(self.brokers, options, self.where), passage.start or {}, passage.end or {})

    def describe(self) -> str:
        topics = f"topics like {self.pattern}" if self.pattern is not None else ", ".join(self.topics)
        return f"kafka {topics} ({self.format})"

    def _spark_options(self) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": self.brokers,
            # What a transaction wrote counts when it is committed; without transactions this makes no difference.
            "kafka.isolation.level": "read_committed",
            **self.start,
            "failOnDataLoss": "true" if self.on_data_loss == "stop" else "false",
            **client_options(self.options, self.where),
        }
        if self.pattern is not None:
            options["subscribePattern"] = self.pattern
        else:
            options["subscribe"] = ",".join(self.topics)
        options["maxOffsetsPerTrigger"] = str(self.max_per_epoch or EPOCH_ROWS_AT_MOST)
        if self.parts.headers is not None:
            options["includeHeaders"] = "true"
        return options

    def _check_topics(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise ProgramError(
                "a Kafka source reads topics, or all topics that fit a pattern",
                where="source.kafka",
                expected='source.kafka("clicks"), source.kafka(["clicks", "views"]), source.kafka(pattern="clicks-.*")',
                found="both" if self.topics else "neither",
                next_move="give one of them",
            )
        wrong = [topic for topic in self.topics if not isinstance(topic, str) or not _TOPIC.fullmatch(topic)]
        if wrong:
            raise ProgramError(
                f"{wrong[0]!r} is no name of a topic",
                where="source.kafka",
                expected="letters, digits, dots, underscores and dashes",
                found=repr(wrong[0]),
                next_move="use pattern= for topics that fit a regular expression, a list for several topics",
            )
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ProgramError(
                "the pattern is no regular expression",
                where="source.kafka",
                expected='something like pattern="clicks-.*"',
                found=f"{self.pattern!r}: {error}",
                next_move="correct it",
            ) from error


def silent_partitions(topics: Mapping[str, Iterable[str]], known: Container[str]) -> dict[str, int]:
    """Splits that a source reads and nobody has heard of yet: they hold time at its beginning, as those that spoke hold
    it where they are. `topics`: topic → its partitions, as Spark's offset of one epoch has them.

    >>> silent_partitions({"clicks": {"0": 12, "1": 0}}, {"clicks-0"}) == {"clicks-1": MIN_TIME}
    True
    """
    named = (f"{topic}-{partition}" for topic, partitions in topics.items() for partition in partitions)
    return {split: MIN_TIME for split in named if split not in known}


def _parts(fields: Mapping[str, Any], where: str) -> MessageParts:
    given = {part: field for part, field in fields.items() if field is not None}
    headers = given.pop("headers", None)
    if "topic_field" in given:
        given["topic"] = given.pop("topic_field")
    named = {part: field_name(field, part, where) for part, field in given.items()}
    if isinstance(headers, Mapping):
        single = {str(header): field_name(field, "headers", where) for header, field in headers.items()}
        return MessageParts(**named, headers=single or None)
    return MessageParts(**named, headers=None if headers is None else field_name(headers, "headers", where))


def _check_word(name: str, value: Any, known: Sequence[str], where: str) -> None:
    if value in known:
        return
    other = 'hr.source.spark("kafka", …) gives the bytes of other formats to SQL, ' if name == "format" else ""
    raise ProgramError(
        f"{name} cannot be {value!r}",
        where=where,
        expected=f"one of {', '.join(map(repr, known))}",
        found=repr(value),
        next_move=f"{other}or leave {name} out for {known[0]!r}" if other else f"leave {name} out for {known[0]!r}",
    )


# --- whether a job that goes back still has its messages


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
