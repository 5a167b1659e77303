"""Spark was not told, and has forgotten what it planned: the manifests alone say where a job goes on.

Here without a JVM, in the harness and right at recovery; `tests.crash.test_kills` does the same to Spark itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decide import AlreadyFinal, Recovery, ResumeFrom
from headrace.checkpoint.fence import take_fence
from headrace.checkpoint.maintenance import Upkeep
from headrace.checkpoint.recover import RecoveredJob, recover
from headrace.checkpoint.release import Releaser
from headrace.errors import Refused
from headrace.plan.compile import compile_app
from headrace.state import layout
from headrace.state.manifest import read_manifest
from headrace.state.store import LocalStore
from tests.crash.files import lose_newest_offsets, lose_spark_folder, written
from tests.crash.played import EPOCHS, PER_EPOCH, Played, run_untouched
from tests.crash.program import build

Lose = Callable[[Path], None]


def lose_nothing(store: Path) -> None:
    pass


LOSSES = [lose_nothing, lose_newest_offsets, lose_spark_folder]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_untouched(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("point", ["published", "between_sinks", "released"])
def test_an_epoch_that_spark_forgot_is_neither_run_again_nor_lost(
    point: str, lose: Lose, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path)
    for epoch in range(EPOCHS):
        played.push(epoch)
        if epoch % 2 == 0:
            played.die(point)
            lose(played.store.root)
            played.h.restart()
        if played.h.published < epoch:
            played.h.epoch()
        assert played.h.published == epoch
    assert played.end() == expected


@pytest.mark.parametrize("lose", LOSSES)
def test_drained_input_stays_drained_when_spark_forgot(lose: Lose, tmp_path: Path, expected: dict[str, Any]) -> None:
    played = Played(tmp_path)
    played.run(*range(EPOCHS))
    played.take()
    played.die("final_published")
    lose(played.store.root)
    played.h.restart()
    with pytest.raises(Refused, match="drained"):
        played.h.epoch()
    found = played.end()
    assert (found["taken"], found["written"]) == (expected["taken"], expected["written"])


@pytest.mark.parametrize("lose", LOSSES)
def test_an_epoch_that_was_planned_and_forgotten_is_planned_anew(
    lose: Lose, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path)
    for epoch in range(EPOCHS):
        played.push(epoch)
        played.die("offsets_written")
        lose(played.store.root)
        played.h.restart()
        assert played.h.published == epoch - 1
        played.h.epoch()
    assert played.end() == expected


# --- recovery itself


def bury(played: Played) -> None:
    """Takes away what a dead driver leaves behind in this process, and the note that only a living one writes."""
    played.h.close()
    played.store.delete(layout.RELEASED)


def start_again(folder: Path) -> tuple[RecoveredJob, Coordinator]:
    """What a new driver does before it asks Spark for anything."""
    program = compile_app(build(folder, EPOCHS * PER_EPOCH, PER_EPOCH), parallelism=2, key_groups=128)
    store = LocalStore(folder / "store", durable=False)
    fence = take_fence(store)
    releaser = Releaser(store, {output.name: output.sink for output in program.outputs})
    recovered = recover(store, program.facts, fence, releaser)
    upkeep = Upkeep(store, program.facts, fence.number, retain=2)
    return recovered, Coordinator(store, program.facts, fence, releaser, upkeep, recovered.state)


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize(
    ("point", "decision"),
    [("released", ResumeFrom(2, released=False)), ("final_published", AlreadyFinal(2, released=False))],
)
def test_sparks_folder_is_made_from_the_manifests_whatever_was_left_of_it(
    point: str, decision: Recovery, lose: Lose, tmp_path: Path
) -> None:
    played = Played(tmp_path)
    played.run(0, 1)
    played.push(2)
    played.die(point)
    bury(played)
    lose(played.store.root)
    recovered, coordinator = start_again(tmp_path)
    assert recovered.decision == decision
    assert played.store.list(layout.SPARK) == sorted(
        [
            layout.spark_metadata(recovered.run),
            layout.spark_offset(recovered.run, 1),
            layout.spark_offset(recovered.run, 2),
            layout.spark_commit(recovered.run, 2),
        ]
    )
    for epoch in (1, 2):
        entry = played.store.read(layout.spark_offset(recovered.run, epoch)).decode()
        assert entry == read_manifest(played.store, 0, epoch).offsets
    coordinator.fence.drop()


@pytest.mark.parametrize("lose", LOSSES)
def test_spark_asking_again_for_an_epoch_it_was_not_told_of_gets_a_release_and_no_tasks(
    lose: Lose, tmp_path: Path
) -> None:
    played = Played(tmp_path)
    played.run(0, 1)
    played.push(2)
    played.die("released")
    bury(played)
    before = written(tmp_path)
    lose(played.store.root)
    _, coordinator = start_again(tmp_path)
    manifest = read_manifest(played.store, 0, 2)

    def ask(epoch: int, offsets: str) -> Any:
        return coordinator.begin(epoch, offsets, clock_us=manifest.clock_us, final=False, hints={})

    assert ask(2, manifest.offsets) is None
    with pytest.raises(Refused, match="asks for epoch 2"):
        ask(2, manifest.offsets + "x")
    order = ask(3, "whatever Spark plans now")
    assert (order.epoch, order.parent_epoch, order.parent) == (3, 2, manifest.nonce)
    assert written(tmp_path) == before
    coordinator.fence.drop()
