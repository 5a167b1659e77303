"""One state of one published epoch, as a read-only mapping from key to value: a reader for people.

A view never changes: it is of one epoch. Ask the `Store` for a new view to see a newer one. What it answers, the
reader does (`headrace.read.reader`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic

from typing_extensions import TypeVar

from headrace.errors import ProgramError
from headrace.model.keys import encode_key
from headrace.read.windows import WindowReader

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from headrace.model.window import Window
    from headrace.read.ranges import Moment
    from headrace.read.reader import Reader
    from headrace.read.shape import Kind
    from headrace.read.stored_version import StoredVersion

V = TypeVar("V", default=Any)

_SHOWN_ROWS: Final = 10
_SHOWN_CHARS: Final = 200


class StateView(Mapping[Any, V], Generic[V]):
    """The state of every key, as it was when the epoch was published.

    Made by ``hr.Store(path).state(…)``. Keys are what the stream was keyed by: text, numbers, tuples. Of a windowed
    state a key's value is the result of its newest window. The length is counted by walking over all keys.

    >>> shops = hr.Store("./state").state("fraud.shops", dict[str, int])     # doctest: +SKIP
    >>> shops["card-7"]                                                      # doctest: +SKIP
    {'baker': 2}
    >>> hourly = hr.Store("./state").state("hourly")                         # doctest: +SKIP
    >>> [window.start for window in hourly.windows("tweet-42")]              # doctest: +SKIP
    [1704110400000000, 1704114000000000]
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __repr__(self) -> str:
        return f"StateView({self.address!r}, {self.kind}, epoch {self.epoch})"

    def _repr_html_(self) -> str:
        """The first rows as a table, for notebooks."""
        rows = list(islice(self.scan(), _SHOWN_ROWS + 1))
        cells = "".join(f"<tr><td>{_cell(key)}</td><td>{_cell(value)}</td></tr>" for key, value in rows[:_SHOWN_ROWS])
        more = "<p>…</p>" if len(rows) > _SHOWN_ROWS else ""
        caption = escape(f"{self.address} ({self.kind}) at epoch {self.epoch}")
        head = "<tr><th>key</th><th>value</th></tr>"
        return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{cells}</tbody></table>{more}"

    @property
    def address(self) -> str:
        """``step`` or ``step.state``."""
        return self._reader.address

    @property
    def epoch(self) -> int:
        """The epoch this view is of."""
        return self._reader.epoch

    @property
    def kind(self) -> Kind:
        """``value``, ``map``, ``list``, ``timers`` or ``windows``."""
        return self._reader.kind

    # --- by key

    def __getitem__(self, key: Any) -> V:
        value = self._reader.value(encode_key(key))
        if value is None:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        return self._reader.value(encode_key(key)) is not None

    def get_many(self, keys: Iterable[Any]) -> list[V | None]:
        """The values of several keys in the order asked, None where there is none; far cheaper than one by one."""
        return self._reader.values([encode_key(key) for key in keys])

    def stored_version(self, key: Any) -> StoredVersion | None:
        """In which version of its step the value of a key was written, and which type it had then.

        None where it is of the newest type, or not there. Of a value in several parts, as a map, that of the oldest.
        """
        return self._reader.stored_version(encode_key(key))

    def windows(self, key: Any) -> dict[Window, V]:
        """Every window of a key that is kept, in the order of their ends, with its result. Of windowed states only."""
        return self._window_reader().windows(encode_key(key))

    def between(self, key: Any, start: Moment | None = None, end: Moment | None = None) -> dict[Window, V]:
        """The windows of a key that lie between two times, in the order of their ends: open, kept and archived ones.

        Raises where the archive cannot be read, rather than leaving some out.
        """
        return self._window_reader().between(encode_key(key), start, end)

    def _window_reader(self) -> WindowReader:
        if isinstance(self._reader, WindowReader):
            return self._reader
        raise ProgramError(
            "this state has no windows",
            where=f"state {self.address}",
            expected="a windowed state",
            found=f"a {self.kind} per key",
            next_move="ask for the key alone: view[key]",
        )

    # --- all of it

    def __iter__(self) -> Iterator[Any]:
        return map(self._reader.decoded, self._reader.keys())

    def __len__(self) -> int:
        return self._reader.count()

    def scan(self, prefix: str = "") -> Iterator[tuple[Any, V]]:
        """(key, value) of every key whose text starts with the prefix; keys that are not text are compared as JSON."""
        return ((self._reader.decoded(key), value) for key, value in self._reader.items(prefix))

    def to_polars(self) -> pl.DataFrame:
        """The whole state as a DataFrame of polars.

        Columns: ``key`` and ``value``; of a map also ``entry``, with a row per entry; of a list also ``index``, with a
        row per element; of timers ``key`` and ``at``; of windows the key's own columns, the window and the results. In
        the place of a ``value`` that is a Record, or the results of an aggregate, stand columns of their own; one that
        is called like a column before it is ``value.NAME``.
        """
        return self._reader.frame()

    def to_pandas(self) -> pd.DataFrame:
        """The same as a DataFrame of pandas."""
        return self._reader.frame().to_arrow().to_pandas()


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return escape(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…")
