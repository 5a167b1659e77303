"""One connection of Redis' protocol: bytes in, replies out, in order, with a bound on everything that may pile up.

All requests of a piece of input are answered in one go and written once. ``GET`` and ``MGET`` have ways of their own
through `data_received`, because nearly all requests are that: input is cut at what stands before keys, and the pieces
are looked up as they are (see `headrace.serve.resp.scopes`), without a step of Python for each. Everything else, and
whatever does not come whole, goes through the table of commands, which answers the same.

Back-pressure
- Replies that the client does not read fill the transport's buffer; above its mark no further request is answered and
  no further byte is read, until it has drained.
- What is pushed unasked (messages) cannot be held back: a client that lets it pile up is cut off.
- A command that takes its time (a wait, a walk) holds up this connection only, and so do many that take little each.
  It ends soon after its client has gone away, unless that has sent more behind it, which is not read before its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.errors import FunctionFailed
from headrace.net.listening import cut_off
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Command, Refusal, Request, find_command, spoken, wrong_words
from headrace.serve.resp.moments import answer
from headrace.serve.resp.reading import mget_asked
from headrace.serve.resp.refusing import noted, refuse
from headrace.serve.resp.requests import BadRequest, RequestParser
from headrace.serve.resp.scopes import ENOUGH_BYTES, key_asked
from headrace.serve.resp.session import RespSession, loading

if TYPE_CHECKING:
    from headrace.serve.resp.server import RespServer

log = logging.getLogger("headrace.serving")

HIGH_WATER_BYTES: Final = 1 << 20
_GET: Final = b"*2\r\n$3\r\nGET\r\n$"
_GET_BYTES: Final = len(_GET)
_LOWER_GET: Final = b"*2\r\n$3\r\nget\r\n$"
"""What stands before the key: most clients write names of commands in one of these ways."""
_MGET: Final = b"$4\r\nMGET\r\n$"
_MGET_NAME: Final = b"4\r\nMGET\r\n"
_MGET_HEAD: Final = len(b"*65536\r\n") + len(_MGET)
_ONE_BYTES: Final = 128
"""Input of up to this length is tried as one request first."""
_AT_ONCE: Final = 256
"""So many replies that are kept are no more than a megabyte."""
_ERROR: Final = b"-"[0]
_TURN_S: Final = 0.005
"""So long the requests of one client are answered in one go; then others have their turn."""
_LAST_ANSWER_S: Final = 5.0
"""So long a client is answered that sends nothing more: nobody can tell one that still reads from one that is gone."""
_HTTP: Final = frozenset({b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT", b"HOST:"})
"""Words that begin a line of HTTP and are no commands of Redis. Redis itself looks for POST and Host: alone."""
_HTTP_VERSION: Final = b"HTTP/1."
"""The third word of HTTP's first line; no command with two arguments has such a last one."""
_UNNAMED_BYTES: Final = 64 * 1024
_UNNAMED_ARGUMENTS: Final = 1024
"""How much a request may hold before the client has named itself: enough for HELLO and AUTH, and whatever clients send
along with them."""
_ARGUMENT_BYTES: Final = 48
"""What Python needs for an argument beside its bytes."""
_IN_MULTI: Final = frozenset({b"EXEC", b"DISCARD", b"MULTI", b"WATCH", b"QUIT", b"RESET"})
_WHILE_LISTENING: Final = frozenset(
    {b"SUBSCRIBE", b"PSUBSCRIBE", b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"PING", b"QUIT", b"RESET"}
)


class Connection(asyncio.Protocol):
    """One client. `plain` is True while nothing about it is special, which is what the quick way through asks."""

    transport: asyncio.Transport
    session: RespSession

    def __init__(self, server: RespServer) -> None:
        self.server = server
        self.peer = ""
        self.plain = False
        self.seen = server.tick
        """The tick of the server when the client was last heard of."""
        self.stuck_since: int | None = None
        """The tick since which replies wait to be read, or a request to be completed."""
        self._requests = RequestParser()
        self._unnamed: bool | None = None
        """Whether the client has to name itself first, which its requests are limited by; None: not looked at yet."""
        self._queue: deque[Request | BadRequest] = deque()
        """What was asked and not answered yet; behind a BadRequest nothing is."""
        self._task: asyncio.Task[bytes] | None = None
        self._full = False
        self._reading = True
        self._closing = False
        self._last = False
        """Whether the answer that is being made is the last one: the client sends nothing more."""

    @property
    def full(self) -> bool:
        """Whether the client does not read what it asked for."""
        return self._full

    @property
    def listening(self) -> bool:
        return self.session.listening

    # --- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        told = transport.get_extra_info("peername")
        self.peer = f"{told[0]}:{told[1]}" if isinstance(told, tuple) else str(told or "local")
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if not self.server.admit(self):
            self.transport.write(replies.error("ERR max number of clients reached"))
            transport.close()
            self._closing = True
            return
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        # The connection and its session refer to each other. What they hold must not wait for the garbage collector.
        self._queue.clear()
        self._requests.clear()
        self.session.queued = None
        if self._task is not None:
            self._task.cancel()
        self.server.dismiss(self)

    def eof_received(self) -> bool:
        secure = self.transport.get_extra_info("sslcontext") is not None
        if self._task is None or self._closing or secure:
            return False
        self._last = True
        asyncio.get_running_loop().call_later(_LAST_ANSWER_S, self.transport.close)
        return True

    def pause_writing(self) -> None:
        self._full = True
        self.plain = False
        self.stuck_since = self.server.tick
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self.stuck_since = None
        self._go_on([])

    def send(self, data: bytes) -> None:
        """Writes something that was not asked for; a client that does not read is cut off."""
        if self._closing:
            return
        self.transport.write(data)
        if self.transport.get_write_buffer_size() > self.server.service.limits.reply_bytes:
            self.session.refused("further messages", "the client does not read them")
            self.abort()

    def close_after_replies(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True
        cut_off(self.transport)

    # --- requests

    def data_received(self, data: bytes) -> None:
        self.seen = self.server.tick
        if not self.plain:
            self._receive(data, [])
        elif data.startswith(_GET):
            session = self.session
            if len(data) <= _ONE_BYTES:
                piece = data[_GET_BYTES:]
                reply = session.scope.kept.get(piece) or self._get_one(piece)
                if reply is not None:
                    session.commands += 1
                    self.transport.write(reply)
                    return
            self._get(data.split(_GET), _GET)
        elif data.startswith(_LOWER_GET):
            self._get(data.split(_LOWER_GET), _LOWER_GET)
        elif data.find(_MGET, 0, _MGET_HEAD) > 0:
            self._mget(data)
        else:
            self._receive(data, [])

    def _get(self, pieces: list[bytes], before: bytes) -> None:
        """Answers input that begins with a GET and was cut at ``before``, what stands before its keys."""
        session = self.session
        scope = session.scope
        at = 1
        while at < len(pieces):
            wanted = pieces[at : at + _AT_ONCE]
            try:
                reply, count = b"".join(map(scope.kept.__getitem__, wanted)), len(wanted)
            except KeyError:
                found = self._get_missing(wanted)
                reply, count = b"".join(found), len(found)
            if count:
                session.commands += count
                at += count
                self.transport.write(reply)
            if not count or not self.plain:
                # Cut, of a state that is not there, not a GET at all; or the client does not read what it asks for.
                self._receive(b"".join([before + piece for piece in pieces[at:]]), [])
                return

    def _get_one(self, piece: bytes) -> bytes | None:
        key = key_asked(piece)
        try:
            reply = None if key is None else self.session.scope.make(piece, key)
            return reply if reply is None or reply[0] != _ERROR else noted(self.session, reply)
        except Exception:
            # The long way meets it again, and says so.
            return None

    def _get_missing(self, wanted: list[bytes]) -> list[bytes]:
        try:
            found = self.session.scope.get_asked(wanted)
            return [reply if reply[0] != _ERROR else noted(self.session, reply) for reply in found]
        except Exception:
            return []

    def _mget(self, data: bytes) -> None:
        """Answers input that begins with an MGET, if that is all of it."""
        session = self.session
        count, name, *pieces = data.split(b"$")
        limits = session.service.limits
        whole = name == _MGET_NAME and count == b"*%d\r\n" % (len(pieces) + 1)
        if whole and len(pieces) <= limits.keys and len(data) <= limits.request_bytes:
            reply = self._mget_reply(pieces)
            if reply is not None:
                session.commands += 1
                self.transport.write(reply)
                return
        self._receive(data, [])

    def _mget_reply(self, pieces: list[bytes]) -> bytes | None:
        scope = self.session.scope
        try:
            return b"*%d\r\n%b" % (len(pieces), b"".join(map(scope.kept.__getitem__, pieces)))
        except KeyError:
            if scope.snapshot is None:
                return None
        try:
            return mget_asked(self.session, pieces)
        except Refusal as refusal:
            past = any(b"@" in piece.partition(b":")[0] for piece in pieces)
            return None if past else noted(self.session, replies.error(str(refusal)))
        except Exception:
            return None

    def _receive(self, data: bytes, out: list[bytes]) -> None:
        """Any requests, behind the replies that are there already."""
        if self._closing:
            return
        try:
            self._queue.extend(self._requests.feed(data))
        except BadRequest as bad:
            self._requests.clear()
            self._queue.extend(bad.before)
            self._queue.append(bad.with_traceback(None))
            self.session.refused("bytes", str(bad))
        self._go_on(out)

    def _go_on(self, out: list[bytes]) -> None:
        """Answers what waits, as far as the client reads the answers and its turn lasts."""
        size = 0
        ends = perf_counter() + _TURN_S
        while self._queue and not self._full and self._task is None and not self._closing:
            reply = self._answer(self._queue.popleft())
            if isinstance(reply, bytes):
                out.append(reply)
                size += len(reply)
            else:
                self._task = asyncio.get_running_loop().create_task(self._finish(reply))
            if size > ENOUGH_BYTES:
                self.transport.write(b"".join(out))
                out, size = [], 0
            if self._queue and perf_counter() > ends:
                asyncio.get_running_loop().call_soon(self._go_on, [])
                break
        if out:
            self.transport.write(b"".join(out))
        if self._closing:
            self._settle()
            self.transport.close()
            return
        # Also during a command that takes its time: that its client has gone away is told to those alone who read.
        reads = not self._queue and not self._full
        if reads != self._reading:
            self._reading = reads
            (self.transport.resume_reading if reads else self.transport.pause_reading)()
        self._settle()

    def _settle(self) -> None:
        """Decides whether the next bytes may go the quick way."""
        session = self.session
        pending = self._requests.pending
        if (session.user is None) is not self._unnamed:
            self._limit_requests(session)
        busy = self._full or self._task is not None or self._queue or pending
        self.plain = session.plain and not (busy or self._closing)
        if not self._full:
            # What is not read cannot be completed.
            waits = (pending and self._reading) or (session.user is None and not self._closing)
            since = self.server.tick if self.stuck_since is None else self.stuck_since
            self.stuck_since = since if waits else None

    def _limit_requests(self, session: RespSession) -> None:
        self._unnamed = session.user is None
        if self._unnamed:
            self._requests.limit(_UNNAMED_BYTES, _UNNAMED_ARGUMENTS)
        else:
            limits = session.service.limits
            self._requests.limit(limits.request_bytes, max(65_536, limits.keys + 8))

    async def _finish(self, slow: Coroutine[Any, Any, bytes]) -> bytes:
        try:
            reply = await slow
        except Refusal as refusal:
            reply = noted(self.session, replies.error(str(refusal)))
        except FunctionFailed as error:
            reply = noted(self.session, replies.error(f"ERR {replies.problem_text(error)}"))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a command failed")
            reply = replies.error("ERR an error of the server's own; its log has it")
        self._task = None
        if not self._closing:
            self._closing = self._last
            self._go_on([reply])
        return reply

    # --- one request

    def _answer(self, request: Request | BadRequest) -> bytes | Coroutine[Any, Any, bytes]:
        session = self.session
        session.commands += 1
        if isinstance(request, BadRequest):
            self._closing = True
            return replies.error(str(request))
        if request[0].upper() in _HTTP or (len(request) == 3 and request[2].startswith(_HTTP_VERSION)):
            return self._hang_up(request)
        found = find_command(request[0])
        try:
            refused = self._refused(found, request)
            if refused is not None:
                session.broken = session.queued is not None
                return refused
            assert found is not None
            if session.queued is not None and request[0].upper() not in _IN_MULTI:
                return self._enqueue(request)
            reply = answer(session, found, request)
            return noted(session, reply) if isinstance(reply, bytes) else reply
        except Refusal as refusal:
            return noted(session, replies.error(str(refusal)))
        except FunctionFailed as error:
            # An aggregate that cannot be computed, as a sum beyond 64 bits: firing refuses it, too.
            return noted(session, replies.error(f"ERR {replies.problem_text(error)}"))
        except Exception:
            log.exception("%s failed", spoken(request[0]))
            return replies.error("ERR an error of the server's own; its log has it")

    def _hang_up(self, request: Request) -> bytes:
        """A browser that a web page made send HTTP here would send commands of that page's choice in the body."""
        self.session.refused(spoken(request[0]), "HTTP was sent to the port of Redis' protocol")
        self._queue.clear()
        self.abort()
        return b""

    def _refused(self, found: Command | None, request: Request) -> bytes | None:
        """The error for a request that is not even tried; None: it is."""
        session = self.session
        if session.user is None and (found is None or "no_auth" not in found.flags):
            session.refused(spoken(request[0]), "the client has not named itself")
            return replies.error("NOAUTH Authentication required.")
        if any(not meter.allows() for meter in session.meters):
            return self._too_fast(request)
        if found is None:
            return refuse(session, request)
        if not found.takes(len(request)):
            return replies.error(str(wrong_words(request)))
        if session.listening and session.version == 2 and request[0].upper() not in _WHILE_LISTENING:
            return replies.error(
                f"ERR Can't execute '{found.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                "allowed in this context"
            )
        if "data" in found.flags and session.scope.snapshot is None:
            # Before it is queued, as in Redis: EXEC would answer as if there were no keys.
            return replies.error(loading(session.service))
        return None

    def _too_fast(self, request: Request) -> bytes:
        per_second = min(meter.per_second for meter in self.session.meters)
        self.session.refused(spoken(request[0]), f"more than {per_second} commands per second")
        return replies.error(f"ERR limit: more than {per_second} commands per second; slow down")

    def _enqueue(self, request: Request) -> bytes:
        session = self.session
        assert session.queued is not None
        limits = session.service.limits
        session.queued_bytes += sum(map(len, request)) + _ARGUMENT_BYTES * len(request)
        if len(session.queued) >= limits.keys or session.queued_bytes > limits.request_bytes:
            if not session.broken:
                session.refused("a transaction", f"more than {limits.keys} commands or {limits.request_bytes} bytes")
            session.broken = True
            return replies.error("ERR limit: too many commands in one transaction")
        session.queued.append(request)
        return replies.QUEUED
