"""Sources written in Python, as Spark reads them: a thin cover of `SplitReader`.

The reader travels as text in the options: its planning copy lives in a process beside the driver, copies for reading in
the workers. Every batch carries the id of its split, so that watermarks are kept per split, and the texts of rows that
could not be decoded. An aligned source reads in the store, before it plans an epoch, whether it has to wait. What a
reader raises travels through Spark's exceptions as text, and is told in its own words.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.connectors.aligned import plain_position, plan_next, whole_splits
from headrace.connectors.source_contract import BadRows, Split, SplitReader
from headrace.errors import HeadraceError, StoreError
from headrace.model.watermarks import SourceHold, WaitingOrder
from headrace.model.wire import ROW_BAD, ROW_SPLIT
from headrace.plan.ship import dump_program, load_program
from headrace.spark.failures import hand_over
from headrace.state import layout
from headrace.state.store import StoreFiles, open_store

FORMAT: Final = "headrace_python"


class ReadOptions(msgspec.Struct, frozen=True):
    """How a reader is used in this program."""

    source: str
    waits_in: str = ""
    """Store that tells whether it waits; empty: it never does."""
    whole_splits: bool = False
    """Whether all rows of a split have to come to one task."""
    tells_splits: bool = True
    """Whether rows bring the id of their split."""


@contextmanager
def _handing_over() -> Iterator[None]:
    """Errors of our family must survive a way on which only the text of an exception does."""
    try:
        yield
    except HeadraceError as error:
        raise RuntimeError(hand_over(error)) from error


class _SplitPartition(InputPartition):
    def __init__(self, splits: tuple[Split, ...]) -> None:
        super().__init__(None)
        self.splits = splits
        """Slices of one split, in their order."""


class _PythonReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, text: str, options: ReadOptions, schema: StructType) -> None:
        self._text = text
        self._options = options
        self._schema = schema
        self._reader: SplitReader | None = None
        self._store: StoreFiles | None = None
        self._bounded = False

    @property
    def reader(self) -> SplitReader:
        if self._reader is None:
            self._reader = load_program(base64.b85decode(self._text))
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        kept = {"_text": self._text, "_options": self._options, "_schema": self._schema}
        return {**kept, "_reader": None, "_store": None, "_bounded": False}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with _handing_over():
            return self.reader.initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._bounded = True
        with _handing_over():
            self.reader.available_now()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with _handing_over():
            if not self._options.waits_in:
                return self.reader.latest(plain_position(start), None)
            return plan_next(self.reader, start, None, self._hold(), bounded=self._bounded)

    def _hold(self) -> SourceHold | None:
        """What the driver said after the last epoch."""
        if self._store is None:
            self._store = open_store(self._options.waits_in)
        try:
            order = msgspec.json.decode(self._store.read(layout.WAITING), type=WaitingOrder)
        except (OSError, StoreError, msgspec.DecodeError):
            return None
        return (order.hurried if self._bounded else order.paced).get(self._options.source)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with _handing_over():
            splits = self.reader.splits(plain_position(start), plain_position(end))
        if self._options.whole_splits:
            return [_SplitPartition(slices) for slices in whole_splits(splits)]
        return [_SplitPartition((split,)) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _SplitPartition)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with _handing_over():
            for split in partition.splits:
                for batch in self.reader.read(split):
                    yield self._with_row_columns(batch, split.id, schema)

    def _with_row_columns(self, read: pa.RecordBatch | BadRows, split: str, schema: pa.Schema) -> pa.RecordBatch:
        """What was read, as Spark gets it: bad rows are rows without values, and with their text."""
        if isinstance(read, BadRows):
            names = [name for name in schema.names if name not in (ROW_SPLIT, ROW_BAD)]
            columns = [pa.nulls(len(read.texts), schema.field(name).type) for name in names]
            texts = pa.array(read.texts, pa.string())
        else:
            names, columns, texts = read.schema.names, read.columns, pa.nulls(read.num_rows, pa.string())
        beside = {}
        if self._options.tells_splits:
            beside[ROW_SPLIT] = pa.repeat(pa.scalar(split, pa.string()), len(texts))
        if not self.reader.never_bad:
            beside[ROW_BAD] = texts
        return pa.RecordBatch.from_arrays([*columns, *beside.values()], names=[*names, *beside])

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
        return _PythonReader(self.options["reader"], msgspec.json.decode(self.options["use"], type=ReadOptions), schema)


def reader_options(reader: SplitReader, ddl: str, use: ReadOptions) -> dict[str, str]:
    """The options that carry a reader to Spark."""
    beside = [*([ROW_SPLIT] if use.tells_splits else []), *([] if reader.never_bad else [ROW_BAD])]
    return {
        "reader": base64.b85encode(dump_program(reader)).decode(),
        "ddl": ", ".join([ddl, *(f"`{name}` STRING" for name in beside)]),
        "use": msgspec.json.encode(use).decode(),
    }
