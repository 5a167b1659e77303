"""A log: streams of partitions, one writer, and requests that are appended once however often they come.

Invariants
- One process writes a log; the lock of its folder says which.
- The events of a request stay together, in one partition, in their order: all of them are appended, or none.
- A request whose key is remembered is answered as it was the first time, and nothing is appended. The same key with
  other events is refused.
- A key stands in the frame of its request, so it is durable with the events and found again when the log is opened. It
  is forgotten after a time, or when there are too many: the oldest first.

Not thread-safe: one thread appends (`headrace.ingest.committing`). Threads that only ask which streams there are may.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import xxhash

from headrace.durable import write_whole
from headrace.errors import SettingsError, StoreInUse
from headrace.ingest import layout
from headrace.ingest.frames import LogFrame, digest_of
from headrace.ingest.needs import read_needs
from headrace.ingest.partition import PartitionWriter, WriteFailed, iterate_heads, open_partition
from headrace.ingest.reading import LogFile, first_kept, read_log_file
from headrace.model.lock import Lock

_log: Final = logging.getLogger("headrace.ingest")


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a log is written."""

    segment_bytes: int = 64 * 2**20
    keep_us: int | None = None
    """How long events are kept; None: for ever."""
    keep_bytes: int | None = None
    """How much of each partition is kept."""
    remember_us: int = 24 * 3_600_000_000
    """How long idempotency keys are remembered, and …"""
    remember_keys: int = 500_000
    """… how many of each stream."""


class Append:
    """What one request wants to append."""

    __slots__ = ("digest", "events", "key", "partition", "route", "stream")

    def __init__(
        self, stream: str, events: list[bytes], *, key: bytes = b"", partition: int | None = None, route: bytes = b""
    ) -> None:
        """``key``: the idempotency key. ``partition`` names one; else those with the same ``route`` go to the same."""
        self.stream = stream
        self.events = events
        self.key = key
        self.digest = digest_of(events) if key else 0
        self.partition = partition
        self.route = route


class AppendedEvents(NamedTuple):
    """Where the events of a request are, durably."""

    stream: str
    partition: int
    number: int
    events: int
    repeated: bool = False
    """It was appended by an earlier request with the same key."""


class KeyReused(Exception):
    """A key came again with other events."""


Outcome = AppendedEvents | WriteFailed | KeyReused


class _Stream:
    def __init__(self, name: str, memory: KeyMemory) -> None:
        self.name = name
        self.partitions: list[PartitionWriter] = []
        self.keys = memory
        self.turn = 0

    def choose(self, append: Append) -> int:
        if append.partition is not None:
            return append.partition
        if append.route:
            return xxhash.xxh64_intdigest(append.route) % len(self.partitions)
        self.turn += 1
        return self.turn % len(self.partitions)


class Log:
    """The log in a folder, for writing."""

    def __init__(
        self, path: Path, options: LogOptions | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        self.options = options or LogOptions()
        self.broken: WriteFailed | None = None
        """Why nothing can be written any more, not before a new start."""
        self._clock = clock
        self._lock = Lock(path / layout.LOCK)
        if self._lock.take(f"process {os.getpid()}") == "taken":
            raise StoreInUse(
                "another server writes this log",
                where=str(path),
                found=self._lock.holder(),
                next_move="send the events there, or end it first",
            )
        self._streams: dict[str, _Stream] = {}
        try:
            self.id = self._identify()
            for name in layout.list_streams(path):
                self.make_stream(name, 1)
        except BaseException:
            self.close()
            raise

    # --- what there is

    @property
    def streams(self) -> dict[str, int]:
        """Names, and how many partitions each has."""
        return {stream.name: len(stream.partitions) for stream in list(self._streams.values())}

    def describe(self, name: str) -> list[dict[str, int]]:
        """Of each partition: the oldest event that is kept, and the number that the next one gets."""
        writers = self._streams[name].partitions
        return [{"first": first_kept(writer.folder), "next": writer.number} for writer in writers]

    def offset(self, appended: AppendedEvents) -> dict[str, dict[str, int]]:
        """How far a job has to read so that it has seen these events, in the words of its source."""
        return {self.id: {str(appended.partition): appended.number + appended.events}}

    # --- writing

    def make_stream(self, name: str, partitions: int) -> None:
        """Makes a stream, or gives one more partitions. It never loses any: their events would be lost to readers."""
        if not layout.is_stream_name(name):
            raise SettingsError(
                "invalid stream name",
                expected=layout.STREAM_NAMES,
                found=repr(name),
                next_move="choose another name",
            )
        stream = self._streams.get(name)
        if stream is None:
            stream = _Stream(name, KeyMemory(self.options.remember_us, self.options.remember_keys))
        known = len(stream.partitions)
        wanted = max([partitions, known, *(number + 1 for number in layout.list_partitions(self.path, name))])
        opened = [self._open(name, number) for number in range(known, wanted)]
        for key, answered in sorted((each for _, keyed in opened for each in keyed), key=lambda each: each[1].time_us):
            stream.keys.remember(key, answered)
        stream.partitions += [writer for writer, _ in opened]
        self._streams[name] = stream

    def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Appends requests together, with one fsync for each partition that gets some; what became of each, in order.

        A stream that is not there is made; a partition that is named is there. When this returns, everything that it
        says was appended is durable.
        """
        now_us = self._now_us()
        outcomes: list[Outcome] = []
        touched: dict[tuple[str, int], list[int]] = {}
        firsts: dict[tuple[str, bytes], int] = {}
        repeats: list[tuple[int, int]] = []
        for at, append in enumerate(appends):
            outcome = self._earlier_outcome(append, now_us)
            first = firsts.setdefault((append.stream, append.key), at) if append.key and outcome is None else at
            if first != at:
                # The same key twice in one round: what becomes of the second is decided by the first.
                repeats.append((at, first))
                outcome = KeyReused()
            elif outcome is None:
                outcome = self._stage(append, now_us)
                if isinstance(outcome, AppendedEvents):
                    touched.setdefault((append.stream, outcome.partition), []).append(at)
            outcomes.append(outcome)
        for (name, partition), places in touched.items():
            self._commit(self._streams[name], partition, [(at, appends[at]) for at in places], outcomes, now_us)
        for at, first in repeats:
            if appends[at].digest == appends[first].digest:
                settled = outcomes[first]
                outcomes[at] = settled._replace(repeated=True) if isinstance(settled, AppendedEvents) else settled
        return outcomes

    def retain(self) -> None:
        """Removes what need not be kept any longer, and forgets old keys. Called now and then.

        What a job may still read again stays, however old or large it is.
        """
        now_us = self._now_us()
        keep_us, keep_bytes = self.options.keep_us, self.options.keep_bytes
        needs = read_needs(self.path, self.id)
        for name, stream in self._streams.items():
            stream.keys.forget_old(now_us)
            for number, writer in enumerate(stream.partitions):
                if keep_us is None and keep_bytes is None:
                    continue
                before_us = -1 if keep_us is None else now_us - keep_us
                try:
                    writer.remove_oldest(before_us=before_us, keep_bytes=keep_bytes, needed=needs.get((name, number)))
                except OSError as error:
                    _log.warning("old events of %s cannot be removed: %s", writer.folder, error)

    def close(self) -> None:
        for stream in self._streams.values():
            for writer in stream.partitions:
                writer.close()
        self._streams = {}
        self._lock.release()

    # --- inside

    def _earlier_outcome(self, append: Append, now_us: int) -> Outcome | None:
        """What a request with a key that is remembered is answered with; None: it is new."""
        stream = self._streams.get(append.stream)
        known = stream.keys.find(append.key, now_us) if stream is not None and append.key else None
        if known is None:
            return None
        if known.digest != append.digest:
            return KeyReused()
        return AppendedEvents(append.stream, known.partition, known.number, known.events, repeated=True)

    def _stage(self, append: Append, now_us: int) -> Outcome:
        """Gives a request its numbers; it is durable with the next commit of the partition."""
        if append.stream not in self._streams:
            try:
                self.make_stream(append.stream, 1)
            except OSError as error:
                return WriteFailed(error, broken=False)
        stream = self._streams[append.stream]
        partition = stream.choose(append)
        number = stream.partitions[partition].add(append.events, now_us, append.key, append.digest)
        return AppendedEvents(append.stream, partition, number, len(append.events))

    def _commit(
        self, stream: _Stream, partition: int, staged: list[tuple[int, Append]], outcomes: list[Outcome], now_us: int
    ) -> None:
        try:
            stream.partitions[partition].commit()
        except WriteFailed as failed:
            if failed.broken:
                self.broken = failed
            for at, _ in staged:
                outcomes[at] = failed
            return
        for at, append in staged:
            appended = outcomes[at]
            if append.key and isinstance(appended, AppendedEvents):
                answered = AnsweredRequest(partition, appended.number, appended.events, append.digest, now_us)
                stream.keys.remember(append.key, answered)

    def _open(self, name: str, number: int) -> tuple[PartitionWriter, list[tuple[bytes, AnsweredRequest]]]:
        """A partition, and the keys in it that are still to be remembered."""
        folder = layout.partition_folder(self.path, name, number)
        writer, recovered = open_partition(folder, bytes.fromhex(self.id), self.options.segment_bytes)
        if recovered.cut_bytes:
            _log.warning("%s: cut off %d bytes of requests that were never answered", folder, recovered.cut_bytes)
        since_us = self._now_us() - self.options.remember_us
        keyed = read_keyed(folder, recovered.keyed, since_us, self.options.remember_keys)
        return writer, [
            (each.key, AnsweredRequest(number, each.number, each.events, each.digest, each.time_us)) for each in keyed
        ]

    def _identify(self) -> str:
        known = read_log_file(self.path)
        if known is None:
            known = LogFile(id=secrets.token_hex(16))
            write_whole(self.path / layout.LOG, [msgspec.json.encode(known)])
        return known.id

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)


# --- idempotency keys


class AnsweredRequest(NamedTuple):
    """Where the events of a request are."""

    partition: int
    number: int
    events: int
    digest: int
    time_us: int


class KeyMemory:
    """The keys of one stream."""

    def __init__(self, remember_us: int, most: int) -> None:
        self._remember_us = remember_us
        self._most = most
        self._known: OrderedDict[bytes, AnsweredRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: bytes, now_us: int) -> AnsweredRequest | None:
        found = self._known.get(key)
        return found if found is not None and found.time_us > now_us - self._remember_us else None

    def remember(self, key: bytes, answered: AnsweredRequest) -> None:
        self._known.pop(key, None)
        self._known[key] = answered
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget_old(self, now_us: int) -> None:
        while self._known:
            oldest = next(iter(self._known.values()))
            if oldest.time_us > now_us - self._remember_us:
                return
            self._known.popitem(last=False)


def read_keyed(folder: Path, newest: list[LogFrame], since_us: int, most: int) -> list[LogFrame]:
    """The frames with keys that were written since a time, the latest of them; those of the newest segment are known
    already, and older segments are looked at only as far back as needed."""
    found = [frame for frame in newest if frame.time_us > since_us]
    for segment in reversed(layout.list_segments(folder)[:-1]):
        if len(found) >= most:
            break
        frames = list(_frames_with_key(segment, since_us))
        found = frames + found
        first = next(iterate_heads(segment), None)
        if first is not None and first.time_us <= since_us:
            break
    return found[-most:]


def _frames_with_key(segment: Path, since_us: int) -> Iterator[LogFrame]:
    return (frame for frame in iterate_heads(segment) if frame.key and frame.time_us > since_us)
