"""The pace of a query: Spark's own trigger for a fixed interval, the driver's pauses for adaptive epochs.

A query has one trigger for all its life. So an adaptive one has a trigger of zero: Spark plans an epoch as soon as
there is something to read, and the driver holds `foreachBatch` for as long as the next epoch has to wait. While there
is nothing to read Spark asks its sources every few milliseconds, which costs more than it gives; how often that is
belongs to the policy, too.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.checkpoint.pacing import Pacer, check_floor
from headrace.model.pace import Adaptive, EpochCost, parse_pace
from headrace.state.manifest import list_epochs, read_manifest
from headrace.state.record import read_record
from headrace.state.store import StoreFiles

POLLING: Final = "spark.sql.streaming.pollingDelay"
_POLLS_PER_LATENCY: Final = 20
_POLL_MS: Final = (10, 100)
"""Bounds of how often Spark asks idle sources."""
_LOOK_BACK: Final = 10


class QueryPace:
    """The pace of all queries of one run."""

    def __init__(self, setting: str, store: StoreFiles) -> None:
        """Raises SettingsError where epochs of this store cost more than an adaptive setting allows."""
        self._pace = parse_pace(setting)
        policy = self._pace if isinstance(self._pace, Adaptive) else None
        if policy is not None:
            check_floor(policy, _read_costs(store))
        self._pacer = Pacer(policy)

    @property
    def note(self) -> str:
        """Why rows wait longer than adaptive epochs promise; empty where they do not."""
        return self._pacer.note

    def pacer(self, *, endless: bool) -> Pacer:
        """Epochs of a query that has an end follow each other at once."""
        return self._pacer if endless else Pacer(None)

    def start(self, session: Any, writer: Any, *, endless: bool) -> Any:
        """Starts a query."""
        pace = self._pace
        if not endless:
            return writer.trigger(availableNow=True).start()
        if not isinstance(pace, Adaptive):
            return writer.trigger(processingTime=f"{pace.every_us // 1000} milliseconds").start()
        given = session.conf.get(POLLING, None)
        session.conf.set(POLLING, f"{derive_poll_ms(pace)}ms")
        try:
            return writer.trigger(processingTime="0 seconds").start()
        finally:
            # It is read when a query starts; other queries of a given session are none of ours.
            if given is None:
                session.conf.unset(POLLING)
            else:
                session.conf.set(POLLING, given)


def derive_poll_ms(pace: Adaptive) -> int:
    """How often Spark looks for input while there is none.

    >>> derive_poll_ms(Adaptive(1_000_000, 0.2)), derive_poll_ms(Adaptive(60_000_000, 0.2))
    (50, 100)
    """
    least, most = _POLL_MS
    return min(most, max(least, pace.latency_us // _POLLS_PER_LATENCY // 1000))


def _read_costs(store: StoreFiles) -> list[EpochCost]:
    """What the newest epochs cost, where they know."""
    record = read_record(store)
    if record is None:
        return []
    newest = list_epochs(store, record.timeline)[-_LOOK_BACK:]
    manifests = [read_manifest(store, record.timeline, epoch) for epoch in newest]
    return [manifest.paced for manifest in manifests if manifest.paced is not None]
