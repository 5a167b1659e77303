"""Aggregators of the user's own: rows are added one by one, to all of a step's aggregators or to none.

Where the errors of the step are read, a row that one aggregator refuses must count in none of them. ``add`` may change
its accumulator in place and raise half way, so rows are added to copies; after a refusal those rows of the key that
were added since the last copy are added once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.aggregates.declare import Agg, Aggregator
from headrace.errors import FunctionFailed, HeadraceError
from headrace.model.values import MisfitPart, value_codec

if TYPE_CHECKING:
    from headrace.model.columns import Column
    from headrace.model.rows import RowCodec

_UNFIT: Final = (
    OverflowError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    HeadraceError,
    pa.ArrowException,
    msgspec.MsgspecError,
)
"""What making a column, or bytes, raises where a value is none of its type."""

Own = Sequence[tuple[int, Aggregator[Any, Any, Any]]]
"""Aggregators with the place of their accumulator among all of a key's."""


class AddFailed(Exception):
    """An aggregator raised, as the cause of this."""

    def __init__(self, aggregator: Aggregator[Any, Any, Any], error: Exception) -> None:
        super().__init__(str(error))
        self.aggregator = aggregator
        self.error = error


class RefusedRow(NamedTuple):
    """A row that counts nowhere."""

    place: int
    """Among the rows that were to be added."""
    failed: AddFailed


def add_row(own: Own, accs: list[Any], row: Any) -> None:
    """Adds a row to the accumulators of its key. Raises AddFailed, and leaves them half changed."""
    for i, aggregator in own:
        acc = accs[i]
        try:
            accs[i] = aggregator.add(aggregator.zero() if acc is None else acc, row)
        except Exception as error:
            raise AddFailed(aggregator, error) from error


class RepeatFailed(AddFailed):
    """A row that was taken a moment ago is refused now: there is no telling what such an aggregator counts."""


class GuardedAccumulators:
    """The accumulators of a key while rows are added that may be refused."""

    def __init__(self, own: Own, accs: list[Any]) -> None:
        """``accs`` stays as it is."""
        self._own = own
        self._safe = accs
        self._since: list[Any] = []
        self.accs = _copy_all(own, accs)

    def add(self, row: Any) -> None:
        """Adds a row. Raises AddFailed where it is refused, and the accumulators are as if it had not come."""
        try:
            add_row(self._own, self.accs, row)
        except AddFailed:
            self._restore()
            raise
        self._since.append(row)

    def _restore(self) -> None:
        added = _copy_all(self._own, self._safe)
        for earlier in self._since:
            try:
                add_row(self._own, added, earlier)
            except AddFailed as failed:
                raise RepeatFailed(failed.aggregator, failed.error) from failed.error
        self._safe, self._since = _copy_all(self._own, added), []
        for i, _ in self._own:
            self.accs[i] = added[i]


def add_guarded(own: Own, accs: list[Any], rows: Sequence[Any]) -> tuple[list[Any], list[RefusedRow]]:
    """The accumulators of a key with these rows added, as copies, and the rows that were refused."""
    guarded = GuardedAccumulators(own, accs)
    refused: list[RefusedRow] = []
    for place, row in enumerate(rows):
        try:
            guarded.add(row)
        except RepeatFailed:
            raise
        except AddFailed as failed:
            refused.append(RefusedRow(place, failed))
    return guarded.accs, refused


def encode_columns(
    codec: RowCodec, made: Mapping[str, Sequence[Any]], own: Set[str], rows: int, carried: Mapping[str, pa.Array]
) -> list[pa.Array]:
    """Rows of results as columns; ``own``: which of them aggregators of the user's gave. Raises FunctionFailed.

    ``carried``: columns that are there already.
    """
    columns: list[pa.Array] = []
    for name, column in codec.columns.items():
        if name in carried:
            there = carried[name]
            columns.append(there if there.type == column.arrow else there.cast(column.arrow))
            continue
        values = made[name] if name in made else [codec.defaults.get(name)] * rows
        columns.append(_encode_results(name, column, values) if name in own else column.encode(values))
    return columns


def _encode_results(name: str, column: Column, results: Sequence[Any]) -> pa.Array:
    """What an aggregator gave as a column. Raises FunctionFailed, with its stretch, where a result does not fit."""
    try:
        return column.encode(results)
    except _UNFIT as error:
        for stretch, result in enumerate(results):
            try:
                column.encode([result])
            except _UNFIT as its_error:
                failed = FunctionFailed(
                    f"the aggregate {name!r} gave {result!r:.200}, which its column cannot hold",
                    expected="an int of 64 bits" if isinstance(its_error, OverflowError) else str(its_error),
                    next_move="return an int of 64 bits or a float, as the type of the result says",
                )
                failed.stretch = stretch
                raise failed from error
        raise


def find_misfit(aggs: Mapping[str, Agg[Any]], accs: Sequence[Any]) -> MisfitPart | None:
    """The first accumulator of an own aggregator that its type cannot hold; None where all fit."""
    for (name, agg), acc in zip(aggs.items(), accs):
        if not isinstance(agg, Aggregator):
            continue
        codec = value_codec(agg.accumulator_type() | None)
        try:
            codec.decode(codec.encode(acc))
        except _UNFIT as error:
            return MisfitPart(
                f"the accumulator of the aggregate {name!r} is",
                acc,
                error,
                "return what the type of the accumulator says from zero, add and merge, or change that type",
            )
    return None


def _copy_all(own: Own, accs: list[Any]) -> list[Any]:
    copied = list(accs)
    for i, _ in own:
        copied[i] = deepcopy(accs[i])
    return copied
