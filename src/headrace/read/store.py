"""A store as a reader sees it: which epochs are kept, which steps and states there are, and views of them.

Nothing here writes, takes part in the job or needs it to run: manifests and runs are immutable files, and whoever can
read them can answer. A reader may be slower than the sweep that removes old epochs: opening a view that meets a missing
file begins again from the newest manifest, and only a file that the newest one misses too is an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, overload
from urllib.parse import unquote, urlparse

import msgspec
from typing_extensions import TypeVar

from headrace.errors import CorruptFile, MissingFile, StoreError
from headrace.model.job import DeclaredState
from headrace.model.report import RunRef
from headrace.model.sink_waits import SinkWait, SinkWaits
from headrace.read.opening import Clock, is_nameless, named_tables, open_reader
from headrace.read.reader import Reader
from headrace.read.view import StateView
from headrace.state import layout
from headrace.state.format import PANES
from headrace.state.lookup import Layers, open_layers
from headrace.state.manifest import JobState, Manifest, epoch_ranges, list_epochs, read_manifest, read_state
from headrace.state.record import no_store
from headrace.state.store import StoreFiles as Files
from headrace.state.store import open_store

V = TypeVar("V")
T = TypeVar("T")
S = TypeVar("S", bound="Store")
ATTEMPTS: Final = 8
"""How often a reader begins again before it believes that a file is really gone."""


class StateInfo(NamedTuple):
    """One state of one step, for a list of what there is."""

    step: str
    state: str
    """Empty where the step keeps a single state that has no name of its own."""
    kind: str
    rows: int
    """Rows in the runs, before merging: at least the number of live entries."""
    size_bytes: int
    """Bytes of the step's runs, divided among its states by their rows."""

    @property
    def address(self) -> str:
        return f"{self.step}.{self.state}" if self.state else self.step


class StoreFacts(msgspec.Struct, frozen=True):
    """What a reader needs of the record that the job wrote when the store was made."""

    app: str
    key_groups: int
    timeline: int = 0
    query: str = ""
    """Holds an id of the store: tells it from others that are in its place before or after it."""


def bare_id(query: str) -> str:
    """The id in a record's ``query``, as answers tell it; empty where it holds none.

    >>> bare_id('{"id":"5f3c"}')
    '5f3c'
    """
    try:
        return msgspec.json.decode(query, type=dict[str, str]).get("id", "")
    except msgspec.MsgspecError:
        return query


class Store:
    """The checkpoint store of a job, stopped or running, opened for reading.

    Answers are of the newest published epoch, or of a past one with ``at``. No JVM is started.

    >>> store = hr.Store("./state")                                # doctest: +SKIP
    >>> store.state("count_views.views", int)["tweet-42"]          # doctest: +SKIP
    17
    >>> store.at(41).state("count_views.views", int).get_many(["tweet-42", "tweet-7"])   # doctest: +SKIP
    [12, None]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._files = open_for_reading(path)
        self._pinned: int | None = None

    def __repr__(self) -> str:
        at = "" if self._pinned is None else f", at epoch {self._pinned}"
        return f"Store({self._files.url!r}{at})"

    @property
    def url(self) -> str:
        return self._files.url

    @property
    def timeline(self) -> int:
        """Which line of epochs is the present one: ``--fresh`` begins a new one."""
        return self._record().timeline

    @property
    def app(self) -> str:
        """The name of the app that the store belongs to."""
        return self._record().app

    @property
    def epoch(self) -> int:
        """The epoch that answers are of: the one given to ``at``, or the newest now."""
        return self._newest() if self._pinned is None else self._pinned

    def at(self, epoch: int) -> Store:
        """The same store as it was when this epoch was published."""
        known = self.epochs()
        if epoch not in known:
            raise StoreError(
                f"epoch {epoch} is not in the store",
                where=self.url,
                expected=f"one of {epoch_ranges(known)}" if known else "a published epoch",
                found=f"epoch {epoch}",
                next_move="older epochs are swept; run with a larger `retain` to keep more of them"
                if known and epoch < known[-1]
                else "the job has not come so far: ask for one that is published",
            )
        pinned = store_over(self._files, Store)
        pinned._pinned = epoch
        return pinned

    def epochs(self) -> list[int]:
        """The epochs that can be read, oldest first."""
        return list_epochs(self._files, self._record().timeline)

    def waits(self) -> tuple[SinkWait, ...]:
        """The sinks that the job waits for, or had waited for when it ended: their rows are not out yet."""
        try:
            return msgspec.json.decode(self._files.read(layout.UNRELEASED), type=SinkWaits).waits
        except (MissingFile, msgspec.DecodeError):
            return ()

    def steps(self) -> list[str]:
        """The steps that keep state."""
        return self._retrying(steps_of)

    def states(self, step: str | None = None) -> list[StateInfo]:
        """Every state of every step, or of one."""

        def read(state: JobState) -> list[StateInfo]:
            steps = steps_of(state) if step is None else [step]
            return [info for each in steps for info in self._infos(state, each)]

        return self._retrying(read)

    @overload
    def state(
        self,
        name: str,
        value: type[V],
        *,
        key: Any = None,
        was: str | None = None,
        clock: Clock | None = None,
        empty_ok: bool = False,
    ) -> StateView[V]: ...
    @overload
    def state(
        self,
        name: str,
        value: None = None,
        *,
        key: Any = None,
        was: str | None = None,
        clock: Clock | None = None,
        empty_ok: bool = False,
    ) -> StateView[Any]: ...
    def state(
        self,
        name: str,
        value: Any = None,
        *,
        key: Any = None,
        was: str | None = None,
        clock: Clock | None = None,
        empty_ok: bool = False,
    ) -> StateView[Any]:
        """A view of one state: ``step.state``, or ``step`` alone where a step keeps one (reduce, aggregate, latest).

        ``value``: the type the program declares (``int``, ``dict[str, int]``, a Record); without it values are plain
        Python. ``key``: the type of the keys, where text and numbers are not enough (datetime, UUID, an Enum). ``was``
        and ``clock``: the name the state had before, and by which clock entries expire, where the manifest (of an older
        program, say) does not tell. ``empty_ok``: a state that nobody declared or wrote is empty instead of an error.
        """

        return StateView(self._reader(name, value, key=key, was=was, clock=clock, empty_ok=empty_ok))

    def _reader(
        self,
        name: str,
        value: Any = None,
        *,
        key: Any = None,
        was: str | None = None,
        clock: Clock | None = None,
        empty_ok: bool = False,
    ) -> Reader:
        """The same, by the bytes of keys."""

        def read(state: JobState) -> Reader:
            step, _, wanted = name.partition(".")
            states = state.manifest.states.get(step, {})
            if not wanted and not runs_of(state, step):
                # A step whose windows are all closed keeps nothing, and can be asked for what it archived.
                wanted = next((each for each, told in states.items() if told.archive is not None), "")
            declared = states.get(wanted)
            before = (was,) if was else declared.was if declared is not None else ()
            known = empty_ok or declared is not None
            layers = self._layers(state, step, {wanted: before} if wanted and before else {}, known)
            table = self._table(layers, step, wanted, known, states)
            manifest = state.manifest
            return open_reader(
                self._files, layers, table, manifest, step, address=name, value=value, key=key, clock=clock
            )

        return self._retrying(read)

    # --- reading what the newest manifest says

    def _record(self) -> StoreFacts:
        try:
            return msgspec.json.decode(self._files.read(layout.STORE_RECORD), type=StoreFacts)
        except MissingFile:
            raise no_store(self.url) from None
        except msgspec.DecodeError as error:
            raise CorruptFile(
                "the record of the store cannot be read",
                where=f"{self.url}/{layout.STORE_RECORD}",
                found=str(error),
                next_move="restore the file from a copy of the store",
            ) from error

    def _newest(self) -> int:
        epochs = self.epochs()
        if not epochs:
            raise StoreError(
                "no epoch has been published yet",
                where=self.url,
                next_move="wait for the job's first epoch, or look at what it says",
            )
        return epochs[-1]

    def _retrying(self, read: Callable[[JobState], T]) -> T:
        """Reads with the state of the epoch; begins again from the newest one where a sweep was faster."""
        tried = -1
        for _ in range(ATTEMPTS):
            epoch = self.epoch
            try:
                return read(read_state(self._files, self._record().timeline, epoch))
            except MissingFile:
                if epoch == tried or self._pinned is not None:
                    raise
                tried = epoch
        raise StoreError(
            "files vanish faster than they can be read",
            where=self.url,
            next_move="try again, or run the job with a larger `retain`",
        )

    def _layers(
        self, state: JobState, step: str, renamed: dict[str, tuple[str, ...]], empty_ok: bool = False
    ) -> Layers:
        runs = runs_of(state, step)
        if not runs and not empty_ok:
            known = steps_of(state)
            raise StoreError(
                f"no step {step!r} keeps state in this store",
                where=self.url,
                expected=" or ".join(known) or "a step that has written state",
                found=step,
                next_move="`headrace state STORE` lists steps and states",
            )
        groups = state.manifest.key_groups
        return open_layers(self._files, runs, lo=0, hi=groups, groups=groups, renamed=renamed)

    def _table(
        self, layers: Layers, step: str, wanted: str, empty_ok: bool, declared: Mapping[str, DeclaredState]
    ) -> str:
        tables = named_tables(layers)
        if wanted in tables or (empty_ok and (wanted or not tables)):
            return wanted
        if not wanted and len(tables) == 1:
            return tables[0]
        if not wanted and (nameless := [name for name in tables if is_nameless(name, tables, declared)]):
            return nameless[0]
        raise StoreError(
            f"step {step!r} keeps no state {wanted!r}" if wanted else f"step {step!r} keeps several states",
            where=self.url,
            expected=" or ".join(f"{step}.{name}" for name in tables) or "a state that has been written",
            found=f"{step}.{wanted}" if wanted else step,
            next_move="`headrace state STORE` lists steps and states",
        )

    def _infos(self, state: JobState, step: str) -> list[StateInfo]:
        layers = self._layers(state, step, {})
        tables = named_tables(layers)
        rows = {name: sum(view.table.rows for view in layers.views(name)) for name in layers.tables}
        size = sum(ref.size_bytes for ref in runs_of(state, step))
        declared = state.manifest.states.get(step, {})
        total = sum(rows.values()) or 1
        infos = []
        for name in tables:
            if layers.tables[name] == PANES:
                infos.append(StateInfo(step, "", "windows", rows[name], size * rows[name] // total))
                continue
            reader = open_reader(self._files, layers, name, state.manifest, step, address=name)
            shown = "" if is_nameless(name, tables, declared) else name
            shared = name in declared and declared[name].kind == "broadcast"
            kind = "broadcast" if shared else reader.kind
            infos.append(StateInfo(step, shown, kind, rows[name], size * rows[name] // total))
        return infos


# --- for tools and servers: what `hr.Store` does not show


def store_over(files: Files, kind: type[S]) -> S:
    """A store by its files, which somebody has opened already."""
    store = object.__new__(kind)
    store._files = files
    store._pinned = None
    return store


def files_of(store: Store) -> Files:
    """The files of a store."""
    return store._files


def open_state(store: Store, name: str, value: Any = None, **how: Any) -> Reader:
    """What `Store.state` takes, as a reader: a state by the bytes of its keys."""
    return store._reader(name, value, **how)


def job_state_of(store: Store) -> JobState:
    """Everything that the manifest of the store's epoch says, with the files of every step."""
    return store._retrying(lambda state: state)


def manifest_of(store: Store, epoch: int | None = None) -> Manifest:
    """What was published with an epoch, or with the store's own: sizes, times, watermarks."""
    return read_manifest(store._files, store.timeline, store.epoch if epoch is None else epoch)


def newest_manifests(store: Store, limit: int = 0) -> list[Manifest]:
    """The manifests of the newest epochs, oldest first; one that a sweep takes away meanwhile is left out."""
    timeline, manifests = store.timeline, []
    for epoch in store.epochs()[-limit:]:
        with contextlib.suppress(MissingFile):
            manifests.append(read_manifest(store._files, timeline, epoch))
    return manifests


def open_for_reading(path: str | os.PathLike[str]) -> Files:
    """The files of a store that exists; opening one for writing would make it."""
    text = os.fspath(path)
    parsed = urlparse(text)
    local = Path(unquote(parsed.path)) if parsed.scheme == "file" else Path(text) if "://" not in text else None
    if local is not None and not local.is_dir():
        raise no_store(text)
    files = open_store(text)
    if not files.exists(layout.STORE_RECORD):
        raise no_store(text)
    return files


def steps_of(state: JobState) -> list[str]:
    """The steps that have written state."""
    return sorted({layout.step_of(name) for name, runs in state.runs.items() if runs})


def runs_of(state: JobState, step: str) -> tuple[RunRef, ...]:
    """Everything a step has written: states by key and broadcast states, which have runs of their own."""
    return (*state.runs.get(step, ()), *state.runs.get(layout.broadcast(step), ()))
