"""Where rows go: ``hr.sink.console``, ``files``, ``kafka``, ``postgres`` and all the others here.

Each function describes a sink; ``stream.write(sink)`` writes to it. Rows are staged in the store first and released
when their epoch is published. Writing one of your own: derive from `headrace.connectors.sink_contract.Sink`, and let
`headrace.testing.sinks.verify_sink` try to break it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.connectors.console.sink import ConsoleSink
from headrace.connectors.delta.sink import DeltaSink, SchemaMode
from headrace.connectors.files.roll_policy import roll_policy
from headrace.connectors.files.sink import BucketSpan, FilesSink, Format
from headrace.connectors.kafka.rows import Format as MessageFormat
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.postgres.sink import Mode, PostgresSink
from headrace.connectors.program.sinks import CallSink, CollectSink, DiscardSink
from headrace.connectors.redis.rows import Format as ValueFormat
from headrace.connectors.redis.rows import Shape
from headrace.connectors.redis.sink import RedisSink
from headrace.connectors.sink_contract import GuaranteeChoice, Release, Sink
from headrace.connectors.spark.sink import BatchWriterSink
from headrace.model.time import Span

__all__ = ["call", "collect", "console", "delta", "discard", "files", "kafka", "postgres", "redis", "spark"]


def __dir__() -> list[str]:
    return __all__


def files(
    path: str | os.PathLike[str],
    *,
    format: Format = "json",
    partition_by: Any = None,
    bucket_by: tuple[Any, BucketSpan] | None = None,
    roll_size: str | int | None = None,
    roll_every: Span | None = None,
    roll_epochs: int | None = None,
) -> Sink:
    """A folder of JSON lines, CSV or Parquet files. **Exactly once.**

    Readers of the folder see whole files of published epochs and nothing else; after a crash no row is missing and none
    is there twice. `partition_by` puts rows into folders by the values of columns (``shop=a/``), `bucket_by` by the
    month, day or hour (in UTC) of a time: ``bucket_by=(Sale.at, "day")``. `path` may be a URL that fsspec knows
    (``s3://…``).

    Every epoch is visible at once, in files of its own. With `roll_size`, `roll_every` or `roll_epochs` rows of several
    epochs become one file instead, and are visible when it is so large, so old, or of so many epochs; also when the run
    ends.

    >>> files("out/", format="parquet", partition_by="shop").describe()
    'files out/ (parquet, by shop)'
    >>> files("out/", format="parquet", bucket_by=("at", "day"), roll_size="128MB", roll_every="15m").describe()
    'files out/ (parquet, by day of at, rolled at 128MB or 15m)'
    """
    policy = roll_policy(roll_size, roll_every, roll_epochs, f'sink.files("{os.fspath(path)}")')
    return FilesSink(path, format, partition_by, bucket_by, policy)


def console(rows: int = 20) -> Sink:
    """The newest rows on the screen: a live table on a terminal, plain lines elsewhere. **At least once.**"""
    return ConsoleSink(rows)


def collect() -> CollectSink:
    """Keeps all rows in the driver, as ``sink.rows``: for bounded runs, notebooks and tests. **Exactly once** per
    process. ``sink.to_polars()`` and ``sink.to_pandas()`` give them as a DataFrame.

    >>> seen = collect()
    >>> seen.rows
    []
    """
    return CollectSink()


def call(fn: Callable[[Any, int], object], *, batch: bool = True, kinds: bool = False) -> Sink:
    """Calls ``fn(rows, epoch)`` in the driver, once per epoch that has rows. **At least once.**

    `rows` is a list of objects; with ``batch=False`` the function gets one row at a time. After a crash the last epoch
    may come again, with the same number and the same rows: remember `epoch` where the rows go to tell.

    With ``kinds=True`` it takes rows that go, too: each comes as a pair, ``("+I", row)``, or with ``"-U"``, ``"+U"``,
    ``"-D"`` in front.
    """
    return CallSink(fn, batch, kinds)


def delta(
    path: str | os.PathLike[str],
    *,
    key: Any = None,
    partition_by: Any = None,
    schema_mode: SchemaMode | None = None,
    guarantee: GuaranteeChoice = "exactly_once",
    storage_options: Mapping[str, str] | None = None,
) -> Sink:
    """A table of Delta Lake, written by the package deltalake: no jars. **Exactly once**, or at least once by
    ``guarantee="at_least_once"``.

    Without `key` rows are appended. With ``key="id"`` each epoch is merged: a row replaces the one of the same key, and
    rows that are taken back are deleted.

    Every epoch with rows is one version of the table, whose commit also says the epoch's number. `path` is a folder or
    a URL (``s3://…``, ``gs://…``, ``abfss://…``); what is needed to get there is taken from the environment, or given
    as `storage_options` of deltalake.

    The table is made from the row type where it is missing, with folders by the values of `partition_by` (``"day"``,
    ``(Sale.day, Sale.shop)``), and compared with it where it is there. With ``schema_mode="merge"`` columns that it
    lacks are added. Needs ``pip install 'headrace[delta]'``.

    >>> delta("lake/sales", partition_by="day").describe()
    'delta lake/sales (by day)'
    >>> delta("lake/totals", key="shop").describe()
    'delta lake/totals (key shop)'
    """
    return DeltaSink(path, partition_by, schema_mode, guarantee, storage_options, key)


def kafka(
    topic: str,
    *,
    brokers: str | Sequence[str] = "localhost:9092",
    format: MessageFormat = "json",
    value: Any = None,
    key: Any = None,
    headers: Mapping[str, Any] | None = None,
    partition: Any = None,
    timestamp: Any = None,
    topic_field: Any = None,
    guarantee: GuaranteeChoice = "exactly_once",
    create: bool | Mapping[str, str] = False,
    partitions: int | None = None,
    schema: Any = None,
    registry: str | Mapping[str, Any] | None = None,
    subject: str | None = None,
    register: bool = True,
    **options: Any,
) -> Sink:
    """Messages of a Kafka topic. **Exactly once** for readers with ``isolation.level=read_committed``, or at least once
    by ``guarantee="at_least_once"``, which needs no transactions.

    `format` is ``"json"``, ``"avro"`` or ``"protobuf"`` for whole rows, ``"text"`` or ``"bytes"`` for one column: the
    only one of that kind, or `value`. ``"debezium-json"`` writes whole rows as changes, in the envelope of Debezium:
    ``before``, ``after`` and ``op`` (``c``, ``u`` or ``d``). `key` is a column, whose text is the key, or several,
    which make a JSON array; with a key the sink takes streams that correct themselves, as a compacted topic wants them.
    `headers` maps names to columns. `partition`, `timestamp` and `topic_field` name columns that say where a message
    goes and when it was; rows without a topic of their own go to `topic`. ``create=True`` makes topics that are
    missing, with so many `partitions`; ``create={"cleanup.policy": "compact"}`` makes them with these settings.

    Avro and Protobuf are written under `schema`, or under the schema that the row type has. With the URL of a schema
    `registry` (or a dict of its client's options) messages begin with the schema's id. The schema is registered under
    `subject` (``"{topic}-value"``; ``{record}`` is the schema's own name), or with ``register=False`` has to be there:
    then the newest of the subject counts where no `schema` is given. JSON goes behind such an id as well.

    All other options are librdkafka's, with underscores for dots: ``compression_type="zstd"``,
    ``sasl_password=hr.secret("KAFKA_PASSWORD")``. Needs ``pip install 'headrace[kafka]'``.

    >>> kafka("totals", brokers="localhost:9092", key="shop").describe()
    'kafka totals (json, key shop)'
    """
    return KafkaSink(
        topic, brokers, format=format, value=value, key=key, headers=headers, partition=partition,
        timestamp=timestamp, topic_field=topic_field, guarantee=guarantee, create=create, partitions=partitions,
        schema=schema, registry=registry, subject=subject, register=register, options=options,
    )  # fmt: skip


def postgres(
    table: str,
    *,
    dsn: str,
    key: Any = None,
    mode: Mode | None = None,
    create: bool = True,
    guarantee: GuaranteeChoice = "exactly_once",
    undo: Span | None = None,
) -> Sink:
    """A table of Postgres, written by COPY. **Exactly once**, or at least once by ``guarantee="at_least_once"``.

    Without `key` rows are appended. With ``key="id"`` or ``key=(Sale.shop, Sale.day)`` a row replaces the one of the
    same key, so streams that correct themselves can be written too; ``mode="append"`` appends all the same. Rows and
    the number of their epoch (in the table ``headrace_epochs`` of the same schema) are one transaction.

    A job that goes back to an earlier epoch takes back what it wrote since: by the state of a rolling step, or, with
    ``undo="24h"``, by the rows that were replaced, which are kept for so long in the table ``headrace_undo``.

    `table` may name a schema (``"shop.sales"``). It is made from the row type where it is missing, unless
    ``create=False``, and compared with it where it is there. `dsn` is what psycopg connects with: a URL or
    ``"host=… dbname=…"``, best as ``hr.secret("PG_DSN")``. Needs ``pip install 'headrace[postgres]'``.

    >>> postgres("shop.sales", dsn="postgresql://db/shop", key=("shop", "day")).describe()
    'postgres shop.sales (upsert by shop, day)'
    """
    return PostgresSink(table, dsn, key, mode, create, guarantee, undo)


def spark(
    format: str,
    *,
    path: str | Callable[[Release], str] | None = None,
    mode: str = "append",
    guarantee: GuaranteeChoice | None = None,
    **options: Any,
) -> Sink:
    """Any batch writer of Spark (``jdbc``, ``delta``, ``avro``, …), once per epoch that has rows. **At least once**,
    Delta **exactly once**.

    A path or an option may be a function: it is called with the release (``epoch``, ``timeline``, ``job``, ``output``)
    each time. Where the format thereby replaces or recognises an epoch that it has, say ``guarantee="exactly_once"``.

    >>> spark("jdbc", url="jdbc:postgresql://localhost/shop", dbtable="sales").describe()
    'spark jdbc'
    >>> by_epoch = spark("orc", path=lambda release: f"out/epoch={release.epoch}", mode="overwrite",
    ...                  guarantee="exactly_once")
    >>> by_epoch.guarantee
    'exactly once'
    """
    return BatchWriterSink(format, path, mode, guarantee, options)


def redis(
    *,
    key: str,
    url: str = "redis://localhost:6379",
    as_: Shape = "string",
    field: str | None = None,
    format: ValueFormat = "json",
    ttl: Span | None = None,
    maxlen: int | None = None,
    guard: str = "headrace:{job}:{output}",
    undo: Span | None = None,
) -> Sink:
    """Strings, hashes or entries of streams in Redis (7 or newer). **Exactly once.**

    `key` is a template over the row's fields: ``"user:{user}"``. As ``"string"`` a row is one document (`format`: JSON
    or MessagePack); as ``"hash"`` its fields are those of the hash; as ``"stream"`` it is appended to the stream `key`.
    With `field` (a template, too) a hash or an entry holds the whole row as a document in that one field. `ttl` lets
    strings and hashes expire, `maxlen` bounds a stream.

    Rows change together with a guard (`guard` is its key) in one script, 10 000 rows or 4 MB at a time: an epoch up to
    that size is visible at once, of a larger one readers may see a part for a moment. With ``undo="24h"`` what was
    there before is kept for so long, so that a job that goes back takes back what it wrote since. `url` may be
    ``hr.secret("REDIS_URL")``. Redis Cluster is not supported.

    >>> redis(key="user:{user}", as_="hash", ttl="1h").describe()
    'redis hash user:{user} at redis://localhost:6379'
    """
    return RedisSink(url, key, as_, field=field, format=format, ttl=ttl, maxlen=maxlen, guard=guard, undo=undo)


def discard() -> DiscardSink:
    """Counts rows (``sink.count``) and drops them: for benchmarks."""
    return DiscardSink()
