"""Every public name, for ``import headrace as hr``. Loaded when the first of them is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from headrace import sink, source, types, watermarks
from headrace.aggregates.declare import (
    Aggregator,
    avg,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,
    min,
    quantile,
    sum,
    top,
)
from headrace.connectors.sink_contract import Sink
from headrace.connectors.source_contract import Source
from headrace.dataflow.app import App
from headrace.dataflow.asynchronous import retry
from headrace.dataflow.checks import HeadraceWarning
from headrace.dataflow.functions import Process
from headrace.dataflow.joint_functions import BroadcastProcess, CoProcess, CoWindowProcess
from headrace.dataflow.keyed import KeyedStream
from headrace.dataflow.settings import Settings
from headrace.dataflow.stream import Stream
from headrace.dataflow.variables import secret, var
from headrace.dataflow.windowed import WindowProcess
from headrace.dataflow.windows import (
    cumulating,
    early,
    every,
    keep_delta,
    keep_rows,
    keep_span,
    on_delta,
    per_epoch,
    per_row,
    rows,
    session,
    sliding,
    timeout,
    tumbling,
    unbounded,
)
from headrace.errors import HeadraceError, ProgramError
from headrace.model.fields import field
from headrace.model.generators import WatermarkGenerator
from headrace.model.migrations import migrate
from headrace.model.pace import adaptive
from headrace.model.record import Failed, Record, Row
from headrace.model.requests import AsyncFunction
from headrace.model.time import Duration, Span, Timestamp, days, hours, milliseconds, minutes, seconds, timestamp
from headrace.patterns.declare import EventPattern, pattern
from headrace.patterns.rules.rule import PatternRule
from headrace.program_mistakes import print_mistakes_in_words
from headrace.sql.expr import col
from headrace.state.handles import (
    AggregatingState,
    BroadcastContext,
    BroadcastState,
    Context,
    Counter,
    ListState,
    MapState,
    ReducingState,
    Side,
    Timer,
    Timers,
    ValueState,
    WallTimer,
    state,
    ttl,
)
from headrace.windows.context import WindowContext
from headrace.windows.evictors import Evictor
from headrace.windows.kinds import Window
from headrace.windows.triggers import Trigger, TriggerContext, TriggerResult

if TYPE_CHECKING:
    from headrace import testing
    from headrace.client import AsyncClient, Client
    from headrace.edit.editor import Editor
    from headrace.read.diff import diff
    from headrace.read.store import Store
    from headrace.read.view import StateView
    from headrace.spark.runner import Run
    from headrace.transfer.bootstrap import bootstrap

__all__ = [
    "AggregatingState",
    "Aggregator",
    "App",
    "AsyncClient",
    "AsyncFunction",
    "BroadcastContext",
    "BroadcastProcess",
    "BroadcastState",
    "Client",
    "CoProcess",
    "CoWindowProcess",
    "Context",
    "Counter",
    "Duration",
    "Editor",
    "EventPattern",
    "Evictor",
    "Failed",
    "HeadraceError",
    "HeadraceWarning",
    "KeyedStream",
    "ListState",
    "MapState",
    "PatternRule",
    "Process",
    "ProgramError",
    "Record",
    "ReducingState",
    "Row",
    "Run",
    "Settings",
    "Side",
    "Sink",
    "Source",
    "Span",
    "StateView",
    "Store",
    "Stream",
    "Timer",
    "Timers",
    "Timestamp",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "ValueState",
    "WallTimer",
    "WatermarkGenerator",
    "Window",
    "WindowContext",
    "WindowProcess",
    "adaptive",
    "avg",
    "bootstrap",
    "col",
    "collect",
    "count",
    "count_distinct",
    "cumulating",
    "days",
    "diff",
    "early",
    "every",
    "field",
    "first",
    "hours",
    "keep_delta",
    "keep_rows",
    "keep_span",
    "last",
    "max",
    "migrate",
    "milliseconds",
    "min",
    "minutes",
    "on_delta",
    "pattern",
    "per_epoch",
    "per_row",
    "quantile",
    "retry",
    "rows",
    "seconds",
    "secret",
    "session",
    "sink",
    "sliding",
    "source",
    "state",
    "sum",
    "testing",
    "timeout",
    "timestamp",
    "top",
    "ttl",
    "tumbling",
    "types",
    "unbounded",
    "var",
    "watermarks",
]

_WHEN_ASKED: Final = {
    "AsyncClient": "headrace.client",
    "Client": "headrace.client",
    "Editor": "headrace.edit.editor",
    "Run": "headrace.spark.runner",
    "StateView": "headrace.read.view",
    "Store": "headrace.read.store",
    "diff": "headrace.read.diff",
    "bootstrap": "headrace.transfer.bootstrap",
    "testing": "headrace",
}
"""Names whose modules are loaded when somebody asks for them: most programs never do."""

print_mistakes_in_words()


def _near(name: str) -> str:
    from headrace.model.nearest import did_you_mean

    near = did_you_mean(name, [each for each in __all__ if not name.startswith("_")])
    return f"; {near}" if near else ""


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED:
        where = f"; it is now hr.types.{name}" if name in types.__all__ else _near(name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}{where}")
    value = import_module("headrace.testing") if name == "testing" else getattr(import_module(_WHEN_ASKED[name]), name)
    globals()[name] = value
    return value
