"""Sources written in Python, as Spark reads them: a thin cover of `SplitReader`.

The reader travels as text in the options: its planning copy lives in a process beside the driver, copies for reading in
the workers. Every batch carries the id of its split, so that watermarks are kept per split.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from headrace.model.wire import ROW_SPLIT
from headrace.plan.ship import dump_program, load_program
from headrace.sources.contract import Split, SplitReader

FORMAT: Final = "headrace_python"


class _SplitPartition(InputPartition):
    def __init__(self, split: Split) -> None:
        super().__init__(None)
        self.split = split


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, text: str) -> None:
        self._text = text
        self._reader: SplitReader | None = None

    @property
    def reader(self) -> SplitReader:
        if self._reader is None:
            self._reader = load_program(base64.b85decode(self._text))
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {"_text": self._text, "_reader": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self.reader.initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.reader.available_now()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self.reader.latest(start, None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_SplitPartition(split) for split in self.reader.splits(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _SplitPartition)
        for batch in self.reader.read(partition.split):
            splits = pa.array([partition.split.id], pa.string()).take(pa.array([0] * batch.num_rows, pa.int8()))
            yield pa.RecordBatch.from_arrays([*batch.columns, splits], names=[*batch.schema.names, ROW_SPLIT])

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()


class PythonSource(DataSource):
    """Registered with Spark under `FORMAT`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return self.options["ddl"]

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _Reader(self.options["reader"])


def reader_options(reader: SplitReader, ddl: str) -> dict[str, str]:
    """The options that carry a reader to Spark."""
    return {"reader": base64.b85encode(dump_program(reader)).decode(), "ddl": f"{ddl}, `{ROW_SPLIT}` STRING"}
