"""Outputs that a rewind brings back to what the state of their step said at the epoch that the job goes back to.

Their rows are staged before the timeline is sealed, and named by a note under the mark of the rewind: whoever carries
the rewind out releases these, so that neither a restart nor a changed program makes others of them. They go out as an
epoch of the new timeline, under the number of the epoch that is gone back to, which no published epoch has.

What this module deliberately does not do: know how a state becomes rows (`headrace.replay.restating`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.errors import MissingFile
from headrace.model.report import StagedPart
from headrace.state import layout
from headrace.state.manifest import Manifest
from headrace.state.record import Branch, StoreRecord
from headrace.state.store import StoreFiles


class Restating(Protocol):
    """What the outputs of a program can be brought back to, and how."""

    @property
    def reasons(self) -> Mapping[str, str]:
        """Output that cannot be brought back → why not."""
        ...

    def step_of(self, output: str) -> str | None:
        """The step whose state says what the target should have; None: no state does."""
        ...

    def gap(self, output: str, start: Manifest, end: Manifest) -> str:
        """Why it is not known what the target got between two epochs; empty where it is."""
        ...

    def stage(
        self, output: str, start: layout.ManifestName, ends: Sequence[layout.ManifestName], *, fence: int
    ) -> list[StagedPart]:
        """Rows that lead from wherever the target is to what it was at the start, durable when this returns."""
        ...


class RestatedNote(msgspec.Struct, frozen=True):
    """What lies in the store while a rewind is under way."""

    mark: str
    """Of the rewind."""
    outputs: dict[str, list[StagedPart]]


def find_reasons(
    restating: Restating, outputs: Iterable[str], start: Manifest, behind: Sequence[Manifest]
) -> dict[str, str]:
    """Output → why no state says what its target should have, or nothing where its sink keeps no rows.

    Those that can be brought back are left out. ``behind``: the epochs behind the start that are kept, and the newest.
    """
    reasons = {}
    for output in outputs:
        step = restating.step_of(output)
        if step is None:
            reasons[output] = restating.reasons.get(output, "")
        elif reason := _edits(step, start, behind) or (restating.gap(output, start, behind[-1]) if behind else ""):
            reasons[output] = reason
    return reasons


def _edits(step: str, start: Manifest, behind: Sequence[Manifest]) -> str:
    """A key that was deleted by hand has left no trace in the state, and a row in the target."""
    kept = {manifest.epoch for manifest in behind}
    for manifest in behind:
        if any(step in note.deleted for note in manifest.notes):
            return f"keys of {step} were deleted by hand in epoch {manifest.epoch}: their rows are still there"
    newest = max((manifest.edited_epoch for manifest in behind), default=-1)
    if newest > start.epoch and newest not in kept:
        return f"epoch {newest} holds a change that a person made, and is not kept any more: it may have deleted keys"
    return ""


def abandoned_ends(
    branch: Branch, record: StoreRecord, unreleased: Manifest | None, output: str
) -> list[layout.ManifestName]:
    """The epochs behind the start whose rows the target may show, the newest first."""
    ends = [branch.end]
    parent = None if unreleased is None else unreleased.parent_place
    if parent is not None and parent.epoch > branch.from_epoch:
        # The newest epoch may be out, or only some of its rows.
        ends.append(parent)
    begun = record.branch(record.timeline)
    if begun is not None and branch.end_timeline != record.timeline and output in begun.held_outputs:
        ends.append(begun.shown)
    return list(dict.fromkeys(ends))


def stage_restated(
    store: StoreFiles,
    restating: Restating,
    branch: Branch,
    ends: Mapping[str, Sequence[layout.ManifestName]],
    *,
    fence: int,
) -> None:
    """Stages the rows of outputs and notes where they are. ``ends``: by output."""
    outputs = {output: restating.stage(output, branch.start, each, fence=fence) for output, each in ends.items()}
    store.write(layout.RESTATED, msgspec.json.encode(RestatedNote(branch.mark, outputs)))


def read_restated(store: StoreFiles, branch: Branch) -> dict[str, list[StagedPart]]:
    """What was staged for a rewind, by output; also outputs that need no row."""
    try:
        note = msgspec.json.decode(store.read(layout.RESTATED), type=RestatedNote)
    except MissingFile:
        return {}
    return note.outputs if note.mark == branch.mark else {}


def drop_leftovers(store: StoreFiles) -> None:
    """Where no rewind is under way: what one has left that died before its end, or before its beginning."""
    try:
        note = msgspec.json.decode(store.read(layout.RESTATED), type=RestatedNote)
    except MissingFile:
        return
    drop_restated(store, note.outputs)


def drop_restated(store: StoreFiles, outputs: Mapping[str, Collection[StagedPart]]) -> None:
    """After the release: nobody asks for these rows any more."""
    for parts in outputs.values():
        for part in parts:
            if part.file:
                store.delete(part.file)
    store.delete(layout.RESTATED)
