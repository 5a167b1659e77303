"""Which state of one epoch is held against which of another, and the keys of both that differ.

States go by their names; one that is called otherwise on one side is found by its former names (`was`), and so is a
step. A state that only one side has is held against nothing. One whose type changed in between is read as the newer
type on both sides, and of aggregates those that both sides have are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.read.changes import is_same
from headrace.read.common_results import CommonResults, derive_common_results
from headrace.read.common_type import CommonType, derive_common_type
from headrace.read.opening import is_nameless, named_tables, open_reader, readable_tables
from headrace.read.reader import Reader
from headrace.read.steps import former_steps, layers_of, readable_steps
from headrace.read.store import Store, files_of, reading
from headrace.read.unshared import Stretch, derive_stretches, named_views, read_keys
from headrace.read.values import ValueReader
from headrace.state.lookup import Layers
from headrace.state.manifest import JobState

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.state.store import StoreFiles as Files


class EpochSide(NamedTuple):
    """An epoch, with the runs of all its steps open."""

    files: Files
    state: JobState
    layers: dict[str, Layers]

    def declared(self, step: str) -> dict[str, DeclaredState]:
        return self.state.manifest.states.get(step, {})

    def tables(self, step: str) -> list[str]:
        return readable_tables(self.layers[step], self.declared(step))

    def state_of(self, step: str | None, table: str | None) -> DeclaredState | None:
        return None if step is None or table is None else self.declared(step).get(table)

    def reader(self, step: str, table: str, common: CommonType | None) -> Reader:
        written = named_tables(self.layers[step])
        address = step if is_nameless(table, written, self.declared(step)) else f"{step}.{table}"
        return open_reader(
            self.files, self.layers[step], table, self.state.manifest, step, address=address, common=common
        )


@dataclass(frozen=True)
class StatePair:
    """A state on both sides; None: it is not there."""

    first: Reader | None
    second: Reader | None
    everything: bool
    """Whether keys may differ that both sides have the same runs of: time passed, or results are other ones."""
    note: str = ""
    """What is to be said of values that cannot be read as one type, and of results that one side alone has."""
    results: CommonResults | None = None
    """Of aggregates that are not the same on both sides."""

    @property
    def shown(self) -> Reader:
        """The side that says how keys and values are shown."""
        found = self.second or self.first
        assert found is not None
        return found

    @cached_property
    def stretches(self) -> list[Stretch]:
        views = ([] if each is None else named_views(each.layers, each.table) for each in self._sides)
        return list(derive_stretches(*views, everything=self.everything))

    @property
    def _sides(self) -> tuple[Reader | None, Reader | None]:
        return self.first, self.second

    def differences(self, stretch: Stretch, behind: int = -1) -> Iterator[tuple[bytes, Any, Any]]:
        """The keys of a stretch that differ, with what they are on either side. ``behind``: only greater hashes."""
        keys = [key for hash_, key in read_keys(stretch) if hash_ > behind]
        if isinstance(self.first, ValueReader) and isinstance(self.second, ValueReader) and not self.everything:
            # What is stored as the same bytes is the same; nearly all of a folded run is.
            pairs = zip(keys, self.first.raws(keys), self.second.raws(keys))
            keys = [key for key, one, other in pairs if one != other]
        wholes = ([None] * len(keys) if each is None else each.wholes(keys) for each in self._sides)
        for key, before, after in zip(keys, *wholes):
            if self.results is not None:
                before, after = self.results.first(before), self.results.second(after)
            if not is_same(before, after):
                yield key, before, after


def derive_pairs(first: EpochSide, second: EpochSide) -> list[StatePair]:
    """Every state of either side beside the one that it was, or became, on the other; by address."""
    pairs = []
    steps = _matched(
        list(first.layers), list(second.layers), lambda step: former_steps(second.state, step),
        lambda step: former_steps(first.state, step),
    )  # fmt: skip
    for one, other in steps:
        ours = [] if one is None else first.tables(one)
        theirs = [] if other is None else second.tables(other)
        tables = _matched(ours, theirs, _formers(second, other), _formers(first, one))
        for table, counterpart in tables:
            states = first.state_of(one, table), second.state_of(other, counterpart)
            common, results = derive_common_type(*states), derive_common_results(*states)
            before = None if one is None or table is None else first.reader(one, table, common)
            after = None if other is None or counterpart is None else second.reader(other, counterpart, common)
            notes = [each.note for each in (common, results) if each is not None and each.note]
            pairs.append(replace(_pair(before, after, "; ".join(notes)), results=results))
    return sorted(pairs, key=lambda pair: pair.shown.address)


def _matched(
    ours: list[str], theirs: list[str], were: Callable[[str], list[str]], will_be: Callable[[str], list[str]]
) -> list[tuple[str | None, str | None]]:
    """Names of both sides in pairs: the same name, else a former one, of whichever side is the newer."""
    pairs: list[tuple[str | None, str | None]] = [(name, name) for name in ours if name in theirs]
    left = [name for name in ours if name not in theirs]
    right = [name for name in theirs if name not in ours]
    for name in list(right):
        former = next((each for each in were(name) if each in left), None)
        if former is None:
            former = next((each for each in left if name in will_be(each)), None)
        if former is not None:
            pairs.append((former, name))
            left.remove(former)
            right.remove(name)
    return [*pairs, *((name, None) for name in left), *((None, name) for name in right)]


def _formers(side: EpochSide, step: str | None) -> Callable[[str], list[str]]:
    declared = {} if step is None else side.declared(step)
    return lambda table: [*declared[table].was] if table in declared else []


def _pair(first: Reader | None, second: Reader | None, note: str) -> StatePair:
    if first is None or second is None:
        return StatePair(first, second, True)
    lasting = (first.stable and second.stable) or first.now_us == second.now_us
    return StatePair(first, second, not lasting or not first.reads_like(second), note)


def open_side(store: Store) -> EpochSide:
    def read(state: JobState) -> EpochSide:
        files = files_of(store)
        return EpochSide(files, state, {step: layers_of(files, state, step) for step in readable_steps(state)})

    return reading(store, read)


def shown_difference(pair: StatePair, before: Any, after: Any) -> tuple[Any, Any]:
    """Both values as people read them."""
    sides = zip((pair.first, pair.second), (before, after))
    shown = [None if reader is None else reader.shown_whole(value) for reader, value in sides]
    return shown[0], shown[1]
