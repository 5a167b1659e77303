"""Every public name, for ``import headrace as hr``: loaded when the first of them is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import headrace.dataflow.watermarking as watermarks
from headrace import sink, source
from headrace.dataflow.app import App
from headrace.dataflow.asynchronous import retry
from headrace.dataflow.broadcast import BroadcastConnected, BroadcastProcess, BroadcastStream
from headrace.dataflow.checks import HeadraceWarning
from headrace.dataflow.cogrouped import CoGrouped, CoWindowProcess
from headrace.dataflow.connected import Connected, ConnectedStream, CoProcess
from headrace.dataflow.functions import Process
from headrace.dataflow.joined import Joined
from headrace.dataflow.keyed import KeyedStream, StepStream
from headrace.dataflow.loops import Loop
from headrace.dataflow.settings import Settings
from headrace.dataflow.stream import Stream
from headrace.dataflow.variables import secret, var
from headrace.dataflow.windowed import Windowed, WindowProcess, WindowStream
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
from headrace.model.expr import Expr, col
from headrace.model.generators import WatermarkGenerator
from headrace.model.record import Failed, Record, Row
from headrace.model.requests import AsyncFunction, Retry
from headrace.model.time import Duration, Span, Timestamp, days, hours, milliseconds, minutes, seconds, timestamp
from headrace.operators.aggregates import (
    Agg,
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
from headrace.operators.windows.assigners import Assigner, Window
from headrace.operators.windows.context import WindowContext
from headrace.operators.windows.evictors import Evictor
from headrace.operators.windows.triggers import Trigger, TriggerContext, TriggerResult
from headrace.sinks.contract import Sink
from headrace.sources.contract import Source
from headrace.state.handles import (
    TTL,
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

if TYPE_CHECKING:
    from headrace import testing
    from headrace.query.client import AsyncClient, Client
    from headrace.query.store import Store
    from headrace.query.view import StateView
    from headrace.spark.runner import Run

__all__ = [
    "TTL",
    "Agg",
    "AggregatingState",
    "Aggregator",
    "App",
    "Assigner",
    "AsyncClient",
    "AsyncFunction",
    "BroadcastConnected",
    "BroadcastContext",
    "BroadcastProcess",
    "BroadcastState",
    "BroadcastStream",
    "Client",
    "CoGrouped",
    "CoProcess",
    "CoWindowProcess",
    "Connected",
    "ConnectedStream",
    "Context",
    "Counter",
    "Duration",
    "Evictor",
    "Expr",
    "Failed",
    "HeadraceError",
    "HeadraceWarning",
    "Joined",
    "KeyedStream",
    "ListState",
    "Loop",
    "MapState",
    "Process",
    "ProgramError",
    "Record",
    "ReducingState",
    "Retry",
    "Row",
    "Run",
    "Settings",
    "Side",
    "Sink",
    "Source",
    "Span",
    "StateView",
    "StepStream",
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
    "WindowStream",
    "Windowed",
    "avg",
    "col",
    "collect",
    "count",
    "count_distinct",
    "cumulating",
    "days",
    "early",
    "every",
    "first",
    "hours",
    "keep_delta",
    "keep_rows",
    "keep_span",
    "last",
    "max",
    "milliseconds",
    "min",
    "minutes",
    "on_delta",
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
    "unbounded",
    "var",
    "watermarks",
]

_WHEN_ASKED: Final = {
    "AsyncClient": "headrace.query.client",
    "Client": "headrace.query.client",
    "Run": "headrace.spark.runner",
    "StateView": "headrace.query.view",
    "Store": "headrace.query.store",
    "testing": "headrace",
}
"""Names whose modules are loaded when somebody asks for them: most programs never do."""

App._console_factory = staticmethod(lambda rows: sink.console(rows=rows))
App._archive_factory = staticmethod(lambda path, key: import_module("headrace.sinks.archive").ArchiveSink(path, key))


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    found = import_module("headrace.testing") if name == "testing" else getattr(import_module(_WHEN_ASKED[name]), name)
    globals()[name] = found
    return found
