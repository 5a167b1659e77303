"""One fsync for all who wait: a thread that appends, round by round, what requests have handed in meanwhile.

While the disk makes one round durable, the requests of the next gather. So many senders share the cost of an fsync,
and a single one waits for nothing but its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Final

from headrace.ingest.log import Append, AppendedEvents, Log, Outcome
from headrace.ingest.partition import WriteFailed

_log: Final = logging.getLogger("headrace.ingest")
RETAIN_EVERY_S: Final = 10.0

_Waiting = tuple[Append, "asyncio.Future[AppendedEvents]"]


class Committer:
    """Appends for an event loop; the log is used by its thread alone."""

    def __init__(self, log: Log, *, retain_every_s: float = RETAIN_EVERY_S) -> None:
        self.log = log
        self.rounds = 0
        self.requests = 0
        self.broken = asyncio.Event()
        """Set when nothing can be written any more."""
        self._retain_every_s = retain_every_s
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Called on the loop for which it appends."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, args=(loop,), name="headrace-commit", daemon=True)
        self._thread.start()

    async def append(self, append: Append) -> AppendedEvents:
        """Comes back when the events are durable. Raises `WriteFailed` or `KeyReused`: then nothing was appended."""
        future: asyncio.Future[AppendedEvents] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._stopping:
                raise WriteFailed(OSError("the server is stopping"), broken=False)
            self._waiting.append((append, future))
            self._changed.notify()
        return await future

    async def stop(self) -> None:
        """Appends what was handed in before, and ends."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # --- the thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        retained = time.monotonic()
        while True:
            with self._changed:
                if not self._waiting and not self._stopping:
                    self._changed.wait(self._retain_every_s)
                waiting, self._waiting = self._waiting, []
                stopping = self._stopping
            if waiting:
                outcomes = self._round([append for append, _ in waiting])
                loop.call_soon_threadsafe(self._deliver, waiting, outcomes)
            elif stopping:
                return
            if time.monotonic() - retained >= self._retain_every_s:
                retained = time.monotonic()
                self.log.retain()

    def _round(self, appends: list[Append]) -> list[Outcome]:
        self.rounds += 1
        self.requests += len(appends)
        if self.log.broken is not None:
            return [self.log.broken] * len(appends)
        try:
            return self.log.append(appends)
        except Exception as error:
            # Whatever it was: what stands in the files is known only after a new start.
            _log.exception("events could not be appended")
            self.log.broken = WriteFailed(OSError(str(error)), broken=True)
            return [self.log.broken] * len(appends)

    # --- on the loop

    def _deliver(self, waiting: list[_Waiting], outcomes: list[Outcome]) -> None:
        for (_, future), outcome in zip(waiting, outcomes):
            if future.done():
                continue
            if isinstance(outcome, AppendedEvents):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
        if self.log.broken is not None:
            self.broken.set()
