"""An application that reads while a job runs: a hundred keys at a time, ten times a second, over Redis' protocol."""

from __future__ import annotations

import random
import threading
import time

from benchmarks.lib.figures import quantile
from benchmarks.lib.headrace_server import Asking

KEYS_AT_ONCE = 100
PER_SECOND = 10


class Reader(threading.Thread):
    """Asks for random keys at a steady pace until told to stop; the pace is not made up for where it was missed."""

    def __init__(self, port: int, name: str, keys: int) -> None:
        """``name``: a format that makes a key of a number."""
        super().__init__(daemon=True)
        self._port, self._name, self._keys = port, name, keys
        self._over = threading.Event()
        self._took_ms: list[float] = []
        self._found = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        rng = random.Random(3)
        try:
            with Asking(self._port) as asking:
                while not self._over.wait(1 / PER_SECOND):
                    wanted = [self._name.format(rng.randrange(self._keys)) for _ in range(KEYS_AT_ONCE)]
                    began = time.perf_counter()
                    values = asking.get_many(wanted)
                    self._took_ms.append((time.perf_counter() - began) * 1000)
                    self._found += sum(value is not None for value in values)
        except BaseException as error:
            self._error = error

    def finish(self) -> dict:
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error
        return {
            "reads": len(self._took_ms),
            "values_read": self._found,
            "read_p50_ms": quantile(self._took_ms, 0.5),
            "read_p99_ms": quantile(self._took_ms, 0.99),
        }
