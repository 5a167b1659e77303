"""What a client does, apart from how it waits: steps that ask for input and output, driven by a thread or by a loop.

Everything a client decides (what to ask, whom to ask next, what an answer means) is written once, as generators that
yield what they want done and are sent what came of it. `blocking` and `awaiting` do these things.

======  ===============================================  =========================================
wish    what is done                                     what is sent back
======  ===============================================  =========================================
Open    a connection to a server is made                 the `Line`
Write   all of the bytes are sent                        None
Read    waits for bytes                                  the bytes; empty: the other side is gone
Pause   some time passes                                 None
======  ===============================================  =========================================

Whatever goes wrong with a connection is thrown into the steps as `Lost`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from typing_extensions import TypeVar

T = TypeVar("T")


class Server(NamedTuple):
    """Where to ask, and as whom."""

    scheme: str
    """``redis``, ``rediss``, ``http`` or ``https``."""
    host: str
    port: int
    user: str = ""
    token: str = ""

    @property
    def secure(self) -> bool:
        return self.scheme in ("rediss", "https")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class Line(Protocol):
    """An open connection; whoever drives the steps knows what it is."""

    def close(self) -> None:
        """At once, without waiting for anything."""


class Open(NamedTuple):
    server: Server
    timeout_s: float


class Write(NamedTuple):
    line: Line
    data: bytes
    timeout_s: float


class Read(NamedTuple):
    line: Line
    timeout_s: float


class Pause(NamedTuple):
    seconds: float


Wish = Open | Write | Read | Pause
Steps = Generator[Wish, Any, T]


class Lost(Exception):
    """The connection failed, or nothing came in time: worth trying elsewhere or again."""


class Silent(Lost):
    """Nothing came in time; the connection may still be good."""


class Behind(Exception):
    """The server has not come as far as this client has seen already: worth trying elsewhere or again."""
