"""A fork that takes outputs over from its original: both give out each row of the input once, between them.

The original has stopped for good, and its outputs have all that comes of what it had read. The fork begins with an
earlier epoch, reads up to there in its first epoch, and gives nothing out of that for the outputs that it holds. What
comes behind is the fork's. Other than with a rewind the program may be another one, so nobody asks whether it comes to
the same rows again: a row out there is the original's up to that point, and the fork's from there on.
"""

from __future__ import annotations

from headrace.checkpoint.fence import refuse_running
from headrace.checkpoint.recovered import marks_of
from headrace.checkpoint.rewind.request import ALL, ForkRequest
from headrace.errors import Refused, StoreInUse
from headrace.model.job import JobFacts
from headrace.model.nearest import did_you_mean
from headrace.model.report import TAP
from headrace.state.lineage import places_until, published_places
from headrace.state.manifest import Manifest, read_manifest
from headrace.state.record import Passing
from headrace.state.savepoints import Savepoint
from headrace.state.spark_offsets import source_offsets
from headrace.state.store import StoreFiles


def derive_passing(origin: StoreFiles, savepoint: Savepoint, request: ForkRequest, job: JobFacts) -> Passing | None:
    """What the fork reads before it gives anything out of the outputs that it holds; None where it holds none.

    Raises Refused where it cannot hold them, StoreInUse where the original still runs.
    """
    outputs = _outputs_to_hold(origin, request, job)
    if not outputs:
        return None
    try:
        refuse_running(origin)
    except StoreInUse as running:
        running.next_move = f"stop it first, for good: headrace stop {origin.url} --savepoint last"
        raise
    end = read_manifest(origin, *published_places(origin)[-1])
    start = read_manifest(origin, *savepoint.place)
    if savepoint.place not in places_until(origin, end.place):
        raise _refused(
            origin, f"epoch {start.epoch} of timeline {start.timeline} does not lead to the newest epoch of the store",
            "an epoch behind which the original went on to its end", "one that a rewind abandoned",
            "begin with an epoch that leads to the present one; `headrace epochs` lists them",
        )  # fmt: skip
    _check_sources(origin, start, end, job)
    return Passing(
        outputs=outputs, timeline=end.timeline, epoch=end.epoch, offsets=end.offsets, marks=marks_of(end)
    )  # fmt: skip


def _outputs_to_hold(origin: StoreFiles, request: ForkRequest, job: JobFacts) -> tuple[str, ...]:
    known = sorted(name for name in job.sinks if not name.startswith(TAP))
    for name in sorted(request.hold - {ALL}):
        if name not in known:
            raise _refused(
                origin, f"the program has no output {name!r}", f"{' or '.join(known) or 'an output'}, or {ALL}",
                f"--hold {name}", did_you_mean(name, known, "`headrace explain` lists the outputs"),
            )  # fmt: skip
    return tuple(known if ALL in request.hold else sorted(request.hold))


def _check_sources(origin: StoreFiles, start: Manifest, end: Manifest, job: JobFacts) -> None:
    """One epoch has to read all of it, so the sources have to be those that the original had read."""
    if end.final or end.ending:
        raise _refused(
            origin, "the input of the original was ended (--until drained), which fired what was still open",
            "an original that was stopped", f"epoch {end.epoch}, behind which nothing follows",
            "begin without --hold, with outputs of its own",
        )  # fmt: skip
    first, last = source_offsets(start.offsets).keys(), source_offsets(end.offsets).keys()
    mine = {name for name in job.sources if name not in end.retired}
    if mine != last or first & end.retired.keys():
        raise _refused(
            origin, "the fork cannot read exactly what the original had read", f"the sources {', '.join(sorted(last))}",
            ", ".join(sorted(mine | (first & end.retired.keys()))) or "none",
            "begin with the sources that the original had, and change them when the fork has passed its end",
        )  # fmt: skip


def _refused(origin: StoreFiles, what: str, expected: str, found: str, next_move: str) -> Refused:
    return Refused(what, where=origin.url, expected=expected, found=found, next_move=next_move)
