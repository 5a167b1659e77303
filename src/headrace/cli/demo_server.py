"""The demo's state, served while it plays: by a process of its own, on the usual ports or, where taken, on others.

Without the packages for HTTP there is Redis' protocol alone; nothing of this keeps the demo from playing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SettingsError, StoreError
from headrace.query.processes import Workers
from headrace.query.serving import LOOPBACK, PORT, Options
from headrace.query.store import Store

if TYPE_CHECKING:
    from typing import Self

HTTP_PORT: Final = 8399
ADDRESS: Final = "count_views.views"
_LOOK_S: Final = 0.2


class DemoServer:
    """Serves from the block's beginning to its end."""

    def __init__(self, store: str, app: str, on_serving: Callable[[], None]) -> None:
        """``on_serving``: called once, from another thread, when there is something to ask for."""
        self._store, self._app = store, app
        self._on_serving = on_serving
        self._over = threading.Event()
        self._starting = threading.Thread(target=self._start, name="headrace-demo-server", daemon=True)
        http = HTTP_PORT if _speaks_http() else None
        try:
            self._workers = Workers(Options(store=store, port=PORT, http_port=http), self._hear)
        except SettingsError:
            # A port is in use, perhaps by a demo that somebody left open.
            any_port = Options(store=store, port=0, http_port=None if http is None else 0)
            self._workers = Workers(any_port, self._hear)

    def __enter__(self) -> Self:
        self._starting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._starting.join()
        self._workers.stop()

    def _start(self) -> None:
        """Starts when there is a store: a server that has to wait for one says so on the screen of the demo."""
        while not self._over.is_set():
            try:
                Store(self._store)
            except StoreError:
                self._over.wait(_LOOK_S)
            else:
                self._workers.start()
                return

    def _hear(self, told: Mapping[str, Any]) -> None:
        if told.get("event") == "serving":
            self._on_serving()

    @property
    def alive(self) -> bool:
        return self._workers.alive

    def commands(self, tweet: str) -> list[tuple[str, str]]:
        """What to type while it serves, and what that gives."""
        options = self._workers.options
        asked = [
            (f"redis-cli -p {options.port} GET {ADDRESS}:{tweet}", "the count of one tweet, by any client of Redis")
        ]
        if options.http_port is not None:
            path = f"v1/jobs/{self._app}/state/{ADDRESS}/{tweet}"
            asked.append((f"curl http://{LOOPBACK}:{options.http_port}/{path}", "the same over HTTP"))
        return asked


def wait_for_signal(still: Callable[[], bool]) -> None:
    """Until Ctrl-C or SIGTERM, or until something is no longer so."""
    ended = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not ended.wait(_LOOK_S) and still():
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _speaks_http() -> bool:
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "h11"))
