"""The test kit: run any program without a JVM, and try to break any operator, source or sink.

``Harness`` runs a program epoch by epoch with a clock and a watermark that a test moves by hand. The ``verify_…``
functions hold a part against its contract: whatever the batches, the calls and the crashes, the results must be equal.
"""

from __future__ import annotations

from headrace.testing.harness import Harness
from headrace.testing.operators import EpochInput, verify_operator, verify_step
from headrace.testing.rig import OperatorRig
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.sources import verify_source
from headrace.testing.verifying import Dependence, DependenceReport, verify_program

__all__ = [
    "Dependence",
    "DependenceReport",
    "EpochInput",
    "Harness",
    "OperatorRig",
    "SinkTarget",
    "verify_operator",
    "verify_program",
    "verify_sink",
    "verify_source",
    "verify_step",
]


def __dir__() -> list[str]:
    return __all__
