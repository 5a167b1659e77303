"""How far sources that Python reads are behind: their readers are asked after each epoch.

A reader is asked for where the epoch before ended, too: the difference is what was read, whatever has come meanwhile.
A help for people: a reader that cannot tell, or fails to, is not asked again, and nothing is said of its source.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Final

from headrace.model.behind import Behind, Pursuit
from headrace.sources.aligned import plain_position
from headrace.sources.contract import Offset, SplitReader

log = logging.getLogger("headrace.behind")

_SLOW_S: Final = 0.05
_PAUSE_S: Final = 10.0
"""How long a reader is left alone that took long to answer."""


class RemainingReader:
    """Asks the readers of one run."""

    def __init__(self, begins: Mapping[str, str], clock: Callable[[], float] = monotonic) -> None:
        """``begins``: where the run goes on, of sources that were read before."""
        self._clock = clock
        self._readers: dict[str, SplitReader] = {}
        self._before = {name: _position(offset) for name, offset in begins.items() if offset.startswith("{")}
        self._pursuits: dict[str, Pursuit] = {}
        self._told: dict[str, Behind] = {}
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
            self._told.pop(name, None)
            try:
                told = self._ask(name, reader, _position(offsets[name]))
            except Exception as error:
                log.debug("how far %s is behind is not told: %s", name, error)
                del self._readers[name]
                continue
            if self._clock() - began > _SLOW_S:
                self._not_before[name] = self._clock() + _PAUSE_S
            if told is not None:
                self._told[name] = told
        return dict(self._told)

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
