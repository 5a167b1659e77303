"""How far a run is behind its input, source by source: asked after each epoch, of whoever can tell.

| source | who tells | what was read |
|---|---|---|
| Kafka | Spark's stream, the latest offsets it saw | offsets between the ends of two epochs |
| files, as ``hr.source.files`` or by Spark's own formats | a listing of the folder | entries of Spark's log |
| everything that Python reads | `SplitReader.remaining` | what remained behind the epoch before, less what does now |

One of these lives as long as a side of a program is driven, however often its query is started again: what was read
before a failure stays read, and a folder is not listed twice for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.checkpoint.sparklog import source_offsets
from headrace.model.behind import Behind
from headrace.sources.files import FilesSource
from headrace.sources.structured import StructuredSource
from headrace.spark.behind import BehindReader, Positions
from headrace.spark.file_backlog import FileBacklog
from headrace.spark.listing import Folder, list_folder
from headrace.spark.remaining import RemainingReader
from headrace.spark.seam import NEVER_READ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.plan.physical import Program, SourcePlan
    from headrace.sources.contract import SplitReader
    from headrace.state.manifest import Manifest
    from headrace.state.store import Store

FILE_FORMATS: Final = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})
"""Spark's formats that are folders of files."""


class Backlog:
    """Asks all sources of a program. Called on the thread of the epochs, but for `counting` and `close`."""

    def __init__(
        self, session: SparkSession, program: Program, store: Store, manifest: Manifest | None, *, bounded: bool
    ) -> None:
        """``manifest``: the newest published epoch, from which the run goes on. ``bounded``: it ends with its input."""
        begins = _begins(program, manifest)
        kafka = [source.log_name for source in program.sources if source.source.connector == "kafka"]
        folders = {source.log_name: folder for source in program.sources if (folder := folder_of(source)) is not None}
        self._kafka = BehindReader(kafka, begins)
        self._readers = RemainingReader(begins)
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


def folder_of(plan: SourcePlan) -> Folder | None:
    """What a source of files reads; None where it is none."""
    source = plan.source
    if isinstance(source, FilesSource):
        return Folder(*source.listed())
    if not isinstance(source, StructuredSource) or source.path is None or source.format.lower() not in FILE_FORMATS:
        return None
    options = {name.lower(): value for name, value in source.options.items()}
    recursive = options.get("recursivefilelookup", "false").lower() == "true"
    return Folder(source.path, options.get("pathglobfilter"), recursive)
