"""What past epochs read, read again by the offsets in their manifests, from the sources themselves.

A source that Python reads gives the range between two positions again, as it promises. Of a folder of files the names
that each epoch read are in the store (``inputs/``), and the files are decoded here where that gives the same rows. What
Spark alone can read, Spark reads, at once instead of as a stream; a source that cannot say how is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from headrace.checkpoint.rewind.proof import files_between
from headrace.connectors.aligned import plain_position
from headrace.connectors.source_contract import BadRows, LeftToSpark, Passage, SplitReader
from headrace.errors import InputLost, MissingFile, ProgramError
from headrace.plan.physical import Program, SourcePlan
from headrace.runtime.source_rows import SourceRows
from headrace.state import layout
from headrace.state.spark_offsets import source_offsets
from headrace.state.store import StoreFiles

ReadAgain = Callable[[str, str], Iterator[tuple[str, pa.RecordBatch | BadRows]]]
"""From the offset before an epoch (empty: none) and the one behind it to what lies between: splits and their rows."""


ReadBySpark = Callable[[SourcePlan, Passage], Iterable[pa.RecordBatch]]
"""From a source and what was read of it to the rows, as its chain gets them."""
_NOTHING: Final = Passage(None, None)


class InputReader:
    """Reads the input of past epochs, source by source."""

    def __init__(self, program: Program, store: StoreFiles, read_by_spark: ReadBySpark) -> None:
        """Raises ProgramError for a source that cannot be read again, before anything is read.

        ``read_by_spark``: called for sources that need it.
        """
        self._store = store
        self._read_by_spark = read_by_spark
        self._readers: list[SplitReader] = []
        opened = ((source.log_name, self._open(source)) for source in program.sources)
        self._read: dict[str, ReadAgain] = {name: read for name, read in opened if read is not None}
        """Those of the others Spark reads, and evaluates what stands behind them."""
        here = [source for source in program.sources if source.log_name in self._read]
        self._rows = {source.log_name: SourceRows(source) for source in here}

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def read(self, source: SourcePlan, before: str, offsets: str) -> Iterator[pa.RecordBatch]:
        """What an epoch read of a source, as its chain gets it. ``before``, ``offsets``: entries of Spark's log."""
        start, reached = (source_offsets(text).get(source.log_name, "") for text in (before, offsets))
        if not reached or start == reached:
            return
        read = self._read.get(source.log_name)
        if read is None:
            yield from self._read_by_spark(source, self._passage(source.log_name, start, reached))
            return
        rows = self._rows[source.log_name]
        for split, part in read(start, reached):
            if isinstance(part, BadRows):
                yield rows.bad(part.texts)
            else:
                yield rows.good(part, [split] * part.num_rows if source.source.has_splits else ())

    def _open(self, source: SourcePlan) -> ReadAgain | None:
        if source.source.python:
            folder = f"{self._store.url}/{layout.kept_by_source(source.log_name)}"
            reader = source.source.placed_in(folder).reader(source.codec)
            self._readers.append(reader)
            return lambda before, reached: _read_splits(reader, before, reached)
        decode = source.source.whole_files(source.codec)
        if decode is None and source.source.batch_reads(source.codec, _NOTHING) is not None:
            return None
        if decode is None:
            raise ProgramError(
                f"the source {source.name!r} cannot be read again",
                where=f"source {source.name}: {source.source.describe()}",
                expected="sources that a replay reads: files, Kafka, the ingest log, Redis streams, tables, generators "
                "and items",
                next_move="write the rows in question to a folder of files, or push them in a test: hr.testing.Harness",
            )
        return lambda before, reached: self._read_files(source.log_name, decode, before, reached)

    def _passage(self, name: str, before: str, reached: str) -> Passage:
        files = files_between(self._store, self._store.list(layout.INPUTS), name, before or None, reached)
        return Passage(json.loads(before) if before else None, json.loads(reached), tuple(files))

    def _read_files(
        self, name: str, decode: Callable[[str], Iterator[pa.RecordBatch | BadRows]], before: str, reached: str
    ) -> Iterator[tuple[str, pa.RecordBatch | BadRows]]:
        for file in self._passage(name, before, reached).files:
            try:
                for part in decode(file.url):
                    yield "", part
            except LeftToSpark as left:
                raise InputLost(
                    f"a file of {name!r} can be read by Spark only",
                    where=left.where or file.url,
                    found=left.what,
                    next_move="replay epochs that read other files, or push the rows in a test: hr.testing.Harness",
                ) from left


def _read_splits(reader: SplitReader, before: str, reached: str) -> Iterator[tuple[str, pa.RecordBatch | BadRows]]:
    start = plain_position(json.loads(before)) if before else reader.initial()
    try:
        for split in reader.splits(start, plain_position(json.loads(reached))):
            for part in reader.read(split):
                yield split.id, part
    except (KeyError, TypeError, ValueError, MissingFile) as error:
        raise InputLost(
            "the source does not know a position that the job has read",
            found=f"{before or 'the beginning'} to {reached}: {error}",
            next_move="run the replay with the program, and the source, that the job ran with",
        ) from error
