"""What will run: a compiled program, made once, shipped once to the workers.

Level 0 is the chain from a source to the first exchange; level k runs what stands behind the k-th exchange. Inside a
level rows move through a *fragment*, a push graph of operators; between levels they travel in the frames of
`headrace.model.wire`. Everything here is data: nothing opens a file or knows Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
from msgspec import structs

from headrace.model.job import ROW, DeclaredState, JobFacts
from headrace.model.keyspec import ANYWHERE
from headrace.model.report import TAP
from headrace.model.time_shape import TimeShape
from headrace.model.type_shape import describe_type
from headrace.model.watermarks import TimedSource
from headrace.model.wire import HASH, KEY, ROW_KIND, ROW_TIME, edge_schema

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import Sink
    from headrace.connectors.source_contract import Source
    from headrace.model.generators import GeneratorPlan
    from headrace.model.keyspec import KeySpec
    from headrace.model.migrations import Migration
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator
    from headrace.operators.spec import OperatorChoice
    from headrace.plan.state_types import StateType


class Target(NamedTuple):
    """Where an outlet leads."""

    kind: Literal["op", "edge", "out", "loop"]
    place: int
    """Position of the operator in its fragment, number of the edge, or position of the output or loop."""
    port: int = 0


@dataclass(frozen=True)
class OpPlan:
    """One operator of a fragment."""

    step: str
    """The step's name; for a stateless step a readable place such as ``map at app.py:12``."""
    build: Callable[[], Operator]
    targets: dict[str, tuple[Target, ...]]
    """Outlet tag → where its rows go."""
    stateful: bool = False
    rekey: KeySpec | None = None
    """Set where the rows already lie on the right shard and only their key has to be computed again."""
    codec: RowCodec | None = None
    """Type of the rows that come in; only needed with ``rekey``."""
    hashed: bool = True
    """With ``rekey``: whether the step needs the hashes of its keys too."""
    node: int = -1
    """The node of the graph that it runs."""


@dataclass(frozen=True)
class Fragment:
    """The operators of one level (or of one source's chain), in topological order."""

    ops: tuple[OpPlan, ...] = ()
    entries: dict[int, tuple[Target, ...]] = field(default_factory=dict)
    """Edge → where its rows go."""
    entry: tuple[Target, ...] = ()
    """Where a source's rows go; only in level 0."""
    errors: tuple[Target, ...] = ()
    """Where a source's undecodable rows go; empty: they stop the job."""

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(op.step for op in self.ops if op.stateful)

    def retarget(self, change: Callable[[Target], Target]) -> Fragment:
        """The fragment with every target changed."""

        def changed(targets: tuple[Target, ...]) -> tuple[Target, ...]:
            return tuple(map(change, targets))

        def changed_all(targets: dict[Any, tuple[Target, ...]]) -> dict[Any, tuple[Target, ...]]:
            return {outlet: changed(each) for outlet, each in targets.items()}

        return Fragment(
            tuple(replace(op, targets=changed_all(op.targets)) for op in self.ops),
            changed_all(self.entries),
            changed(self.entry),
            changed(self.errors),
        )

    @property
    def targets(self) -> Iterator[Target]:
        """All of them, of operators and of what enters."""
        for op in self.ops:
            yield from chain.from_iterable(op.targets.values())
        yield from chain.from_iterable(self.entries.values())
        yield from self.entry
        yield from self.errors


@dataclass(frozen=True)
class EdgePlan:
    """A keyed exchange: rows of one type, moved to the shard that owns their key."""

    index: int
    level: int
    """The level whose tasks read it."""
    codec: RowCodec
    key: KeySpec | None
    """None: every row goes to every shard."""
    after: int
    """The node whose rows move."""
    sources: tuple[str, ...]
    """Timed sources above it."""
    combined: bool = False
    """Whether rows come with their encoded key as a last column: they were combined and have no other."""
    changelog: bool = False
    """Whether rows bring their kinds."""

    @property
    def by_shard(self) -> bool:
        """Whether rows say themselves which shard they go to, because they have no key."""
        return self.key is None or self.key == ANYWHERE

    @property
    def timed(self) -> bool:
        """Whether rows bring a time. Decided by the stream, never by what happens to be in one batch: behind a source
        with event time a row without one is late, and without such a source rows have no time, whatever timers and
        windows on the wall clock gave them."""
        return bool(self.sources) or self.combined

    @cached_property
    def beside(self) -> tuple[str, ...]:
        """What stands in its frames before the fields."""
        derived = self.key is not None and self.key.columns is not None and not self.combined
        hashes = () if self.by_shard else (HASH,)
        keys = () if derived or self.key == ANYWHERE else (KEY,)
        return (*hashes, *keys, *([ROW_TIME] if self.timed else []), *([ROW_KIND] if self.changelog else []))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of its frames."""
        return edge_schema(self.beside, self.codec.schema)


@dataclass(frozen=True)
class LoopPlan:
    """Rows that come back in the next epoch: fed by some step, read by the tasks of its own chain."""

    name: str
    codec: RowCodec
    fragment: Fragment
    was: str | None = None


@dataclass(frozen=True)
class Seam:
    """Which side of a backfill a source is read for."""

    history: bool
    cut_us: int | None
    """Event time of the cut: history holds what is before it, the live stream the rest. None: both hold all."""


class PrefixedStep(NamedTuple):
    """A step of expressions that is evaluated where its source is decoded."""

    verb: Literal["where", "select", "with_columns"]
    pairs: tuple[tuple[str, str], ...]
    """Name → SQL text; of a ``where``, one pair."""
    out: pa.Schema
    node: int


@dataclass(frozen=True)
class SourcePlan:
    name: str
    source: Source
    codec: RowCodec
    """Type of the rows as read."""
    time: str | None
    """SQL text of the event time over the columns as read."""
    prefix: tuple[PrefixedStep, ...]
    """Expressions that run where the source is decoded, in order."""
    out: RowCodec
    """Type of the rows after the prefix."""
    fragment: Fragment
    node: int
    mark: str | None = None
    """SQL text of the time that a row says is complete, over the columns as read; null where a row says nothing."""
    generator: GeneratorPlan | None = None
    """Says how far time has come from the rows as read; then there is no prefix."""
    aligned: bool = False
    """Whether it waits where it is too far ahead of its group."""
    seam: Seam | None = None
    reads: tuple[str, ...] | None = None
    """The columns that are asked for; None: all of its rows."""
    decoded: bool = False
    """Whether the worker decodes its files (`Source.decoder`); then the prefix runs there, too."""

    @property
    def log_name(self) -> str:
        """Its name in Spark's log, where the history of a backfill and its live stream are two."""
        return f"{self.name}__history" if self.seam is not None and self.seam.history else self.name

    @property
    def time_field(self) -> str | None:
        """The field of the rows behind the prefix that is their event time; None: a column beside them is."""
        text = self.time
        cut = self.seam is not None and self.seam.cut_us is not None
        if text is None or text not in self.codec.schema.names or cut:
            return None
        for step in self.prefix:
            if step.verb != "where" and dict(step.pairs).get(text, text).strip("`") != text:
                return None
            if text not in step.out.names:
                return None
        return text if self.out.schema.field(text).type == self.codec.schema.field(text).type else None

    @cached_property
    def computes(self) -> bool:
        """Whether its prefix does more than leave columns out. Asked in the driver: sources' processes parse no SQL."""
        from headrace.dataflow.projection import bare_column

        names = self.codec.names
        return any(
            step.verb == "where" or any(bare_column(text, names) != name for name, text in step.pairs)
            for step in self.prefix
        )

    @property
    def filtered(self) -> bool:
        """Whether a filter in the JVM may hide rows that would have moved time."""
        return self.time is not None and not self.decoded and any(step.verb == "where" for step in self.prefix)


@dataclass(frozen=True)
class OutputPlan:
    name: str
    sink: Sink
    codec: RowCodec
    site: str
    changelog: bool = False
    """Whether rows bring their kinds."""
    by_key: bool = False
    """Whether its target finds rows by the unique key of their stream, and can delete them."""


@dataclass(frozen=True)
class StepPlan:
    """A stateful step: what a store knows it by."""

    step: str
    was: str | None
    level: int
    sources: tuple[str, ...]
    """Timed sources above it; its watermark is their minimum."""
    uses_watermark: bool
    states: dict[str, str]
    """State name → kind, for people and for queries."""
    renamed: dict[str, str]
    """State name → its former name."""
    ttl: dict[str, str]
    """State that expires → its clock, ``wall`` or ``event``."""
    lifetimes: dict[str, tuple[int, str]] = field(default_factory=dict)
    """State that a function declares to expire → how long entries live, and what begins the span anew."""
    key: Any = None
    """Python type of the key, for reading it back."""
    rules: dict[str, str] = field(default_factory=dict)
    """What it does with what it keeps, for the programs that come after this one."""
    declared: dict[str, DeclaredState] = field(default_factory=dict)
    """States that say more of themselves than their kind."""
    times: dict[str, tuple[TimeShape | None, TimeShape | None]] = field(default_factory=dict)
    """State → where the times of its values and of its keys are; those without any are left out."""
    types: dict[str, StateType] = field(default_factory=dict)
    """Whatever the step keeps → its kind, where nothing else says it, and the types of its values and keys."""

    @property
    def described(self) -> dict[str, DeclaredState]:
        """Its states, as readers without the program are told of them."""
        plain = {
            name: DeclaredState(kind, self.ttl.get(name, ""), (self.renamed[name],) if name in self.renamed else ())
            for name, kind in self.states.items()
        }
        # A state of rows that nobody named is declared where there is anything to say of it.
        nameless = {name: DeclaredState(kind.stored.kind) for name, kind in self.types.items()}
        told = {**{name: DeclaredState(ROW) for name in self.times}, **nameless, **plain, **self.declared}
        for name, (times, key_times) in self.times.items():
            told[name] = structs.replace(told[name], times=times, key_times=key_times)
        for name, kind in self.types.items():
            told[name] = structs.replace(told[name], type=kind.stored.shape, key_type=kind.key)
        for name, (ttl_us, refresh) in self.lifetimes.items():
            told[name] = structs.replace(told[name], ttl_us=ttl_us, refresh=refresh)
        return told

    @property
    def annotations(self) -> dict[str, Any]:
        """State → Python type of a stored value, where it has one."""
        kinds = {name: kind.stored.annotation for name, kind in self.types.items()}
        return {name: annotation for name, annotation in kinds.items() if annotation is not None}

    choice: OperatorChoice | None = None
    """Which operator runs it, where there are several."""


@dataclass(frozen=True)
class Program:
    app: str
    sources: tuple[SourcePlan, ...]
    levels: tuple[Fragment, ...]
    """Fragments of level 1, 2, …"""
    edges: tuple[EdgePlan, ...]
    outputs: tuple[OutputPlan, ...]
    steps: dict[str, StepPlan]
    timed: tuple[TimedSource, ...]
    parallelism: int
    key_groups: int
    fingerprint: str
    loops: tuple[LoopPlan, ...] = ()
    migrations: tuple[Migration, ...] = ()
    """Functions that lead from old types of state to new ones."""
    bound_to_epochs: tuple[str, ...] = ()
    """See `headrace.plan.replaying`."""

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """Of all sources, loops and levels."""
        sources, loops = (each.fragment for each in self.sources), (each.fragment for each in self.loops)
        return (*sources, *loops, *self.levels)

    @cached_property
    def step_sources(self) -> dict[str, tuple[str, ...]]:
        return {step.step: step.sources for step in self.steps.values()}

    @cached_property
    def facts(self) -> JobFacts:
        """The program as the store's side sees it."""
        steps = self.steps.values()
        return JobFacts(
            app=self.app,
            program=self.fingerprint,
            parallelism=self.parallelism,
            key_groups=self.key_groups,
            levels=len(self.levels),
            timed=self.timed,
            step_sources=self.step_sources,
            ttl={step.step: step.ttl for step in steps if step.ttl},
            was={step.step: step.was for step in steps if step.was},
            states={step.step: step.described for step in steps},
            tables={step.step: step.choice.table for step in steps if step.choice is not None},
            sources=tuple(source.log_name for source in self.sources),
            loops=tuple(loop.name for loop in self.loops),
            loop_was={loop.name: loop.was for loop in self.loops if loop.was},
            loop_types={loop.name: describe_type(loop.codec.type) for loop in self.loops},
            loop_annotations={loop.name: loop.codec.type for loop in self.loops},
            annotations={step.step: step.annotations for step in steps},
            migrations=self.migrations,
            bound_to_epochs=self.bound_to_epochs,
            rules={step.step: step.rules for step in steps},
            source_kinds={source.log_name: source.source.kind for source in self.sources},
            sinks={output.name: output.sink.kind for output in self.outputs if not output.name.startswith(TAP)},
        )
