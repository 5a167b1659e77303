"""Migrations tried on some of what is stored, so that one that fails does so before the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.errors import StoreError
from headrace.model.row_adapter import RowAdapter
from headrace.state.adapters import Adapters, ValueAdapter
from headrace.upgrade.lines import Objection
from headrace.upgrade.stored import StoredTables

SAMPLE: Final = 300
"""Stored values, or rows, of a state on which a migration is tried."""


def try_migration(
    adapters: Adapters, state: str, stored: StoredTables, former: tuple[str, str], address: str
) -> Objection | None:
    """Why what is stored cannot be adapted, by the first that cannot; None: all that was tried can.

    ``former``: step and state as the store names them. ``address``: what a person would give up.
    """
    try:
        for _ in _adapted(adapters, state, stored, former):
            pass
    except StoreError as error:
        advice = f"{error.next_move}; or let the state begin anew: --drop {address}"
        return Objection(f"{error.where}: {error.what}", error.expected, error.found, advice)
    return None


def _adapted(adapters: Adapters, state: str, stored: StoredTables, former: tuple[str, str]) -> Iterator[object]:
    for value in stored.sample(*former, SAMPLE):
        adapter = adapters.of(state, value.version)
        if isinstance(adapter, ValueAdapter):
            yield adapter.one(value.value, value.key)
    for some in stored.sample_rows(*former, SAMPLE):
        rows_adapter = adapters.of(state, some.version)
        if isinstance(rows_adapter, RowAdapter):
            yield rows_adapter.rows(some.rows)
