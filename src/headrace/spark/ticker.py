"""The ticker: a source without rows that makes Spark run an epoch when something is due.

The driver writes the next due time into one small file of the store; the ticker, which lives in a process of its own
beside the driver, moves its offset once that time has come. Zero partitions mean no task before the exchange, and yet
every shard runs. The offset counts published epochs, so the same due time can wake the job again.

Where rows wait in loops, an epoch is due at once, and it has as many partitions as tasks are to read them: a row each,
which says which of how many it is. The offset says how many, so the epoch is the same whenever Spark plans it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from headrace.errors import StoreError
from headrace.model.order import Tick
from headrace.state import layout
from headrace.state.store import StoreFiles, open_store

FORMAT: Final = "headrace_ticker"


class _TickerReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, store: str) -> None:
        self._url = store
        self._store: StoreFiles | None = None
        self._bounded = False
        self._woken = False

    def _tick(self) -> Tick | None:
        if self._store is None:
            self._store = open_store(self._url)
        try:
            return msgspec.json.decode(self._store.read(layout.TICK), type=Tick)
        except (OSError, StoreError, msgspec.DecodeError):
            return None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"seq": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._bounded = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        tick = self._tick()
        if tick is None:
            return start
        new = tick.seq > start["seq"]
        if tick.final and (not start.get("final") or (new and tick.loops)):
            return _offset(max(tick.seq, start["seq"]), True, tick.loops)
        timed = tick.due_us is not None and tick.due_us <= time.time_ns() // 1000
        # What is overdue when a bounded run begins belongs to it; what becomes due meanwhile would keep it from ending.
        timed, self._woken = timed and not (self._bounded and self._woken), True
        return _offset(tick.seq, start.get("final", False), tick.loops) if new and (timed or tick.loops) else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        count = end.get("loops", 0)
        return [InputPartition((index, count)) for index in range(count)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter((partition.value,))

    def commit(self, end: dict[str, Any]) -> None:
        pass


def _offset(seq: int, final: bool, loops: int) -> dict[str, Any]:
    return {"seq": seq, **({"final": True} if final else {}), **({"loops": loops} if loops else {})}


class TickerSource(DataSource):
    """Registered with Spark under `FORMAT`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "share INT, shares INT"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _TickerReader(self.options["store"])
