"""Epochs of the past, run again for one key of one step: `KeyReplay`.

Each epoch gets what production gave it, out of its manifest: the offsets of its input, its clock, and the marks of its
time. What stands above the step runs as it did, for all keys; of the step itself only the shard of the key runs, and
there the step sees this key alone. State begins as the store has it at the first epoch, and goes on with what the
replay writes. At the end it is held against what production has there.

Invariants
- The store is only read. What tasks write goes to a folder of this machine, and no sink is started.
- Rows in loops come from the store, as production staged them.

What this module deliberately does not do: read sources (`headrace.replay.inputs`), show anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.checkpoint.coordinator import adopt_runs
from headrace.checkpoint.publish import derive_added
from headrace.connectors.program.sinks import DiscardSink
from headrace.dataflow.app import App
from headrace.errors import ProgramError, StoreError
from headrace.model.job import derive_states
from headrace.model.keys import hash_key, key_group, shard_of
from headrace.model.order import EpochLimits
from headrace.plan.compile import compile_app
from headrace.plan.physical import Fragment, Program
from headrace.plan.rules import RULES
from headrace.plan.rules.combining import combine_before_exchange
from headrace.plan.rules.decoding import decode_in_workers
from headrace.plan.ship import copy_program
from headrace.read.changes import is_same
from headrace.read.opening import is_nameless, named_tables, open_reader, readable_tables
from headrace.read.steps import layers_of
from headrace.replay.epochs import check_app, check_input, check_whole, order_of
from headrace.replay.inputs import InputReader, ReadBySpark
from headrace.replay.scratch_files import ScratchFiles
from headrace.replay.tracing import Call, ReplayEvent, StateChange, TracedOperator, call_plainly
from headrace.runtime.failures import failure_error
from headrace.runtime.task import TaskEnv
from headrace.runtime.tasks_here import TasksHere, reports_in
from headrace.state.layout import ManifestName
from headrace.state.lineage import places_until
from headrace.state.lookup import Layers
from headrace.state.manifest import JobState, Manifest, read_manifest, read_state
from headrace.state.moments import Moment, find_moment
from headrace.state.store import StoreFiles

_RULES = tuple(rule for rule in RULES if rule not in (combine_before_exchange, decode_in_workers))
"""Rows come to the step one by one, as they were, and are decoded here."""


class ReplayPlan(NamedTuple):
    """What a replay will do, for people who decide whether they want that."""

    step: str
    first: ManifestName
    """State begins as it is here."""
    places: list[ManifestName]
    """The epochs that run again."""
    rows: int
    """Rows that are read again, of all sources."""
    level: int
    """How many exchanges lie before the step."""
    same_program: bool
    """Whether the program is the one that ran."""
    edited: list[int]
    """Epochs in which somebody changed state by hand; a replay does not."""


def find_places(store: StoreFiles, first: Moment, last: Moment | None) -> list[ManifestName]:
    """The epoch that a replay begins with, and all that run again; every one of them has to be kept."""
    begin, end = find_moment(store, first), find_moment(store, last)
    places = [place for place in places_until(store, end) if place.epoch >= begin.epoch]
    if begin.epoch >= end.epoch or not places or places[0] != begin:
        raise StoreError(
            "a replay goes from an epoch to a later one that continues it",
            where=store.url,
            expected=f"an epoch before {end.epoch}",
            found=f"from epoch {begin.epoch} to epoch {end.epoch}",
            next_move="`headrace epochs STORE` lists what is kept",
        )
    check_whole(store, places, begin.epoch, end.epoch)
    return places


class Verdict(NamedTuple):
    """How the key ends, beside what production has of it."""

    epoch: int
    states: int
    """How many states were compared."""
    differences: list[StateChange]
    """States that end otherwise: ``before`` is what production has, ``after`` what the replay came to."""

    @property
    def same(self) -> bool:
        return not self.differences


class KeyReplay(AbstractContextManager["KeyReplay"]):
    """Some epochs, run again for one key. Use it once, and close it."""

    def __init__(
        self, app: App, store: StoreFiles, step: str, key: bytes, places: Sequence[ManifestName],
        *, read_by_spark: ReadBySpark, call: Call = call_plainly,
    ) -> None:  # fmt: skip
        """``places``: the epoch to begin with, and every one that runs again behind it.

        ``read_by_spark``: reads sources that only Spark can read; called when the first of them is needed.
        """
        first, *again = places
        self._store, self._key, self._step, self._first = store, key, step, first
        self._manifests = [read_manifest(store, *place) for place in again]
        self._state = read_state(store, *first)
        manifest = self._state.manifest
        program = compile_app(
            app, parallelism=manifest.parallelism, key_groups=manifest.key_groups, rules=_RULES, whole_rows=True
        )
        check_app(app.name, manifest.app)
        _check_step(program, step)
        quiet = tuple(replace(output, sink=DiscardSink()) for output in program.outputs)
        self._program = copy_program(replace(program, outputs=quiet))
        self._inputs = InputReader(self._program, store, read_by_spark)
        check_input(store, self._program, manifest, self._manifests[-1])
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-replay-")
        self._files = ScratchFiles(store, Path(self._temporary.name))
        self._tasks = TasksHere(self._program)
        self._level = program.steps[step].level
        # The program may call a step otherwise than the one that ran.
        adopted = adopt_runs(self._state, renamed=program.facts.was, cuts=())
        self._state = JobState(manifest, {**self._state.runs, **adopted})
        group = key_group(hash_key(key), manifest.key_groups)
        self._shard = shard_of(group, manifest.parallelism, manifest.key_groups)
        self._then: Manifest = manifest
        """The manifest of production by which what stands in the state just now is read."""
        self._traced = self._trace(call)
        rows = sum(task.rows_read for each in self._manifests for task in each.tasks)
        edited = [each.epoch for each in self._manifests if each.notes]
        ran = compile_app(app, parallelism=manifest.parallelism, key_groups=manifest.key_groups).fingerprint
        same = all(each.program == ran for each in self._manifests)
        self.plan = ReplayPlan(step, first, again, rows, self._level, same, edited)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.close()
        self._inputs.close()
        self._temporary.cleanup()

    def run(self) -> Iterator[ReplayEvent]:
        """What happens to the key, in order. An error of the program ends it, as it ended the epoch in production."""
        for manifest in self._manifests:
            yield from self._epoch(manifest)

    def verdict(self) -> Verdict:
        """Holds what the key came to against production; comes behind `run`."""
        newest = self._manifests[-1] if self._manifests else self._state.manifest
        place = ManifestName(newest.timeline, newest.epoch)
        production = read_state(self._store, *place)
        group = key_group(hash_key(self._key), newest.key_groups)
        name = self._step if production.runs.get(self._step) else self._program.facts.was.get(self._step, self._step)
        layers = layers_of(self._store, production, name, only=range(group, group + 1))
        there = self._states(layers, production.manifest)
        layers = layers_of(self._files, self._state, self._step, only=range(group, group + 1))
        here = self._states(layers, production.manifest)
        differences = [
            StateChange(address, kind, value, here[address][1] if address in here else None)
            for address, (kind, value) in there.items()
            if not is_same(value, here[address][1] if address in here else None)
        ]
        return Verdict(newest.epoch, len(there), differences)

    # --- one epoch

    def _epoch(self, manifest: Manifest) -> Iterator[ReplayEvent]:
        parent = self._state
        env = TaskEnv(self._program, self._files, order_of(manifest, parent), EpochLimits(), parent)
        self._then = manifest
        batches: list[pa.RecordBatch] = []
        for index, source in enumerate(self._program.sources):
            rows = list(self._inputs.read(source, parent.manifest.offsets, manifest.offsets))
            if rows:
                batches += self._tasks.run_chain(env, index, rows)
        batches += self._tasks.run_loops(env)
        self._check(batches)
        reports = reports_in(batches)
        for level in range(1, self._level + 1):
            batches = self._tasks.run_level(env, level, batches, self._shard if level == self._level else None)
            reports += (mine := [each for each in reports_in(batches) if each.level == level])
            if any(each.failures for each in mine):
                yield from self._take()
                self._check(batches)
        yield from self._take()
        added = derive_added(reports)
        runs = {step: (*added.get(step, ()), *parent.runs.get(step, ())) for step in {*added, *parent.runs}}
        self._state = JobState(manifest, runs)

    def _take(self) -> Iterator[ReplayEvent]:
        events, self._traced.events = self._traced.events, []
        yield from events

    def _check(self, batches: list[pa.RecordBatch]) -> None:
        failures = [failure for report in reports_in(batches) for failure in report.failures]
        if failures:
            raise failure_error(self._program, failures[0])

    # --- the step

    def _trace(self, call: Call) -> TracedOperator:
        live = self._tasks.levels[self._level - 1]
        place = next(place for place, op in enumerate(live.plan.ops) if op.stateful and op.step == self._step)
        traced = TracedOperator(
            live.operators[place], self._key, self._read, call=call,
            everywhere=_ports_of_all(self._program, live.plan, place),
        )  # fmt: skip
        live.put(place, traced)
        return traced

    def _read(self, layers: Layers, end: bool) -> Mapping[str, tuple[str, Any]]:
        return self._states(layers, self._then if end else self._state.manifest)

    def _states(self, layers: Layers, manifest: Manifest) -> Mapping[str, tuple[str, Any]]:
        """Every state of the key as people read it: address → kind and value."""
        facts = self._program.facts
        states = derive_states(facts.states, manifest.states, facts.was)
        declared = states.get(self._step, {})
        then = msgspec.structs.replace(manifest, states=states)
        written = named_tables(layers)
        found: dict[str, tuple[str, Any]] = {}
        for table in readable_tables(layers, declared):
            address = self._step if is_nameless(table, written, declared) else f"{self._step}.{table}"
            reader = open_reader(self._files, layers, table, then, self._step, address=address)
            found[address] = reader.kind, reader.shown_whole(reader.whole(self._key))
        return found


def _ports_of_all(program: Program, plan: Fragment, place: int) -> frozenset[int]:
    """The ports of an operator whose rows go to every shard."""
    return frozenset(
        target.port
        for edge, targets in plan.entries.items()
        for target in targets
        if target.kind == "op" and target.place == place and program.edges[edge].by_shard
    )


def _check_step(program: Program, step: str) -> None:
    if step not in program.steps:
        raise ProgramError(
            f"the program has no step {step!r} that keeps state",
            expected=" or ".join(sorted(program.steps)) or "a step that keeps state",
            found=step,
            next_move="name one of them with --step",
        )
