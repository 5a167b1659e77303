"""Requests in flight: an event loop on a thread of its own, and pools that keep it busy but not too busy.

Two threads meet here. The task's thread submits, waits and takes answers; the loop's thread makes the requests and puts
answers down. What they share is guarded by the one lock of the service. Rows leave an operator on the task's thread
only, so nothing downstream ever sees the loop.

What a task left behind when it was given up is cancelled by `RequestPool.drop`. What an epoch leaves open on purpose
stays in flight as an orphan, known by the content of its row: whoever meets the same row again in this process, in the
next epoch or after the epoch failed, takes it over; otherwise the request is made again.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from headrace.model.requests import AsyncFunction, RequestPlan
from headrace.model.time import format_span

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

_LOOK_S: Final = 1.0
"""How often whoever waits for an answer looks whether there is still somebody to give it."""
ORPHAN_EPOCHS: Final = 8
"""For how many epochs an open request waits for its row: it may have gone to another worker."""


class LoopThread:
    """An event loop that runs until this object is closed, or nobody holds it any more."""

    def __init__(self, factory: LoopFactory) -> None:
        self.loop = factory()
        self._thread = threading.Thread(target=_run_loop, args=(self.loop,), name="headrace-requests", daemon=True)
        self._thread.start()
        # An operator that a failed task leaves behind is never closed.
        self._stop = weakref.finalize(self, self.loop.call_soon_threadsafe, self.loop.stop)
        self._stop.atexit = False

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end on the loop, and gives back what it gives."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        if self._stop.detach() is not None and self.alive:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(_settle(loop))
        loop.close()


async def _settle(loop: asyncio.AbstractEventLoop) -> None:
    rest = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    await asyncio.gather(*rest, return_exceptions=True)
    await loop.shutdown_asyncgens()


class RequestAnswer(NamedTuple):
    """What came of a request: a value, or the error of its last try."""

    id: int
    value: Any
    error: BaseException | None


class _Flight:
    """One request on its way. Its pool is None while nobody waits for it."""

    __slots__ = ("answer", "dead", "epoch", "id", "pool", "task")

    def __init__(self, number: int, pool: RequestPool) -> None:
        self.id = number
        self.pool: RequestPool | None = pool
        self.task: asyncio.Task[RequestAnswer] | None = None
        self.answer: RequestAnswer | None = None
        self.epoch = 0
        self.dead = False
        """Nobody will ever ask for it."""


class RequestService:
    """One step's function in this process: its loop, and what it opened; shared by all operators of the step."""

    def __init__(self, plan: RequestPlan, factory: LoopFactory) -> None:
        # A copy: what is opened belongs to this loop, and the object in the user's program stays as it is.
        self.fn = copy(plan.fn) if isinstance(plan.fn, AsyncFunction) else plan.fn
        self.lock = threading.Condition()
        self.orphans: dict[bytes, list[_Flight]] = {}
        self._factory = factory
        self._users = 0
        self._thread: LoopThread | None = None

    @property
    def call(self) -> Callable[[Any], Any]:
        return self.fn.call if isinstance(self.fn, AsyncFunction) else self.fn

    @property
    def thread(self) -> LoopThread:
        assert self._thread is not None, "requests were made before the step was opened"
        return self._thread

    def enter(self) -> None:
        """One more operator uses it; the first opens it."""
        if self._thread is None:
            self._thread = LoopThread(self._factory)
            if isinstance(self.fn, AsyncFunction):
                self._thread.run(self.fn.open())
        self._users += 1

    def leave(self) -> None:
        """One fewer; the last closes it."""
        self._users -= 1
        if self._users == 0 and self._thread is not None:
            self.forget(None)
            try:
                if isinstance(self.fn, AsyncFunction):
                    self._thread.run(self.fn.close())
            finally:
                self._thread.close()
                self._thread = None

    def forget(self, before_epoch: int | None) -> None:
        """Cancels open requests that nobody has asked for since that epoch; None: all of them."""
        with self.lock:
            old = []
            for content, flights in list(self.orphans.items()):
                kept = [each for each in flights if before_epoch is not None and each.epoch >= before_epoch]
                old += [flight for flight in flights if flight not in kept]
                self.orphans[content] = kept
                if not kept:
                    del self.orphans[content]
        if old:
            self.thread.loop.call_soon_threadsafe(_cancel, old)


def service_of(plan: RequestPlan, factory: LoopFactory = asyncio.new_event_loop) -> RequestService:
    """The service of a step in this process."""
    service: RequestService = plan.shared.setdefault("service", RequestService(plan, factory))
    return service


def _cancel(flights: Iterable[_Flight]) -> None:
    """On the loop's thread; those that have not begun never will."""
    for flight in flights:
        flight.dead = True
        if flight.task is not None:
            flight.task.cancel()


class RequestPool:
    """The requests of one operator, at most so many at once, each within its time and with its retries."""

    def __init__(self, plan: RequestPlan, service: RequestService) -> None:
        self._plan = plan
        self._service = service
        self._lock = service.lock
        # The loop's thread only:
        self._waiting: deque[tuple[_Flight, Any]] = deque()
        self._running = 0
        # Guarded by the lock:
        self._open: dict[int, _Flight] = {}
        self._answers: list[RequestAnswer] = []
        self._failed = False

    # --- the task's thread

    def submit(self, requests: Iterable[tuple[int, Any]]) -> None:
        """Queues requests, each with a number that tells its answer."""
        queued = [(_Flight(number, self), row) for number, row in requests]
        with self._lock:
            self._open.update((flight.id, flight) for flight, _ in queued)
        self._service.thread.loop.call_soon_threadsafe(self._enqueue, queued)

    def adopt(self, number: int, content: bytes) -> bool:
        """Takes over an open request for a row of this content, if there is one."""
        with self._lock:
            flights = self._service.orphans.get(content)
            if not flights:
                return False
            flight = flights.pop(0)
            if not flights:
                del self._service.orphans[content]
            flight.id, flight.pool = number, self
            if flight.answer is None:
                self._open[number] = flight
            else:
                self._put(flight.answer._replace(id=number))
        return True

    def wait(self, at_most: int, *, until_failure: bool, timeout_s: float | None = None) -> None:
        """Until no more than so many requests are open, or, if asked for, one has failed or the time is up."""

        def done() -> bool:
            return len(self._open) <= at_most or (until_failure and self._failed)

        with self._lock:
            while not self._lock.wait_for(done, timeout=timeout_s or _LOOK_S) and timeout_s is None:
                if not self._service.thread.alive:
                    raise RuntimeError("the event loop was stopped by something that ran on it")

    def take(self) -> list[RequestAnswer]:
        """The answers since they were last taken, in the order they came."""
        with self._lock:
            answers, self._answers = self._answers, []
            self._failed = False
        return answers

    def drop(self) -> None:
        """Forgets all requests; those in flight are cancelled."""
        with self._lock:
            dropped = list(self._open.values())
            for flight in dropped:
                flight.pool = None
            self._open, self._answers, self._failed = {}, [], False
        if dropped:
            self._service.thread.loop.call_soon_threadsafe(_cancel, dropped)

    @property
    def open(self) -> list[int]:
        """The numbers of the requests that have no answer yet."""
        with self._lock:
            return list(self._open)

    def release(self, contents: Mapping[int, bytes], epoch: int) -> None:
        """Leaves these open requests in flight, for whoever meets their rows again.

        One that is answered by now is answered for them.
        """
        with self._lock:
            left = [(flight, contents[number]) for number, flight in self._open.items() if number in contents]
            answered = [answer for answer in self._answers if answer.id in contents]
            self._answers = [answer for answer in self._answers if answer.id not in contents]
            self._failed = any(answer.error is not None for answer in self._answers)
            for flight, content in left:
                del self._open[flight.id]
                flight.pool, flight.epoch = None, epoch
                self._service.orphans.setdefault(content, []).append(flight)
            for answer in answered:
                flight = _Flight(answer.id, self)
                flight.pool, flight.answer, flight.epoch = None, answer, epoch
                self._service.orphans.setdefault(contents[answer.id], []).append(flight)

    def _put(self, answer: RequestAnswer) -> None:
        """With the lock held."""
        self._answers.append(answer)
        self._failed = self._failed or answer.error is not None
        self._lock.notify_all()

    # --- the loop's thread

    def _enqueue(self, queued: list[tuple[_Flight, Any]]) -> None:
        self._waiting.extend(queued)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._running < self._plan.capacity:
            flight, row = self._waiting.popleft()
            if flight.dead:
                continue
            self._running += 1
            flight.task = self._service.thread.loop.create_task(self._serve(flight, row))
            flight.task.add_done_callback(partial(self._ended, flight))

    def _ended(self, flight: _Flight, task: asyncio.Task[RequestAnswer]) -> None:
        # Not at the end of the coroutine: one that is cancelled before it began never comes there.
        cancelled = RequestAnswer(flight.id, None, asyncio.CancelledError()) if task.cancelled() else None
        self._running -= 1
        self._fill()
        with self._lock:
            flight.answer = cancelled or task.result()
            if flight.pool is not None:
                del flight.pool._open[flight.id]
                flight.pool._put(flight.answer._replace(id=flight.id))

    async def _serve(self, flight: _Flight, row: Any) -> RequestAnswer:
        try:
            return RequestAnswer(flight.id, await self._within_time(row), None)
        except BaseException as error:  # also one that would end the loop: the task's thread waits for an answer
            return RequestAnswer(flight.id, None, error)

    async def _within_time(self, row: Any) -> Any:
        limit = asyncio.timeout(self._plan.timeout_us / 1e6)
        try:
            async with limit:
                return await self._until_done(row)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"no answer within timeout={format_span(self._plan.timeout_us)!r}") from error

    async def _until_done(self, row: Any) -> Any:
        retry, call, tried = self._plan.retry, self._service.call, 0
        while True:
            tried += 1
            try:
                got = await call(row)
            except Exception as error:
                if not retry.again(tried, failed=error):
                    raise
            else:
                if not retry.again(tried, got=got):
                    return got
            await asyncio.sleep(retry.pause_s(tried))
