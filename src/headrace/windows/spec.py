"""What a windowed step is: everything a user said in ``window(…)`` and the verb behind it, as frozen data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.aggregates.accumulate import describe_results
from headrace.aggregates.declare import Agg
from headrace.model.archive import Archive
from headrace.model.job import DeclaredState
from headrace.operators.spec import Combined, OperatorChoice, StepInfo, StepSpec
from headrace.windows.evictors import Evictor
from headrace.windows.kinds import Assigner, Session
from headrace.windows.triggers import EveryRows, OnDelta, PerEpoch, Periodic, PerRow, Timeout, Trigger

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator
    from headrace.state.handles import StateDecl

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
PANE: Final = "pane"
"""Columns of a result that tell its window, and whether it came early, on time or late."""

FINALS: Final = "finals"
"""Outlet of the results of windows that are gone for good."""


@dataclass(frozen=True)
class WindowSpec(StepSpec):
    """A windowed step. What a window comes to is one of

    - ``aggs``: declared aggregates and own Aggregators, by the name of their column;
    - ``reduce``: a function of two rows;
    - ``function`` alone: a WindowProcess that is given all rows;
    - ``function`` with ``aggs`` or ``reduce``: a WindowProcess that is given the one row these come to, of type ``of``.
    """

    assigner: Assigner
    fire: Trigger | None = None
    """None: at the window's end, and again in each epoch in which late rows changed it."""
    discard: bool = False
    """Whether a window is emptied when it fires."""
    allow_late_us: int = 0
    evict: Evictor | None = None
    aggs: Mapping[str, Agg[Any]] = field(default_factory=dict)
    reduce: Callable[[Any, Any], Any] | None = None
    function: Any = None
    of: RowCodec | None = None
    trigger_decls: tuple[StateDecl, ...] = ()
    """What the class of an own trigger declares."""
    timed: bool = True
    """Whether the rows that come in have event times."""
    keep_us: int = 0
    """How long a window can still be read when it is gone; only where it is merged from slices."""
    archive: Archive | None = None
    """Where windows go when they are gone for good, so that they can be read for ever."""

    @property
    def start_column(self) -> str:
        return WINDOW_START

    @property
    def end_column(self) -> str:
        return WINDOW_END

    @property
    def pane_column(self) -> str:
        return PANE

    @property
    def keeps_rows(self) -> bool:
        """Whether the rows themselves are kept until their window goes."""
        alone = self.function is not None and not self.aggs and self.reduce is None
        return alone or self.evict is not None or getattr(self.assigner, "slides", False)

    @property
    def repeats(self) -> bool:
        """Whether a window may give more than one result."""
        return self.fire is not None or self.allow_late_us > 0

    @property
    def uses_watermark(self) -> bool:
        by_event = self.assigner.timed and self.assigner.clock == "event"
        return by_event or _fires_on_event_time(self.fire, self.timed)

    def choose(self, info: StepInfo) -> OperatorChoice:
        from headrace.windows.choose import choose_windows

        return choose_windows(
            self.assigner, self.fire, empties=self.discard and self.repeats, evicts=self.evict is not None,
            reduces=self.reduce is not None, function=self.function, aggs=self.aggs, taken=info.taken[0],
            where=f"step {info.step}",
        )  # fmt: skip

    def build(self, info: StepInfo) -> Operator:
        match self._chosen(info):
            case "sliced":
                from headrace.windows.sliced.operator import PaneOperator

                return PaneOperator(self, info)
            case "sessions":
                from headrace.windows.sessions.operator import SessionPaneOperator

                return SessionPaneOperator(self, info)
        from headrace.windows.by_row.operator import WindowOperator

        return WindowOperator(self, info)

    def _chosen(self, info: StepInfo) -> str:
        assert info.choice is not None, f"the planner chose no operator for step {info.step}"
        return info.choice.operator

    def combined(self, info: StepInfo) -> Combined | None:
        from headrace.windows.combine import combine_panes

        return combine_panes(self, info) if self._chosen(info) == "sliced" else None

    def states(self) -> Mapping[str, str]:
        return {}

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        """What windows are kept as; a table of slices says it itself."""
        clock = self.assigner.clock if self.assigner.timed else ""
        if self._chosen(info) != "by row":
            pane = self.tells_pane(info)
            archived = DeclaredState("windows", clock, key=info.key_fields, archive=self.archive, pane=pane)
            return {} if self.archive is None else {"value": archived}
        results: dict[str, list[Any]] = {}
        if not self.keeps_rows:
            results = describe_results(self.aggs, info.taken[0]) if self.aggs else {"!row": ["row"]}
        pane = self.tells_pane(info)
        told = DeclaredState(
            "windows", clock, results=results, key=info.key_fields, archive=self.archive, pane=pane,
            windows=self.windows,
        )  # fmt: skip
        return {"value": told}

    @property
    def windows(self) -> str:
        """How windows are cut, in words."""
        return _tell_assigner(self.assigner)

    def tells_pane(self, info: StepInfo) -> bool:
        """Whether results say if they come before, at or after the end of their window."""
        aggregated = bool(self.aggs) and self.function is None
        # Elsewhere a field of that name is one's own.
        return aggregated and PANE in info.codec.names and PANE not in (*self.aggs, *info.key_fields)

    def tell(self) -> tuple[str, ...]:
        notes = [_tell_assigner(self.assigner)]
        notes += _tell_fire(self.fire)
        if self.discard:
            notes.append("discards what it has given out")
        if self.allow_late_us:
            notes.append(f"allows rows to be {_span(self.allow_late_us)} late")
        if self.keeps_rows:
            notes.append("keeps every row until its window goes")
        return tuple(notes)


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


def _tell_fire(fire: Trigger | None) -> list[str]:
    match fire:
        case None:
            return []
        case Periodic():
            return [f"fires every {_span(fire.every_us)} of {fire.clock} time where it changed, and at the end"]
        case PerRow():
            return ["fires after every row"]
        case PerEpoch():
            return ["fires in every epoch where it changed"]
        case EveryRows():
            return [f"fires after every {fire.rows} rows"]
        case OnDelta():
            return [f"fires when rows differ by more than {fire.threshold:g}"]
        case Timeout():
            return [*_tell_fire(fire.of), f"fires after waiting for {_span(fire.span_us)}"]
    return [f"fires by {type(fire).__name__}"]


def _span(us: int) -> str:
    from headrace.model.time import format_span

    return format_span(us)


def _tell_assigner(assigner: Assigner) -> str:
    kind = type(assigner).__name__.lower()
    if isinstance(assigner, Session) and assigner.gap_us is None:
        return f"session windows, gap {assigner.gap_sql}, {assigner.clock} time"
    spans = [_span(getattr(assigner, name)) for name in ("size_us", "every_us", "gap_us") if hasattr(assigner, name)]
    moved = getattr(assigner, "offset_us", 0)
    offset = f", offset {_span(moved)}" if moved else ""
    return f"{kind} windows{' of ' if spans else ''}{' every '.join(spans)}{offset}, {assigner.clock} time"
