"""``top`` in programs: over facts and over rows that replace each other; what it refuses and what it says of itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError
from headrace.testing import Harness
from tests.testing.test_changelogs import check_pairs


class Sale(hr.Record):
    item: str
    shop: str
    cents: int


class Program:
    def __init__(self) -> None:
        self.app = hr.App("shop")
        self.sales = self.app.read("sales", hr.source.items([]), Sale)
        self.items = self.sales.key_by("item", "shop").aggregate(cents=hr.sum("cents")).named("items")
        self.best = self.items.key_by("shop").top(2, by=["-cents", "item"], rank="place").named("best")


@pytest.mark.parametrize("seed", range(4))
def test_the_first_of_rows_that_replace_each_other_are_the_first_of_the_newest(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    program = Program()
    totals: Counter[tuple[str, str]] = Counter()
    changes = []
    with Harness(program.app, parallelism=1 + 2 * (seed % 2)) as h:
        for _ in range(6):
            for _ in range(rng.randrange(8)):
                sale = Sale(rng.choice("wxyz"), rng.choice(["north", "south"]), rng.randrange(-9, 20))
                totals[sale.shop, sale.item] += sale.cents
                h.push(program.sales, sale)
            if rng.random() < 0.3:
                h.crash(at="before_publish")
            h.epoch()
            changes += h.take_changes(program.best)
            held: Counter[Any] = Counter()
            for sign, row in changes:
                held[row.shop, row.place, row.item, row.cents] += -1 if sign.startswith("-") else 1
            wanted = Counter[Any]()
            for shop in {shop for shop, _ in totals}:
                there = sorted((-cents, item) for (of, item), cents in totals.items() if of == shop)
                wanted.update((shop, place, item, -less) for place, (less, item) in enumerate(there[:2], 1))
            assert +held == wanted
    for place in (1, 2):
        for shop in ("north", "south"):
            check_pairs([each for each in changes if (each[1].shop, each[1].place) == (shop, place)], lambda row: 0)


def test_the_newest_row_of_each_key_is_the_first_by_time() -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale)
    newest = sales.key_by("item").top(1, by="-cents").named("newest")
    assert str(newest.node.kind) == "changelog by item"
    with Harness(app) as h:
        h.push(sales, Sale("a", "x", 1), Sale("a", "y", 5))
        h.epoch()
        h.push(sales, Sale("a", "z", 3))
        h.epoch()
        h.push(sales, Sale("a", "z", 9))
        h.epoch()
        said = [(sign, row.cents) for sign, row in h.take_changes(newest)]
    assert said == [("+I", 5), ("-U", 5), ("+U", 9)]


def test_first_rows_can_be_counted_and_joined() -> None:
    program = Program()
    places = program.best.key_by("item").aggregate(shops=hr.count(), cents=hr.sum("cents")).named("places")
    with Harness(program.app) as h:
        h.push(program.sales, Sale("w", "north", 5), Sale("x", "north", 4), Sale("y", "north", 3))
        h.epoch()
        h.push(program.sales, Sale("y", "north", 3))
        h.epoch()
        held: Counter[Any] = Counter()
        for sign, row in h.take_changes(places):
            held[row.item, row.shops, row.cents] += -1 if sign.startswith("-") else 1
    assert +held == Counter([("y", 1, 6), ("w", 1, 5)])


def test_explain_says_how_many_in_what_order_and_what_is_kept() -> None:
    program = Program()
    program.best.show()
    text = program.app.explain()
    assert "the first 2 by cents desc, item" in text
    assert "keeps all rows of a key, because the first may go" in text
    assert "changelog by shop, place" in text


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no column": (lambda keyed: keyed.top(2, by="-cent"), "top puts rows in order by their columns"),
    "an expression": (lambda keyed: keyed.top(2, by="cents + 1"), "top puts rows in order by their columns"),
    "none": (lambda keyed: keyed.top(0, by="cents"), "how many rows of each key"),
    "no order": (lambda keyed: keyed.top(2, by=[]), "which rows come first"),
    "rank": (lambda keyed: keyed.top(2, by="cents", rank="item"), "have a column 'item' already"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_refused_with_the_way_out(name: str) -> None:
    build, words = WRONG[name]
    with pytest.raises(ProgramError, match=words) as caught:
        build(Program().sales.key_by("shop"))
    assert caught.value.expected and caught.value.found and "test_top_rows.py:" in caught.value.where
