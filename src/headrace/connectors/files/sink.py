"""`files`: a folder of JSON lines, CSV or Parquet files, exactly once.

Tasks stage files in their final form; releasing them is giving them a name in the folder (`folder`). Names follow from
the manifest alone (`headrace.model.part_names`), so a release that died half-way is repeated without a trace, and a
folder never holds a row of an epoch that was not published. Where files are to be larger than an epoch, parts wait in
the folder, unseen, until they are put together (`rolls`).

What was released can be taken back (`cutting`). A driver of the abandoned timeline that wakes up later looks, when it
has released, whether its timeline goes on (`claims`), and takes back itself what nobody wants any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa

from headrace.connectors.files.claims import Claims
from headrace.connectors.files.cutting import check_cut, cut_behind
from headrace.connectors.files.folder import Folder, open_folder
from headrace.connectors.files.gathering import Gathering
from headrace.connectors.files.partitions import SPANS, BucketBy, room_at, split_by
from headrace.connectors.files.roll_policy import RollPolicy
from headrace.connectors.files.rolls import Rolls
from headrace.connectors.files.shown import count_folder_rows, read_shown
from headrace.connectors.sink_contract import Forget, Guarantee, Release, Rewind, Sink, StageTask, StageWriter
from headrace.connectors.staged import PartWriter
from headrace.connectors.text import csv_lines, json_lines
from headrace.errors import Fenced, ProgramError, SinkFailed, SinkUnavailable
from headrace.model.crash import reach
from headrace.model.field_names import field_name, field_names
from headrace.model.part_names import hidden_folder, parse_visible, part_name
from headrace.model.report import StagedPart

if TYPE_CHECKING:
    from typing import Self

    from headrace.connectors.keyed_target import Position
    from headrace.model.rows import RowCodec


Format = Literal["json", "csv", "parquet"]
FORMATS: Final = ("json", "csv", "parquet")
BucketSpan = Literal["month", "day", "hour"]


class FilesSink(Sink):
    kind: ClassVar[str] = "files"
    guarantee: Guarantee = "exactly once"
    accepts_updates: ClassVar[bool] = False
    driver_only: ClassVar[tuple[str, ...]] = ("_folder", "_rolls", "_first", "_claimed")
    rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})
    form: ClassVar[Gathering] = Gathering()

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format,
        partition_by: Any,
        bucket_by: tuple[Any, str] | None = None,
        policy: RollPolicy | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.format = format
        self.partition_by = field_names(partition_by, "partition_by", "sink.files")
        self.bucket_by = None if bucket_by is None else _bucket_by(bucket_by)
        self.policy = policy
        self._folder: Folder | None = None
        self._rolls: Rolls | None = None
        self._first = True
        """Whether nothing was released by this sink yet: only then an epoch may have been, by one before it."""
        self._claimed = False
        """Whether the folder is known not to be another store's."""
        if format not in FORMATS:
            raise ProgramError(
                f"sink.files cannot write {format!r}",
                where=self.where,
                expected="json (one object per line), csv or parquet",
                found=repr(format),
                next_move=f'use hr.sink.spark("{format}", path=…) for any other format Spark writes',
            )

    @property
    def where(self) -> str:
        return f'sink.files("{self.path}")'

    def bind(self, codec: RowCodec, output: str) -> Self:
        for name in self.partition_by:
            kind = codec.schema.types[codec.index(name, where=self.where)]
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise self._misfit(f"cannot partition by {name}", "text, numbers, booleans, dates or times", str(kind))
        self._check_bucket(codec)
        if set(self.partition_by) >= set(codec.schema.names):
            raise self._misfit("partition_by takes every column", "a column left for the files", "none")
        nested = [field.name for field in codec.schema if pa.types.is_nested(field.type)]
        if self.format == "csv" and nested:
            raise self._misfit(
                f"CSV cannot hold {', '.join(nested)}", "text, numbers, booleans and times", "lists, maps or records"
            )
        return super().bind(codec, output)

    def _check_bucket(self, codec: RowCodec) -> None:
        if self.bucket_by is None:
            return
        name, span = self.bucket_by
        kind = codec.schema.types[codec.index(name, where=self.where)]
        if not (pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and span != "hour")):
            raise self._misfit(f"{name} does not tell the {span}", "a column of times (hr.Timestamp)", str(kind))
        clash = [folder for folder in SPANS[span] if folder in codec.schema.names]
        if clash:
            raise self._misfit(
                f"rows have a column {clash[0]}, and so would the folders", "folders whose names are no columns",
                f"{clash[0]}; partition_by={clash[0]!r} makes folders of the column itself",
            )  # fmt: skip

    def _misfit(self, what: str, expected: str, found: str) -> ProgramError:
        move = 'use format="json" or "parquet", or select other columns before writing'
        return ProgramError(what, where=self.where, expected=expected, found=found, next_move=move)

    def start(self) -> None:
        folder = self._open()
        folder.prepare()
        for timeline, epoch in self._claims(folder, self.output).read().ends.items():
            # What somebody died over, or an abandoned driver left behind.
            cut_behind(folder, self.output, self.form, int(timeline), epoch)
        self._roll()

    def _roll(self) -> None:
        if self.policy is not None:
            self._rolling(self.policy).start()
        elif self._open().list(hidden_folder(self.output), below=True):
            # A program that rolled left them; what it released has to be seen.
            self._rolling(RollPolicy()).finish()
            self._rolls = None

    def _rolling(self, policy: RollPolicy) -> Rolls:
        if self._rolls is None:
            self._rolls = Rolls(self.path, self.output, policy, self.form, self._claims)
        return self._rolls

    def _claims(self, folder: Folder, output: str) -> Claims:
        return Claims(folder, output)

    def _open(self) -> Folder:
        if self._folder is None:
            self._folder = open_folder(self.path)
        return self._folder

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        room = room_at(self.path, self.output, self.where)
        split = split_by(self.partition_by, self.bucket_by, room) if self.partition_by or self.bucket_by else None
        return PartWriter(task, encoder(self.format, codec, self.partition_by), self.format, split=split)

    def _claim(self, ctx: Release) -> None:
        """Refuses a folder in which another store has put files together, and claims one in which this store will."""
        claims = self._claims(self._open(), ctx.output)
        if self.policy is not None:
            claims.take(ctx, ctx.epoch)
        else:
            claims.check(ctx)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if not self._claimed:
            try:
                self._claim(ctx)
            except SinkUnavailable:
                raise
            except SinkFailed:
                self._leave()
                raise
            self._claimed = True
        if self.policy is not None:
            self._rolling(self.policy).release(parts, ctx)
        else:
            self._put(parts, ctx)
        self._check_timeline(ctx)

    def _put(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        folder = self._open()
        shown = self._folders_of_epoch(parts, ctx) if self._first else frozenset()
        if shown:
            # Rows are left out because they are there already: that has to be known, also where nothing was claimed.
            self._claims(folder, ctx.output).take(ctx, ctx.epoch)
        for place, part in enumerate(parts):
            if place:
                reach("between_files", ctx.epoch)
            if part.extra.get("folder", "") not in shown:
                folder.put(file_name(part, place, ctx), ctx.read(part), ctx.local_path(part))
        folder.settle()
        self._first = False

    def _check_timeline(self, ctx: Release) -> None:
        """After a release: whoever abandons a timeline says so first and looks then, so one of both sees the rows."""
        end = self._claims(self._open(), ctx.output).end_of(int(ctx.timeline))
        if end is None or ctx.epoch <= end:
            return
        self._leave()
        cut_behind(self._open(), ctx.output, self.form, int(ctx.timeline), end)
        raise Fenced(
            "this timeline was abandoned",
            where=self.where,
            expected=f"no epoch after {end} of timeline {ctx.timeline}",
            found=f"epoch {ctx.epoch}",
            next_move="stop this driver: another one has gone back to an earlier epoch and goes on from there",
        )

    def takes(self, part: StagedPart) -> bool:
        return part.format in FORMATS

    def moved_to(self, target: str) -> Self | None:
        elsewhere = self._copied()
        elsewhere.path, elsewhere._folder, elsewhere._rolls = target, None, None
        elsewhere._first, elsewhere._claimed = True, False
        return elsewhere

    def target_name(self) -> str:
        return self.path.rstrip("/") if "://" in self.path else os.path.realpath(self.path)

    def count_rows(self) -> int | None:
        return count_folder_rows(self._open())

    def shown_rows(self) -> Iterator[pa.Table]:
        assert self.codec is not None
        return read_shown(self._open(), self.codec)

    def check_forget(self, ctx: Forget) -> None:
        folder = self._open()
        claims = self._claims(folder, ctx.output)
        if int(ctx.timeline) + 1 == int(ctx.next_timeline):
            claims.check_own(ctx, ctx.last)
        else:
            # Newer files may lie here, of timelines that are abandoned together with this one.
            claims.check(ctx)
        check_cut(folder, ctx.output, self.form, int(ctx.timeline), ctx.epoch)

    def released(self, job: str) -> Position:
        return self._claims(self._open(), self.output).released(job)

    def forget(self, ctx: Forget) -> None:
        self._leave()
        folder, timeline = self._open(), int(ctx.timeline)
        claims = self._claims(folder, ctx.output)
        claims.take(ctx, ctx.last)
        check_cut(folder, ctx.output, self.form, timeline, ctx.epoch)
        claims.abandon(timeline, ctx.epoch)
        reach("forgetting", ctx.epoch)
        cut_behind(folder, ctx.output, self.form, timeline, ctx.epoch)
        self._roll()

    def _folders_of_epoch(self, parts: Sequence[StagedPart], ctx: Release) -> frozenset[str]:
        """Folders in which a program that rolled has shown this epoch already."""
        shown = set()
        for bucket in {part.extra.get("folder", "") for part in parts}:
            for path, *_ in self._open().list(bucket):
                told = parse_visible(path.rpartition("/")[2])
                if (
                    told is not None
                    and told.gathered
                    and (str(told.timeline), told.output) == (ctx.timeline, ctx.output)
                ):
                    shown |= {bucket} if told.first <= ctx.epoch <= told.last else set()
        return frozenset(shown)

    def _leave(self) -> None:
        """What waits in the folder is for the store whose it is."""
        rolls, self._rolls = self._rolls, None
        if rolls is not None:
            rolls.leave()

    def close(self) -> None:
        if self._rolls is not None:
            self._rolls.finish()

    def own_name(self) -> str:
        # Only its last part: where the folder is elsewhere to, its output stays the same.
        return self.path.rstrip("/").rpartition("/")[2] or self.path

    def describe(self) -> str:
        names = [*([f"{self.bucket_by.span} of {self.bucket_by.column}"] if self.bucket_by else []), *self.partition_by]
        by = f", by {', '.join(names)}" if names else ""
        rolled = f", rolled at {self.policy}" if self.policy is not None else ""
        return f"files {self.path} ({self.format}{by}{rolled})"


def file_name(part: StagedPart, place: int, ctx: Release) -> str:
    """Where a part of an epoch goes, relative to the folder. Its order among names is the order of epochs."""
    name = part_name(ctx.timeline, ctx.epoch, ctx.output, place, part.format)
    folder = part.extra.get("folder", "")
    return f"{folder}/{name}" if folder else name


def encoder(format: str, codec: RowCodec, without: tuple[str, ...]) -> Callable[[pa.Table], bytes | pa.Buffer]:
    """Rows to the bytes of a finished file; partition columns stand in the folder's name instead."""
    if format == "json":
        return lambda table: json_lines(table, codec, without)
    if format == "csv":
        return lambda table: csv_lines(table, without)
    return lambda table: encode_parquet(table.drop_columns(list(without)) if without else table)


def encode_parquet(table: pa.Table) -> pa.Buffer:
    import pyarrow.parquet as pq

    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _bucket_by(given: Any) -> BucketBy:
    if isinstance(given, tuple) and len(given) == 2 and given[1] in SPANS:
        return BucketBy(field_name(given[0], "bucket_by", "sink.files"), given[1])
    raise ProgramError(
        "bucket_by takes a column of times and a span",
        where="sink.files",
        expected='bucket_by=(Sale.at, "day"); spans are month, day and hour',
        found=repr(given),
    )


# --- how many rows the files of a folder show to its readers
