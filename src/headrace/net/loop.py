"""The event loop of a server process: uvloop where it is installed, signals that end it, and few pauses."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final

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
        asyncio.run(work)
    else:
        uvloop.run(work)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Sets ``stop`` on SIGINT and SIGTERM, where signals can be handled: in the main thread."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
