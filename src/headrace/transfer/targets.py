"""Which state of the program an address means, and who takes rows for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import ProgramError
from headrace.model.job import COLUMNS, GIVEN, INNER, VALUE_TABLE, DeclaredState
from headrace.model.nearest import did_you_mean
from headrace.model.type_json import key_annotation
from headrace.operators.changelogs.aggregate import RetractingOperator
from headrace.operators.horizons.operator import HorizonOperator
from headrace.state import layout
from headrace.transfer.keys_in import KeyColumns
from headrace.transfer.state_rows import (
    SINGLE,
    AggregateRows,
    FirstTimes,
    ListRows,
    MapRows,
    SingleRows,
    StateImport,
    StateTarget,
    TimerRows,
)
from headrace.transfer.step_rows import StepTask, find_ports
from headrace.transfer.window_rows import WindowRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.plan.physical import Program
    from headrace.state.format import TableData

_KINDS: Final[dict[str, type[StateImport]]] = {
    **dict.fromkeys(SINGLE, SingleRows),
    **dict.fromkeys(("timer", "wall_timer", "timers"), TimerRows),
    "map": MapRows,
    "list": ListRows,
    "aggregate": AggregateRows,
    "windows": WindowRows,
}
_NO_STATE: Final = frozenset({"side", "counter", COLUMNS, INNER, GIVEN})


def find_state(program: Program, address: str) -> tuple[str, str]:
    """The step and the table that an address means, as ``step.state``, or ``step`` where a step keeps one state."""
    step, _, state = address.partition(".")
    states = _states_of(program, step)
    table = state or (VALUE_TABLE if VALUE_TABLE in states else next(iter(states)) if len(states) == 1 else "")
    if table in states:
        return step, table
    known = _addresses(program)
    raise ProgramError(
        "the program keeps no such state",
        where="bootstrap",
        expected=" or ".join(known) or "a state that a step keeps",
        found=address,
        next_move=did_you_mean(address, known, "`headrace explain` lists steps and states"),
    )


def _states_of(program: Program, step: str) -> Mapping[str, DeclaredState]:
    plan = program.steps.get(step)
    declared = {} if plan is None else plan.described
    return {name: known for name, known in declared.items() if known.kind not in _NO_STATE and name[:1] != "!"}


def _addresses(program: Program) -> list[str]:
    states = [(step, name) for step in program.steps for name in _states_of(program, step)]
    return [step if name == VALUE_TABLE else f"{step}.{name}" for step, name in states]


def open_target(program: Program, address: str, times: FirstTimes) -> StateImport:
    """Who makes tables of rows for a state."""
    step, table = find_state(program, address)
    plan = program.steps[step]
    declared = plan.described[table]
    ports = find_ports(program, step)
    key_type, named = plan.key, declared.key or (ports[0].key.columns or () if ports else ())
    if declared.kind == "broadcast":
        key_type, named = key_annotation(declared.key_type, declared.key_times), ()
    task = StepTask(program, step, clock_us=times.clock_us, write=_never)
    _check_alone(address, task)
    state = task.begin()
    keys = KeyColumns(f"state {address}", key_type, named)
    target = StateTarget(address, step, table, declared, state, keys, times)
    return _KINDS[declared.kind](target)


def _check_alone(address: str, task: StepTask) -> None:
    """Refuses results of what looks back over rows: one without the other would be wrong."""
    if isinstance(task.operator, HorizonOperator | RetractingOperator):
        raise ProgramError(
            "the step keeps rows beside its results, which the results do not tell",
            where=f"state {address}",
            expected="the rows themselves, or an exact export",
            found="results",
            next_move="give the step its rows (--rows), or an exact export (--from)",
        )


def listed_as(target: StateTarget) -> str:
    """The name under which the runs of a state are listed."""
    return layout.broadcast(target.step) if target.declared.kind == "broadcast" else target.step


def _never(tables: Sequence[TableData]) -> None:
    raise AssertionError("a task that is given no rows has nothing to write")
