"""Reads Redis streams: plans epochs beside the driver, and reads ranges of entries in tasks.

Each stream is one split. A range is bounded by entry ids, so it holds the same entries whenever it is read; that it
still holds all of them is checked against the ordinals of its bounds (`positions`). Planning asks the server by
one script per stream, so that what it learns about a stream is true at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from headrace.connectors.redis.entries import EntryFields, EntryRows
from headrace.connectors.redis.positions import (
    EARLIEST,
    LATEST,
    EntryId,
    Look,
    Position,
    begin,
    find_loss,
    has_begun,
    id_text,
    read_id,
    read_position,
    share_limit,
    without_loss,
)
from headrace.connectors.redis.server import connect, error_code, is_away, is_denied, shown_url
from headrace.connectors.source_contract import BadRows, Offset, Split, SplitReader
from headrace.errors import EnvironmentMissing, EpochFailed, HeadraceError, InputLost, ProgramError, SettingsError

if TYPE_CHECKING:
    import redis

    from headrace.model.rows import RowCodec

T = TypeVar("T")

TRIES: Final = 4
"""How often a command is repeated that gets no answer, before the epoch fails: about a second and a half."""
WALKED_ENTRIES: Final = 2000
"""Entries that one call of the script passes while it looks for the end of an epoch: it stops all other clients."""
FIRST_PAGE: Final = 200
LARGEST_PAGE: Final = 10_000
PAGE_BYTES: Final = 4 * 2**20
"""About how much one answer may hold; pages grow and shrink with the size of the entries."""

LOOK: Final = """#!lua flags=no-writes
local found = {0, 0, 0, '0-0', '0-0', '', '', 0}
if redis.call('EXISTS', KEYS[1]) == 0 then return found end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
local by = {}
for i = 1, #info, 2 do by[info[i]] = info[i + 1] end
found[1] = 1
found[2] = by['length']
found[3] = by['entries-added']
found[4] = by['last-generated-id']
found[5] = by['max-deleted-entry-id']
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
if #first > 0 then found[6] = first[1][1] end
if tonumber(ARGV[2]) > 0 then
  local passed = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[3], 'COUNT', ARGV[2])
  found[8] = #passed
  if #passed > 0 then found[7] = passed[#passed][1] end
end
return found
"""
"""What a stream says of itself; and, given (after, count, up to), the id and number of the entries passed."""


class RedisStreamReader(SplitReader):
    def __init__(
        self,
        codec: RowCodec,
        url: str,
        streams: tuple[str, ...],
        *,
        start: str,
        fields: EntryFields,
        max_per_epoch: int | None,
        skip_lost: bool,
    ) -> None:
        self.codec = codec
        self.url = url
        self.streams = streams
        self.start = start
        self.fields = fields
        self.max_per_epoch = max_per_epoch
        self.skip_lost = skip_lost
        self._held: frozenset[str] = frozenset()
        self._ceilings: dict[str, Look] | None = None
        self._client: redis.Redis | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    # -- planning -----------------------------------------------------------------------------------------------

    def initial(self) -> Offset:
        return {stream: {"start": self.start} for stream in self.streams}

    def available_now(self) -> None:
        self._ceilings = {stream: self._look(stream) for stream in self.streams}

    def hold(self, splits: frozenset[str]) -> bool:
        self._held = splits
        return True

    def latest(self, start: Offset, limit: int | None) -> Offset:
        bounds = [bound for bound in (self.max_per_epoch, limit) if bound is not None]
        begun: dict[str, Position] = {}
        ends: dict[str, Look] = {}
        for stream in self.streams:
            if stream not in self._held:
                look = self._look(stream)
                position = self._settle(stream, start.get(stream, {"start": self.start}), look)
                if position is not None:
                    begun[stream] = position
                    ends[stream] = look if self._ceilings is None else self._ceilings[stream]
        unread = {stream: max(0, ends[stream].added - each.ordinal) for stream, each in begun.items()}
        shares = share_limit(min(bounds) if bounds else None, unread)
        moved = {
            stream: self._advance(stream, position, ends[stream], shares[stream], unread[stream]).to_json()
            for stream, position in begun.items()
        }
        # Streams that the program no longer reads keep their place, in case they come back.
        return {**self.initial(), **start, **moved}

    def _settle(self, stream: str, stored: Any, look: Look) -> Position | None:
        """The position an epoch begins at, from which everything must still be there; None: nothing is there yet."""
        position = read_position(stored)
        if isinstance(position, Position):
            return self._whole(stream, position, look)
        if not has_begun(position, look):
            return None
        counted = None if position in (EARLIEST, LATEST) else self._count_behind(stream, position, look)
        return begin(position, look, counted)

    def _whole(self, stream: str, position: Position, look: Look) -> Position:
        loss = find_loss(position, look)
        if loss and not self.skip_lost:
            raise self._loss(stream, f"behind {id_text(position.entry)}", loss)
        return without_loss(position, look) if loss else position

    def _count_behind(self, stream: str, start: str, look: Look) -> int:
        """How many entries lie from an id on: counted where the stream cannot tell."""
        entry = begin(start, look, 0).entry
        known = look.behind(entry)
        if known is not None:
            return known
        return sum(count for _, count, _ in self._walk(stream, entry, look.length, look.last))

    def _advance(self, stream: str, position: Position, end: Look, share: int, unread: int) -> Position:
        if end.last <= position.entry or not share:
            return position
        if share == unread:
            return position.moved(end.last, end.added)
        for entry, count, look in self._walk(stream, position.entry, share, end.last):
            # What was trimmed since the first look must be noticed before anything behind it is passed. After the first
            # page it shows by itself: entries are gone with it that have been counted here, and `read` misses them.
            if look is not None:
                position = self._whole(stream, position, look)
            position = position.moved(entry, position.ordinal + count)
        return position

    def _walk(
        self, stream: str, after: EntryId, count: int, upto: EntryId
    ) -> Iterator[tuple[EntryId, int, Look | None]]:
        """Passes up to so many entries, a page at a time: the last id of each page, its entries, and the first look."""
        first = True
        while count > 0:
            look, entry, passed = self._ask(stream, after, min(count, WALKED_ENTRIES), upto)
            if not passed:
                return
            yield entry, passed, look if first else None
            after, count, first = entry, count - passed, False

    def _look(self, stream: str) -> Look:
        return self._ask(stream, (0, 0), 0, (0, 0))[0]

    def _ask(self, stream: str, after: EntryId, count: int, upto: EntryId) -> tuple[Look, EntryId, int]:
        return self._planning(lambda client: _read_look(client, stream, after, count, upto))

    def _planning(self, ask: Callable[[redis.Redis], T]) -> T:
        """Asks with the client that planning keeps; one that failed is not used again."""
        if self._client is None:
            self._client = connect(self.url, tries=TRIES)
        try:
            return ask(self._client)
        except Exception as error:
            self.close()
            raise self._in_words(error) from error

    def remaining(self, start: Offset) -> int | None:
        total = 0
        for stream in self.streams:
            position = read_position(start.get(stream, {"start": self.start}))
            look = self._look(stream)
            if isinstance(position, Position):
                total += max(0, look.added - position.ordinal)
            elif position != LATEST:
                total += look.length
        return total

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # -- reading ------------------------------------------------------------------------------------------------

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        splits = []
        for stream in self.streams:
            stop = read_position(end.get(stream, {"start": self.start}))
            if isinstance(stop, str):
                continue
            begun = read_position(start.get(stream, {"start": self.start}))
            entry, ordinal = stop.origin if isinstance(begun, str) else (begun.entry, begun.ordinal)
            if entry < stop.entry:
                begins = {"id": id_text(entry), "n": ordinal}
                splits.append(Split(stream, begins, {"id": id_text(stop.entry), "n": stop.ordinal}))
        return splits

    def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
        rows = EntryRows(self.codec, self.fields)
        seen = 0
        for page in self._pages(split.id, split.start["id"], split.end["id"]):
            seen += len(page)
            yield from rows.batches(split.id, page)
        wanted = split.end["n"] - split.start["n"]
        if seen != wanted and not self.skip_lost:
            where = f"from {split.start['id']} to {split.end['id']}"
            raise self._loss(split.id, where, f"{seen} of {wanted} entries: the others were trimmed or deleted")

    def _pages(self, stream: str, after: str, upto: str) -> Iterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        client = connect(self.url, tries=TRIES)
        count = FIRST_PAGE
        try:
            while True:
                try:
                    page: Any = client.xrange(stream, min=f"({after}", max=upto, count=count)
                except Exception as error:
                    raise self._in_words(error) from error
                if page:
                    yield page
                if len(page) < count:
                    return
                after = page[-1][0].decode()
                count = _next_page(page)
        finally:
            client.close()

    # -- errors -------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"source.redis_stream, {shown_url(self.url)}"

    def _loss(self, stream: str, place: str, found: str) -> InputLost:
        return InputLost(
            f"stream {stream} no longer has what the job has still to read",
            where=self._where,
            expected=f"all entries {place}",
            found=found,
            next_move="let producers trim later (a larger MAXLEN, a smaller MINID), and keep the job running; to go on "
            'without what is gone, start it once with lost="skip"',
        )

    def _in_words(self, error: Exception) -> HeadraceError:
        found = f"{type(error).__name__}: {error}"
        if isinstance(error, HeadraceError):
            return error
        if is_away(error):
            return EpochFailed(
                "Redis does not answer",
                where=self._where,
                found=found,
                next_move="look whether it runs and can be reached; the epoch is planned again where the last "
                "published one ended, and nothing is lost",
            )
        if is_denied(error):
            return SettingsError(
                "Redis does not let this job read",
                where=self._where,
                expected="a user who may EVAL, EXISTS, XINFO and XRANGE the streams",
                found=found,
                next_move="give the user the right, or correct user and password in the address",
            )
        if error_code(error) == "WRONGTYPE" or "WRONGTYPE" in str(error):
            return ProgramError(
                "this key holds no stream", where=self._where, expected=f"streams: {', '.join(self.streams)}",
                found=found, next_move="give the name that producers use with XADD",
            )  # fmt: skip
        if error_code(error) in ("MOVED", "ASK", "CROSSSLOT"):
            return ProgramError(
                "Redis Cluster is not supported", where=self._where, found=found,
                next_move="read from a server that is no node of a cluster",
            )  # fmt: skip
        return EnvironmentMissing(
            "Redis refused a command that reading streams needs",
            where=self._where,
            expected="Redis 7 or newer, or Valkey",
            found=found,
            next_move="look at the server's version with INFO server",
        )


def find_losses(url: str, positions: Mapping[str, Any]) -> list[str]:
    """What streams no longer have of all that lies behind these positions, in words; None: nothing was read of it."""
    client = connect(url, tries=TRIES)
    losses = []
    try:
        for stream, stored in positions.items():
            position = None if stored is None else read_position(stored)
            if isinstance(position, Position):
                look, _, _ = _read_look(client, stream, (0, 0), 0, (0, 0))
                if loss := find_loss(position, look):
                    losses.append(f"stream {stream}: {loss}")
    finally:
        client.close()
    return losses


def _read_look(
    client: redis.Redis, stream: str, after: EntryId, count: int, upto: EntryId
) -> tuple[Look, EntryId, int]:
    """What a stream says of itself; and, of up to so many entries behind an id, the last id and their number."""
    answer: Any = client.eval(LOOK, 1, stream, id_text(after), count, id_text(upto))
    exists, length, added, last, deleted, first, entry, passed = answer
    look = Look(bool(exists), length, added, read_id(last), read_id(deleted), read_id(first) if first else None)
    return look, read_id(entry) if entry else after, passed


def _next_page(page: list[tuple[bytes, Mapping[bytes, bytes]]]) -> int:
    """How many entries the next answer may hold, by the size of those of this one."""
    some = page[::16]
    size = sum(len(value) for _, fields in some for value in fields.values()) // len(some) + 1
    return max(1, min(LARGEST_PAGE, 4 * len(page), PAGE_BYTES // size))
