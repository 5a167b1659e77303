"""Ending a connection whose other side does not read: at once, and without leaving anything behind.

Closing alone would leave megabytes with the system, which goes on offering them to a client that takes nothing, or
takes them slowly, long after the server has forgotten it. A reset drops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

_DROP: Final = struct.pack("ii", 1, 0)
"""For ``SO_LINGER``: closing waits for nothing, and sends nothing but a reset."""


def cut_off(transport: asyncio.Transport) -> None:
    """Ends a connection; what was not sent yet never will be."""
    line = transport.get_extra_info("socket")
    # One that has ended already has nothing left to drop.
    with contextlib.suppress(OSError, AttributeError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)
    transport.abort()
