"""What sources still have: asked before anything of a rewind is written."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.connectors.source_contract import SURE, InputFile, Passage, Replay, Source
from headrace.errors import HeadraceError, MissingFile
from headrace.state import layout
from headrace.state.manifest import ERASE, Manifest, read_manifest
from headrace.state.savepoints import list_savepoints
from headrace.state.spark_offsets import entry_number, log_offset, source_offsets
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.rewind")

Sources = Mapping[str, Source]
"""Name in Spark's log → source."""


def prove_sources(store: StoreFiles, sources: Sources, start: Manifest, end: Manifest) -> dict[str, Replay]:
    """Source → whether it can give again what was read between two epochs.

    Sources that the program no longer has are not asked: nothing of them is read again.
    """
    before = {**start.retired, **source_offsets(start.offsets)}
    after = {**end.retired, **source_offsets(end.offsets)}
    paths = store.list(layout.INPUTS)
    return {name: _prove(store, paths, name, source, before, after) for name, source in sources.items()}


def warn_of_erased(manifests: Iterable[Manifest]) -> list[str]:
    """What is to be said of keys that were erased behind an epoch from which a job goes on; a line each."""
    erased = (manifest.epoch for manifest in manifests if any(note.kind == ERASE for note in manifest.notes))
    return [
        f"a key was erased in epoch {epoch}: what sources still have of it is read again, so erase it once more"
        for epoch in erased
    ]


class ReplayKeeper:
    """Tells the sources of a running job what they have to keep for its savepoints."""

    def __init__(self, store: StoreFiles, sources: Sources, job: str) -> None:
        """``job``: id of the store."""
        self._store = store
        self._sources = sources
        self._job = job
        self._offsets: dict[str, str] | None = None
        """Nonce of each epoch that a savepoint pins → its offsets, as they were told last."""

    def tell(self) -> None:
        """Called now and then. Sources hear of it where savepoints came or went."""
        before, offsets = self._offsets or {}, dict[str, str]()
        for point in list_savepoints(self._store):
            with contextlib.suppress(MissingFile):
                known = before.get(point.nonce)
                offsets[point.nonce] = read_manifest(self._store, *point.place).offsets if known is None else known
        if offsets == self._offsets:
            return
        self._offsets = offsets
        positions = [source_offsets(text) for text in offsets.values()]
        for name, source in self._sources.items():
            try:
                source.keep_behind([_position(each.get(name)) for each in positions], f"{self._job}-{name}")
            except (HeadraceError, OSError) as error:
                log.warning("source %s could not be told what to keep for savepoints: %s", name, error)


def _prove(
    store: StoreFiles, paths: Iterable[str], name: str, source: Source, before: Mapping[str, str],
    after: Mapping[str, str],
) -> Replay:  # fmt: skip
    start, end = before.get(name), after.get(name)
    if start == end:
        return SURE
    files = tuple(files_between(store, paths, name, start, end))
    try:
        return source.check_replay(Passage(_position(start), _position(end), files))
    except (HeadraceError, OSError) as error:
        return Replay("unknown", f"it could not be asked ({str(error).splitlines()[0]})")


def _position(offset: str | None) -> Any:
    """An offset as JSON holds it. Some of Spark's sources write text that is none."""
    if offset is None:
        return None
    try:
        return json.loads(offset)
    except ValueError:
        return offset


class _LogLine(msgspec.Struct):
    path: str
    timestamp: int = 0
    batch: int = msgspec.field(default=-1, name="batchId")


def files_between(
    store: StoreFiles, paths: Iterable[str], name: str, start: str | None, end: str | None
) -> Iterator[InputFile]:
    """The files that entries of a source's log list behind one offset, up to another."""
    reached = -1 if end is None else log_offset(end)
    if reached is None or reached < 0:
        return
    first = -1 if start is None else log_offset(start)
    if first is None:
        first = -1
    prefix = layout.input_entry(f"{name}/")
    seen = set()
    for path in paths:
        number = entry_number(path, prefix)
        if number is None or (number <= first and not path.endswith(".compact")):
            continue
        for line in store.read(path).splitlines()[1:]:
            listed = msgspec.json.decode(line, type=_LogLine)
            batch = listed.batch if listed.batch >= 0 else number
            if first < batch <= reached and listed.path not in seen:
                seen.add(listed.path)
                yield InputFile(listed.path, listed.timestamp)
