"""Outputs of one row per key that a rewind brings back by what the state said: no former row was kept anywhere."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace as hr
from headrace.errors import Fenced, Refused
from headrace.model import crash
from headrace.state import layout
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.checkpoint.keyed_table import KeyedTable


class Sale(hr.Record):
    shop: str
    cents: int = 1
    region: str = "north"


class Total(hr.Record):
    shop: str
    cents: int
    region: str = "north"


class Program(NamedTuple):
    app: hr.App
    sales: Any
    totals: Any


def totalling(table: KeyedTable, *, above: int | None = None, doubled: bool = False) -> Program:
    app = hr.App("sales")
    sales = app.read("sales", hr.source.items([]), Sale)
    totals = sales.key_by(Sale.shop).aggregate(Total, cents=hr.sum("cents"), region=hr.last("region")).named("totals")
    shown = totals if above is None else totals.where(f"cents >= {above}")
    if doubled:
        shown = shown.with_columns(cents="cents * 2")
    shown.write(table, name="table")
    return Program(app, sales, totals)


def regions(table: KeyedTable) -> Program:
    """A step whose groups go when their last row does."""
    app = hr.App("sales")
    sales = app.read("sales", hr.source.items([]), Sale)
    totals = sales.key_by(Sale.shop).aggregate(Total, cents=hr.sum("cents"), region=hr.last("region")).named("totals")
    by_region = totals.key_by(Total.region).aggregate(shops=hr.count(), cents=hr.sum("cents")).named("regions")
    by_region.write(table, name="table")
    return Program(app, sales, by_region)


def shown(table: KeyedTable) -> dict[str, int]:
    return {key: row.cents for key, row in table.rows.items()}


def sell(h: Harness, program: Program, *sales: Sale) -> None:
    h.push(program.sales, *sales)
    h.epoch()


def test_changed_keys_get_their_row_back_and_new_ones_go(tmp_path: Path) -> None:
    table = KeyedTable("shop")
    program = totalling(table)
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        sell(h, program, Sale("a", 1), Sale("b", 2), Sale("same", 3))
        h.savepoint("before")
        sell(h, program, Sale("a", 10), Sale("new", 5))
        sell(h, program, Sale("b", 20), Sale("new", 5))
        assert shown(table) == {"a": 11, "b": 22, "same": 3, "new": 10}
        h.rewind("before")
        assert shown(table) == {"a": 1, "b": 2, "same": 3}
        assert table.releases[-1] == (1, 0, 3), "only what differs is written, as an epoch of the new timeline"
        h.epoch()
        assert shown(table) == {"a": 11, "b": 22, "same": 3, "new": 10}
        assert layout.RESTATED not in LocalStore(tmp_path).list("")


def test_a_condition_behind_the_step_decides_for_what_goes_and_what_comes() -> None:
    table = KeyedTable("shop")
    program = totalling(table, above=10, doubled=True)
    with Harness(program.app, sinks=True) as h:
        sell(h, program, Sale("above", 10), Sale("below", 9), Sale("falls", 20))
        h.savepoint("before")
        sell(h, program, Sale("above", 1), Sale("below", 1), Sale("falls", -15), Sale("new", 30))
        assert shown(table) == {"above": 22, "below": 20, "new": 60}
        h.rewind("before")
        assert shown(table) == {"above": 20, "falls": 40}


def test_groups_that_were_gone_come_back_and_those_that_came_go() -> None:
    table = KeyedTable("region")
    program = regions(table)
    with Harness(program.app, sinks=True) as h:
        sell(h, program, Sale("a", 1, "north"), Sale("b", 2, "south"))
        h.savepoint("before")
        sell(h, program, Sale("b", 3, "west"))
        assert shown(table) == {"north": 1, "west": 5}
        h.maintain()
        h.rewind("before")
        assert shown(table) == {"north": 1, "south": 2}
        h.epoch()
        assert shown(table) == {"north": 1, "west": 5}


@pytest.mark.parametrize("point", [*(each for each in crash.POINTS if each.startswith("rewind_")), "between_files"])
@pytest.mark.parametrize("late", [False, True], ids=["released", "unreleased"])
def test_whatever_dies_on_the_way_the_target_is_what_it_was(point: str, late: bool, tmp_path: Path) -> None:
    table = KeyedTable("shop")
    program = totalling(table)

    def strike(reached: str, epoch: int) -> None:
        if reached == point:
            raise crash.Crash(point)

    with Harness(program.app, store=tmp_path, sinks=True) as h:
        sell(h, program, Sale("a", 1), Sale("b", 2))
        h.savepoint("before")
        sell(h, program, Sale("a", 10), Sale("new", 5))
        h.push(program.sales, Sale("a", 100), Sale("newer", 5))
        if late:
            # The last epoch is true, and nothing of it is out when the job goes back.
            with pytest.raises(crash.Crash), crash.planned(_at("published")):
                h.epoch()
        else:
            h.epoch()
    sealed = True
    try:
        with crash.planned(strike):
            Harness(program.app, store=tmp_path, sinks=True, start_from="before").close()
    except crash.Crash:
        sealed = point not in ("rewind_proved", "rewind_staged")
    with Harness(program.app, store=tmp_path, sinks=True, start_from="" if sealed else "before"):
        assert shown(table) == {"a": 1, "b": 2}
        assert layout.RESTATED not in LocalStore(tmp_path).list("")


def _at(point: str) -> Any:
    def strike(reached: str, epoch: int) -> None:
        if reached == point:
            raise crash.Crash(point)

    return strike


def test_a_driver_of_the_abandoned_timeline_changes_nothing_any_more(tmp_path: Path) -> None:
    table = KeyedTable("shop")
    program = totalling(table)
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        sell(h, program, Sale("a", 1))
        sell(h, program, Sale("a", 10))
        newest = h._coordinator.state
        assert newest is not None
        h.rewind(0)
        with pytest.raises(Fenced):
            h._coordinator.releaser.release(newest.manifest)


def test_going_back_twice_counts_what_both_timelines_wrote() -> None:
    table = KeyedTable("shop")
    program = totalling(table)
    with Harness(program.app, sinks=True) as h:
        sell(h, program, Sale("a", 1))
        sell(h, program, Sale("b", 1))
        sell(h, program, Sale("c", 1))
        h.rewind(1)
        assert shown(table) == {"a": 1, "b": 1}
        h.epoch()
        sell(h, program, Sale("d", 1))
        h.rewind(0)
        assert shown(table) == {"a": 1}
        h.epoch()
        assert shown(table) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_what_a_rewind_before_held_is_taken_back_too() -> None:
    table = KeyedTable("shop")
    program = totalling(table)
    with Harness(program.app, sinks=True) as h:
        sell(h, program, Sale("a", 1))
        sell(h, program, Sale("b", 1))
        sell(h, program, Sale("c", 1))
        h.rewind(1, hold="table")
        assert shown(table) == {"a": 1, "b": 1, "c": 1}
        h.rewind(0)
        assert shown(table) == {"a": 1}


def test_an_edit_is_undone_out_there_too() -> None:
    table = KeyedTable("shop")
    program = totalling(table)
    with Harness(program.app, sinks=True) as h:
        sell(h, program, Sale("a", 1), Sale("b", 1))
        with h.edit() as edit:
            edit.patch("totals", "a", {"cents": 1000})
        sell(h, program, Sale("a", 1))
        assert shown(table) == {"a": 1001, "b": 1}
        h.rewind(0)
        assert shown(table) == {"a": 1, "b": 1}


def test_keys_that_were_deleted_by_hand_are_in_no_state_so_nobody_knows_their_rows() -> None:
    table = KeyedTable("shop")
    program = totalling(table)
    with Harness(program.app, sinks=True) as h:
        sell(h, program, Sale("a", 1))
        sell(h, program, Sale("b", 1))
        with h.edit() as edit:
            edit.delete("totals", "b")
        with pytest.raises(Refused, match="keys of totals were deleted by hand in epoch 2"):
            h.rewind(0)
        assert shown(table) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda sales, table: sales.write(table, name="table"), "rows that its target does not find by the unique key"),
        (
            lambda sales, table: (
                sales.key_by(Sale.region)
                .aggregate(Total, cents=hr.sum("cents"), shop=hr.last("shop"))
                .named("by_region")
                .write(table, name="table")
            ),
            "rows that are kept by the key of the target, of which the newest is shown",
        ),
    ],
    ids=["append", "another key"],
)
def test_what_no_state_knows_is_held_or_refused(build: Any, why: str) -> None:
    table = KeyedTable("shop")
    app = hr.App("sales")
    sales = app.read("sales", hr.source.items([]), Sale)
    build(sales, table)
    with Harness(app, sinks=True) as h:
        for _ in range(2):
            h.push(sales, Sale("a", 1))
            h.epoch()
        with pytest.raises(Refused, match=why):
            h.rewind(0)
        with pytest.raises(Refused, match=why):
            h.rewind(0, repeat="table")
        h.rewind(0, hold="table")


@pytest.mark.parametrize("seed", range(6))
def test_the_target_is_always_what_the_rows_up_to_the_epoch_come_to(seed: int, tmp_path: Path) -> None:
    """Random epochs, folds, restarts and rewinds, over a step whose groups come and go."""
    rng = random.Random(seed)
    table = KeyedTable("region")
    program = regions(table)
    read: list[list[Sale]] = []
    with Harness(program.app, store=tmp_path, sinks=True, parallelism=2) as h:
        for _ in range(14):
            if h.published > 1 and rng.random() < 0.35:
                to = rng.randrange(max(0, h.published - 2), h.published)
                h.rewind(to, again=True)
                again = [sale for sales in read[to + 1 :] for sale in sales]
                del read[to + 1 :]
                assert shown(table) == expected(read), f"seed {seed}"
                read.append(again)
                h.epoch()
            elif rng.random() < 0.2:
                h.maintain()
            else:
                fresh = [
                    Sale(rng.choice("abcd"), rng.randint(1, 9), rng.choice("xyz")) for _ in range(rng.randint(0, 3))
                ]
                read.append(fresh)
                sell(h, program, *fresh)
            assert shown(table) == expected(read), f"seed {seed}"


def expected(read: list[list[Sale]]) -> dict[str, int]:
    totals: dict[str, tuple[str, int]] = {}
    for sales in read:
        for sale in sales:
            totals[sale.shop] = (sale.region, totals.get(sale.shop, ("", 0))[1] + sale.cents)
    sums: dict[str, int] = {}
    for region, cents in totals.values():
        sums[region] = sums.get(region, 0) + cents
    return sums
