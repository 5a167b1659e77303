"""Past epochs of one output, written into a new target: `OutputFilling`.

The rows are made again (`headrace.replay.output_rows`) and go through the sink as they did, epoch by epoch, under the
id of a job of its own for each target. So the sink itself passes over an epoch that it has, and the job's own epochs in
its own target are another matter. A record in the store says how far a target is (`headrace.state.refills`).

====  =============================================  ===============================================================
step  what is done                                   a refill that dies right after it, and comes again
====  =============================================  ===============================================================
1     the record is written, without an epoch        begins with the first epoch
2     an epoch is run and released                   gives the same epoch to the sink, which passes over it
3     the record says that the target has it         goes on behind it
====  =============================================  ===============================================================

What was refused is refused before step 1: where the program, the input or the target is not what it has to be. All
epochs of the range are pinned before they are looked at, each until the one behind it has been run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from headrace.checkpoint.release import ReleaseContext
from headrace.connectors.sink_contract import Sink
from headrace.dataflow.app import App
from headrace.errors import HeadraceError, ProgramError, Refused, SinkFailed
from headrace.model.amounts import count_of
from headrace.model.crash import reach
from headrace.model.job import JobFacts
from headrace.plan.compile import compile_app
from headrace.plan.physical import OutputPlan, Program
from headrace.plan.refilling import find_output
from headrace.plan.replaying import find_outside_answers
from headrace.replay.epochs import check_app, check_input, check_whole
from headrace.replay.inputs import ReadBySpark
from headrace.replay.output_rows import OutputReplay, OutputRows, staged_rows
from headrace.replay.pinned import PinnedRange, pinned_range
from headrace.state.layout import ManifestName
from headrace.state.lineage import Lineage, derive_lineage, is_in, places_until
from headrace.state.manifest import JobState, Manifest, read_manifest, read_state
from headrace.state.moments import AtEpoch, find_moment
from headrace.state.record import no_store, read_record
from headrace.state.refills import RefillNote, read_refill, target_mark, write_refill
from headrace.state.store import StoreFiles

Advance = Callable[[int, int], None]


class FillReport(NamedTuple):
    """What a target has, and what of it was written just now."""

    note: RefillNote
    epochs: int
    """That were written now."""
    rows: int
    """Of these epochs."""
    unchecked: list[int]
    """Those of them that the job held back, so that there is no number to compare with."""
    missing: int
    """Epochs of the range that the target does not have."""
    counted: int | None
    """Rows that the target shows; None: it cannot be counted."""

    @property
    def agrees(self) -> bool:
        return not self.missing and self.counted in (None, self.note.rows)


class OutputFilling:
    """One new target, and a range of epochs for it. Making it raises where that cannot be done; nothing is written."""

    def __init__(
        self, app: App, store: StoreFiles, output: str, target: str, *, first: int, last: int | None = None,
        advance: Advance = lambda done, total: None,
    ) -> None:  # fmt: skip
        """``last``: the newest published epoch where none is said. ``advance``: told of rows that are read again."""
        record = read_record(store)
        if record is None:
            raise no_store(store.url)
        self._app, self._store, self._advance = app, store, advance
        self._places = _find_range(store, first, last)
        newest = read_manifest(store, *self._places[-1])
        check_app(app.name, newest.app)
        self._program = compile_app(app, parallelism=newest.parallelism, key_groups=newest.key_groups)
        _, plan = find_output(self._program, output)
        self.output = output
        self.sink = _open_elsewhere(self._program, plan, target)
        self._mark = target_mark(self.sink.kind, self.sink.target_name())
        self._job = f"{record.store_id}-{self._mark}"
        self._earlier = read_refill(store, output, self._mark)
        if self._earlier is not None:
            _check_note(self._earlier, first, derive_lineage(record))
        self._note = self._earlier or RefillNote(output=output, target=self.sink.describe(), first=first)

    # --- what can be asked

    def run(self, read_by_spark: ReadBySpark) -> FillReport:
        """Writes the epochs that the target does not have yet, and counts what it shows then."""
        left = self._left()
        before = read_manifest(self._store, *left[0]).parent_place if left else None
        name, note = f"refill-of-{self.output}-{self._mark}", f"while it is written to {self._note.target}"
        with pinned_range(self._store, [*([] if before is None else [before]), *left], name, note) as pinned:
            return self._fill(left, before, pinned, read_by_spark)

    def _fill(
        self, left: list[ManifestName], before: ManifestName | None, pinned: PinnedRange, read_by_spark: ReadBySpark
    ) -> FillReport:
        parent = None if before is None else read_state(self._store, *before)
        total = self._check_epochs(left, parent)
        rows, read, unchecked = 0, 0, list[int]()
        self.sink.start()
        try:
            if self._earlier is None:
                self._check_empty()
                write_refill(self._store, self._mark, self._note)
            with OutputReplay(self._app, self._store, self.output, self.sink, read_by_spark=read_by_spark) as replay:
                for place in left:
                    manifest = read_manifest(self._store, *place)
                    with replay.epoch(manifest, parent) as output_rows:
                        self._release(manifest, output_rows)
                        reach("refilling", manifest.epoch)
                        self._write_note(manifest, output_rows.rows)
                    rows += output_rows.rows
                    if staged_rows(manifest, self.output) is None:
                        unchecked.append(manifest.epoch)
                    read += _rows_read(manifest)
                    self._advance(read, total)
                    # Production's own state, not what this run came to.
                    parent = read_state(self._store, *place) if parent is None else parent.followed_by(manifest)
                    if before is not None:
                        pinned.release(before)
                    before = place
        finally:
            self.sink.close()
        return FillReport(self._note, len(left), rows, unchecked, 0, self._count())

    def verify(self) -> FillReport:
        """Only compares: what the target shows, and which epochs of the range it does not have."""
        if self._earlier is None:
            raise Refused(
                "nothing was filled into this target yet",
                where=self.sink.describe(),
                expected=f"a target that `headrace refill {self.output} --into` has filled from this store",
                found="no record of it in the store",
                next_move="leave out --verify to fill it",
            )
        return FillReport(self._note, 0, 0, [], len(self._left()), self._count())

    # --- steps

    def _left(self) -> list[ManifestName]:
        done = self._note.place
        return [place for place in self._places if done is None or place > done]

    def _check_epochs(self, places: Sequence[ManifestName], parent: JobState | None) -> int:
        """Refuses what would not come to the rows of then; answers how many rows will be read again."""
        for why in find_outside_answers(self._app.nodes):
            raise _differs(self._store, "epochs that come to the same rows when they run again", why)
        start = end = None if parent is None else parent.manifest
        total = 0
        for number, place in enumerate(places):
            end = read_manifest(self._store, *place)
            # Before the first epoch of all nothing was read.
            start = start or msgspec.structs.replace(end, offsets="", retired={})
            for each in (start, end) if not number else (end,):
                if not _is_program_of(each, self._program.facts):
                    expected = "the program that ran these epochs, and the one before them"
                    raise _differs(self._store, expected, f"epoch {each.epoch}, of another program")
            total += _rows_read(end)
        if start is not None and end is not None:
            check_input(self._store, self._program, start, end)
        return total

    def _check_empty(self) -> None:
        if rows := self.sink.count_rows():
            raise Refused(
                "rows are in the target already",
                where=self.sink.describe(),
                expected="a target that is new or empty, so that no row is there twice",
                found=f"{count_of(rows, 'row')} that no refill of this store wrote",
                next_move="choose another target with --into",
            )

    def _write_note(self, manifest: Manifest, rows: int) -> None:
        self._note = msgspec.structs.replace(
            self._note, timeline=manifest.timeline, epoch=manifest.epoch, rows=self._note.rows + rows
        )
        write_refill(self._store, self._mark, self._note)

    def _release(self, manifest: Manifest, output_rows: OutputRows) -> None:
        if not output_rows.parts:
            return
        staged = msgspec.structs.replace(manifest, outputs={self.output: output_rows.parts})
        context = ReleaseContext(output_rows.store, staged, self.output, self._job, None)
        try:
            self.sink.release(output_rows.parts, context)
        except HeadraceError:
            raise
        except Exception as error:
            raise SinkFailed(
                f"the sink {self.sink.describe()} failed",
                where=f"output {self.output}, epoch {manifest.epoch}",
                found=f"{type(error).__name__}: {error}",
                next_move="mend it and run the command again: it goes on with this epoch",
            ) from error

    def _count(self) -> int | None:
        """What readers see: by a sink that has not written, since a sink may hold rows until it is closed."""
        self.sink.start()
        try:
            return self.sink.count_rows()
        finally:
            self.sink.close()


def _is_program_of(manifest: Manifest, job: JobFacts) -> bool:
    """Whether a program, as far as it can be told without its code, is the one that ran an epoch."""
    if (manifest.program, manifest.tables, manifest.rules) != (job.program, job.tables, job.rules):
        return False
    now, then = job.states, manifest.states
    return all(
        name in then.get(step, {}) and state.kept_as == then[step][name].kept_as
        for step, states in now.items()
        for name, state in states.items()
    )


def _rows_read(manifest: Manifest) -> int:
    return sum(task.rows_read for task in manifest.tasks)


def _find_range(store: StoreFiles, first: int, last: int | None) -> list[ManifestName]:
    """The epochs of a range, both ends included; every one of them has to be kept, and the one before them."""
    end = find_moment(store, None if last is None else AtEpoch(last))
    if first > end.epoch:
        raise Refused(
            "a range goes from an epoch to the same or a later one",
            where=store.url,
            expected=f"--from with an epoch up to {end.epoch}",
            found=f"from epoch {first} to epoch {end.epoch}",
            next_move="`headrace epochs STORE` lists what is kept",
        )
    before = max(first - 1, 0)
    places = [place for place in places_until(store, end) if place.epoch >= before]
    check_whole(store, places, before, end.epoch)
    return [place for place in places if place.epoch >= first]


def _open_elsewhere(program: Program, plan: OutputPlan, target: str) -> Sink:
    sink = plan.sink.moved_to(target)
    if sink is None:
        raise ProgramError(
            f"the output {plan.name} cannot be written to another target",
            where=plan.site,
            expected="a folder, a table or a topic: hr.sink.files, delta, kafka without topic_field, postgres, redis",
            found=plan.sink.describe(),
            next_move="run the program from a savepoint into a store of its own "
            "(headrace run APP.PY --from SAVEPOINT --store NEW), with this output pointing to the new target",
        )
    if sink.guarantee != "exactly once":
        raise ProgramError(
            f"the output {plan.name} may write rows twice",
            where=plan.site,
            expected="an output that is exactly once, so that the command can be repeated",
            found=f"{sink.describe()}, {sink.guarantee}",
            next_move='leave out guarantee="at_least_once" for the refill',
        )
    for other in program.outputs:
        if _overlap(other.sink, sink):
            raise Refused(
                "the job itself writes there, so rows would be there twice",
                where=f"output {other.name}: {other.sink.describe()}",
                expected="a new target, which no output of the program writes to",
                found=f"--into {target}",
                next_move="choose another folder, table or topic",
            )
    return sink


def _overlap(one: Sink, other: Sink) -> bool:
    """Whether two sinks write to the same target, or one to a folder inside of the other's."""
    mine, its = one.target_name(), other.target_name()
    if not mine or (one.kind != other.kind and "/" not in mine):
        return False
    return mine == its or mine.startswith(f"{its}/") or its.startswith(f"{mine}/")


def _check_note(note: RefillNote, first: int, lineage: Lineage) -> None:
    if note.first != first:
        raise Refused(
            "this target is filled from another epoch on",
            where=note.target,
            expected=f"--from {note.first}: a target grows at its end only",
            found=f"--from {first}",
            next_move=f"go on with --from {note.first}, or fill another target",
        )
    if note.place is not None and not is_in(note.place, lineage):
        raise Refused(
            "the job went back behind what this target has",
            where=note.target,
            expected="epochs that lead to the present one",
            found=f"epoch {note.epoch} of timeline {note.timeline}, which was abandoned",
            next_move="fill another target",
        )


def _differs(store: StoreFiles, expected: str, found: str) -> Refused:
    return Refused(
        "these epochs would not come to the same rows",
        where=store.url,
        expected=expected,
        found=found,
        next_move="take a range of one program, and that program; or run it from a savepoint into a store of its own "
        "(headrace run APP.PY --from SAVEPOINT --store NEW), with this output pointing to the new target",
    )
