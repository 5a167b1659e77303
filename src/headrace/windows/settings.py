"""Everything a user said in ``window(…)`` and the verb behind it, as frozen data: what the operators of windows read.

Which operator runs such a step, and what it declares to readers, is said in `headrace.windows.spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.model.time import format_span
from headrace.model.window import PANE as PANE
from headrace.model.window import WINDOW_END as WINDOW_END
from headrace.model.window import WINDOW_START as WINDOW_START
from headrace.windows.kinds import Assigner, Session, SettledWindows

if TYPE_CHECKING:
    from headrace.aggregates.declare import Agg
    from headrace.model.archive import Archive
    from headrace.model.rows import RowCodec
    from headrace.operators.spec import StepInfo
    from headrace.state.handles import StateDecl
    from headrace.windows.evictors import Evictor
    from headrace.windows.triggers import Trigger

FINALS: Final = "finals"
"""Outlet of the results of windows that are gone for good."""


@dataclass(frozen=True)
class WindowSettings:
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
    def windows(self) -> str:
        """How windows are cut, in words."""
        return _describe_assigner(self.assigner)

    def tells_pane(self, info: StepInfo) -> bool:
        """Whether results say if they come before, at or after the end of their window."""
        aggregated = bool(self.aggs) and self.function is None
        # Elsewhere a field of that name is one's own.
        return aggregated and PANE in info.codec.names and PANE not in (*self.aggs, *info.key_fields)


def _describe_assigner(assigner: Assigner) -> str:
    if isinstance(assigner, SettledWindows):
        return _describe_assigner(assigner.windows)
    kind = type(assigner).__name__.lower()
    if isinstance(assigner, Session) and assigner.gap_us is None:
        return f"session windows, gap {assigner.gap_sql}, {assigner.clock} time"
    spans = [
        format_span(getattr(assigner, name)) for name in ("size_us", "every_us", "gap_us") if hasattr(assigner, name)
    ]
    moved = getattr(assigner, "offset_us", 0)
    offset = f", offset {format_span(moved)}" if moved else ""
    return f"{kind} windows{' of ' if spans else ''}{' every '.join(spans)}{offset}, {assigner.clock} time"
