"""Folding and sweeping: beside the epochs, which never wait for it.

`Upkeep` is the work, done when somebody asks for it; `Maintainer` is the thread that asks in production.

A fold changes the list of a step's runs, never the content; its result takes effect with the next manifest, and if the
list has changed in the meantime so that it no longer fits, it is dropped. A sweep deletes only what no kept
manifest names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.checkpoint.sparklog import oldest_offsets, sweep_inputs
from headrace.errors import HeadraceError
from headrace.model.ids import MIN_TIME
from headrace.model.job import JobFacts, derive_states
from headrace.model.keys import group_range
from headrace.model.report import RunRef
from headrace.model.retention import parse_retention
from headrace.state import layout
from headrace.state.adapters import Adapters
from headrace.state.fold import RunFold, apply_fold, plan_folds, plan_rewrite, write_fold
from headrace.state.manifest import JobState
from headrace.state.shard import EVENT_DUE, WALL_DUE
from headrace.state.store import StoreFiles
from headrace.state.sweep import sweep_store

log = logging.getLogger("headrace.maintenance")

SWEEP_EVERY = 8
"""Epochs between two sweeps; more where many are retained, because a sweep looks at each of them."""
INLINE_FOLD_BYTES = 16 * 1024


@dataclass(frozen=True)
class _FinishedFold:
    step: str
    fold: RunFold
    result: RunRef | None


class Upkeep:
    """Folds and sweeps one store, on the thread of whoever asks for it."""

    def __init__(
        self, store: StoreFiles, job: JobFacts, fence: int, *, retain: int | str, inline_bytes: int = INLINE_FOLD_BYTES,
        swept: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """``retain``: as the settings say it. ``inline_bytes``: a folded run of at most this size travels inline.
        ``swept``: called after each sweep.
        """
        self._store = store
        self._job = job
        self._fence = fence
        self._retain = parse_retention(retain)
        self._swept = swept
        self._inline_bytes = inline_bytes
        self._cuts = [group_range(shard, job.parallelism, job.key_groups).start for shard in range(job.parallelism)]
        self._wake = threading.Condition()
        self._state: JobState | None = None
        self._done: list[_FinishedFold] = []
        self._taken: set[str] = set()
        """Folded runs that the manifest in the making will name: no sweep may take them before it is there."""
        self._closing = False

    def take_folds(self, state: JobState) -> dict[str, tuple[RunRef, ...]]:
        with self._wake:
            done, self._done = self._done, []
            self._taken |= _files(done)
        changed: dict[str, tuple[RunRef, ...]] = {}
        for finished in done:
            before = changed.get(finished.step, state.runs.get(finished.step, ()))
            after = apply_fold(before, finished.fold, finished.result)
            if after is not None:
                changed[finished.step] = after
        return changed

    def published(self, state: JobState) -> None:
        with self._wake:
            self._state = state
            self._taken = set()
            self._wake.notify()

    def fold(self, state: JobState) -> None:
        """Folds what is worth folding in the newest published state; the next manifest will say so."""
        if self._done:
            # A finished fold has to be in a manifest before the next is planned on top of it.
            return
        for step in state.runs:
            try:
                self._fold_step(state, step)
            except Exception as error:
                self._put_off(step, error)

    def _fold_step(self, state: JobState, step: str) -> None:
        refs, cuts = state.runs[step], [0] if layout.is_broadcast(step) else self._cuts
        adapters = self._adapters(state, step)
        folds = plan_folds(refs, cuts)
        if not folds and adapters is not None:
            # Nothing else to do here: time for what lies in old versions and would be left alone.
            rewrite = plan_rewrite(refs, cuts, adapters.version)
            folds = [] if rewrite is None else [rewrite]
        for fold in folds:
            if self._closing:
                return
            if adapters is None and len({ref.version for ref in fold.inputs}) > 1:
                # The program has given up the step: nobody knows how to read its older values.
                continue
            result = self._fold(state, step, fold)
            with self._wake:
                self._done.append(_FinishedFold(step, fold, result))

    def _adapters(self, state: JobState, step: str) -> Adapters | None:
        """What rewrites values of older versions, of a step of the program."""
        name = layout.step_of(step)
        if name not in self._job.states:
            return None
        states = derive_states(self._job.states, state.manifest.states, self._job.was)[name]
        annotations = self._job.annotations.get(name, {})
        return Adapters(name, states, self._job.migrations, annotations, rewrites=True)

    def sweep(self, state: JobState) -> int:
        """Deletes what no kept manifest names; ``state`` is the newest published one. Answers how many epochs stay.

        An epoch is let go by one sweep and deleted by the next.
        """
        with self._wake:
            spared = _files(self._done) | self._taken
        sweep = sweep_store(self._store, state, fence=self._fence, retain=self._retain, spared=spared)
        sweep_inputs(self._store, oldest_offsets(self._store))
        if self._swept is not None:
            self._swept()
        return sweep.kept

    def _put_off(self, step: str, error: Exception) -> None:
        """What becomes of a fold that fails; who asked for it wants to know."""
        raise error

    def _fold(self, state: JobState, step: str, fold: RunFold) -> RunRef | None:
        manifest, adapters = state.manifest, self._adapters(state, step)
        # Named by the newest published epoch: a sweep leaves files of that epoch alone, also those nobody names yet.
        path = layout.run(step, state.epoch, fold.lo, layout.new_uid(self._fence))
        watermark = manifest.time.steps.get(step, MIN_TIME)
        now = {"wall": manifest.clock_us, "event": watermark}
        return write_fold(
            self._store,
            fold,
            path,
            groups=self._job.key_groups,
            clocks={
                **manifest.ended_ttl.get(layout.step_of(step), {}),
                **{table: now[clock] for table, clock in self._job.ttl.get(step, {}).items()},
            },
            fired={EVENT_DUE: watermark, WALL_DUE: manifest.clock_us},
            states=manifest.states.get(layout.step_of(step)) if adapters is None else adapters.states,
            hidden=manifest.hidden.get(layout.step_of(step)),
            adapters=adapters,
            inline_bytes=self._inline_bytes,
        )


class Maintainer(Upkeep):
    """Folds and sweeps one store in a thread, while a job runs."""

    def __init__(
        self,
        store: StoreFiles,
        job: JobFacts,
        fence: int,
        *,
        retain: int | str,
        swept: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(store, job, fence, retain=retain, swept=swept)
        # The first sweep condemns only; it comes at once, so that short runs get to delete something, too.
        self._until_sweep = 1
        self._thread = threading.Thread(target=self._loop, name="headrace-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the fold at hand, then ends."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout=60)
        if self._swept is not None:
            # Savepoints may have come since the last sweep, above all the one that a run is stopped with.
            try:
                self._swept()
            except HeadraceError as error:
                log.warning("what follows a sweep was put off: %s", error)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._closing and (self._state is None or self._done):
                    self._wake.wait()
                if self._closing:
                    return
                state, self._state = self._state, None
            assert state is not None
            try:
                self._maintain(state)
            except Exception as error:  # nothing is lost; the next sweep tries again
                log.warning("sweeping was put off: %s: %s", type(error).__name__, error)

    def _put_off(self, step: str, error: Exception) -> None:
        """State is whole without folds, and other steps have theirs; the next published epoch tries again."""
        log.warning("folding the state of step %s was put off: %s: %s", step, type(error).__name__, error)

    def _maintain(self, state: JobState) -> None:
        self.fold(state)
        if self._closing:
            return
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self._until_sweep = max(SWEEP_EVERY, self.sweep(state) // SWEEP_EVERY)


def _files(done: Iterable[_FinishedFold]) -> set[str]:
    return {finished.result.file for finished in done if finished.result is not None}
