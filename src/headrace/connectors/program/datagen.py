"""Rows made up column by column, for tables without a source behind them: any type, any volume, the same rows each
time.

The value of a column in row *i* follows from the seed, the name of the column and *i* alone, so that a range of rows
can be made again in any process, and a column that is added changes no other. All of it is computed in columns.
"""

from __future__ import annotations

import string
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.uint64]

START_US: Final = 1_704_067_200_000_000
"""2024-01-01T00:00:00Z: the time of the first row where nothing else is said. A fixed one, so that rows are, too."""
DISTINCT: Final = 10
"""So many values a text has, where nothing else is said: ``room-0`` to ``room-9``."""
_LETTERS: Final = np.frombuffer(string.ascii_lowercase.encode() + b"0123456789", np.uint8)
_SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class ColumnPlan:
    """What a column holds. What does not fit its type is not looked at."""

    sequence: bool = False
    """Whether values follow each other, from ``low``; else they are spread evenly over ``low`` to ``high``."""
    low: float = 0
    high: float = 100
    values: tuple[Any, ...] = ()
    """The values to choose from."""
    length: int = 0
    """Of a text of random letters; 0: one of ``distinct`` names."""
    distinct: int = DISTINCT
    nulls: float = 0.0
    """The share of rows without a value."""
    start_us: int = START_US
    step_us: float = 0.0
    """Of times: how much later each row is."""
    late_us: int = 0
    """Of times: up to so much earlier than its place in the sequence says."""


@dataclass(frozen=True)
class DataColumns:
    """What ``source.generator(columns=…)`` calls: rows ``start`` to ``stop`` of a schema."""

    schema: pa.Schema
    seed: int
    plans: Mapping[str, ColumnPlan] = field(default_factory=dict)

    def __call__(self, start: int, stop: int) -> dict[str, pa.Array]:
        rows = np.arange(start, stop, dtype=np.uint64)
        return {each.name: self._column(each, rows) for each in self.schema}

    def _column(self, column: pa.Field, rows: Numbers) -> pa.Array:
        plan = self.plans.get(column.name, ColumnPlan())
        noise = _mixed(rows, zlib.crc32(column.name.encode()) ^ (self.seed << 32))
        values = _values(column, plan, rows, noise)
        if not plan.nulls:
            return values
        missing = _share(_mixed(rows, zlib.crc32(b"null " + column.name.encode()) ^ (self.seed << 32))) < plan.nulls
        import pyarrow.compute as pc

        return pc.if_else(pa.array(missing), pa.scalar(None, values.type), values)


def _mixed(rows: Numbers, salt: int) -> Numbers:
    """A random number for each row number, by splitmix64."""
    with np.errstate(over="ignore"):
        mixed = rows * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt & 0xFFFF_FFFF_FFFF_FFFF)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _share(noise: Numbers) -> npt.NDArray[np.float64]:
    """Random numbers from 0 up to 1."""
    shares: npt.NDArray[np.float64] = (noise >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return shares


def _values(column: pa.Field, plan: ColumnPlan, rows: Numbers, noise: Numbers) -> pa.Array:
    kind, kinds = column.type, pa.types
    if plan.values:
        chosen = pa.array((noise % np.uint64(len(plan.values))).astype(np.int64))
        return pa.array(plan.values, kind).take(chosen)
    if kinds.is_timestamp(kind):
        late = _share(noise) * plan.late_us
        return pa.array((plan.start_us + rows * plan.step_us - late).astype(np.int64)).cast(kind)
    if kinds.is_string(kind) or kinds.is_binary(kind):
        return _texts(column.name, plan, rows, noise).cast(kind)
    if kinds.is_boolean(kind):
        return pa.array((noise & np.uint64(1)).astype(np.bool_))
    if kinds.is_date(kind):
        days = plan.start_us // (86_400 * _SECOND_US) + (rows * plan.step_us / (86_400 * _SECOND_US)).astype(np.int64)
        return pa.array(days.astype(np.int32)).cast(kind)
    numbers = plan.low + (rows.astype(np.float64) if plan.sequence else _share(noise) * (plan.high - plan.low))
    if kinds.is_integer(kind):
        if plan.sequence:
            return pa.array(rows.astype(np.int64) + int(plan.low), kind)
        width = max(1, int(plan.high) - int(plan.low) + 1)
        return pa.array((noise % np.uint64(width)).astype(np.int64) + int(plan.low), kind)
    if kinds.is_floating(kind):
        return pa.array(np.round(numbers, 2), kind)
    if kinds.is_decimal(kind):
        return pa.array(np.round(numbers * 100).astype(np.int64)).cast(pa.decimal128(19, 0)).cast(kind)
    return pa.nulls(len(rows), kind)


def _texts(name: str, plan: ColumnPlan, rows: Numbers, noise: Numbers) -> pa.Array:
    if plan.length:
        letters = np.empty((len(rows), plan.length), np.uint8)
        for place in range(plan.length):
            letters[:, place] = _LETTERS[_mixed(noise, place) % np.uint64(len(_LETTERS))]
        return pa.array(letters.reshape(-1).view(f"S{plan.length}").astype(str))
    numbers = rows + np.uint64(plan.low) if plan.sequence else noise % np.uint64(max(1, plan.distinct))
    return pa.array(np.char.add(f"{name}-", numbers.astype(str)))
