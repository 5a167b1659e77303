"""`ingest`: the events of a log that ``headrace ingest`` writes, read from its files on the same machine.

A position says, for the log's own id, the number of the next event in each partition: ``{"9f…": {"0": 17}}``. Numbers
are never given twice, and only what is durable is read, so a range holds the same events whenever it is read. The id
keeps a job from going on in the middle of another log that was put in the same place.

Each partition is one split and is never cut: its events keep their order on the way to the state of their key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headrace.connectors.reading import BATCH_ROWS, check_positive
from headrace.connectors.source_contract import (
    EPOCH_ROWS_AT_MOST,
    SURE,
    BadRows,
    Offset,
    Passage,
    Replay,
    Source,
    Split,
    SplitReader,
)
from headrace.errors import BadRow, InputLost, ProgramError, StoreError
from headrace.ingest import layout
from headrace.ingest.needs import LogNeed, drop_need, write_need
from headrace.ingest.reading import first_kept, lost, read_log_file, read_mark, read_range
from headrace.model.shapes import is_record_class, strip, union_members
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_WHERE: Final = "source.ingest"
_BATCH_BYTES: Final = 16 * 2**20


class IngestSource(Source):
    kind: ClassVar[str] = "ingest"
    python: ClassVar[bool] = True

    def __init__(self, log: str | os.PathLike[str], stream: str, max_per_epoch: int | None) -> None:
        self.log = os.fspath(log)
        self.path = _local_path(self.log)
        if not isinstance(stream, str) or not layout.is_stream_name(stream):
            raise ProgramError(
                "this cannot be the name of a stream", where=_WHERE, expected=layout.STREAM_NAMES, found=repr(stream)
            )
        self.stream = stream
        self.max_per_epoch = check_positive("max_per_epoch", max_per_epoch, _WHERE)

    @property
    def has_splits(self) -> bool:
        return True

    def bind(self, codec: RowCodec) -> IngestSource:
        bare = strip(codec.type)
        if not is_record_class(bare) and not union_members(bare):
            raise ProgramError(
                f"events of a log are JSON objects, and {type_name(bare)} is none",
                where=_WHERE,
                expected="a Record, or a union of tagged Records",
                found=type_name(bare),
                next_move="declare a Record with a field for the value",
            )
        return self

    def reader(self, codec: RowCodec) -> IngestReader:
        path = self.path.absolute()
        if read_log_file(path) is None:
            raise StoreError(
                "there is no log here",
                where=str(path),
                expected="a folder that headrace ingest writes",
                next_move=f"start the server first: headrace ingest --log {self.log}",
            )
        return IngestReader(path, self.stream, codec, self.max_per_epoch)

    def check_replay(self, passage: Passage) -> Replay:
        """Whether no segment with events behind the old position was deleted. The log itself has to be the same."""
        path = self.path.absolute()
        found = read_log_file(path)
        start = passage.start or {}
        if found is None or (start and found.id not in start):
            return Replay("lost", "its log is gone, or another log lies in its place")
        read = {int(n): int(number) for n, number in start.get(found.id, {}).items()}
        for n in layout.list_partitions(path, self.stream):
            folder, first = layout.partition_folder(path, self.stream, n), read.get(n, 0)
            if (kept := first_kept(folder)) > first:
                return Replay("lost", f"events {first} to {kept - 1} of partition {n} were deleted (--keep)")
        return SURE

    def keep_behind(self, positions: Sequence[Any], holder: str) -> None:
        path = self.path.absolute()
        found = read_log_file(path)
        if found is None:
            return
        if not positions:
            drop_need(path, holder)
            return
        read = [_numbers(each, found.id) if each and found.id in each else {} for each in positions]
        partitions = layout.list_partitions(path, self.stream)
        needed = {n: min(numbers.get(n, 0) for numbers in read) for n in partitions}
        write_need(path, holder, LogNeed(found.id, self.stream, needed))

    def describe(self) -> str:
        return f"ingest {self.log} ({self.stream})"


class IngestReader(SplitReader):
    def __init__(self, path: Path, stream: str, codec: RowCodec, max_per_epoch: int | None) -> None:
        self.path = path
        self.stream = stream
        self.codec = codec
        self.max_per_epoch = max_per_epoch
        self._ends: dict[int, int] | None = None
        self._held: frozenset[str] = frozenset()

    def initial(self) -> Offset:
        # The oldest events that are kept, whatever their numbers. Those of an epoch that was never published may be
        # others when it is planned again; nobody has seen anything of it.
        return {}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        log = self._log(start)
        if log is None:
            return start
        at = self._begins(start, log)
        ends = self._ends if self._ends is not None else self._durable()
        behind = {n: max(0, end - at.get(n, 0)) for n, end in ends.items() if str(n) not in self._held}
        bounds = [bound for bound in (limit, self.max_per_epoch or EPOCH_ROWS_AT_MOST) if bound is not None]
        taken = _share(behind, min(bounds))
        if not any(taken.values()):
            return start
        after = {n: at.get(n, 0) + taken.get(n, 0) for n in sorted({*at, *taken})}
        return {log: {str(n): number for n, number in after.items()}}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        log = self._log(end)
        if log is None or not end:
            return []
        at, cut = self._begins(start, log), []
        for n, stop in _numbers(end, log).items():
            first = at.get(n, 0)
            folder = layout.partition_folder(self.path, self.stream, n)
            if first < stop and first < (kept := first_kept(folder)):
                raise lost(folder, first, kept)
            if first < stop:
                cut.append(Split(str(n), {"i": first}, {"i": stop}))
        return cut

    def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
        folder = layout.partition_folder(self.path, self.stream, int(split.id))
        number, events, size = int(split.start["i"]), [], 0
        for frame in read_range(folder, number, int(split.end["i"])):
            events += frame
            size += sum(map(len, frame))
            while len(events) >= BATCH_ROWS or size >= _BATCH_BYTES:
                yield from self._decode(split.id, number, events[:BATCH_ROWS])
                number += len(events[:BATCH_ROWS])
                events, size = events[BATCH_ROWS:], 0
        if events:
            yield from self._decode(split.id, number, events)

    def available_now(self) -> None:
        self._ends = self._durable()

    def hold(self, splits: frozenset[str]) -> bool:
        self._held = splits
        return True

    def remaining(self, start: Offset) -> int | None:
        log = self._log(start)
        at = {} if log is None else self._begins(start, log)
        return sum(max(0, end - at.get(n, 0)) for n, end in self._durable().items())

    def _decode(self, partition: str, number: int, events: list[bytes]) -> Iterator[pa.RecordBatch | BadRows]:
        try:
            arrays = self.codec.to_arrays(list(map(self.codec.from_json, events)))
        except BadRow:
            yield from self._decode_singly(partition, number, events)
        else:
            yield pa.RecordBatch.from_arrays(arrays, schema=self.codec.schema)

    def _decode_singly(self, partition: str, number: int, events: list[bytes]) -> Iterator[pa.RecordBatch | BadRows]:
        """When some of many are bad: the others are rows all the same."""
        rows, bad = [], []
        for at, event in enumerate(events, number):
            try:
                row = self.codec.from_json(event)
                self.codec.to_arrays([row])
                rows.append(row)
            except BadRow as error:
                reason = str(error.__cause__ or error).splitlines()[0]
                where = f"{self.path}, {self.stream}, partition {partition}, event {at}"
                bad.append(BadRows.text(where, event.decode(errors="replace"), reason))
        if rows:
            yield pa.RecordBatch.from_arrays(self.codec.to_arrays(rows), schema=self.codec.schema)
        yield BadRows(bad)

    def _log(self, position: Offset) -> str | None:
        """The id of the log, which has to be the one of a position; None while there is none."""
        found = read_log_file(self.path)
        if position and (found is None or found.id not in position):
            raise InputLost(
                "this is another log than the one the job has read" if found else "the log is gone",
                where=str(self.path),
                expected=f"the log {next(iter(position))}",
                found="no log" if found is None else f"the log {found.id}",
                next_move="bring the old log back, or begin anew with this one: --fresh",
            )
        return None if found is None else found.id

    def _begins(self, start: Offset, log: str) -> dict[int, int]:
        if start:
            return _numbers(start, log)
        folders = {n: layout.partition_folder(self.path, self.stream, n) for n in self._partitions()}
        return {n: first_kept(folder) for n, folder in folders.items()}

    def _durable(self) -> dict[int, int]:
        marks = {n: read_mark(layout.partition_folder(self.path, self.stream, n)) for n in self._partitions()}
        return {n: mark.number for n, mark in marks.items() if mark is not None}

    def _partitions(self) -> list[int]:
        return layout.list_partitions(self.path, self.stream)


def _numbers(position: Offset, log: str) -> dict[int, int]:
    return {int(n): int(number) for n, number in position[log].items()}


def _share(behind: Mapping[int, int], most: int) -> dict[int, int]:
    """How many of each, fairly: whoever has few gives the rest of its share to the others.

    >>> _share({0: 100, 1: 2}, 10)
    {1: 2, 0: 8}
    """
    taken, left = {}, most
    for place, n in enumerate(sorted(behind, key=lambda n: (behind[n], n))):
        # The last in turn gets what is left over, so that a bound below the number of partitions still moves on.
        taken[n] = min(behind[n], left // (len(behind) - place))
        left -= taken[n]
    return taken


def _local_path(log: str) -> Path:
    parts = urlsplit(log)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path) if parts.scheme else log)
    raise ProgramError(
        "a log is read from its files, on the machine where it is written",
        where=_WHERE,
        expected="the folder that was given to headrace ingest --log",
        found=log,
        next_move="give the folder; over a network, Kafka is the log to read",
    )
