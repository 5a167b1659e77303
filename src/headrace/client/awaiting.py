"""Doing what steps wish for in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, NamedTuple

from typing_extensions import TypeVar

from headrace.client.blocking import READ_BYTES
from headrace.client.steps import Lost, Open, Pause, Read, Silent, Steps, Wish, Write

T = TypeVar("T")


class Streams(NamedTuple):
    """A connection of asyncio."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        # The loop may be gone already where a client outlives it.
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.close()


class Awaiting:
    """Streams of asyncio. Any number of tasks may run steps at the same time."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def run(self, steps: Steps[T]) -> T:
        answer: Any = None
        lost: Lost | None = None
        try:
            while True:
                wish = steps.send(answer) if lost is None else steps.throw(lost)
                answer, lost = None, None
                try:
                    answer = await self._do(wish)
                except TimeoutError:
                    lost = Silent("nothing came in time")
                except OSError as error:
                    lost = Lost(str(error) or type(error).__name__)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    async def _do(self, wish: Wish) -> Any:
        match wish:
            case Write(Streams(_, writer), data, timeout_s):
                async with asyncio.timeout(timeout_s):
                    writer.write(data)
                    await writer.drain()
            case Read(Streams(reader, _), timeout_s):
                async with asyncio.timeout(timeout_s):
                    return await reader.read(READ_BYTES)
            case Open(server, timeout_s):
                tls = (self._tls or ssl.create_default_context()) if server.secure else None
                async with asyncio.timeout(timeout_s):
                    return Streams(*await asyncio.open_connection(server.host, server.port, ssl=tls))
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None
