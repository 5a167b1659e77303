"""How many files of a folder are still to be read, of those that were there when the run began.

What comes in later is not counted: a run that has read the files of its beginning has caught up. So the folder is
listed once, and what is remembered of it only becomes less. Folders elsewhere than on this machine are not looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from headrace.errors import HeadraceError
from headrace.model.behind import Behind
from headrace.plan.physical import SourcePlan
from headrace.sources.files import FilesSource
from headrace.state import layout
from headrace.state.store import Store

log = logging.getLogger("headrace.behind")


class _Entry(msgspec.Struct):
    path: str


class FileBacklog:
    """Follows the file sources of one query."""

    def __init__(self, sources: Iterable[SourcePlan], store: Store) -> None:
        self._sources = {plan.log_name: plan.source for plan in sources if isinstance(plan.source, FilesSource)}
        self._store = store
        self._left: dict[str, set[str]] | None = None

    def read(self, entries: Mapping[str, bytes]) -> dict[str, Behind]:
        """Source → files that are left. ``entries``: what Spark's logs tell of the epoch at hand, by their paths."""
        if not self._sources:
            return {}
        try:
            if self._left is None:
                self._left = self._list()
            for name, entry in entries.items():
                self._left.get(name.partition("/")[0], set()).difference_update(_paths(entry))
        except (HeadraceError, OSError, msgspec.DecodeError) as error:
            log.debug("how many files are left is not told: %s", error)
            self._sources, self._left = {}, {}
        return {name: Behind(len(files), "files") for name, files in self._left.items()}

    def _list(self) -> dict[str, set[str]]:
        left = {
            name: {path.resolve().as_uri() for path in source.files_now()} for name, source in self._sources.items()
        }
        for path in self._store.list(layout.INPUTS):
            name = path.removeprefix(f"{layout.INPUTS}/").partition("/")[0]
            if left.get(name):
                left[name].difference_update(_paths(self._store.read(path)))
        return {name: files for name, files in left.items() if files}


def _paths(entry: bytes) -> list[str]:
    """The files that an entry of Spark's log names, behind its line with the version."""
    lines = entry.splitlines()[1:]
    return [msgspec.json.decode(line, type=_Entry).path for line in lines if line.strip()]
