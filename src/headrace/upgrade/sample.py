"""Migrations tried on some stored values, so that one that fails does so before the start."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import StoreError
from headrace.state.adapters import Adapters, ValueAdapter
from headrace.upgrade.lines import Objection
from headrace.upgrade.stored import StoredValue


def try_migration(adapters: Adapters, state: str, values: Iterable[StoredValue], address: str) -> Objection | None:
    """Why stored values cannot be adapted, by the first that cannot; None: all that were tried can."""
    for stored in values:
        adapter = adapters.of(state, stored.version)
        if not isinstance(adapter, ValueAdapter):
            continue
        try:
            adapter.one(stored.value, stored.key)
        except StoreError as error:
            advice = f"{error.next_move}; or let the state begin anew: --drop {address}"
            return Objection(f"{error.where}: {error.what}", error.expected, error.found, advice)
    return None
