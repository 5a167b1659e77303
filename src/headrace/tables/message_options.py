"""TableOptions of Kafka in DDL: Flink's words for where to start, keys and clients, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.sink_contract import Sink
from headrace.connectors.source_contract import Source
from headrace.model.time import Timestamp
from headrace.tables.changing_tables import DEBEZIUM, MESSAGE_KEY, MESSAGE_VALUE
from headrace.tables.options import Option, TableOptions, opt

if TYPE_CHECKING:
    from headrace.tables.declared import DeclaredTable

_FORMATS: Final = {"raw": "text", "avro-confluent": "avro"}
METADATA: Final = {
    "key": "key", "timestamp": "timestamp", "partition": "partition", "offset": "offset", "topic": "topic_field",
    "headers": "headers",
}  # fmt: skip
"""What METADATA columns can be filled with → the argument that takes the field."""
_START_MODES: Final = {"earliest-offset": "earliest", "latest-offset": "latest"}
_EXACT: Final = Option(
    "guarantee", ("guarantee", "sink.delivery-guarantee"), "text", "sink", lambda text: text.replace("-", "_")
)
KAFKA: Final = (
    Option("topics", ("topic", "topics"), "list"),
    opt("pattern", "topic-pattern", side="source"),
    Option("brokers", ("brokers", "properties.bootstrap.servers")),
    Option("format", ("format", "value.format"), convert=lambda text: _FORMATS.get(text, text)),
    opt("start", "scan.startup.mode", side="source"),
    opt("start_millis", "scan.startup.timestamp-millis", kind="int", side="source"),
    opt("start_offsets", "scan.startup.specific-offsets", side="source"),
    opt("max_per_epoch", kind="int", side="source"),
    opt("key_fields", "key.fields", kind="list"),
    opt("value"),
    opt("tombstones", side="source"),
    opt("on_data_loss", side="source"),
    opt("partition", side="sink"),
    opt("create", kind="bool", side="sink"),
    opt("partitions", kind="int", side="sink"),
    Option("registry", ("registry", "schema-registry.url", "avro-confluent.url", "value.avro-confluent.url")),
    opt("schema"),
    opt("subject", "avro-confluent.subject", "value.avro-confluent.subject", side="sink"),
    opt("register", kind="bool", side="sink"),
    _EXACT,
)


def kafka_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    topics = arguments.pop("topics", None)
    if topics is None and "pattern" not in arguments:
        raise table.error(
            "the connector 'kafka' needs the option 'topic'", expected="'topic' = 'clicks', or 'pattern' = 'clicks-.*'"
        )
    if arguments.get("format") == DEBEZIUM:
        arguments["format"] = "json"
    fields = arguments.pop("key_fields", None)
    if fields and "key" not in table.metadata_fields():
        arguments["key"] = _only(table, fields)
    start = _start(table, arguments)
    parts: dict[str, Any] = {METADATA[part]: name for part, name in table.metadata_fields().items()}
    return source.kafka(topics, **start, **parts, **arguments, **_client(options))


def upsert_kafka_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    """The messages with their keys and values, of which `headrace.tables.changing_tables` makes rows."""
    arguments.pop("key_format", None)
    arguments.pop("key_fields", None)
    whole = {"key": MESSAGE_KEY, "value": MESSAGE_VALUE, "tombstones": "keep"}
    return kafka_source(table, options, {**arguments, **whole})


def kafka_sink(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
    from headrace import sink

    arguments.pop("key_format", None)
    topics = arguments.pop("topics", None) or []
    if len(topics) != 1:
        raise table.error(
            "rows are written to one topic", expected="'topic' = 'clicks'",
            next_move="a column of topics can be named in Python: hr.sink.kafka(…, topic_field=…)",
        )  # fmt: skip
    key = arguments.pop("key_fields", None) or table.primary_key
    if key:
        arguments["key"] = list(key)
    written = {"timestamp": "timestamp", "headers": "headers", "partition": "partition"}
    for part, name in table.metadata_fields(writable=True).items():
        if part in written:
            arguments.setdefault(written[part], name)
    return sink.kafka(topics[0], **arguments, **_client(options))


def _only(table: DeclaredTable, fields: list[str]) -> str:
    if len(fields) == 1:
        return fields[0]
    raise table.option_error(
        "key.fields", "the key of a message is one field", ", ".join(fields), "one name",
    )  # fmt: skip


def _start(table: DeclaredTable, arguments: dict[str, Any]) -> dict[str, Any]:
    """Where the first run begins."""
    millis, offsets = arguments.pop("start_millis", None), arguments.pop("start_offsets", None)
    mode = arguments.pop("start", None)
    if mode is None:
        return {}
    if mode == "timestamp":
        if millis is None:
            raise table.option_error("scan.startup.mode", "a time is missing", mode, "scan.startup.timestamp-millis")
        return {"start": Timestamp(millis * 1000)}
    if mode == "specific-offsets":
        return {"start": _offsets(table, offsets or "")}
    if mode == "group-offsets":
        raise table.option_error(
            "scan.startup.mode", "offsets are kept in the store, not in a consumer group", mode,
            "earliest-offset, latest-offset, timestamp or specific-offsets",
        )  # fmt: skip
    return {"start": _START_MODES.get(mode, mode)}


def _offsets(table: DeclaredTable, text: str) -> dict[int, int]:
    """``partition:0,offset:42;partition:1,offset:300`` as a mapping."""
    try:
        pairs = [dict(part.split(":") for part in each.split(",")) for each in text.split(";") if each]
        return {int(pair["partition"]): int(pair["offset"]) for pair in pairs}
    except (ValueError, KeyError) as error:
        raise table.option_error(
            "scan.startup.specific-offsets",
            "the offsets cannot be read",
            text,
            "partition:0,offset:42;partition:1,offset:7",
        ) from error


def _client(options: TableOptions) -> dict[str, Any]:
    """What the clients of Kafka are told; a group of consumers has no meaning here."""
    client = options.starting("properties.")
    client.pop("group.id", None)
    client.pop("bootstrap.servers", None)
    return {name.replace(".", "_"): value for name, value in client.items()}
