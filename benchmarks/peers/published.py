"""When each manifest of a store appeared, by the clock of the file system: no figure is Headrace's own."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

POLL_S = 0.02


class Published(threading.Thread):
    """Writes down when each manifest appeared, before a sweep takes it away."""

    def __init__(self, store: Path, expected: int) -> None:
        super().__init__(daemon=True)
        self.folder = store / "manifests"
        self.expected = expected
        self.before = {manifest.name for manifest in self.folder.glob("*/*.json")}
        self.times: dict[int, float] = {}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(POLL_S):
            self.look()

    def look(self) -> None:
        for manifest in self.folder.glob("*/*.json"):
            epoch = int(manifest.stem)
            if epoch not in self.times and manifest.name not in self.before:
                self.times[epoch] = manifest.stat().st_mtime
                # One write, line end included: the job prints its own lines from another thread.
                sys.stdout.write(f"progress: epoch {epoch} of {self.expected}\n")
                sys.stdout.flush()

    def finish(self) -> list[float]:
        self.over.set()
        self.join()
        self.look()
        return [self.times[epoch] for epoch in sorted(self.times)]
