"""One state behind a server, as a read-only mapping: what `hr.Store` gives, of a job on another machine.

Unlike a view of a store, which stays with one epoch, these follow the job: each request is answered from the newest
epoch of the server, never from one older than an answer before. All keys of one `get_many` are of one epoch (up to
10,000 keys), and so is a whole DataFrame over HTTP; a walk with `scan` goes page by page, and gives each key that is
there all the time once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, cast

import pyarrow as pa
from typing_extensions import TypeVar

from headrace.client.requests import Requests, Watching
from headrace.client.steps import Awaiting, Blocking
from headrace.model.time import Timestamp
from headrace.model.window import Window
from headrace.read.columns import frame_of, names_of, no_rows, pieces_of, polars_frame, row_pieces
from headrace.read.ranges import Moment, moment_us
from headrace.read.shape import Kind

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from headrace.client.answers import OlderVersion

V = TypeVar("V", default=Any)


class _StateAnswer:
    """What the newest answer about a state is of. Nobody is asked for that: an answer brings it along."""

    _requests: Requests

    @property
    def epoch(self) -> int:
        """The epoch of the newest answer about this state; −1 before the first."""
        told = self._requests.info
        return -1 if told is None else told.epoch

    @property
    def age(self) -> timedelta | None:
        """How long ago that epoch was published, as of now; None before the first answer.

        >>> if (hourly.age or timedelta()) > timedelta(minutes=1):         # doctest: +SKIP
        ...     print("what is shown is not of this minute")
        """
        told = self._requests.info
        return None if told is None else timedelta(seconds=told.age_s)

    @property
    def watermark(self) -> Timestamp | None:
        """How far event time had come in the step, in that epoch; None before the first answer, and without event time.

        >>> window, row = hourly.windows("tweet-42").popitem()              # doctest: +SKIP
        >>> complete = hourly.watermark >= window.end                       # doctest: +SKIP
        """
        told = self._requests.info
        return None if told is None or told.watermark_us is None else Timestamp(told.watermark_us)

    @property
    def older_version(self) -> OlderVersion | None:
        """Whether the newest answer has a value of a type that the state had before, and of which version of the step.

        Of several values that of the oldest. None where all are of the newest type, and before the first answer.

        >>> homes["ann"], homes.older_version                               # doctest: +SKIP
        ({'city': 'Rome'}, OlderVersion(version=0, newest=1))
        """
        told = self._requests.info
        return None if told is None else told.older


class ServedView(_StateAnswer, Mapping[Any, V], Generic[V]):
    """The state of every key, as the server knows it now. Made by ``hr.Client(…).state(…)``.

    >>> hourly = client.state("hourly", Hourly)                            # doctest: +SKIP
    >>> hourly["tweet-42"].impressions                                     # doctest: +SKIP
    17
    >>> hourly.epoch, hourly.age, hourly.watermark                         # doctest: +SKIP
    (41, datetime.timedelta(microseconds=730000), 1704114000000000)
    """

    def __init__(self, io: Blocking, requests: Requests) -> None:
        self._io = io
        self._requests = requests
        self._kind: Kind | None = None
        self.address = requests.address
        """``step`` or ``step.state``."""

    def __repr__(self) -> str:
        return f"ServedView({self.address!r})"

    @property
    def kind(self) -> Kind:
        """``value``, ``map``, ``list``, ``timers`` or ``windows``."""
        if self._kind is None:
            kind: Kind = self._io.run(self._requests.kind())
            self._kind = kind
        return self._kind

    def __getitem__(self, key: Any) -> V:
        [found] = self._io.run(self._requests.get_many([key]))
        if found is None:
            raise KeyError(key)
        return cast(V, found)

    def __contains__(self, key: object) -> bool:
        return self._io.run(self._requests.get_many([key]))[0] is not None

    def get_many(self, keys: Iterable[Any]) -> list[V | None]:
        """The values of several keys in the order asked, None where there is none; one request."""
        return self._io.run(self._requests.get_many(list(keys)))

    def windows(self, key: Any) -> dict[Window, V]:
        """Every window of a key that is kept, in the order of their ends, with its result."""
        return self._io.run(self._requests.windows(key))

    def between(self, key: Any, start: Moment | None = None, end: Moment | None = None) -> dict[Window, V]:
        """The windows of a key that lie between two times, in the order of their ends: open, kept and archived ones.

        Up to 10,000 of them are of one epoch. Raises where the archive cannot be read, rather than leaving some out.
        """
        return self._io.run(self._requests.between(key, (moment_us(start), moment_us(end))))

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.scan())

    def __len__(self) -> int:
        return self._io.run(self._requests.count())

    def scan(self, prefix: str = "") -> Iterator[tuple[Any, V]]:
        """(key, value) of every key whose text starts with the prefix, fetched page by page."""
        after: str | None = ""
        while after is not None:
            entries, after = self._io.run(self._requests.page(prefix, after))
            yield from entries

    def watch(self, key: Any) -> Iterator[V | None]:
        """The value of a key now, and again whenever it changed; None while there is none. Does not end by itself.

        Of changes that follow each other faster than they are taken, the last one is given.
        """
        watching = Watching(self._requests, key)
        try:
            while True:
                yield self._io.run(watching.next())
        finally:
            watching.close()

    def to_polars(self) -> pl.DataFrame:
        """The whole state as a DataFrame of polars, with the columns that ``hr.Store`` gives it."""
        kind = self.kind
        typed = self._requests.value_type not in (None, Any)
        if kind == "windows" or not typed:
            arrow = self._io.run(self._requests.arrow())
            if arrow is not None:
                return arrow_frame(arrow)
        if kind == "windows":
            plain: ServedView[Any] = ServedView(self._io, self._requests.untyped())
            return frame_of(
                row_pieces(row for key in plain for row in plain.windows(key).values()), no_rows(names_of(kind))
            )
        return frame_of(pieces_of(kind, self.scan(), self._requests.value_type), no_rows(names_of(kind)))

    def to_pandas(self) -> pd.DataFrame:
        """The same as a DataFrame of pandas."""
        return self.to_polars().to_arrow().to_pandas()


class AsyncServedView(_StateAnswer, Generic[V]):
    """The same for programs that await. Made by ``hr.AsyncClient(…).state(…)``."""

    def __init__(self, io: Awaiting, requests: Requests) -> None:
        self._io = io
        self._requests = requests
        self.address = requests.address
        """``step`` or ``step.state``."""

    def __repr__(self) -> str:
        return f"AsyncServedView({self.address!r})"

    async def kind(self) -> Kind:
        """``value``, ``map``, ``list``, ``timers`` or ``windows``."""
        return await self._io.run(self._requests.kind())

    async def get(self, key: Any, default: V | None = None) -> V | None:
        """The value of a key."""
        [found] = await self._io.run(self._requests.get_many([key]))
        return default if found is None else found

    async def get_many(self, keys: Iterable[Any]) -> list[V | None]:
        """The values of several keys in the order asked, None where there is none; one request."""
        return await self._io.run(self._requests.get_many(list(keys)))

    async def windows(self, key: Any) -> dict[Window, V]:
        """Every window of a key that is kept, in the order of their ends, with its result."""
        return await self._io.run(self._requests.windows(key))

    async def between(self, key: Any, start: Moment | None = None, end: Moment | None = None) -> dict[Window, V]:
        """The windows of a key that lie between two times, in the order of their ends: open, kept and archived ones."""
        return await self._io.run(self._requests.between(key, (moment_us(start), moment_us(end))))

    async def count(self) -> int:
        """How many keys there are."""
        return await self._io.run(self._requests.count())

    async def scan(self, prefix: str = "") -> AsyncIterator[tuple[Any, V]]:
        """(key, value) of every key whose text starts with the prefix, fetched page by page."""
        after: str | None = ""
        while after is not None:
            entries, after = await self._io.run(self._requests.page(prefix, after))
            for entry in entries:
                yield entry

    async def watch(self, key: Any) -> AsyncIterator[V | None]:
        """The value of a key now, and again whenever it changed; None while there is none. Does not end by itself."""
        watching = Watching(self._requests, key)
        try:
            while True:
                yield await self._io.run(watching.next())
        finally:
            watching.close()

    async def to_polars(self) -> pl.DataFrame:
        """The whole state as a DataFrame, with the columns that ``hr.Store`` gives it."""
        kind = await self.kind()
        typed = self._requests.value_type not in (None, Any)
        if kind == "windows" or not typed:
            arrow = await self._io.run(self._requests.arrow())
            if arrow is not None:
                return arrow_frame(arrow)
        if kind == "windows":
            plain: AsyncServedView[Any] = AsyncServedView(self._io, self._requests.untyped())
            found = [await plain.windows(key) async for key, _ in plain.scan()]
            return frame_of(row_pieces(row for windows in found for row in windows.values()), no_rows(names_of(kind)))
        pairs = [pair async for pair in self.scan()]
        return frame_of(pieces_of(kind, pairs, self._requests.value_type), no_rows(names_of(kind)))

    async def to_pandas(self) -> pd.DataFrame:
        """The same as a DataFrame of pandas."""
        return (await self.to_polars()).to_arrow().to_pandas()


def arrow_frame(arrow: bytes) -> pl.DataFrame:
    """A stream of Arrow as a DataFrame."""
    with pa.ipc.open_stream(arrow) as stream:
        return polars_frame(stream.read_all())
