"""The test kit: run any program without a JVM, and try to break any operator, source or sink.

``Harness`` runs a program epoch by epoch with a clock and a watermark that a test moves by hand. The ``verify_…``
functions hold a part against its contract: whatever the batches, the calls and the crashes, the results must be equal.
"""

from __future__ import annotations

from headrace.testing.harness import Harness
from headrace.testing.sinks import verify_sink
from headrace.testing.sources import verify_source

__all__ = ["Harness", "verify_sink", "verify_source"]
