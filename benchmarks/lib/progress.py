"""One line per thing that happens, on standard error: tables and JSON alone go to standard output."""

from __future__ import annotations

import sys
import time

_STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {text}", file=sys.stderr, flush=True)
