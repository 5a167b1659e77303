"""How far a run is behind its input, source by source: asked after each epoch, of whoever can tell.

| source | who tells | what was read |
|---|---|---|
| Kafka | Spark's stream, the latest offsets it saw | offsets between the ends of two epochs |
| files, as ``hr.source.files`` or by Spark's own formats | a listing of the folder | entries of Spark's log |
| everything that Python reads | `SplitReader.remaining` | what remained behind the epoch before, less what does now |

A source that cannot tell, or fails to, is not asked again, and nothing is said of it: this is a help for people.
Spark's Kafka source tells the latest offsets that it saw when it planned the epoch, which costs no request to the
brokers. A reader of ours is asked for where the epoch before ended, too: the difference is what was read.

A `Backlog` lives as long as a side of a program is driven, however often its query is started again: what was read
before a failure stays read, and a folder is not listed twice for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.aligned import plain_position
from headrace.connectors.files.source import FilesSource
from headrace.connectors.source_contract import Offset, SplitReader
from headrace.connectors.spark.source import StructuredSource
from headrace.model.behind import Behind, Pursuit
from headrace.spark.file_backlog import FileBacklog
from headrace.spark.listing import InputFolder, list_folder
from headrace.spark.seam import NEVER_READ
from headrace.state.spark_offsets import source_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.plan.physical import Program, SourcePlan
    from headrace.state.manifest import Manifest
    from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.behind")

Positions = Mapping[str, Mapping[str, int]]
"""Topic → partition → the number behind the last row that was read."""
_SLOW_S: Final = 0.05
_PAUSE_S: Final = 10.0
"""How long a reader is left alone that took long to answer."""
FILE_FORMATS: Final = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})
"""Spark's formats that are folders of files."""


class Backlog:
    """Asks all sources of a program. Called on the thread of the epochs, but for `counting` and `close`."""

    def __init__(
        self, session: SparkSession, program: Program, store: StoreFiles, manifest: Manifest | None, *, bounded: bool
    ) -> None:
        """``manifest``: the newest published epoch, from which the run goes on. ``bounded``: it ends with its input."""
        begins = _begins(program, manifest)
        kafka = [source.log_name for source in program.sources if source.source.connector == "kafka"]
        folders = {source.log_name: folder for source in program.sources if (folder := folder_of(source)) is not None}
        self._kafka = KafkaBacklog(kafka, begins)
        self._readers = ReaderBacklog(begins)
        self._files = FileBacklog(folders, partial(list_folder, session), store, again=not bounded)
        self._files.start()

    def watch_readers(self, readers: Mapping[str, SplitReader]) -> None:
        self._readers.watch(readers)

    def read(
        self, query: Any, offsets: Mapping[str, str], positions: Mapping[str, Positions], inputs: Mapping[str, bytes]
    ) -> dict[str, Behind]:
        """Source → what is left. ``positions``: the ``offsets`` of Kafka sources, read already."""
        kafka = self._kafka.read(query, positions, inputs)
        return {**kafka, **self._readers.read(offsets), **self._files.read(inputs)}

    def counting(self) -> dict[str, int]:
        """Source → files found so far, of folders that are being listed for the first time."""
        return self._files.counting()

    def close(self) -> None:
        self._files.close()


def _begins(program: Program, manifest: Manifest | None) -> dict[str, str]:
    if manifest is None:
        return {}
    known = {**manifest.retired, **source_offsets(manifest.offsets)}
    names = {source.log_name for source in program.sources}
    return {name: offset for name, offset in known.items() if name in names and offset != NEVER_READ}


def folder_of(plan: SourcePlan) -> InputFolder | None:
    """What a source of files reads; None where it is none."""
    source = plan.source
    if isinstance(source, FilesSource):
        return InputFolder(*source.listed())
    if not isinstance(source, StructuredSource) or source.path is None or source.format.lower() not in FILE_FORMATS:
        return None
    options = {name.lower(): value for name, value in source.options.items()}
    recursive = options.get("recursivefilelookup", "false").lower() == "true"
    return InputFolder(source.path, options.get("pathglobfilter"), recursive)


class KafkaBacklog:
    """Asks Spark's Kafka sources, whose offsets are numbers by topic and partition."""

    def __init__(self, sources: Iterable[str], begins: Mapping[str, str]) -> None:
        """``begins``: where the run goes on, of sources that were read before."""
        self._pursuits = {name: Pursuit() for name in sources}
        self._before: dict[str, Positions] = {}
        for name in self._pursuits:
            if name in begins:
                self._before[name] = json.loads(begins[name])
        self._query: Any = None
        self._streams: dict[str, Any] = {}

    def read(self, query: Any, ends: Mapping[str, Positions], inputs: Mapping[str, bytes]) -> dict[str, Behind]:
        """Source → what is left beyond `ends`, those of the epoch at hand.

        ``inputs``: new entries of Spark's logs; where a source that was never read begins is the first of its own.
        """
        if not self._pursuits or query is None:
            return {}
        try:
            if self._query is not query:
                self._query, self._streams = query, self._find_streams(query)
            reported = {name: stream.reportLatestOffset() for name, stream in self._streams.items()}
            latest = {name: json.loads(offset.json()) for name, offset in reported.items() if offset is not None}
            return {name: self._tell(name, latest[name], ends[name], inputs) for name in latest if name in ends}
        except Exception as error:
            log.debug("how far sources are behind is not told: %s", error)
            self._pursuits = {}
            return {}

    def _tell(self, name: str, latest: Positions, end: Positions, inputs: Mapping[str, bytes]) -> Behind:
        begin = self._before.get(name)
        if begin is None:
            begin = read_initial(inputs.get(f"{name}/0"))
        read = 0 if begin is None else count_behind(end, begin)
        self._before[name] = end
        return self._pursuits[name].tell(read, count_behind(latest, end))

    def _find_streams(self, query: Any) -> dict[str, Any]:
        entries = query._jsq.streamingQuery().sourceToIdMap().iterator()
        streams = {}
        while entries.hasNext():
            entry = entries.next()
            if entry._2() in self._pursuits:
                streams[entry._2()] = entry._1()
        return streams


def read_initial(entry: bytes | None) -> Positions | None:
    """Where a source began, as it notes for itself: JSON behind a zero byte and a line with the version.

    >>> read_initial(b'\\x00v1\\n{"clicks":{"0":5}}')
    {'clicks': {'0': 5}}
    """
    start = -1 if entry is None else entry.find(b"{")
    if entry is None or start < 0:
        return None
    positions: Positions = json.loads(entry[start:])
    return positions


def count_behind(latest: Positions, end: Positions) -> int:
    """Rows between two positions in topics. A partition that the epoch does not know yet does not count.

    >>> count_behind({"clicks": {"0": 50, "1": 7, "2": 3}}, {"clicks": {"0": 20, "1": 7}})
    30
    """
    return sum(
        max(0, at - end[topic][partition])
        for topic, partitions in latest.items()
        for partition, at in partitions.items()
        if partition in end.get(topic, {})
    )


class ReaderBacklog:
    """Asks the readers of sources that Python reads."""

    def __init__(self, begins: Mapping[str, str], clock: Callable[[], float] = monotonic) -> None:
        """``begins``: where the run goes on, of sources that were read before."""
        self._clock = clock
        self._readers: dict[str, SplitReader] = {}
        self._before = {name: _position(offset) for name, offset in begins.items() if offset.startswith("{")}
        self._pursuits: dict[str, Pursuit] = {}
        self._answers: dict[str, Behind] = {}
        self._not_before: dict[str, float] = {}

    def watch(self, readers: Mapping[str, SplitReader]) -> None:
        """Those to ask from now on: a query that is started again has others for the same sources."""
        self._readers = {
            name: reader for name, reader in readers.items() if type(reader).remaining is not SplitReader.remaining
        }

    def read(self, offsets: Mapping[str, str]) -> dict[str, Behind]:
        """Source → what is left behind `offsets`, the ends of the epoch at hand."""
        for name, reader in list(self._readers.items()):
            began = self._clock()
            if name not in offsets or began < self._not_before.get(name, 0.0):
                continue
            self._answers.pop(name, None)
            try:
                answer = self._ask(name, reader, _position(offsets[name]))
            except Exception as error:
                log.debug("how far %s is behind is not told: %s", name, error)
                del self._readers[name]
                continue
            if self._clock() - began > _SLOW_S:
                self._not_before[name] = self._clock() + _PAUSE_S
            if answer is not None:
                self._answers[name] = answer
        return dict(self._answers)

    def _ask(self, name: str, reader: SplitReader, end: Offset) -> Behind | None:
        before = self._before.get(name)
        if before is None:
            before = reader.initial()
        self._before[name] = end
        left = reader.remaining(end)
        if left is None:
            return None
        at_first = None
        with suppress(Exception):  # what lies that far back may be gone
            at_first = reader.remaining(before)
        read = 0 if at_first is None else max(0, at_first - left)
        return self._pursuits.setdefault(name, Pursuit()).tell(read, left)


def _position(offset: str) -> Offset:
    return plain_position(json.loads(offset))
