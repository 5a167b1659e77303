"""`delta`: rows appended to a table of Delta Lake, or merged into it by a key, exactly once, by the package deltalake.

Workers stage Arrow streams; releasing an epoch is one commit in the driver, which adds the rows and says the number of
the epoch (`transaction`):

1. the table's log is read up to its newest version; an epoch whose number is not above the one that the table has of
   this output was written before, by this driver or by one that took over, and nothing happens;
2. the staged rows, a batch at a time, become files of the table, which nobody sees yet;
3. the commit is written as the next version, if there is none. Where others were first, what they wrote since 1 is
   looked at: a transaction of the same output is a conflict, and everything begins anew at 1.

So comparing and writing are one step, though nothing is locked: a driver that sleeps anywhere in between loses, and
leaves files behind that the table does not know (``vacuum`` takes them away).

A job that goes back has the version restored that the table had after the epoch (`rewind`).

Rows are written again instead of handing staged Parquet files over: only so are constraints checked, files become as
few as they can be, and their statistics are those of the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from urllib.parse import quote

import pyarrow as pa

from headrace.connectors.delta.errors import Overtaken, deltalake_module, others_write, telling
from headrace.connectors.delta.merging import merge_rows, read_changes_of_keys
from headrace.connectors.delta.rewind import (
    check_restore,
    derive_restore,
    epoch_note,
    read_history,
    restored_note,
    shut_note,
)
from headrace.connectors.delta.table import open_table, prepare_table, settle, table_schema, target_of
from headrace.connectors.delta.transaction import (
    EpochTransaction,
    beginning_of,
    split_number,
    transaction_of,
    writer_name,
    writer_of,
)
from headrace.connectors.files.partitions import check_texts, room_at
from headrace.connectors.recorded import is_released
from headrace.connectors.sink_contract import (
    Forget,
    GuaranteeChoice,
    Release,
    Rewind,
    Sink,
    StageTask,
    StageWriter,
    chosen_guarantee,
)
from headrace.connectors.staged import ARROW, ChangeWriter, PartWriter, encode_arrow, read_batches
from headrace.errors import ProgramError, SinkFailed
from headrace.model.crash import reach
from headrace.model.field_names import field_names
from headrace.model.report import StagedPart

if TYPE_CHECKING:
    from typing import Self

    from headrace.connectors.keyed_target import Position
    from headrace.model.rows import RowCodec

SchemaMode = Literal["merge"]

_TRIES: Final = 5
"""How often a release begins anew because others were first, before it is left to patience."""
_HELD_VERSIONS: Final = 100
"""So many versions are added to a table that is held; then it is opened anew. Measured on a disk: each of them makes
the next commit 0.09 ms slower, and opening takes 5 to 30 ms, since the log has a checkpoint every 100 versions."""
_NOT_IN_NAMES: Final = " ,;{}()\n\t="
"""What Delta has no columns with."""


class DeltaSink(Sink):
    kind: ClassVar[str] = "delta"
    accepts_updates: ClassVar[bool] = False
    driver_only: ClassVar[tuple[str, ...]] = ("target", "_storage_options", "_table", "_held_until", "_known")

    def __init__(
        self,
        path: str | os.PathLike[str],
        partition_by: Any,
        schema_mode: SchemaMode | None,
        guarantee: GuaranteeChoice,
        storage_options: Mapping[str, str] | None,
        key: Any = None,
    ) -> None:
        self.path = os.fspath(path)
        self._storage_options = storage_options
        self.target = target_of(self.path, storage_options)
        where = self.target.where
        self.partition_by = field_names(partition_by, "partition_by", where)
        self.guarantee = chosen_guarantee(guarantee, where)
        if self.guarantee == "exactly once":
            self.rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})
        self.merge = schema_mode == "merge"
        self.key = field_names(key, "key", where)
        self.accepts_updates = self.accepts_changelog = bool(self.key)  # type: ignore[misc]
        self.changelog_key = self.key or None
        self._table: Any = None
        """As it was after the last look at it; None: it is to be opened."""
        self._held_until = -1
        """From this version on it is opened anew."""
        self._known: tuple[str, int, int | None] = ("", -1, None)
        """A writer, a version of the table, and the number that this version has of the writer."""
        if schema_mode not in (None, "merge"):
            raise ProgramError(
                f"there is no schema_mode {schema_mode!r}",
                where=where,
                expected='"merge", which adds columns that the table lacks, or None',
                found=repr(schema_mode),
                next_move="leave schema_mode= out: then a table that lacks columns is refused",
            )

    def bind(self, codec: RowCodec, output: str) -> Self:
        where = self.target.where
        for name in self.partition_by:
            kind = codec.schema.types[codec.index(name, where=where)]
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise self._misfit(f"cannot partition by {name}", "text, numbers, booleans, dates or times", str(kind))
        for name in self.key:
            kind = codec.schema.types[codec.index(name, where=where)]
            if pa.types.is_nested(kind):
                raise self._misfit(f"{name} cannot be a key", "text, numbers, booleans, dates or times", str(kind))
        if set(self.partition_by) >= set(codec.names):
            raise self._misfit("partition_by takes every column", "a column left for the files", "none")
        for name in codec.names:
            if set(name) & set(_NOT_IN_NAMES):
                raise self._misfit(f"Delta has no columns named {name!r}", f"none of {_NOT_IN_NAMES!r}", repr(name))
        if len({name.lower() for name in codec.names}) < len(codec.names):
            names = ", ".join(codec.names)
            raise self._misfit("Delta tells no columns apart by capitals", "names that differ otherwise", names)
        return super().bind(codec, output)

    def _misfit(self, what: str, expected: str, found: str) -> ProgramError:
        move = "select or rename columns before writing"
        return ProgramError(what, where=self.target.where, expected=expected, found=found, next_move=move)

    def start(self) -> None:
        assert self.codec is not None
        self._table = None
        with telling(self.target, "prepare the table"):
            prepare_table(self.target, self.codec, self.partition_by, merge=self.merge)

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        room = room_at(self.path, task.output, f'sink.delta("{self.path}")')

        def encode(table: pa.Table) -> pa.Buffer:
            # Delta's folders are percent-encoded, so that most letters that are not of English count for nine.
            check_texts(table, self.partition_by, room, lambda text: quote(text, safe=""))
            return encode_arrow(table)

        if self.key:
            return ChangeWriter(PartWriter(task, encode, ARROW), PartWriter(task, encode, ARROW))
        return PartWriter(task, encode, ARROW)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        def write() -> None:
            with telling(self.target, f"write epoch {ctx.epoch}"):
                self._release(parts, ctx)

        self._repeat(write)

    def _repeat(self, commit: Callable[[], None]) -> None:
        """Makes a commit, again where somebody else's came between."""
        lost: BaseException | None = None
        for _ in range(_TRIES):
            try:
                commit()
                return
            except Overtaken as conflict:
                self._table, lost = None, conflict.__cause__
            except BaseException:
                self._table = None
                raise
        raise others_write(self.target, lost)

    def takes(self, part: StagedPart) -> bool:
        return part.format == ARROW

    def moved_to(self, target: str) -> Self | None:
        elsewhere = self._copied()
        elsewhere.path, elsewhere.target = target, target_of(target, self._storage_options)
        elsewhere._table, elsewhere._held_until, elsewhere._known = None, -1, ("", -1, None)
        return elsewhere

    def target_name(self) -> str:
        return self.target.path.rstrip("/")

    def shown_rows(self) -> Iterator[pa.Table]:
        # Not by to_pyarrow_table: a process that ends right after it aborts (deltalake 1.6.6).
        with telling(self.target, "read the table"):
            query = deltalake_module().QueryBuilder().register("shown", self._newest())
            yield pa.table(query.execute("SELECT * FROM shown").read_all())

    def close(self) -> None:
        self._table = None

    def own_name(self) -> str:
        # Only its last part: where the table is elsewhere to, its output stays the same.
        return self.path.rstrip("/").rpartition("/")[2] or self.path

    def describe(self) -> str:
        notes = [f"key {', '.join(self.key)}"] * bool(self.key)
        notes += [f"by {', '.join(self.partition_by)}"] * bool(self.partition_by)
        return f"delta {self.path}" + (f" ({', '.join(notes)})" if notes else "")

    # --- going back

    def check_forget(self, ctx: Forget) -> None:
        with telling(self.target, "look how it was"):
            following = int(ctx.next_timeline)
            plan = derive_restore(read_history(self._newest()), writer_of(ctx), int(ctx.timeline), ctx.epoch, following)
        check_restore(plan, self.target, ctx.output)

    def released(self, job: str) -> Position:
        number = self._newest().transaction_version(writer_name(job, self.output))
        return None if number is None or number < 0 else split_number(number)

    def forget(self, ctx: Forget) -> None:
        def go_back() -> None:
            with telling(self.target, f"go back to epoch {ctx.epoch}"):
                self._forget(ctx)
            reach("forgetting", ctx.epoch)
            # The columns are those of then again.
            self.start()

        self._repeat(go_back)

    def _forget(self, ctx: Forget) -> None:
        """One commit: the version of then, and a number that shuts the abandoned timeline out."""
        deltalake = deltalake_module()
        table, writer = self._newest(), writer_of(ctx)
        plan = derive_restore(read_history(table), writer, int(ctx.timeline), ctx.epoch)
        check_restore(plan, self.target, ctx.output)
        number = max(beginning_of(ctx.next_timeline), table.transaction_version(writer) or 0)
        if plan.version is None and number == table.transaction_version(writer):
            return
        noted = [deltalake.Transaction(app_id=writer, version=number)]
        if plan.version is None:
            commit = deltalake.CommitProperties(app_transactions=noted, custom_metadata=shut_note(writer))
            nothing = table_schema(table).empty_table()
            deltalake.write_deltalake(table, nothing, mode="append", commit_properties=commit)
        else:
            note = restored_note(plan.version)
            commit = deltalake.CommitProperties(app_transactions=noted, custom_metadata=note)
            table.restore(plan.version, commit_properties=commit)
        reach("forgetting", ctx.epoch)
        settle(self.target, self._reopen())

    def _reopen(self) -> Any:
        self._table = None
        return self._newest()

    # --- an epoch

    def _release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        table = self._newest()
        if self.guarantee == "at least once":
            self._append(table, parts, ctx, None)
            return
        transaction = transaction_of(ctx)
        if self._has(table, transaction, ctx):
            # Whoever wrote it may have died before it was durable.
            settle(self.target, table)
            return
        self._append(table, parts, ctx, transaction)
        self._known = (transaction.writer, table.version(), transaction.number)

    def _newest(self) -> Any:
        """The table in its newest version. What is compared and what is committed have to start from the same one."""
        if self._table is not None and self._table.version() < self._held_until:
            self._table.update_incremental()
            return self._table
        self._table = open_table(self.target)
        if self._table is None:
            raise SinkFailed(
                "the table is gone",
                where=self.target.where,
                expected="the table that was there when the job was started",
                found="no table of Delta at this place",
                next_move="bring it back, or start again: then it is made anew; the rows stay staged in the store",
            )
        self._held_until = self._table.version() + _HELD_VERSIONS
        return self._table

    def _has(self, table: Any, transaction: EpochTransaction, ctx: Release) -> bool:
        """Whether the table has this epoch. Versions that we know, because we wrote them, are not asked."""
        version = table.version()
        if self._known[:2] != (transaction.writer, version):
            self._known = (transaction.writer, version, table.transaction_version(transaction.writer))
        number = self._known[2]
        if number is None:
            return False
        return is_released(split_number(number), ctx, self.target.where)

    def _append(
        self, table: Any, parts: Sequence[StagedPart], ctx: Release, transaction: EpochTransaction | None
    ) -> None:
        deltalake = deltalake_module()
        noted = None
        if transaction is not None:
            # Without a time: Delta may forget transactions by their age, and this one has to be known for good.
            noted = [deltalake.Transaction(app_id=transaction.writer, version=transaction.number)]
        rows = _Rows(parts, ctx, table_schema(table), self.target.where)
        commit = deltalake.CommitProperties(
            app_transactions=noted, custom_metadata=None if transaction is None else epoch_note(transaction)
        )
        if self.key:
            assert self.codec is not None
            changes = read_changes_of_keys(parts, ctx, self.key, table_schema(table), rows.fit_columns)
            merge_rows(table, changes, self.key, self.codec.names, commit)
            settle(self.target, table)
            return
        try:
            deltalake.write_deltalake(table, rows.reader(), mode="append", commit_properties=commit)
        except Exception:
            # What was raised while rows were read came out of the writer as mere text.
            if rows.failure is not None:
                raise rows.failure from None
            raise
        settle(self.target, table)


class _Rows:
    """The staged rows of an epoch as columns of the table, read while they are written: a batch at a time."""

    def __init__(self, parts: Sequence[StagedPart], ctx: Release, schema: pa.Schema, where: str) -> None:
        self._where = where
        self._parts = parts
        self._ctx = ctx
        self._schema = schema
        self.failure: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for place, part in enumerate(self._parts):
                if place:
                    reach("between_files", self._ctx.epoch)
                for batch in read_batches([part], self._ctx):
                    yield self.fit_columns(batch)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise RuntimeError(f"the staged rows could not be read: {error!r}") from error

    def fit_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Columns by name: rows may have been staged by an earlier program, and the table may have more."""
        columns = []
        for field in self._schema:
            if field.name not in batch.schema.names:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(field.name)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise SinkFailed(
                    f"a value does not fit the column {field.name}",
                    where=self._where,
                    expected=str(field.type),
                    found=str(error),
                    next_move="widen the column, or compute a narrower one before writing; the rows stay staged",
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
