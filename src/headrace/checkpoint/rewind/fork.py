"""A second job that begins with an epoch of another one's store: in a store of its own, which shares no files.

The original may run meanwhile, and notices nothing but a pin while files are copied. A fork that was interrupted goes
on; one that is there already is simply gone on with, without a look at the original, which may be gone by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

import xxhash

from headrace.checkpoint.recover import plan_upgrade_at
from headrace.checkpoint.rewind.passing import derive_passing
from headrace.checkpoint.rewind.proof import Sources, prove_sources, warn_of_erased
from headrace.checkpoint.rewind.request import ForkRequest, StartRequest
from headrace.errors import HeadraceError, MissingFile, NoSuchMoment, Refused, StoreError
from headrace.model import crash
from headrace.model.amounts import count_of
from headrace.model.job import JobFacts
from headrace.state.checking import Progress
from headrace.state.copying import begun_fork, end_fork, fork_savepoint, is_fork_open
from headrace.state.lineage import places_until, published_places
from headrace.state.manifest import read_manifest
from headrace.state.moments import AtSavepoint, find_moment
from headrace.state.record import ForkedFrom, Passing, read_record
from headrace.state.savepoints import Savepoint, create_savepoint, delete_savepoint, read_savepoint
from headrace.state.store import StoreFiles

Open = Callable[[str], StoreFiles]
"""Opens the store of the original, which is read only but for the pin."""


def begin_fork(
    target: StoreFiles, request: StartRequest | None, job: JobFacts, sources: Sources, open_origin: Open, *,
    drop: Collection[str] = (), progress: Progress | None = None, clock: Callable[[], float] = time.time,
) -> list[str]:  # fmt: skip
    """Makes the store where a fork is asked for and not there yet; tells what was done, a line each.

    Called before a fence is taken: a store that has one is no place for a copy. Nothing is copied for a program that
    does not fit the epoch; ``drop`` is what of it a person gives up. ``sources``: all that the program may read.
    """
    if not isinstance(request, ForkRequest):
        return []
    if (forked := find_fork(target, request)) is not None:
        if is_fork_open(target):
            with suppress(HeadraceError, OSError):
                delete_savepoint(open_origin(request.url), _pin_name(target, forked.epoch))
            end_fork(target)
        return [f"going on: this store is a fork of {forked.url} already, from epoch {forked.epoch}"]
    origin = open_origin(request.url)
    plan_upgrade_at(origin, find_moment(origin, request.moment), job, drop).check()
    savepoint, is_ours = _pin(origin, target, request, clock)
    try:
        passing = derive_passing(origin, savepoint, request, job)
        unproved = _prove_sources(origin, savepoint, sources, refuse=passing is not None)
    except HeadraceError:
        if is_ours and not is_fork_open(target):
            delete_savepoint(origin, savepoint.name)
        raise
    report = fork_savepoint(
        origin, savepoint, target, asked=_asked(request), passing=passing, progress=progress, clock=clock
    )  # fmt: skip
    crash.reach("fork_made", savepoint.epoch)
    if is_ours:
        delete_savepoint(origin, savepoint.name)
    end_fork(target)
    return [
        f"forked {request.url} at epoch {savepoint.epoch}: {count_of(report.files, 'file')}, copied into {target.url}; "
        "it has an id of its own" + ("" if passing is None else f"; {_held_words(passing)}"),
        *unproved,
    ]


def find_fork(target: StoreFiles, request: ForkRequest) -> ForkedFrom | None:
    """What the store says of its origin where it is this fork; None where no store is. Any other store is refused."""
    record = read_record(target)
    if record is None:
        return None
    forked = record.forked_from
    if forked is None or (forked.url, forked.asked) != (request.url, _asked(request)):
        raise _occupied(target, request, forked)
    return forked


def _asked(request: ForkRequest) -> str:
    return "" if request.moment is None else str(request.moment)


def _pin(
    origin: StoreFiles, target: StoreFiles, request: ForkRequest, clock: Callable[[], float]
) -> tuple[Savepoint, bool]:
    """The savepoint to copy, and whether it is ours: other epochs are pinned for as long as the copy takes."""
    if isinstance(request.moment, AtSavepoint):
        return read_savepoint(origin, request.moment.name), False
    begun = begun_fork(origin, target, _asked(request))
    if begun is not None:
        # The moment may mean another epoch by now; the fork goes on with the one that it has begun with.
        with suppress(NoSuchMoment):
            return read_savepoint(origin, begun), True
    place = find_moment(origin, request.moment)
    note = f"while {target.url} begins with it"
    name = _pin_name(target, place.epoch)
    return create_savepoint(origin, name=name, note=note, place=place, clock=clock), True


def _pin_name(target: StoreFiles, epoch: int) -> str:
    return f"fork-of-epoch-{epoch}-{xxhash.xxh32_hexdigest(target.url.encode())}"


def _prove_sources(origin: StoreFiles, savepoint: Savepoint, sources: Sources, *, refuse: bool) -> list[str]:
    """What the original has read behind the epoch and is not there any more; a line each, or an error."""
    places = published_places(origin)
    if savepoint.place not in places_until(origin, places[-1]):
        return []
    start, end = read_manifest(origin, *savepoint.place), read_manifest(origin, *places[-1])
    proof = prove_sources(origin, sources, start, end)
    behind = []
    for place in places_until(origin, places[-1]):
        # The original may run, and sweep.
        with suppress(MissingFile):
            behind += [read_manifest(origin, *place)] if place.epoch > start.epoch else []
    lost = [f"{name}: {each.why}" for name, each in sorted(proof.items()) if each.verdict == "lost"]
    if lost and refuse:
        raise Refused(
            f"sources no longer have what the original read behind epoch {start.epoch}", where=origin.url,
            expected=f"everything that epochs {start.epoch + 1} to {end.epoch} read", found="; ".join(lost),
            next_move="bring it back; or begin with a later epoch, or the newest: then nothing is read again",
        )  # fmt: skip
    missing = [f"rows that the original read behind epoch {start.epoch} are missing here: {each}" for each in lost]
    return [*missing, *warn_of_erased(behind)]


def _held_words(passing: Passing) -> str:
    return f"{', '.join(passing.outputs)} held until all is read that the original had read by epoch {passing.epoch}"


def _occupied(target: StoreFiles, request: ForkRequest, forked: ForkedFrom | None) -> StoreError:
    return StoreError(
        "there is another store already where the fork is to begin",
        where=target.url,
        expected=f"an empty folder, or the fork of {request}",
        found="a store of its own" if forked is None else f"a fork of {forked.url}@{forked.asked}",
        next_move="give another --store; or leave --from out, and the job goes on where this store is",
    )
