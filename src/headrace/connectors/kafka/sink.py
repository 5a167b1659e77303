"""`kafka`: rows as messages of a topic, exactly once for readers of committed messages.

Tasks turn rows into bytes (`rows`), under a schema where the format has one (`schemas`), and stage those; releasing an
epoch is sending them in one transaction with the number of the epoch (`release`). This module knows what the user said,
and checks it while the program is built. Everything that connects to a broker happens in the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from headrace.connectors.formats.binary import SUBJECT, BinaryFormat
from headrace.connectors.formats.messages import RowEncoder
from headrace.connectors.formats.registry import StoredSchema
from headrace.connectors.kafka.client import Cluster, Topics, check_options
from headrace.connectors.kafka.envelope import ENVELOPE
from headrace.connectors.kafka.release import AtLeastOnce, ExactlyOnce
from headrace.connectors.kafka.rows import FORMATS, MESSAGES, Format, MessageForm, MessageWriter
from headrace.connectors.kafka.schemas import WrittenSchema
from headrace.connectors.sink_contract import GuaranteeChoice, Release, Sink, StageTask, StageWriter, chosen_guarantee
from headrace.errors import ProgramError, SinkFailed
from headrace.model.report import StagedPart

if TYPE_CHECKING:
    from typing import Self

    from headrace.connectors.keyed_target import Position
    from headrace.model.rows import RowCodec

_MESSAGE_MAX_BYTES: Final = 1_000_000
"""The library's own limit, where no option says another."""
_NAME: Final = "transactional.id"


class KafkaSink(Sink):
    kind: ClassVar[str] = "kafka"
    driver_only: ClassVar[tuple[str, ...]] = ("brokers", "options", "_topics", "_way", "_encoder")
    _encoder: RowEncoder | None = None

    def __init__(
        self,
        topic: str,
        brokers: str | Sequence[str],
        *,
        format: Format,
        value: Any,
        key: Any,
        headers: Mapping[str, Any] | None,
        partition: Any,
        timestamp: Any,
        topic_field: Any,
        guarantee: GuaranteeChoice,
        create: bool | Mapping[str, str],
        partitions: int | None,
        schema: Any,
        registry: Any,
        subject: str | None,
        register: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.topic = topic
        self.format = format
        if format not in FORMATS:
            raise self._misfit(f"sink.kafka has no format {format!r}", ", ".join(FORMATS), repr(format))
        self.brokers = brokers if isinstance(brokers, str) else ",".join(brokers)
        if not topic or not self.brokers.strip():
            raise self._misfit("sink.kafka needs a topic and brokers", 'kafka("sales", brokers="host:9092")', "nothing")
        binary = BinaryFormat.of(format, schema, registry, self.where)
        if subject is not None and (binary is None or binary.registry is None):
            raise self._misfit("subject= is for a schema registry", "registry=…", f"subject={subject!r} alone")
        self.schema = None if binary is None else WrittenSchema(binary, subject or SUBJECT, register)
        self._stored: StoredSchema | None = None
        self.value = self._column("value", value)
        self.key = tuple(_names("key", key, self.where))
        self.headers = tuple((name, self._required("headers", column)) for name, column in (headers or {}).items())
        self.partition = self._column("partition", partition)
        self.timestamp = self._column("timestamp", timestamp)
        self.topic_field = self._column("topic_field", topic_field)
        self.create = create
        self.partitions = partitions
        self.guarantee = chosen_guarantee(guarantee, self.where)
        # With a key the newest message of a key is the one that counts: that is what log compaction keeps.
        self.asks_changelog = format == ENVELOPE
        self.accepts_updates = bool(self.key) or self.asks_changelog  # type: ignore[misc]
        # A message takes back only what lies in its own topic and partition: where rows say these, they are of the key.
        places = tuple(name for name in (self.topic_field, self.partition) if name is not None and name not in self.key)
        self.accepts_changelog = bool(self.key) or (self.asks_changelog and not places)  # type: ignore[misc]
        self.changelog_key = (*self.key, *places) if self.key else None
        self.options = check_options(options, self.where)
        self.limit_bytes = int(self.options.get("message.max.bytes", _MESSAGE_MAX_BYTES))
        if self.guarantee == "at least once" and _NAME in self.options:
            raise self._misfit("a transactional id is for exactly once", "no transactional_id", "one")
        self._topics: Topics | None = None
        self._way: ExactlyOnce | AtLeastOnce | None = None

    @property
    def where(self) -> str:
        return f'sink.kafka("{self.topic}")'

    # -- while the program is built ---------------------------------------------------------------------------------

    def bind(self, codec: RowCodec, output: str) -> Self:
        for name in (*self.key, *(column for _, column in self.headers)):
            kind = self._type(codec, name)
            if pa.types.is_nested(kind):
                raise self._misfit(f"{name} cannot be a key or a header", "text, bytes, numbers, times", str(kind))
        if len(self.key) > 1 and any(pa.types.is_binary(self._type(codec, name)) for name in self.key):
            raise self._misfit("bytes cannot be one part of a key among others", "text, numbers, times", "bytes")
        for column, what, fits, wanted in (
            (self.partition, "partition", pa.types.is_integer, "an int"),
            (self.timestamp, "timestamp", pa.types.is_timestamp, "a Timestamp or datetime"),
            (self.topic_field, "topic_field", pa.types.is_string, "a str"),
        ):
            if column is not None and not fits(self._type(codec, column)):
                raise self._misfit(f"{column} cannot be the {what}", wanted, str(self._type(codec, column)))
        if self.schema is not None:
            self.schema.check(codec)
        bound = super().bind(codec, output)
        bound.value = self._value_column(codec)
        return bound

    def _value_column(self, codec: RowCodec) -> str | None:
        """The column that is the value: the named one, or the only one of the right kind."""
        if self.format not in ("text", "bytes"):
            if self.value is not None:
                whole = f'a whole row with format="{self.format}"'
                raise self._misfit("value= is for text and bytes", whole, repr(self.value))
            return None
        fits = pa.types.is_string if self.format == "text" else pa.types.is_binary
        if self.value is not None:
            if not fits(self._type(codec, self.value)):
                kind = "a str" if self.format == "text" else "bytes"
                raise self._misfit(f"{self.value} cannot be the value", kind, str(self._type(codec, self.value)))
            return self.value
        used = {*self.key, *(column for _, column in self.headers), self.topic_field}
        fitting: list[str] = [field.name for field in codec.schema if fits(field.type) and field.name not in used]
        if len(fitting) != 1:
            found = ", ".join(fitting) or f"none in {', '.join(codec.schema.names)}"
            raise self._misfit(f"which column is the {self.format}?", "value=<a column>", found)
        return fitting[0]

    def _type(self, codec: RowCodec, name: str) -> pa.DataType:
        return codec.schema.types[codec.index(name, where=self.where)]

    def _column(self, what: str, given: Any) -> str | None:
        return None if given is None else self._required(what, given)

    def _required(self, what: str, given: Any) -> str:
        return _names(what, given, self.where)[0]

    def _misfit(self, what: str, expected: str, found: str) -> ProgramError:
        return ProgramError(what, where=self.where, expected=expected, found=found)

    # -- in the tasks -----------------------------------------------------------------------------------------------

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return MessageWriter(self.message_form(codec), codec, task)

    def message_form(self, codec: RowCodec) -> MessageForm:
        """Which column of a row becomes which part of a message."""
        return MessageForm(
            self.format, self.value, self.key, self.headers, self.topic_field, self.partition, self.timestamp,
            self.limit_bytes, self.where, self._row_encoder(codec),
        )  # fmt: skip

    def _row_encoder(self, codec: RowCodec) -> RowEncoder | None:
        """Made once per process."""
        if self._encoder is None and self.schema is not None:
            stored = self._stored or self.schema.settle(self.topic, codec)
            self._encoder = self.schema.encoder(stored, codec)
        return self._encoder

    # -- in the driver ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._open_topics().ensure({self.topic})
        if self.schema is not None and self.codec is not None:
            self._stored = self.schema.settle(self.topic, self.codec)

    def _open_topics(self) -> Topics:
        if self._topics is None:
            cluster = Cluster(self.brokers, self.options, self.where)
            self._topics = Topics(cluster, self.create, self.partitions)
        return self._topics

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if self._way is None:
            topics = self._open_topics()
            if self.guarantee == "exactly once":
                self._way = self._exactly_once(ctx.job)
            else:
                self._way = AtLeastOnce(topics.cluster, topics, self.topic)
        self._way.release(parts, ctx)

    def _exactly_once(self, job: str) -> ExactlyOnce:
        topics = self._open_topics()
        name = self.options.get(_NAME) or f"headrace-{job}-{self.output}"
        return ExactlyOnce(topics.cluster, topics, self.topic, name)

    def released(self, job: str) -> Position:
        return self._exactly_once(job).newest()

    def check_restated(self) -> None:
        policy = self._open_topics().cleanup_policy(self.topic)
        if "compact" not in policy:
            raise SinkFailed(
                "messages of this topic are read one by one, so none of them can be taken back",
                where=self.where,
                expected="a topic of which the newest message of a key counts: cleanup.policy=compact",
                found=f"cleanup.policy={policy}",
                next_move=f"hold the output until the job has passed its old end (--hold {self.output}); or, if "
                "readers do take the newest message of a key, say so: kafka-configs.sh --alter --entity-type topics "
                f"--entity-name {self.topic} --add-config cleanup.policy=compact --bootstrap-server HOST:PORT",
            )

    def moved_to(self, target: str) -> Self | None:
        if self.topic_field is not None:
            # Its rows say themselves where they go.
            return None
        elsewhere = self._copied()
        elsewhere.topic, elsewhere._topics, elsewhere._way = target, None, None
        elsewhere._stored = elsewhere._encoder = None
        # Whoever connects under the name of the job's own producer shuts that out.
        elsewhere.options = {name: value for name, value in self.options.items() if name != _NAME}
        return elsewhere

    def target_name(self) -> str:
        return self.topic

    def takes(self, part: StagedPart) -> bool:
        return part.format == MESSAGES

    def close(self) -> None:
        way, self._way = self._way, None
        if way is not None:
            way.close()

    def own_name(self) -> str:
        return self.topic

    def describe(self) -> str:
        key = f", key {', '.join(self.key)}" if self.key else ""
        by = f", or what {self.topic_field} says" if self.topic_field else ""
        return f"kafka {self.topic}{by} ({self.format}{key})"


def _names(what: str, given: Any, where: str) -> list[str]:
    """Columns by their names, or by the fields of a Record: ``"day"``, ``Sale.day``, or several of them."""
    if given is None:
        return []
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    names = [each.__name__ if isinstance(each, MemberDescriptorType) else each for each in several]
    if names and all(isinstance(name, str) for name in names):
        return names
    raise ProgramError(
        f"{what} takes columns",
        where=where,
        expected=f'a name or a field, as in {what}="shop" or {what}=Sale.shop',
        found=repr(given),
        next_move="compute the column with with_columns first",
    )
