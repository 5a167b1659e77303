"""Whose epochs a folder has of an output: written down once, by the first store that puts files together there.

A file that was put together is known by the numbers of its epochs alone, and every store counts from the same ones. So
without a claim, the epochs of a second store (another job, or the same one after its store was deleted) would be taken
for some that are visible already, and left out.

A store that was started over (``--fresh``) stays the same store: its timeline goes up, and its claim holds.
"""

from __future__ import annotations

import msgspec

from headrace.connectors.files.folder import Folder
from headrace.connectors.sink_contract import Release
from headrace.errors import SinkFailed
from headrace.model.part_names import claim_name, hidden_folder, parse_visible, parse_waiting


class Claim(msgspec.Struct, frozen=True):
    """What the file of a claim says."""

    job: str
    """Id of the store."""


def check_claim(folder: Folder, ctx: Release) -> bool:
    """Whether the folder is this store's, for this output; False: nobody's. Raises SinkFailed where it is another's."""
    try:
        found = msgspec.json.decode(memoryview(folder.read(claim_name(ctx.output))), type=Claim)
    except FileNotFoundError:
        return False
    if found.job != ctx.job:
        raise _refused(folder, ctx, f"files of store {found.job}; this one is {ctx.job}")
    return True


def claim_folder(folder: Folder, ctx: Release) -> None:
    """Makes the folder this store's, for this output, or raises SinkFailed where it is another's.

    Earlier versions left no claim. What they wrote is taken for this store's own, unless it goes beyond this epoch: a
    store that goes on has published nothing after it.
    """
    if check_claim(folder, ctx):
        return
    timeline, epoch = _newest(folder, ctx.output)
    if (timeline, epoch) > (int(ctx.timeline), ctx.epoch):
        mine = f"this store has come to epoch {ctx.epoch} of timeline {ctx.timeline}"
        raise _refused(folder, ctx, f"epoch {epoch} of timeline {timeline}; {mine}")
    if not folder.create(claim_name(ctx.output), msgspec.json.encode(Claim(ctx.job))):
        # Somebody was quicker: another driver of this store, or another store.
        check_claim(folder, ctx)


def _newest(folder: Folder, output: str) -> tuple[int, int]:
    """The newest epoch that an output has in a folder, visible or waiting, after its timeline; −1: none."""
    newest = (-1, -1)
    for path, *_ in folder.list("", below=True):
        name = path.rpartition("/")[2]
        if (seen := parse_visible(name)) is not None and seen.output == output:
            newest = max(newest, (seen.timeline, seen.last))
        elif (held := parse_waiting(name)) is not None and path.startswith(f"{hidden_folder(output)}/"):
            newest = max(newest, (held.timeline, held.epoch))
    return newest


def _refused(folder: Folder, ctx: Release, found: str) -> SinkFailed:
    return SinkFailed(
        f"output {ctx.output} of another store is in this folder",
        where=f"sink.files({folder.where!r})",
        expected="a folder that only this output of this store writes to",
        found=found,
        next_move=f"choose another folder, and keep the name of the output: write(…, name={ctx.output!r}); or, if the "
        f"other store is gone for good, move its files and {claim_name(ctx.output)} away. The rows stay staged in the "
        "store until then",
    )
