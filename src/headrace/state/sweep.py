"""Sweeping: deleting what no kept manifest needs. The decision is pure; the hands can be killed at any moment.

The manifest of an epoch goes only if all of this holds: it is outside of what is retained; no savepoint pins it, nor an
epoch that is read with it; and an earlier sweep of this driver has condemned it, in a durable record, before this one
read the pins (why that is enough, `headrace.state.condemned` says). So an epoch goes one sweep after it is let go.

A run goes only if all of this holds: it belongs to an epoch before the last published one; it was written under the
sweeper's fence or an older one; no manifest that stays names it, condemned or not; no fold in progress has written it.
Staged rows go once a later epoch is published: by then they were released; those of loops stay as long as a manifest
names them, because whoever goes on from it reads them. Manifests that go, go first and newest first, so that whatever
a killed sweep leaves behind is readable or unnamed.

What is retained are the newest epochs of the lineage: behind a rewind those that it continues count, and those that it
abandoned do not. They go, but for the last, which the rewind has pinned.

Never deleted: fences (a paused driver learns from them that it is out, also after the manifest it would have met is
gone), the newest manifest, or the seal, of each timeline (its name is taken for good), and anything that is not known
by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec

from headrace.errors import CorruptFile
from headrace.model import crash
from headrace.model.retention import EpochTime, Retention, derive_retained
from headrace.state import layout
from headrace.state.checked import decode_checked
from headrace.state.condemned import Epochs, drop_condemned, read_condemned, write_condemned
from headrace.state.lineage import Lineage, TimelinePart, derive_lineage, is_in
from headrace.state.manifest import JobState
from headrace.state.record import Branch, read_record
from headrace.state.savepoints import list_savepoints
from headrace.state.store import StoreFiles

T = TypeVar("T")


@dataclass(frozen=True)
class ManifestFact:
    timeline: int
    epoch: int
    parent: int | None = None
    """The epoch, in the same timeline, whose manifest it must be read with; ``None`` when it is complete in itself."""
    files: frozenset[str] = frozenset()
    """The runs, and the rows of loops, that it names itself."""
    clock_us: int = 0
    """When it was published."""
    seal: bool = False
    """Whether it is no manifest, and ends its timeline."""

    @property
    def name(self) -> layout.ManifestName:
        return layout.ManifestName(self.timeline, self.epoch)


@dataclass(frozen=True)
class SweepFacts:
    timeline: int
    epoch: int
    """The last published epoch."""
    fence: int
    newest_fence: int
    retain: Retention
    """Which manifests of the timeline are kept."""
    lineage: Lineage
    """What leads to that epoch."""
    manifests: tuple[ManifestFact, ...]
    condemned: Mapping[int, Epochs]
    """Fence → the epochs that its driver may delete; read before the savepoints."""
    savepoints: Epochs = frozenset()
    files: tuple[str, ...] = ()
    """Runs and staged rows that lie in the store."""
    spared: frozenset[str] = frozenset()
    """Runs that a fold has written and the next manifest will name."""


@dataclass(frozen=True)
class Sweep:
    """What to delete, in this order, and what to write down then."""

    manifests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    condemned: Epochs | None = None
    """What the next sweep may delete; None: the record says so already."""
    finished: tuple[int, ...] = ()
    """Fences of drivers that are gone, of whose records nothing is left to delete."""
    kept: int = 0
    """How many manifests stay."""


def decide_sweep(facts: SweepFacts) -> Sweep:
    if facts.newest_fence > facts.fence:
        return Sweep()
    by_name = {fact.name: fact for fact in facts.manifests}
    if (facts.timeline, facts.epoch) not in by_name:
        # The listing is older than the manifest: too old to decide on.
        return Sweep()
    outside = by_name.keys() - _kept_manifests(facts, by_name)
    before = facts.condemned.get(facts.fence, frozenset())
    gone, condemned = outside & before, frozenset(outside - before)
    staying = by_name.keys() - gone
    named = facts.spared.union(*(by_name[name].files for name in staying))
    return Sweep(
        manifests=tuple(layout.manifest(*name) for name in sorted(gone, key=lambda name: name.epoch, reverse=True)),
        files=tuple(path for path in facts.files if path not in named and _is_over(path, facts)),
        condemned=None if condemned == before else condemned,
        finished=tuple(
            fence for fence, epochs in facts.condemned.items() if fence < facts.fence and not epochs & staying
        ),
        kept=len(staying),
    )


def execute_sweep(store: StoreFiles, sweep: Sweep, *, fence: int, epoch: int) -> int:
    """Deletes; answers how many files. Whatever is left by a kill is found again by the next sweep."""
    for path in (*sweep.manifests, *sweep.files):
        crash.reach("sweeping", epoch)
        store.delete(path)
    if sweep.condemned is not None:
        # Only now: until they were gone, the record had to name those that went.
        crash.reach("sweeping", epoch)
        write_condemned(store, fence, sweep.condemned)
    for other in sweep.finished:
        drop_condemned(store, other)
    return len(sweep.manifests) + len(sweep.files)


def _kept_manifests(facts: SweepFacts, by_name: Mapping[layout.ManifestName, ManifestFact]) -> Epochs:
    line = {fact.epoch: fact for fact in facts.manifests if not fact.seal and is_in(fact.name, facts.lineage)}
    times = [EpochTime(epoch, fact.clock_us) for epoch, fact in sorted(line.items())]
    kept = {line[epoch].name for epoch in derive_retained(times, facts.retain)}
    kept |= facts.savepoints & by_name.keys()
    newest: dict[int, int] = {}
    for timeline, epoch in by_name:
        newest[timeline] = max(epoch, newest.get(timeline, 0))
    kept |= {layout.ManifestName(*name) for name in newest.items()}
    return frozenset(_with_parents(kept, by_name))


def _with_parents(
    names: set[layout.ManifestName], by_name: Mapping[layout.ManifestName, ManifestFact]
) -> Iterator[layout.ManifestName]:
    seen: set[layout.ManifestName] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        yield name
        parent = by_name[name].parent
        if parent is not None:
            waiting.append(layout.ManifestName(name.timeline, parent))


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


class _NamedFiles(msgspec.Struct):
    """Of a manifest only what a sweep must know; a record that seals a timeline has none of it."""

    parent_epoch: int = -1
    full: bool = False
    steps: dict[str, _RunLists] = {}
    loops: dict[str, list[_Ref]] = {}
    clock_us: int = 0
    continues: Branch | None = None


_known: WeakKeyDictionary[StoreFiles, dict[str, ManifestFact]] = WeakKeyDictionary()
"""What was read once is not read again: manifests never change."""


def sweep_store(
    store: StoreFiles, state: JobState, *, fence: int, retain: Retention, spared: Set[str] = frozenset()
) -> Sweep:
    """Reads the facts, decides, deletes; answers what went and what may go next time.

    Call after ``state`` was published, and never while a fold writes a file that is not in ``spared``.
    """
    facts = read_facts(store, state, fence=fence, retain=retain, spared=spared)
    sweep = decide_sweep(facts)
    execute_sweep(store, sweep, fence=fence, epoch=state.epoch)
    store.tidy()
    return sweep


def read_facts(
    store: StoreFiles, state: JobState, *, fence: int, retain: Retention, spared: Set[str] = frozenset()
) -> SweepFacts:
    # Files are listed before manifests: a run that a manifest names by now was either listed and is known to be named,
    # or was not listed and is left alone. Savepoints are read last, behind what earlier sweeps condemned.
    files = (*store.list(layout.RUNS), *store.list(layout.STAGED))
    record, place = read_record(store), state.manifest.place
    fences = [number for path in store.list(layout.FENCES) if (number := layout.parse_fence(path)) is not None]
    condemned = read_condemned(store)
    manifests = _read_manifests(store)
    return SweepFacts(
        timeline=state.manifest.timeline,
        epoch=state.epoch,
        fence=fence,
        newest_fence=max(fences, default=fence),
        retain=retain,
        lineage=(TimelinePart(*place),) if record is None else derive_lineage(record, place),
        manifests=manifests,
        condemned=condemned,
        savepoints=frozenset(savepoint.place for savepoint in list_savepoints(store)),
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
    named = _decode(store, path, _NamedFiles)
    refs = [ref for step in named.steps.values() for ref in (*(step.runs or ()), *step.added)]
    refs += [part for parts in named.loops.values() for part in parts]
    complete = named.full or named.parent_epoch < 0
    return ManifestFact(
        name.timeline,
        name.epoch,
        None if complete else named.parent_epoch,
        frozenset(ref.file for ref in refs if ref.file),
        named.clock_us,
        seal=named.continues is not None,
    )


def _decode(store: StoreFiles, path: str, kind: type[T]) -> T:
    try:
        return decode_checked(store.read(path), kind)
    except msgspec.DecodeError as error:
        raise CorruptFile(
            "nothing is swept while a record cannot be read",
            where=f"{store.url}/{path}",
            found=str(error),
            next_move="restore the file from a copy of the store, or move it away if it is none of ours",
        ) from error
