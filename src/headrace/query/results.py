"""Aggregates as a reader sees them: results instead of accumulators, of rolling steps and of windows kept one by one.

What is stored under a key are accumulators; how they become results stands in the manifest, so that nobody needs the
program for it. An aggregate of the user's own cannot be finished here and is shown as it is stored. A store whose
manifests say nothing of results (they are older) shows accumulators; see `headrace.query.view`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from typing_extensions import TypeVar

from headrace.errors import StoreError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.keys import encode_key
from headrace.model.values import type_name
from headrace.model.window import Window
from headrace.query.finishing import Finisher
from headrace.query.ranges import EVERYTHING, Moment, between, moment_us, read_range
from headrace.query.shape import Kind
from headrace.query.tables import to_frame
from headrace.query.view import StateView

if TYPE_CHECKING:
    import polars as pl

    from headrace.model.job import DeclaredState
    from headrace.query.archive import ArchivedWindows
    from headrace.state.lookup import Layers

V = TypeVar("V", default=Any)

AGGREGATE: Final = "aggregate"
WINDOWS: Final = "windows"
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
PANE: Final = "pane"
PIECE_ROWS: Final = 16_384
ROWS: Final = "rows"
"""How many rows a window holds, where they are kept themselves and only the program knows what they come to."""


def fit_result(row: dict[str, Any], into: Any, address: str) -> Any:
    """A result as the type that was asked for."""
    try:
        return msgspec.convert(row, into)
    except msgspec.ValidationError as error:
        raise misfit(into, address, str(error)) from error


def misfit(into: Any, address: str, found: str) -> StoreError:
    """The error where results are not what somebody takes them for."""
    return StoreError(
        "a result does not fit the type it was asked for as",
        where=f"state {address}",
        expected=type_name(into),
        found=found,
        next_move="ask for the type of the step's rows, or for none to get plain Python",
    )


class AggregateView(StateView[V]):
    """Results per key of a step that aggregates, as they were when the epoch was published."""

    def __init__(
        self,
        layers: Layers,
        table: str,
        *,
        declared: DeclaredState,
        address: str,
        epoch: int,
        now_us: int | None,
        value: Any = None,
        key: Any = None,
    ) -> None:
        super().__init__(layers, table, address=address, epoch=epoch, now_us=now_us, key=key)
        self.finisher = Finisher(declared.results, declared.key)
        self._into = value
        self.tells_pane = declared.pane or PANE in getattr(value, "__struct_fields__", ())
        """Whether results say if they come before, at or after the end of their window."""
        self._key_annotation = key

    def finished(self, key: bytes, stored: Any) -> Any:
        """What is stored under a key as its result: plain Python, or the type that was asked for."""
        if not isinstance(stored, dict):
            # Left by an earlier program, in which the step was another one.
            return stored
        return self._typed(self.finisher.finish(key, stored, self._key_annotation))

    def _typed(self, row: dict[str, Any]) -> Any:
        return row if self._into is None or self._into is Any else fit_result(row, self._into, self.address)

    def _find(self, key: bytes) -> Any:
        stored = super()._find(key)
        return None if stored is None else self.finished(key, stored)

    def _find_many(self, keys: list[bytes]) -> list[Any]:
        found = super()._find_many(keys)
        return [None if stored is None else self.finished(key, stored) for key, stored in zip(keys, found)]

    def _pairs(self, prefix: str) -> Iterator[tuple[bytes, Any]]:
        for key, stored in super()._pairs(prefix):
            yield key, self.finished(key, stored)

    def to_polars(self) -> pl.DataFrame:
        """The whole state as a DataFrame: ``key`` and ``value``, a struct of the results (``unnest`` spreads it)."""
        return to_frame("value", self.scan(), self._into)


class HeldWindowsView(AggregateView[V]):
    """Windows that are kept one by one, because they cannot be merged from parts: triggers, own functions.

    A key's value is the result of the window that ends last; `windows` gives all that are open.
    """

    archived: ArchivedWindows | None = None
    """Windows that are closed for good, where they are archived."""

    @property
    def kind(self) -> Kind:
        """``windows``."""
        return WINDOWS

    def windows(self, key: Any) -> dict[Window, V]:
        """Every open window of a key, in the order of their ends, with what it comes to so far."""
        encoded = encode_key(key)
        stored = StateView._find(self, encoded)
        return {} if stored is None else dict(self._results(encoded, stored))

    def between(self, key: Any, start: Moment | None = None, end: Moment | None = None) -> dict[Window, V]:
        """The windows of a key that lie between two times, in the order of their ends: open and archived ones.

        Raises where the archive cannot be read, rather than leaving some out.
        """
        wanted = between(moment_us(start), moment_us(end))
        encoded = encode_key(key)
        page = read_range(self.windows(key), self.archived, encoded, wanted, EVERYTHING, self._typed)
        return dict(page.windows)

    def finished(self, key: bytes, stored: Any) -> Any:
        """The result of the window that ends last; None where all are empty."""
        return next((result for _, result in reversed(list(self._results(key, stored)))), None)

    def _results(self, key: bytes, stored: dict[tuple[int, int], dict[str, Any]]) -> Iterator[tuple[Window, Any]]:
        for (start, end), held in sorted(stored.items(), key=lambda entry: (entry[0][1], entry[0][0])):
            # An empty window remembers only what its trigger needs.
            if held.get("!size"):
                yield Window(start, end), self._typed(self._row(key, start, end, held))  # type: ignore[arg-type]

    def _row(self, key: bytes, start: int, end: int, held: dict[str, Any]) -> dict[str, Any]:
        made = self.finisher.finish(key, held, self._key_annotation)
        row = self.finisher.key_columns(key, self._key_annotation)
        if start > MIN_TIME and end < MAX_TIME:
            row |= {WINDOW_START: start, WINDOW_END: end}
        row |= made
        if self.tells_pane and PANE not in row:
            early = self._now_us is None or end - 1 > self._now_us
            row[PANE] = "early" if early else "late" if held.get("!late") else "on_time"
        return row if self.finisher.tells else {**row, ROWS: held["!size"]}

    def _pairs(self, prefix: str) -> Iterator[tuple[bytes, Any]]:
        return ((key, result) for key, result in super()._pairs(prefix) if result is not None)

    def _encoded_keys(self) -> Iterator[bytes]:
        return (key for key, _ in self._pairs(""))

    def __len__(self) -> int:
        return sum(1 for _ in self._encoded_keys())

    def to_polars(self) -> pl.DataFrame:
        """The whole state as a DataFrame, with a row per key and window."""
        import polars as pl

        rows = [msgspec.to_builtins(row) for row in self._all_windows()]
        return pl.DataFrame(rows, strict=False, infer_schema_length=None)

    def pieces(self, prefix: str = "") -> Iterator[dict[str, list[Any]]]:
        """The whole state, or keys whose text starts so, in pieces of bounded size: columns by name."""
        rows = self._all_windows(prefix)
        while held := [msgspec.to_builtins(row) for row in islice(rows, PIECE_ROWS)]:
            names = dict.fromkeys(name for row in held for name in row)
            yield {name: [row.get(name) for row in held] for name in names}

    def _all_windows(self, prefix: str = "") -> Iterator[Any]:
        for key, stored in StateView._pairs(self, prefix):
            yield from (result for _, result in self._results(key, stored))
