"""Watches the memory of a running job from outside: the processes below a given one, by what the kernel says of them.

A process's own memory is its resident memory without mapped files (`RssAnon` + `RssShmem`): runs are mapped, their
pages belong to the page cache and can be dropped at any time. Only Linux tells; elsewhere there are no figures.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_EVERY_S = 0.25


@dataclass
class Peaks:
    """The largest amounts seen in one process, in bytes, per kind: driver (Python), jvm, worker."""

    own: dict[str, int] = field(default_factory=dict)
    mapped: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, own: int, mapped: int) -> None:
        self.own[kind] = max(self.own.get(kind, 0), own)
        self.mapped[kind] = max(self.mapped.get(kind, 0), mapped)


class Watcher(threading.Thread):
    """Looks at a process and all below it until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peaks = Peaks()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_EVERY_S):
            for pid in _family(self.pid):
                found = _memory(pid)
                if found is not None:
                    self.peaks.note(_kind(pid, self.pid), *found)

    def finish(self) -> Peaks:
        self._over.set()
        self.join()
        return self.peaks


def own_memory(root: int) -> dict[str, int]:
    """What a process and all below it hold at this moment, in bytes, per kind; of several workers all together."""
    sums: dict[str, int] = {}
    for pid in _family(root):
        found, kind = _memory(pid), _kind(pid, root)
        if found is not None and kind != "other":
            sums[kind] = sums.get(kind, 0) + found[0]
    return sums


def _family(root: int) -> list[int]:
    parents = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(after_name[1])
    family = [root] if root in parents else []
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    return family


def _kind(pid: int, root: int) -> str:
    if pid == root:
        return "driver"
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return "other"
    # The JVM first: its class path and options may hold any word.
    if b"java" in command.split(b"\0")[0]:
        return "jvm"
    return "worker" if b"pyspark" in command and b"daemon" in command else "other"


def _memory(pid: int) -> tuple[int, int] | None:
    """Bytes of its own and bytes of mapped files, resident."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    sizes = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if "Rss" in name
    }
    return sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("RssFile", 0)
