"""Where rows come from: ``hr.source.items``, ``generator``, ``files``, ``ingest``, ``kafka`` and ``spark``.

Each function describes a source; ``app.read(name, source, Type)`` reads it. Writing one of your own: derive from
`headrace.connectors.source_contract.Source`, and let `headrace.testing.sources.verify_source` try to break it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.connectors.backfill import BackfillSource
from headrace.connectors.files.source import FilesSource, Format
from headrace.connectors.ingest import IngestSource
from headrace.connectors.kafka.messages import Format as KafkaFormat
from headrace.connectors.kafka.messages import Tombstones
from headrace.connectors.kafka.source import BROKERS, DataLoss, KafkaSource
from headrace.connectors.postgres.source import TableSource
from headrace.connectors.program.sources import ColumnFunction, GeneratorSource, ItemsSource, RowFunction
from headrace.connectors.redis.source import Lost, RedisStreamSource
from headrace.connectors.source_contract import Source
from headrace.connectors.spark.source import StructuredSource
from headrace.model.time import Timestamp

__all__ = ["backfill", "files", "generator", "ingest", "items", "kafka", "redis_stream", "spark", "table"]


def __dir__() -> list[str]:
    return __all__


def backfill(history: Source, live: Source, *, until: str | Timestamp | None = None) -> Source:
    """History first, then the live stream, as one source: without a gap and without a row twice.

    `history` is read to its end before anything of `live` is. `until` is the cut, a point in event time: rows before it
    come from `history`, rows at or after it from `live`, so the two may overlap. Without it every row of both is read:
    then they have to be disjoint by themselves (files up to a day, a topic from that day on).

    >>> backfill(files("archive/", format="parquet"), generator(lambda i, rng: i), until="2024-01-01").describe()
    'backfill: files archive/ (parquet) until 2024-01-01T00:00:00Z, then generator <lambda> (1000 rows/s)'
    """
    return BackfillSource(history, live, until)


def items(rows: Iterable[Any], *, per_epoch: int | None = None, partitions: int = 1) -> Source:
    """Rows given in the program: for tests, notebooks and small reference data. Bounded.

    `per_epoch` spreads them over several epochs; `partitions` lets several tasks read them.

    >>> from headrace.model.record import Record
    >>> class Click(Record):
    ...     user: str
    >>> items([Click("ann"), Click("bob")]).describe()
    'items (2 rows)'
    """
    return ItemsSource(rows, per_epoch, partitions)


def generator(
    fn: RowFunction | None = None,
    *,
    columns: ColumnFunction | None = None,
    rate: float | None = 1000,
    total: int | None = None,
    seed: int = 1,
    partitions: int = 1,
    per_epoch: int | None = None,
) -> Source:
    """Rows made on the spot: ``fn(i, rng)`` returns row number `i`, using nothing but `i` and `rng`.

    `rate` is rows per second (None: as fast as possible), `total` bounds the whole, `per_epoch` an epoch. The same
    seed gives the same rows, also after a restart. For volume give ``columns=fn`` instead: ``fn(start, stop)`` returns
    the rows from `start` up to `stop` as an Arrow RecordBatch or a dict of numpy arrays.

    >>> from headrace.model.record import Record
    >>> class Click(Record):
    ...     user: str
    >>> generator(lambda i, rng: Click(f"user-{rng.randrange(10)}"), rate=50, total=100).bounded
    True
    """
    return GeneratorSource(fn, columns, rate=rate, total=total, seed=seed, partitions=partitions, per_epoch=per_epoch)


def files(
    path: str | os.PathLike[str],
    *,
    format: Format = "json",
    glob: str | None = None,
    recursive: bool = False,
    max_files_per_epoch: int | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    split: Any = None,
) -> Source:
    """A folder whose files are read as they appear: JSON lines, CSV or Parquet, also compressed.

    Each file is read once, whole; put it in place complete (write elsewhere, then rename). `glob` picks file names
    (``"*.json"``), `recursive` looks into folders below, `max_files_per_epoch` bounds an epoch. For CSV, `header` says
    whether the first line names the columns, and `names` gives their order where it does not or no file is there yet.
    A row that cannot be decoded stops the job with file and line, or goes to ``stream.errors`` where that is used.

    Time is that of the newest row of any file. Where several producers write into the folder, `split` says which: a
    field (``split=View.host``), or SQL over the fields, ``_metadata.file_name`` and ``_metadata.file_path``; then the
    watermark waits for the slowest of them.

    >>> files("events/", format="csv", glob="*.csv").describe()
    'files events/ (csv)'
    """
    return FilesSource(
        path,
        format,
        glob=glob,
        recursive=recursive,
        max_files_per_epoch=max_files_per_epoch,
        header=header,
        names=names,
        delimiter=delimiter,
        split=split,
    )


def kafka(
    topics: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    brokers: str | Sequence[str] = BROKERS,
    format: KafkaFormat = "json",
    schema: Any = None,
    registry: str | Mapping[str, Any] | None = None,
    start: str | datetime | Timestamp | Mapping[Any, Any] = "earliest",
    max_per_epoch: int | None = None,
    key: Any = None,
    value: Any = None,
    timestamp: Any = None,
    headers: Any = None,
    topic_field: Any = None,
    partition: Any = None,
    offset: Any = None,
    tombstones: Tombstones = "skip",
    on_data_loss: DataLoss = "stop",
    **options: Any,
) -> Source:
    """The messages of Kafka topics: one, a list, or all that fit a `pattern`.

    The value of a message is a JSON object whose members are the fields (``format="json"``), an Avro record, a message
    of Protobuf, or a text or bytes that fill the only field. For ``"avro"`` and ``"protobuf"``, `registry` is the URL
    of the schema registry with whose ids messages begin, or a dict of its client's options; without one messages are
    bare, and `schema` says under which schema they were written: Avro's text or a file of it, or a class that
    Protobuf's compiler made (none: that of the row type). JSON with a `registry` stands behind such an id, too.

    Other parts of a message go to fields that are named for them: ``key=Click.user``, ``timestamp=Click.at``,
    ``partition=``, ``offset=``, ``topic_field=``, ``headers={"trace-id": Click.trace}`` or ``headers="all_of_them"`` (a
    dict); ``value=`` names the field of the whole value.

    `start` is where the first run of a store begins: ``"earliest"``, ``"latest"``, a time, or offsets (``{0: 17, 1:
    "latest"}``); later runs go on where the last ended. `max_per_epoch` bounds the messages of an epoch (a million
    where nothing is said). A message without a value is left out, or with ``tombstones="keep"`` a row of defaults, or
    with ``"error"`` a bad row. Messages that Kafka deleted before they were read stop the job, or are passed over by
    ``on_data_loss="skip"``.

    Options are those of Kafka's clients, with underscores for dots: ``security_protocol="SASL_SSL"``,
    ``sasl_mechanism="SCRAM-SHA-512"``, ``sasl_username="ann"``, ``sasl_password=hr.secret("KAFKA_PASSWORD")``.

    >>> kafka(["clicks", "views"], brokers="broker:9092", start="latest").describe()
    'kafka clicks, views (json)'
    """
    parts = {"key": key, "value": value, "timestamp": timestamp, "topic_field": topic_field, "partition": partition}
    return KafkaSource(
        topics,
        pattern=pattern,
        brokers=brokers,
        format=format,
        start=start,
        max_per_epoch=max_per_epoch,
        fields={**parts, "offset": offset, "headers": headers},
        tombstones=tombstones,
        on_data_loss=on_data_loss,
        schema=schema,
        registry=registry,
        options=options,
    )


def ingest(log: str | os.PathLike[str], *, stream: str = "events", max_per_epoch: int | None = None) -> Source:
    """Events that were sent to ``headrace ingest --log``, from the folder of that log on the same machine.

    Each is a JSON object of the type given to ``app.read``. The job begins with the oldest events that are kept.
    `max_per_epoch` bounds an epoch. The partitions of a stream are its splits, so several tasks read them.

    >>> ingest("./log", stream="clicks").describe()
    'ingest ./log (clicks)'
    """
    return IngestSource(log, stream, max_per_epoch)


def redis_stream(
    streams: str | Sequence[str],
    *,
    url: str = "redis://localhost:6379",
    start: str | datetime | Timestamp = "earliest",
    field: str | None = None,
    id_as: str | None = None,
    time_as: str | None = None,
    stream_as: str | None = None,
    max_per_epoch: int | None = 100_000,
    lost: Lost = "fail",
) -> Source:
    """Entries of one Redis stream or several, each stream a split of its own (Redis 7 or newer).

    Fields of an entry become fields of the Record by name, read from text; or `field` names the one that holds the
    whole row as JSON. `id_as`, `time_as` and `stream_as` name fields of the row that take the entry's id, the time in
    it, and the stream's name. `start` is ``"earliest"``, ``"latest"``, the id of the first entry to read, or a time.
    An entry that gives no row stops the job, or goes to ``stream.errors`` where that is used.

    Entries that were trimmed or deleted before they were read stop the job with InputLost; with ``lost="skip"`` it goes
    on without them. Nothing is acknowledged or removed: trimming is up to producers.

    >>> redis_stream("orders", url="redis://:secret@shop:6379", time_as="at").describe()
    'redis stream orders at redis://shop:6379'
    """
    return RedisStreamSource(
        streams,
        url,
        start=start,
        field=field,
        id_as=id_as,
        time_as=time_as,
        stream_as=stream_as,
        max_per_epoch=max_per_epoch,
        lost=lost,
    )


def spark(
    format: str,
    *,
    path: str | None = None,
    schema: str | None = None,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    **options: Any,
) -> Source:
    """Any Structured Streaming source. `columns` maps fields to SQL over the source's columns; others go by name.

    `schema` is Spark DDL where the source needs one; `split` is SQL for what orders its rows (a partition number), so
    that the watermark waits for the slowest. Everything else is an option of the source.

    >>> spark("rate", columns={"n": "value", "at": "timestamp"}, rowsPerSecond=10).describe()
    'spark rate'
    """
    return StructuredSource(format, path=path, schema=schema, columns=columns or {}, split=split, options=options)


def table(
    query_or_table: str,
    *,
    dsn: str,
    split_by: Any = None,
    partitions: int = 1,
    per_epoch: int | None = 1_000_000,
    spool: str | os.PathLike[str] | None = None,
) -> TableSource:
    """A table of Postgres, or the rows of a query, as they are when the job first starts. Bounded.

    The rows are copied, in one snapshot of the database, into the store before the first epoch, and read from there:
    exactly the same ones after any crash. What changes in the table later is not seen. Columns go by the names of the
    fields. `per_epoch` bounds an epoch, `partitions` lets several tasks read; with `split_by`, a column, as many
    connections copy ranges of its values at the same time. `spool` keeps the copy in another folder than the store.
    `dsn` is what psycopg connects with, best as ``hr.secret("PG_DSN")``. Needs ``pip install 'headrace[postgres]'``.

    ``table(…).lookup(Shop, key="id")`` is the same table as the other side of ``stream.lookup``, asked live.

    >>> table("shop.products", dsn="postgresql://db/shop").describe()
    'table shop.products'
    """
    return TableSource(query_or_table, dsn, split_by, partitions, per_epoch, spool)
