"""How requests to the outside are made: how many at once, for how long, how often again. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

Wait = Literal["epoch", "carry"]

CARRIED: Final = "carried"
"""The outlet of rows whose requests an epoch left open."""


class AsyncFunction(Generic[In, Out]):
    """A function that awaits, with something to open and close: a client, a pool of connections.

    An instance is made in your program and shipped to the workers. `open` and `close` run once per worker, on the event
    loop that `call` runs on.

    >>> import headrace as hr
    >>> class Shop(hr.Record):
    ...     name: str
    >>> class Shops(hr.AsyncFunction[str, Shop]):
    ...     async def open(self) -> None:
    ...         self.names = {"s1": "Corner shop"}      # a client that is opened once
    ...     async def call(self, row: str) -> Shop:
    ...         return Shop(self.names[row])            # usually: await self.client.get(…)
    """

    output: Any = None
    """The type of what `call` gives, where an instance knows it and the class does not say."""

    async def open(self) -> None:
        """Once per worker, before the first request."""

    async def call(self, row: In) -> Out:
        """One request. Many run at the same time, and one may be made again after a crash."""
        raise NotImplementedError

    async def close(self) -> None:
        """Once per worker when it ends in an orderly way."""


@dataclass(frozen=True)
class Retry:
    """When and how often a request is made again; made by ``hr.retry``."""

    times: int = 0
    wait_us: int = 0
    factor: float = 1.0
    when: Callable[[Any], bool] | None = None
    """Of an exception or a result; None: every exception."""

    def again(self, tried: int, *, failed: Exception | None = None, got: Any = None) -> bool:
        """Whether to try again after so many tries, the last of which failed or gave a result."""
        if tried > self.times:
            return False
        if self.when is None:
            return failed is not None
        return bool(self.when(failed if failed is not None else got))

    def pause_s(self, tried: int) -> float:
        """How long to wait before the next try."""
        return self.wait_us / 1e6 * self.factor ** (tried - 1)


@dataclass(frozen=True)
class CachePlan:
    """How long answers serve, by the wall clock of epochs, and how many a worker keeps."""

    for_us: int
    size: int
    none: bool
    """Whether it also remembers that there was nothing."""


@dataclass(frozen=True, eq=False)
class RequestPlan:
    """A step that makes requests. Compared by identity: a process keeps one client for all operators of a step."""

    fn: Any
    """An `AsyncFunction`, or a function of a row that returns something to await."""
    capacity: int = 100
    """Requests in flight, per task."""
    timeout_us: int = 10_000_000
    """For one row, all its tries together."""
    retry: Retry = Retry()
    ordered: bool = True
    wait: Wait = "epoch"
    shared: dict[str, Any] = field(default_factory=dict, repr=False)
    """What this process keeps for the step; it does not travel."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "shared": {}}
