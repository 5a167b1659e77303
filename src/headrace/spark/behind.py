"""How far each source is behind: the rows that were there when an epoch was planned, and are left for later ones.

Spark's own sources tell the latest offsets they saw when they planned the epoch; asking them costs no request to the
system behind, and well under a millisecond. It is a help for people: where it cannot be told, nothing is said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.model.behind import Behind

log = logging.getLogger("headrace.behind")


class BehindReader:
    """Asks the sources of one query."""

    def __init__(self, sources: Iterable[str]) -> None:
        """`sources`: those whose offsets are numbers by topic and partition."""
        self._wanted = frozenset(sources)
        self._streams: dict[str, Any] | None = None

    def read(self, query: Any, offsets: Mapping[str, str]) -> dict[str, Behind]:
        """Source → what is left beyond `offsets`, the ends of the epoch at hand."""
        if not self._wanted or query is None:
            return {}
        try:
            if self._streams is None:
                self._streams = self._find_streams(query)
            told = {name: stream.reportLatestOffset() for name, stream in self._streams.items()}
            latest = {name: json.loads(offset.json()) for name, offset in told.items() if offset is not None}
            ends = {name: json.loads(offsets[name]) for name in latest if name in offsets}
            return {name: Behind(count_behind(latest[name], end)) for name, end in ends.items()}
        except Exception as error:
            log.debug("how far sources are behind is not told: %s", error)
            self._wanted = frozenset()
            return {}

    def _find_streams(self, query: Any) -> dict[str, Any]:
        entries = query._jsq.streamingQuery().sourceToIdMap().iterator()
        found = {}
        while entries.hasNext():
            entry = entries.next()
            if entry._2() in self._wanted:
                found[entry._2()] = entry._1()
        return found


def count_behind(latest: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> int:
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
