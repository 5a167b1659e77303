"""A TTL that is taken away: what had expired stays gone, and what had not lasts, for the program and all readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.upgrade.pages import Hit, Make, Version, keeping
from tests.upgrade.test_matrix import told


def put(state: Any, event: Hit) -> None:
    if event.n:
        state["n"] = event.n


def set_value(state: Any, event: Hit) -> None:
    if event.n:
        state.set(event.n)


def push(state: Any, event: Hit) -> None:
    if event.n:
        state.append(event.n)


KINDS: dict[str, Any] = {
    "value": lambda **more: keeping(hr.ValueState[int], set_value, lambda state: state.get(), **more),
    "map": lambda **more: keeping(hr.MapState[str, int], put, lambda state: dict(state.items()), **more),
    "list": lambda **more: keeping(hr.ListState[int], push, list, **more),
}
NOTHING = {"value": "None", "map": "{}", "list": "[]"}
ONE = {"value": "2", "map": "{'n': 2}", "list": "[2]"}


def see(store: Path) -> set[str]:
    """The keys that a reader without the program finds, one by one and all at once."""
    opened = hr.Store(str(store))
    [info] = opened.states("kept")
    view = opened.state(info.address)
    found = {key for key in ("a", "b") if key in view}
    assert found == set(view) == set(dict(view.scan()))
    return found


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_had_expired_stays_gone_and_what_had_not_lasts(tmp_path: Path, kind: str, folds: bool) -> None:
    dying = KINDS[kind](ttl=hr.ttl("1h", clock="event"))
    with Version(tmp_path, dying) as old:
        old.epoch(("a", "12:00", 1), watermark="12:00")
        old.epoch(("b", "12:50", 2), watermark="12:50")
        old.epoch(watermark="13:10")
    assert see(tmp_path) == {"b"}
    renamed = {"state": "there", "state_was": "held"}
    for number, more in enumerate(({}, {}, renamed, {"state": "there"})):
        lasting: Make = KINDS[kind](**more)
        with Version(tmp_path, lasting, parallelism=2 + number % 2) as new:
            for _ in range(4 if folds else 0):
                new.epoch()
                new.h.maintain()
            rows = new.epoch(("a", "18:00", 0), ("b", "18:00", 0), watermark="18:00")
            assert sorted(told(rows)) == [("a", NOTHING[kind]), ("b", ONE[kind])]
        assert see(tmp_path) == {"b"}
    with Version(tmp_path, lasting) as new:
        assert told(new.epoch(("a", "19:00", 2), watermark="19:00")) == [("a", ONE[kind])]
    assert see(tmp_path) == {"a", "b"}


def test_a_ttl_on_the_wall_clock_ends_when_the_last_epoch_under_it_was(tmp_path: Path) -> None:
    with Version(tmp_path, KINDS["value"](ttl="1h")) as old:
        old.epoch(("a", "12:00", 1))
        old.h.epoch(clock="12:50")
        old.epoch(("b", "12:00", 2))
        old.h.epoch(clock="13:10")
    with Version(tmp_path, KINDS["value"]()) as new:
        new.h.epoch(clock="22:00")
        assert sorted(told(new.epoch(("a", "12:00", 0), ("b", "12:00", 0)))) == [("a", "None"), ("b", "2")]
    assert see(tmp_path) == {"b"}
    assert hr.Store(str(tmp_path)).state("kept.held")._reader.expires_us(b"sb") is None


def test_a_ttl_that_comes_back_judges_what_it_finds_by_its_own_clock(tmp_path: Path) -> None:
    dying = KINDS["value"](ttl=hr.ttl("1h", clock="event"))
    with Version(tmp_path, dying) as old:
        old.epoch(("a", "12:00", 1), watermark="12:00")
        old.epoch(watermark="13:10")
    with Version(tmp_path, KINDS["value"]()) as new:
        new.epoch(("b", "13:20", 2), watermark="13:20")
        assert new.h._coordinator.state.manifest.ended_ttl == {"kept": {"held": hr.timestamp("2024-01-01T13:10")}}
    with Version(tmp_path, dying) as again:
        assert sorted(told(again.epoch(("a", "13:30", 0), ("b", "13:30", 0)))) == [("a", "None"), ("b", "2")]
        assert again.h._coordinator.state.manifest.ended_ttl == {}
