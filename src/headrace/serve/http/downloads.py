"""Answers that take their time: whole states and streams of events. A client that stops reading is let go.

While an answer is on its way the snapshot it is made from stays open; so a stream that nobody takes from ends after
`Limits.unread_s`, and only so many may be on their way at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from headrace.serve.http.asking import Asked
from headrace.serve.http.exporting import FORMATS
from headrace.serve.http.jobs import Jobs, RequestedState


class Stream(StreamingResponse):
    """A body that is made while it is sent."""

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        headers: dict[str, str],
        content_type: str,
        *,
        unread_s: float,
        on_end: Callable[[], None],
    ) -> None:
        """``unread_s``: how long the client may leave a part of it unread."""
        super().__init__(parts, 200, headers, content_type)
        self._parts = parts
        self._on_end = on_end
        self._unread_s = unread_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            async with asyncio.timeout(self._unread_s):
                await send(message)

        try:
            await super().__call__(scope, receive, patient)
        finally:
            self._on_end()
            close = getattr(self._parts, "aclose", None)
            if close is not None:
                await close()


def download(jobs: Jobs, asked: Asked, found: RequestedState, format: str) -> Response:
    """A whole state. What can go wrong with the request goes wrong before the first byte."""
    form = FORMATS[format]
    name = f"{found.snapshot.app}-{found.table.address}-{found.snapshot.epoch}.{form.suffix}"
    safe = "".join(char if (char.isalnum() and char.isascii()) or char in "-_." else "_" for char in name)
    headers = {**found.headers, "Content-Disposition": f'attachment; filename="{safe}"'}
    if asked.method == "HEAD":
        return Response(None, 200, headers, form.content_type)
    jobs.begin_download()
    parts = _in_threads(jobs, form.write(found.table, asked.text("prefix")))
    return Stream(parts, headers, form.content_type, unread_s=jobs.limits.unread_s, on_end=jobs.end_download)


async def _in_threads(jobs: Jobs, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        part = await jobs.in_thread(next, parts, b"")
        if not part:
            return
        yield part
