"""The program as one streaming plan of Spark. It decides nothing: what runs where stands in the Program.

    source → prefix in the JVM → chain (Python, or the JVM itself where no Python is needed) ┐
    source → …                                                                              ├ union → exchange → level 1
    ticker → (no rows; where there are loops, tasks that read them) ─────────────────────────┘         → exchange → …

The last level returns reports only; `foreachBatch` collects them.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.keys import hash_sql, key_sql
from headrace.model.order import SOURCE
from headrace.model.shapes import quoted, spark_type
from headrace.model.watermarks import HISTORY
from headrace.model.wire import BAD_ROW, EDGE, HASH, KEY, ROW_BAD, ROW_MARK, ROW_SPLIT, ROW_TIME, TIME, slot_name
from headrace.spark import executor, python_source, ticker
from headrace.spark.quiet import quiet_the_bridge
from headrace.state import layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.connectors.source_contract import SparkRead, SplitReader
    from headrace.plan.physical import EdgePlan, Program, SourcePlan


_DECODED_ALIKE: Final = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""Settings under which Spark decodes a file as the workers do: its own defaults."""


def decodes_alike(session: SparkSession) -> bool:
    """Whether Spark has no setting by which it decodes files in another way than the workers."""
    return all(str(session.conf.get(name, value)).lower() == value.lower() for name, value in _DECODED_ALIKE.items())


def _row_columns(source: SourcePlan) -> tuple[str, ...]:
    """What stands beside the fields of a source's rows."""
    return (ROW_TIME, ROW_SPLIT, ROW_BAD, *([] if source.mark is None else [ROW_MARK]))


def build_plan(
    session: SparkSession, program: Program, ship: executor.Ship, readers: dict[str, SplitReader] | None = None
) -> DataFrame:
    """The whole job as one streaming DataFrame of reports. ``readers`` is given those of sources that Python reads."""
    readers = {} if readers is None else readers
    quiet_the_bridge()
    session.dataSource.register(ticker.TickerSource)
    session.dataSource.register(python_source.PythonSource)
    chains = [_chain(session, program, i, ship, readers) for i in range(len(program.sources))]
    if not program.levels:
        return _union([*chains, _ticker(session, program, ship, [("report", "BINARY")])])
    wire_ddl = _ddl(program.schema)
    wire_columns = [(field.name, spark_type(field.type)) for field in program.schema]
    frame = _union([*chains, _ticker(session, program, ship, wire_columns)])
    for level in range(1, len(program.levels) + 1):
        last = level == len(program.levels)
        exchanged = _exchange(frame, program)
        task = partial(executor.level_task, ship, level)
        frame = exchanged.mapInArrow(task, "report BINARY" if last else wire_ddl)
        if not last:
            frame = frame.selectExpr(*_hashed(program))
    return frame


def _exchange(frame: DataFrame, program: Program) -> DataFrame:
    from pyspark.sql.functions import expr

    shift = 64 - (program.key_groups.bit_length() - 1)
    group = f"CAST(shiftrightunsigned({HASH}, {shift}) AS INT)" if shift < 64 else "0"
    shard = f"CAST({group} * {program.parallelism} DIV {program.key_groups} AS INT)"
    return frame.repartitionById(
        program.parallelism, expr(f"CASE WHEN {_goes_by_shard(program)} THEN CAST({HASH} AS INT) ELSE {shard} END")
    )


def _goes_by_shard(program: Program) -> str:
    """Predicate of rows that name their shard: control rows, and rows of edges without a key."""
    edges = ", ".join(map(str, program.edges_by_shard))
    return f"({EDGE} < 0 OR {EDGE} IN ({edges}))" if edges else f"{EDGE} < 0"


def _hashed(program: Program) -> list[str]:
    """Python leaves the hash of data rows to the JVM, where it costs next to nothing."""
    names = program.schema.names
    return [
        f"IF({_goes_by_shard(program)}, {HASH}, {hash_sql(KEY)}) AS {HASH}" if name == HASH else name for name in names
    ]


def _ticker(session: SparkSession, program: Program, ship: executor.Ship, columns: list[tuple[str, str]]) -> DataFrame:
    """What wakes the job without input; its partitions, where it has any, read what waits in loops."""
    frame = session.readStream.format(ticker.FORMAT).option("store", ship.store).name(SOURCE).load()
    if not program.loops:
        return frame.selectExpr(*[f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns])
    ddl = ", ".join(f"{name} {kind}" for name, kind in columns)
    read = frame.mapInArrow(partial(executor.loop_task, ship), ddl)
    return read.selectExpr(*_hashed(program)) if program.levels else read


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.union(right), frames)


def _chain(
    session: SparkSession, program: Program, index: int, ship: executor.Ship, readers: dict[str, SplitReader]
) -> DataFrame:
    source = program.sources[index]
    if source.decoded:
        frame = _hand_out(session, source)
    else:
        frame = _prefix(_cut(_read(session, source, ship.store, readers), source), source)
    if source.direct is not None:
        return frame.selectExpr(*_direct(program, source, program.edges[source.direct]))
    task = partial(executor.chain_task, ship, index)
    if not program.levels:
        return frame.mapInArrow(task, "report BINARY")
    return frame.mapInArrow(task, _ddl(program.schema)).selectExpr(*_hashed(program))


def _read(session: SparkSession, source: SourcePlan, store: str, readers: dict[str, SplitReader]) -> DataFrame:
    """The columns of the source's type, then event time, split and bad-row text."""
    codec = source.codec
    if source.source.python:
        use = python_source.ReadOptions(
            source.name, waits_in=store if source.aligned else "", whole_splits=source.generator is not None
        )
        split_reader = source.source.placed_in(f"{store}/{layout.kept_by_source(source.log_name)}").reader(codec)
        readers[source.log_name] = split_reader
        options = python_source.reader_options(split_reader, codec.spark_ddl, use)
        frame = session.readStream.format(python_source.FORMAT).options(**options).name(source.log_name).load()
        columns = {name: quoted(name) for name in codec.schema.names}
        raw = None if split_reader.never_bad else quoted(ROW_BAD)
        return _with_row_columns(frame, source, columns, split=quoted(ROW_SPLIT), bad=None, raw=raw)
    read = source.source.spark(codec)
    frame = _load(session, source, read)
    if read.prepare:
        frame = frame.selectExpr("*", *read.prepare)
    if read.keep is not None:
        frame = frame.where(read.keep)
    return _with_row_columns(frame, source, read.columns, split=read.split, bad=read.bad, raw=read.raw)


def _hand_out(session: SparkSession, source: SourcePlan) -> DataFrame:
    """The pieces of files that the worker decodes; Spark reads nothing of them but how long they are."""
    rows = source.source.decoder(source.codec)
    assert rows is not None, "a source was planned to be decoded, and has no decoder"
    frame = _load(session, source, source.source.spark(source.codec))
    return frame.selectExpr(*rows.pieces).where(rows.keep)


def _load(session: SparkSession, source: SourcePlan, read: SparkRead) -> DataFrame:
    reader: Any = session.readStream.format(read.format).options(**read.options).name(source.log_name)
    if read.schema_ddl is not None:
        reader = reader.schema(read.schema_ddl)
    frame: DataFrame = reader.load(read.load_path) if read.load_path is not None else reader.load()
    return frame


def _cut(frame: DataFrame, source: SourcePlan) -> DataFrame:
    """Of a backfill, the rows on this side of its cut. Rows that tell no time are history's."""
    from pyspark.sql.functions import expr

    seam = source.seam
    if seam is None:
        return frame
    if seam.history:
        named = f"IF({ROW_SPLIT} = '', NULL, concat('{HISTORY}', {ROW_SPLIT}))"
        frame = frame.withColumn(ROW_SPLIT, expr(named))
    if seam.cut_us is None:
        return frame
    cut = f"CAST({seam.cut_us} AS BIGINT)"
    mine = f"coalesce({ROW_TIME} < {cut}, true)" if seam.history else f"{ROW_TIME} >= {cut}"
    return frame.where(f"{ROW_BAD} IS NOT NULL OR {mine}")


def _with_row_columns(
    frame: DataFrame,
    source: SourcePlan,
    columns: dict[str, str],
    *,
    split: str | None,
    bad: str | None,
    raw: str | None,
) -> DataFrame:
    """``raw`` without ``bad``: the frame itself says which rows are bad, and leaves their fields null."""
    guard = "{}" if bad is None else f"IF({bad}, NULL, {{}})"
    selected = [f"{guard.format(sql)} AS {quoted(name)}" for name, sql in columns.items()]
    selected.append(f"{split or 'CAST(NULL AS STRING)'} AS {quoted(ROW_SPLIT)}")
    texts = raw or "CAST(NULL AS STRING)"
    selected.append(f"{texts if bad is None else f'IF({bad}, {raw}, NULL)'} AS {quoted(ROW_BAD)}")
    frame = frame.selectExpr(*selected)
    fields = [quoted(name) for name in columns]
    time = f"{_time_sql(source)} AS {quoted(ROW_TIME)}"
    marks = [] if source.mark is None else [f"unix_micros({source.mark}) AS {quoted(ROW_MARK)}"]
    return frame.selectExpr(*fields, time, ROW_SPLIT, ROW_BAD, *marks)


def evaluate_prefix(session: SparkSession, source: SourcePlan, table: pa.Table) -> pa.RecordBatch:
    """What a source's chain gets for these rows, with every expression evaluated by Spark: for the test kit."""
    columns = {name: quoted(name) for name in source.codec.schema.names}
    split = source.source.split_of_row(source.codec)
    frame = _with_row_columns(session.createDataFrame(table), source, columns, split=split, bad=None, raw=None)
    found = _prefix(frame, source).toArrow().combine_chunks().to_batches()
    texts = (ROW_SPLIT, ROW_BAD)
    beside = [(name, pa.string() if name in texts else pa.int64()) for name in _row_columns(source)]
    schema = pa.schema([*source.out.schema, *beside])
    arrays = [pa.array([], field.type) for field in schema]
    return found[0].cast(schema) if found else pa.RecordBatch.from_arrays(arrays, schema=schema)


def _time_sql(source: SourcePlan) -> str:
    if source.time is None:
        return "CAST(NULL AS BIGINT)"
    names = source.codec.schema.names
    text = quoted(source.time) if source.time in names else f"({source.time})"
    if source.time in names and pa.types.is_integer(source.codec.schema.field(source.time).type):
        return text
    return f"unix_micros({text})"


def _prefix(frame: DataFrame, source: SourcePlan) -> DataFrame:
    """Expressions right behind the source. A row that could not be decoded passes them untouched."""
    from pyspark.sql import functions

    if source.filtered:
        frame = frame.observe(
            source.name,
            functions.max(ROW_TIME).alias("max_us"),
            functions.max_by(ROW_SPLIT, ROW_TIME).alias("split"),
        )
    names = list(source.codec.schema.names)
    for step in source.prefix:
        if step.verb == "where":
            frame = frame.where(f"{ROW_BAD} IS NOT NULL OR ({step.pairs[0][1]})")
            continue
        columns = {name: f"IF({ROW_BAD} IS NULL, {sql}, NULL) AS {quoted(name)}" for name, sql in step.pairs}
        added = [name for name in columns if name not in names]
        names = list(columns) if step.verb == "select" else [*names, *added]
        frame = frame.selectExpr(*[columns.get(name, quoted(name)) for name in names], *_row_columns(source))
    return frame.selectExpr(*_typed(source), *_row_columns(source))


def _typed(source: SourcePlan) -> list[str]:
    """Expressions give the JVM's types; the wire wants exactly the declared ones."""
    return [
        f"CAST({quoted(field.name)} AS {spark_type(field.type)}) AS {quoted(field.name)}" for field in source.out.schema
    ]


def _direct(program: Program, source: SourcePlan, edge: EdgePlan) -> list[str]:
    """The wire, written by the JVM. A bad row goes to shard 0 as a control row and stops the job from there."""
    schema = edge.codec.schema
    assert edge.key is not None and edge.key.columns is not None
    key = key_sql([(name, schema.field(name).type) for name in edge.key.columns])
    if key is None:
        raise ProgramError("this key cannot be computed in the JVM", where=source.name)
    bad = f"CAST(to_json(named_struct('source', '{source.name}', 'bad', {ROW_BAD})) AS BINARY)"
    by_slot = dict(zip(edge.slots, schema.names, strict=True))
    columns = [
        f"IF({ROW_BAD} IS NULL, {edge.index}, {BAD_ROW}) AS {EDGE}",
        f"IF({ROW_BAD} IS NULL, {hash_sql(key)}, 0L) AS {HASH}",
        f"IF({ROW_BAD} IS NULL, {key}, {bad}) AS {KEY}",
        f"{ROW_TIME} AS {TIME}",
    ]
    for i, field in enumerate(list(program.schema)[4:]):
        name = by_slot.get(i)
        value = quoted(name) if name is not None else f"CAST(NULL AS {spark_type(field.type)})"
        columns.append(f"{value} AS {slot_name(i)}")
    return columns
