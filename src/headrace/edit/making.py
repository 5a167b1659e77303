"""Edits made true, whether the job runs or not: the way in for the command line and for Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.checkpoint.commands import is_driven
from headrace.checkpoint.fence import Beat
from headrace.edit.edits import Edit
from headrace.edit.offline import EditedEpoch, edit_stopped
from headrace.edit.plan import Progress
from headrace.edit.running import edit_running
from headrace.errors import StoreError
from headrace.state.store import StoreFiles


def make_edits(
    store: StoreFiles,
    edits: Sequence[Edit],
    *,
    why: str,
    progress: Progress | None = None,
    tell: Callable[[Beat], None] = lambda driver: None,
) -> EditedEpoch:
    """All edits in one epoch, or none: with the next one of a job that runs, otherwise in one of their own.

    ``progress``: of a stopped job, per edit. ``tell``: of a running one, with each sign of life while it is waited for.
    """
    if is_driven(store):
        try:
            return edit_running(store, edits, why=why, tell=tell)
        except StoreError:
            if is_driven(store):
                raise
    return edit_stopped(store, edits, why=why, progress=progress)
