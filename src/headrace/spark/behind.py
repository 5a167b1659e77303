"""How far sources are behind whose offsets are numbers by topic and partition, which is Kafka's.

Spark's own sources tell the latest offsets they saw when they planned the epoch; asking them costs no request to the
system behind, and well under a millisecond. It is a help for people: where it cannot be told, nothing is said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.model.behind import Behind, Pursuit

log = logging.getLogger("headrace.behind")

Positions = Mapping[str, Mapping[str, int]]
"""Topic → partition → the number behind the last row that was read."""


class BehindReader:
    """Asks the sources of one run."""

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
            told = {name: stream.reportLatestOffset() for name, stream in self._streams.items()}
            latest = {name: json.loads(offset.json()) for name, offset in told.items() if offset is not None}
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
        found = {}
        while entries.hasNext():
            entry = entries.next()
            if entry._2() in self._pursuits:
                found[entry._2()] = entry._1()
        return found


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
