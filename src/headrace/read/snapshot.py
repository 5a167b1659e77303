"""One published epoch of a job, opened for reading: every state it keeps, and what it changed.

A snapshot never changes: whoever answers a request takes the newest one and stays with it, so all keys of a request are
of one epoch; files that a sweep removes meanwhile stay mapped. It is made only when every file of every step could be
opened, so no answer can fail half way.

What this module deliberately does not do: look for newer epochs (see `headrace.read.follow`).

Here is also whether a source has been read up to an offset: how a writer waits until its own event can be read.
Offsets are in the words of the source, as Spark keeps them: JSON, in which every number counts something that has been
read (``{"topic": {"0": 123}}`` of Kafka, ``{"rows": 7}`` of a generator), and ids of entries in Redis streams come one
after the other (``{"stream": {"id": "1700000000000-5", …}}``). An offset is reached when every number and id of it is;
names that it does not mention do not matter. Any other text has no order: it is reached when it is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.model.ids import MIN_TIME
from headrace.model.order import SOURCE
from headrace.model.watermarks import WAITED
from headrace.read.forms import PACKED
from headrace.read.opening import is_nameless, named_tables, open_reader, readable_tables
from headrace.read.reader import Reader
from headrace.read.steps import identity_of, readable_steps, runs_of
from headrace.state.layout import ManifestName
from headrace.state.lookup import Layers
from headrace.state.manifest import JobState
from headrace.state.run import StateRun, open_ref

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.model.report import RunRef
    from headrace.read.common_type import CommonType
    from headrace.state.store import StoreFiles as Files


_OFFSETS_HEADER_LINES: Final = 2


class Snapshot:
    """One published epoch of a job, opened for reading."""

    def __init__(
        self,
        files: Files,
        app: str,
        state: JobState,
        before: Snapshot | None = None,
        *,
        anew: bool = False,
        store_id: str = "",
    ) -> None:
        """``before``: an older snapshot, whose open runs are taken over where a step has not changed.

        ``anew``: another store is in the place of that one's, so nothing is, and whatever it counts is newer.
        ``store_id``: of the store; as before where it is not given.
        """
        self.app = app
        self.state = state
        self.epoch = state.epoch
        self.timeline = state.manifest.timeline
        self.store_id: str = store_id or ("" if before is None else before.store_id)
        """Tells the store from others that were, or will be, in its place."""
        self.line: tuple[int, int] = (0 if before is None else before.line[0] + anew, self.timeline)
        """The line of epochs it is of: grows when the store is started over, or made anew. Known in this process."""
        self.published_us = state.manifest.published_us
        self.clock_us = state.manifest.clock_us
        """Wall clock of the epoch, as the job gave it: what expires by it does so at this time."""
        self._files = files
        self._runs: dict[object, StateRun] = {}
        """Every run of the epoch. They are held here and nowhere else: what no snapshot needs any more is let go."""
        self._layers = {step: self._open_layers(step, None if anew else before) for step in self._steps()}
        self._tables: dict[str, Reader] = {}
        self._named = dict(self._name_tables())

    def __repr__(self) -> str:
        return f"Snapshot(epoch {self.epoch} of {self.app})"

    @property
    def place(self) -> ManifestName:
        """What its manifest is called."""
        return ManifestName(self.timeline, self.epoch)

    @property
    def version(self) -> tuple[int, int]:
        """Grows with everything that is published, also when a store is started over; not when it is made anew."""
        return self.timeline, self.epoch

    def is_newer_than(self, other: Snapshot) -> bool:
        """Whether it comes behind another one in the same process, whatever happened to the store in between."""
        return (self.line, self.epoch) > (other.line, other.epoch)

    @property
    def files(self) -> Files:
        """The files of the store it is of; for tools."""
        return self._files

    @property
    def final(self) -> bool:
        """Whether no epoch will follow: the input was drained."""
        return self.state.manifest.final

    def watermark_us(self, step: str) -> int | None:
        """How far event time has come in a step; None where it has none."""
        found = self.state.manifest.time.steps.get(step, MIN_TIME)
        return None if found <= MIN_TIME else found

    @cached_property
    def offsets(self) -> dict[str, str]:
        """Source → how far it is read, in the words of Spark's source."""
        lines = self.state.manifest.offsets.splitlines()[_OFFSETS_HEADER_LINES:]
        pairs = (line.partition(":") for line in lines)
        return {name: value for name, _, value in pairs if name and name != SOURCE}

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """Every state that can be asked for: ``step`` or ``step.state``."""
        return tuple(sorted(self._named))

    def knows(self, address: str) -> bool:
        """Whether the job keeps such a state, or will when something is written to it."""
        if address in self._named:
            return True
        step, _, state = address.partition(".")
        declared = self.state.manifest.states.get(step)
        if declared is None:
            return False
        if state:
            return state in declared
        # The step alone is the address of what nobody named.
        named = [name for name in declared if not name.startswith("!") and not is_nameless(name, (), declared)]
        return not named and not any(each.startswith(f"{step}.") for each in self._named)

    def table(self, address: str) -> Reader | None:
        """A state by its address; None where the job keeps no such state."""
        table = self._tables.get(address)
        if table is None and address in self._named:
            step, name = self._named[address]
            layers, manifest = self._layers[step], self.state.manifest
            table = open_reader(self._files, layers, name, manifest, step, address=address)
            self._tables[address] = table
        return table

    def table_as(self, address: str, common: CommonType) -> Reader:
        """A state that there is, its values as one type, whenever they were written."""
        step, name = self._named[address]
        layers, manifest = self._layers[step], self.state.manifest
        return open_reader(self._files, layers, name, manifest, step, address=address, common=common)

    def declared(self, address: str) -> tuple[str, str, DeclaredState | None]:
        """The step and table behind an address, and what the program declares of it: how what is stored is told."""
        step, name = self._named[address]
        return step, name, self.state.manifest.states.get(step, {}).get(name)

    def tables(self) -> dict[str, Reader]:
        """Every state by its address."""
        return {address: table for address in self.addresses if (table := self.table(address)) is not None}

    def warm(self, rows: int) -> None:
        """Opens and verifies what readers of single keys will touch, and indexes it, up to so many rows."""
        for table in self.tables().values():
            rows = table.warm(rows)

    def changed(self, since: Snapshot | None = None) -> Iterator[tuple[str, list[bytes]]]:
        """(address, encoded keys) of everything that changed, a bounded number of keys at a time.

        Without ``since`` that is what this very epoch changed; with it, everything since that snapshot. A key may come
        more than once. Windows that ended and values that expired have not changed: nobody wrote them.
        """
        if since is not None and since.line != self.line:
            since = None
        for step, layers in self._layers.items():
            fresh, doubtful = self._new_runs(step, since)
            for address, keys in self._keys_of(step, fresh, layers):
                yield address, keys
            for address, keys in self._keys_of(step, doubtful, layers):
                yield address, [key for key in keys if self._differs(address, key, since)]

    def changed_rows(self, since: Snapshot) -> int:
        """At least as many rows as changed since a snapshot of the same line; costs nothing to tell."""
        runs = (run for step in self._layers for new in self._new_runs(step, since) for run in new)
        return sum(run.rows for run in runs)

    # --- what is there

    def _steps(self) -> list[str]:
        return readable_steps(self.state)

    def _open_layers(self, step: str, before: Snapshot | None) -> Layers:
        declared = self.state.manifest.states.get(step, {})
        refs = runs_of(self.state, step)
        for ref in refs:
            known = None if before is None else before._runs.get(identity_of(ref))
            self._runs[identity_of(ref)] = known or open_ref(self._files, ref, cached=False)
        if before is not None and before.line == self.line and step in before._layers:
            same = runs_of(before.state, step) == refs
            same = same and before.state.manifest.hidden.get(step) == self.state.manifest.hidden.get(step)
            if same and before.state.manifest.states.get(step, {}) == declared:
                return before._layers[step]
        return self._layers_of(refs, declared, self.state.manifest.hidden.get(step, {}))

    def _layers_of(
        self, refs: Sequence[RunRef], states: Mapping[str, DeclaredState], hidden: Mapping[str, int]
    ) -> Layers:
        groups = self.state.manifest.key_groups
        runs = [(ref, self._runs[identity_of(ref)]) for ref in refs]
        return Layers(runs, lo=0, hi=groups, groups=groups, states=states, hidden=hidden)

    def _name_tables(self) -> Iterator[tuple[str, tuple[str, str]]]:
        for step, layers in self._layers.items():
            written = named_tables(layers)
            for name in readable_tables(layers, self.state.manifest.states.get(step, {})):
                yield self._address(step, name, written), (step, name)

    def _address(self, step: str, table: str, tables: list[str]) -> str:
        nameless = is_nameless(table, tables, self.state.manifest.states.get(step, {}))
        return step if nameless else f"{step}.{table}"

    # --- what changed

    def _new_runs(self, step: str, since: Snapshot | None) -> tuple[list[RunRef], list[RunRef]]:
        """Runs that hold nothing but changes, and those that may hold older rows besides: folds of several epochs."""
        refs = runs_of(self.state, step)
        if since is None:
            return [ref for ref in refs if ref.epoch == self.epoch and ref.level == 0], []
        known = {identity_of(ref) for ref in runs_of(since.state, step)}
        new = [ref for ref in refs if ref.epoch > since.epoch and identity_of(ref) not in known]
        return [ref for ref in new if ref.level == 0], [ref for ref in new if ref.level > 0]

    def _keys_of(self, step: str, refs: list[RunRef], layers: Layers) -> Iterator[tuple[str, list[bytes]]]:
        if not refs:
            return
        fresh = self._layers_of(refs, layers.states, layers.hidden)
        tables = named_tables(layers)
        for name in named_tables(fresh):
            address = self._address(step, name, tables)
            for view in fresh.views(name):
                for number in range(len(view.table)):
                    block = view.table.block(number)
                    mine = block.key if view.in_range(block.hash).all() else _only(block, view)
                    yield address, mine.unique().to_pylist()

    def _differs(self, address: str, key: bytes, since: Snapshot | None) -> bool:
        before = None if since is None else since.table(address)
        now = self.table(address)
        if before is None or now is None:
            return True
        return before.get(key, PACKED) != now.get(key, PACKED)


def _only(block: Any, view: Any) -> Any:
    return block.key.filter(pa.array(view.in_range(block.hash)))


# --- offsets of sources


_ENTRY_ID: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
"""Of an entry in a Redis stream: milliseconds, and a number among the entries of that millisecond."""
_ID: Final = "id"
"""Under this name the position in a stream has the id of the last entry that was read."""


def reaches(read: str, wanted: Any) -> bool:
    """Whether what has been read of a source covers an offset: a number, the id of an entry, or an object of them.

    >>> reaches('{"topic": {"0": 12, "1": 7}}', {"topic": {"1": 7}})
    True
    >>> reaches('{"rows": 7}', 8)
    False
    >>> reaches('{"events": {"id": "1700000000000-10", "n": 12}}', {"events": "1700000000000-9"})
    True
    """
    try:
        return _covers(json.loads(read), wanted) if read else False
    except ValueError:
        return False


def _covers(read: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(read, dict) and all(
            name in read and _covers(read[name], each) for name, each in wanted.items()
        )
    if isinstance(wanted, str) and isinstance(read, dict) and _ID in read:
        # The id is what XADD answered: whoever wrote an entry knows nothing else of its position.
        return _covers(read[_ID], wanted)
    if isinstance(wanted, int | str) and isinstance(read, dict):
        # A source that counts one thing only: its number, or id, may stand alone. How often it waited is not read.
        parts = [each for name, each in read.items() if name != WAITED]
        return len(parts) == 1 and _covers(parts[0], wanted)
    if isinstance(wanted, int) and isinstance(read, int):
        return read >= wanted
    if isinstance(wanted, str) and isinstance(read, str):
        return read == wanted or _is_behind(wanted, read)
    return bool(read == wanted)


def _is_behind(one: str, other: str) -> bool:
    """Whether both are ids of entries, and the first comes before the second. As text "9-0" would follow "10-0"."""
    first, second = _ENTRY_ID.fullmatch(one), _ENTRY_ID.fullmatch(other)
    if first is None or second is None:
        return False
    return (int(first[1]), int(first[2])) < (int(second[1]), int(second[2]))
