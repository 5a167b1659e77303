"""A fragment: the operators of one level, built once per worker and wired to push rows to each other.

Operators live as long as the worker. A task gives them the state of a shard and collects what leaves the graph. A
worker runs one task at a time, so one fragment serves all its shards in turn. Keys of rows are computed here too: from
columns in bulk, or row by row by a function of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import BadRow
from headrace.model.batch import Keys, Rows
from headrace.model.keys import NULL_KEY, encode_columns, encode_key, hash_encoded
from headrace.operators.failures import GUARD_KEY, function_failed

if TYPE_CHECKING:
    from headrace.model.keyspec import KeySpec
    from headrace.operators.contract import Operator
    from headrace.plan.physical import Fragment, OpPlan, Target
    from headrace.runtime.source_rows import SourceRows


def encode_keys(key: KeySpec, rows: Rows, step: str) -> pa.BinaryArray:
    """The encoded key of each row."""
    if key.columns == ():
        return pa.repeat(pa.scalar(NULL_KEY, pa.binary()), len(rows))
    if key.columns is not None:
        columns = rows.columns
        return encode_columns([columns[rows.codec.index(name)] for name in key.columns])
    assert key.fn is not None
    fn = key.fn
    encoded: list[bytes] = []
    objects = rows.objects
    try:
        for row in objects:
            encoded.append(encode_key(fn(row)))
    except Exception as error:
        row = objects[len(encoded)]
        raise function_failed(error, step=step, function=fn, row=row, way_out=GUARD_KEY) from error
    return pa.array(encoded, pa.binary())


def derive_keys(key: KeySpec, rows: Rows, step: str) -> Keys:
    """Encoded keys with their hashes."""
    encoded = encode_keys(key, rows, step)
    return Keys(hash_encoded(encoded), encoded)


Outlet = Callable[[Rows], None]
Inlet = Callable[[Rows, Keys | None], None]


class FragmentEnds(Protocol):
    """Where rows leave a fragment during a task."""

    def to_edge(self, edge: int, rows: Rows) -> None: ...

    def to_output(self, output: int, rows: Rows) -> None: ...

    def to_loop(self, loop: int, rows: Rows) -> None: ...


class LiveFragment:
    """The operators of one fragment in this process."""

    def __init__(self, plan: Fragment) -> None:
        self.plan = plan
        self.operators: list[Operator] = [op.build() for op in plan.ops]
        self._ends: FragmentEnds | None = None
        self._opened = False
        self.source_rows: SourceRows | None = None
        """Of a chain whose source is decoded here: what is compiled for that, and kept for the tasks to come."""
        self._wire()

    def _wire(self) -> None:
        """Leads what operators give out to those who take it."""
        plan = self.plan
        for op, operator in zip(plan.ops, self.operators, strict=True):
            operator.outlets = {
                tag: outlet
                for tag, targets in op.targets.items()
                if (outlet := self._outlet(targets, f"step {op.step}")) is not None
            }
        self._entries = {edge: self.inlet(targets) for edge, targets in plan.entries.items()}
        self.entry = self.inlet(plan.entry)
        self.errors = self._outlet(plan.errors, "errors")

    def put(self, place: int, operator: Operator) -> None:
        """Has another operator work in a place: one that watches the one that was there."""
        self.operators[place] = operator
        self._wire()

    def open(self) -> None:
        """Runs every function's ``open`` once in this process."""
        if not self._opened:
            for operator in self.operators:
                operator.open()
            self._opened = True

    def attach(self, ends: FragmentEnds) -> None:
        """Sends what leaves the fragment to these ends, until the next task attaches its own."""
        self._ends = ends

    def serves(self, ends: FragmentEnds) -> bool:
        """Whether no other task has attached its ends since."""
        return self._ends is ends

    def enter(self, edge: int, rows: Rows, keys: Keys) -> None:
        self._entries[edge](rows, keys)

    def has_edge(self, edge: int) -> bool:
        return edge in self._entries

    def close(self) -> None:
        if self._opened:
            for operator in self.operators:
                operator.close()

    def inlet(self, targets: Sequence[Target]) -> Inlet:
        """A function that takes rows with their keys and hands them to every target."""
        inlets = [self._single(target) for target in targets]
        if len(inlets) == 1:
            return inlets[0]

        def to_all(rows: Rows, keys: Keys | None) -> None:
            for inlet in inlets:
                inlet(rows, keys)

        return to_all

    def _outlet(self, targets: Sequence[Target], where: str) -> Outlet | None:
        if not targets:
            return None
        inlet = self.inlet(targets)

        def give(rows: Rows) -> None:
            try:
                inlet(rows, None)
            except BadRow as bad:
                # Rows become columns only behind the step that made them; say whose they were.
                bad.where = bad.where or where
                raise

        return give

    def _single(self, target: Target) -> Inlet:
        index, port = target.place, target.port
        if target.kind == "edge":
            return lambda rows, _keys: self._live_ends().to_edge(index, rows)
        if target.kind == "out":
            return lambda rows, _keys: self._live_ends().to_output(index, rows)
        if target.kind == "loop":
            return lambda rows, _keys: self._live_ends().to_loop(index, rows)
        operator = self.operators[index]
        plan: OpPlan = self.plan.ops[index]
        if plan.rekey is None:
            return lambda rows, keys: operator.process(port, rows, keys)
        rekey, step = plan.rekey, plan.step
        if not plan.hashed:
            none = np.zeros(0, np.uint64)
            return lambda rows, _keys: operator.process(port, rows, Keys(none, encode_keys(rekey, rows, step)))
        return lambda rows, _keys: operator.process(port, rows, derive_keys(rekey, rows, step))

    def _live_ends(self) -> FragmentEnds:
        assert self._ends is not None, "a fragment got rows outside of a task"
        return self._ends
