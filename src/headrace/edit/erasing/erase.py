"""Erasing a key: first new files, then the manifests that name them, then the old files go; at last it is proven.

The store is held from beginning to end, so no job runs meanwhile. Every manifest of every timeline that names a run
with rows of the key is replaced by one of the same epoch and nonce that names a run without them: the one exception to
the rule that manifests never change (decision 0018). Each is whole at any moment, before and after, so a death leaves a
store that can be read and run; the same command, given again, does what is left.

Covered are runs of all epochs and savepoints, windows of partial aggregates, rows of joins, timers, rows in loops,
staged rows, half-written files, commands to drivers, and the archive of closed windows. Not covered is what else lies
outside of the store (targets of sinks, sources, copies of savepoints, backups), what sources keep in the store, and
what values of other keys say of the erased one: where the key's text stands in other places is told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.checkpoint.facts import read_facts
from headrace.checkpoint.fence import read_owner
from headrace.checkpoint.offline import StoppedJob, hold_stopped
from headrace.edit.erasing.archives import count_archived, erase_archived
from headrace.edit.erasing.content import RewrittenRun, count_rows, loop_without
from headrace.edit.erasing.keys import KeyMatch, WantedKey
from headrace.edit.erasing.mentions import find_mentions, has_slack, holds_bytes, text_needles
from headrace.edit.offline import Clock
from headrace.errors import Refused, StoreError
from headrace.model import crash
from headrace.model.amounts import count_of
from headrace.model.archive import Archive
from headrace.model.report import COUNTED, TAP, RunRef, StagedPart
from headrace.state import layout
from headrace.state.encode import run_crc
from headrace.state.manifest import ERASE, EpochNote, Manifest, StepRuns, decode_seal, encode_manifest, read_manifest
from headrace.state.run import clear_open_runs, open_ref
from headrace.state.staged_parts import open_part
from headrace.state.store import LocalStore, StoreFiles

Progress = Callable[[int, int], None]
"""Called with how many files are done, and of how many."""
Place = tuple[int, int]
"""Timeline and epoch."""


class Erasure(NamedTuple):
    """What an erasure came to."""

    epoch: int
    """The epoch that notes it."""
    rows: Mapping[str, int]
    """Step → rows of the key that lay in its runs, over all epochs."""
    looped: int
    """Rows that waited in loops."""
    archived: int
    """Windows of the key in archives."""
    manifests: int
    files: int
    """How many files were deleted."""
    read: int
    """Rows that were read afterwards, and of which none is of the key."""
    mentions: tuple[str, ...]
    """Files in which the text of the key stands all the same: in values of other keys, say."""


def erase_key(
    store: StoreFiles, key: str, *, steps: Collection[str] = (), parts: bool = False, why: str = "",
    progress: Progress | None = None, clock: Clock = time.time,
) -> Erasure:  # fmt: skip
    """Takes a key out of a stopped job's store. Raises StoreInUse where one runs, Refused where rows wait for a sink.

    ``steps``: only these. ``parts``: also keys of several parts of which it is one.
    """
    with hold_stopped(store, clock=clock) as stopped:
        _refuse_unreleased(store)
        return _Erasing(stopped, WantedKey(key, parts), steps, progress or (lambda done, total: None)).run(why, clock)


class _Erasing:
    def __init__(self, stopped: StoppedJob, key: WantedKey, steps: Collection[str], progress: Progress) -> None:
        self._stopped = stopped
        self._store = stopped.store
        self._key = key
        self._steps = frozenset(steps)
        self._progress = progress
        self._rows: Counter[str] = Counter()
        self._looped = 0
        self._archived = 0
        self._replaced: dict[object, RunRef | None] = {}
        """Run → what takes its place, as a reference to all of it; None: nothing is left of it."""
        self._new_parts: dict[str, StagedPart] = {}
        """Staged file of a loop → what takes its place."""

    def run(self, why: str, clock: Clock) -> Erasure:
        manifests = read_all_manifests(self._store)
        self._check_steps(manifests)
        runs = self._wanted_runs(manifests)
        total = 2 * len(runs) + len(manifests)
        archives = self._wanted_archives()
        # First what may be out of reach: then nothing was done.
        self._archived = sum(erase_archived(archive, match) for archive, match in archives)
        for number, (name, match, ref) in enumerate(runs, 1):
            self._rewrite_run(name, match, ref)
            self._progress(number, total)
        crash.reach("erase_rewritten", self._stopped.epoch)
        changed = 0
        for number, (place, manifest) in enumerate(manifests.items(), len(runs) + 1):
            changed += self._replace_manifest(place, manifest)
            self._progress(number, total)
        self._stopped.reload()
        files = self._delete_unnamed()
        self._prove_archives(archives)
        read = self._prove(len(runs) + len(manifests), total)
        note = EpochNote(
            kind=ERASE, by=read_owner().user, at_us=round(clock() * 1e6), why=why, changed=dict.fromkeys(self._rows, 1)
        )
        epoch = self._stopped.publish(note).epoch
        mentions = tuple(find_text(self._store, self._key.text))
        return Erasure(epoch, dict(self._rows), self._looped, self._archived, changed, files, read, mentions)

    # --- which runs

    def _check_steps(self, manifests: Mapping[Place, Manifest]) -> None:
        known = {step for manifest in manifests.values() for step in manifest.states}
        unknown = sorted(self._steps - known)
        if unknown:
            raise StoreError(
                f"no step {unknown[0]!r} keeps state in this store",
                where=self._store.url,
                expected=" or ".join(sorted(known)) or "a step that keeps state",
                found=unknown[0],
                next_move="leave out --step: a key is erased in all steps whose keys are of its type",
            )

    def _match(self, manifest: Manifest, name: str) -> KeyMatch | None:
        if layout.is_broadcast(name) or (self._steps and name not in self._steps):
            return None
        return self._key.match(manifest, name)

    def _wanted_runs(self, manifests: Mapping[Place, Manifest]) -> list[tuple[str, KeyMatch, RunRef]]:
        """Each run once, with the step that it is listed under and the keys that are meant there."""
        runs: dict[object, tuple[str, KeyMatch, RunRef]] = {}
        for manifest in manifests.values():
            for name, listed in manifest.steps.items():
                match = self._match(manifest, name)
                if match is not None:
                    for ref in (*(listed.runs or ()), *listed.added):
                        runs.setdefault(_identity(ref), (name, match, ref))
        return list(runs.values())

    def _wanted_archives(self) -> list[tuple[Archive, KeyMatch]]:
        """The archives that the newest epoch knows: earlier ones may be gone."""
        manifest = self._stopped.state.manifest
        archives: dict[str, tuple[Archive, KeyMatch]] = {}
        for step, states in manifest.states.items():
            match = self._match(manifest, step)
            for declared in states.values():
                if declared.archive is not None and match is not None:
                    archives[declared.archive.path] = declared.archive, match
        return list(archives.values())

    # --- new files

    def _rewrite_run(self, name: str, match: KeyMatch, ref: RunRef) -> None:
        run = open_ref(self._store, ref, cached=False)
        rows = count_rows(run, match)
        if rows:
            self._rows[name] += rows
        elif not (holds_bytes(self._bytes_of(ref), self._needles(match)) and has_slack(run)):
            return
        made = RewrittenRun(run, match)
        path, inline = "", b""
        if ref.file:
            old = layout.parse_run(ref.file)
            epoch, shard = (ref.epoch, ref.lo) if old is None else (old.epoch, old.shard)
            path = layout.run(layout.step_of(name) if old is None else old.step, epoch, shard, self._stopped.new_uid())
            self._store.write(path, made)
        else:
            inline = b"".join(bytes(piece) for piece in made)
        left = made.encoder
        self._replaced[_identity(ref)] = None if not left.rows else msgspec.structs.replace(
            ref, lo=run.lo, hi=run.hi, rows=left.rows, size_bytes=left.size_bytes, crc=left.crc, file=path,
            inline=inline,
        )  # fmt: skip
        if not left.rows and path:
            self._store.delete(path)

    def _needles(self, match: KeyMatch) -> tuple[bytes, ...]:
        return (*match.needles, *text_needles(self._key.text))

    def _bytes_of(self, ref: RunRef) -> Any:
        return self._store.open_buffer(ref.file, ref.crc) if ref.file else ref.inline

    # --- manifests

    def _replace_manifest(self, place: Place, manifest: Manifest) -> bool:
        steps = {name: self._without_key(listed) for name, listed in manifest.steps.items()}
        loops = manifest.loops
        if not self._steps:
            # Rows of a loop are of no step yet.
            loops = {loop: [self._loop_part(part) for part in parts] for loop, parts in loops.items()}
        # What they staged is out, and nobody asks for it again.
        clean = msgspec.structs.replace(manifest, steps=steps, loops=loops, outputs={})
        if clean == manifest:
            return False
        self._store.write(layout.manifest(*place), encode_manifest(clean))
        crash.reach("erase_manifest", place[1])
        return True

    def _without_key(self, listed: StepRuns) -> StepRuns:
        runs = None if listed.runs is None else self._with_new(listed.runs)
        return StepRuns(runs, self._with_new(listed.added))

    def _with_new(self, refs: Sequence[RunRef]) -> list[RunRef]:
        made = []
        for ref in refs:
            new = self._replaced.get(_identity(ref), ref)
            if new is ref:
                made.append(ref)
            elif new is not None:
                # A reference may see a part of the run only.
                share = (ref.hi - ref.lo) / (new.hi - new.lo)
                made.append(msgspec.structs.replace(new, lo=ref.lo, hi=ref.hi, rows=round(new.rows * share)))
        return made

    def _loop_part(self, part: StagedPart) -> StagedPart:
        known = self._new_parts.get(part.file) if part.file else None
        if known is not None:
            return known
        before = open_part(self._store, part)
        data, rows, gone = loop_without(before, self._key.text)
        if not gone and not holds_bytes(before, text_needles(self._key.text)):
            return part
        self._looped += gone
        new = msgspec.structs.replace(part, rows=rows, size_bytes=data.size)
        if not part.file:
            return msgspec.structs.replace(new, inline=data.to_pybytes())
        name = layout.parse_staged(part.file)
        if name is None:
            raise StoreError(
                "a file of staged rows has a strange name",
                where=self._store.url,
                expected="a name as this version of headrace gives it",
                found=part.file,
                next_move="erase with the version that wrote the store, or report it with this name",
            )
        path = layout.staged(name.epoch, name.output, name.shard, self._stopped.new_uid(), name.extension)
        self._store.write(path, data)
        new = self._new_parts[part.file] = msgspec.structs.replace(new, file=path, crc=run_crc(data))
        return new

    # --- old files

    def _delete_unnamed(self) -> int:
        """Everything that no manifest names any more, and what lies beside the epochs."""
        named = {path for manifest in read_all_manifests(self._store).values() for path in named_files(manifest)}
        folders = (layout.RUNS, layout.STAGED, layout.COMMANDS)
        gone = [path for folder in folders for path in self._store.list(folder) if path not in named]
        for path in gone:
            self._store.delete(path)
            self._store.forget(path)
            crash.reach("erase_deleting", self._stopped.epoch)
        if isinstance(self._store, LocalStore):
            self._store.clean_temporaries(max_age_s=0)
        return len(gone)

    # --- proof

    def _prove_archives(self, archives: Sequence[tuple[Archive, KeyMatch]]) -> None:
        for archive, match in archives:
            if rows := count_archived(archive, match):
                raise _still_there(archive.path, f"{rows:,}")

    def _prove(self, done: int, total: int) -> int:
        """Reads every row of every run that the manifests name now. Raises StoreError where one is of the key."""
        clear_open_runs()
        manifests = read_all_manifests(self._store)
        read = 0
        for number, (_, match, ref) in enumerate(self._wanted_runs(manifests), 1):
            run = open_ref(self._store, ref, cached=False)
            rows = count_rows(run, match)
            if rows:
                raise _still_there(f"{self._store.url}, {ref.file or 'inside of a manifest'}", f"{rows:,}")
            read += run.rows
            self._progress(min(done + number, total), total)
        return read


def read_all_manifests(store: StoreFiles) -> dict[Place, Manifest]:
    """The manifests of all timelines; the record that seals a timeline is none."""
    found: dict[Place, Manifest] = {}
    for path in store.list(layout.MANIFESTS):
        name = layout.parse_manifest(path)
        if name is not None and decode_seal(store.read(path)) is None:
            found[name.timeline, name.epoch] = read_manifest(store, *name)
    return found


def find_text(store: StoreFiles, text: str) -> list[str]:
    """The files of a store in which a text stands."""
    manifests = read_all_manifests(store).items()
    return find_mentions(store, [(layout.manifest(*place), manifest) for place, manifest in manifests], text)


def named_files(manifest: Manifest) -> list[str]:
    """The files that a manifest names itself."""
    refs = [ref.file for ref in _refs_of(manifest)]
    return [*refs, *(part.file for parts in manifest.loops.values() for part in parts)]


def _refs_of(manifest: Manifest) -> list[RunRef]:
    return [ref for listed in manifest.steps.values() for ref in (*(listed.runs or ()), *listed.added)]


def _still_there(where: str, found: str) -> StoreError:
    return StoreError(
        "rows of the key are still there",
        where=where,
        expected="no row of the key",
        found=found,
        next_move="erase it again; this should not happen, so report it",
    )


def _identity(ref: RunRef) -> object:
    return ref.file or (ref.epoch, ref.crc, ref.size_bytes)


def _refuse_unreleased(store: StoreFiles) -> None:
    manifest = read_facts(store).unreleased
    waiting = {} if manifest is None else {
        output: sum(part.rows for part in parts if part.format != COUNTED)
        for output, parts in manifest.outputs.items()
        if not output.startswith(TAP)
    }  # fmt: skip
    rows = {output: count for output, count in waiting.items() if count}
    if manifest is not None and rows:
        raise Refused(
            f"rows of epoch {manifest.epoch} have not come to their sinks yet, as far as is known",
            where=store.url,
            expected="all outputs released, so that nothing of the key waits to go out",
            found=", ".join(f"{count_of(count, 'row')} for {output}" for output, count in rows.items()),
            next_move="start the job and stop it again: a start releases them first",
        )
