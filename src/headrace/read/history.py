"""How a key came to be what it is: its values over the epochs that are kept, one for each epoch that changed it.

Only runs of the key's own key group are opened, and an epoch that neither wrote to that group nor could let something
expire is not looked into. What reading costs grows with the epochs that are kept, and not with the keys of the state.

An older epoch may have the step under a former name; the newest manifest knows all of them.

What this module deliberately does not do: guess what happened between two epochs that are kept. A version says after
which of them it came about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple

from typing_extensions import TypeVar

from headrace.errors import MissingFile
from headrace.model.job import DeclaredState
from headrace.model.keys import hash_key, key_group
from headrace.model.time import Timestamp
from headrace.read.changes import is_same
from headrace.read.opening import open_reader
from headrace.read.reader import Reader
from headrace.read.steps import former_steps, identity_of, layers_of, runs_of
from headrace.state.layout import ManifestName
from headrace.state.manifest import JobState, read_manifest, read_state
from headrace.state.store import StoreFiles as Files

V = TypeVar("V", default=Any)

NOTHING_BEFORE: Final = -1

Tell = Callable[[int, int], None]
"""Called with how many epochs were looked at, and of how many."""


class KeyVersion(NamedTuple, Generic[V]):
    """The value of a key from one epoch on."""

    epoch: int
    """The first kept epoch that has it."""
    published: Timestamp
    value: V | None
    """Of a windowed state all its windows; None: the key is not there."""
    after: int
    """The epoch kept before, which has another value; −1: none is kept, so it may be as it is for longer."""


class StateOverTime:
    """One state, in any epoch of a store: under the names that it had then."""

    def __init__(self, files: Files, newest: JobState, reader: Reader, step: str) -> None:
        """``reader``: of the newest epoch that is asked about, which says how everything is read."""
        self.files = files
        self._table, self._address = reader.table, reader.address
        self._value_type, self._key_type = reader.value_type, reader.key_annotation
        self._steps = former_steps(newest, step)
        declared = newest.manifest.states.get(step, {}).get(reader.table)
        self._names = (reader.table, *(() if declared is None else declared.was))

    def step_in(self, state: JobState) -> str:
        """The name of the step in an epoch."""
        return next((each for each in self._steps if runs_of(state, each)), self._steps[0])

    def open(self, state: JobState, step: str, only: range | None = None) -> Reader:
        """The state in an epoch; empty where the job did not keep it then."""
        declared = state.manifest.states.get(step, {})
        name = next((each for each in self._names if each in declared), self._table)
        known = tuple(each for each in self._names if each != name)
        layers = layers_of(self.files, state, step, {name: known}, only=only)
        return open_reader(
            self.files, layers, name, state.manifest, step, address=self._address, value=self._value_type,
            key=self._key_type,
        )  # fmt: skip


class _KeyThen(NamedTuple):
    """What an epoch was like for a key."""

    state: JobState
    declared: Mapping[str, DeclaredState]
    runs: frozenset[object]
    stable: bool


def read_versions(
    over_time: StateOverTime, places: Sequence[ManifestName], key: bytes, tell: Tell | None = None
) -> Iterator[KeyVersion[Any]]:
    """The versions of a key over some epochs, which come oldest first; one that is swept meanwhile is passed over.

    Nothing is told of epochs before the first that has the key.
    """
    before: _KeyThen | None = None
    value: Any = None
    for number, place in enumerate(places):
        if tell is not None:
            tell(number, len(places))
        try:
            state = _next_state(over_time.files, None if before is None else before.state, place)
            step = over_time.step_in(state)
            group = key_group(hash_key(key), state.manifest.key_groups)
            runs = frozenset(identity_of(ref) for ref in runs_of(state, step) if ref.lo <= group < ref.hi)
            declared = state.manifest.states.get(step, {})
            if before is not None and before.stable and (runs, declared) == (before.runs, before.declared):
                before = before._replace(state=state)
                continue
            reader = over_time.open(state, step, range(group, group + 1))
            now = reader.whole(key)
        except MissingFile:
            continue
        if not is_same(value, now):
            after = NOTHING_BEFORE if before is None else before.state.epoch
            yield KeyVersion(state.epoch, Timestamp(state.manifest.published_us), now, after)
        before, value = _KeyThen(state, declared, runs, reader.stable), now
    if tell is not None:
        tell(len(places), len(places))


def _next_state(files: Files, before: JobState | None, place: ManifestName) -> JobState:
    """The state at an epoch; behind its parent one manifest says it."""
    if before is None or before.epoch + 1 != place.epoch:
        return read_state(files, *place)
    manifest = read_manifest(files, *place)
    if manifest.parent != before.manifest.nonce:
        return read_state(files, *place)
    return before.followed_by(manifest)
