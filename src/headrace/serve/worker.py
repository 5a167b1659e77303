"""One server process as a child: what `headrace.serve.processes` starts. Ends with its parent, or when told to.

Its options come as JSON in its first argument; what it has to say goes to standard output, an object per line. Standard
input is the parent's hand: when it closes, for whatever reason, the child ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from typing import Any

import msgspec

from headrace.net.loop import run_server
from headrace.serve.serving import Options, serve_alone


def main(said: str) -> None:
    options = msgspec.json.decode(said, type=Options)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    run_server(_serve(options))


async def _serve(options: Options) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hand_moved() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            stop.set()

    loop.add_reader(0, hand_moved)
    await serve_alone(options, _tell, stop, shared=True)


def _tell(told: dict[str, Any]) -> None:
    # A parent that has gone cannot be told, and needs not.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
