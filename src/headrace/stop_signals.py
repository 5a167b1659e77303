"""SIGINT and SIGTERM of a command that runs a program, handled from before its first line to behind its last.

What a signal does depends on the phase of the command:

| phase | effect |
|---|---|
| before the run, and while Spark starts | KeyboardInterrupt: there is no epoch to finish |
| while the run goes on | the first one stops it after the current epoch, the second one is a KeyboardInterrupt |
| after the run | `ended` is set, which ends whatever still waits; the command exits with 0 |

Handlers are installed once and stay: a line that a person answers with Ctrl-C may be printed in any phase.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Self

STOPPING: Final = "stopping after this epoch; Ctrl-C again gives up waiting"
_LOOK_S: Final = 0.2


class StopSignals:
    """Handles both signals while inside. Only the main thread can; in any other thread it changes nothing."""

    def __init__(self) -> None:
        self.came: list[int] = []
        """The signals that came during the run."""
        self.ended = threading.Event()
        """Set by a signal that came after the run."""
        self._react: Callable[[int], None] = _interrupt
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def stopping(
        self, stop: Callable[[], None], say: Callable[[str], None], started: Callable[[], bool]
    ) -> Iterator[list[int]]:
        """The phase of the run. Yields the signals that came. ``started``: whether there is an epoch to finish."""

        def stop_or_interrupt(number: int) -> None:
            self.came.append(number)
            if len(self.came) > 1 or not started():
                raise KeyboardInterrupt
            # Not here: whatever the interrupted line holds (a lock of the screen, say) may be needed for this.
            threading.Thread(target=_ask_to_stop, args=(stop, say), daemon=True).start()

        self._react = stop_or_interrupt
        try:
            yield self.came
        except BaseException:
            self._react = _interrupt
            raise
        self._react = self._end

    def wait_while(self, still: Callable[[], bool]) -> bool:
        """After the run: waits as long as ``still`` is true; answers whether a signal ended the waiting."""
        while still() and not self.ended.wait(_LOOK_S):
            pass
        return self.ended.is_set()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._react(number)

    def _end(self, number: int) -> None:
        self.ended.set()


def _interrupt(number: int) -> None:
    raise KeyboardInterrupt


def _ask_to_stop(stop: Callable[[], None], say: Callable[[str], None]) -> None:
    stop()
    say(STOPPING)
