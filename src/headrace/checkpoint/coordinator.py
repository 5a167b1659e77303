"""The coordinator: carries out what was decided, in the order that makes an epoch a transaction.

An epoch is three calls, made by the driver (or the test kit) between Spark's question and Spark's answer:

    order   = coordinator.begin(epoch, …)      # or nothing, when the epoch is already true and was only released again
    …tasks run and report…
    coordinator.complete(order, reports, …)    # checks, publishes, releases

What a restart sees if the process dies inside `complete` stands beside each of its steps. The coordinator never
looks at rows, and its work does not grow with the number of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from msgspec.structs import replace

from headrace.checkpoint.decide import (
    Refuse,
    SkipEpoch,
    decide_broadcast,
    decide_epoch,
    decide_looped,
    decide_reports,
)
from headrace.checkpoint.fence import Fence
from headrace.checkpoint.publish import (
    derive_added,
    derive_counters,
    derive_former_names,
    derive_hidden,
    derive_loops,
    derive_outputs,
    derive_stats,
    derive_steps,
    derive_waiting_rows,
    derive_waits,
    new_nonce,
    publish_manifest,
)
from headrace.checkpoint.recovered import Hold, RecoveredJob
from headrace.checkpoint.release import Releaser
from headrace.errors import EpochFailed, FunctionFailed, Refused
from headrace.model import crash
from headrace.model.behind import Behind
from headrace.model.job import JobFacts, derive_states, derive_version, without_former_types
from headrace.model.order import Dropped, EpochOrder, Loops, waiting
from headrace.model.pace import EpochCost
from headrace.model.report import RunRef, TaskReport
from headrace.model.watermarks import Kept, TimeState, choose_kept, derive_next_idle_us, derive_time, merge_marks
from headrace.state import layout
from headrace.state.manifest import JobState, Manifest
from headrace.state.spark_offsets import source_offsets
from headrace.state.store import StoreFiles
from headrace.upgrade.lines import Upgrade


class Maintenance(Protocol):
    """Folding and sweeping, which happen beside the epochs."""

    def take_folds(self, state: JobState) -> dict[str, tuple[RunRef, ...]]:
        """Step → its older runs with finished folds put in. Never waits."""

    def published(self, state: JobState) -> None:
        """A new state is published: look for work."""


class StateEdits(Protocol):
    """Changes by hand, which wait for an epoch to become true with."""

    @property
    def waiting(self) -> bool:
        """Whether there are any."""

    def apply(self, state: JobState, fence: int) -> JobState:
        """The state of an epoch that is about to be published, with the changes in it and noted. Never raises."""

    def published(self, manifest: Manifest) -> None:
        """The epoch is true: tell those who asked."""


@dataclass
class Coordinator:
    store: StoreFiles
    job: JobFacts
    fence: Fence
    releaser: Releaser
    maintenance: Maintenance
    state: JobState | None
    """The newest published state."""
    timeline: int = 0
    retired: dict[str, str] = field(default_factory=dict)
    """Sources the program no longer has → their last offset."""
    adopted: dict[str, tuple[RunRef, ...]] = field(default_factory=dict)
    """Lists of runs that this start changed (renamed steps, other shards); written with the next manifest."""
    hold: Hold | None = None
    """What the next epoch repeats without giving it out; None: nothing."""
    edits: StateEdits | None = None
    dropped: Dropped | None = None
    """What this start gave up: the tasks are told until the next manifest says so. ``state`` is without it."""
    upgrade: Upgrade | None = None
    """What the program did to what it found."""

    def resume(self, recovered: RecoveredJob) -> None:
        """Goes on from what is published, after a start or when Spark could not carry on."""
        self.state = recovered.state
        self.timeline = recovered.timeline
        self.adopted = recovered.adopted
        self.hold = recovered.hold
        self.upgrade = recovered.upgrade
        self.dropped = recovered.upgrade.given_up

    def begin(
        self,
        epoch: int,
        offsets: str,
        *,
        clock_us: int,
        final: bool,
        hints: Mapping[str, Mapping[str, int]],
        reached_us: int | None = None,
    ) -> EpochOrder | None:
        """The order for the tasks of an epoch; None when it was published before and has only been released again."""
        crash.reach("offsets_written", epoch)
        self.fence.check()
        match decide_epoch(epoch, offsets, self.state):
            case Refuse() as no:
                raise Refused(
                    no.reason, where=self.store.url, expected=no.expected, found=no.found, next_move=no.next_move
                )
            case SkipEpoch():
                assert self.state is not None
                self.releaser.release(self.state.manifest)
                return None
        state = self.state
        marks: dict[str, dict[str, int]] = {}
        merge_marks(marks, hints)
        if self.hold is not None:
            self._check_hold(epoch, offsets, self.hold)
            merge_marks(marks, self.hold.marks)
        return EpochOrder(
            epoch=epoch,
            timeline=self.timeline,
            fence=self.fence.number,
            clock_us=clock_us,
            parent_epoch=-1 if state is None else state.epoch,
            parent_timeline=None if state is None or self._continues(state) else state.manifest.timeline,
            parent="" if state is None else state.manifest.nonce,
            final=final or (state is not None and state.manifest.ending),
            hints=marks,
            reached_us=reached_us,
            dropped=self.dropped,
        )

    def complete(
        self,
        order: EpochOrder,
        reports: Sequence[TaskReport],
        *,
        offsets: str,
        inputs: Mapping[str, bytes],
        took_us: Mapping[str, int],
        behind: Mapping[str, Behind] | None = None,
        paced: EpochCost | None = None,
    ) -> Manifest:
        """Makes an epoch true. After a death before publishing it never happened; after it, it is released again."""
        crash.reach("reports_collected", order.epoch)
        self._check(order, reports)
        state = self._derive(order, reports, offsets, took_us, behind or {}, paced)
        if self.edits is not None and self.edits.waiting:
            state = self.edits.apply(state, self.fence.number)
        manifest = state.manifest
        for name, entry in inputs.items():
            self.store.write(layout.input_entry(name), entry)
        self.fence.check()
        publish_manifest(self.store, manifest)
        # A sweep frees old names, so a driver that slept long enough could take one again: then a newer fence exists.
        self.fence.check()
        self.state = state
        self.adopted, self.hold, self.dropped = {}, None, None
        if self.edits is not None and manifest.notes:
            self.edits.published(manifest)
        self.releaser.release(manifest)
        crash.reach("released", order.epoch)
        self.maintenance.published(state)
        return manifest

    def _continues(self, state: JobState) -> bool:
        """Whether the next epoch is of the same timeline as the newest; not right behind a rewind."""
        return state.manifest.timeline == self.timeline

    def _check_hold(self, epoch: int, offsets: str, hold: Hold) -> None:
        if source_offsets(offsets) == source_offsets(hold.offsets):
            return
        raise EpochFailed(
            "the repeated epoch does not read the same input",
            where=f"{self.store.url}, epoch {epoch}",
            expected=f"offsets of the abandoned end: {source_offsets(hold.offsets)}",
            found=str(source_offsets(offsets)),
            next_move="start again: Spark's log is made anew with the offsets of the abandoned end",
        )

    def _check(self, order: EpochOrder, reports: Sequence[TaskReport]) -> None:
        job = self.job
        problem = decide_reports(
            list(reports), epoch=order.epoch, parent=order.parent, levels=job.levels, parallelism=job.parallelism
        )
        problem = problem or decide_looped(reports, waiting(self._loops, job.loops))
        if not problem and job.levels:
            expected = self._time(order, _marks(reports, level=0), final=order.final).steps
            found = next(report.watermarks for report in reports if report.level == 1)
            if expected != found:
                problem = f"tasks computed the watermarks {found}, the driver {expected}"
        if problem:
            raise EpochFailed(
                "the reports of an epoch do not fit together, so it is not published",
                where=f"epoch {order.epoch}",
                found=problem,
                next_move="start again: the epoch is replayed whole from the same offsets",
            )
        self._check_broadcast(order, reports)

    def _check_broadcast(self, order: EpochOrder, reports: Sequence[TaskReport]) -> None:
        apart = decide_broadcast(reports)
        if apart is None:
            return
        rows = apart.what.startswith("!")
        what = "the rows that on_broadcast gave are" if rows else f"the broadcast state {apart.what!r} is"
        raise FunctionFailed(
            f"{what} not the same on every shard, so the epoch is not published",
            where=f"step {apart.step}, epoch {order.epoch}",
            expected="on_broadcast to be deterministic: every shard calls it with the same rows and has to come to the "
            "same",
            found=f"shard {apart.shard} came to something else than shard 0",
            next_move="let the function given to ctx.for_each_key yield rows that depend on keys"
            if rows
            else "use only the row, ctx and broadcast state in on_broadcast: no random numbers, no clock but ctx.now, "
            "nothing that a key or a process has of its own",
        )

    @property
    def _loops(self) -> Loops:
        """What waits in loops, by the newest published state."""
        return {} if self.state is None else self.state.manifest.loops

    def _time(
        self, order: EpochOrder, marks: dict[str, dict[str, int]], *, final: bool, kept: Kept | None = None
    ) -> TimeState:
        before = TimeState() if self.state is None else self.state.manifest.time
        merged: dict[str, dict[str, int]] = {}
        merge_marks(merged, order.hints)
        merge_marks(merged, marks)
        return derive_time(before, merged, sources=self.job.timed, steps=self.job.step_sources, was=self.job.was,
                           clock_us=order.clock_us, final=final, reached_us=order.reached_us, kept=kept)  # fmt: skip

    def _derive(
        self,
        order: EpochOrder,
        reports: Sequence[TaskReport],
        offsets: str,
        took_us: Mapping[str, int],
        behind: Mapping[str, Behind],
        paced: EpochCost | None,
    ) -> JobState:
        before = self.state
        rewritten = dict(self.adopted)
        if before is not None:
            folded = self.maintenance.take_folds(before)
            rewritten.update({step: runs for step, runs in folded.items() if step not in rewritten})
        begins = before is None or not self._continues(before)
        full, steps = derive_steps(before, derive_added(reports), rewritten, order.epoch, begins=begins)
        held = frozenset[str]() if self.hold is None else self.hold.outputs
        kept = choose_kept((report.marks, report.kept) for report in reports if report.kept)
        time = self._time(order, _marks(reports), final=order.final, kept=kept)
        dues = [step.next_due_us for report in reports for step in report.steps if step.next_due_us is not None]
        idle = derive_next_idle_us(time, self.job.timed, order.clock_us)
        loops = derive_loops(self._loops, reports, self.job.loops)
        circling = bool(waiting(loops, self.job.loops))
        manifest = Manifest(
            app=self.job.app,
            timeline=self.timeline,
            epoch=order.epoch,
            nonce=new_nonce(),
            fence=self.fence.number,
            program=self.job.program,
            parallelism=self.job.parallelism,
            key_groups=self.job.key_groups,
            clock_us=order.clock_us,
            parent_epoch=order.parent_epoch,
            parent=order.parent,
            parent_timeline=order.parent_timeline,
            offsets=offsets,
            retired=self.retired,
            time=time,
            timed=list(self.job.timed),
            reads={step: list(above) for step, above in self.job.step_sources.items()},
            waits_for=derive_waits(reports),
            waiting=derive_waiting_rows({} if before is None else before.manifest.waiting, reports, self.job.was),
            full=full,
            steps=steps,
            states=derive_states(self.job.states, {} if before is None else before.manifest.states, self.job.was),
            former_names=derive_former_names(before, self.job.states, self.job.was),
            tables=dict(self.job.tables),
            rules={step: dict(rules) for step, rules in self.job.rules.items()},
            hidden=derive_hidden(before, self.job.states, self.job.was),
            closed={} if before is None else before.manifest.closed_for(self.job),
            ended_ttl={} if before is None else before.manifest.ended_ttl_for(self.job),
            sources=dict(self.job.source_kinds),
            sinks=dict(self.job.sinks),
            loop_types=dict(self.job.loop_types),
            outputs={output: parts for output, parts in derive_outputs(reports).items() if output not in held},
            held=sorted(held),
            loops=loops,
            next_due_us=min([*dues, *([] if idle is None else [idle])], default=None),
            final=order.final and not circling,
            ending=order.final and circling,
            counters=derive_counters({} if before is None else before.manifest.counters, reports, self.job.was),
            tasks=derive_stats(reports),
            took_us=dict(took_us),
            paced=paced,
            behind=dict(behind),
            released_us=dict(self.releaser.took_us),
            edited_epoch=-1 if before is None else before.manifest.edited_epoch,
            program_epoch=order.epoch
            if before is None or before.manifest.program != self.job.program
            else before.manifest.program_epoch,
        )
        return derive_state(before, manifest)


def derive_state(before: JobState | None, manifest: Manifest) -> JobState:
    """The state that a manifest leads to; its manifest is without types that nothing of it is stored in."""
    state = (before or JobState(manifest, {})).followed_by(manifest)
    states = {}
    for step, known in manifest.states.items():
        oldest = min((ref.version for ref in state.runs_of(step)), default=derive_version(known))
        states[step] = without_former_types(known, oldest)
    return JobState(replace(manifest, states=states), state.runs)


def _marks(reports: Iterable[TaskReport], level: int | None = None) -> dict[str, dict[str, int]]:
    merged: dict[str, dict[str, int]] = {}
    for report in reports:
        if level is None or report.level == level:
            merge_marks(merged, report.marks)
    return merged


def adopt_runs(state: JobState, *, renamed: Mapping[str, str], cuts: Sequence[int]) -> dict[str, tuple[RunRef, ...]]:
    """The runs of a state as this program sees them: steps under their new names, references cut at shard bounds.

    ``renamed`` maps a step to its former name; ``cuts`` are the first key groups of the shards. Returns what changes.
    """
    changed: dict[str, tuple[RunRef, ...]] = {}
    runs: dict[str, Any] = dict(state.runs)
    both = {**renamed, **{layout.broadcast(step): layout.broadcast(was) for step, was in renamed.items()}}
    for step, was in both.items():
        # A name that was given back lists no runs, and is one that may be taken again.
        if not runs.get(step) and runs.get(was):
            runs[step] = changed[step] = runs.pop(was)
            changed[was] = ()
    for step, refs in runs.items():
        if layout.is_broadcast(step):
            # Every shard reads all of it.
            continue
        pieces: list[RunRef] = []
        for ref in refs:
            bounds = [ref.lo, *(cut for cut in cuts if ref.lo < cut < ref.hi), ref.hi]
            pieces += [replace(ref, lo=lo, hi=hi) for lo, hi in pairwise(bounds)]
        if len(pieces) != len(refs):
            changed[step] = tuple(pieces)
    return changed
