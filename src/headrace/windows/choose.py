"""Which operator runs a windowed step, and how its windows are stored: a pure function of the specification.

There are three operators. Two of them merge partial aggregates in columns: `sliced` (windows with fixed bounds) and
`sessions`. Everything that needs Python for single rows or windows runs row by row. Each stores another kind of table,
so a step cannot go from one to another under its name. The planner asks once, and the program carries the answer: the
worker builds the chosen operator, ``explain`` prints the choice, the fingerprint contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.aggregates.columns import pane_aggregate
from headrace.operators.spec import OperatorChoice
from headrace.windows.kinds import Assigner, Cumulating, RowCount, Session, SettledWindows, Sliding, Tumbling, Unbounded
from headrace.windows.triggers import EveryRows, OnDelta, PerEpoch, Periodic, PerRow, Timeout, Trigger

if TYPE_CHECKING:
    from headrace.aggregates.declare import Agg
    from headrace.model.rows import RowCodec

SLICED: Final = "sliced"
SESSIONS: Final = "sessions"
BY_ROW: Final = "by row"

_SLICED_TABLE: Final = "partial aggregates per key and slice of time"
_SESSIONS_TABLE: Final = "partial aggregates per key and fragment of a session"
_BY_ROW_TABLE: Final = "one entry per key and open window"


def choose_windows(
    assigner: Assigner, fire: Trigger | None, *, empties: bool, evicts: bool, reduces: bool, function: Any,
    aggs: Mapping[str, Agg[Any]], taken: RowCodec, where: str,
) -> OperatorChoice:  # fmt: skip
    """The operator of a windowed step, the table it keeps, and the reason.

    ``empties``: whether a window that is emptied when it fires may fire again. ``taken``: the type of the rows.
    """
    reason = _why_python(function, reduces=reduces, evicts=evicts) or _why_windows(assigner, fire, empties)
    several = not isinstance(assigner, Tumbling)
    for name, agg in aggs.items() if reason is None else ():
        if pane_aggregate(name, agg, taken, where, several=several) is None:
            reason = f"the aggregate {name!r} has no columns"
            break
    if reason is not None:
        return OperatorChoice(BY_ROW, _BY_ROW_TABLE, reason)
    if isinstance(assigner, Session):
        return OperatorChoice(SESSIONS, _SESSIONS_TABLE, "every aggregate of the sessions has columns")
    return OperatorChoice(SLICED, _SLICED_TABLE, "the windows have fixed bounds, and every aggregate has columns")


def _why_python(function: Any, *, reduces: bool, evicts: bool) -> str | None:
    if function is not None:
        return f"{type(function).__name__} is called for each window"
    if reduces:
        return "reduce calls a Python function for each row"
    return "an evictor looks at the rows of each window" if evicts else None


def _why_windows(assigner: Assigner, fire: Trigger | None, empties: bool) -> str | None:
    if type(assigner) not in (Tumbling, Sliding, Cumulating, Session):
        return _why_kind(assigner)
    if fire is not None and type(fire) not in (PerEpoch, Periodic):
        return f"{_name_of(fire)} decides for each row or timer whether a window fires"
    if isinstance(assigner, Session) and empties:
        return "a session that was emptied keeps its bounds, which fragments cannot express"
    return None


def _why_kind(assigner: Assigner) -> str:
    if isinstance(assigner, RowCount):
        return "windows of rows are counted row by row"
    if isinstance(assigner, SettledWindows):
        return "rows that may go are given anew for each window"
    if isinstance(assigner, Unbounded):
        return "an unbounded window has no slices"
    return f"{type(assigner).__name__} assigns windows in Python"


def _name_of(fire: Trigger) -> str:
    match fire:
        case PerRow():
            return "per_row"
        case EveryRows():
            return "every(rows=…)"
        case OnDelta():
            return "on_delta"
        case Timeout():
            return "timeout"
    return type(fire).__name__
