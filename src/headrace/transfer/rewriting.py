"""A store for another type of keys, or another number of key groups: a new one, with every run written anew.

Runs are rewritten one by one, in the order in which they stand, and keep their epochs and the versions of their types.
So what hides what stays as it is, for every kind of table, and nothing has to be understood but keys. Where only the
number of key groups changes, rows stay where they are, because a key group is the top of a key's hash; under other
keys they are sorted anew, in bounded memory.

Everything else comes along: offsets, watermarks, loops and their rows, what sources keep, logs of what they have read.
Rows that the epoch put out do not: the old store releases them. The new one has an id of its own, and shares no file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from headrace.checkpoint.publish import new_nonce
from headrace.errors import StoreError
from headrace.model.ids import KEY_GROUPS
from headrace.model.keys import hash_encoded
from headrace.model.time import Timestamp
from headrace.model.time_shape import TIME
from headrace.model.type_shape import describe_type
from headrace.read.steps import steps_of
from headrace.state import layout
from headrace.state.checking import read_pieces
from headrace.state.format import TableData
from headrace.state.lookup import Layers
from headrace.state.manifest import EpochNote, StepRuns
from headrace.state.run import open_ref
from headrace.state.savepoints import StoredFile
from headrace.state.spark_offsets import entries_read
from headrace.transfer.counting import DoneRows, Progress
from headrace.transfer.making import begin_store, finish_store, system_user
from headrace.transfer.rekeying import KeyFunction, KeyMap, by_type, key_words
from headrace.transfer.runs import FIRST_FENCE, RunPlace, RunSorter

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.model.report import RunRef, StagedPart
    from headrace.state.manifest import JobState, Manifest
    from headrace.state.store import StoreFiles

_MOST_GROUPS = 1 << 15


class NewKeys(NamedTuple):
    """What becomes of the keys of a step."""

    annotation: Any = None
    """The new type; None where only a function says it."""
    function: KeyFunction | None = None


class RewriteReport(NamedTuple):
    """What a store was rewritten to."""

    store: str
    app: str
    epoch: int
    key_groups: int
    rows: dict[str, int]
    """Step → rows of its runs."""
    size_bytes: int


def rewrite_store(
    source: StoreFiles,
    state: JobState,
    target: StoreFiles,
    *,
    keys: Mapping[str, NewKeys] | None = None,
    key_groups: int | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
) -> RewriteReport:
    """Makes a new store of one epoch. A rewrite that was interrupted is begun again."""
    groups = state.manifest.key_groups if key_groups is None else key_groups
    _check_groups(groups)
    _check_steps(source, state, keys or {})
    if target.url == source.url:
        raise StoreError("a store cannot be rewritten in its place", where=source.url, expected="another folder or URL",
                         found=target.url, next_move="give a new one; the old store stays as it is")  # fmt: skip
    mark = begin_store(target, state.manifest.app, f"a rewrite of {source.url}")
    work = _Rewrite(source, state, target, dict(keys or {}), groups, progress)
    runs = work.runs()
    work.copy_files()
    refs = [ref for refs in runs.values() for ref in refs]
    manifest = _derive_manifest(state, runs, dict(keys or {}), groups, round(clock() * 1e6))
    finish_store(target, mark, manifest, clock=clock)
    rows = {name: sum(ref.rows for ref in refs) for name, refs in runs.items() if refs}
    return RewriteReport(target.url, manifest.app, manifest.epoch, groups, rows, sum(ref.size_bytes for ref in refs))


def _check_groups(groups: int) -> None:
    if groups < 1 or groups & (groups - 1) or groups > _MOST_GROUPS:
        raise StoreError(
            "a store cannot have this number of key groups",
            where="--key-groups",
            expected=f"a power of two, up to {_MOST_GROUPS:,}",
            found=str(groups),
            next_move=f"choose {KEY_GROUPS}, 256 or 512: it bounds how many shards a job may have",
        )


def _check_steps(source: StoreFiles, state: JobState, keys: Mapping[str, NewKeys]) -> None:
    known = steps_of(state)
    for step in keys:
        if step not in known:
            raise StoreError(
                "no such step keeps state", where=source.url, expected=" or ".join(known) or "a step that has written",
                found=step, next_move="`headrace state STORE` lists steps and states",
            )  # fmt: skip


class _Rewrite:
    def __init__(
        self, source: StoreFiles, state: JobState, target: StoreFiles, keys: dict[str, NewKeys], groups: int,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._source, self._state, self._target = source, state, target
        self._keys, self._groups = keys, groups
        self._done = DoneRows(sum(ref.rows for refs in state.runs.values() for ref in refs), progress)

    def runs(self) -> dict[str, list[RunRef]]:
        """Every step with its runs, newest first."""
        made = {}
        for listed, refs in self._state.runs.items():
            if refs:
                key_map = None if layout.is_broadcast(listed) else self._key_map(listed)
                written = [self._rewrite(listed, ref, key_map) for ref in refs]
                made[listed] = [ref for ref in written if ref is not None]
                if key_map is not None:
                    key_map.check()
        return made

    def _key_map(self, step: str) -> KeyMap | None:
        new = self._keys.get(step)
        if new is None:
            return None
        times = next((each.key_times for each in self._state.manifest.states.get(step, {}).values()), None)
        function = new.function or by_type(new.annotation, times)
        expected = "a key" if new.annotation is None else key_words(new.annotation)
        return KeyMap(step, function, expected)

    def _rewrite(self, listed: str, ref: RunRef, key_map: KeyMap | None) -> RunRef | None:
        """One run, as far as its reference speaks for it. Broadcast states and inline runs become files as well."""
        place = RunPlace(listed, ref.epoch, 0, self._groups, self._groups)
        sorter = RunSorter(self._target, place, unique=False, keeps_dead=True)
        for table in self._tables(ref):
            sorter.add([table if key_map is None else _rekey(table, key_map)])
            self._done.add(table.batch.num_rows)
        found = sorter.finish()
        # Runs of several chunks hold rows of one run, none of which hides another.
        return replace(found[0], epoch=ref.epoch, level=ref.level, version=ref.version) if found else None

    def _tables(self, ref: RunRef) -> Iterator[TableData]:
        groups = self._state.manifest.key_groups
        run = open_ref(self._source, ref, cached=False)
        layers = Layers([(ref, run)], lo=0, hi=groups, groups=groups)
        for name, kind in layers.tables.items():
            for view in layers.views(name):
                for number in range(len(view.table)):
                    block = view.table.block(number)
                    mine = view.in_range(block.hash)
                    batch = block.batch if mine.all() else block.batch.filter(pa.array(mine))
                    if batch.num_rows:
                        yield TableData(name, kind, batch)

    def copy_files(self) -> None:
        """Rows of loops, what sources keep, and their logs."""
        manifest = self._state.manifest
        parts = [part for parts in manifest.loops.values() for part in parts if part.file]
        files = [StoredFile(part.file, part.size_bytes, part.crc) for part in parts]
        beside = [*entries_read(self._source.list(layout.INPUTS), manifest.offsets), *self._source.list(layout.KEPT)]
        for file in (*files, *(StoredFile(path, 0, None) for path in beside)):
            self._target.write(file.path, read_pieces(self._source, file, lambda count: None))


def _rekey(table: TableData, key_map: KeyMap) -> TableData:
    batch = table.batch
    keys = key_map.convert(batch.column("key"))
    columns = {"key": keys, "hash": pa.array(hash_encoded(keys))}
    arrays = [columns.get(field.name, batch.column(field.name)) for field in batch.schema]
    return TableData(table.name, table.kind, pa.RecordBatch.from_arrays(arrays, schema=batch.schema))


def _derive_manifest(
    state: JobState, runs: Mapping[str, list[RunRef]], keys: Mapping[str, NewKeys], groups: int, now_us: int
) -> Manifest:
    """The first epoch of the new store. It keeps its number, by which what is stored is ordered."""
    before = state.manifest
    states = {
        step: {name: _with_key(known, keys.get(step)) for name, known in mine.items()}
        for step, mine in before.states.items()
    }
    loops: dict[str, list[StagedPart]] = dict(before.loops)
    return replace(
        before,
        timeline=0,
        nonce=new_nonce(),
        fence=FIRST_FENCE,
        parallelism=min(before.parallelism, groups),
        key_groups=groups,
        parent_epoch=-1,
        parent_timeline=None,
        parent="",
        full=True,
        steps={name: StepRuns(runs=refs) for name, refs in runs.items()},
        states=states,
        outputs={},
        held=[],
        loops=loops,
        tasks=[],
        took_us={},
        paced=None,
        released_us={},
        notes=[EpochNote(kind="rewrite", by=system_user(), at_us=now_us, why=_reason(keys, groups, before))],
        offline=before.epoch + 1,
    )


def _reason(keys: Mapping[str, NewKeys], groups: int, before: Manifest) -> str:
    """What was to change, in words."""
    words = [f"other keys for {step}" for step in keys]
    if groups != before.key_groups:
        words.append(f"{groups} key groups instead of {before.key_groups}")
    return ", ".join(words)


def _with_key(known: DeclaredState, new: NewKeys | None) -> DeclaredState:
    if new is None or known.kind == "broadcast":
        return known
    annotation = new.annotation
    times = TIME if annotation is Timestamp else None
    return replace(known, key_type=None if annotation is None else describe_type(annotation), key_times=times)
