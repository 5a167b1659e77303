"""Who was refused what, and why: one line each in the log ``headrace.audit``, and never so many that they fill a disk.

A host that is refused over and over (a flood, a client in a loop) is written down as long as it stays within
`LINES_PER_SECOND`, after a first burst of `LINES_AT_ONCE`. What is beyond is counted, and the number told with the next
line, or when the flood is over. Hosts are counted one by one, so that nobody hides behind the noise of another.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

LINES_PER_SECOND: Final = 10
LINES_AT_ONCE: Final = 1000
MOST_HOSTS: Final = 1000
"""So many are told apart; who was not refused for the longest time is forgotten first."""

log: Final = logging.getLogger("headrace.audit")


def audit(peer: str, user: str, request: str, reason: str) -> None:
    """One line for a request that was refused: who, what, why."""
    log.warning("refused %s from %s (user %s): %s", _line(request), peer, user or "-", _line(reason))


class Trail:
    """The lines of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    def refused(self, peer: str, user: str, request: str, reason: str) -> None:
        """Writes down a refused request. ``peer``: a host, or a host with a port behind a colon."""
        name = peer.rpartition(":")[0] or peer
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = _Host(name, self._clock())
            while len(self._hosts) > MOST_HOSTS:
                self._hosts.popitem(last=False)[1].tell_left_out()
        self._hosts.move_to_end(name)
        if host.may_write(self._clock()):
            host.tell_left_out()
            audit(peer, user, request, reason)
        else:
            host.left_out += 1

    def catch_up(self) -> None:
        """Tells of what was left out, where that is over; called now and then."""
        for host in self._hosts.values():
            if host.left_out and host.may_write(self._clock()):
                host.tell_left_out()


class _Host:
    def __init__(self, name: str, now_s: float) -> None:
        self.left_out = 0
        self._name = name
        self._lines = float(LINES_AT_ONCE)
        self._seen_s = now_s

    def may_write(self, now_s: float) -> bool:
        self._lines = min(float(LINES_AT_ONCE), self._lines + (now_s - self._seen_s) * LINES_PER_SECOND)
        self._seen_s = now_s
        if self._lines < 1:
            return False
        self._lines -= 1
        return True

    def tell_left_out(self) -> None:
        if self.left_out:
            log.warning("refused %d further requests from %s, too many for a line each", self.left_out, self._name)
            self.left_out = 0


def _line(text: str) -> str:
    """What a client sent, on one line of bounded length."""
    clean = "".join(char if char.isprintable() else "?" for char in text[:200])
    return clean if len(text) <= 200 else clean + "…"
