"""Connectors by the names that DDL knows them by: which of their options fill which arguments of a source or sink.

What a source or sink does with them, and whether they fit each other, is its own business: it is made by the public
functions of `headrace.source` and `headrace.sink`, as a program in Python makes it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.sink_contract import Sink
from headrace.connectors.source_contract import Source
from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.requests import AsyncFunction
from headrace.tables import message_options as messages
from headrace.tables.changing_tables import DEBEZIUM
from headrace.tables.datagen_options import DATAGEN, datagen_source
from headrace.tables.options import Option, TableOptions, opt

if TYPE_CHECKING:
    from headrace.tables.declared import DeclaredTable


@dataclass(frozen=True)
class TableConnector:
    """One way in, one way out, or both."""

    options: tuple[Option, ...]
    source: Callable[[DeclaredTable, TableOptions, dict[str, Any]], Source] | None = None
    sink: Callable[[DeclaredTable, TableOptions, dict[str, Any]], Sink] | None = None
    prefixes: tuple[str, ...] = ()
    """TableOptions that begin so are handed on."""
    metadata: Mapping[str, str] | None = None
    """What METADATA columns can be filled with → the argument of the source that takes the column's name."""
    open: bool = False
    """Whether every further option is handed on."""
    lookup: Callable[[DeclaredTable, dict[str, Any], str], Any] | None = None
    """What is asked for the row with a value in a column; the arguments are those of the source."""


def _guarantee(text: str) -> str:
    """Flink's ``exactly-once``, or ours."""
    return text.replace("-", "_")


GUARANTEE: Final = Option("guarantee", ("guarantee", "sink.delivery-guarantee"), "text", "sink", _guarantee)
FORMAT: Final = Option("format", ("format", "value.format"))


def _files_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    if arguments.get("format") == DEBEZIUM:
        arguments["format"] = "json"
    if arguments.get("format") == "csv" and arguments.get("header") is False:
        arguments.setdefault("names", list(table.physical))
    return source.files(**_required(table, arguments, "path"))


def _files_sink(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
    from headrace import sink

    for only_read in ("glob", "recursive", "header", "names", "delimiter", "split", "max_files_per_epoch"):
        arguments.pop(only_read, None)
    if table.statement.partitioned_by:
        arguments.setdefault("partition_by", list(table.statement.partitioned_by))
    return sink.files(**_required(table, arguments, "path"))


def _postgres_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    place = _required(table, arguments, "table", "dsn")
    return source.table(place.pop("table"), **place)


def _postgres_lookup(table: DeclaredTable, arguments: dict[str, Any], key: str) -> Any:
    from headrace import source

    place = _required(table, arguments, "table", "dsn")
    return source.table(place.pop("table"), **place).lookup(table.read_codec().type, key=key)


def _postgres_sink(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
    from headrace import sink

    place = _required(table, arguments, "table", "dsn")
    if table.primary_key:
        place["key"] = table.primary_key
    return sink.postgres(place.pop("table"), **place)


def _dsn(text: str) -> str:
    """What psycopg connects with; the prefix of Java's drivers goes."""
    return text.removeprefix("jdbc:") if text.startswith("jdbc:") else text


def _redis_sink(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
    from headrace import sink

    if table.primary_key and "key" not in arguments:
        arguments["key"] = f"{table.name}:" + ":".join("{" + name + "}" for name in table.primary_key)
    return sink.redis(**_required(table, arguments, "key"))


def _redis_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    place = _required(table, arguments, "streams")
    return source.redis_stream(place.pop("streams"), **place)


def _delta_sink(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
    from headrace import sink

    if table.statement.partitioned_by:
        arguments.setdefault("partition_by", table.statement.partitioned_by)
    stored = options.starting("storage.")
    return sink.delta(**_required(table, arguments, "path"), storage_options=stored or None)


def _ingest_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    place = _required(table, arguments, "log")
    return source.ingest(place.pop("log"), **{"stream": table.name, **place})


def _items_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    given = _required(table, arguments, "rows").pop("rows")
    codec = table.read_codec()
    import msgspec

    try:
        rows = [codec.from_json(msgspec.json.encode(row)) for row in given]
    except Exception as error:
        raise table.option_error("rows", "a row does not fit the columns of the table", str(error)) from error
    arguments.pop("rows", None)
    if arguments.pop("format", "json") not in ("json", DEBEZIUM):
        raise table.option_error("format", "rows of the program are JSON", "", f"json, {DEBEZIUM}, or nothing")
    return source.items(rows, **arguments)


def _spark_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    place = _required(table, arguments, "format")
    place.pop("mode", None)
    further: dict[str, Any] = options.rest()
    return source.spark(place.pop("format"), **place, **further)


def _spark_sink(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
    from headrace import sink

    place = _required(table, arguments, "format")
    for only_read in ("schema", "split"):
        place.pop(only_read, None)
    further: dict[str, Any] = options.rest()
    return sink.spark(place.pop("format"), **place, **further)


def _python_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    made = _python_object(table, arguments)
    if isinstance(made, Source):
        return made
    raise table.option_error("object", "this is no source", f"{type(made).__name__}", "an hr.Source")


def _python_sink(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
    made = _python_object(table, arguments)
    if isinstance(made, Sink):
        return made
    raise table.option_error("object", "this is no sink", f"{type(made).__name__}", "an hr.Sink")


def _python_lookup(table: DeclaredTable, arguments: dict[str, Any], key: str) -> Any:
    made = _python_object(table, arguments)
    if isinstance(made, AsyncFunction) or inspect.iscoroutinefunction(made):
        return made
    raise table.option_error(
        "object", "this cannot be asked for a row", f"{type(made).__name__}", "async def find(key), hr.AsyncFunction"
    )


def _python_object(table: DeclaredTable, arguments: dict[str, Any]) -> Any:
    """What ``module:name`` stands for; a function is called to make it."""
    from headrace.tables.python_objects import load_object

    target = _required(table, arguments, "object")["object"]
    made = load_object(target, lambda what, **parts: table.option_error("object", what, parts.get("found", target)))
    asked = isinstance(made, Source | Sink | AsyncFunction) or inspect.iscoroutinefunction(made)
    return made if asked or not callable(made) else made()


def _sink(name: str) -> Callable[[DeclaredTable, TableOptions, dict[str, Any]], Sink]:
    """A sink of `headrace.sink` that needs nothing."""

    def make(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Sink:
        made: Sink = getattr(importlib.import_module("headrace.sink"), name)(**arguments)
        return made

    return make


def _required(table: DeclaredTable, arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """The arguments, which must hold these."""
    known = {option.argument: option.names for option in CONNECTORS[table.connector].options}
    for name in names:
        if not arguments.get(name):
            spelled = known[name][0]
            raise table.error(
                f"the connector {table.connector!r} needs the option {spelled!r}",
                expected=f"WITH ('connector' = '{table.connector}', '{spelled}' = '…')",
            )
    return dict(arguments)


_PLAIN_FILES: Final = (
    opt("path"), FORMAT, opt("glob", side="source"), opt("recursive", kind="bool", side="source"),
    opt("max_files_per_epoch", kind="int", side="source"),
    opt("header", "csv.header", kind="bool", side="source"),
    opt("delimiter", "csv.field-delimiter", side="source"), opt("split", side="source"),
    opt("partition_by", kind="list", side="sink"),
    opt("roll_size", "sink.rolling-policy.file-size", side="sink"),
    opt("roll_every", "sink.rolling-policy.rollover-interval", kind="span", side="sink"),
    opt("roll_epochs", kind="int", side="sink"),
)  # fmt: skip
_FILES: Final = TableConnector(_PLAIN_FILES, _files_source, _files_sink)
_POSTGRES: Final = TableConnector(
    (
        opt("dsn", "url", convert=_dsn), opt("table", "table-name"),
        opt("split_by", "scan.partition.column", side="source"),
        opt("partitions", "scan.partition.num", kind="int", side="source"),
        opt("per_epoch", kind="int", side="source"), opt("spool", side="source"), opt("mode", side="sink"),
        opt("create", kind="bool", side="sink"), opt("undo", kind="span", side="sink"), GUARANTEE,
    ),
    _postgres_source,
    _postgres_sink,
    lookup=_postgres_lookup,
)  # fmt: skip
_PRINT: Final = TableConnector((opt("rows", kind="int"),), None, _sink("console"))
_DISCARD: Final = TableConnector((), None, _sink("discard"))
_KAFKA: Final = TableConnector(
    messages.KAFKA, messages.kafka_source, messages.kafka_sink, ("properties.",), messages.METADATA
)
_DATAGEN: Final = TableConnector(DATAGEN, datagen_source, None, ("fields.",))

LOOKUP: Final = (
    Option(
        "cache",
        ("lookup.cache-ttl", "lookup.cache.ttl", "lookup.partial-cache.expire-after-write"),
        "span",
    ),
    Option("cache_size", ("lookup.cache-rows", "lookup.cache.max-rows", "lookup.partial-cache.max-rows"), "int"),
    Option("cache_none", ("lookup.cache-missing-key", "lookup.partial-cache.cache-missing-key"), "bool"),
    Option("retries", ("lookup.max-retries",), "int"),
    Option("timeout", ("lookup.timeout",), "span"),
    Option("capacity", ("lookup.capacity",), "int"),
)
"""How a table is asked → arguments of `Stream.lookup`."""
CONNECTORS: Final[dict[str, TableConnector]] = {
    "datagen": _DATAGEN,
    "files": _FILES,
    "filesystem": _FILES,
    "kafka": _KAFKA,
    "upsert-kafka": TableConnector(
        (*messages.KAFKA, opt("key_format", "key.format")), messages.upsert_kafka_source, messages.kafka_sink,
        ("properties.",), messages.METADATA,
    ),
    "postgres": _POSTGRES,
    "jdbc": _POSTGRES,
    "redis": TableConnector(
        (
            opt("url"), opt("key", side="sink"), Option("as_", ("as",), "text", "sink"), opt("field"),
            Option("format", ("format",), "text", "sink"), opt("ttl", kind="span", side="sink"),
            opt("maxlen", kind="int", side="sink"), opt("undo", kind="span", side="sink"), opt("guard", side="sink"),
        ),
        None,
        _redis_sink,
    ),
    "redis-stream": TableConnector(
        (
            opt("url"), opt("streams", "stream", kind="list"), opt("start", "scan.startup.mode"), opt("field"),
            opt("id_as"), opt("time_as"), opt("stream_as"), opt("max_per_epoch", kind="int"), opt("lost"),
        ),
        _redis_source,
    ),
    "delta": TableConnector(
        (opt("path"), opt("partition_by", kind="list"), opt("schema_mode"), GUARANTEE), None, _delta_sink, ("storage.",)
    ),
    "ingest": TableConnector((opt("log"), opt("stream"), opt("max_per_epoch", kind="int")), _ingest_source),
    "items": TableConnector(
        (
            opt("rows", kind="json"), Option("format", ("format",)), opt("per_epoch", kind="int"),
            opt("partitions", kind="int"),
        ),
        _items_source
    ),
    "console": _PRINT,
    "print": _PRINT,
    "collect": TableConnector((), None, _sink("collect")),
    "discard": _DISCARD,
    "blackhole": _DISCARD,
    "spark": TableConnector(
        (
            FORMAT, opt("path"), opt("schema", side="source"), opt("split", side="source"), opt("mode", side="sink"),
            GUARANTEE,
        ),
        _spark_source,
        _spark_sink,
        open=True,
    ),
    "python": TableConnector((opt("object"),), _python_source, _python_sink, lookup=_python_lookup),
}  # fmt: skip


def connector_named(name: str, error: Callable[..., ProgramError]) -> TableConnector:
    """The connector of a name; an unknown one is refused with the nearest."""
    found = CONNECTORS.get(name.lower())
    if found is None:
        raise error(
            f"there is no connector {name!r}",
            expected=f"one of {', '.join(CONNECTORS)}",
            next_move=did_you_mean(
                name, CONNECTORS, "'connector' = 'spark' has any format of Spark, 'python' a source or sink of your own"
            ),
        )
    return found


def known_options(connector: TableConnector) -> Sequence[str]:
    """The names that a connector's options go by."""
    asked = LOOKUP if connector.lookup is not None else ()
    own = [name for option in (*connector.options, *asked) for name in option.names]
    return ["connector", *own, *(f"{prefix}…" for prefix in connector.prefixes)]
