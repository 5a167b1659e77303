"""The script that writes packs of rows to Redis together with the guard, and what it answers.

The guard is a hash beside the rows: the timeline and epoch that were written last, a print of that epoch's staged
parts, how many of its packs are written, and whether that is all of them. Rows and guard change in one script, which
Redis runs, logs and replicates as a whole. So wherever a release ends, the guard says which packs are there:

- the same epoch again: only what is missing is written;
- an older epoch, an older timeline: a driver that was thought dead, or another store; refused;
- the same epoch with another print: other rows under the same number; refused;
- a guard older than what this driver has seen written: the server lost data; refused.

With ``undo=`` the script also notes what was there before each row (`undo`).

A script is not undone when a command in it fails (a key of another type). So it notes the rows before the failure, and
the next release goes on at the row that failed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headrace.connectors.redis.undo import journal_key
from headrace.connectors.staged import read_batches
from headrace.model.report import StagedPart

if TYPE_CHECKING:
    import redis

    from headrace.connectors.sink_contract import Release

GROUP_ROWS = 10_000
GROUP_BYTES = 4 * 2**20
"""What one script writes at most: Redis serves nobody else meanwhile."""

WRITERS: Final = """
local function write_string(at, pack)
  if undo_ms > 0 then
    keep({'s', pack[at], redis.call('DUMP', pack[at]), redis.call('PEXPIRETIME', pack[at])})
  end
  if pack[1] == 'gone' then return redis.pcall('UNLINK', pack[at]), at + 2 end
  if pack[2] > 0 then return redis.pcall('SET', pack[at], pack[at + 1], 'PX', pack[2]), at + 2 end
  return redis.pcall('SET', pack[at], pack[at + 1]), at + 2
end

local function write_fields(at, pack)
  local set_from = at + 2
  local set_to = at + 1 + pack[at + 1]
  local gone_from = set_to + 2
  local gone_to = set_to + 1 + pack[set_to + 1]
  local reply = {}
  if pack[1] == 'stream' then
    if pack[3] > 0 then
      reply = redis.pcall('XADD', pack[at], 'MAXLEN', '~', pack[3], '*', unpack(pack, set_from, set_to))
    else
      reply = redis.pcall('XADD', pack[at], '*', unpack(pack, set_from, set_to))
    end
    if undo_ms > 0 and type(reply) == 'string' then keep({'x', pack[at], reply}) end
    return reply, gone_to + 1
  end
  if undo_ms > 0 then
    local names = {}
    for place = set_from, set_to, 2 do names[#names + 1] = pack[place] end
    for place = gone_from, gone_to do names[#names + 1] = pack[place] end
    local values = redis.pcall('HMGET', pack[at], unpack(names))
    if not values['err'] then keep({'h', pack[at], names, values, redis.call('PEXPIRETIME', pack[at])}) end
  end
  if set_to >= set_from then reply = redis.pcall('HSET', pack[at], unpack(pack, set_from, set_to)) end
  if gone_to >= gone_from and not (type(reply) == 'table' and reply['err']) then
    reply = redis.pcall('HDEL', pack[at], unpack(pack, gone_from, gone_to))
  end
  if pack[2] > 0 and not (type(reply) == 'table' and reply['err']) then
    reply = redis.pcall('PEXPIRE', pack[at], pack[2])
  end
  return reply, gone_to + 1
end
"""
"""How a row is written: from a place in a pack; gives back what Redis said, and the place of the next row."""

SCRIPT: Final = (
    """#!lua
local guard = KEYS[1]
local timeline, epoch = tonumber(ARGV[1]), tonumber(ARGV[2])
local held = redis.call('HMGET', guard, 'timeline', 'epoch', 'print', 'done', 'row', 'complete',
  'back_timeline', 'back_epoch')
local was_timeline, was_epoch = tonumber(held[1] or -1), tonumber(held[2] or -1)
local seen_timeline, seen_epoch = tonumber(ARGV[4]), tonumber(ARGV[5])
if was_timeline < seen_timeline or (was_timeline == seen_timeline and was_epoch < seen_epoch) then
  return {'lost', was_timeline, was_epoch}
end
if was_timeline > timeline or (was_timeline == timeline and was_epoch > epoch) then
  return {'older', was_timeline, was_epoch}
end
local done, skipped = 0, 0
if was_timeline == timeline and was_epoch == epoch then
  if held[3] ~= ARGV[3] then return {'other', was_timeline, was_epoch} end
  if held[6] == '1' then return {'done', tonumber(held[4])} end
  done, skipped = tonumber(held[4]), tonumber(held[5])
end

local journal, undo_ms, former = KEYS[2], tonumber(ARGV[8]), {}
if undo_ms > 0 then
  if was_timeline == timeline and was_epoch == epoch then
    if redis.call('EXISTS', journal) == 0 then undo_ms = 0 end
  else
    redis.call('DEL', journal)
    former[1] = cmsgpack.pack({tonumber(held[7] or was_timeline), tonumber(held[8] or was_epoch)})
  end
end

local function keep(row)
  former[#former + 1] = cmsgpack.pack(row)
end

local function note(packs, rows, complete)
  for from = 1, #former, 1000 do
    redis.call('RPUSH', journal, unpack(former, from, math.min(from + 999, #former)))
  end
  if undo_ms > 0 then redis.call('PEXPIRE', journal, undo_ms) end
  former = {}
  if held[7] then redis.call('HDEL', guard, 'back_timeline', 'back_epoch') end
  redis.call('HSET', guard, 'timeline', ARGV[1], 'epoch', ARGV[2], 'print', ARGV[3],
    'done', packs, 'row', rows, 'complete', complete)
end
"""
    + WRITERS
    + """
local first = tonumber(ARGV[6])
local packs = #ARGV - 8
for number = math.max(0, done - first), packs - 1 do
  local pack = cmsgpack.unpack(ARGV[9 + number])
  local whole = pack[1] == 'string' or pack[1] == 'gone'
  local write = whole and write_string or write_fields
  local at, row, size = 4, 0, #pack
  while at <= size do
    if first + number == done and row < skipped then
      if whole then at = at + 2 else
        local set_to = at + 1 + pack[at + 1]
        at = set_to + 2 + pack[set_to + 1]
      end
    else
      local reply, following = write(at, pack)
      if type(reply) == 'table' and reply['err'] then
        if row > 0 or number > 0 or done > 0 then note(first + number, row, '0') end
        return {'failed', reply['err'], pack[at]}
      end
      at = following
    end
    row = row + 1
  end
end
if first + packs <= done then return {'wrote', done} end
note(first + packs, 0, ARGV[7])
return {'wrote', first + packs}
"""
)
"""KEYS: the guard, and the epoch's list of former rows. ARGV: timeline, epoch, print, timeline and epoch seen before
(−1: none), number of the first pack given, whether the last pack is among them (1 or 0), for how many milliseconds
former rows are kept (0: not at all), then the packs."""

Outcome = Literal["wrote", "done", "lost", "older", "other", "failed"]


class GuardAnswer(NamedTuple):
    outcome: Outcome
    numbers: tuple[int, ...] = ()
    error: str = ""
    key: str = ""


class Group(NamedTuple):
    """Packs that are written together."""

    first: int
    packs: list[bytes]
    last: bool


def read_groups(parts: Sequence[StagedPart], ctx: Release) -> Iterator[Group]:
    """The packs of an epoch in their order, as many at a time as one script writes."""
    held: list[bytes] = []
    held_rows = held_bytes = first = 0
    for batch in read_batches(parts, ctx):
        for pack, count in zip(batch.column("pack").to_pylist(), batch.column("rows").to_pylist(), strict=True):
            if held and (held_rows + count > GROUP_ROWS or held_bytes + len(pack) > GROUP_BYTES):
                yield Group(first, held, last=False)
                first += len(held)
                held, held_rows, held_bytes = [], 0, 0
            held.append(pack)
            held_rows += count
            held_bytes += len(pack)
    yield Group(first, held, last=True)


def print_of(parts: Sequence[StagedPart]) -> str:
    """Tells staged parts from others of the same epoch: files have names of their own, inline parts their bytes."""
    told = [(part.file, part.crc, zlib.crc32(part.inline), part.rows, part.size_bytes) for part in parts]
    return f"{zlib.crc32(repr(told).encode()):08x}-{sum(part.rows for part in parts)}"


def write_group(
    client: redis.Redis, guard: str, group: Group, ctx: Release, print_: str, seen: tuple[int, int], undo_ms: int
) -> GuardAnswer:
    """Runs the script for one group."""
    given: list[Any] = [ctx.timeline, ctx.epoch, print_, *seen, group.first, int(group.last), undo_ms]
    keys = [guard, journal_key(guard, ctx.timeline, ctx.epoch)]
    answer: Any = client.eval(SCRIPT, 2, *keys, *given, *group.packs)
    outcome: Any = answer[0].decode()
    if outcome == "failed":
        return GuardAnswer(outcome, error=answer[1].decode(), key=answer[2].decode(errors="replace"))
    return GuardAnswer(outcome, numbers=tuple(answer[1:]))
