"""Two attempts of one task at the same time: one of them counts, the other leaves files that nobody names.

Both write deltas and stage outputs. Either may be the one that is read; if its readers saw different ones, the epoch is
refused and run again. Without a JVM: `tests.crash.attempts` plays the scheduler, and two workers play two processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import EpochFailed
from headrace.state import layout
from tests.crash.attempts import FIRST, SECOND, SHARD, overlapping
from tests.crash.played import FILES, Played, run_untouched

LEVELS = [0, 1, 2]
"""The chain of the source, visits by user, totals by page."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_untouched(tmp_path_factory.mktemp("whole"))


def attempts_of(files: set[str], level: int, epoch: int) -> list[str]:
    """Runs that tasks of a level wrote in an epoch for the shard that runs twice."""
    steps = {1: "visits", 2: "totals"}
    runs = [(path, name) for path in files if (name := layout.parse_run(path)) is not None]
    return sorted(
        path for path, name in runs if (name.step, name.epoch, name.shard) == (steps.get(level), epoch, SHARD)
    )


@pytest.mark.parametrize("counts", [FIRST, SECOND], ids=["the first counts", "the second counts"])
@pytest.mark.parametrize("level", LEVELS)
def test_of_two_overlapping_attempts_one_counts_and_the_others_files_are_swept(
    level: int, counts: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=FILES)
    left: set[str] = set()
    for epoch in range(5):
        if epoch not in (1, 3):
            played.run(epoch)
            continue
        with overlapping(played.h, level, (counts, counts)):
            played.run(epoch)
        left = played.files() - played.named() - left
        assert left, "the attempt that does not count has written something"
        if level > 0:
            assert len(attempts_of(left, level, epoch)) == 1
            assert len(attempts_of(played.files(), level, epoch)) == 2
    everything = played.files() - played.named()
    assert left < everything
    played.h.maintain()
    assert everything.isdisjoint(played.files())
    assert played.end() == expected


@pytest.mark.parametrize("counts", [FIRST, SECOND], ids=["the first counts", "the second counts"])
def test_an_attempt_that_begins_while_another_is_in_user_code_does_not_touch_it(
    counts: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=FILES)
    for epoch in range(5):
        with overlapping(played.h, 1, (counts, counts), in_function=True):
            played.run(epoch)
    assert played.files() - played.named()
    assert played.end() == expected


@pytest.mark.parametrize("reads", [(FIRST, SECOND), (SECOND, FIRST)], ids=["first and second", "second and first"])
@pytest.mark.parametrize("level", LEVELS)
def test_readers_of_different_attempts_are_refused_and_the_epoch_is_run_again(
    level: int, reads: tuple[int, int], tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=FILES)
    for epoch in range(5):
        if epoch in (1, 3):
            played.push(epoch)
            before = played.named()
            with (
                overlapping(played.h, level, reads),
                pytest.raises(EpochFailed, match="do not fit together") as refused,
            ):
                played.h.epoch()
            assert refused.value.found == found_at(level)
            assert played.h.published == epoch - 1
            assert played.named() == before
            played.h.epoch()
        else:
            played.run(epoch)
    unnamed = played.files() - played.named()
    played.h.maintain()
    assert unnamed.isdisjoint(played.files())
    assert played.end() == expected


def found_at(level: int) -> str:
    if level < 2:
        return f"shard 1 of level {level + 1} read other attempts of level {level} than reported"
    return "level 1 reported shards [0, 0, 1], expected each of 0 to 1 once"


@pytest.mark.parametrize("level", LEVELS)
def test_operators_that_began_another_attempt_give_the_first_one_up(
    level: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=FILES)
    played.run(0)
    played.push(1)
    before = played.named()
    with (
        overlapping(played.h, level, (FIRST, FIRST), shared=True),
        pytest.raises(EpochFailed, match="operators that were at work for another"),
    ):
        played.h.epoch()
    assert played.named() == before
    played.h.restart()
    with overlapping(played.h, level, (SECOND, SECOND), shared=True):
        played.h.epoch()
    assert played.h.published == 1
    played.run(2, 3, 4)
    assert played.end() == expected
