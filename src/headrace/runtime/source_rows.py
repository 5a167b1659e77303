"""Rows of a source, from the fields as they were read to what its chain is given, without the JVM.

The worker computes here what `headrace.spark.query` writes as SQL: event time, split and marks beside the fields, the
cut of a backfill, and the prefix of the source. Used for sources that workers decode, and by the test kit.
The evaluator of expressions is loaded only where there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.source_contract import BadRows, LeftToSpark
from headrace.errors import HeadraceError
from headrace.model.columns import within_years
from headrace.model.watermarks import HISTORY
from headrace.model.wire import BESIDE_TYPES, ROW_BAD, ROW_MARK, ROW_SPLIT, ROW_TIME
from headrace.runtime.marking import read_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.connectors.source_contract import WorkerRows
    from headrace.plan.physical import SourcePlan
    from headrace.runtime.fragment import LiveFragment
    from headrace.runtime.marking import LargestTimes

    _Compute = Callable[[pa.RecordBatch], pa.Array]
    _Step = Callable[[pa.RecordBatch, list[pa.Array]], tuple[pa.RecordBatch, list[pa.Array]]]

_TEXT = pa.string()
_TIME = pa.timestamp("us", "UTC")


def chain_input(
    source: SourcePlan, live: LiveFragment, given: Iterator[pa.RecordBatch], marking: LargestTimes | None
) -> Iterator[pa.RecordBatch]:
    """What a chain works on: what Spark sends, or what is decoded here of the pieces that Spark names."""
    if not source.decoded:
        return given
    rows = source.source.decoder(source.codec)
    assert rows is not None, "a source was planned to be decoded, and has no decoder"
    if live.source_rows is None:
        live.source_rows = SourceRows(source)
    live.source_rows.marking = marking
    return live.source_rows.decode(rows if source.reads is None else rows.only(source.reads), given)


def beside_bad(rows: WorkerRows, fields: pa.Schema, handed_out: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they are decoded, with their splits and the texts of bad ones as columns: for expressions in the JVM."""
    schema = pa.schema([*fields, pa.field(ROW_SPLIT, _TEXT), pa.field(ROW_BAD, _TEXT)])
    for pieces in handed_out:
        for read in rows.read(pieces):
            if isinstance(read, BadRows):
                count = len(read.texts)
                columns = [pa.nulls(count, field.type) for field in schema]
                columns[-1] = pa.array(read.texts, _TEXT)
            else:
                count = read.num_rows
                columns = [*read.columns, pa.nulls(count, _TEXT)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class SourceRows:
    """What is compiled of a source's time, splits and expressions: once per process."""

    def __init__(self, source: SourcePlan, marking: LargestTimes | None = None) -> None:
        self._source = source
        self.marking = marking
        """Of the task at hand: is told of the times of rows that a filter is about to hide."""
        self._filters = any(step.verb == "where" for step in source.prefix)
        self._reads = None if source.reads is None else list(source.reads)
        fields = _fields(source)
        self._steps = list(_steps(source, fields))
        texts = [text for text in (source.time, source.mark) if text is not None]
        told = any(text not in fields.names for text in texts)
        self._computes = source.computes or told or source.source.has_splits
        """Whether anything is evaluated here that Spark would evaluate otherwise."""
        self._time = None if source.time is None else _times(source, source.time)
        self._mark = None if source.mark is None else _times(source, source.mark)
        self._split = _split(source)

    def decode(self, rows: WorkerRows, handed_out: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The input of the chain for the pieces that Spark hands out."""
        for pieces in handed_out:
            for read in rows.read(pieces):
                if isinstance(read, BadRows):
                    yield self.bad(read.texts)
                elif rows.tells_splits:
                    yield self._as_spark(read.drop_columns([ROW_SPLIT]), read.column(ROW_SPLIT))
                else:
                    yield self._as_spark(read)

    def _as_spark(self, batch: pa.RecordBatch, splits: pa.Array | None = None) -> pa.RecordBatch:
        """Rows whose expressions are as Spark would evaluate them; `LeftToSpark` where that is not certain."""
        if not self._computes:
            return self.good(batch, splits)
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_temporal(field.type) and not within_years(column):
                raise LeftToSpark(f"{field.name} lies beyond the years 1 to 9999", where=self._source.name)
        from polars.exceptions import PanicException

        try:
            return self.good(batch, splits)
        except HeadraceError:
            raise
        except (Exception, PanicException) as error:
            raise LeftToSpark(f"an expression cannot be evaluated: {error}", where=self._source.name) from error

    def good(self, batch: pa.RecordBatch, splits: Sequence[str] | pa.Array | None = None) -> pa.RecordBatch:
        """Rows as they were read. ``splits``: where each came from; none: as the source tells."""
        batch = batch if self._reads is None else batch.select(self._reads)
        beside = dict(self._beside(batch, splits))
        batch, beside = _cut(self._source, batch, beside)
        if self._filters and self.marking is not None and self._time is not None and batch.num_rows:
            times = beside[ROW_TIME] if ROW_TIME in beside else self._time(batch)
            self.marking.see_times(read_times(times), beside.get(ROW_SPLIT))
        columns = list(beside.values())
        for step in self._steps:
            batch, columns = step(batch, columns)
        kinds = [pa.field(name, BESIDE_TYPES[name]) for name in beside]
        schema = pa.schema([*self._source.out.schema, *kinds])
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)

    def _beside(self, batch: pa.RecordBatch, splits: Sequence[str] | pa.Array | None) -> Iterator[tuple[str, pa.Array]]:
        """What stands beside the fields of these rows, where rows differ in it."""
        seam = self._source.seam
        if (splits is not None and len(splits)) or self._split is not None or (seam is not None and seam.history):
            yield ROW_SPLIT, self._splits_of(batch, splits)
        if self._time is not None and self._source.time_field is None:
            yield ROW_TIME, self._time(batch)
        if self._mark is not None:
            yield ROW_MARK, self._mark(batch)

    def _splits_of(self, batch: pa.RecordBatch, given: Sequence[str] | pa.Array | None) -> pa.Array:
        """Where rows come from: as was said when they were pushed, or as the source tells by what stands in them."""
        computed = pa.nulls(batch.num_rows, _TEXT) if self._split is None else self._split(batch)
        if isinstance(given, pa.Array):
            return given
        if not given:
            return computed
        return pc.coalesce(pa.array([split or None for split in given], _TEXT), computed)

    def bad(self, texts: list[str]) -> pa.RecordBatch:
        """Rows that could not be decoded: no values, and the text."""
        fields = self._source.out.schema
        columns = [*(pa.nulls(len(texts), field.type) for field in fields), pa.array(texts, _TEXT)]
        return pa.RecordBatch.from_arrays(columns, names=[*fields.names, ROW_BAD])


def _fields(source: SourcePlan) -> pa.Schema:
    """The columns that are asked for, of those that rows have."""
    schema = source.codec.schema
    return schema if source.reads is None else pa.schema([schema.field(name) for name in source.reads])


def _steps(source: SourcePlan, fields: pa.Schema) -> Iterator[_Step]:
    for step in source.prefix:
        if step.verb == "where":
            yield _filter(step.pairs[0][1], fields)
        else:
            yield _projection(dict(step.pairs), fields, step.out)
        fields = step.out


def _filter(text: str, fields: pa.Schema) -> _Step:
    from headrace.sql.evaluate.expressions import compile_predicate

    holds = compile_predicate(text, fields)

    def apply(batch: pa.RecordBatch, beside: list[pa.Array]) -> tuple[pa.RecordBatch, list[pa.Array]]:
        keep = pa.array(holds(batch))
        return batch.filter(keep), [column.filter(keep) for column in beside]

    return apply


def _projection(exprs: dict[str, str], fields: pa.Schema, out: pa.Schema) -> _Step:
    from headrace.sql.evaluate.expressions import compile_exprs

    made = compile_exprs(exprs, fields, out)
    return lambda batch, beside: (made(batch), beside)


def _cut(
    source: SourcePlan, batch: pa.RecordBatch, beside: dict[str, pa.Array]
) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
    """Of a backfill, the rows on this side of its cut. Rows that tell no time are history's."""
    seam = source.seam
    if seam is None:
        return batch, beside
    if seam.history:
        split = beside[ROW_SPLIT]
        named = pc.binary_join_element_wise(HISTORY, pc.if_else(pc.equal(split, ""), None, split), "")
        beside = {**beside, ROW_SPLIT: named}
    if seam.cut_us is None:
        return batch, beside
    before = pc.less(beside[ROW_TIME], seam.cut_us).fill_null(True)
    keep = before if seam.history else pc.invert(before)
    return batch.filter(keep), {name: column.filter(keep) for name, column in beside.items()}


def _split(source: SourcePlan) -> _Compute | None:
    text = source.source.split_of_row(source.codec)
    return None if text is None else _compile(text, _fields(source), _TEXT)


def _times(source: SourcePlan, text: str) -> _Compute:
    """Times as microseconds: a field, or what an expression says."""
    fields = _fields(source)
    if text in fields.names:
        return lambda batch: batch.column(text).cast(pa.int64())
    made = _compile(text, fields, _TIME)
    return lambda batch: made(batch).cast(pa.int64())


def _compile(text: str, fields: pa.Schema, kind: pa.DataType) -> _Compute:
    from headrace.sql.evaluate.expressions import compile_exprs

    made = compile_exprs({"it": text}, fields, pa.schema([("it", kind)]))
    return lambda batch: made(batch).column(0)
