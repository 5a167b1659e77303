"""Closed windows of one state at one epoch, read from its archive.

What an epoch E knows as closed lies in three places: in the parts that the manifest of E lists (they may not have been
released yet), in files of the archive that the epochs up to E came to, and among parts that wait there to be put
together. All of them are read, rows of epochs behind E are left out, and a window that is found twice counts once: so
there is no gap and no doubling, whatever the job does meanwhile.

Only files of the timelines that lead to the snapshot count, each up to where the next one goes on: a job that went back
has closed what it had closed by then, and one that was started over nothing. Where the rewind held the archive's output
back, what had gone out before is in the archive, and is not repeated.

What this module deliberately does not do: windows that are still open, and ranges over both (`headrace.read.ranges`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from headrace.aggregates.list_rules import plain_values
from headrace.errors import MissingFile, StoreError
from headrace.model.archive import DAY_US, EPOCH, KINDS, Archive, first_us_of, signed
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.keys import NULL_KEY, encode_columns, hash_key
from headrace.model.window import PANE, WINDOW_END, WINDOW_START, Window
from headrace.read.archive_folder import ArchiveFolder, File, OpenedFile, folder_of
from headrace.state.lineage import derive_lineage, is_in
from headrace.state.record import StoreRecord, no_store, read_record
from headrace.state.staged_parts import open_part

if TYPE_CHECKING:
    import polars as pl

    from headrace.model.report import StagedPart
    from headrace.state.manifest import Manifest
    from headrace.state.store import StoreFiles as Files

ON_TIME: Final = "on_time"
_ATTEMPTS: Final = 8
"""How often a folder is looked at again when files went into others meanwhile."""
_FOLDER: Final = "folder"
_TIMELINE: Final = "_timeline"

Found = dict[Window, dict[str, Any]]


class ArchivedWindows:
    """The archive of one state, as one epoch knows it. May be asked by several threads."""

    def __init__(self, files: Files, manifest: Manifest, archive: Archive, *, tells_pane: bool = False) -> None:
        """``tells_pane``: whether results say if they came at the end of their window or after it."""
        self._tells_pane = tells_pane
        self._store = files
        self._archive = archive
        self._place = manifest.place
        self._parts = manifest.outputs.get(archive.output, [])
        self._lock = threading.Lock()
        self._days: dict[str, int] | None = None
        """Folders → where their day begins, and …"""
        self._listed: dict[str, list[File]] = {}
        """… their files, looked up after this epoch was published: everything older is among them."""
        self._released = False
        """Whether the parts of this epoch are known to be in the folder, too."""
        self._name = f"{manifest.timeline}-{manifest.epoch}-{manifest.nonce}"

    def __repr__(self) -> str:
        return f"ArchivedWindows({self._archive.path!r}, epoch {self._place.epoch})"

    @property
    def key_type(self) -> Any:
        """What keys are, where no open window tells."""
        parts: Any = tuple(KINDS[kind] for kind in self._archive.kinds)
        return parts[0] if len(parts) == 1 else tuple[parts] if parts else type(None)

    def buckets(self, first_us: int, last_us: int) -> list[str]:
        """The folders, by day, whose windows may end between two times, both included; the earlier first."""
        if self._days is None:
            self._folder.check(self._job)
            self._check_whole()
            staged = {part.extra.get(_FOLDER, "") for part in self._parts}
            found = {bucket: first_us_of(bucket) for bucket in staged | self._folder.buckets(self._archive.output)}
            self._days = {bucket: start for bucket, start in found.items() if start is not None}
        wanted = [(start, bucket) for bucket, start in self._days.items() if first_us - DAY_US < start <= last_us]
        return [bucket for _, bucket in sorted(wanted)]

    def _check_whole(self) -> None:
        """Refuses an epoch that a rewind abandoned, where the archive has taken back what had been closed by then."""
        if is_in(self._place, derive_lineage(self._record)):
            return
        ends = self._folder.ends()
        for timeline, last in self._last_epochs.items():
            end = ends.get(str(timeline), last)
            if end < last:
                raise StoreError(
                    "windows that were closed by this epoch were taken out of the archive when the job went back",
                    where=self._archive.path,
                    expected=f"epoch {end} or an earlier one of timeline {timeline}, or one that leads to the present",
                    found=f"epoch {self._place.epoch} of timeline {self._place.timeline}",
                    next_move="ask for windows that are in state by their key alone, or ask the present epoch",
                )

    def windows(self, key: bytes, bucket: str) -> Found:
        """The closed windows of a key that end in one day."""
        for _ in range(_ATTEMPTS):
            try:
                return self._read(key, bucket)
            except FileNotFoundError:
                # Put together with others since it was listed; the result of that is there now.
                with self._lock:
                    self._listed.pop(bucket, None)
        raise self._vanishing()

    def frames(self) -> Iterator[pl.DataFrame]:
        """All closed windows as columns of key, window and results, a day of ends at a time."""
        for bucket in self.buckets(MIN_TIME, MAX_TIME):
            for _ in range(_ATTEMPTS):
                try:
                    found = self._whole(bucket)
                except FileNotFoundError:
                    with self._lock:
                        self._listed.pop(bucket, None)
                    continue
                if found is not None:
                    yield found
                break
            else:
                raise self._vanishing()

    def _whole(self, bucket: str) -> pl.DataFrame | None:
        import polars as pl

        archive = self._archive
        parts = []
        for timeline, opened in self._open_files(bucket):
            rows = opened.rows_until(self._last_epochs[timeline])
            stored = archive.key_in(rows.schema.names) or ()
            part = pl.from_arrow(rows)
            assert isinstance(part, pl.DataFrame)
            part = part.rename(dict(zip(stored, archive.key)))
            names = [name for name in self.columns if name in part.columns]
            parts.append(part.select([*names, EPOCH]).with_columns(pl.lit(timeline).alias(_TIMELINE)))
        if not parts:
            return None
        ones = [*archive.key, WINDOW_START, WINDOW_END]
        # Where a window was closed twice (the wall clock may stand still), the later one counts.
        whole = pl.concat(parts, how="diagonal_relaxed").sort(_TIMELINE, EPOCH, maintain_order=True)
        return whole.unique(ones, keep="last", maintain_order=True).drop(EPOCH, _TIMELINE)

    @property
    def columns(self) -> tuple[str, ...]:
        """What a closed window is told with."""
        pane = (PANE,) if self._tells_pane else ()
        return (*self._archive.key, WINDOW_START, WINDOW_END, *self._archive.results, *pane)

    def _vanishing(self) -> StoreError:
        return StoreError(
            "files of the archive vanish faster than they can be read",
            where=self._archive.path,
            next_move="ask again; if it stays so, look who else takes files away there",
        )

    def _read(self, key: bytes, bucket: str) -> Found:
        hash_ = signed(hash_key(key))
        alike: dict[tuple[int, pa.Schema], list[pa.Table]] = {}
        for timeline, opened in self._open_files(bucket):
            table = opened.rows_of(hash_, self._last_epochs[timeline])
            if table is not None:
                # Files of an earlier program may have other columns.
                alike.setdefault((timeline, table.schema.remove_metadata()), []).append(table)
        rows = [
            (timeline, *row)
            for (timeline, _), tables in alike.items()
            for row in self._results(pa.concat_tables(tables), key)
        ]
        # Where a window was closed twice (the wall clock may stand still), the later one counts.
        rows.sort(key=lambda row: row[:2])
        return {window: row for _, _, window, row in rows}

    def _open_files(self, bucket: str) -> Iterator[tuple[int, OpenedFile]]:
        for opened in self._staged(bucket):
            yield self._place.timeline, opened
        for file in self._files(bucket):
            yield file.timeline, self._folder.open(file)

    def _staged(self, bucket: str) -> Iterator[OpenedFile]:
        """The parts of this very epoch: once they are gone from the store they have been released to the folder."""
        for place, part in enumerate(self._parts):
            if part.extra.get(_FOLDER, "") != bucket:
                continue
            try:
                yield self._folder.opened(f"{self._name}-{place}", partial(self._open, part))
            except MissingFile:
                with self._lock:
                    if not self._released:
                        # What was listed before may be from before the release.
                        self._listed.clear()
                        self._released = True

    def _open(self, part: StagedPart) -> OpenedFile:
        data = open_part(self._store, part)
        return OpenedFile(pa.BufferReader(data), len(part.inline))

    def _files(self, bucket: str) -> list[File]:
        with self._lock:
            listed = self._listed.get(bucket)
        if listed is None:
            found = self._folder.files(self._archive.output, bucket)
            last = self._last_epochs
            listed = [file for file in found if file.first <= last.get(file.timeline, -1)]
            with self._lock:
                self._listed[bucket] = listed
        return listed

    @cached_property
    def _folder(self) -> ArchiveFolder:
        return folder_of(self._archive.path)

    @cached_property
    def _record(self) -> StoreRecord:
        record = read_record(self._store)
        if record is None:
            raise no_store(self._store.url)
        return record

    @cached_property
    def _last_epochs(self) -> dict[int, int]:
        """Timeline → its newest epoch that leads to this one, as far as the archive has it."""
        lineage = derive_lineage(self._record, self._place, output=self._archive.output)
        return {part.timeline: part.last for part in lineage}

    @cached_property
    def _job(self) -> str:
        """Id of the store, as sinks are told it; empty where the store is older than such ids."""
        return str(msgspec.json.decode(self._record.query or "{}").get("id", ""))

    # --- from rows to answers

    def _results(self, table: pa.Table, key: bytes) -> Iterator[tuple[int, Window, dict[str, Any]]]:
        """Epoch, window and result of the rows that are of this key and not of one with the same hash."""
        archive = self._archive
        [batch] = table.combine_chunks().to_batches()
        stored_key = archive.key_in(batch.schema.names) or ()
        if stored_key:
            keys = encode_columns([batch.column(name) for name in stored_key]).to_pylist()
        else:
            keys = [NULL_KEY] * batch.num_rows
        results = (*archive.results, PANE) if self._tells_pane else archive.results
        there = [each for each in results if each in batch.schema.names]
        names = [*archive.key, WINDOW_START, WINDOW_END, *there]
        stored = [*stored_key, *names[len(stored_key) :]]
        columns = [plain_values(batch.column(name)) for name in stored]
        epochs = batch.column(EPOCH).to_pylist()
        for found, epoch, row in zip(keys, epochs, zip(*columns)):
            if found == key:
                made = dict(zip(names, row))
                if self._tells_pane:
                    # An earlier program did not tell it.
                    made.setdefault(PANE, ON_TIME)
                yield epoch, Window(made[WINDOW_START], made[WINDOW_END]), made


def open_archived(files: Files, manifest: Manifest, step: str, table: str) -> ArchivedWindows | None:
    """The archive of a state, as the manifest of an epoch names it; None where it has none."""
    declared = manifest.states.get(step, {}).get(table)
    if declared is None or declared.archive is None:
        return None
    return ArchivedWindows(files, manifest, declared.archive, tells_pane=declared.pane)
