"""Whom to ask: connections kept open, servers that fail passed over, and never an answer older than one before.

A request goes to the server that answered last. Where it cannot be reached, is busy, or has not come as far as this
client has seen, the next one is asked, round and round with growing pauses, until the time is up. All requests only
read, so asking again is always safe.

Invariants
- `ClientSession.seen` only grows: whatever server answers, and on whatever connection, time does not go back. For that
  every answer is learned before it is given to anybody. A store that is made anew in the place of another counts from
  the beginning; it is followed, and the one before is not gone back to.
- A connection carries one request at a time, and is closed after anything but a whole answer.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from typing_extensions import TypeVar

from headrace.client.answers import AnswerFacts, AnswerInfo, Version, Wire, all_behind, unreachable
from headrace.client.steps import ConnectionLost, Line, Open, Pause, Server, ServerBehind, Silent, Steps
from headrace.errors import HeadraceError, ProgramError

T = TypeVar("T")

NOTHING: Final = Version(0, -1)
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
KEPT_LINES: Final = 16
"""So many idle connections are kept open."""
CONNECT_S: Final = 3.0
"""A server that does not answer a new connection within this time is passed over for the next."""

MakeWire = Callable[[Server, Line], Wire]


class ClientSession:
    """The connections of one client. May be shared by threads."""

    def __init__(
        self,
        servers: Sequence[Server],
        make_wire: MakeWire,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = tuple(servers)
        self.timeout_s = timeout_s
        self.seen: Version = NOTHING
        """The newest version that an answer was of."""
        self._replaced: set[str] = set()
        """Ids of stores that had the place of the present one before."""
        self._heard: dict[tuple[str, str], AnswerFacts] = {}
        """State, and the moment of the past that was asked for → its newest answer."""
        self._make_wire = make_wire
        self._clock = clock
        self._idle: deque[Wire] = deque()
        self._preferred = 0
        self._lock = Lock()
        self._closed = False

    def heard(self, address: str, at: str = "") -> AnswerInfo | None:
        """What the newest answer about a state said of itself, its age as it is by now; None before the first."""
        heard = self._heard.get((address, at))
        if heard is None:
            return None
        return heard.info._replace(age_s=heard.info.age_s + self._clock() - heard.at_s)

    def learn(self, told: AnswerInfo, address: str = "", at: str = "") -> None:
        """Takes note of what an answer says; `ServerBehind` where it is older than one before.

        ``address``: the state it is about, if it is about one. ``at``: the moment that was asked for: an answer about
        the past is older than others, and tells nothing of the present.
        """
        with self._lock:
            if at:
                self._heard[address, at] = AnswerFacts(told, self._clock())
                return
            store, known = told.version.store, self.seen.store
            if store in self._replaced:
                raise ServerBehind("an answer from a store that another has taken the place of")
            if known not in ("", store):
                self._replaced.add(known)
                self._heard.clear()
            elif told.version.is_before(self.seen):
                raise ServerBehind(f"an answer of epoch {told.epoch}, after one of epoch {self.seen.epoch}")
            self.seen = told.version
            if address:
                self._heard[address, ""] = AnswerFacts(told, self._clock())

    def call(
        self, request: Callable[[Wire, float], Steps[T]], timeout_s: float | None = None, *, own: bool = False
    ) -> Steps[T]:
        """Asks until somebody answers. ``request`` is given a connection and how long it may take.

        ``own``: it is given one of its own, which it keeps when it succeeds.
        """
        allowed_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = self._clock() + allowed_s
        pause_s, failures, last, lost = FIRST_PAUSE_S, 0, "", False
        while True:
            wire = None if own else self._take()
            was_idle = wire is not None
            try:
                if wire is None:
                    wire = yield from self.open(deadline)
                # One that says nothing must leave time for the others.
                answer = yield from request(wire, self._seconds_left(deadline) / (1 if len(self.servers) == 1 else 2))
            except ConnectionLost as loss:
                self._drop(wire)
                if was_idle:
                    # The server closed it while nobody used it; that says nothing of the server itself.
                    continue
                if not last or not isinstance(loss, Silent):
                    # That the time was up says less than what went wrong before.
                    last, lost = str(loss), True
            except ServerBehind as behind:
                last, lost = str(behind), False
                self._give_back(wire)
            except HeadraceError:
                # A whole answer, if not a good one.
                self._give_back(wire)
                raise
            except BaseException:
                self._drop(wire)
                raise
            else:
                if not own:
                    self._give_back(wire)
                return answer
            failures += 1
            self._preferred = (self._preferred + 1) % len(self.servers)
            left_s = deadline - self._clock()
            if left_s <= 0:
                raise (unreachable if lost else all_behind)(self.servers, allowed_s, last)
            if failures % len(self.servers) == 0:
                yield Pause(min(left_s, pause_s * random.uniform(0.5, 1.0)))
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def open(self, deadline: float) -> Steps[Wire]:
        """A new connection to the server that is preferred at the moment."""
        self._check_open()
        server = self.servers[self._preferred]
        line = yield Open(server, min(CONNECT_S, self._seconds_left(deadline)))
        wire = self._make_wire(server, line)
        try:
            yield from wire.hello(min(CONNECT_S, self._seconds_left(deadline)))
        except BaseException:
            line.close()
            raise
        return wire

    def close(self) -> None:
        """Closes all connections that are not in use; those that are follow when they are done."""
        self._closed = True
        while self._idle:
            self._idle.pop().line.close()

    def _seconds_left(self, deadline: float) -> float:
        return max(0.001, deadline - self._clock())

    def _take(self) -> Wire | None:
        """An idle connection to the preferred server."""
        self._check_open()
        with self._lock:
            for wire in reversed(self._idle):
                if wire.server == self.servers[self._preferred]:
                    self._idle.remove(wire)
                    return wire
        return None

    def _give_back(self, wire: Wire | None) -> None:
        if wire is None:
            return
        with self._lock:
            if wire.reusable and not self._closed:
                self._idle.append(wire)
                wire = self._idle.popleft() if len(self._idle) > KEPT_LINES else None
        self._drop(wire)

    def _drop(self, wire: Wire | None) -> None:
        if wire is not None:
            wire.line.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ProgramError(
                "this client was closed",
                where=", ".join(map(str, self.servers)),
                next_move="make a new one, or ask inside of its `with`",
            )
