"""MULTI and EXEC: several requests, all of them answered from one epoch.

Most transactions are a few reads and are answered at once. One that takes longer than a turn goes on in slices, between
which others are answered; meanwhile newer epochs may be published, so its session is held at the epoch it began with.
What cannot be answered at once by itself (a wait, a walk over all keys) is refused inside of a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Final

from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Reply, Request, command, find_command
from headrace.serve.resp.refusing import ReplyParts, noted

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.resp.session import Session

_TURN_S: Final = 0.005
"""So long a transaction is answered in one go, as a connection's requests are; then others have their turn."""


@command("MULTI", 1, "fast", group="transactions", summary="The requests up to EXEC are answered from one epoch.")
def multi(session: Session, request: Request) -> bytes:
    if session.queued is not None:
        raise Refusal("ERR MULTI calls can not be nested")
    session.queued, session.queued_bytes, session.broken = [], 0, False
    return replies.OK


@command("EXEC", 1, group="transactions", summary="Answers all requests since MULTI.")
def exec_(session: Session, request: Request) -> Reply:
    queued, broken = session.queued, session.broken
    if queued is None:
        raise Refusal("ERR EXEC without MULTI")
    session.queued = None
    if broken:
        raise Refusal("EXECABORT Transaction discarded because of previous errors.")
    answers, left = ReplyParts(session), iter(queued)
    if _answer_some(session, left, answers):
        # Told now: until the rest has its first turn, a newer epoch may have taken its place.
        return _answer_slowly(session, session.scope.snapshot, left, answers)
    return replies.array(answers.held)


def _answer_some(session: Session, left: Iterator[Request], answers: ReplyParts) -> bool:
    """Answers requests until the turn is over; tells whether there may be more."""
    ends = perf_counter() + _TURN_S
    for each in left:
        answers.add([_answer_one(session, each)])
        if perf_counter() > ends:
            return True
    return False


async def _answer_slowly(
    session: Session, snapshot: Snapshot | None, left: Iterator[Request], answers: ReplyParts
) -> bytes:
    with session.pinned(snapshot):
        while _answer_some(session, left, answers):
            await asyncio.sleep(0)
    return replies.array(answers.held)


def _answer_one(session: Session, request: Request) -> bytes:
    found = find_command(request[0])
    assert found is not None
    try:
        answer = found.answer(session, request)
    except Refusal as refusal:
        return replies.error(str(refusal))
    if isinstance(answer, bytes):
        return noted(session, answer)
    answer.close()
    return replies.error(f"ERR {found.name} takes too long for a transaction; ask for it alone")


@command("DISCARD", 1, "fast", group="transactions", summary="Forgets the requests since MULTI.")
def discard(session: Session, request: Request) -> bytes:
    if session.queued is None:
        raise Refusal("ERR DISCARD without MULTI")
    session.queued = None
    return replies.OK


@command("WATCH", -2, "fast", group="transactions", summary="Nothing to watch for: nobody writes here.")
def watch(session: Session, request: Request) -> bytes:
    if session.queued is not None:
        raise Refusal("ERR WATCH inside MULTI is not allowed")
    return replies.OK


@command("UNWATCH", 1, "fast", group="transactions", summary="See WATCH.")
def unwatch(session: Session, request: Request) -> bytes:
    return replies.OK
