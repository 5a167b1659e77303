"""Forks whose programs keep values of other types, and forks of a copy made by hand whose original is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import headrace as hr
from tests.testing.changed import Ask, keeping, write


class Place(hr.Record):
    town: str


class Named(hr.Record):
    city: str = hr.field(was="town")
    people: int = 0


class Measured(hr.Record):
    city: str = hr.field(was="town")
    people: float = 0.0
    code: str | None = None


def test_types_change_in_a_fork_behind_a_rewind_and_in_a_fork_of_that(tmp_path: Path) -> None:
    write(keeping(Place, lambda n: Place("old")), tmp_path / "first")
    named = keeping(Named, lambda n: Named("new", n))
    with named.harness(tmp_path / "fork", start_from=str(tmp_path / "first")) as h:
        h.push(named.asks, Ask("k0", 5))
        h.epoch()
        h.savepoint("one")
        h.maintain()
        h.push(named.asks, Ask("k1", 6))
        h.epoch()
        h.rewind("one")
        h.push(named.asks, Ask("k2", 7))
        h.epoch()
        h.maintain()
        h.epoch()
        assert named.tell(h, "k1")["value"] == str(Named("new", 6)), "what is pushed is read again"
    measured = keeping(Measured, lambda n: Measured("newest", n))
    with measured.harness(tmp_path / "again", start_from=f"{tmp_path / 'fork'}@one") as h:
        h.push(measured.asks, Ask("k3", 8))
        h.epoch()
        h.maintain()
        h.epoch()
        told = {key: measured.tell(h, key) for key in ("k0", "k2", "k3")}
    assert told["k0"]["value"] == str(Measured("new", 5.0))
    assert told["k2"]["value"] == str(Measured("old"))
    assert told["k3"]["value"] == str(Measured("newest", 8.0))
    changed = {state.address: state.changed for state in hr.diff(tmp_path / "first", tmp_path / "again").states}
    assert changed == dict.fromkeys(changed, 2) and len(changed) == 5, "k0 and k3, in every kind of state"


def test_a_copy_by_hand_whose_original_is_lost_can_be_forked_and_lost_too(tmp_path: Path) -> None:
    write(keeping(Place, lambda n: Place("old")), tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    shutil.rmtree(tmp_path / "first")
    job = keeping(Place, lambda n: Place("new"))
    for key in ("k0", "k1"):
        with job.harness(tmp_path / "fork", start_from=str(tmp_path / "copy")) as h:
            h.push(job.asks, Ask(key, 1))
            h.epoch()
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    kept = hr.Store(tmp_path / "fork").state("kept.value")
    assert {key: kept[key]["town"] for key in ("k0", "k1", "k2")} == {"k0": "new", "k1": "new", "k2": "old"}
