"""Input of past epochs that only Spark can read, for replays: a session that is started when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.connectors.source_contract import Passage
    from headrace.plan.physical import SourcePlan


class InputsBySpark:
    """Reads sources, one after the other; nothing of Spark is loaded before the first."""

    def __init__(self, app: str, conf: Mapping[str, str], starting: Callable[[str], None]) -> None:
        """``starting``: told the name of the source for which Spark is started."""
        self._app = app
        self._conf = conf
        self._starting = starting
        self._session: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            from headrace.spark.session import leave_session

            leave_session(self._session)

    def read(self, source: SourcePlan, passage: Passage) -> Iterator[pa.RecordBatch]:
        """What lies between two positions of a source, as its chain gets it."""
        from headrace.spark.query import read_again
        from headrace.spark.session import make_session

        if self._session is None:
            self._starting(source.name)
            needed = [source.source.connector] if source.source.connector else []
            self._session = make_session(self._app, "local[1]", self._conf, needed)
        yield from read_again(self._session, source, passage)
