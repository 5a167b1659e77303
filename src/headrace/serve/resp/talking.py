"""Commands about the conversation itself: greeting, naming oneself, the form of answers, the end.

Between MULTI and EXEC: most transactions are a few reads and are answered at once. One that takes longer than a turn
goes on in slices, between which others are answered; meanwhile newer epochs may be published, so its session is held at
the epoch it began with. What cannot be answered at once by itself (a wait, a walk over all keys) is refused inside of a
transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from headrace.read.forms import JSON, PACKED
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Reply, Request, command, find_command, number, spoken, wrong_words
from headrace.serve.resp.moments import Opened, answer_opened, moments_of, open_moments
from headrace.serve.resp.refusing import ReplyParts, noted

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.resp.session import RespSession
    from headrace.state.moments import Moment


FORMS: Final = (JSON, PACKED)
"""What SELECT chooses: the number of a database is the form in which values come."""
VERSION: Final = "7.4.0"
"""The version of Redis whose commands these are; clients decide by it what they may send."""
_CLIENT_HELP: Final = {
    "ID": "The number of this connection.",
    "GETNAME": "Its name.",
    "SETNAME <name>": "Gives it one.",
    "SETINFO (LIB-NAME|LIB-VER) <value>": "What the client says of itself.",
    "INFO": "This connection on one line.",
    "LIST": "All connections, for those who may read everything.",
    "NO-EVICT (ON|OFF)": "Accepted.",
    "NO-TOUCH (ON|OFF)": "Accepted.",
}
_WRONG_PASS: Final = "WRONGPASS invalid username-password pair or user is disabled."


@command("PING", -1, "fast", group="connection", summary="Answers PONG, or what it is given.")
def ping(session: RespSession, request: Request) -> bytes:
    if len(request) > 2:
        raise wrong_words(request)
    if session.listening and session.version == 2:
        return replies.array([replies.bulk(b"pong"), replies.bulk(b"".join(request[1:]))])
    return replies.PONG if len(request) == 1 else replies.bulk(request[1])


@command("ECHO", 2, "fast", group="connection", summary="Answers what it is given.")
def echo(session: RespSession, request: Request) -> bytes:
    return replies.bulk(request[1])


@command("QUIT", -1, "fast", "no_auth", group="connection", summary="Ends the connection.")
def quit_(session: RespSession, request: Request) -> bytes:
    session.outlet.close_after_replies()
    return replies.OK


@command("RESET", 1, "fast", "no_auth", group="connection", summary="As if the client had just connected.")
def reset(session: RespSession, request: Request) -> bytes:
    session.reset()
    return replies.simple("RESET")


@command("SELECT", 2, "fast", group="connection", summary="0: values as JSON text; 1: values as MessagePack.")
def select(session: RespSession, request: Request) -> bytes:
    chosen = number(request[1])
    if not 0 <= chosen < len(FORMS):
        raise Refusal("ERR DB index is out of range; 0 gives values as JSON, 1 as MessagePack")
    session.form = FORMS[chosen]
    session.settle()
    return replies.OK


@command("AUTH", -2, "fast", "no_auth", group="connection", summary="Names oneself: AUTH [user] token.")
def auth(session: RespSession, request: Request) -> bytes:
    if len(request) > 3:
        raise Refusal("ERR syntax error")
    _log_in(session, request[1] if len(request) == 3 else None, request[-1])
    return replies.OK


def _log_in(session: RespSession, name: bytes | None, token: bytes) -> None:
    access = session.service.access
    if access.open:
        if name is not None:
            raise Refusal(_WRONG_PASS)
        raise Refusal(
            "ERR AUTH <password> called without any password configured for the default user. "
            "This server has no users: everybody who reaches it may read"
        )
    # Clients that know of passwords only call everybody "default".
    wanted = None if name is None or name == b"default" else spoken(name)
    user = access.find(spoken(token), wanted)
    if user is None:
        session.refused("AUTH", "unknown token" if wanted is None else f"not a token of {wanted}")
        raise Refusal(_WRONG_PASS)
    session.user = user
    session.settle()


@command("HELLO", -1, "fast", "no_auth", group="connection", summary="Chooses the version of the protocol.")
def hello(session: RespSession, request: Request) -> bytes:
    version, words = session.version, request[2:]
    if len(request) > 1:
        if request[1] not in (b"2", b"3"):
            raise Refusal("NOPROTO unsupported protocol version")
        version = int(request[1])
    name = None
    while words:
        option = words[0].upper()
        if option == b"AUTH" and len(words) >= 3:
            _log_in(session, words[1], words[2])
            words = words[3:]
        elif option == b"SETNAME" and len(words) >= 2:
            name = _checked_name(words[1])
            words = words[2:]
        else:
            raise Refusal(f"ERR Syntax error in HELLO option '{spoken(words[0])}'")
    if session.user is None:
        session.refused("HELLO", "the client has not named itself")
        raise Refusal(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
            "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at "
            "the same time"
        )
    session.name = session.name if name is None else name
    session.version = version
    session.settle()
    told = {
        "server": "headrace",
        "version": VERSION,
        "proto": version,
        "id": session.number,
        "mode": "standalone",
        "role": "replica",
        "modules": [],
    }
    return replies.plain(told, version)


# --- what is accepted, because nothing is to be done about it


@command("READONLY", 1, "fast", group="cluster", summary="Everything is read only here.")
@command("READWRITE", 1, "fast", group="cluster", summary="Answers OK; everything stays read only.")
def fine(session: RespSession, request: Request) -> bytes:
    return replies.OK


# --- CLIENT


@command("CLIENT", -2, group="connection", summary="What is known of clients: ID, GETNAME, SETNAME, LIST and others.")
def client(session: RespSession, request: Request) -> bytes:
    wanted, words = request[1].upper(), request[2:]
    match wanted, len(words):
        case b"ID", 0:
            return replies.integer(session.number)
        case b"GETNAME", 0:
            return replies.text(session.name) if session.name else session.null()
        case b"SETNAME", 1:
            session.name = _checked_name(words[0])
            return replies.OK
        case b"SETINFO", 2:
            if words[0].lower() not in (b"lib-name", b"lib-ver"):
                raise Refusal(f"ERR Unrecognized option '{spoken(words[0])}'")
            session.library[words[0].decode().lower()] = _checked_name(words[1])
            return replies.OK
        case b"INFO", 0:
            return replies.text(describe(session) + "\n")
        case b"LIST", _:
            # Others are nobody's business but those who may read everything.
            shown = session.server.sessions() if session.user is None or session.user.everything else [session]
            return replies.text("".join(f"{describe(each)}\n" for each in shown))
        case ((b"NO-EVICT" | b"NO-TOUCH" | b"REPLY" | b"CACHING"), 1) if words[0].upper() in (b"ON", b"OFF"):
            if wanted == b"REPLY" and words[0].upper() == b"OFF":
                raise Refusal("ERR every request is answered here")
            return replies.OK
        case b"HELP", 0:
            return replies.help_lines("CLIENT", _CLIENT_HELP)
        case b"TRACKING", _ if [word.upper() for word in words] == [b"OFF"]:
            return replies.OK
        case b"GETREDIR", 0:
            return replies.integer(-1)
        case ((b"TRACKING" | b"KILL" | b"PAUSE" | b"UNPAUSE" | b"UNBLOCK"), _):
            session.refused(f"CLIENT {wanted.decode()}", "not supported")
            raise Refusal(f"ERR CLIENT {wanted.decode()} is not supported")
        case ((b"ID" | b"GETNAME" | b"SETNAME" | b"SETINFO" | b"INFO" | b"NO-EVICT" | b"NO-TOUCH" | b"REPLY"), _):
            raise Refusal(f"ERR wrong number of arguments for 'client|{wanted.decode().lower()}' command")
    raise Refusal(f"ERR unknown subcommand '{spoken(request[1])}'. Try CLIENT HELP.")


def _checked_name(word: bytes) -> str:
    if any(not 0x21 <= char <= 0x7E for char in word) or len(word) > 128:
        raise Refusal("ERR Client names cannot contain spaces, newlines or special characters.")
    return word.decode()


def describe(session: RespSession) -> str:
    """One client on one line, as CLIENT LIST shows it."""
    age = max(0, int(session.service.clock() - session.since_s))
    parts = {
        "id": session.number,
        "addr": session.outlet.peer,
        "name": session.name,
        "age": age,
        "db": FORMS.index(session.form),
        "sub": len(session.channels),
        "psub": len(session.patterns),
        "multi": -1 if session.queued is None else len(session.queued),
        "user": session.user.name if session.user is not None else "(none)",
        "resp": session.version,
        "lib-name": session.library.get("lib-name", ""),
        "lib-ver": session.library.get("lib-ver", ""),
        "tot-cmds": session.commands,
    }
    return " ".join(f"{name}={value}" for name, value in parts.items())


# --- transactions: several requests, all of them answered from one epoch


_TURN_S: Final = 0.005
"""So long a transaction is answered in one go, as a connection's requests are; then others have their turn."""


@command("MULTI", 1, "fast", group="transactions", summary="The requests up to EXEC are answered from one epoch.")
def multi(session: RespSession, request: Request) -> bytes:
    if session.queued is not None:
        raise Refusal("ERR MULTI calls can not be nested")
    session.queued, session.queued_bytes, session.broken = [], 0, False
    return replies.OK


@command("EXEC", 1, group="transactions", summary="Answers all requests since MULTI.")
def exec_(session: RespSession, request: Request) -> Reply:
    queued, broken = session.queued, session.broken
    if queued is None:
        raise Refusal("ERR EXEC without MULTI")
    session.queued = None
    if broken:
        raise Refusal("EXECABORT Transaction discarded because of previous errors.")
    answers, left = ReplyParts(session), iter(queued)
    past = moments_of(session, queued)
    if past or _answer_some(session, left, answers, {}):
        # Told now: until the rest has its first turn, a newer epoch may have taken its place.
        return _answer_slowly(session, session.scope.snapshot, left, answers, past)
    return replies.array(answers.held)


def _answer_some(session: RespSession, left: Iterator[Request], answers: ReplyParts, opened: Opened) -> bool:
    """Answers requests until the turn is over; tells whether there may be more."""
    ends = perf_counter() + _TURN_S
    for each in left:
        answers.add([_answer_one(session, each, opened)])
        if perf_counter() > ends:
            return True
    return False


async def _answer_slowly(
    session: RespSession,
    snapshot: Snapshot | None,
    left: Iterator[Request],
    answers: ReplyParts,
    past: Sequence[Moment],
) -> bytes:
    with session.pinned(snapshot):
        opened = await open_moments(session, past)
        while _answer_some(session, left, answers, opened):
            await asyncio.sleep(0)
    return replies.array(answers.held)


def _answer_one(session: RespSession, request: Request, opened: Opened) -> bytes:
    found = find_command(request[0])
    assert found is not None
    try:
        answer = answer_opened(session, found, request, opened)
    except Refusal as refusal:
        return replies.error(str(refusal))
    if isinstance(answer, bytes):
        return noted(session, answer)
    answer.close()
    return replies.error(f"ERR {found.name} takes too long for a transaction; ask for it alone")


@command("DISCARD", 1, "fast", group="transactions", summary="Forgets the requests since MULTI.")
def discard(session: RespSession, request: Request) -> bytes:
    if session.queued is None:
        raise Refusal("ERR DISCARD without MULTI")
    session.queued = None
    return replies.OK


@command("WATCH", -2, "fast", group="transactions", summary="Nothing to watch for: nobody writes here.")
def watch(session: RespSession, request: Request) -> bytes:
    if session.queued is not None:
        raise Refusal("ERR WATCH inside MULTI is not allowed")
    return replies.OK


@command("UNWATCH", 1, "fast", group="transactions", summary="See WATCH.")
def unwatch(session: RespSession, request: Request) -> bytes:
    return replies.OK
