"""What keys held before an epoch wrote to them: kept beside the guard, so that a job can go back.

The script that writes rows also writes, for each, what was there before, into a list per epoch (``…:undo:0:41``). The
first element of the list says which epoch the target had before this one; so the lists make a chain, from the epoch
that the guard has back to the oldest that is kept. A list expires by itself: then the chain ends there, and going back
further is refused before anything is touched.

Taking back goes epoch by epoch, some rows at a time, the newest first. From the first of these scripts on the guard has
the number of the timeline that goes on, so an abandoned driver is refused; and beside it where the chain has come to.

==========================  ===========================================================================================
``s`` key former ends       a string (or whatever it replaced) as DUMP gave it, false where there was none
``h`` key names old ends    fields of a hash with their values, false where there was none
``x`` key id                an entry of a stream, which was added
==========================  ===========================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import redis

    from headrace.connectors.sink_contract import Forget

ROWS_AT_ONCE = 5_000
"""What one script takes back at most: Redis serves nobody else meanwhile."""

_POSITION: Final = """
local guard = KEYS[1]
local timeline, epoch, following = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('HMGET', guard, 'timeline', 'epoch', 'back_timeline', 'back_epoch')
local at_timeline, at_epoch = tonumber(held[3] or held[1] or -1), tonumber(held[4] or held[2] or -1)
local function journal() return guard .. ':undo:' .. at_timeline .. ':' .. at_epoch end
"""
"""The epoch whose rows are the newest there: that of the guard, or behind it, where rows were taken back."""

_CHECK: Final = (
    "#!lua"
    + _POSITION
    + """
-- Timelines between are abandoned, too, and go before this one.
while at_timeline < following and (at_timeline > timeline or at_timeline == timeline and at_epoch > epoch) do
  local head = redis.call('LINDEX', journal(), 0)
  if not head then return {'missing', at_timeline, at_epoch} end
  head = cmsgpack.unpack(head)
  at_timeline, at_epoch = head[1], head[2]
end
return {'done', at_timeline, at_epoch}
"""
)

_TAKE_BACK: Final = (
    "#!lua"
    + _POSITION
    + """
if tonumber(held[1] or -1) < following then
  redis.call('HSET', guard, 'timeline', following, 'epoch', -1, 'print', '', 'done', 0, 'row', 0, 'complete', 1,
    'back_timeline', at_timeline, 'back_epoch', at_epoch)
end
if at_timeline ~= timeline or at_epoch <= epoch then return {'done', at_timeline, at_epoch} end
local list = journal()
local left = redis.call('LLEN', list)
if left == 0 then return {'missing', at_timeline, at_epoch} end

local function ends(key, at)
  if at >= 0 then redis.call('PEXPIREAT', key, at) elseif at == -1 then redis.call('PERSIST', key) end
end

local count = math.min(left - 1, tonumber(ARGV[4]))
if count > 0 then
  for _, packed in ipairs(redis.call('RPOP', list, count)) do
    local row = cmsgpack.unpack(packed)
    if row[1] == 'x' then redis.call('XDEL', row[2], row[3])
    elseif row[1] == 's' then
      redis.call('DEL', row[2])
      if row[3] then redis.call('RESTORE', row[2], math.max(row[4], 0), row[3], 'ABSTTL') end
    else
      for place, name in ipairs(row[3]) do
        if row[4][place] then redis.call('HSET', row[2], name, row[4][place])
        else redis.call('HDEL', row[2], name) end
      end
      ends(row[2], row[5])
    end
  end
end
if count == left - 1 then
  local head = cmsgpack.unpack(redis.call('LINDEX', list, 0))
  redis.call('DEL', list)
  redis.call('HSET', guard, 'back_timeline', head[1], 'back_epoch', head[2])
end
return {'more', at_timeline, at_epoch}
"""
)


class UndoAnswer(NamedTuple):
    outcome: str
    """``done``: nothing is left behind the epoch; ``more``: some is; ``missing``: nobody knows what was before."""
    timeline: int
    epoch: int


def journal_key(guard: str, timeline: str, epoch: int) -> str:
    """Where an epoch keeps what was before it."""
    return f"{guard}:undo:{timeline}:{epoch}"


def check_chain(client: redis.Redis, guard: str, ctx: Forget) -> UndoAnswer:
    """Whether it is known what was there after the epoch to go back to."""
    return _answer(client.eval(_CHECK, 1, guard, ctx.timeline, ctx.epoch, ctx.next_timeline))


def take_back(client: redis.Redis, guard: str, ctx: Forget) -> UndoAnswer:
    """Takes some rows back, the newest first."""
    given = (ctx.timeline, ctx.epoch, ctx.next_timeline, ROWS_AT_ONCE)
    return _answer(client.eval(_TAKE_BACK, 1, guard, *map(str, given)))


def _answer(told: Any) -> UndoAnswer:
    return UndoAnswer(told[0].decode(), *told[1:])
