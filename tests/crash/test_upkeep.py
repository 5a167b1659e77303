"""Dying beside the epochs: a base that nobody references yet, and a sweep that is half done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.model import crash
from headrace.model.order import EpochLimits
from headrace.state import layout
from headrace.state.manifest import list_epochs, read_state
from headrace.state.run import open_ref
from tests.crash.played import EPOCHS, FILES, Played, run_untouched


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_untouched(tmp_path_factory.mktemp("whole"))


def levels(played: Played) -> set[int]:
    """Levels of the runs that the newest state lists; above 0 stand the folded ones."""
    return {ref.level for refs in played.state().runs.values() for ref in refs}


@pytest.mark.parametrize("limits", [None, FILES], ids=["small things inline", "everything in files"])
def test_folding_and_sweeping_after_every_epoch_change_nothing(
    limits: EpochLimits | None, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=limits)
    for epoch in range(EPOCHS):
        played.run(epoch)
        played.h.maintain()
        played.h.maintain()
    assert levels(played) == {0, 1}
    assert played.end() == expected


@pytest.mark.parametrize("limits", [None, FILES], ids=["small things inline", "everything in files"])
def test_dying_with_a_written_base_in_every_epoch_changes_nothing(
    limits: EpochLimits | None, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=limits)
    played.run(0, 1, 2)
    for epoch in range(3, EPOCHS):
        played.push(epoch)
        played.h.crash(at="base_written")
        assert played.h.published == epoch
        assert levels(played) == {0}
    assert played.end() == expected


@pytest.mark.parametrize("bases", [1, 2, 3])
def test_a_base_that_no_manifest_names_is_not_read_and_is_swept(
    bases: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=FILES)
    played.run(0, 1, 2, 3)
    played.die("base_written", after=bases - 1, work=played.h.maintain)
    unnamed = played.files() - played.named()
    assert len(unnamed) == bases
    played.h.restart()
    played.run(4)
    assert levels(played) == {0}
    assert unnamed.isdisjoint(played.named())
    played.h.maintain()
    assert unnamed.isdisjoint(played.files())
    assert played.end() == expected


def test_dying_in_the_sweep_behind_every_epoch_changes_nothing(tmp_path: Path, expected: dict[str, Any]) -> None:
    played = Played(tmp_path, limits=FILES)
    played.run(0)
    for epoch in range(1, EPOCHS):
        played.push(epoch)
        played.h.crash(at="sweeping")
        assert played.h.published == epoch
    assert played.end() == expected


@pytest.mark.parametrize("deleted", [0, 1, 2, 5, 9])
def test_a_sweep_that_died_half_way_leaves_every_epoch_readable_and_is_completed(
    deleted: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=FILES)
    played.run(0, 1, 2)
    before = played.files()
    played.die("sweeping", after=deleted, work=played.h.maintain)
    assert len(before - played.files()) == deleted
    for epoch in list_epochs(played.store, 0):
        for refs in read_state(played.store, 0, epoch).runs.values():
            for ref in refs:
                open_ref(played.store, ref)
    played.h.restart()
    played.run(3)
    played.h.maintain()
    kept = {layout.parse_staged(path).epoch for path in played.store.list(layout.STAGED)}  # type: ignore[union-attr]
    assert kept == {3}
    played.run(4)
    assert played.end() == expected


def test_a_base_on_its_way_into_a_manifest_survives_a_sweep(tmp_path: Path, expected: dict[str, Any]) -> None:
    played = Played(tmp_path, limits=FILES)
    upkeep = played.h._upkeep
    played.run(0, 1, 2, 3)
    planned_on = played.state()
    played.run(4)
    upkeep.fold(planned_on)
    folded = played.files() - played.named()

    def sweep(point: str, epoch: int) -> None:
        if point == "before_publish":
            # The epoch in progress has taken the folds, and the manifest that names them is not there yet.
            upkeep.sweep(played.state())

    played.take()
    with crash.planned(sweep):
        played.h.drain()
    assert len(folded) > 1
    assert folded <= played.named() & played.files()
    found = played.end()
    assert (found["taken"], found["written"]) == (expected["taken"], expected["written"])
