"""The sink of closed windows: Parquet files in folders by day, sorted by key, so that a key's rows are found quickly.

Behind ``queryable(archive=…)``; a files sink in everything else. What files hold is said in `headrace.model.archive`.
Windows may close in every epoch, so small files are put together, and stay sorted; servers read what waits for it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.files.claims import Claims, Writer
from headrace.connectors.files.folder import Folder
from headrace.connectors.files.gathering import FileSpans, Gathering
from headrace.connectors.files.roll_policy import RollPolicy
from headrace.connectors.files.sink import FilesSink
from headrace.connectors.sink_contract import StageTask, StageWriter
from headrace.connectors.staged import PartWriter
from headrace.errors import SinkFailed
from headrace.model.archive import DAY_US, EPOCH, HASH, MARKER, ROW_GROUP_ROWS, bucket_of
from headrace.model.keys import NULL_KEY, encode_columns, hash_encoded, hash_key
from headrace.model.part_names import FolderClaim
from headrace.model.window import WINDOW_END

if TYPE_CHECKING:
    from typing import Self

    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

POLICY: Final = RollPolicy(size_bytes=32 * 2**20, every_s=3600.0, parts=256)
"""Small enough to be sorted in memory; few enough files for a question that has to look into all of a day."""


class ArchiveGathering(Gathering):
    """Rows tell their epoch themselves, and lie by their key."""

    needs_spans: ClassVar[bool] = False

    def gather(self, format: str, parts: Sequence[pa.Buffer], made: Path) -> None:
        tables = [read_archived(part) for part in parts]
        write_sorted(pa.concat_tables(tables), str(made))

    def cut(self, format: str, data: pa.Buffer, epoch: int, spans: FileSpans | None, made: Path) -> bool | None:
        table = read_archived(data)
        left: pa.Table = table.filter(pc.less_equal(table.column(EPOCH), epoch))
        if left.num_rows == table.num_rows:
            return None
        if left.num_rows:
            write_sorted(left, str(made))
        return bool(left.num_rows)


class ArchiveClaims(Claims):
    """By the marker, which readers of the archive look at, too."""

    def __init__(self, folder: Folder, output: str, where: str) -> None:
        super().__init__(folder, output)
        self.name = MARKER
        self._where = where

    def check_own(self, ctx: Writer, epoch: int) -> bool:
        return self.check(ctx)

    def _create(self, claim: FolderClaim) -> bool:
        # The marker is there since the archive was first opened, and nobody's until rows come.
        self._folder.replace(self.name, msgspec.json.encode(claim))
        return True

    def _refusal(self, ctx: Writer, found: str) -> SinkFailed:
        return SinkFailed(
            "this folder is the archive of another store",
            where=self._where,
            expected="a folder of its own for the archive of each store",
            found=found,
            next_move="move the old files away, or choose another folder whose path ends in the same name; the "
            "rows stay staged in the store",
        )


class ArchiveSink(FilesSink):
    kind: ClassVar[str] = "archive"
    form: ClassVar[Gathering] = ArchiveGathering()

    def __init__(self, path: str, key: tuple[str, ...]) -> None:
        super().__init__(path, "parquet", (), policy=POLICY)
        self.key = key

    @property
    def where(self) -> str:
        return f'queryable(archive="{self.path}")'

    def start(self) -> None:
        super().start()
        self._open().create(MARKER, msgspec.json.encode(FolderClaim()))

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return _ArchiveWriter(task, self.key)

    def _claims(self, folder: Folder, output: str) -> Claims:
        return ArchiveClaims(folder, output, self.where)

    def moved_to(self, target: str) -> Self | None:
        # Readers find an archive by what the store says of it, so one elsewhere would be read by nobody.
        return None

    def describe(self) -> str:
        return f"archive {self.path}"


class _ArchiveWriter(PartWriter):
    def __init__(self, task: StageTask, key: tuple[str, ...]) -> None:
        super().__init__(task, encode_archived, "parquet", split=_by_day)
        self._epoch = task.epoch
        self._key = key

    def write(self, rows: Rows) -> None:
        if len(rows):
            self.add(_with_places(rows.record_batch, self._key, self._epoch))


def _with_places(batch: pa.RecordBatch, key: tuple[str, ...], epoch: int) -> pa.RecordBatch:
    """The rows with what they are found by."""
    if key:
        hashes = hash_encoded(encode_columns([batch.column(name) for name in key]))
    else:
        hashes = np.full(batch.num_rows, hash_key(NULL_KEY), np.uint64)
    made = batch.append_column(HASH, pa.array(hashes.view(np.int64)))
    return made.append_column(EPOCH, pa.array(np.full(batch.num_rows, epoch, np.int64)))


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Cuts a batch by the days its windows end in; windows mostly end together."""
    days = batch.column(WINDOW_END).cast(pa.int64()).to_numpy() // DAY_US
    found = np.unique(days)
    for day in found.tolist():
        mine = batch if len(found) == 1 else batch.filter(pa.array(days == day))
        yield bucket_of(day * DAY_US), mine


def read_archived(data: pa.Buffer) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(data)).replace_schema_metadata(None)


def encode_archived(table: pa.Table) -> pa.Buffer:
    """Final results as a part."""
    out = pa.BufferOutputStream()
    write_sorted(table, out)
    return out.getvalue()


def write_sorted(table: pa.Table, out: Any) -> None:
    """By key, in row groups small enough to be read for one of them."""
    import pyarrow.parquet as pq

    rows = table.sort_by([(HASH, "ascending"), (WINDOW_END, "ascending"), (EPOCH, "ascending")])
    pq.write_table(rows, out, compression="zstd", row_group_size=ROW_GROUP_ROWS)
