"""A store with an epoch after the other in it, one run each, as a job without Spark would publish them."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from headrace.model.report import RunRef, StagedPart
from headrace.state import layout
from headrace.state.manifest import JobState, Manifest, StepRuns, encode_manifest, read_state
from headrace.state.record import StoreRecord
from headrace.state.store import LocalStore, StoreFiles

EPOCH_US = 60_000_000
"""An epoch is published every minute, the first at the beginning of 1970."""
FULL_EVERY = 3
CONTENT = b"sorted rows"


def run(epoch: int, fence: int = 1, name: str = "ab") -> str:
    return layout.run("step", epoch, 0, f"{fence}x{name}")


def looped(epoch: int) -> str:
    return layout.staged(epoch, "loop", 0, "1xab", "arrow")


class SavedJob:
    """Its newest two runs make up its state; epochs beyond the first have rows in a loop."""

    def __init__(self, store: StoreFiles | Path, timeline: int = 0) -> None:
        self.store = LocalStore(store, durable=False) if isinstance(store, Path) else store
        self.timeline = timeline
        self.state: JobState | None = None
        record = StoreRecord(app="a", key_groups=8, query='{"id":"5f3c"}', timeline=timeline)
        self.store.write(layout.STORE_RECORD, msgspec.json.encode(record))

    @property
    def epoch(self) -> int:
        return -1 if self.state is None else self.state.epoch

    def publish(self, count: int = 1) -> JobState:
        for epoch in range(self.epoch + 1, self.epoch + 1 + count):
            self.state = self._publish(epoch)
        assert self.state is not None
        return self.state

    def _publish(self, epoch: int) -> JobState:
        crc = zlib.crc32(CONTENT)
        self.store.write(run(epoch), CONTENT)
        self.store.write(layout.staged(epoch, "out", 0, "1xab", "jsonl"), CONTENT)
        refs = [
            RunRef(epoch=each, lo=0, hi=8, rows=1, size_bytes=len(CONTENT), crc=crc, file=run(each))
            for each in (epoch, epoch - 1)
            if each >= 0
        ]
        out = StagedPart(1, len(CONTENT), "jsonl", file=layout.staged(epoch, "out", 0, "1xab", "jsonl"), crc=crc)
        loops = {}
        if epoch:
            self.store.write(looped(epoch), CONTENT)
            loops = {"loop": [StagedPart(1, len(CONTENT), "arrow", file=looped(epoch), crc=crc)]}
        manifest = Manifest(
            app="a", timeline=self.timeline, epoch=epoch, nonce=f"n{epoch}", fence=1, program="p", parallelism=1,
            key_groups=8, clock_us=epoch * EPOCH_US, parent_epoch=epoch - 1, parent=f"n{epoch - 1}" if epoch else "",
            full=epoch % FULL_EVERY == 0, steps={"step": StepRuns(runs=refs)}, outputs={"out": [out]}, loops=loops,
            offsets=f"v1\n{{}}\n{epoch}",
        )  # fmt: skip
        self.store.create(layout.manifest(self.timeline, epoch), encode_manifest(manifest))
        return read_state(self.store, self.timeline, epoch)
