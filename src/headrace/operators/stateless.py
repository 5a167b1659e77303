"""Steps without state: a user's function per row or per batch, and expressions.

``map``, ``flat_map`` and ``filter`` call a function for each row, ``only`` keeps rows of one type, ``map_batches``
takes whole batches as Arrow, polars or pandas tables; ``where``, ``select`` and ``with_columns`` evaluate SQL text.
Rows keep the time of the row they were made from. Where ``map_batches`` changes the number of rows, nobody can tell
which row came from which: the result's own time column counts if there is one, else the newest time of the batch.

Rows of a changelog keep their kinds, too: what a function makes of a row that is taken back takes back what it made of
that row when it came. So functions must say the same of equal rows. A row that failed when it came is not reported
again when it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa

from headrace.errors import ExpressionError, FunctionFailed
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.columns import as_int64
from headrace.model.expansion import ROW_TIME, SOURCE_ROW
from headrace.model.ids import MIN_TIME
from headrace.model.record import Failed
from headrace.model.row_kind import DELETE, INSERT, Kinds, takes_back
from headrace.model.rows import codec_of
from headrace.operators.changelogs.pairs import keep_rows, mend_kinds, spread_pairs
from headrace.operators.contract import ERRORS, Operator
from headrace.operators.failures import GUARD_SQL, READ_ERRORS, failed_row, function_failed
from headrace.sql.evaluate.expressions import compile_exprs, compile_predicate

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Form = Literal["arrow", "polars", "pandas"]


class RowOperator(Operator):
    """Base of the steps that call a function for each row: goes on behind a failing row where errors are read."""

    def __init__(self, step: str, function: Callable[[Any], Any], codec: RowCodec) -> None:
        super().__init__(step)
        self.function = function
        self.codec = codec
        """Of the rows that come out."""
        self.failed_at: list[int] = []
        """Positions in the batch at hand of the rows whose function raised."""

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if len(rows):
            self.handle(rows)

    def handle(self, rows: Rows) -> None:
        raise NotImplementedError

    def call_each(self, rows: Rows, take: Callable[[Iterator[Any]], None], done: Callable[[], int]) -> None:
        """Has ``take`` go through the rows and call the function; again behind each row that failed.

        ``done`` tells for how many rows that went well. A function that raises StopIteration would look like the end
        of the rows, so the count decides.
        """
        objects = rows.objects
        remaining = iter(objects)
        failed: list[Failed] = []
        failed_at: list[int] = []
        while (at := done() + len(failed_at)) < len(objects):
            try:
                take(remaining)
                if (at := done() + len(failed_at)) < len(objects):
                    raise RuntimeError("it raised StopIteration")
            except Exception as error:
                at = done() + len(failed_at)
                if ERRORS not in self.outlets:
                    raise function_failed(
                        error, step=self.step, function=self.function, row=objects[at], way_out=READ_ERRORS
                    ) from error
                failed.append(failed_row(error, step=self.step, function=self.function, row=objects[at]))
                failed_at.append(at)
        if failed:
            give_failed_rows(self, failed, rows.take(np.array(failed_at)))
        self.failed_at = failed_at

    def survivors(self, rows: Rows) -> Rows:
        """The rows that did not fail, for what is beside their fields."""
        return rows if not self.failed_at else keep_rows(rows, np.delete(np.arange(len(rows)), self.failed_at))


class MapOperator(RowOperator):
    """One row out for each row in."""

    def handle(self, rows: Rows) -> None:
        made: list[Any] = []
        function = self.function
        # A list that is extended keeps what it got before the function raised, so the next call goes on from there.
        self.call_each(rows, lambda remaining: made.extend(map(function, remaining)), lambda: len(made))
        from_rows = self.survivors(rows)
        self.emit(Rows.of_objects(self.codec, made, from_rows.times, from_rows.kinds))


class FilterOperator(RowOperator):
    """The rows for which the function holds, as they are."""

    def handle(self, rows: Rows) -> None:
        holds: list[bool] = []
        function = self.function
        self.call_each(rows, lambda remaining: holds.extend(map(bool, map(function, remaining))), lambda: len(holds))
        for at in self.failed_at:
            holds.insert(at, False)
        self.emit(keep_rows(rows, np.flatnonzero(np.array(holds, dtype=np.bool_))))


class FlatMapOperator(RowOperator):
    """Any number of rows out for each row in; None is none."""

    def handle(self, rows: Rows) -> None:
        made: list[Any] = []
        ends: list[int] = []
        function = self.function

        def take(remaining: Iterator[Any]) -> None:
            before = len(made)
            try:
                for row in remaining:
                    before = len(made)
                    result = function(row)
                    if result is not None:
                        made.extend(result)
                    ends.append(len(made))
            except Exception:
                del made[before:]
                raise

        self.call_each(rows, take, lambda: len(ends))
        from_rows = self.survivors(rows)
        times, kinds = from_rows.times, from_rows.kinds
        if times is not None or kinds is not None:
            counts = np.array(ends, dtype=np.int64)
            counts[1:] -= counts[:-1].copy()
            times = None if times is None else np.repeat(times, counts)
        if kinds is None:
            self.emit(Rows.of_objects(self.codec, made, times))
        elif made:
            order, spread = spread_pairs(kinds, counts)
            self.emit(Rows.of_objects(self.codec, made, times, spread).take(order))


class OnlyOperator(Operator):
    """The rows of one member (or some members) of a tagged union."""

    def __init__(self, step: str, wanted: Any, codec: RowCodec) -> None:
        super().__init__(step)
        self.wanted = tuple(get_args(wanted)) or (wanted,)
        self.codec = codec

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        wanted = self.wanted
        objects = rows.objects
        kept = [i for i, row in enumerate(objects) if isinstance(row, wanted)]
        if not kept:
            return
        from_rows = keep_rows(rows, np.array(kept, dtype=np.int64))
        self.emit(Rows.of_objects(self.codec, [objects[i] for i in kept], from_rows.times, from_rows.kinds))


class BatchOperator(Operator):
    """A function of whole batches; how rows are cut into batches is up to the engine."""

    def __init__(
        self, step: str, function: Callable[[Any], Any], form: Form, codec: RowCodec, *, time_column: str | None = None
    ) -> None:
        super().__init__(step)
        self.function = function
        self.form: Form = form
        self.codec = codec
        self.time_column = time_column
        """Column of the result that holds event time, if any."""

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        if rows.kinds is not None:
            self.emit(self._of_changelog(rows, rows.kinds))
        elif (made := self._call(rows)) is not None:
            self.emit(made)

    def _call(self, rows: Rows) -> Rows | None:
        batch = rows.record_batch
        try:
            made = self._as_arrow(self.function(self._as_form(batch)))
            columns = self._fit(made)
        except FunctionFailed:
            raise
        except Exception as error:
            if ERRORS not in self.outlets:
                raise function_failed(
                    error, step=self.step, function=self.function, row=rows.objects[0], way_out=READ_ERRORS
                ) from error
            self._give_failed(error, rows)
            return None
        return Rows.of_columns(self.codec, columns, self._times(made, rows))

    def _of_changelog(self, rows: Rows, kinds: Kinds) -> Rows:
        """Rows that go and rows that come are never in one call: nobody could tell the results apart."""
        back = takes_back(kinds)
        places = [np.flatnonzero(mask) for mask in (back, ~back)]
        parts = [self._call(rows.take(mine).with_kinds(None)) for mine in places if len(mine)]
        made = [part for part in parts if part is not None]
        columns = [pa.concat_arrays(list(each)) for each in zip(*(part.columns for part in made))]
        stamps = [part.times for part in made if part.times is not None]
        times = np.concatenate(stamps) if stamps else None
        both = Rows.of_columns(self.codec, columns, times)
        if [len(part) for part in made] == [len(mine) for mine in places if len(mine)]:
            # A row for each row: pairs lie side by side again.
            return both.take(np.argsort(np.concatenate(places), kind="stable")).with_kinds(mend_kinds(kinds))
        gone = len(made[0]) if back.any() else 0
        return both.with_kinds(np.where(np.arange(len(both)) < gone, DELETE, INSERT).astype(np.int8))

    def _give_failed(self, error: Exception, rows: Rows) -> None:
        failed = [failed_row(error, step=self.step, function=self.function, row=row) for row in rows.objects]
        self.outlets[ERRORS](Rows.of_objects(codec_of(Failed), failed, rows.times))

    def _as_form(self, batch: pa.RecordBatch) -> Any:
        if self.form == "arrow":
            return batch
        if self.form == "pandas":
            return batch.to_pandas()
        import polars

        return polars.from_arrow(batch)

    def _as_arrow(self, made: Any) -> pa.Table:
        if isinstance(made, pa.Table):
            return made.combine_chunks()
        if isinstance(made, pa.RecordBatch):
            return pa.Table.from_batches([made])
        if hasattr(made, "to_arrow"):
            return made.to_arrow().combine_chunks()
        if type(made).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(made, preserve_index=False).combine_chunks()
        raise TypeError(f"it returned {type(made).__name__}, not a table: give back an Arrow, polars or pandas table")

    def _fit(self, made: pa.Table) -> list[pa.Array]:
        """The result's columns as the output type wants them: by name, cast where that loses nothing."""
        columns = []
        for field in self.codec.schema:
            if field.name in made.column_names:
                columns.append(_one_array(made.column(field.name).cast(field.type)))
            elif field.name in self.codec.required:
                has = ", ".join(made.column_names)
                raise TypeError(f"the table it returned has no column {field.name!r}; it has {has}")
            else:
                columns.append(pa.nulls(made.num_rows, field.type))
        return columns

    def _times(self, made: pa.Table, rows: Rows) -> Int64s | None:
        if rows.times is None:
            return None
        if ROW_TIME in made.column_names:
            return np.asarray(_one_array(made.column(ROW_TIME)).to_numpy(zero_copy_only=False), dtype=np.int64)
        if SOURCE_ROW in made.column_names:
            places = _one_array(made.column(SOURCE_ROW)).to_numpy(zero_copy_only=False)
            return np.asarray(rows.times[places], dtype=np.int64)
        if made.num_rows == len(rows):
            return rows.times
        if self.time_column is not None and self.time_column in made.column_names:
            own = as_int64(_one_array(made.column(self.time_column).cast(pa.timestamp("us", "UTC"))))
            return np.asarray(own.fill_null(MIN_TIME).to_numpy(zero_copy_only=False), dtype=np.int64)
        return np.full(made.num_rows, rows.times.max())


class ExprOperator(Operator):
    """SQL text over columns. A row for which an expression has no value (a division by zero) fails like a function."""

    def __init__(self, step: str, exprs: Sequence[tuple[str, str]], taken: RowCodec, codec: RowCodec) -> None:
        super().__init__(step)
        self.text = "; ".join(f"{name} = {text}" if name else text for name, text in exprs)
        self.codec = codec
        self._compute = compile_exprs(dict(exprs), taken.schema, codec.schema, f"step {step}")

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if len(rows):
            self._evaluate(rows)

    def _evaluate(self, rows: Rows) -> None:
        """Tries the batch; where that fails, its halves, until the rows to blame are alone."""
        try:
            self._apply(rows)
        except ExpressionError as error:
            if len(rows) > 1:
                half = len(rows) // 2
                self._evaluate(rows.take(np.arange(half)))
                self._evaluate(rows.take(np.arange(half, len(rows))))
            elif ERRORS not in self.outlets:
                raise function_failed(
                    error, step=self.step, function=self.text, row=rows.objects[0], way_out=GUARD_SQL
                ) from error
            else:
                failed = failed_row(error, step=self.step, function=self.text, row=rows.objects[0])
                give_failed_rows(self, [failed], rows)

    def _apply(self, rows: Rows) -> None:
        made = self._compute(rows.batch)
        # Where a batch was halved, so may a pair have been.
        kinds = None if rows.kinds is None else mend_kinds(rows.kinds)
        self.emit(Rows.of_columns(self.codec, made.columns, rows.times, kinds))


class WhereOperator(ExprOperator):
    """The rows for which a condition is true, as they are."""

    def __init__(self, step: str, text: str, codec: RowCodec) -> None:
        super().__init__(step, (), codec, codec)
        self.text = text
        self._holds = compile_predicate(text, codec.schema, f"step {step}")

    def _apply(self, rows: Rows) -> None:
        rows = rows if rows.kinds is None else rows.with_kinds(mend_kinds(rows.kinds))
        self.emit(keep_rows(rows, np.flatnonzero(self._holds(rows.batch))))


def give_failed_rows(operator: Operator, failed: list[Failed], rows: Rows) -> None:
    """Sends failed rows to where they are read; ``rows`` are those they were made of."""
    if rows.kinds is not None:
        came = np.flatnonzero(~takes_back(rows.kinds))
        failed, rows = [failed[i] for i in came.tolist()], rows.take(came)
    if failed:
        operator.outlets[ERRORS](Rows.of_objects(codec_of(Failed), failed, rows.times))


def call_operator(op: str, step: str, function: Any, codec: RowCodec) -> Operator:
    """The operator of ``map``, ``flat_map``, ``filter`` or ``only``; ``codec`` is of the rows that come out."""
    if op == "only":
        return OnlyOperator(step, function, codec)
    kinds: dict[str, type[RowOperator]] = {"map": MapOperator, "flat_map": FlatMapOperator, "filter": FilterOperator}
    return kinds[op](step, function, codec)


def expression_operator(
    op: str, step: str, exprs: Sequence[tuple[str, str]], taken: RowCodec, codec: RowCodec
) -> Operator:
    """The operator of ``where``, ``select`` or ``with_columns`` over rows of ``taken``."""
    return WhereOperator(step, exprs[0][1], taken) if op == "where" else ExprOperator(step, exprs, taken, codec)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
