"""What every replay of past epochs shares: the order that an epoch had, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.checkpoint.rewind.proof import prove_sources
from headrace.errors import InputLost, StoreError
from headrace.model.order import EpochOrder, read_final
from headrace.plan.physical import Program
from headrace.state.layout import ManifestName
from headrace.state.manifest import JobState, Manifest, epoch_ranges
from headrace.state.store import StoreFiles


def order_of(manifest: Manifest, parent: JobState | None) -> EpochOrder:
    """The order by which an epoch runs again as it ran."""
    ending = parent is not None and parent.manifest.ending
    return EpochOrder(
        epoch=manifest.epoch, timeline=manifest.timeline, fence=manifest.fence, clock_us=manifest.clock_us,
        parent_epoch=-1 if parent is None else parent.epoch, parent="" if parent is None else parent.manifest.nonce,
        final=read_final(manifest.offsets) or ending, hints=_marks(manifest),
    )  # fmt: skip


def _marks(manifest: Manifest) -> dict[str, dict[str, int]]:
    """How far the rows of an epoch moved time, also those that no task saw: filters in the JVM hid them."""
    clock_us = manifest.clock_us
    return {
        source: {split: time.max_us for split, time in known.splits.items() if time.seen_us == clock_us}
        for source, known in manifest.time.sources.items()
    }


def check_input(store: StoreFiles, program: Program, start: Manifest, end: Manifest) -> None:
    """Refuses to begin where a source says that it no longer has what was read."""
    sources = {source.log_name: source.source for source in program.sources}
    for name, proof in prove_sources(store, sources, start, end).items():
        if proof.verdict == "lost":
            raise InputLost(
                f"the source {name!r} no longer has what these epochs read",
                where=store.url,
                found=proof.why,
                next_move="bring it back, or replay epochs whose input is still there",
            )


def check_app(app: str, stored: str) -> None:
    if app != stored:
        raise StoreError(
            "the store belongs to another app",
            expected=f"app {app!r}",
            found=f"app {stored!r}",
            next_move="give the program whose job wrote the store",
        )


def check_whole(store: StoreFiles, places: Sequence[ManifestName], first: int, last: int) -> None:
    """Refuses a range of which an epoch was swept."""
    kept = {place.epoch for place in places}
    missing = [epoch for epoch in range(first, last + 1) if epoch not in kept]
    if missing:
        raise StoreError(
            "epochs between the two are swept, so their input is not known",
            where=store.url,
            expected=f"every epoch from {first} to {last}",
            found=f"no epoch {epoch_ranges(missing)}",
            next_move=f"begin with epoch {missing[-1] + 1} or later; a larger `retain` keeps more of them",
        )
