"""`hr.bootstrap`: the first epoch of a new job, made of batch history instead of a stream.

State comes from three places: rows of a state, as exports have them; rows as they come into a step, which then keeps of
them what it would have; and exact exports of another store. What is made is an epoch like any other: the job starts
behind it, and reads its input from where its sources begin, or from offsets that are given.

Rows are checked against the types that the program declares, hashed, and sorted into runs (`headrace.transfer.runs`).
Until the last file is written nobody takes the folder for a store (`headrace.transfer.making`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.checkpoint.publish import new_nonce
from headrace.errors import ProgramError
from headrace.model.ids import MIN_TIME
from headrace.model.job import derive_states
from headrace.model.time import parse_time
from headrace.model.watermarks import TimeState
from headrace.state.manifest import EpochNote, Manifest, StepRuns
from headrace.state.store import open_store
from headrace.transfer.counting import DoneRows, Progress
from headrace.transfer.exact import open_stored
from headrace.transfer.folder import ExportFolder
from headrace.transfer.frames import GivenRows, open_frame
from headrace.transfer.making import begin_store, finish_store, system_user
from headrace.transfer.offsets import first_offsets
from headrace.transfer.record import EXACT, RECORD, read_export
from headrace.transfer.runs import RunPlace, RunSorter
from headrace.transfer.state_rows import FirstTimes
from headrace.transfer.step_rows import RowsIntoStep
from headrace.transfer.targets import listed_as, open_target

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.model.report import RunRef
    from headrace.plan.physical import Program
    from headrace.state.store import StoreFiles
    from headrace.transfer.record import ExportRecord


class BootstrapReport(NamedTuple):
    """What a store was made of."""

    store: str
    app: str
    rows: dict[str, int]
    """State, or input of a step → rows that were taken."""
    runs: int
    size_bytes: int
    epoch: int = 0
    """The epoch that it begins with."""


def bootstrap(
    app: App,
    store: str | os.PathLike[str],
    states: Mapping[str, Any] | None = None,
    *,
    rows: Mapping[str, Any] | None = None,
    export: str | os.PathLike[str] | None = None,
    watermark: str | int | None = None,
    offsets: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
    **settings: Any,
) -> BootstrapReport:
    """Makes a new store whose first epoch holds state from files or DataFrames; the job goes on from there.

    ``states``: state → its rows, with the columns that `Store.export` writes: ``key`` and ``value`` or the fields of a
    Record, ``entry`` of maps, ``index`` of lists, ``at`` of timers, bounds and results of windows. ``rows``: step →
    rows as they come into it. Both as the path of Parquet files or JSON lines, or as a DataFrame of pandas or polars;
    rows of states also as one of Spark, and then the cluster does the work. ``export``: the folder of an exact export.

    ``watermark``: how far event time has come in it; windows that end before it are closed. ``offsets``: source → where
    it begins, in its own words; all others begin where the program says. ``settings`` as of ``app.run``.

    >>> hr.bootstrap(app, "./state", {"totals": "history.parquet"}).rows          # doctest: +SKIP
    {'totals': 1000000}
    """
    from headrace.plan.compile import compile_app

    resolved = app.settings(store=os.fspath(store), **settings)
    program = compile_app(app, parallelism=resolved.parallelism, key_groups=resolved.key_groups)
    watermark_us = MIN_TIME if watermark is None else watermark if isinstance(watermark, int) else parse_time(watermark)
    files = open_store(os.fspath(store))
    work = _Bootstrap(program, files, round(clock() * 1e6), watermark_us)
    work.open(states or {}, rows or {}, None if export is None else os.fspath(export))
    first = first_offsets(program, {} if offsets is None else offsets, work.clock_us)
    mark = begin_store(files, program.app, "a bootstrap")
    work.fill(progress)
    manifest = work.manifest(first)
    finish_store(files, mark, manifest, clock=clock)
    refs = [ref for runs in work.runs.values() for ref in runs]
    return BootstrapReport(
        files.url, program.app, work.counts, len(refs), sum(ref.size_bytes for ref in refs), work.epoch
    )


class _Bootstrap:
    def __init__(self, program: Program, store: StoreFiles, clock_us: int, watermark_us: int) -> None:
        self.program = program
        self.store = store
        self.clock_us = clock_us
        self.counts: dict[str, int] = {}
        self.runs: dict[str, list[RunRef]] = {}
        """Step, or its broadcast states → runs, newest first."""
        self._watermark_us = watermark_us
        self._states: dict[str, Any] = {}
        self._inputs: dict[str, dict[str, GivenRows]] = {}
        """Step → input → rows."""
        self._export: tuple[ExportFolder, ExportRecord] | None = None
        self._dues: list[int] = []

    @property
    def _times(self) -> FirstTimes:
        return FirstTimes(self.clock_us, self._watermark_us)

    # --- what is given

    def open(self, states: Mapping[str, Any], rows: Mapping[str, Any], export: str | None) -> None:
        """Opens everything that is given, before anything is written."""
        if export is not None:
            self._open_export(export)
        for address, data in states.items():
            open_target(self.program, address, self._times)
            self._states[address] = data if _is_spark(data) else open_frame(data)
        for name, data in rows.items():
            step, _, port = name.partition(".")
            RowsIntoStep(self.program, step, self.store, self._writer(step), clock_us=self.clock_us).port(port)
            self._inputs.setdefault(step, {})[port] = open_frame(data)
        self._check_apart()

    def _open_export(self, url: str) -> None:
        folder = ExportFolder(url)
        record = read_export(folder)
        if record.form == EXACT:
            self._export = folder, record
            open_stored(self.program, record, folder)
            return
        raise ProgramError(
            "an export of results does not hold all that steps keep",
            where=f"{url}/{RECORD}",
            expected="an exact export: headrace export STORE --all --exact --to FOLDER",
            found="results",
            next_move="give its states one by one: --state "
            + " --state ".join(f"{table.state}={url}/{os.path.dirname(table.files[0])}" for table in record.tables[:2]),
        )

    def _check_apart(self) -> None:
        """Each step is filled in one way."""
        ways: dict[str, str] = {}
        exported = {table.step for table in self._export[1].tables} if self._export is not None else set()
        for way, steps in (
            ("rows of its states", {address.partition(".")[0] for address in self._states}),
            ("rows as they come into it", set(self._inputs)),
            ("an export", exported),
        ):
            for step in steps:
                if step in ways:
                    raise ProgramError(
                        f"the step {step!r} is given state in two ways", where="bootstrap", expected="one of them",
                        found=f"{ways[step]}, and {way}", next_move="leave one of them out",
                    )  # fmt: skip
                ways[step] = way
        if not ways:
            raise ProgramError(
                "there is nothing to make state of", where="bootstrap", expected="states, rows or an export",
                found="nothing", next_move="name a state and its rows: --state totals=history.parquet",
            )  # fmt: skip

    # --- what it comes to

    @property
    def epoch(self) -> int:
        """The first epoch. What an export holds was numbered by epochs, and what comes later has to come behind it."""
        return 0 if self._export is None else self._export[1].epoch

    def fill(self, progress: Progress | None) -> None:
        """Writes all runs."""
        frames = [frame for frame in self._states.values() if isinstance(frame, GivenRows)]
        frames += [frame for ports in self._inputs.values() for frame in ports.values()]
        total = sum(frame.rows or 0 for frame in frames) + (self._export[1].rows if self._export else 0)
        tell = DoneRows(total, progress).add
        if self._export is not None:
            self._fill_exact(tell)
        self._fill_states(tell)
        for step, ports in self._inputs.items():
            writer = self._writer(step, unique=False)
            into = RowsIntoStep(self.program, step, self.store, writer, clock_us=self.clock_us)
            self.counts |= into.run(ports, self._watermark_us, tell)
            self._note_due(into.next_due_us)
            self.runs[step] = writer.finish()

    def _fill_states(self, tell: Callable[[int], None]) -> None:
        writers: dict[str, RunSorter] = {}
        for address, data in self._states.items():
            if not isinstance(data, GivenRows):
                self._fill_on_cluster(address, data, tell)
                continue
            target = open_target(self.program, address, self._times)
            listed = listed_as(target.target)
            writer = writers.setdefault(listed, self._writer(listed))
            for batch in data.batches:
                writer.add(target.tables(batch))
                tell(batch.num_rows)
            self.counts[address] = target.rows
            self._note_due(target.next_due_us)
        for listed, writer in writers.items():
            self.runs.setdefault(listed, []).extend(writer.finish())

    def _fill_on_cluster(self, address: str, frame: Any, tell: Callable[[int], None]) -> None:
        from headrace.spark.bootstrapping import fill_on_cluster

        filled = fill_on_cluster(frame, self.program, address, self.store.url, self._times)
        self.counts[address] = filled.rows
        self._note_due(filled.next_due_us)
        self.runs.setdefault(filled.listed, []).extend(filled.runs)
        tell(filled.rows)

    def _fill_exact(self, tell: Callable[[int], None]) -> None:
        assert self._export is not None
        folder, record = self._export
        self._note_due(record.next_due_us)
        writers: dict[str, RunSorter] = {}
        for stored in open_stored(self.program, record, folder):
            writer = writers.setdefault(stored.listed, self._writer(stored.listed, unique=False))
            for table in stored.tables():
                writer.add([table])
                tell(table.batch.num_rows)
            self.counts[stored.table.state] = stored.table.rows
        for listed, writer in writers.items():
            self.runs.setdefault(listed, []).extend(writer.finish())

    def _writer(self, listed: str, *, unique: bool = True) -> RunSorter:
        groups = self.program.key_groups
        return RunSorter(self.store, RunPlace(listed, self.epoch, 0, groups, groups), unique=unique)

    def _note_due(self, time_us: int | None) -> None:
        if time_us is not None:
            self._dues.append(time_us)

    def manifest(self, offsets: str) -> Manifest:
        """The first epoch."""
        facts = self.program.facts
        due_us = min(self._dues, default=None)
        # What falls due between the clock of an epoch and that of the next one happens in the next one. So the clock
        # stands where that of the export did, and before every timer that is given.
        clocks = [self.clock_us if self._export is None else self._export[1].clock_us]
        clocks += [due_us - 1] if due_us is not None else []
        watermarks: dict[str, int] = {}
        if self._export is not None:
            watermarks = {step: us for step, us in self._export[1].watermarks.items() if step in self.program.steps}
        if self._watermark_us > MIN_TIME:
            watermarks = {step: self._watermark_us for step, above in facts.step_sources.items() if above}
        note = EpochNote(
            kind="bootstrap",
            by=system_user(),
            at_us=self.clock_us,
            why="a new job with its history",
            changed=self.counts,
        )
        return Manifest(
            app=facts.app,
            timeline=0,
            epoch=self.epoch,
            nonce=new_nonce(),
            fence=1,
            program=facts.program,
            parallelism=facts.parallelism,
            key_groups=facts.key_groups,
            clock_us=min(clocks),
            offsets=offsets,
            time=TimeState(steps=watermarks),
            timed=list(facts.timed),
            reads={step: list(above) for step, above in facts.step_sources.items()},
            full=True,
            steps={step: StepRuns(runs=runs) for step, runs in self.runs.items() if runs},
            states=derive_states(facts.states, {}, {}),
            tables=dict(facts.tables),
            rules={step: dict(rules) for step, rules in facts.rules.items()},
            sources=dict(facts.source_kinds),
            sinks=dict(facts.sinks),
            loop_types=dict(facts.loop_types),
            next_due_us=due_us,
            notes=[note],
            offline=self.epoch + 1,
        )


def _is_spark(data: Any) -> bool:
    return type(data).__module__.startswith("pyspark.")
