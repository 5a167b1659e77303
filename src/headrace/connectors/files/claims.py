"""Whose epochs a folder has of an output, and where timelines end that their store has abandoned.

It is written down once, by the first store that puts files together in the folder, or takes some back. A file that was
put together is known by the numbers of its epochs alone, and every store counts from the same ones: without a claim,
the epochs of a second store (another job, or the same one after its store was deleted) would be taken for some that are
visible already, and left out; or be taken back with those of the first.

A store that was started over (``--fresh``) stays the same store: its timeline goes up, and its claim holds.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headrace.connectors.files.folder import Folder
from headrace.errors import SinkFailed
from headrace.model.part_names import FolderClaim, claim_name, hidden_folder, parse_visible, parse_waiting


class Writer(Protocol):
    """Who writes to a folder: a `Release` and a `Forget` tell it."""

    timeline: str
    output: str
    job: str


class Claims:
    """The claim of one output in one folder."""

    def __init__(self, folder: Folder, output: str) -> None:
        self._folder = folder
        self._output = output
        self.name = claim_name(output)

    def read(self) -> FolderClaim:
        """What is known; of a folder without a claim nothing is."""
        try:
            return msgspec.json.decode(memoryview(self._folder.read(self.name)), type=FolderClaim)
        except FileNotFoundError:
            return FolderClaim()

    def check(self, ctx: Writer) -> bool:
        """Whether the folder is this store's; False: nobody's. Raises SinkFailed where it is another's."""
        found = self.read()
        if found.job and found.job != ctx.job:
            raise self._refusal(ctx, f"files of store {found.job}; this one is {ctx.job}")
        return bool(found.job)

    def check_own(self, ctx: Writer, epoch: int) -> bool:
        """The same; where there is no claim, files that this store cannot have written are another's, too.

        ``epoch``: the newest of its timeline that the store has come to.

        Earlier versions left no claim. What they wrote is taken for this store's own, unless it goes beyond this epoch:
        a store that goes on has published nothing after it.
        """
        if self.check(ctx):
            return True
        timeline, newest = self._newest()
        if (timeline, newest) > (int(ctx.timeline), epoch):
            mine = f"this store has come to epoch {epoch} of timeline {ctx.timeline}"
            raise self._refusal(ctx, f"epoch {newest} of timeline {timeline}; {mine}")
        return False

    def take(self, ctx: Writer, epoch: int) -> None:
        """Makes the folder this store's, or raises SinkFailed where it is another's."""
        if not self.check_own(ctx, epoch) and not self._create(FolderClaim(ctx.job)):
            # Somebody was quicker: another driver of this store, or another store.
            self.check(ctx)

    def _create(self, claim: FolderClaim) -> bool:
        return self._folder.create(self.name, msgspec.json.encode(claim))

    def released(self, job: str) -> tuple[int, int] | None:
        """Timeline and epoch of the newest that a store has in the folder; None: none. Another's files do not count."""
        newest = self._newest()
        return None if newest[1] < 0 or self.read().job not in ("", job) else newest

    # --- abandoned timelines

    def end_of(self, timeline: int) -> int | None:
        """The newest epoch of a timeline that stays, where the store has abandoned it."""
        return self.read().ends.get(str(timeline))

    def abandon(self, timeline: int, epoch: int) -> None:
        """Notes where a timeline ends, for good: a store that goes back twice may end it earlier, never later."""
        found = self.read()
        ends = {**found.ends, str(timeline): min(epoch, found.ends.get(str(timeline), epoch))}
        if ends != found.ends:
            self._folder.replace(self.name, msgspec.json.encode(msgspec.structs.replace(found, ends=ends)))
            self._folder.settle()

    # --- what is there

    def _newest(self) -> tuple[int, int]:
        """The newest epoch in the folder, visible or waiting, after its timeline; −1: none."""
        newest = (-1, -1)
        for path, *_ in self._folder.list("", below=True):
            name = path.rpartition("/")[2]
            if (seen := parse_visible(name)) is not None and seen.output == self._output:
                newest = max(newest, (seen.timeline, seen.last))
            elif (held := parse_waiting(name)) is not None and path.startswith(f"{hidden_folder(self._output)}/"):
                newest = max(newest, (held.timeline, held.epoch))
        return newest

    def _refusal(self, ctx: Writer, found: str) -> SinkFailed:
        return SinkFailed(
            f"output {ctx.output} of another store is in this folder",
            where=f"sink.files({self._folder.where!r})",
            expected="a folder that only this output of this store writes to",
            found=found,
            next_move=f"choose another folder, and keep the name of the output: write(…, name={ctx.output!r}); or, if "
            f"the other store is gone for good, move its files and {self.name} away. The rows stay staged in the "
            "store until then",
        )
