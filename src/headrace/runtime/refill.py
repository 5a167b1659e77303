"""Refilling: what a step's state holds is compared with a target of one row per key, and written there again.

The job may run meanwhile. Rows are those of the epoch that the target has, and the target compares epochs in the step
in which it reads or writes (`headrace.connectors.keyed_target`): so nothing newer is ever overwritten, and where the
job moves on in between, the same keys are read anew at the later epoch.

====  =====================================================  ========================================================
pass  what comes to the target                               why
====  =====================================================  ========================================================
1     all keys, some key groups at a time                    each is compared at the epoch that the target had then
2     keys that epochs since the beginning wrote, until       so that every key of the target's epoch has come
      the target stays where it is during a pass
3     nothing: rows of keys that never came are looked for   they are in no state
====  =====================================================  ========================================================

Writing is idempotent, and rows that agree are not written: what was interrupted is begun again, and goes quickly over
what it had done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.connectors.keyed_target import Comparison, KeyedTarget, Position, parts_of
from headrace.errors import MissingFile, StoreError
from headrace.model.crash import reach
from headrace.state.manifest import JobState, read_manifest, read_state
from headrace.state.record import read_timeline

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import Sink
    from headrace.model.batch import Rows
    from headrace.runtime.state_rows import StateRows
    from headrace.state.layout import ManifestName
    from headrace.state.store import StoreFiles

PASSES: Final = 50
"""So often the target may move on during a pass, before extra rows are left unlooked for."""
_ATTEMPTS: Final = 8

FindNewest = Callable[[], "ManifestName"]
Advance = Callable[[int, int], None]


class RefillReport(NamedTuple):
    """How a target stood against the state, and what was done about it."""

    epoch: int
    """The newest epoch that rows were compared at."""
    comparison: Comparison
    complete: bool
    """Whether extra rows were looked for: not where the job moved on during every pass."""
    deleted: int = 0
    no_extra: str = ""
    """Why extra rows cannot be told from others; then they were not looked for."""


class Refilling:
    """One refill, or one comparison."""

    def __init__(
        self,
        store: StoreFiles,
        find_newest: FindNewest,
        rows: StateRows,
        sink: Sink,
        target: KeyedTarget,
        advance: Advance = lambda done, total: None,
    ) -> None:
        """``find_newest``: the newest published epoch. ``advance``: told of keys that are done, and of how many."""
        self._store = store
        self._find_newest = find_newest
        self._rows = rows
        self._sink = sink
        self._target = target
        self._advance = advance
        self._position: Position = None
        self._done = 0
        self._total = 0

    def run(self, *, write: bool, delete_extra: bool = False) -> RefillReport:
        """Compares all rows, and with ``write`` writes those that are missing or differ."""
        state = first = self._look()
        self._total = self._rows.count(state)
        total = Comparison()
        for groups in self._rows.spans(state):
            state, found = self._span(state, groups, since=-1, write=write)
            total = total.plus(found)
            reach("refilling", state.epoch)
        since = first.epoch
        for _ in range(PASSES):
            at = self._position
            if state.epoch != since:
                begun = state.epoch
                for groups in self._rows.spans(state):
                    state, found = self._span(state, groups, since=since, write=write)
                    total = total.plus(found._replace(rows=0))
                since = begun
            if self._rows.no_extra and at == self._position:
                return RefillReport(state.epoch, total, complete=True, no_extra=self._rows.no_extra)
            extra = self._target.find_extra(self._position) if at == self._position else None
            deleted = self._target.delete_extra(self._position) if extra is not None and delete_extra else 0
            if extra is not None and deleted is not None:
                return RefillReport(state.epoch, total.plus(extra), complete=True, deleted=deleted)
            state = self._look()
        return RefillReport(state.epoch, total, complete=False)

    def _span(self, state: JobState, groups: range, *, since: int, write: bool) -> tuple[JobState, Comparison]:
        """The rows of some key groups, at whatever epochs the target has meanwhile."""
        total, after = Comparison(), -1
        while True:
            for last, rows in self._rows.rows(state, groups, after=after, since=since):
                found = self._compare(rows, write=write)
                if found is None:
                    break
                total, after = total.plus(found), last
                self._done += found.rows if since < 0 else 0
                self._advance(self._done, max(self._total, self._done))
            else:
                return state, total
            state = self._look()

    def _compare(self, rows: Rows, *, write: bool) -> Comparison | None:
        return self._target.compare(parts_of(self._sink, rows), self._position, write=write)

    def _look(self) -> JobState:
        """The state at the epoch that the target has."""
        missing: MissingFile | None = None
        for _ in range(_ATTEMPTS):
            self._position = self._target.position()
            try:
                return read_released_state(self._store, self._find_newest(), self._sink.output, self._position)
            except MissingFile as error:
                # A sweep was faster.
                missing = error
        raise StoreError(
            "the epoch that the target has is not kept any more",
            where=self._store.url,
            expected=f"state of epoch {-1 if self._position is None else self._position[1]}",
            found="files that vanish faster than they can be read" if missing is None else missing.what,
            next_move="try again, or run the job with a larger `retain`",
        )


def read_released_state(store: StoreFiles, newest: ManifestName, output: str, position: Position) -> JobState:
    """The newest state of which a target at this position has every row that the output gave out.

    Epochs behind the position may have given out nothing; the first that did is still being released, or waits for it.
    """
    if position is None or (position[0] > newest.timeline and position[0] <= read_timeline(store)):
        # Nothing was ever released; or the job went back, and the timeline that goes on has published nothing.
        return read_state(store, *newest)
    if position[0] > newest.timeline:
        raise StoreError(
            "the target has rows of a later run of this job",
            where=f"output {output}",
            expected=f"rows up to epoch {newest.epoch} of timeline {newest.timeline}, where the store is",
            found=f"epoch {position[1]} of timeline {position[0]}",
            next_move="the store was brought back from an older copy: refill from the newest one",
        )
    behind = position[1] if position[0] == newest.timeline else -1
    place: ManifestName | None = newest
    at: ManifestName | None = newest
    while at is not None and at.timeline == newest.timeline and at.epoch > behind:
        manifest = read_manifest(store, *at)
        if at == newest and output in manifest.held:
            raise StoreError(
                "the output is held until the job has passed its old end",
                where=f"output {output}",
                expected="a state that is not behind what the target shows",
                found=f"epoch {at.epoch}, while the target has epoch {position[1]} of timeline {position[0]}",
                next_move="let the job run until it has passed its old end, and refill then",
            )
        at = manifest.parent_place
        if manifest.outputs.get(output):
            place = at
    if place is None:
        raise StoreError(
            "nothing of the output has been released yet",
            where=f"output {output}",
            expected="a target that has an epoch of the job",
            found=f"epoch {newest.epoch} is the newest in the store, and the target has none of its timeline",
            next_move="start the job: it releases what is staged first",
        )
    return read_state(store, *place)
