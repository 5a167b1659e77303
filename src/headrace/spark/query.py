"""The program as one streaming plan of Spark. It decides nothing: what runs where stands in the Program.

    source → prefix in the JVM → chain ┐
    source → …                         ├ union → exchange of frames → level 1 → exchange of frames → …
    ticker → (loops) ──────────────────┘

Every chain and level is Python, and hands on frames (`headrace.model.wire`): between them Spark moves the number of a
shard and bytes, so the plan does not depend on the types of the program. The last level returns reports only;
`foreachBatch` collects them.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.model.shapes import quoted, spark_type
from headrace.model.watermarks import HISTORY
from headrace.model.wire import BESIDE_TYPES, REPORT_DDL, ROW_BAD, ROW_MARK, ROW_SPLIT, ROW_TIME, SHARD, WIRE_DDL
from headrace.runtime.source_rows import beside_bad
from headrace.spark import executor, python_source
from headrace.spark.quiet import quiet_the_bridge
from headrace.state import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from headrace.connectors.source_contract import Passage, SparkRead, SplitReader
    from headrace.plan.physical import Program, SourcePlan
    from headrace.spark.ticker import Ticker


_DECODED_ALIKE: Final = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""Settings under which Spark decodes a file as the workers do: its own defaults."""


def decodes_alike(session: SparkSession) -> bool:
    """Whether Spark has no setting by which it decodes files in another way than the workers."""
    return all(str(session.conf.get(name, value)).lower() == value.lower() for name, value in _DECODED_ALIKE.items())


def build_plan(
    session: SparkSession,
    program: Program,
    ship: executor.Ship,
    ticker: Ticker,
    readers: dict[str, SplitReader] | None = None,
) -> DataFrame:
    """The whole job as one streaming DataFrame of reports. ``readers`` is given those of sources that Python reads."""
    readers = {} if readers is None else readers
    quiet_the_bridge()
    if any(source.source.python for source in program.sources):
        # Spark starts a process to look at it.
        session.dataSource.register(python_source.PythonSource)
    levels = len(program.levels)
    ddl = WIRE_DDL if levels else REPORT_DDL
    chains = [_chain(session, program, i, ship, readers).mapInArrow(partial(executor.chain_task, ship, i), ddl)
              for i in range(len(program.sources))]  # fmt: skip
    frame = reduce(lambda left, right: left.union(right), [*chains, _ticks(program, ship, ticker, ddl)])
    for level in range(1, levels + 1):
        task = partial(executor.level_task, ship, level)
        exchanged = frame.repartitionById(program.parallelism, SHARD)
        frame = exchanged.mapInArrow(task, WIRE_DDL if level < levels else REPORT_DDL)
    return frame


def _ticks(program: Program, ship: executor.Ship, ticker: Ticker, ddl: str) -> DataFrame:
    """What wakes the job without input; its partitions, where it has any, read what waits in loops."""
    frame = ticker.frame()
    if program.loops:
        return frame.mapInArrow(partial(executor.loop_task, ship), ddl)
    columns = (column.split() for column in ddl.split(", "))
    return frame.selectExpr(*[f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns])


def _chain(
    session: SparkSession, program: Program, index: int, ship: executor.Ship, readers: dict[str, SplitReader]
) -> DataFrame:
    """What a source's chain is given."""
    source = program.sources[index]
    if source.decoded:
        return _hand_out(session, source)
    if source.source.python:
        return _prefix(_read(session, source, ship.store, readers), source)
    read = source.source.spark(source.codec)

    def decode(pieces: DataFrame) -> DataFrame:
        return pieces.mapInArrow(partial(executor.decode_task, ship, index), _decoded_ddl(source))

    return _prefix(_rows_read(_load(session, source, read), source, read, decode), source)


def _read(session: SparkSession, source: SourcePlan, store: str, readers: dict[str, SplitReader]) -> DataFrame:
    """The fields of the rows that a reader in Python gives, then what stands beside them."""
    codec = source.codec
    use = python_source.ReadOptions(
        source.name,
        waits_in=store if source.aligned else "",
        whole_splits=source.generator is not None,
        tells_splits=source.source.has_splits,
    )
    split_reader = source.source.placed_in(f"{store}/{layout.kept_by_source(source.log_name)}").reader(codec)
    readers[source.log_name] = split_reader
    options = python_source.reader_options(split_reader, codec.spark_ddl, use)
    frame = session.readStream.format(python_source.FORMAT).options(**options).name(source.log_name).load()
    columns = {name: quoted(name) for name in codec.schema.names}
    raw = None if split_reader.never_bad else quoted(ROW_BAD)
    split = quoted(ROW_SPLIT) if source.source.has_splits else None
    return _with_row_columns(frame, source, columns, split=split, bad=raw)


def _rows_read(
    frame: DataFrame, source: SourcePlan, read: SparkRead, decode: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """What a format gives, as rows of the source. ``decode`` has the worker decode what Spark cannot."""
    if read.decoded:
        fields = {name: quoted(name) for name in source.codec.schema.names}
        decoded = decode(_pieces(frame, source))
        return _with_row_columns(decoded, source, fields, split=quoted(ROW_SPLIT), bad=quoted(ROW_BAD))
    if read.prepare:
        frame = frame.selectExpr("*", *read.prepare)
    if read.keep is not None:
        frame = frame.where(read.keep)
    bad = None if read.bad is None else f"IF({read.bad}, {read.raw}, NULL)"
    return _with_row_columns(frame, source, read.columns, split=read.split, bad=bad)


def read_again(session: SparkSession, source: SourcePlan, passage: Passage) -> Iterator[pa.RecordBatch]:
    """What a source's chain got between two positions, read at once: for replays."""
    for read in source.source.batch_reads(source.codec, passage) or ():
        reader: Any = session.read.format(read.format).options(**read.options)
        if read.schema_ddl is not None:
            reader = reader.schema(read.schema_ddl)
        frame: DataFrame = reader.load(read.load_path) if read.load_path is not None else reader.load()
        rows = _rows_read(frame, source, read, partial(_decoded_here, session, source))
        yield _collect(_prefix(rows, source), source)


def _decoded_ddl(source: SourcePlan) -> str:
    return f"{source.codec.spark_ddl}, {ROW_SPLIT} STRING, {ROW_BAD} STRING"


def _decoded_here(session: SparkSession, source: SourcePlan, pieces: DataFrame) -> DataFrame:
    rows = source.source.decoder(source.codec)
    assert rows is not None, "the source says that workers decode it"
    decoded = list(beside_bad(rows, source.codec.schema, pieces.toArrow().to_batches()))
    if not decoded:
        return session.createDataFrame([], _decoded_ddl(source))
    return session.createDataFrame(pa.Table.from_batches(decoded))


def _hand_out(session: SparkSession, source: SourcePlan) -> DataFrame:
    """What the worker decodes: messages, or pieces of files of which Spark reads nothing but how long they are."""
    return _pieces(_load(session, source, source.source.spark(source.codec)), source)


def _pieces(frame: DataFrame, source: SourcePlan) -> DataFrame:
    rows = source.source.decoder(source.codec)
    assert rows is not None, "a source was planned to be decoded, and has no decoder"
    if rows.prepare:
        frame = frame.selectExpr("*", *rows.prepare)
    return frame.selectExpr(*rows.pieces).where(rows.keep)


def _load(session: SparkSession, source: SourcePlan, read: SparkRead) -> DataFrame:
    reader: Any = session.readStream.format(read.format).options(**read.options).name(source.log_name)
    if read.schema_ddl is not None:
        reader = reader.schema(read.schema_ddl)
    frame: DataFrame = reader.load(read.load_path) if read.load_path is not None else reader.load()
    return frame


def _with_row_columns(
    frame: DataFrame, source: SourcePlan, columns: dict[str, str], *, split: str | None, bad: str | None
) -> DataFrame:
    """The fields, and beside them only what rows differ in. ``bad``: text where a row cannot be decoded, else null.

    Of a bad row only that text counts, so its fields may be anything; whatever a program says of them is not asked.
    """
    selected = [f"{sql} AS {quoted(name)}" for name, sql in columns.items()]
    seam = source.seam
    if split is not None or (seam is not None and seam.history):
        named = split or "CAST(NULL AS STRING)"
        if seam is not None and seam.history:
            named = f"concat('{HISTORY}', nullif({named}, ''))"
        selected.append(f"{named} AS {quoted(ROW_SPLIT)}")
    if bad is not None:
        selected.append(f"{bad} AS {quoted(ROW_BAD)}")
    frame = frame.selectExpr(*selected)
    times = []
    if source.time is not None and source.time_field is None:
        times.append(f"{_of_good(frame, _time_sql(source))} AS {quoted(ROW_TIME)}")
    if source.mark is not None:
        times.append(f"{_of_good(frame, f'unix_micros({source.mark})')} AS {quoted(ROW_MARK)}")
    frame = frame.selectExpr("*", *times) if times else frame
    if seam is None or seam.cut_us is None:
        return frame
    # Of a backfill, the rows on this side of its cut. Rows that tell no time are history's.
    cut = f"CAST({seam.cut_us} AS BIGINT)"
    mine = f"coalesce({ROW_TIME} < {cut}, true)" if seam.history else f"{ROW_TIME} >= {cut}"
    return frame.where(_or_bad(frame, mine))


def _of_good(frame: DataFrame, sql: str) -> str:
    """An expression of the program over the fields, which is not asked of bad rows."""
    return f"IF({ROW_BAD} IS NULL, {sql}, NULL)" if ROW_BAD in frame.columns else sql


def _or_bad(frame: DataFrame, predicate: str) -> str:
    return f"{ROW_BAD} IS NOT NULL OR ({predicate})" if ROW_BAD in frame.columns else predicate


def evaluate_prefix(session: SparkSession, source: SourcePlan, table: pa.Table) -> pa.RecordBatch:
    """What a source's chain gets for these rows, with every expression evaluated by Spark: for the test kit."""
    columns = {name: quoted(name) for name in source.codec.schema.names}
    split = source.source.split_of_row(source.codec)
    frame = _prefix(_with_row_columns(session.createDataFrame(table), source, columns, split=split, bad=None), source)
    return _collect(frame, source)


def _collect(frame: DataFrame, source: SourcePlan) -> pa.RecordBatch:
    """All rows of a frame, as a chain gets them."""
    batches = frame.toArrow().combine_chunks().to_batches()
    beside = [(name, BESIDE_TYPES[name]) for name in frame.columns[len(source.out.schema) :]]
    schema = pa.schema([*source.out.schema, *beside])
    arrays = [pa.array([], field.type) for field in schema]
    return batches[0].cast(schema) if batches else pa.RecordBatch.from_arrays(arrays, schema=schema)


def _time_sql(source: SourcePlan) -> str:
    """Event time in microseconds, over the fields as read."""
    assert source.time is not None
    names = source.codec.schema.names
    text = quoted(source.time) if source.time in names else f"({source.time})"
    if source.time in names and pa.types.is_integer(source.codec.schema.field(source.time).type):
        return text
    return f"unix_micros({text})"


def _prefix(frame: DataFrame, source: SourcePlan) -> DataFrame:
    """Expressions right behind the source. A row that could not be decoded passes them untouched."""
    beside = frame.columns[len(source.codec.schema) :]
    if source.filtered:
        frame = _observe_times(frame, source, beside)
    names = list(source.codec.schema.names)
    for step in source.prefix:
        if step.verb == "where":
            frame = frame.where(_or_bad(frame, step.pairs[0][1]))
            continue
        columns = {name: f"{_of_good(frame, sql)} AS {quoted(name)}" for name, sql in step.pairs}
        added = [name for name in columns if name not in names]
        names = list(columns) if step.verb == "select" else [*names, *added]
        frame = frame.selectExpr(*[columns.get(name, quoted(name)) for name in names], *map(quoted, beside))
    # Expressions give the JVM's types; a chain wants exactly the declared ones.
    return frame.selectExpr(*map(_cast_column, source.out.schema), *map(quoted, beside))


def _observe_times(frame: DataFrame, source: SourcePlan, beside: list[str]) -> DataFrame:
    """Has Spark tell the newest event time in front of filters, which hide rows from the chain."""
    from pyspark.sql.functions import expr, max_by
    from pyspark.sql.functions import max as largest

    time = expr(ROW_TIME if ROW_TIME in beside else _of_good(frame, _time_sql(source)))
    split = expr(ROW_SPLIT if ROW_SPLIT in beside else "CAST(NULL AS STRING)")
    return frame.observe(source.name, largest(time).alias("max_us"), max_by(split, time).alias("split"))


def _cast_column(field: pa.Field) -> str:
    return f"CAST({quoted(field.name)} AS {spark_type(field.type)}) AS {quoted(field.name)}"
