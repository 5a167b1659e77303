"""Trial of migrations on a sample of stored values: a failing one fails before the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from headrace.errors import StoreError
from headrace.model.row_adapter import RowAdapter
from headrace.state.adapters import Adapters, ValueAdapter
from headrace.upgrade.lines import Objection
from headrace.upgrade.stored import SampledRows, StoredTables, StoredValue

SAMPLE: Final = 300
"""Stored values, or rows, of a state on which a migration is tried."""


class Trial(NamedTuple):
    """What came of a migration that was tried."""

    objection: Objection | None = None
    """Why the first that cannot be adapted cannot."""
    row_s: float = 0.0
    """How long one value, or row, took on this machine."""

    def cost_s(self, rows: int) -> float:
        """About how much work so many of them are, whoever does it and when."""
        return self.row_s * rows


def try_migration(adapters: Adapters, state: str, stored: StoredTables, former: tuple[str, str], address: str) -> Trial:
    """Adapts a sample. ``former``: step and state as the store names them. ``address``: what a person would give up."""
    taken_s, rows = 0.0, 0
    try:
        for work in _works(adapters, state, stored, former):
            began = perf_counter()
            rows += work()
            taken_s += perf_counter() - began
    except StoreError as error:
        advice = f"{error.next_move}; or let the state begin anew: --drop {address}"
        return Trial(Objection(f"{error.where}: {error.what}", error.expected, error.found, advice))
    return Trial(row_s=taken_s / max(rows, 1))


def try_loop(loop: str, adapter: RowAdapter, stored: StoredTables) -> Trial:
    """Adapts some of the rows that wait in a loop."""
    taken_s, rows = 0.0, 0
    try:
        for batch in stored.sample_loop(loop, SAMPLE):
            began = perf_counter()
            rows += adapter.rows(batch).num_rows
            taken_s += perf_counter() - began
    except StoreError as error:
        advice = f"{error.next_move}; or drop them: --drop {loop}"
        return Trial(Objection(f"{error.where}: {error.what}", error.expected, error.found, advice))
    return Trial(row_s=taken_s / max(rows, 1))


def _works(
    adapters: Adapters, state: str, stored: StoredTables, former: tuple[str, str]
) -> Iterator[Callable[[], int]]:
    """What adapts some of what is stored, and says how many rows that were."""
    for value in stored.sample(*former, SAMPLE):
        adapter = adapters.of(state, value.version)
        if isinstance(adapter, ValueAdapter):
            yield partial(_adapt_value, adapter, value)
    for some in stored.sample_rows(*former, SAMPLE):
        rows_adapter = adapters.of(state, some.version)
        if isinstance(rows_adapter, RowAdapter):
            yield partial(_adapt_rows, rows_adapter, some)


def _adapt_value(adapter: ValueAdapter, value: StoredValue) -> int:
    adapter.one(value.value, value.key)
    return 1


def _adapt_rows(adapter: RowAdapter, some: SampledRows) -> int:
    return int(adapter.rows(some.rows).num_rows)
