"""The rows that past epochs gave to one output, made again: `OutputReplay`.

Each epoch is run by itself, for all keys: from the state that production had before it, over the input that production
read, by its clock. So what one epoch comes to does not depend on those that were run again before it, edits by hand are
in the state where they were, and any epoch of a range can be the first.

Invariants
- The store is only read. What tasks write goes to a folder of this machine, which goes with the epoch.
- Of the sinks only the one that is given stages rows. Nothing is released here (`headrace.replay.filling`).
- An epoch that gives another number of rows than production staged is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from headrace.checkpoint.coordinator import adopt_runs
from headrace.checkpoint.publish import derive_outputs
from headrace.connectors.program.sinks import DiscardSink
from headrace.connectors.sink_contract import Sink
from headrace.dataflow.app import App
from headrace.errors import Refused
from headrace.model.amounts import count_of
from headrace.model.keys import group_range
from headrace.model.order import EpochLimits
from headrace.model.report import StagedPart
from headrace.plan.compile import compile_app
from headrace.plan.physical import Program, Target
from headrace.plan.refilling import find_output
from headrace.plan.rules import RULES
from headrace.plan.rules.decoding import decode_in_workers
from headrace.plan.ship import copy_program
from headrace.replay.epochs import order_of
from headrace.replay.inputs import InputReader, ReadBySpark
from headrace.replay.scratch_files import ScratchFiles
from headrace.runtime.failures import failure_error
from headrace.runtime.task import TaskEnv
from headrace.runtime.tasks_here import TasksHere, reports_in
from headrace.state.manifest import JobState, Manifest
from headrace.state.store import StoreFiles

_RULES = tuple(rule for rule in RULES if rule is not decode_in_workers)
"""Input comes as rows that are decoded."""


class OutputRows(NamedTuple):
    """What an epoch gave to the output."""

    parts: list[StagedPart]
    store: StoreFiles
    """Where parts lie, until the epoch is left."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def staged_rows(manifest: Manifest, output: str) -> int | None:
    """How many rows production had for an output; None: it held them back, because they had gone out before."""
    if output in manifest.held:
        return None
    return sum(part.rows for part in manifest.outputs.get(output, ()))


class OutputReplay(AbstractContextManager["OutputReplay"]):
    """Runs epochs of a store again, in order, for one output."""

    def __init__(self, app: App, store: StoreFiles, output: str, sink: Sink, *, read_by_spark: ReadBySpark) -> None:
        """``sink``: started, and bound to the output; it stages what is given out."""
        self._app, self._store, self._output, self._sink = app, store, output, sink
        self._read_by_spark = read_by_spark
        self._here: _ProgramHere | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._here is not None:
            self._here.close()

    @contextmanager
    def epoch(self, manifest: Manifest, parent: JobState | None) -> Iterator[OutputRows]:
        """The rows of one epoch. ``parent``: production's state before it; None before the first."""
        with tempfile.TemporaryDirectory(prefix="headrace-refill-") as folder:
            files = ScratchFiles(self._store, Path(folder))
            # An epoch without Spark read nothing and gave nothing out.
            parts = [] if manifest.offline else self._run(manifest, parent, files)
            rows = OutputRows(parts, files)
            self._check(manifest, rows.rows)
            yield rows

    def _run(self, manifest: Manifest, parent: JobState | None, files: StoreFiles) -> list[StagedPart]:
        here = self._program_of(manifest)
        state = None if parent is None else _cut(parent, here.program)
        env = TaskEnv(here.program, files, order_of(manifest, state), EpochLimits(), state)
        before = "" if state is None else state.manifest.offsets
        batches: list[pa.RecordBatch] = []
        for index, source in enumerate(here.program.sources):
            rows = here.inputs.read(source, before, manifest.offsets)
            if (first := next(rows, None)) is not None:
                batches += here.tasks.run_chain(env, index, chain([first], rows))
        batches += here.tasks.run_loops(env)
        here.check(batches)
        reports = reports_in(batches)
        for level in range(1, here.levels + 1):
            batches = here.tasks.run_level(env, level, batches)
            here.check(batches)
            reports += (each for each in reports_in(batches) if each.level == level)
        return derive_outputs(reports).get(self._output, [])

    def _program_of(self, manifest: Manifest) -> _ProgramHere:
        """The program with as many shards as the epoch had."""
        here = self._here
        if here is None or here.program.parallelism != manifest.parallelism:
            if here is not None:
                here.close()
            program = compile_app(
                self._app, parallelism=manifest.parallelism, key_groups=manifest.key_groups, rules=_RULES
            )
            place, _ = find_output(program, self._output)
            sinks = (self._sink if each == place else DiscardSink() for each in range(len(program.outputs)))
            outputs = tuple(replace(output, sink=sink) for output, sink in zip(program.outputs, sinks, strict=True))
            here = _ProgramHere(replace(program, outputs=outputs), place, self._store, self._read_by_spark)
            self._here = here
        return here

    def _check(self, manifest: Manifest, rows: int) -> None:
        expected = staged_rows(manifest, self._output)
        if expected is None or rows == expected:
            return
        raise Refused(
            f"epoch {manifest.epoch} comes to other rows than it did, so nothing of it is written",
            where=f"{self._store.url}, output {self._output}",
            expected=f"{count_of(expected, 'row')}, as the job gave out",
            found=count_of(rows, "row"),
            next_move="look for what is not the same when it runs again: a function that asks the clock, a random "
            "number or another system, or input that was changed since. `headrace replay` shows a key row by row",
        )


class _ProgramHere:
    """The operators of the program in this process, and what reads for them."""

    def __init__(self, program: Program, output: int, store: StoreFiles, read_by_spark: ReadBySpark) -> None:
        self.program: Program = copy_program(program)
        self.inputs = InputReader(self.program, store, read_by_spark)
        self.tasks = TasksHere(self.program)
        wanted = Target("out", output)
        self.levels = max(
            (number for number, level in enumerate(program.levels, 1) if wanted in level.targets), default=0
        )
        """What stands behind the output need not run."""

    def check(self, batches: list[pa.RecordBatch]) -> None:
        failures = [failure for report in reports_in(batches) for failure in report.failures]
        if failures:
            raise failure_error(self.program, failures[0])

    def close(self) -> None:
        self.tasks.close()
        self.inputs.close()


def _cut(state: JobState, program: Program) -> JobState:
    """A state whose runs are listed shard by shard, also where it was written by another number of shards."""
    cuts = [group_range(shard, program.parallelism, program.key_groups).start for shard in range(program.parallelism)]
    return JobState(state.manifest, {**state.runs, **adopt_runs(state, renamed={}, cuts=cuts)})
