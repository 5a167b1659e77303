"""Sweeping: deleting what no kept manifest needs. The decision is pure; the hands can be killed at any moment.

A run goes only if all of this holds: it belongs to an epoch before the last published one; it was written under the
sweeper's fence or an older one; no kept manifest and no savepoint names it; no fold in progress has written it. Staged
rows go once a later epoch is published: by then they were released; those of loops stay as long as a kept manifest
names them, because whoever goes on from it reads them. Manifests that go, go first and newest first, so that whatever
a killed sweep leaves behind is readable or unnamed.

Never deleted: fences (a paused driver learns from them that it is out, also after the manifest it would have met is
gone), the newest manifest of each timeline (its name is taken for good), and anything that is not known by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from headrace.errors import CorruptFile, MissingFile
from headrace.model import crash
from headrace.state import layout
from headrace.state.checked import checked_text
from headrace.state.manifest import JobState
from headrace.state.store import StoreFiles

T = TypeVar("T")

RETAIN_AT_LEAST: Final = 2
"""Spark's log is rebuilt from the last two manifests."""


@dataclass(frozen=True)
class ManifestFact:
    timeline: int
    epoch: int
    parent: int | None = None
    """The epoch, in the same timeline, whose manifest it must be read with; ``None`` when it is complete in itself."""
    files: frozenset[str] = frozenset()
    """The runs, and the rows of loops, that it names itself."""


@dataclass(frozen=True)
class SweepFacts:
    timeline: int
    epoch: int
    """The last published epoch."""
    fence: int
    newest_fence: int
    retain: int
    """How many manifests of the timeline are kept, the newest ones."""
    manifests: tuple[ManifestFact, ...]
    savepoints: frozenset[tuple[int, int]] = frozenset()
    """Timeline and epoch of each."""
    files: tuple[str, ...] = ()
    """Runs and staged rows that lie in the store."""
    spared: frozenset[str] = frozenset()
    """Runs that a fold has written and the next manifest will name."""


@dataclass(frozen=True)
class Sweep:
    """What to delete, in this order."""

    manifests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def decide_sweep(facts: SweepFacts) -> Sweep:
    if facts.newest_fence > facts.fence:
        return Sweep()
    by_name = {(fact.timeline, fact.epoch): fact for fact in facts.manifests}
    if (facts.timeline, facts.epoch) not in by_name:
        # The listing is older than the manifest: too old to decide on.
        return Sweep()
    kept = _kept_manifests(facts, by_name)
    named = facts.spared.union(*(by_name[name].files for name in kept))
    gone = sorted(by_name.keys() - kept, key=lambda name: name[1], reverse=True)
    return Sweep(
        manifests=tuple(layout.manifest(timeline, epoch) for timeline, epoch in gone),
        files=tuple(path for path in facts.files if path not in named and _is_over(path, facts)),
    )


def execute_sweep(store: StoreFiles, sweep: Sweep, epoch: int) -> int:
    """Deletes; answers how many files. Whatever is left by a kill is found again by the next sweep."""
    for path in (*sweep.manifests, *sweep.files):
        crash.reach("sweeping", epoch)
        store.delete(path)
    return len(sweep.manifests) + len(sweep.files)


def _kept_manifests(facts: SweepFacts, by_name: Mapping[tuple[int, int], ManifestFact]) -> frozenset[tuple[int, int]]:
    keep = max(facts.retain, RETAIN_AT_LEAST)
    recent = sorted((epoch for timeline, epoch in by_name if timeline == facts.timeline), reverse=True)[:keep]
    kept = {(facts.timeline, epoch) for epoch in recent} | (facts.savepoints & by_name.keys())
    newest: dict[int, int] = {}
    for timeline, epoch in by_name:
        newest[timeline] = max(epoch, newest.get(timeline, 0))
    kept |= newest.items()
    return frozenset(_with_parents(kept, by_name))


def _with_parents(
    names: set[tuple[int, int]], by_name: Mapping[tuple[int, int], ManifestFact]
) -> Iterator[tuple[int, int]]:
    seen: set[tuple[int, int]] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        yield name
        parent = by_name[name].parent
        if parent is not None:
            waiting.append((name[0], parent))


def _is_over(path: str, facts: SweepFacts) -> bool:
    """Whether a file that nobody names can be deleted: old enough, and not a newer driver's."""
    name = layout.parse_run(path) or layout.parse_staged(path)
    if name is None or name.epoch >= facts.epoch:
        return False
    fence = layout.uid_fence(name.uid)
    return fence is not None and fence <= facts.fence


# --- reading the facts


class _Ref(msgspec.Struct):
    file: str = ""


class _RunLists(msgspec.Struct):
    runs: list[_Ref] | None = None
    added: list[_Ref] = []


class _Named(msgspec.Struct):
    """Of a manifest only what a sweep must know; a record that seals a timeline has none of it."""

    parent_epoch: int = -1
    full: bool = False
    steps: dict[str, _RunLists] = {}
    loops: dict[str, list[_Ref]] = {}


class _Savepoint(msgspec.Struct):
    timeline: int
    epoch: int


_known: WeakKeyDictionary[StoreFiles, dict[str, ManifestFact]] = WeakKeyDictionary()
"""What was read once is not read again: manifests never change."""


def sweep_store(store: StoreFiles, state: JobState, *, fence: int, retain: int, spared: Set[str] = frozenset()) -> int:
    """Reads the facts, decides, deletes; answers how many files went.

    Call after ``state`` was published, and never while a fold writes a file that is not in ``spared``.
    """
    facts = read_facts(store, state, fence=fence, retain=retain, spared=spared)
    gone = execute_sweep(store, decide_sweep(facts), state.epoch)
    store.tidy()
    return gone


def read_facts(store: StoreFiles, state: JobState, *, fence: int, retain: int, spared: Set[str]) -> SweepFacts:
    # Files are listed before manifests: a run that a manifest names by now was either listed and is known to be named,
    # or was not listed and is left alone.
    files = (*store.list(layout.RUNS), *store.list(layout.STAGED))
    fences = [number for path in store.list(layout.FENCES) if (number := layout.parse_fence(path)) is not None]
    manifests = _read_manifests(store)
    return SweepFacts(
        timeline=state.manifest.timeline,
        epoch=state.epoch,
        fence=fence,
        newest_fence=max(fences, default=fence),
        retain=retain,
        manifests=manifests,
        savepoints=frozenset(_read_savepoints(store)),
        files=files,
        spared=frozenset(spared),
    )


def _read_manifests(store: StoreFiles) -> tuple[ManifestFact, ...]:
    before = _known.get(store, {})
    facts: dict[str, ManifestFact] = {}
    for path in store.list(layout.MANIFESTS):
        name = layout.parse_manifest(path)
        if name is not None:
            facts[path] = before.get(path) or _read_manifest(store, path, name)
    _known[store] = facts
    return tuple(facts.values())


def _read_manifest(store: StoreFiles, path: str, name: layout.ManifestName) -> ManifestFact:
    named = _decode(store, path, _Named, checked_text)
    refs = [ref for step in named.steps.values() for ref in (*(step.runs or ()), *step.added)]
    refs += [part for parts in named.loops.values() for part in parts]
    complete = named.full or named.parent_epoch < 0
    return ManifestFact(
        name.timeline,
        name.epoch,
        None if complete else named.parent_epoch,
        frozenset(ref.file for ref in refs if ref.file),
    )


def _read_savepoints(store: StoreFiles) -> Iterator[tuple[int, int]]:
    for path in store.list(layout.SAVEPOINTS):
        # A person may delete a savepoint at any time.
        with contextlib.suppress(MissingFile):
            savepoint = _decode(store, path, _Savepoint)
            yield savepoint.timeline, savepoint.epoch


def _decode(store: StoreFiles, path: str, kind: type[T], text_of: Callable[[bytes], bytes] = bytes) -> T:
    try:
        return msgspec.json.decode(text_of(store.read(path)), type=kind)
    except msgspec.DecodeError as error:
        raise CorruptFile(
            "nothing is swept while a record cannot be read",
            where=f"{store.url}/{path}",
            found=str(error),
            next_move="restore the file from a copy of the store, or move it away if it is none of ours",
        ) from error
