"""A store as a reader sees it: which epochs are kept, which steps and states there are, and views of them.

A store may be pinned to a moment of its past: an epoch that is kept, a savepoint, a point in time. All answers are of
that epoch then, and nothing newer is ever looked at.

Nothing here writes, takes part in the job or needs it to run: manifests and runs are immutable files, and whoever can
read them can answer. A reader may be slower than the sweep that removes old epochs: opening a view that meets a missing
file begins again from the newest manifest, and only a file that the newest one misses too is an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload
from urllib.parse import unquote, urlparse

import msgspec
from typing_extensions import TypeVar

from headrace.errors import CorruptFile, MissingFile, StoreError
from headrace.model.job import DeclaredState
from headrace.model.keys import encode_key
from headrace.model.sink_waits import SinkWait, SinkWaits
from headrace.read.history import KeyVersion, StateOverTime, Tell, read_versions
from headrace.read.opening import Clock, is_nameless, named_tables, open_reader, readable_tables
from headrace.read.reader import Reader
from headrace.read.steps import StateInfo, check_step, layers_of, list_states, readable_steps, runs_of
from headrace.read.view import StateView
from headrace.state import layout
from headrace.state.lineage import places_until, read_places
from headrace.state.lookup import Layers
from headrace.state.manifest import JobState, Manifest, read_manifest, read_state
from headrace.state.moments import Moment, find_moment, moment_of, parse_address
from headrace.state.record import no_store
from headrace.state.savepoints import Savepoint, list_savepoints
from headrace.state.store import StoreFiles as Files
from headrace.state.store import open_store

if TYPE_CHECKING:
    from headrace.snapshots.answers import SqlAnswer
    from headrace.transfer.record import ExportRecord

V = TypeVar("V")
T = TypeVar("T")
S = TypeVar("S", bound="Store")
ATTEMPTS: Final = 8
"""How often a reader begins again before it believes that a file is really gone."""


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

    Answers are of the newest published epoch, or of a past one: with ``at``, or where the address says so, as
    ``./state@41``, ``./state@before-v2`` and ``./state@2024-05-01T12:00``. No JVM is started.

    >>> store = hr.Store("./state")                                # doctest: +SKIP
    >>> store.state("count_views.views", int)["tweet-42"]          # doctest: +SKIP
    17
    >>> store.at(41).state("count_views.views", int).get_many(["tweet-42", "tweet-7"])   # doctest: +SKIP
    [12, None]
    >>> hr.Store("./state@before-v2").epoch                        # doctest: +SKIP
    41
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        address = parse_address(os.fspath(path))
        self._files = open_for_reading(address.url)
        self._place = None if address.moment is None else find_moment(self._files, address.moment)
        """The timeline and epoch that answers are of; None: the newest ones."""

    def __repr__(self) -> str:
        at = "" if self._place is None else f", at epoch {self._place.epoch}"
        return f"Store({self._files.url!r}{at})"

    @property
    def url(self) -> str:
        return self._files.url

    @property
    def timeline(self) -> int:
        """Which line of epochs is the present one: a rewind begins a new one, and ``--fresh`` does."""
        return self._record().timeline

    @property
    def app(self) -> str:
        """The name of the app that the store belongs to."""
        return self._record().app

    @property
    def epoch(self) -> int:
        """The epoch that answers are of: the one given to ``at``, or the newest now."""
        return self._find_place().epoch

    def at(self, moment: int | str | datetime | Moment) -> Store:
        """The same store as it was at a moment: an epoch, a savepoint by its name, or a time.

        Of a time it is the newest epoch that was published by then, in UTC where it does not say another zone. Only
        epochs that are kept can be read: the newest (``retain``), and those of savepoints.

        >>> store.at("before-v2").epoch, store.at("2024-05-01T12:00").epoch         # doctest: +SKIP
        (41, 57)
        """
        pinned = store_over(self._files, Store)
        pinned._place = find_moment(self._files, moment_of(moment))
        return pinned

    def epochs(self) -> list[int]:
        """The epochs that can be read, oldest first. What a rewind abandoned is not among them."""
        return [place.epoch for place in read_places(self._files)]

    def savepoints(self) -> list[Savepoint]:
        """The savepoints of the store, those of the oldest epoch first: epochs that are kept until they are deleted.

        >>> [(point.name, point.epoch) for point in store.savepoints()]                  # doctest: +SKIP
        [('before-v2', 41)]
        """
        return list_savepoints(self._files)

    def waits(self) -> tuple[SinkWait, ...]:
        """The sinks that the job waits for, or had waited for when it ended: their rows are not out yet."""
        try:
            return msgspec.json.decode(self._files.read(layout.UNRELEASED), type=SinkWaits).waits
        except (MissingFile, msgspec.DecodeError):
            return ()

    def steps(self) -> list[str]:
        """The steps that keep state, whether they have written some yet or not."""
        return self._retrying(readable_steps)

    def states(self, step: str | None = None) -> list[StateInfo]:
        """Every state of every step, or of one."""

        def read(state: JobState) -> list[StateInfo]:
            if step is not None:
                check_step(self._files, state, step)
            steps = readable_steps(state) if step is None else [step]
            return [info for each in steps for info in list_states(self._files, state, each)]

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
            known = empty_ok or declared is not None
            if not known:
                check_step(self._files, state, step)
            layers = layers_of(self._files, state, step, {wanted: (was,)} if wanted and was else {})
            table = self._table(layers, step, wanted, known, states)
            manifest = state.manifest
            return open_reader(
                self._files, layers, table, manifest, step, address=name, value=value, key=key, clock=clock
            )

        return self._retrying(read)

    def history(
        self, name: str, key: Any, value: type[V] | None = None, *, since: int | str | datetime | Moment | None = None
    ) -> list[KeyVersion[V]]:
        """How the value of a key changed over the epochs that are kept, oldest first: one version per change.

        ``value``: the type the program declares, as of `state`. ``since``: only epochs from this moment on. Of a
        windowed state a version holds all windows of the key; None says that the key is not there.

        >>> [(each.epoch, each.value) for each in store.history("watch.spent", "card-7", int)]     # doctest: +SKIP
        [(41, 400), (57, 1200)]
        """
        return list(walk_history(self, self._reader(name, value), encode_key(key), since))

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> SqlAnswer:
        """The answer to a SELECT over the states of the store, each a table: all of it of one epoch.

        A state ``step.state`` is the table ``state`` of the schema ``step``. Parameters are ``$1``, ``$2`` and so on.
        Needs ``headrace[sql]``.

        >>> store.sql("SELECT tweet, impressions FROM hourly WHERE tweet = $1", ["a"]).rows()   # doctest: +SKIP
        [{'tweet': 'a', 'impressions': 17}]
        """
        from headrace.snapshots.in_python import answer

        return answer(self, statement, parameters)

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

    def _find_place(self) -> layout.ManifestName:
        return find_moment(self._files, None) if self._place is None else self._place

    def export(
        self,
        folder: str | os.PathLike[str],
        *states: str,
        format: Literal["parquet", "jsonl"] = "parquet",
        exact: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportRecord:
        """Writes states as files into an empty folder, on a disk or behind a URL; without names all of them.

        Typed columns, or with ``jsonl`` a row per line; memory stays bounded. ``exact``: every table of the steps as it
        is stored, which `hr.bootstrap` makes the same state of. ``progress`` is called with rows done and of how many.

        >>> store.export("history/", "totals").tables[0].rows                       # doctest: +SKIP
        1000000
        """
        from headrace.transfer.export import ExportRequest, export_state

        form = "exact" if exact else "results"
        request = ExportRequest(os.fspath(folder), states, format, form)
        return export_state(self._files, self.app, job_state_of(self), request, progress)

    def _retrying(self, read: Callable[[JobState], T]) -> T:
        """Reads with the state of the epoch; begins again from the newest one where a sweep was faster."""
        tried = None
        for _ in range(ATTEMPTS):
            place = self._find_place()
            try:
                return read(read_state(self._files, *place))
            except MissingFile:
                if place == tried or self._place is not None:
                    raise
                tried = place
        raise StoreError(
            "files vanish faster than they can be read",
            where=self.url,
            next_move="try again, or run the job with a larger `retain`",
        )

    def _table(
        self, layers: Layers, step: str, wanted: str, empty_ok: bool, declared: Mapping[str, DeclaredState]
    ) -> str:
        written, tables = named_tables(layers), readable_tables(layers, declared)
        if wanted in tables or (empty_ok and (wanted or not tables)):
            return wanted
        if not wanted:
            nameless = [name for name in tables if is_nameless(name, written, declared)]
            if only := nameless or (written if len(written) == 1 else tables if len(tables) == 1 else []):
                return only[0]
        raise StoreError(
            f"step {step!r} keeps no state {wanted!r}" if wanted else f"step {step!r} keeps several states",
            where=self.url,
            expected=" or ".join(f"{step}.{name}" for name in tables) or "a state that has been written",
            found=f"{step}.{wanted}" if wanted else step,
            next_move="`headrace state STORE` lists steps and states",
        )


# --- for tools and servers: what `hr.Store` does not show


def store_over(files: Files, kind: type[S]) -> S:
    """A store by its files, which somebody has opened already."""
    store = object.__new__(kind)
    store._files = files
    store._place = None
    return store


def walk_history(
    store: Store,
    reader: Reader,
    key: bytes,
    since: int | str | datetime | Moment | None = None,
    tell: Tell | None = None,
) -> Iterator[KeyVersion[Any]]:
    """The versions of a key up to the store's epoch. ``reader``: of the state, there."""
    files, place = store._files, store._find_place()
    first = None if since is None else find_moment(files, moment_of(since))
    places = [each for each in places_until(files, place) if first is None or each >= first]
    over_time = StateOverTime(files, read_state(files, *place), reader, reader.address.partition(".")[0])
    return read_versions(over_time, places, key, tell)


def is_pinned(store: Store) -> bool:
    """Whether answers are of a moment that somebody named, and not of the newest epoch."""
    return store._place is not None


def files_of(store: Store) -> Files:
    """The files of a store."""
    return store._files


def open_state(store: Store, name: str, value: Any = None, **how: Any) -> Reader:
    """What `Store.state` takes, as a reader: a state by the bytes of its keys."""
    return store._reader(name, value, **how)


def reading(store: Store, read: Callable[[JobState], T]) -> T:
    """What a function makes of the store's epoch; called again with a newer one where a sweep was faster."""
    return store._retrying(read)


def job_state_of(store: Store) -> JobState:
    """Everything that the manifest of the store's epoch says, with the files of every step."""
    return store._retrying(lambda state: state)


def manifest_of(store: Store, epoch: int | None = None) -> Manifest:
    """What was published with an epoch, or with the store's own: sizes, times, watermarks."""
    place = store._find_place() if epoch is None else find_moment(store._files, moment_of(epoch))
    return read_manifest(store._files, *place)


def newest_manifests(store: Store, limit: int = 0) -> list[Manifest]:
    """The manifests of the newest epochs, oldest first; one that a sweep takes away meanwhile is left out."""
    manifests = []
    for place in read_places(store._files)[-limit:]:
        with contextlib.suppress(MissingFile):
            manifests.append(read_manifest(store._files, *place))
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
