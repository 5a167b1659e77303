"""Types of what the verbs and functions of Headrace return, for annotations: ``hr.types.WindowStream[Hourly, View]``.

Nobody makes instances of them by name: `key_by(…).aggregate(…)` returns a StepStream, `hr.sum("n")` an Agg.
"""

from __future__ import annotations

from headrace.aggregates.declare import Agg
from headrace.connectors.postgres.source import TableSource
from headrace.connectors.program.sinks import CollectSink, DiscardSink
from headrace.dataflow.app import Loop
from headrace.dataflow.connected import BroadcastConnected, BroadcastStream, CoGrouped, Connected, ConnectedStream
from headrace.dataflow.joined import Joined
from headrace.dataflow.keyed import StepStream
from headrace.dataflow.watermarking import Watermark
from headrace.dataflow.windowed import Windowed, WindowStream
from headrace.model.requests import Retry
from headrace.read.history import KeyVersion
from headrace.sql.expr import Expr
from headrace.state.handles import TTL
from headrace.state.savepoints import Savepoint
from headrace.windows.kinds import Assigner

__all__ = [
    "TTL",
    "Agg",
    "Assigner",
    "BroadcastConnected",
    "BroadcastStream",
    "CoGrouped",
    "CollectSink",
    "Connected",
    "ConnectedStream",
    "DiscardSink",
    "Expr",
    "Joined",
    "KeyVersion",
    "Loop",
    "Retry",
    "Savepoint",
    "StepStream",
    "TableSource",
    "Watermark",
    "WindowStream",
    "Windowed",
]


def __dir__() -> list[str]:
    return __all__
