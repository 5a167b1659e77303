"""Reading the past over Redis' protocol: which moment a request is about, and answering it from there.

Any client reads a past epoch by naming it in the key: ``hourly@41:tweet-42``, ``hourly@before-v2:tweet-42``,
``hourly@2024-05-01T12:00Z:tweet-42``; times end with a Z there, because keys may begin with digits. A connection that
is one's own may be set to a moment with ``HEADRACE.AT 41``: then all that it reads is of that epoch, walks over keys
too. Connections of a pool are nobody's own, so there keys are the way.

A moment that is open is answered from at once; one that is not is opened beside the loop, while the connection waits.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import HeadraceError, StoreError
from headrace.serve.past import MOST_SNAPSHOTS
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Command, Refusal, Reply, Request, command, find_command, wrong_words
from headrace.state.moments import Moment, parse_moment

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.resp.session import RespSession

_KEY: Final = re.compile(rb"([^@:]*)@(\d{4}-\d\d-\d\dT[\d:.]*Z|[^:]*)((?::.*)?)", re.DOTALL)
_OPEN_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT.*[^Z]")
ADDRESS: Final = "address"
"""Flag of commands whose first argument is the address of a state."""
MOMENT: Final = "moment"
"""Flag of commands whose first argument, where they are given one, is a moment."""


class MomentRequest(NamedTuple):
    """A request, and the moment that it asks about."""

    moment: Moment | None
    """None: the present."""
    request: Request
    """Without the moment."""


Opened = Mapping[Moment, "Snapshot | Refusal"]
"""Moments that a transaction reads, as far as they could be opened."""


def split_moment(session: RespSession, found: Command, request: Request) -> MomentRequest:
    """Takes the moment out of a request; where it names none it is the one that the connection is set to."""
    present = session.moment if "data" in found.flags or MOMENT in found.flags else None
    if len(request) == 1:
        return MomentRequest(present, request)
    if ADDRESS in found.flags:
        address, at, text = request[1].partition(b"@")
        return MomentRequest(_parsed(text), [request[0], address, *request[2:]]) if at else MomentRequest(
            present, request
        )  # fmt: skip
    if MOMENT in found.flags:
        if len(request) > 2:
            raise wrong_words(request)
        return MomentRequest(_parsed(request[1]), [request[0], *request[2:]])
    first, last, step = found.keys
    if not first or not any(b"@" in word for word in request[first:]):
        return MomentRequest(present, request)
    return _split_keys(request, range(first, len(request) if last < 0 else min(last + 1, len(request)), step), present)


def _split_keys(request: Request, places: range, present: Moment | None) -> MomentRequest:
    made = list(request)
    moments: set[Moment | None] = set()
    for place in places:
        parts = _KEY.fullmatch(request[place])
        moments.add(present if parts is None else _parsed(parts[2]))
        if parts is not None:
            made[place] = parts[1] + parts[3]
    if len(moments) > 1:
        raise Refusal("ERR all keys of a request are of one epoch; ask in several, or between MULTI and EXEC")
    return MomentRequest(moments.pop(), made) if moments else MomentRequest(present, request)


def _parsed(word: bytes) -> Moment:
    if _OPEN_TIME.fullmatch(word):
        raise Refusal("ERR a time ends with Z here: hourly@2024-05-01T12:00Z:key")
    try:
        return parse_moment(word.decode("utf-8", "replace"))
    except StoreError as error:
        raise Refusal(f"ERR {replies.problem_text(error)}") from None


def answer(session: RespSession, found: Command, request: Request) -> Reply:
    """Answers a request, from a past epoch where it asks about one."""
    moment, bare = split_moment(session, found, request)
    if moment is None:
        return found.answer(session, bare)
    snapshot = session.service.past.ready(moment)
    return _open_and_answer(session, found, moment, bare) if snapshot is None else _from(session, found, snapshot, bare)


async def _open_and_answer(session: RespSession, found: Command, moment: Moment, request: Request) -> bytes:
    reply = _from(session, found, await open_moment(session, moment), request)
    return reply if isinstance(reply, bytes) else await reply


def _from(session: RespSession, found: Command, snapshot: Snapshot, request: Request) -> Reply:
    with session.pinned(snapshot):
        reply = found.answer(session, request)
    return reply if isinstance(reply, bytes) else _slowly_from(session, snapshot, reply)


async def _slowly_from(session: RespSession, snapshot: Snapshot, reply: Coroutine[Any, Any, bytes]) -> bytes:
    with session.pinned(snapshot):
        return await reply


async def open_moment(session: RespSession, moment: Moment) -> Snapshot:
    """The snapshot of a moment; refused where it cannot be read."""
    try:
        return await session.service.past.at(moment)
    except HeadraceError as error:
        # Where the store lies is nobody's business here.
        error.where = ""
        raise Refusal(f"NOEPOCH {replies.problem_text(error)}") from error


# --- transactions


def moments_of(session: RespSession, queued: Sequence[Request]) -> list[Moment]:
    """The moments that the requests of a transaction are about, each once."""
    moments: dict[Moment, None] = {}
    for request in queued:
        found = find_command(request[0])
        assert found is not None
        try:
            moment = split_moment(session, found, request).moment
        except Refusal:
            # Told when it is answered.
            continue
        if moment is not None:
            moments[moment] = None
    if len(moments) > MOST_SNAPSHOTS:
        raise Refusal(
            f"ERR limit: a transaction may read {MOST_SNAPSHOTS} moments of the past; this one {len(moments)}"
        )
    return list(moments)


async def open_moments(session: RespSession, moments: Sequence[Moment]) -> Opened:
    """All of them, before any is answered from."""
    opened: dict[Moment, Snapshot | Refusal] = {}
    for moment in moments:
        try:
            opened[moment] = await open_moment(session, moment)
        except Refusal as refusal:
            opened[moment] = refusal
    return opened


def answer_opened(session: RespSession, found: Command, request: Request, opened: Opened) -> Reply:
    """Answers a request of a transaction, whose moments have been opened."""
    moment, bare = split_moment(session, found, request)
    if moment is None:
        return found.answer(session, bare)
    snapshot = opened[moment]
    if isinstance(snapshot, Refusal):
        raise snapshot
    return _from(session, found, snapshot, bare)


# --- a connection of one's own


@command("HEADRACE.AT", -1, "readonly", group="headrace", summary="AT moment: read the past; AT alone: the present.")
async def headrace_at(session: RespSession, request: Request) -> bytes:
    """The epoch that this connection reads from now on."""
    if len(request) > 2:
        raise wrong_words(request)
    moment = _parsed(request[1]) if len(request) == 2 else None
    if moment is None:
        session.moment = None
        return replies.integer(session.snapshot.epoch)
    snapshot = await open_moment(session, moment)
    session.moment = moment
    return replies.integer(snapshot.epoch)
