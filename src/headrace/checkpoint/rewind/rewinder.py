"""The hands of a rewind. It is committed by one file, the seal; whatever dies behind it, the next start carries it out.

What a restart sees if everything dies right after:

1. Everything is proved: the state is whole, sources have their       Nothing has happened.
   rows, outputs can do what was chosen. Rows for outputs whose
   sinks cannot forget, but have one row per key, are staged.
2. The seal takes the name of the manifest that would have been       The rewind is carried out, whoever starts.
   next: no older driver can publish any more.
3. What was staged at the old end goes to the sinks that hold.        The same; sinks know what they have.
4. The old end is pinned by a savepoint.                              The same.
5. Sinks that repeat forget, one after the other; the others of       The same; they can forget again.
   them are given the rows of the state that is gone back to.
6. Spark's log and what was noted for the next epoch go.              The same.
7. The record names the new timeline.                                 The job begins with its first epoch, and an
                                                                      output that holds still does.
8. The first epoch is published.                                      An epoch like any other.

Nothing is deleted before step 5, and of the store nothing but notes at all: epochs that are abandoned stay readable
until they are swept, the last of them until its savepoint is deleted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from operator import methodcaller

import msgspec

from headrace.checkpoint.decide import Refuse
from headrace.checkpoint.facts import read_facts
from headrace.checkpoint.fence import Fence
from headrace.checkpoint.recover import plan_upgrade_at
from headrace.checkpoint.release import Releaser
from headrace.checkpoint.rewind.continuing import continue_copy
from headrace.checkpoint.rewind.decision import GoBack, GoOn, RewindFacts, decide_rewind
from headrace.checkpoint.rewind.proof import Sources, prove_sources, warn_of_erased
from headrace.checkpoint.rewind.request import ContinueRequest, ForgetContext, RewindRequest, StartRequest
from headrace.checkpoint.rewind.restated import (
    Restating,
    abandoned_ends,
    drop_leftovers,
    drop_restated,
    find_reasons,
    read_restated,
    stage_restated,
)
from headrace.checkpoint.sparklog import drop_spark_logs
from headrace.connectors.sink_contract import Rewind, Sink
from headrace.errors import AlreadyExists, Fenced, MissingFile, Refused, SinkFailed, StoreError
from headrace.model import crash
from headrace.model.job import JobFacts
from headrace.model.report import TAP, StagedPart
from headrace.state import layout
from headrace.state.copying import settle_copy
from headrace.state.lineage import derive_lineage, list_places
from headrace.state.manifest import encode_seal, read_manifest, read_seal, read_state
from headrace.state.moments import find_moment
from headrace.state.record import Branch, StoreRecord, read_record
from headrace.state.savepoints import (
    check_state_files,
    create_savepoint,
    list_savepoints,
    read_savepoint,
    refuse_condemned,
)
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.rewind")

_ATTEMPTS = 3
"""How often a rewind is decided anew because the driver before published another epoch meanwhile."""


class Rewinder:
    """Takes a job back to an earlier epoch of its store, once at the start of a run, before it recovers."""

    def __init__(
        self,
        store: StoreFiles,
        job: JobFacts,
        fence: Fence,
        releaser: Releaser,
        sinks: Mapping[str, Sink],
        sources: Sources,
        restating: Restating,
        clock: Callable[[], float] = time.time,
        drop: Collection[str] = (),
    ) -> None:
        """``sinks``: by output, and started. ``sources``: all that the program may read. ``drop``: as of `recover`."""
        self._restating = restating
        self._store = store
        self._job = job
        self._fence = fence
        self._releaser = releaser
        self._sinks = sinks
        self._sources = sources
        self._clock = clock
        self._drop = drop

    def begin(self, request: StartRequest | None) -> list[str]:
        """What a start does before it recovers; tells what was done, a line each."""
        settled = self._settle(request)
        finished = self._finish()
        if not finished:
            drop_leftovers(self._store)
        return [*settled, *finished, *(self._go_back(request) if isinstance(request, RewindRequest) else [])]

    def _settle(self, request: StartRequest | None) -> list[str]:
        """What becomes of a copy in which the job starts: the job's own store, or another one."""
        if isinstance(request, ContinueRequest):
            mark = os.urandom(8).hex()
            return continue_copy(self._store, self._releaser, self._sinks, clock=self._clock, mark=mark)
        origin = settle_copy(self._store, clock=self._clock)
        if origin is None:
            return []
        return [f"this copy of {origin.url}@{origin.asked} is a store of its own from now on"]

    def _finish(self) -> list[str]:
        """Carries out a rewind that an earlier start has begun. Tells of it."""
        record = read_record(self._store)
        places = [] if record is None else list_places(self._store, derive_lineage(record))
        if record is None or not places:
            return []
        branch = read_seal(self._store, record.timeline, places[-1].epoch + 1)
        if branch is None:
            return []
        self._carry_out(record, branch)
        return [f"finished going back: {_tell(branch)}"]

    def _go_back(self, request: RewindRequest) -> list[str]:
        """Decides, proves and carries out; tells what was done, a line each. Raises Refused where it cannot be."""
        for _ in range(_ATTEMPTS):
            facts = self._read_facts(request)
            decision = decide_rewind(facts, request)
            match decision:
                case Refuse() as no:
                    raise Refused(
                        no.reason, where=self._store.url, expected=no.expected, found=no.found, next_move=no.next_move
                    )
                case GoOn(why):
                    return [f"going on: {why}"]
                case GoBack():
                    branch = self._branch(facts, decision, request)
            self._check_program(facts)
            restated = self._prove(facts, branch)
            crash.reach("rewind_proved", facts.start.epoch)
            if restated:
                self._stage(facts, branch, restated)
                crash.reach("rewind_staged", facts.start.epoch)
            if self._seal(facts, branch):
                crash.reach("rewind_sealed", facts.start.epoch)
                self._carry_out(facts.record, branch)
                unproved = [f"not certain before it is read: {each}" for each in decision.unproved]
                left = [
                    f"the program has no output {name!r} any more: what went out of it stays" for name in decision.left
                ]
                return [_tell(branch), *left, *unproved, *warn_of_erased(facts.between)]
            log.warning("the driver before published one more epoch; deciding anew where to go back from")
        raise StoreError(
            "another driver publishes epochs while the job is to go back",
            where=self._store.url,
            next_move="stop the other driver, then start again",
        )

    # --- looking

    def _read_facts(self, request: RewindRequest) -> RewindFacts:
        store = self._store
        record = read_record(store)
        places = [] if record is None else list_places(store, derive_lineage(record))
        if record is None or not places:
            raise StoreError(
                "nothing was published in this store, so there is nothing to go back to",
                where=store.url,
                expected="a store with an epoch",
                found="none",
                next_move="to begin with an epoch of another store: --from STORE@MOMENT",
            )
        start = find_moment(store, request.moment)
        newest, line = places[-1], places
        begun = record.branch(record.timeline)
        if begun is not None and newest.timeline != record.timeline and "repeat" not in begun.outputs.values():
            # Nothing was taken back and nothing came since: what was abandoned is as good as it was.
            newest = begun.end
            line = list_places(store, derive_lineage(record, newest))
        lineage = derive_lineage(record, newest)
        end = read_manifest(store, *newest)
        behind = [place for place in line if place.epoch > start.epoch and place != newest]
        between = []
        for place in behind:
            with contextlib.suppress(MissingFile):
                between.append(read_manifest(store, *place))
        first = read_manifest(store, *start)
        later = (*between, *([end] if end.epoch > start.epoch else []))
        unrepeatable = find_reasons(self._restating, self._sinks, first, later)
        return RewindFacts(
            record=record,
            start=first,
            newest=places[-1],
            end=end,
            lineage=lineage,
            between=later,
            outputs={
                output: _rewinds(sink, output, record, first.place, restated=output not in unrepeatable)
                for output, sink in self._sinks.items()
            },
            unrepeatable=unrepeatable,
            sources=prove_sources(store, self._sources, first, end),
            job=self._job,
        )

    def _branch(self, facts: RewindFacts, decision: GoBack, request: RewindRequest) -> Branch:
        return Branch(
            timeline=facts.record.timeline + 1,
            from_timeline=facts.start.timeline,
            from_epoch=facts.start.epoch,
            end_timeline=facts.end.timeline,
            end_epoch=facts.end.epoch,
            outputs=decision.outputs,
            shown_timeline=decision.shown.timeline,
            shown_epoch=decision.shown.epoch,
            asked=str(request.moment),
            at_us=round(self._clock() * 1e6),
            mark=os.urandom(8).hex(),
        )

    def _check_program(self, facts: RewindFacts) -> None:
        """Refuses a program that does not fit what is stored there: then nothing is gone back to."""
        plan_upgrade_at(self._store, facts.start.place, self._job, self._drop).check()

    def _prove(self, facts: RewindFacts, branch: Branch) -> list[str]:
        """The last look: what can be seen of files and sinks without changing anything.

        Gives back the outputs that repeat, and whose sinks cannot forget: a state says what they should have.
        """
        store, start = self._store, facts.start
        place = start.place
        if all(each.place != place for each in list_savepoints(store)):
            # A savepoint that is there was looked at when it was taken. Drivers that sweep are shut out by our fence.
            refuse_condemned(store, place)
        check_state_files(store, read_state(store, *place), f"{store.url}, epoch {start.epoch}")
        restated = set()
        for output, context in self._forgets(branch):
            if "repeat" not in self._sinks[output].rewinds:
                restated.add(output)
                continue
            try:
                self._releaser.insist(output, methodcaller("check_forget", context))
            except SinkFailed:
                # It has not kept enough of what was there before.
                if output in facts.unrepeatable:
                    raise
                restated.add(output)
        for output in sorted(restated):
            self._releaser.insist(output, methodcaller("check_restated"))
        return sorted(restated)

    def _stage(self, facts: RewindFacts, branch: Branch, outputs: list[str]) -> None:
        """Makes the rows that bring these outputs back, before anything is changed."""
        unreleased = read_facts(self._store).unreleased
        ends = {output: abandoned_ends(branch, facts.record, unreleased, output) for output in outputs}
        stage_restated(self._store, self._restating, branch, ends, fence=self._fence.number)

    # --- doing

    def _seal(self, facts: RewindFacts, branch: Branch) -> bool:
        """Ends the present timeline; False where another epoch of it was published meanwhile."""
        self._fence.check()
        path = layout.manifest(facts.record.timeline, facts.newest.epoch + 1)
        try:
            self._store.create(path, encode_seal(branch))
        except AlreadyExists:
            other = read_seal(self._store, facts.record.timeline, facts.newest.epoch + 1)
            if other is None or other.mark != branch.mark:
                return False
        try:
            self._fence.check()
        except Fenced:
            # A sweep frees old names: this one may lie in the middle of what a newer driver has published since.
            self._store.delete(path)
            raise
        return True

    def _carry_out(self, record: StoreRecord, branch: Branch) -> None:
        store = self._store
        facts = read_facts(store)
        if facts.branch is None and facts.unreleased is not None and branch.held_outputs:
            # It comes again and is dropped then, so it has to be out before.
            self._releaser.release(facts.unreleased, only=branch.held_outputs)
        if branch.end_timeline == record.timeline:
            self._pin_end(branch)
        crash.reach("rewind_pinned", branch.from_epoch)
        restated = read_restated(store, branch)
        forgets = [(output, context) for output, context in self._forgets(branch) if output not in restated]
        for number, (output, context) in enumerate(forgets):
            if number:
                crash.reach("rewind_forgetting", branch.from_epoch)
            self._releaser.insist(output, methodcaller("forget", context))
        self._bring_back(branch, restated)
        crash.reach("rewind_forgotten", branch.from_epoch)
        drop_spark_logs(store, keep="")
        for note in (layout.TICK, layout.WAITING, layout.RELEASED, layout.UNRELEASED):
            store.delete(note)
        self._fence.check()
        moved = msgspec.structs.replace(record, timeline=branch.timeline, branches=(*record.branches, branch))
        store.write(layout.STORE_RECORD, msgspec.json.encode(moved))
        crash.reach("rewind_recorded", branch.from_epoch)
        drop_restated(store, restated)

    def _bring_back(self, branch: Branch, restated: Mapping[str, list[StagedPart]]) -> None:
        """Lets the rows of the state out that is gone back to, as what the new timeline begins with."""
        outputs = {output: parts for output, parts in restated.items() if parts}
        if outputs:
            start = read_manifest(self._store, *branch.start)
            beginning = msgspec.structs.replace(start, timeline=branch.timeline, outputs=outputs)
            self._releaser.release(beginning, only=outputs)

    def _forgets(self, branch: Branch) -> list[tuple[str, ForgetContext]]:
        """What each sink that repeats has to take back: the newest timeline first, and whole, but for the one that is
        continued."""
        repeated = sorted(output for output, choice in branch.outputs.items() if choice == "repeat")
        abandoned = []
        for timeline in range(branch.timeline - 1, branch.from_timeline - 1, -1):
            if (last := self._last_epoch(timeline)) >= 0:
                abandoned.append((timeline, branch.from_epoch if timeline == branch.from_timeline else -1, last))
        return [
            (output, self._forget(output, branch, *each))
            for output in repeated
            for each in abandoned
            if not output.startswith(TAP)
        ]

    def _forget(self, output: str, branch: Branch, timeline: int, epoch: int, last: int) -> ForgetContext:
        if output not in self._sinks:
            raise Refused(
                f"the job is going back to epoch {branch.from_epoch}, and the program lacks an output that has to take "
                "rows back",
                where=self._store.url,
                expected=f"the output {output!r}",
                found=", ".join(sorted(name for name in self._sinks if not name.startswith(TAP))) or "no outputs",
                next_move=f'start once with the output of then: write(…, name="{output}")',
            )
        return ForgetContext(
            str(timeline), epoch, last, str(branch.timeline), output, self._releaser.job, self._releaser.session
        )

    def _last_epoch(self, timeline: int) -> int:
        """The newest epoch that a timeline ever published; −1: none. Its name, or that of the seal behind it, stays."""
        names = [layout.epoch_of_manifest(path) for path in self._store.list(layout.manifests(timeline))]
        if not names:
            return -1
        branch = read_seal(self._store, timeline, max(names))
        if branch is None:
            return max(names)
        return branch.end_epoch if branch.end_timeline == timeline else -1

    def _pin_end(self, branch: Branch) -> None:
        note = f"the end of timeline {branch.end_timeline}, kept when the job went back to epoch {branch.from_epoch}"
        name = f"end-of-timeline-{branch.end_timeline}"
        try:
            create_savepoint(self._store, name=name, note=note, place=branch.end, clock=self._clock)
        except AlreadyExists:
            if read_savepoint(self._store, name).place != branch.end:
                # Somebody has given this name to another epoch.
                name = f"{name}-{branch.mark}"
                create_savepoint(self._store, name=name, note=note, place=branch.end, clock=self._clock)


def _rewinds(
    sink: Sink, output: str, record: StoreRecord, start: layout.ManifestName, *, restated: bool
) -> frozenset[Rewind]:
    """What an output can do behind an epoch. Rows that a fork took over are of its original: they stay.

    ``restated``: whether a state says what its target should have.
    """
    forked = record.forked_from
    if forked is None or forked.passing is None or output not in forked.passing.outputs or start != forked.place:
        return sink.rewinds | ({"repeat"} if restated else set())
    return sink.rewinds - {"repeat"}


def _tell(branch: Branch) -> str:
    """What was done, in a line."""
    own = sorted((output, choice) for output, choice in branch.outputs.items() if not output.startswith(TAP))
    repeated, held = (", ".join(output for output, choice in own if choice == each) for each in ("repeat", "hold"))
    parts = [
        f"went back from epoch {branch.end_epoch} to epoch {branch.from_epoch}: timeline {branch.timeline} begins, the "
        f"old end is kept as savepoint end-of-timeline-{branch.end_timeline}",
        *([f"taken back, and given out anew: {repeated}"] if repeated else []),
        *([f"held until epoch {branch.shown_epoch} is passed: {held}"] if held else []),
    ]
    return "; ".join(parts)
