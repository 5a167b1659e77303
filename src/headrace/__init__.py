"""Stateful stream processing for Python, on Spark: keyed state, timers, event time and exactly-once epochs.

    import headrace as hr

    class Impression(hr.Record):
        tweet: str
        at: hr.Timestamp
        n: int = 1

    app = hr.App("tweets")
    views = app.read("views", hr.source.files("events/"), Impression, time=Impression.at, out_of_order="5s")
    totals = views.where("n > 0").key_by(Impression.tweet).aggregate(total=hr.sum("n")).named("totals")
    totals.write(hr.sink.files("out/", format="parquet"))

    if __name__ == "__main__":
        app.run()

Importing this package loads neither pyspark nor a JVM; that waits until a program runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import headrace.sinks as sink
import headrace.sources as source
from headrace.dataflow.app import App
from headrace.dataflow.checks import HeadraceWarning
from headrace.dataflow.functions import Process
from headrace.dataflow.keyed import KeyedStream, StepStream
from headrace.dataflow.settings import Settings
from headrace.dataflow.stream import Stream
from headrace.dataflow.variables import secret, var
from headrace.errors import HeadraceError, ProgramError
from headrace.model.expr import Expr, col
from headrace.model.record import Failed, Record, Row
from headrace.model.time import Duration, Span, Timestamp, days, hours, milliseconds, minutes, seconds, timestamp
from headrace.operators.aggregates import (
    Agg,
    Aggregator,
    Trigger,
    avg,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,
    min,
    per_epoch,
    per_row,
    quantile,
    sum,
    top,
)
from headrace.sinks.contract import Sink
from headrace.sources.contract import Source
from headrace.state.handles import (
    TTL,
    AggregatingState,
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
    from headrace.query.store import Store
    from headrace.query.view import StateView
    from headrace.spark.runner import Run

__all__ = [
    "TTL",
    "Agg",
    "AggregatingState",
    "Aggregator",
    "App",
    "Context",
    "Counter",
    "Duration",
    "Expr",
    "Failed",
    "HeadraceError",
    "HeadraceWarning",
    "KeyedStream",
    "ListState",
    "MapState",
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
    "StepStream",
    "Store",
    "Stream",
    "Timer",
    "Timers",
    "Timestamp",
    "Trigger",
    "ValueState",
    "WallTimer",
    "avg",
    "col",
    "collect",
    "count",
    "count_distinct",
    "days",
    "first",
    "hours",
    "last",
    "max",
    "milliseconds",
    "min",
    "minutes",
    "per_epoch",
    "per_row",
    "quantile",
    "seconds",
    "secret",
    "sink",
    "source",
    "state",
    "sum",
    "testing",
    "timestamp",
    "top",
    "ttl",
    "var",
]

__version__ = "0.1.0"

_WHEN_ASKED: Final = {
    "Run": "headrace.spark.runner",
    "StateView": "headrace.query.view",
    "Store": "headrace.query.store",
    "testing": "headrace",
}
"""Names whose modules are loaded when somebody asks for them: most programs never do."""

App._console_factory = staticmethod(lambda rows: sink.console(rows=rows))


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    found = import_module("headrace.testing") if name == "testing" else getattr(import_module(_WHEN_ASKED[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
