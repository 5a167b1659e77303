"""What a system behind a sink says it has of an output, compared with what is to be released: one rule for all."""

from __future__ import annotations

import logging

from headrace.connectors.sink_contract import Release
from headrace.errors import Fenced

log = logging.getLogger("headrace.sinks")


def is_released(recorded: tuple[int, int], ctx: Release, where: str) -> bool:
    """Whether the timeline and epoch that are recorded include this release.

    Raises Fenced where they are of a newer timeline: the job was begun anew, and this driver does not know.
    """
    timeline, epoch = recorded
    if timeline > int(ctx.timeline):
        raise Fenced(
            "a newer run of this job has written to the table",
            where=where,
            expected=f"no timeline after {ctx.timeline}",
            found=f"epoch {epoch} of timeline {timeline}",
            next_move="stop this driver: the job was begun anew by another one",
        )
    if timeline == int(ctx.timeline) and epoch > ctx.epoch:
        log.warning("%s: epoch %s is older than epoch %s, which is there", where, ctx.epoch, epoch)
    return recorded >= (int(ctx.timeline), ctx.epoch)
