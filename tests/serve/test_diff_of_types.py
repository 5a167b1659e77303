"""The difference of two epochs between which a type changed: what differs where both are read as the newer one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.model import migrations
from headrace.read.diff import StoreDiff
from tests.cli.calling import call
from tests.testing.changed import FILES, KEYS, Ask, Job, keeping, write


@pytest.fixture(autouse=True)
def _no_functions_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_registered", {})


class Place(hr.Record):
    town: str
    people: int
    old: bool = False


class Renamed(hr.Record):
    city: str = hr.field(was="town")
    people: float = 0.0
    country: str = "?"


class Again(hr.Record):
    """`old` comes back as another field, which old values do not have."""

    city: str = hr.field(was="town")
    people: float = 0.0
    country: str = "?"
    old: bool = True


class Asked(hr.Record):
    place: str = hr.field(was="city")


class Money(hr.Record):
    value: float


STATES = {f"kept.{name}" for name in ("value", "few", "named", "newest", "acc")}


def fold(job: Job, store: Path) -> None:
    """Epochs that change one key each, until nothing of an older type is left."""
    with job.harness(store, limits=FILES) as h:
        for _ in range(6):
            h.push(job.asks, Ask("k0", 9))
            h.epoch()
            h.maintain()
        h.epoch()


def change_one(job: Job, store: Path) -> None:
    with job.harness(store, limits=FILES) as h:
        h.push(job.asks, Ask("k0", 9))
        h.epoch()


def changed(found: StoreDiff) -> dict[str, set[Any]]:
    keys: dict[str, set[Any]] = {state.address: set() for state in found.states}
    for each in found:
        keys[each.address].add(each.key)
    return keys


@pytest.mark.parametrize("folded", [False, True], ids=["as stored", "rewritten"])
def test_values_that_only_have_another_type_do_not_differ(tmp_path: Path, folded: bool) -> None:
    write(keeping(Place, lambda n: Place("x", n)), tmp_path, limits=FILES)
    job = keeping(Renamed, lambda n: Renamed("x", float(n)))
    (fold if folded else change_one)(job, tmp_path)
    for sides in ((f"{tmp_path}@0", f"{tmp_path}"), (f"{tmp_path}", f"{tmp_path}@0")):
        found = hr.diff(*sides)
        assert changed(found) == {state: {"k0"} for state in STATES}
        assert not any(state.note for state in found.states)
    [value] = hr.diff(f"{tmp_path}@0", f"{tmp_path}", state="kept.value")
    assert value.before == {"city": "x", "people": 1.0, "country": "?"}
    assert value.after == {"city": "x", "people": 9.0, "country": "?"}


def test_values_go_through_the_types_in_between(tmp_path: Path) -> None:
    write(keeping(Place, lambda n: Place("x", n)), tmp_path, limits=FILES)
    change_one(keeping(Renamed, lambda n: Renamed("x", float(n))), tmp_path)
    change_one(keeping(Again, lambda n: Again("x", float(n))), tmp_path)
    assert changed(hr.diff(f"{tmp_path}@0", f"{tmp_path}")) == {state: {"k0"} for state in STATES}


def test_what_needs_a_function_is_compared_as_it_is_stored_and_said_to_be(tmp_path: Path) -> None:
    write(keeping(int, lambda n: n), tmp_path, limits=FILES)
    hr.migrate(int, Money, lambda cents: Money(cents / 100))
    fold(keeping(Money, lambda n: Money(n / 100)), tmp_path)
    found = hr.diff(f"{tmp_path}@0", f"{tmp_path}", state="kept.value")
    assert changed(found) == {"kept.value": set(KEYS)}
    [state] = found.states
    assert state.note == "int becomes Money with the program only: compared as stored"
    words = ("diff", f"{tmp_path}@0", tmp_path, "--state", "kept.value")
    assert "with the program only" in " ".join(call(*words).stdout.split())


def test_a_state_that_was_dropped_is_not_seen_again_by_asking_for_a_type(tmp_path: Path) -> None:
    class Keeping(hr.Process[Ask, str, str]):
        place: hr.ValueState[Renamed]

        def on_event(self, event: Ask, ctx: hr.Context[str]) -> Iterator[str]:
            if event.n:
                self.place.set(Renamed("x", float(event.n)))
            yield str(self.place.get())

    class KeepingInts(Keeping):
        place: hr.ValueState[int]  # type: ignore[assignment]

        def on_event(self, event: Ask, ctx: hr.Context[str]) -> Iterator[str]:
            self.place.set(event.n)  # type: ignore[arg-type]
            yield ""

    def program(function: Any) -> Job:
        app = hr.App("changed")
        asks = app.read("asks", hr.source.items([]), Ask)
        return Job(app, asks, asks.key_by(Ask.key).process(function).named("kept"))

    write(program(KeepingInts()), tmp_path, limits=FILES)
    job = program(Keeping())
    with job.harness(tmp_path, drop=["kept.place"], limits=FILES) as h:
        h.push(job.asks, Ask("k0", 5))
        h.epoch()
    store = hr.Store(str(tmp_path))
    assert dict(store.state("kept.place", Asked)) == {"k0": Asked("x")}
    assert set(dict(store.state("kept.place"))) == {"k0"}
