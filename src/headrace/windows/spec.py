"""The specification of a windowed step: which operator runs it, what it declares to readers, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.aggregates.accumulate import describe_accumulators, describe_results
from headrace.aggregates.meaning import describe_meanings
from headrace.model.amounts import count_of
from headrace.model.job import INNER, VALUE_TABLE, DeclaredState
from headrace.model.time import format_span
from headrace.model.type_shape import accumulators_shape, describe_type
from headrace.operators.asked import columns_of, columns_of_aggregates, with_columns
from headrace.operators.spec import WALL, CombinedRows, OperatorChoice, StepInfo, StepSpec, StoredType
from headrace.state.panes.about import cut_of
from headrace.windows.evictors import Evictor, KeepDelta, KeepRows, KeepSpan
from headrace.windows.kinds import Cumulating, RowCount, Session, SettledWindows, Sliding
from headrace.windows.settings import WindowSettings
from headrace.windows.triggers import EveryRows, OnDelta, PerEpoch, Periodic, PerRow, Timeout, Trigger

if TYPE_CHECKING:
    from headrace.operators.asked import Columns
    from headrace.operators.contract import Operator


@dataclass(frozen=True)
class WindowSpec(WindowSettings, StepSpec):
    """A windowed step, as the planner sees it."""

    def over_settled_rows(self) -> WindowSpec:
        """The same windows over rows that a step before them gives once for each window, when that is over."""
        kind = self.assigner
        return replace(self, assigner=SettledWindows(kind)) if isinstance(kind, Sliding | Cumulating) else self

    @property
    def uses_watermark(self) -> bool:
        by_event = self.assigner.timed and self.assigner.clock == "event"
        return by_event or _fires_on_event_time(self.fire, self.timed)

    @property
    def uses_wall_clock(self) -> bool:
        return (self.assigner.timed and self.assigner.clock == WALL) or _may_fire_on_wall_time(self.fire)

    def choose(self, info: StepInfo) -> OperatorChoice:
        from headrace.windows.choose import choose_windows

        return choose_windows(
            self.assigner, self.fire, empties=self.discard and self.repeats, evicts=self.evict is not None,
            reduces=self.reduce is not None, function=self.function, aggs=self.aggs, taken=info.taken[0],
            where=f"step {info.step}",
        )  # fmt: skip

    def build(self, info: StepInfo) -> Operator:
        match self._operator_name(info):
            case "sliced":
                from headrace.windows.sliced.operator import PaneOperator

                return PaneOperator(self, info)
            case "sessions":
                from headrace.windows.sessions.operator import SessionPaneOperator

                return SessionPaneOperator(self, info)
        from headrace.windows.by_row.operator import WindowOperator

        return WindowOperator(self, info)

    def _operator_name(self, info: StepInfo) -> str:
        assert info.choice is not None, f"the planner chose no operator for step {info.step}"
        return info.choice.operator

    def asked(self, info: StepInfo, needed: Columns, *, narrows: bool) -> tuple[Columns, ...]:
        # Windows row by row may have functions and triggers that are given rows.
        if self._operator_name(info) not in ("sliced", "sessions"):
            return (None,)
        gap = self.assigner.gap_sql if isinstance(self.assigner, Session) else None
        beside = columns_of(() if gap is None else (gap,), info.taken[0])
        return (with_columns(columns_of_aggregates(self.aggs, info.taken[0]), beside),)

    def combined(self, info: StepInfo) -> CombinedRows | None:
        from headrace.windows.combine import combine_panes

        return combine_panes(self, info) if self._operator_name(info) == "sliced" else None

    def states(self) -> Mapping[str, str]:
        return {}

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        """What windows are kept as, also before there are any."""
        clock = self.assigner.clock if self.assigner.timed else ""
        results: dict[str, list[Any]] = {}
        if not self.keeps_rows:
            results = describe_results(self.aggs, info.taken[0]) if self.aggs else {"!row": ["row"]}
        told = DeclaredState(
            "windows", clock, results=results, key=info.key_fields, archive=self.archive,
            pane=self.tells_pane(info), windows=self.windows,
            meanings=describe_meanings(self.aggs, info.taken[0], info.codec if self.function is None else None),
        )  # fmt: skip
        return {VALUE_TABLE: told}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        """``cut``: how a columnar operator cut what it keeps, as its tables say it themselves."""
        rules = {
            "fire": "; ".join(_tell_fire(self.fire)) or "fires at the end",
            "panes": "discards what it has given out" if self.discard else "accumulates",
            "allow_late": format_span(self.allow_late_us),
        }
        match self._operator_name(info):
            case "sliced":
                from headrace.windows.sliced.plan import PanePlan

                rules["cut"] = cut_of(PanePlan(self, info).schema)
            case "sessions":
                from headrace.windows.sessions.plan import SessionPlan

                rules["cut"] = cut_of(SessionPlan(self, info).schema)
            case _:
                rules["holds"] = self._holds
        return rules

    @property
    def _holds(self) -> str:
        """What a window kept row by row has in it."""
        if self.keeps_rows:
            return "rows"
        return "aggregates" if self.aggs else "one reduced row"

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        """Windows row by row; slices and fragments are columns that say it themselves."""
        if self._operator_name(info) != "by row":
            return {}
        from headrace.windows.by_row.contents import REDUCED
        from headrace.windows.by_row.row_contents import ROWS_TABLE

        row = info.taken[0].type
        if self.keeps_rows:
            windows = StoredType("windows", accumulators_shape({}))
            return {VALUE_TABLE: windows, ROWS_TABLE: StoredType(INNER, describe_type(row), row)}
        if self.aggs:
            given = info.codec if self.function is None else None
            accumulators = describe_accumulators(self.aggs, info.taken[0], f"step {info.step}", given)
            return {VALUE_TABLE: StoredType("windows", accumulators)}
        return {VALUE_TABLE: StoredType("windows", accumulators_shape({REDUCED: row}))}

    def tell(self) -> tuple[str, ...]:
        notes = [_tell_rows(self.assigner) if isinstance(self.assigner, RowCount) else self.windows]
        notes += _tell_fire(self.fire)
        if self.discard:
            notes.append("discards what it has given out")
        if self.allow_late_us:
            notes.append(f"allows rows to be {format_span(self.allow_late_us)} late")
        if self.keeps_rows:
            notes.append("keeps every row until its window goes")
        if self.evict is not None:
            notes.append(_tell_evict(self.evict))
        return tuple(notes)


def _tell_rows(windows: RowCount) -> str:
    """Windows of rows, in words for people; `windows` are words that stores are compared by."""
    size = f"windows of {count_of(windows.n, 'row')}"
    return f"{size}, after every {count_of(windows.every, 'row')}" if windows.slides else size


def _tell_evict(evict: Evictor) -> str:
    match evict:
        case KeepRows():
            stay = f"the newest {count_of(evict.n, 'row')}"
        case KeepSpan():
            stay = f"rows less than {format_span(evict.span_us)} older than the newest"
        case KeepDelta():
            stay = f"rows that differ from the last one by less than {evict.threshold:g}"
        case _:
            stay = f"the rows that {type(evict).__name__} says"
    return f"keeps {stay} when it fires" + (", after its function saw all of them" if evict.after else "")


def _fires_on_event_time(fire: Trigger | None, timed: bool) -> bool:
    match fire:
        case None | PerRow() | PerEpoch() | EveryRows() | OnDelta():
            return False
        case Periodic():
            return fire.clock == "event"
        case Timeout():
            return _fires_on_event_time(fire.of, timed)
        case _:
            return timed


def _may_fire_on_wall_time(fire: Trigger | None) -> bool:
    match fire:
        case None | PerRow() | PerEpoch() | EveryRows() | OnDelta():
            return False
        case Periodic():
            return fire.clock == WALL
    # A timeout waits by the wall clock; triggers of users may set timers on it.
    return True


def _tell_fire(fire: Trigger | None) -> list[str]:
    match fire:
        case None:
            return []
        case Periodic():
            return [f"fires every {format_span(fire.every_us)} of {fire.clock} time where it changed, and at the end"]
        case PerRow():
            return ["fires after every row"]
        case PerEpoch():
            return ["fires in every epoch where it changed"]
        case EveryRows():
            return ["fires after every row" if fire.rows == 1 else f"fires after every {count_of(fire.rows, 'row')}"]
        case OnDelta():
            return [f"fires when rows differ by more than {fire.threshold:g}"]
        case Timeout():
            return [*_tell_fire(fire.of), f"fires after waiting for {format_span(fire.span_us)}"]
    return [f"fires by {type(fire).__name__}"]
