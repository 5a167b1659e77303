"""The ticker: a source without rows that makes Spark run an epoch when something is due.

The driver sets the next due time; the ticker, which lives in the JVM beside Spark's query (``Ticker.java``), moves its
offset once that time has come. Zero partitions mean no task before the exchange, and yet every shard runs. The offset
counts published epochs, so the same due time can wake the job again.

Where rows wait in loops, an epoch is due at once, and it has as many partitions as tasks are to read them: a row each,
which says which of how many it is. The offset says how many, so the epoch is the same whenever Spark plans it.

Spark could run such a source in Python, too, as it runs those of users. That takes four processes before the first
epoch, and a question to one of them before every epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.model.order import SOURCE, Tick
from headrace.spark.java_classes import compile_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = "share INT, shares INT"
_NEVER_US: Final = 2**63 - 1
_FILE: Final = Path(__file__).with_name("Ticker.java")


class Ticker:
    """The ticker of one query."""

    def __init__(self, session: SparkSession) -> None:
        self._session: Any = session
        compiled = compile_class(self._session._jvm, "Ticker", _FILE.read_text(encoding="utf-8"))
        self.java: Any = compiled.new(_COLUMNS)

    def set(self, tick: Tick) -> None:
        """What holds from now on."""
        self.java.set(tick.seq, _NEVER_US if tick.due_us is None else tick.due_us, tick.final, tick.loops)

    def frame(self) -> DataFrame:
        """The source as Spark reads it: a row for each task that is to read what waits in loops."""
        from pyspark.sql.classic.dataframe import DataFrame

        return DataFrame(self.java.frame(self._session._jsparkSession, SOURCE), self._session)
