"""Strings and hashes of Redis as a target of one row per key: compared, and filled, inside of the server.

A script is given a pack of rows as a release would write them, and the epoch that they are of. It looks at the guard
first: where that has another epoch, nothing is done. So what is compared, or written, is never older than what is
there, though the job may run.

Keys that no row had are found by the pattern of the key's template, among keys of the same type. They are looked for
once; what the job adds after that is its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from headrace.connectors.keyed_target import EXAMPLES, Comparison, Difference, InlineParts, KeyedTarget, Position
from headrace.connectors.redis.guard import WRITERS
from headrace.connectors.redis.rows import unpack_rows
from headrace.connectors.staged import read_batches
from headrace.errors import ProgramError, SinkUnavailable

if TYPE_CHECKING:
    from headrace.connectors.redis.rows import Template
    from headrace.connectors.redis.sink import RedisSink
    from headrace.model.batch import UInt64s
    from headrace.model.report import StagedPart

_KEYS_AT_ONCE: Final = 1_000
_GLOB: Final = str.maketrans({each: f"\\{each}" for each in "*?[]^\\"})

_AT: Final = """#!lua
local guard = KEYS[1]
local held = redis.call('HMGET', guard, 'timeline', 'epoch', 'complete')
local timeline, epoch = held[1] or '', held[2] or ''
if timeline ~= ARGV[1] or epoch ~= ARGV[2] or (held[3] or '1') ~= '1' then return {'moved'} end
"""

_COMPARE: Final = (
    _AT
    + """
local undo_ms = 0
local function keep() end
"""
    + WRITERS
    + """
local function look_string(at, pack)
  local reply = redis.pcall('GET', pack[at])
  if type(reply) == 'table' then return 'different', reply['err'] end
  if not reply then return 'missing', '' end
  return reply == pack[at + 1] and 'same' or 'different', reply
end

local function look_fields(at, pack)
  local names, values = {}, {}
  local set_to = at + 1 + pack[at + 1]
  for place = at + 2, set_to, 2 do
    names[#names + 1] = pack[place]
    values[#values + 1] = pack[place + 1]
  end
  local set = #names
  for place = set_to + 2, set_to + 1 + pack[set_to + 1] do names[#names + 1] = pack[place] end
  local reply = redis.pcall('HMGET', pack[at], unpack(names))
  if reply['err'] then return 'different', reply['err'] end
  local there, same, shown = false, true, {}
  for place, name in ipairs(names) do
    if reply[place] then
      there = true
      shown[#shown + 1] = name .. ' ' .. reply[place]
    end
    if place <= set then same = same and reply[place] == values[place] else same = same and not reply[place] end
  end
  return same and 'same' or (there and 'different' or 'missing'), table.concat(shown, ' ')
end

local pack, writes = cmsgpack.unpack(ARGV[4]), ARGV[3] == '1'
local found = {missing = 0, different = 0, same = 0}
local examples = {}
local at, size = 4, #pack
while at <= size do
  local state, there, following, reply
  if pack[1] == 'string' then
    state, there = look_string(at, pack)
    following = at + 2
  else
    state, there = look_fields(at, pack)
    local set_to = at + 1 + pack[at + 1]
    following = set_to + 2 + pack[set_to + 1]
  end
  found[state] = found[state] + 1
  if state ~= 'same' then
    if found[state] <= tonumber(ARGV[5]) then
      local mine = {}
      for place = at + 1, following - 1 do mine[#mine + 1] = pack[place] end
      examples[#examples + 1] = {state, pack[at], there, mine}
    end
    if writes then
      if pack[1] == 'string' then reply = write_string(at, pack) else reply = write_fields(at, pack) end
      if type(reply) == 'table' and reply['err'] then return {'failed', reply['err'], pack[at]} end
    end
  end
  at = following
end
return {'done', found.missing, found.different, found.same, examples}
"""
)
"""KEYS: the guard. ARGV: timeline and epoch of the rows, whether to write (1 or 0), a pack, how many examples."""

_DELETE: Final = (
    _AT
    + """
local count = 0
for place = 3, #ARGV, 2 do
  if ARGV[place + 1] == '' then count = count + redis.call('UNLINK', ARGV[place])
  else count = count + redis.call('HDEL', ARGV[place], ARGV[place + 1]) end
end
return {'done', count}
"""
)
"""KEYS: the guard. ARGV: timeline and epoch, then keys, each with a field or nothing."""

Place = tuple[bytes, bytes]
"""A key, and a field of it where rows are fields."""


class RedisKeyed(KeyedTarget):
    def __init__(self, sink: RedisSink, job: str) -> None:
        self._sink = sink
        self._guard = sink.guard_key(job)
        self._seen = array("Q")
        """Hashes of the places that came …"""
        self._sorted: UInt64s | None = None
        """… and in order, where none came since."""
        self._others: list[Place] | None = None
        """Places that had not come when they were looked for."""

    def position(self) -> Position:
        held: Any = self._ask(lambda client: client.hmget(self._guard, "timeline", "epoch", "complete"))
        if held[0] is None:
            return None
        if held[2] != b"1":
            raise SinkUnavailable(
                "an epoch was released only in part",
                where=self._sink.place,
                expected="a complete release",
                found=f"epoch {held[1].decode()} of timeline {held[0].decode()}, which is being written",
                next_move="try again in a moment; if the job died over it, start it: it completes the release first",
            )
        return int(held[0]), int(held[1])

    def compare(self, parts: Sequence[StagedPart], position: Position, *, write: bool) -> Comparison | None:
        total = Comparison()
        for pack in _packs(parts):
            given = [*_spelled(position), int(write), pack, EXAMPLES]
            told: Any = self._ask(lambda client, given=given: client.eval(_COMPARE, 1, self._guard, *given))
            if told[0] == b"moved":
                return None
            if told[0] == b"failed":
                raise self._sink.failed_row(_text(told[2]), _text(told[1]), f"{self._sink.place}, a refill")
            missing, different, same, examples = told[1:]
            shown = tuple(
                Difference(
                    kind.decode(),
                    _text(key),
                    _text(there),
                    _row_text(mine),
                )
                for kind, key, there, mine in examples
            )
            total = total.plus(Comparison(missing + different + same, missing, different, examples=shown))
            self._seen.extend(map(_hash, self._places(pack)))
            self._sorted = None
        return total

    def find_extra(self, position: Position) -> Comparison | None:
        if self._others is None:
            self._others = [each for some in self._walk() for each in self._unseen(some)]
        self._others = self._unseen(self._others)
        if self.position() != position:
            return None
        there = [each for each in self._others if self._exists(each)]
        examples = tuple(Difference("extra", _text(key), target=_text(field)) for key, field in there[:EXAMPLES])
        return Comparison(extra=len(there), examples=examples)

    def delete_extra(self, position: Position) -> int | None:
        assert self._others is not None, "nobody has looked for them"
        if not any(literal.strip() for literal, _ in self._sink.form.key.parts):
            raise ProgramError(
                "every key of the database could be a row of this output",
                where=self._sink.place,
                expected='a template with text of its own, as key="user:{user}"',
                found=f"key={self._sink.form.key.text!r}",
                next_move="delete such keys by hand",
            )
        count = 0
        for start in range(0, len(self._others), _KEYS_AT_ONCE):
            some = self._others[start : start + _KEYS_AT_ONCE]
            given = [*_spelled(position), *(each for place in some for each in place)]
            told: Any = self._ask(lambda client, given=given: client.eval(_DELETE, 1, self._guard, *given))
            if told[0] == b"moved":
                return None
            count += int(told[1])
        return count

    def close(self) -> None:
        self._sink.close()

    # --- places

    def _places(self, pack: bytes) -> Iterator[Place]:
        field = self._sink.form.field is not None
        for key, names in unpack_rows(pack):
            yield key, names[0] if field else b""

    def _walk(self) -> Iterator[list[Place]]:
        """Every place that could be a row's, some at a time."""
        form = self._sink.form
        cursor = 0
        while True:
            cursor, keys = self._ask(
                lambda client, cursor=cursor: client.scan(
                    cursor, match=pattern_of(form.key), count=_KEYS_AT_ONCE, _type=form.shape
                )
            )
            own = [key for key in keys if not key.startswith(self._guard.encode())]
            yield [place for key in own for place in self._fields(key)]
            if not cursor:
                return

    def _fields(self, key: bytes) -> list[Place]:
        field = self._sink.form.field
        if field is None:
            return [(key, b"")]
        pattern = pattern_of(field)
        found: list[Place] = []
        cursor = 0
        while True:
            cursor, fields = self._ask(
                lambda client, cursor=cursor: client.hscan(key, cursor, match=pattern, count=_KEYS_AT_ONCE)
            )
            found += [(key, name) for name in fields]
            if not cursor:
                return found

    def _unseen(self, places: Sequence[Place]) -> list[Place]:
        if self._sorted is None:
            self._sorted = np.unique(np.array(self._seen, np.uint64))
        seen = self._sorted
        wanted = np.array([_hash(place) for place in places], np.uint64)
        at = np.searchsorted(seen, wanted)
        there = np.zeros(len(wanted), bool)
        inside = at < len(seen)
        there[inside] = seen[at[inside]] == wanted[inside]
        return [place for place, known in zip(places, there.tolist()) if not known]

    def _exists(self, place: Place) -> bool:
        key, field = place
        return bool(self._ask(lambda client: client.hexists(key, field) if field else client.exists(key)))

    def _ask(self, request: Any) -> Any:
        try:
            return request(self._sink.connected())
        except Exception as error:
            raise self._sink.in_words(error, f"output {self._sink.output}") from error


def pattern_of(template: Template) -> str:
    """What keys of a template look like to SCAN.

    >>> from headrace.connectors.redis.rows import Template
    >>> pattern_of(Template("user:{user}:[x]", "key", ""))
    'user:*:\\\\[x\\\\]'
    """
    parts = (literal.translate(_GLOB) + ("" if name is None else "*") for literal, name in template.parts)
    return "".join(parts)


def _packs(parts: Sequence[StagedPart]) -> Iterator[bytes]:
    reader: Any = InlineParts()
    for batch in read_batches(parts, reader):
        yield from batch.column("pack").to_pylist()


def _spelled(position: Position) -> tuple[str, str]:
    return ("", "") if position is None else (str(position[0]), str(position[1]))


def _hash(place: Place) -> int:
    key, field = place
    return xxhash.xxh64_intdigest(len(key).to_bytes(8, "big") + key + field)


def _row_text(items: Sequence[Any]) -> str:
    """A row of a pack, without the counts in it."""
    return " ".join(_text(item) for item in items if isinstance(item, bytes))


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
