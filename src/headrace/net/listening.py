"""Ports and their connections: binding, accepting within limits, TLS handshakes, and cutting off.

asyncio counts nothing before a TLS handshake is complete. A client that connects and says nothing would hold a file
descriptor that no limit of a protocol knows of. So this module accepts sockets itself, refuses those that exceed a
limit, and counts a connection from the moment it is accepted.

Invariants
- A port holds at most ``connections`` connections plus `SPARE`, those in a handshake included. The protocol answers the
  spare ones with its own "too many clients"; beyond them a connection is reset without an answer.
- One address has at most ``handshakes_per_address`` TLS handshakes unfinished at a time.
- A handshake that takes longer than ``handshake_s`` ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headrace.errors import SettingsError

_log: Final = logging.getLogger("headrace.net")

BACKLOG: Final = 2048
SPARE: Final = 64
"""So many connections beyond the limit are accepted, to be told that there are too many."""
RESERVED_FILES: Final = 256
"""File descriptors that a server leaves for everything but connections: files of the store, the log, its own pipes."""
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_S: Final = 0.5

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""For ``SO_LINGER``: closing waits for nothing, and sends nothing but a reset."""

Refused = Callable[[str, str], None]
"""Is given the peer of a refused connection, and the reason."""


class Listener:
    """Accepts connections for one protocol."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        open_connections: Callable[[], int],
        refused: Refused,
        *,
        connections: int,
        handshake_s: float,
        handshakes_per_address: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``open_connections``: how many connections the protocol has, those in a handshake not counted."""
        self._make_protocol = make_protocol
        self._open_connections = open_connections
        self._refused = refused
        self._connections = connections
        self._handshake_s = handshake_s
        self._handshakes_per_address = handshakes_per_address
        self._tls = tls
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._handshakes: Counter[str] = Counter()

    @property
    def handshakes(self) -> int:
        """How many connections are accepted and not with the protocol yet."""
        return len(self._opening)

    def start(self, bound: socket.socket) -> None:
        """Begins to accept. When this returns, whoever connects is let in, if only to wait for the loop."""
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._socket = bound
        self._accepting = asyncio.get_running_loop().create_task(self._accept(bound))

    def close(self) -> None:
        """Accepts nobody any more and ends unfinished handshakes; connections of the protocol stay."""
        if self._accepting is not None:
            self._accepting.cancel()
        for task in list(self._opening):
            task.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(bound)
            except OSError as error:
                # A client that was gone again before it was accepted is nothing to wait for.
                if error.errno in _NO_DESCRIPTORS:
                    _log.error("no connection can be accepted: %s", error)
                    await asyncio.sleep(_RETRY_S)
                continue
            reason = self._too_many(_host(address))
            if reason:
                self._refused(_peer(address), reason)
                _reset(accepted)
                continue
            task = loop.create_task(self._open(accepted, address))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _too_many(self, host: str) -> str:
        """Why a connection of this host has to be refused; empty: it has not."""
        if self._open_connections() + len(self._opening) >= self._connections + SPARE:
            return f"more than {self._connections} connections"
        if self._tls is not None and self._handshakes[host] >= self._handshakes_per_address:
            return f"more than {self._handshakes_per_address} unfinished TLS handshakes of one address"
        return ""

    async def _open(self, accepted: socket.socket, address: Any) -> None:
        """Brings a connection through its handshake to the protocol."""
        host = _host(address)
        timeout_s = None if self._tls is None else self._handshake_s
        self._handshakes[host] += 1
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol, accepted, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError) as error:
            if isinstance(error, ConnectionAbortedError):
                self._refused(_peer(address), f"the TLS handshake was not complete within {self._handshake_s:g} s")
            _reset(accepted)
        except asyncio.CancelledError:
            _reset(accepted)
            raise
        finally:
            self._handshakes[host] -= 1
            if not self._handshakes[host]:
                del self._handshakes[host]


def affordable_connections(wanted: int, ports: int) -> int:
    """How many connections each of some ports may have, by the file descriptors that this process may open.

    Raises the process's own limit as far as the system lets it, as Redis does.
    """
    needed = wanted * ports + SPARE * ports + RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    affordable = max(1, (soft - RESERVED_FILES) // ports - SPARE)
    _log.info("%d connections at a time instead of %d: the system allows %d open files", affordable, wanted, soft)
    return affordable


def bind(host: str, port: int, *, shared: bool = False, flag: str = "--port") -> socket.socket:
    """A socket that nobody else has; ``shared``: with others of ours that say the same. ``flag`` chooses another."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise port_error(error, host, port, flag) from None
    return bound


def port_error(error: OSError | OverflowError, host: str, port: int, flag: str) -> SettingsError:
    """Why a port cannot be had, and the way out."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return SettingsError(
            f"the port {port} is in use",
            where=f"{host}:{port}",
            found="another server has it",
            next_move=f"end that one, or choose another port: {flag} {port + 1}",
        )
    return SettingsError(
        "the address cannot be listened on",
        where=f"{host}:{port}",
        expected="an address of this machine, and a port that this user may open",
        found=f"{type(error).__name__}: {error}",
        next_move="choose another address or port; 0.0.0.0 is every address of the machine",
    )


def cut_off(transport: asyncio.Transport) -> None:
    """Ends a connection whose other side does not read; what was not sent yet never will be.

    Closing alone would leave megabytes with the system, which goes on offering them to a client that takes nothing, or
    takes them slowly, long after the server has forgotten it. A reset drops them.
    """
    line = transport.get_extra_info("socket")
    # One that has ended already has nothing left to drop.
    with contextlib.suppress(OSError, AttributeError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def _reset(accepted: socket.socket) -> None:
    """Ends a connection without waiting for the other side."""
    with contextlib.suppress(OSError):
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    accepted.close()


def _host(address: Any) -> str:
    return str(address[0]) if isinstance(address, tuple) and address else "local"


def _peer(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) > 1 else _host(address)


# --- the event loop of a server process


_GC: Final = (50_000, 50, 50)
"""Answers make no garbage that has to be looked for; looking often would only hold everybody up."""
_SWITCH_S: Final = 0.001
"""How long a thread beside the loop may keep it waiting."""


def run_server(work: Coroutine[Any, Any, None]) -> None:
    """Runs on uvloop where it is installed; the standard loop does the same, at half the speed."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC)
    sys.setswitchinterval(_SWITCH_S)
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    try:
        run(work)
    finally:
        # What is frozen is never taken down, and DuckDB says at the end of the process that it was leaked.
        gc.unfreeze()


def stop_on_signals(stop: asyncio.Event) -> None:
    """Sets ``stop`` on SIGINT and SIGTERM, where signals can be handled: in the main thread."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
