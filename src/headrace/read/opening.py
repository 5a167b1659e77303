"""Which states a step keeps and under which names, and the reader that fits what is stored: the way in for everybody.

A state goes by ``step.state``; the one table of a rolling or windowed step, which nobody named, by ``step`` alone. What
a run holds and what the manifest says of it decide together how it is read. A state that is declared and was not
written yet is there, and empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.model.ids import MIN_TIME
from headrace.model.job import GIVEN, ROW, VALUE_TABLE
from headrace.read.archive import open_archived
from headrace.read.asked_types import adapt_to
from headrace.read.entries import EntryReader, HeldWindowsReader
from headrace.read.reader import Reader, ReaderOptions
from headrace.read.stored_version import type_versions
from headrace.read.values import AggregateReader, ValueReader
from headrace.read.windows import SlicedReader, WindowReader
from headrace.state.adapters import Adapters
from headrace.state.format import ENTRIES, PANES, VALUE

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.read.common_type import CommonType
    from headrace.read.shape import Kind
    from headrace.state.lookup import Layers
    from headrace.state.manifest import Manifest
    from headrace.state.store import StoreFiles as Files

Clock = Literal["event", "wall"]
_CLOCKS: Final[dict[str, Clock]] = {"event": "event", "wall": "wall"}

_READABLE: Final = frozenset({VALUE, ENTRIES, PANES})
AGGREGATE: Final = "aggregate"
WINDOWS: Final = "windows"
"""Kinds of declared states whose accumulators have to be finished."""
_DECLARED: Final[dict[str, str]] = {
    **dict.fromkeys(("map", "list", "timers", WINDOWS), ENTRIES),
    **dict.fromkeys(("value", "reducing", "aggregating", "timer", "wall_timer", "broadcast"), VALUE),
    **dict.fromkeys((AGGREGATE, ROW, GIVEN), VALUE),
}
"""Kinds of declared states that can be read → what a run will hold of them; sides and counters are no states."""
_EMPTY: Final[dict[str, Kind]] = {"list": "list", "timers": "timers"}
"""Kinds of entries that no entry tells yet; all others are maps."""


def declared_tables(declared: Mapping[str, DeclaredState]) -> list[str]:
    """The states that a step declares for reading, whether something was written to them or not."""
    return [name for name, known in declared.items() if known.kind in _DECLARED and not name.startswith("!")]


def readable_tables(layers: Layers, declared: Mapping[str, DeclaredState]) -> list[str]:
    """All states of a step: those that were written, and those that it declares."""
    return sorted({*named_tables(layers), *declared_tables(declared)})


def named_tables(layers: Layers) -> list[str]:
    """The tables that hold states; those with a mark in front are indexes."""
    return sorted(name for name, kind in layers.tables.items() if not name.startswith("!") and kind in _READABLE)


def is_nameless(table: str, tables: Sequence[str], declared: Mapping[str, DeclaredState]) -> bool:
    """Whether a table goes by its step's name alone: the one of a rolling or windowed step, which nobody named."""
    if table != VALUE_TABLE:
        return False
    kind = declared[table].kind if table in declared else ""
    return list(tables) == [VALUE_TABLE] or kind in (AGGREGATE, WINDOWS, ROW, GIVEN)


def open_reader(
    files: Files,
    layers: Layers,
    table: str,
    manifest: Manifest,
    step: str,
    *,
    address: str,
    value: Any = None,
    key: Any = None,
    clock: Clock | None = None,
    common: CommonType | None = None,
) -> Reader:
    """A state of an epoch, read as what is stored and what the manifest says of it ask for.

    ``common``: the type that it is read as to be compared.
    """
    declared = manifest.states.get(step, {}).get(table)
    now_us = now_us_of(manifest, step, clock or _CLOCKS.get(declared.clock if declared is not None else ""))
    ended_us = manifest.ended_ttl.get(step, {}).get(table)
    if ended_us is not None:
        now_us = ended_us
    times, key_times = (None, None) if declared is None else (declared.times, declared.key_times)
    results = declared is not None and declared.kind in (AGGREGATE, WINDOWS) and layers.tables.get(table) != PANES
    if results and declared is not None and declared.formers:
        # Results are made as the newest program says, so what they are made of has to have its names.
        layers = layers.adapted_by(Adapters(step, manifest.states[step], lenient=True))
    if common is not None:
        layers, times = common.adapt(layers, step, table, manifest.states[step]), common.times
    options = ReaderOptions(address, manifest.epoch, now_us, value, key, times, key_times, ended_us is not None)
    if declared is not None and value not in (None, Any):
        layers = adapt_to(layers, table, manifest.states[step], value, address)
    reader = _choose_reader(layers, table, options, declared, clocks_of(manifest, step))
    reader.types = type_versions(manifest.states.get(step, {}), table)
    if isinstance(reader, WindowReader):
        reader.archived = open_archived(files, manifest, step, table)
    return reader


def _choose_reader(
    layers: Layers, table: str, options: ReaderOptions, declared: DeclaredState | None, clocks: Mapping[str, int]
) -> Reader:
    kind = "" if declared is None else declared.kind
    # What was never written can be asked all the same, as the archive of windows can when all of them are closed.
    stored = layers.tables.get(table) or _DECLARED.get(kind, VALUE)
    if stored == PANES:
        return SlicedReader(layers, table, options, clocks)
    if declared is not None:
        if declared.kind == WINDOWS and stored == ENTRIES:
            return HeldWindowsReader(layers, table, options, declared)
        if declared.kind == AGGREGATE and stored == VALUE:
            return AggregateReader(layers, table, options, declared)
    if stored == ENTRIES:
        return EntryReader(layers, table, options, empty=_EMPTY.get(kind))
    return ValueReader(layers, table, options)


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
