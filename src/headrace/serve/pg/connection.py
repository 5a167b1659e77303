"""One connection of Postgres' protocol: messages in, answers out, in order.

A client says who it is, then sends statements: whole (simple), or prepared, bound and executed (extended). Single keys
and settings are answered on the event loop. Everything else runs in a thread, while messages behind it wait; its rows
are handed to the loop piece by piece, and no faster than the client reads them.

In the extended protocol an error skips everything up to the client's next Sync; in a transaction nothing but its end is
answered behind an error, as Postgres has it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.errors import HeadraceError, StatementFailed, StoreError
from headrace.net.access import User
from headrace.net.listening import cut_off
from headrace.serve.pg import wire
from headrace.serve.pg.extended import ExtendedQueries, Portal
from headrace.serve.pg.opening import authenticate, start
from headrace.serve.pg.statements import Answering, PgAnswer, PreparedStatement, fields_of, prepare
from headrace.snapshots.errors import INTERNAL
from headrace.snapshots.settings import bare
from headrace.sql.script import cut_statements

if TYPE_CHECKING:
    from headrace.serve.pg.server import PgServer

log = logging.getLogger("headrace.serving")

HIGH_WATER_BYTES: Final = 1 << 20
_ENDS: Final = ("COMMIT", "ROLLBACK", "END", "ABORT")
_SKIPPED: Final = frozenset(b"PBDECFH")


class PgConnection(asyncio.Protocol):
    """One client."""

    transport: asyncio.Transport

    def __init__(self, server: PgServer) -> None:
        self.server = server
        self.user: User | None = None
        self.peer = ""
        self.number, self.secret = server.next_number(), secrets.randbits(32)
        self.seen_s = self.began_s = server.now_s()
        self.unread_since_s: float | None = None
        self.input = bytearray()
        self._output: list[bytes] = []
        self._pending: deque[tuple[int, bytes]] = deque()
        self.task: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self.started = False
        self.closing = False
        self._failed = False
        """Whether the transaction failed."""
        self._skipping = False
        """Whether everything up to the next Sync is skipped."""
        self._extended = ExtendedQueries(self)
        self.told: dict[str, str] = {}
        """What the client said when it connected."""
        self.answering: Answering | None = None

    # --- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if not self.started:
            self.server.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._drained.set()
        self._pending.clear()
        if self.answering is not None:
            self.answering.session.cancel()
        if self.task is None:
            self._let_go()
        self.server.dismiss(self)

    def _let_go(self) -> None:
        if self.answering is not None:
            self.answering.session.close()

    def pause_writing(self) -> None:
        self.unread_since_s = self.server.now_s()
        self._drained.clear()

    def resume_writing(self) -> None:
        self.unread_since_s = None
        self._drained.set()

    def abort(self) -> None:
        self.closing = True
        cut_off(self.transport)

    def finish(self) -> None:
        """Ends the connection: the server stops."""
        self.send(wire.error_response({"C": "57P01", "M": "the server stops"}, fatal=True))
        self.flush()
        self.transport.close()

    # --- input

    def data_received(self, data: bytes) -> None:
        self.seen_s = self.server.now_s()
        self.input += data
        if not self.started:
            if self.task is None:
                start(self)
            return
        self.cut()
        if self.task is None:
            self.go_on()

    def cut(self) -> None:
        data, at, size = self.input, 0, len(self.input)
        while size - at >= 5:
            (length,) = wire.INT4.unpack_from(data, at + 1)
            if length < 4 or length > self.server.limits.request_bytes:
                self.fatal("08P01", "a message is too long or broken")
                return
            if size - at < length + 1:
                break
            self._pending.append((data[at], bytes(data[at + 5 : at + 1 + length])))
            at += length + 1
        del data[:at]

    def go_on(self) -> None:
        """Answers what was asked, as far as it can be answered at once."""
        while self._pending and not self.closing:
            kind, body = self._pending.popleft()
            work = self._handle(kind, body)
            if work is not None:
                self.flush()
                simple = kind == ord("Q")
                self.task = asyncio.get_running_loop().create_task(self._wait_for(work, simple=simple))
                return
        self.flush()

    async def _wait_for(self, work: Any, *, simple: bool) -> None:
        try:
            await work
        except HeadraceError as error:
            self._fail(error, simple=simple)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("a statement failed for a reason of the server's own")
            self._fail(StatementFailed("an error of the server's own; its log has it", code=INTERNAL), simple=simple)
        finally:
            self.task = None
            if self.closing:
                self._let_go()
        if not self.closing:
            self.go_on()

    def send(self, data: bytes) -> None:
        self._output.append(data)

    def flush(self) -> None:
        if self._output and not self.transport.is_closing():
            self.transport.write(b"".join(self._output))
        self._output.clear()

    def fatal(self, code: str, words: str, refused: str = "") -> None:
        if refused:
            self.server.refused(self, refused, words)
        self.send(wire.error_response({"C": code, "M": words}, fatal=True))
        self.flush()
        self.closing = True
        self.transport.close()

    # --- messages

    def ready(self) -> None:
        in_transaction = self.answering is not None and self.answering.session.in_transaction
        self.send(wire.READY[b"E" if self._failed else b"T" if in_transaction else b"I"])

    def _handle(self, kind: int, body: bytes) -> Any:
        """Answers a message; gives what has to be waited for where it needs a thread."""
        if self.user is None:
            return authenticate(self, body) if kind == ord("p") else self.fatal("08P01", "a password is asked for")
        if self._skipping and kind in _SKIPPED:
            return None
        try:
            match chr(kind):
                case "Q":
                    return self._simple(wire.BodyReader(body).text())
                case "P":
                    self._extended.parse(wire.BodyReader(body))
                case "B":
                    self._extended.bind(wire.BodyReader(body))
                case "D":
                    return self._extended.describe(wire.BodyReader(body))
                case "E":
                    return self._extended.execute(wire.BodyReader(body))
                case "C":
                    self._extended.close(wire.BodyReader(body))
                case "S":
                    self._skipping = False
                    self._extended.synchronized()
                    self.ready()
                case "H":
                    self.flush()
                case "X":
                    self.closing = True
                    self.transport.close()
                case _:
                    raise StatementFailed("this kind of message is not answered", code="08P01", found=repr(chr(kind)))
        except HeadraceError as error:
            self._fail(error)
        except (IndexError, ValueError, struct.error):
            self.fatal("08P01", "a message is broken")
        return None

    @property
    def in_transaction(self) -> bool:
        return self.answering is not None and self.answering.session.in_transaction

    def _fail(self, error: HeadraceError, *, simple: bool = False) -> None:
        self.send(wire.error_response(error_parts(error)))
        self._failed = self.in_transaction
        if simple:
            self.ready()
        else:
            self._skipping = True
        self.flush()

    def check(self, text: str) -> None:
        """Refuses what may not be asked now."""
        if not self.server.allows(self):
            raise StatementFailed("too many statements per second", code="53400", next_move="ask less often")
        if self._failed:
            word = bare(text).split(" ", 1)[0].upper()
            if word not in _ENDS:
                raise StatementFailed(
                    "the transaction failed: statements are ignored until it ends", code="25P02", next_move="ROLLBACK"
                )
            self._failed = False

    # --- statements as a whole

    def _simple(self, text: str) -> Any:
        try:
            statements = [each.text for each in cut_statements(text) if bare(each.text)]
            if not statements:
                self.send(wire.EMPTY_QUERY)
                self.ready()
                return None
            if len(statements) == 1:
                self.check(statements[0])
                answer = self.answers.at_once(prepare(statements[0], ()), (), ())
                if answer is not None:
                    self.send_ready(answer, described=False)
                    self.ready()
                    return None
        except HeadraceError as error:
            self._fail(error, simple=True)
            return None
        return self._run_simple(statements)

    @property
    def answers(self) -> Answering:
        assert self.answering is not None
        return self.answering

    async def _run_simple(self, statements: list[str]) -> None:
        for number, statement in enumerate(statements):
            if number:
                self.check(statement)
            prepared = prepare(statement, ())
            answer = self.answers.at_once(prepared, (), ())
            if answer is not None:
                self.send_ready(answer, described=False)
            else:
                await self.run(prepared, (), ())
        self.ready()
        self.flush()

    def send_ready(self, answer: PgAnswer, *, described: bool) -> None:
        if answer.schema is not None and not described:
            self.send(wire.row_description(fields_of(answer.schema)))
        if answer.ready:
            self.send(answer.ready)
        self.send(wire.command_complete(answer.tag))

    async def run(
        self,
        prepared: PreparedStatement,
        parameters: Sequence[Any],
        formats: Sequence[bool],
        portal: Portal | None = None,
        most: int = 0,
    ) -> None:
        """A statement in a thread: its rows are sent as they come, or kept in its portal."""
        loop = asyncio.get_running_loop()

        def work() -> tuple[PgAnswer, int]:
            answering = self.answers
            answer = answering.in_thread(prepared, parameters, formats)
            count = 0
            if answer.schema is not None and portal is None:
                head = wire.row_description(fields_of(answer.schema))
                asyncio.run_coroutine_threadsafe(self._hand_on(head), loop).result()
            for data, rows in answer.rows:
                count += rows
                if portal is not None and most:
                    assert portal.rest is not None
                    portal.rest.append((data, rows))
                    continue
                asyncio.run_coroutine_threadsafe(self._hand_on(data), loop).result()
            return answer, count

        if portal is not None:
            portal.rest = deque()
        answer, count = await loop.run_in_executor(self.server.threads, work)
        if portal is not None and most:
            self._extended.send_part(portal, most)
            return
        self.send(wire.command_complete(f"SELECT {count}" if answer.tag == "SELECT" else answer.tag))

    async def _hand_on(self, data: bytes) -> None:
        """Sends rows, when the client has read most of those before."""
        if self.closing:
            raise ConnectionResetError("the client has gone")
        self.send(data)
        self.flush()
        await self._drained.wait()

    def cancel(self) -> None:
        """Ends the statement that runs."""
        if self.task is not None and self.answering is not None:
            self.answering.session.cancel()

    def overdue(self, now_s: float) -> str:
        """Why the connection has to end; empty: it has not."""
        limits = self.server.limits
        if self.unread_since_s is not None and now_s - self.unread_since_s > limits.unread_s:
            return f"rows were not read for {limits.unread_s:g} s"
        if self.user is None and now_s - self.began_s > limits.unfinished_s:
            return f"nobody was named within {limits.unfinished_s:g} s"
        if limits.idle_s and self.task is None and now_s - self.seen_s > limits.idle_s:
            return f"nothing was said for {limits.idle_s:g} s"
        return ""


def error_parts(error: HeadraceError) -> dict[str, str]:
    """An error in the parts that clients of Postgres show."""
    code = error.code if isinstance(error, StatementFailed) else "58030" if isinstance(error, StoreError) else INTERNAL
    details = "; ".join(
        f"{name}: {part}" for name, part in (("expected", error.expected), ("found", error.found)) if part
    )
    place = error.place if isinstance(error, StatementFailed) else None
    return {
        "C": code, "M": error.what, "D": details, "H": error.next_move, "P": "" if place is None else str(place + 1),
    }  # fmt: skip
