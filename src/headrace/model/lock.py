"""The lock of a folder: the operating system drops it when its holder dies, where the file system has such locks.

A store has one, and a log of events. It tells at once whether a process of the same machine writes there. Between
machines it tells only as much as the file system does: some shared ones keep locks per machine, some have none at all.
So for a store it is one sign of life among two, beside the heartbeat, and never the exclusion itself.
"""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import IO, Final, Literal

_HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})

State = Literal["ours", "taken", "none"]


class Lock:
    """The lock on a file; ``path`` is None for a store whose files are not on this machine."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._handle: IO[str] | None = None
        self.state: State = "none"
        """Whether it is ours, somebody else's, or cannot be had here at all."""

    def take(self, text: str) -> State:
        """Tries once, without waiting. ``text`` says who holds it, to people who look into the file."""
        if self._path is None or self._handle is not None:
            return self.state
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = self._path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            self.state = "taken" if error.errno in _HELD else "none"
            return self.state
        handle.seek(0)
        handle.truncate()
        handle.write(f"{text}\n")
        handle.flush()
        self._handle = handle
        self.state = "ours"
        return self.state

    def holder(self) -> str:
        """What the holder wrote into the file."""
        return "" if self._path is None or not self._path.exists() else self._path.read_text().strip()

    def release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
            self.state = "none"
