"""The demo's state, served while it plays: by a process of its own, on the usual ports or, where taken, on others.

What a person is told to ask for has been asked for here first: the server follows the job, and is behind it by as much
as the machine is busy. Without the packages for HTTP there is Redis' protocol alone; nothing of this keeps the demo
from playing.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from headrace.dataflow.serve_settings import HTTP_PORT
from headrace.errors import SettingsError, StoreError
from headrace.read.store import Store
from headrace.serve.processes import Workers
from headrace.serve.serving import LOOPBACK, PORT, Options, speaks_http

if TYPE_CHECKING:
    from typing import Self

ADDRESS: Final = "count_views.views"
_LOOK_S: Final = 0.2
_ASK_S: Final = 5.0
"""How long one question may take."""


class DemoServer:
    """Serves from the block's beginning to its end."""

    def __init__(self, store: str, app: str, pick: Callable[[], str | None], on_serving: Callable[[str], None]) -> None:
        """``on_serving``: called once, from another thread, with the first tweet of ``pick`` that can be asked for."""
        self._store, self._app = store, app
        self._pick, self._on_serving = pick, on_serving
        self._started = threading.Event()
        self._listens = threading.Event()
        self._over = threading.Event()
        self._hushed = False
        self._telling = threading.Lock()
        self._starting = threading.Thread(target=self._start, name="headrace-demo-server", daemon=True)
        http = HTTP_PORT if speaks_http() else None
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
                self._started.set()
                self._announce()
                return

    def _announce(self) -> None:
        """Tells of the first tweet that can be asked for, unless nobody wants to hear of it any more."""
        while not (self._hushed or self._over.wait(_LOOK_S)):
            tweet = self._pick()
            if tweet is not None and self.answers(tweet):
                with self._telling:
                    if not self._hushed:
                        self._on_serving(tweet)
                return

    def hush(self) -> None:
        """``on_serving`` is not called any more from now on."""
        with self._telling:
            self._hushed = True

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "serving":
            self._listens.set()

    def answers(self, tweet: str | None, epoch: int = 0) -> bool:
        """Whether it answers now, from that epoch or a later one, and with that tweet. Asks it, and waits for nothing.

        An epoch is of the present timeline: a play with ``--fresh`` may find its server in the one before.
        """
        # Redis' protocol is spoken first; that HTTP is, too, the server says only then.
        if not self._listens.is_set():
            return False
        try:
            timeline = Store(self._store).timeline
            with socket.create_connection((LOOPBACK, self._workers.options.port), timeout=_ASK_S) as asking:
                lines = asking.makefile("rb")
                text = _ask(asking, lines, "INFO", "headrace").decode()
                facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
                reached = (int(facts.get("timeline", -1)), int(facts.get("epoch", -1)))
                if reached < (timeline, epoch):
                    return False
                return tweet is None or bool(_ask(asking, lines, "GET", f"{ADDRESS}:{tweet}"))
        except (OSError, ValueError, StoreError):
            return False

    @property
    def alive(self) -> bool:
        """Whether it serves, or will."""
        return not self._started.is_set() or self._workers.alive

    def commands(self, tweet: str | None) -> list[tuple[str, str]]:
        """What to type while it serves, and what that gives; of a tweet, where there is one."""
        options = self._workers.options
        redis, http = f"redis-cli -p {options.port}", f"curl http://{LOOPBACK}:{options.http_port}/v1/jobs/{self._app}"
        if tweet is None:
            asked = [(f"{redis} HEADRACE.INFO", "what is served, to any client of Redis"), (http, "the same over HTTP")]
        else:
            asked = [
                (f"{redis} GET {ADDRESS}:{tweet}", "the count of one tweet, by any client of Redis"),
                (f"{http}/state/{ADDRESS}/{tweet}", "the same over HTTP"),
            ]
        return asked if options.http_port is not None else asked[:1]


def _ask(asking: socket.socket, lines: BinaryIO, *words: str) -> bytes:
    """The text that is answered to a command of Redis; empty: there is none, or it was refused."""
    parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
    asking.sendall("".join(parts).encode())
    kind, size = lines.read(1), lines.readline()
    if kind != b"$" or int(size) < 0:
        return b""
    return lines.read(int(size) + 2)[:-2]
