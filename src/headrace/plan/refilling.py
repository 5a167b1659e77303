"""Which step's state holds what an output wrote: decided from the compiled program, or refused with the ways out.

An output can be written again from state where its rows are what one rolling step gives out (`aggregate`, `reduce`,
`latest`, what is kept to take rows back, and what is kept by the key of a sink), changed on their way by nothing but
functions and expressions of a row.
What windows gave out when they ended can be written again for as long as they are kept, or for good where they are
archived. What other steps gave out is not in their state: what `process` emitted was never kept.

When a job goes back, an output repeats from state where, beyond that, its sink finds rows by the unique key of the
stream: then whatever went out of a key since is replaced by one row, or goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import ProgramError
from headrace.model.nearest import nearest
from headrace.model.report import TAP
from headrace.operators.changelogs.aggregate import RetractingOperator
from headrace.operators.changelogs.latest import RetractingLatestOperator
from headrace.operators.changelogs.normalise import NormaliseOperator
from headrace.operators.changelogs.reduce import RetractingReduceOperator
from headrace.operators.changelogs.top import TopOperator
from headrace.operators.changelogs.top_spec import SinkRowsSpec
from headrace.operators.rolling import RollingOperator
from headrace.operators.stateless import (
    BatchOperator,
    ExprOperator,
    FilterOperator,
    OnlyOperator,
    RowOperator,
    WhereOperator,
)
from headrace.plan.physical import Fragment, OpPlan, OutputPlan, Program, Target
from headrace.windows.columnar import ColumnarWindows
from headrace.windows.kinds import Cumulating, Session

if TYPE_CHECKING:
    from headrace.operators.contract import Operator
    from headrace.windows.settings import WindowSettings

_PURE = (RowOperator, OnlyOperator, BatchOperator, ExprOperator)
_ROLLING = (
    RollingOperator, NormaliseOperator, RetractingOperator, RetractingLatestOperator, RetractingReduceOperator
)  # fmt: skip
"""What keeps, of each key, the row that holds; `results` makes it."""


@dataclass(frozen=True)
class RefillPlan:
    """The way from a state to an output."""

    output: OutputPlan
    place: int
    """Of the output in the program."""
    step: str
    fragment: Fragment
    """The step, and what its rows pass on their way."""
    windows: WindowSettings | None = None
    """Of a step whose rows are of windows that ended: in the state as long as they are kept, and in an archive."""
    of_sink: bool = False
    """Whether the step keeps the rows of each key of the output's sink."""


def derive_refill(program: Program, name: str) -> RefillPlan:
    """The way to an output of this name. Raises ProgramError where there is none."""
    plan = _find_way(program, name)
    if plan.windows and (reason := _why_windows_are_gone(plan.windows)):
        raise _refused(plan.output, f"rows of windows of {plan.step}, {reason}")
    return plan


def _find_way(program: Program, name: str) -> RefillPlan:
    """The same, whether windows are still known when they are over or not."""
    place, output = find_output(program, name)
    leading = [
        (fragment, index)
        for fragment in program.fragments
        for index, op in enumerate(fragment.ops)
        if Target("out", place) in _targets_of(op)
    ]
    entering = any(Target("out", place) in _entries_of(fragment) for fragment in program.fragments)
    if entering or len(leading) != 1:
        found = "rows of a source, as they are read" if not leading else "rows of several streams"
        raise _refused(output, found)
    fragment, last = leading[0]
    way = _way_back(fragment, last, output)
    first = fragment.ops[way[0]].build()
    windows = first.spec if isinstance(first, ColumnarWindows) else None
    only = _only(fragment, way, place)
    return RefillPlan(output, place, fragment.ops[way[0]].step, only, windows, of_sink=_is_of_sink(first))


def _is_of_sink(operator: Operator) -> bool:
    """Whether it keeps the rows of each key of a sink, of which one is shown."""
    return isinstance(operator, TopOperator) and isinstance(operator.spec, SinkRowsSpec)


def derive_restating(program: Program, name: str) -> RefillPlan:
    """The way to an output that can be brought back to what a state says. Raises ProgramError where there is none."""
    output = find_output(program, name)[1]
    if not output.by_key and not _is_of_windows(program, output):
        raise _refused(output, "rows that its target does not find by the unique key of their stream")
    if output.sink.guarantee != "exactly once":
        raise _refused(output, "a target that is written at least once")
    plan = derive_refill(program, name)
    if plan.of_sink:
        raise _refused(output, "rows that are kept by the key of the target, of which the newest is shown")
    if plan.windows and (reason := _why_windows_are_not_found(plan)):
        raise _refused(output, reason)
    return plan


def _is_of_windows(program: Program, output: OutputPlan) -> bool:
    """Whether its rows are those of windows, each given once, in a target that finds rows by some key."""
    if output.sink.changelog_key is None:
        return False
    try:
        return _find_way(program, output.name).windows is not None
    except ProgramError:
        return False


def find_output(program: Program, name: str) -> tuple[int, OutputPlan]:
    """An output of the program by its name, and its place. Raises ProgramError where there is none."""
    known = {output.name: place for place, output in enumerate(program.outputs) if not output.name.startswith(TAP)}
    if name not in known:
        near = nearest(name, list(known))
        raise ProgramError(
            f"there is no output {name!r}",
            where=f"app {program.app}",
            expected=", ".join(sorted(known)) or "a program that writes to something",
            found=name,
            next_move=f"did you mean {near[0]}?" if near else "headrace explain APP.PY lists outputs with their names",
        )
    return known[name], program.outputs[known[name]]


def _way_back(fragment: Fragment, last: int, output: OutputPlan) -> list[int]:
    """The operators from a rolling step to the output, in order."""
    way = [last]
    while True:
        operator = fragment.ops[way[0]].build()
        if isinstance(operator, (*_ROLLING, ColumnarWindows)) or _is_of_sink(operator):
            return way
        if not isinstance(operator, _PURE):
            raise _refused(output, _what_it_is(fragment.ops[way[0]], operator))
        before = [index for index, op in enumerate(fragment.ops) if _leads_to(op, way[0])]
        enters = any(target.kind == "op" and target.place == way[0] for target in _entries_of(fragment))
        if enters or len(before) != 1:
            raise _refused(output, "rows of a source" if enters else "rows of several streams")
        way.insert(0, before[0])


def _why_windows_are_gone(spec: WindowSettings) -> str:
    """Why nothing says which row each window that ended gave out; empty where something does."""
    if spec.fire is not None:
        return "which give rows before they end, too, and which row came last is in no state"
    if spec.archive is None and not spec.keep_us:
        return "which leave the state when they are over: queryable(keep=…) or queryable(archive=…) keeps them"
    return ""


def _why_windows_are_not_found(plan: RefillPlan) -> str:
    """Why a target could not tell the rows of all windows apart; empty where it can."""
    first, *others = (op.build() for op in plan.fragment.ops)
    rows = f"rows of windows of {plan.step}"
    assert isinstance(first, ColumnarWindows), "the plan says so"
    if not all(isinstance(each, (WhereOperator, FilterOperator)) for each in others):
        return f"{rows} that are changed on their way, so that the state does not say under which key they went out"
    spec, keys = first.spec, {*(plan.output.sink.changelog_key or ())}
    bounds, parts = (spec.start_column, spec.end_column), set(first.plan.about.key)
    by_end_only = isinstance(spec.assigner, Cumulating)
    found = bounds[1] in keys if by_end_only else not keys.isdisjoint(bounds)
    if isinstance(spec.assigner, Session):
        found = keys.issuperset(bounds) and not spec.allow_late_us
    if not found or not parts <= keys or not keys <= {*parts, *bounds}:
        return f"{rows}, which its target does not find by key and window"
    return ""


def _entries_of(fragment: Fragment) -> list[Target]:
    """Where rows go that come into a fragment."""
    return [*fragment.entry, *fragment.errors, *(each for targets in fragment.entries.values() for each in targets)]


def _leads_to(op: OpPlan, place: int) -> bool:
    return any(target.kind == "op" and target.place == place for target in _targets_of(op))


def _targets_of(op: OpPlan) -> list[Target]:
    return [target for targets in op.targets.values() for target in targets]


def _only(fragment: Fragment, way: list[int], place: int) -> Fragment:
    """The operators of the way, wired to each other and to the output alone."""
    ops = []
    for number, index in enumerate(way):
        op = fragment.ops[index]
        following = way[number + 1] if number + 1 < len(way) else None
        targets = {
            outlet: tuple(
                target._replace(place=number + 1) if target.kind == "op" else target
                for target in each
                if target == Target("out", place) or (target.kind == "op" and target.place == following)
            )
            for outlet, each in op.targets.items()
        }
        if following is not None:
            targets = {outlet: tuple(t for t in each if t.kind == "op") for outlet, each in targets.items()}
        ops.append(replace(op, targets=targets))
    return Fragment(tuple(ops))


def _what_it_is(op: OpPlan, operator: Operator) -> str:
    kind = type(operator).__name__.removesuffix("Operator").lower()
    return f"rows of {op.step} ({kind}), from whose state no output is written again"


def _refused(output: OutputPlan, found: str) -> ProgramError:
    return ProgramError(
        f"the output {output.name} cannot be written again from state",
        where=output.site,
        expected="rows that an aggregate, reduce or latest gives out, or windows that are kept or archived, changed by "
        "map, filter, select and the like",
        found=found,
        next_move="write what past epochs gave out to a new target: --from EPOCH --into TARGET. Or run the program "
        "from a savepoint into a store of its own (headrace run APP.PY --from SAVEPOINT --store NEW)",
    )
