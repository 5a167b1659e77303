"""State out of a Spark DataFrame: executors hash, sort and write, and the driver gets references to what they wrote.

Rows are sent to the shard that owns their key, as an exchange does it; each task writes the runs of one shard into the
store. So a store that executors cannot reach (a folder of the driver's machine, in a cluster) is no place for this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, ProgramError
from headrace.model.keys import group_range, hash_encoded, key_groups, shards_of
from headrace.model.report import Failure, RunRef
from headrace.plan.ship import dump_program, load_program
from headrace.runtime.failures import error_failure, reported_error
from headrace.spark.failures import spark_error
from headrace.state.store import open_store
from headrace.transfer.runs import RunPlace, RunSorter
from headrace.transfer.state_rows import INDEX, FirstTimes
from headrace.transfer.targets import listed_as, open_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.plan.physical import Program

_SHARD: Final = "headrace_shard"


class ClusterFill(NamedTuple):
    """What the tasks of one state came to."""

    listed: str
    rows: int
    next_due_us: int | None
    runs: list[RunRef]


class _ShardReport(msgspec.Struct, frozen=True):
    rows: int = 0
    next_due_us: int | None = None
    runs: list[RunRef] = []
    failure: Failure | None = None


def fill_on_cluster(frame: DataFrame, program: Program, address: str, store: str, times: FirstTimes) -> ClusterFill:
    """Writes the rows of a state into a store, a task per shard."""
    from pyspark.sql.functions import col

    payload = dump_program(program)
    target = open_target(program, address, times)
    # Names are checked here, before a job runs for it.
    target.target.keys.names_in(pa.schema([(name, pa.null()) for name in frame.columns]))
    if target.target.declared.kind == "list" and INDEX not in frame.columns:
        raise ProgramError(
            "the rows of a DataFrame of Spark have no order that lists could take",
            where=f"state {address}",
            expected=f"a column {INDEX!r} with the place of each element",
            found=", ".join(frame.columns),
            next_move=f"number the rows of each key: row_number() over a window, as {INDEX!r}",
        )
    shards = 1 if target.target.declared.kind == "broadcast" else program.parallelism
    addressed = frame.mapInArrow(
        _address(payload, address, times, shards), f"{_SHARD} INT, {_ddl(frame)}"
    ).repartitionById(shards, col(_SHARD))
    try:
        reports = addressed.mapInArrow(_write(payload, address, store, times, shards), "report BINARY").collect()
    except Exception as error:
        raise spark_error(error) from error
    found = [msgspec.msgpack.decode(row.report, type=_ShardReport) for row in reports]
    for report in found:
        if report.failure is not None:
            raise reported_error(report.failure)
    dues = [report.next_due_us for report in found if report.next_due_us is not None]
    runs = [ref for report in found for ref in report.runs]
    return ClusterFill(listed_as(target.target), sum(each.rows for each in found), min(dues, default=None), runs)


def _ddl(frame: DataFrame) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields)


Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _address(payload: bytes, address: str, times: FirstTimes, shards: int) -> Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program: Any = load_program(payload)
        target, rows = open_target(program, address, times), 0
        for batch in batches:
            owners = np.zeros(batch.num_rows, np.int32)
            # Keys that do not fit are told by whoever writes them.
            with contextlib.suppress(HeadraceError):
                groups = key_groups(hash_encoded(target.target.keys.encode(batch, rows)), program.key_groups)
                owners = shards_of(groups, shards, program.key_groups).astype(np.int32)
            rows += batch.num_rows
            yield pa.RecordBatch.from_arrays([pa.array(owners), *batch.columns], [_SHARD, *batch.schema.names])

    return work


def _write(payload: bytes, address: str, store: str, times: FirstTimes, shards: int) -> Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program: Any = load_program(payload)
        try:
            report = _write_shard(program, address, store, times, shards, batches)
        except Exception as error:
            report = _ShardReport(failure=error_failure(error))
        yield pa.RecordBatch.from_pydict({"report": [msgspec.msgpack.encode(report)]})

    return work


def _write_shard(
    program: Program, address: str, store: str, times: FirstTimes, shards: int, batches: Iterator[pa.RecordBatch]
) -> _ShardReport:
    target = open_target(program, address, times)
    writer: RunSorter | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if writer is None:
            groups = group_range(batch.column(0)[0].as_py(), shards, program.key_groups)
            place = RunPlace(listed_as(target.target), 0, groups.start, groups.stop, program.key_groups)
            writer = RunSorter(open_store(store), place, unique=True)
        writer.add(target.tables(batch.select(batch.schema.names[1:])))
    return _ShardReport(target.rows, target.next_due_us, [] if writer is None else writer.finish())
