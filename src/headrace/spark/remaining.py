"""How far sources that Python reads are behind: their readers are asked after each epoch.

A help for people: a reader that cannot tell, or fails to, is not asked again, and nothing is said of its source.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Final

from headrace.model.behind import Behind
from headrace.sources.aligned import plain_position
from headrace.sources.contract import SplitReader

log = logging.getLogger("headrace.behind")

_SLOW_S: Final = 0.05
_PAUSE_S: Final = 10.0
"""How long a reader is left alone that took long to answer."""


class RemainingReader:
    """Asks the readers of one query."""

    def __init__(self, readers: Mapping[str, SplitReader]) -> None:
        self._readers = {
            name: reader for name, reader in readers.items() if type(reader).remaining is not SplitReader.remaining
        }
        self._told: dict[str, Behind] = {}
        self._not_before: dict[str, float] = {}

    def read(self, offsets: Mapping[str, str]) -> dict[str, Behind]:
        """Source → what is left behind `offsets`, the ends of the epoch at hand."""
        for name, reader in list(self._readers.items()):
            began = monotonic()
            if name not in offsets or began < self._not_before.get(name, 0.0):
                continue
            try:
                left = reader.remaining(plain_position(json.loads(offsets[name])))
            except Exception as error:
                log.debug("how far %s is behind is not told: %s", name, error)
                del self._readers[name]
                left = None
            if monotonic() - began > _SLOW_S:
                self._not_before[name] = monotonic() + _PAUSE_S
            self._told.pop(name, None)
            if left is not None:
                self._told[name] = Behind(left)
        return dict(self._told)
