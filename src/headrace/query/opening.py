"""Which states a step keeps and under which names, and the view that fits what is stored: the way in for all readers.

A state goes by ``step.state``; the one table of a rolling or windowed step, which nobody named, by ``step`` alone. What
a run holds and what the manifest says of it decide together how it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.model.ids import MIN_TIME
from headrace.query.results import AGGREGATE, WINDOWS, AggregateView, HeldWindowsView
from headrace.query.view import StateView
from headrace.query.windows import WindowView
from headrace.state.format import ENTRIES, PANES, VALUE

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.state.lookup import Layers
    from headrace.state.manifest import Manifest

Clock = Literal["event", "wall"]
_CLOCKS: Final[dict[str, Clock]] = {"event": "event", "wall": "wall"}

ROLLING_TABLE: Final = "value"
_READABLE: Final = frozenset({VALUE, ENTRIES, PANES})
_FORMS: Final[dict[tuple[str, str], type[AggregateView[Any]]]] = {
    (AGGREGATE, VALUE): AggregateView,
    (WINDOWS, ENTRIES): HeldWindowsView,
}
"""What the program declares and how it is stored → how it is read, where accumulators have to be finished."""


def named_tables(layers: Layers) -> list[str]:
    """The tables that hold states; those with a mark in front are indexes."""
    return sorted(name for name, kind in layers.tables.items() if not name.startswith("!") and kind in _READABLE)


def is_nameless(table: str, tables: Sequence[str], declared: Mapping[str, DeclaredState]) -> bool:
    """Whether a table goes by its step's name alone: the one of a rolling or windowed step, which nobody named."""
    if table != ROLLING_TABLE:
        return False
    return list(tables) == [ROLLING_TABLE] or (table in declared and declared[table].kind in (AGGREGATE, WINDOWS))


def open_view(
    layers: Layers,
    table: str,
    manifest: Manifest,
    step: str,
    *,
    address: str,
    value: Any = None,
    key: Any = None,
    clock: Clock | None = None,
) -> StateView[Any]:
    """A state of an epoch, in the form that what is stored and what the manifest says of it ask for."""
    epoch = manifest.epoch
    if layers.tables.get(table) == PANES:
        clocks = clocks_of(manifest, step)
        return WindowView(layers, table, address=address, epoch=epoch, clocks=clocks, value=value, key=key)
    declared = manifest.states.get(step, {}).get(table)
    told = declared.clock if declared is not None else ""
    now_us = now_us_of(manifest, step, clock or _CLOCKS.get(told))
    form = _FORMS.get((declared.kind, layers.tables.get(table, ""))) if declared is not None else None
    if declared is not None and declared.archive is not None and table not in layers.tables:
        # Every window is closed, or none has been opened yet; the archive can be asked all the same.
        form = HeldWindowsView
    if declared is not None and form is not None:
        return form(layers, table, declared=declared, address=address, epoch=epoch, now_us=now_us, value=value, key=key)
    return StateView(layers, table, address=address, epoch=epoch, now_us=now_us, value=value, key=key)


def clocks_of(manifest: Manifest, step: str) -> dict[str, int]:
    """``event`` and ``wall`` → their time at the end of the epoch."""
    return {"event": manifest.time.steps.get(step, MIN_TIME), "wall": manifest.clock_us}


def now_us_of(manifest: Manifest, step: str, clock: Clock | None) -> int | None:
    """The time that decides what has expired. Under the event clock nothing expires before time is known."""
    watermark = manifest.time.steps.get(step, MIN_TIME)
    if clock == "wall" or (clock is None and watermark <= MIN_TIME):
        return manifest.clock_us
    if clock == "event":
        return watermark if watermark > MIN_TIME else None
    return min(watermark, manifest.clock_us)
