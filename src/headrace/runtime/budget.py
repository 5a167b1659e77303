"""How much of a task's small runs and outputs may travel inside its report, and so inside the manifest."""

from __future__ import annotations


class InlineBudget:
    """Shared by everything one task writes."""

    def __init__(self, total_bytes: int) -> None:
        self._left_bytes = total_bytes

    def take(self, size_bytes: int, limit_bytes: int) -> bool:
        """Whether something of this size may travel inline; if so, it is counted."""
        if size_bytes > min(limit_bytes, self._left_bytes):
            return False
        self._left_bytes -= size_bytes
        return True
