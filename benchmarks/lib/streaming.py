"""A stream that runs beside a measurement, and how fresh its state is to a reader outside."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.lib.children import run_child
from benchmarks.lib.headrace_server import Asking
from benchmarks.lib.served_store import ADDRESS

PROBE = f"{ADDRESS}:probe"
PROBE_EVERY = 10
"""As in `peers/headrace_stream.py`."""
LOOK_S = 0.002
_STOP_S = 120.0


class Stream:
    """`peers/headrace_stream.py` on a store, from the block's beginning to its end."""

    def __init__(self, folder: Path, *, keys: int, rate: float, epoch: str, label: str) -> None:
        self.store = folder / "store"
        self.rate = rate
        self.keys = keys
        self.began_s = time.time()
        self.version = ""
        arguments = ["--store", str(self.store), "--keys", str(keys), "--rate", str(rate), "--epoch", epoch]
        self._arguments = [*arguments, "--began", repr(self.began_s)]
        self._folder, self._label = folder, label
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            work = self._folder / "job"
            self.version = run_child("headrace_stream.py", self._arguments, work=work, label=self._label)["version"]
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self._folder / "stop").touch()
        self._thread.join(_STOP_S)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raises what ended the stream, if anything did."""
        if self._error is not None:
            raise self._error

    def due_s(self, probe: int) -> float:
        """When the n-th probe came into being."""
        return self.began_s + probe * PROBE_EVERY / self.rate

    def wait_until_steady(self, port: int, timeout_s: float = 300.0) -> None:
        """Until every key was written and the backlog of the start is worked off."""
        ends = time.monotonic() + timeout_s
        with Asking(port) as asking:
            while time.monotonic() < ends:
                self.check()
                seen = probes_of(asking.get(PROBE))
                if seen and time.time() - self.due_s(seen) < 3:
                    return
                time.sleep(0.1)
        raise TimeoutError(f"the stream is not steady after {timeout_s:g} s")


class Freshness(threading.Thread):
    """Watches over a socket from when on rows can be read: their ages at that moment, in milliseconds."""

    def __init__(self, stream: Stream, port: int) -> None:
        super().__init__(daemon=True)
        self._stream, self._port = stream, port
        self._over = threading.Event()
        self.ages_ms: list[float] = []

    def run(self) -> None:
        with Asking(self._port) as asking:
            known = probes_of(asking.get(PROBE))
            while not self._over.wait(LOOK_S):
                seen = probes_of(asking.get(PROBE))
                now = time.time()
                self.ages_ms += [(now - self._stream.due_s(probe)) * 1000 for probe in range(known, seen)]
                known = seen

    def finish(self) -> list[float]:
        self._over.set()
        self.join()
        return self.ages_ms


def probes_of(value: bytes | None) -> int:
    return 0 if value is None else int(msgspec.json.decode(value)["count"])
