"""Windows that are open when a program comes back with others: which can go on, and which are refused.

Windows are stored by their bounds, and an open one goes on as it was until it is over, beside the new ones. That needs
bounds that mean the same: windows of another clock would never end, and a session takes any open window that it touches
for a session. Where results of windows of two kinds would contradict each other, a step refuses every change.

Asked once, in the first epoch of a program, by what the manifest says of the one before; if no window is open on any
shard, the change is as good as a new step. What it deliberately does not do: look at slices (`PaneOperator`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import StoreError
from headrace.operators.windows.held import WINDOWS_TABLE

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.operators.windows.assigners import Assigner
    from headrace.state.shard import ShardState

SESSION: Final = "session"
"""How the words for sessions begin."""


def check_windows(state: ShardState, assigner: Assigner, words: str, *, alone: bool) -> None:
    """Refuses windows that cannot go on beside these. ``words`` say how these are cut; ``alone``: none can."""
    before = state.declared_before.get(WINDOWS_TABLE)
    if before is None or before.kind != "windows" or _goes_on(before, assigner, words, alone):
        return
    if next(state.layers.scan(WINDOWS_TABLE), None) is None:
        return
    raise StoreError(
        "the windows of this step were others, and some are still open",
        where=f"step {state.step}",
        expected=before.windows or f"windows of {before.clock or 'no'} time, as stored",
        found=words,
        next_move="take the old ones until none is open; or give the step another name, and it begins anew",
    )


def _goes_on(before: DeclaredState, assigner: Assigner, words: str, alone: bool) -> bool:
    clock = assigner.clock if assigner.timed else ""
    if before.clock != clock:
        return False
    if not before.windows or before.windows == words:
        return True
    were, are = before.windows.startswith(SESSION), words.startswith(SESSION)
    # Sessions of another gap are sessions: their rows keep them open as long as they said when they came.
    return were == are and (are or not alone)
