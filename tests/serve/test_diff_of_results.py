"""Epochs on both sides of a program that added, took out or renamed aggregates: what both tell is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import Harness
from tests.cli.calling import call_json


class Sale(hr.Record):
    shop: str
    at: hr.Timestamp
    cents: int


class Total(hr.Record):
    shop: str
    total: int


class Renamed(hr.Record):
    shop: str
    cents: int = hr.field(was="total")


def run(store: Path, hour: int, *sales: str, windows: bool, into: Any = None, **aggregates: Any) -> None:
    app = hr.App("shop")
    read = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    keyed = read.key_by(Sale.shop)
    step = keyed.window(hr.tumbling("24h")) if windows else keyed
    step.aggregate(*([] if into is None else [into]), **aggregates).named("kept").queryable()
    with Harness(app, store=store) as h:
        h.push(read, *(Sale(shop, hr.timestamp(f"2024-01-01T{hour:02}:00"), 5) for shop in sales))
        h.epoch()
        h.savepoint(f"at-{hour}")


@pytest.mark.parametrize("windows", [False, True], ids=["rolling", "windows"])
def test_an_aggregate_that_came_or_went_makes_no_key_differ(tmp_path: Path, windows: bool) -> None:
    run(tmp_path, 1, "a", "b", windows=windows, total=hr.sum("cents"), most=hr.max("cents"))
    run(tmp_path, 2, "a", windows=windows, total=hr.sum("cents"), rows=hr.count())
    for first, second in (("at-1", "at-2"), ("at-2", "at-1")):
        found = hr.diff(f"{tmp_path}@{first}", f"{tmp_path}@{second}")
        [state] = found.states
        assert (state.changed, state.added, state.removed) == (1, 0, 0)
        assert "rows on the" in state.note and "most on the" in state.note
        [key] = list(found)
        assert key.key == "a" and "rows" not in str(key.before) + str(key.after)
    run(tmp_path, 3, windows=windows, total=hr.sum("cents"), rows=hr.count(), few=hr.count(where="cents < 5"))
    told = call_json("diff", f"{tmp_path}@at-2", f"{tmp_path}@at-3")
    assert told["same"] and "not compared: few on the second side only" in told["states"][0]["note"]


def test_an_aggregate_that_was_renamed_is_held_against_itself(tmp_path: Path) -> None:
    run(tmp_path, 1, "a", "b", windows=False, into=Total, total=hr.sum("cents"))
    run(tmp_path, 2, "a", windows=False, into=Renamed, cents=hr.sum("cents"))
    for first, second, change in (("at-1", "at-2", (5, 10)), ("at-2", "at-1", (10, 5))):
        [key] = list(hr.diff(f"{tmp_path}@{first}", f"{tmp_path}@{second}"))
        sums = [next(each for each in row.values() if isinstance(each, int)) for row in (key.before, key.after)]
        assert (key.key, *sums) == ("a", *change)


@pytest.mark.parametrize("windows", [False, True], ids=["rolling", "windows"])
def test_readers_find_an_aggregate_under_its_new_name_before_anything_is_rewritten(
    tmp_path: Path, windows: bool
) -> None:
    def run_again(kind: Any, hour: int, *shops: str, **aggregates: Any) -> None:
        app = hr.App("shop")
        sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
        keyed = sales.key_by(Sale.shop)
        # Windows that fire for every row are kept one by one, not in columns.
        step = keyed.window(hr.tumbling("24h"), fire=hr.per_row()) if windows else keyed
        step.aggregate(kind, **aggregates).named("kept").queryable()
        with Harness(app, store=tmp_path) as h:
            h.push(sales, *(Sale(shop, hr.timestamp(f"2024-01-01T{hour:02}:00"), 5) for shop in shops))
            h.epoch()

    run_again(Total, 1, "a", "b", total=hr.sum("cents"))
    run_again(Renamed, 2, "a", cents=hr.sum("cents"))
    view = hr.Store(tmp_path).state("kept")
    assert (view["a"]["cents"], view["b"]["cents"]) == (10, 5)
    assert hr.Store(tmp_path).state("kept", Renamed)["b"].cents == 5
