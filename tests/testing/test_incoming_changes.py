"""Changes of tables that come from outside: Debezium's envelope and rows that replace each other by key."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError, ProgramError
from headrace.testing import Harness
from tests.testing.test_changelogs import check_pairs


class Order(hr.Record):
    id: int
    shop: str
    cents: int


class OrderKey(hr.Record):
    id: int


class Change(hr.Record):
    before: OrderKey | None = None
    after: Order | None = None
    op: str | None = None


class Program:
    def __init__(self, changed: Any = Change) -> None:
        self.app = hr.App("shop")
        self.changes: hr.Stream[Any] = self.app.read("changes", hr.source.items([]), changed)
        self.orders = self.changes.debezium(Order, key="id").named("orders")
        self.shops = self.orders.key_by("shop").aggregate(n=hr.count(), cents=hr.sum("cents")).named("shops")


def came(id: int, shop: str, cents: int, op: str = "c", before: int | None = None) -> Change:
    return Change(None if before is None else OrderKey(before), Order(id, shop, cents), op)


@pytest.mark.parametrize("seed", range(6))
def test_changes_of_a_table_come_to_its_rows_however_often_they_come(seed: int) -> None:
    rng = random.Random(seed)
    program, table = Program(), dict[int, Order]()
    orders, totals = list[Any](), Counter[Any]()
    with Harness(program.app, parallelism=1 + 2 * (seed % 2)) as h:
        for _ in range(6):
            made: list[Change] = []
            for _ in range(rng.randrange(6)):
                id, shop, cents = rng.randrange(5), rng.choice("xy"), rng.randrange(9)
                if id in table and rng.random() < 0.4:
                    del table[id]
                    made += [Change(OrderKey(id), None, "d"), Change()]
                elif id in table and rng.random() < 0.3 and id + 10 not in table:
                    # The primary key itself has changed.
                    del table[id]
                    table[id + 10] = Order(id + 10, shop, cents)
                    made.append(came(id + 10, shop, cents, "u", id))
                else:
                    op = rng.choice("cru")
                    table[id] = Order(id, shop, cents)
                    made.append(came(id, shop, cents, op, id if op == "u" and rng.random() < 0.5 else None))
            if rng.random() < 0.3:
                made += made[-1:]
            h.push(program.changes, *made)
            if rng.random() < 0.3:
                h.crash(at="before_publish")
            h.epoch()
            orders += h.take_changes(program.orders)
            for sign, row in h.take_changes(program.shops):
                totals[row.shop, row.n, row.cents] += -1 if sign.startswith("-") else 1
            wanted = Counter[Any]()
            for shop in {order.shop for order in table.values()}:
                mine = [order.cents for order in table.values() if order.shop == shop]
                wanted[shop, len(mine), sum(mine)] += 1
            assert +totals == wanted
    by_id: dict[int, list[Any]] = {}
    for sign, row in orders:
        by_id.setdefault(row.id, []).append((sign, row))
    for changes in by_id.values():
        check_pairs(changes, lambda row: row.id)


REFUSED: dict[str, tuple[Change, str]] = {
    "truncation": (Change(op="t"), "a truncation"),
    "unknown": (Change(op="x"), "none of c, r, u and d"),
    "no row after": (Change(op="c"), "without `after`"),
    "no row before": (Change(op="d"), "without `before`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_changes_that_cannot_be_applied_stop_the_job_with_the_way_out(name: str) -> None:
    program = Program()
    program.orders.show()
    change, words = REFUSED[name]
    with Harness(program.app) as h:
        h.push(program.changes, came(1, "x", 5), change)
        with pytest.raises(HeadraceError) as stopped:
            h.epoch()
    assert words in str(stopped.value)


class Flat(hr.Record):
    id: int


class NoKey(hr.Record):
    before: Flat | None
    after: Order | None
    op: str | None


class NoOp(hr.Record):
    before: Order | None
    after: Order | None


WRONG: dict[str, tuple[Callable[[hr.App], Any], str]] = {
    "no operation": (lambda app: app.read("x", hr.source.items([]), NoOp).debezium(Order, key="id"), "before, after"),
    "another type": (lambda app: app.read("x", hr.source.items([]), Change).debezium(Flat, key="id"), "before, after"),
    "no key": (lambda app: app.read("x", hr.source.items([]), Change).debezium(Order, key=[]), "a primary key"),
    "key that is not before": (
        lambda app: app.read("x", hr.source.items([]), NoKey).debezium(Order, key=["id", "shop"]), "no column 'shop'",
    ),
    "function": (
        lambda app: app.read("x", hr.source.items([]), Order).key_by(lambda row: row.id).upserts(),
        "which row replaces",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_streams_that_are_no_changes_are_refused(name: str) -> None:
    build, words = WRONG[name]
    with pytest.raises(ProgramError, match=words) as caught:
        build(hr.App("shop"))
    assert caught.value.expected and "test_incoming_changes.py:" in caught.value.where


def test_rows_that_replace_each_other_by_key_go_where_a_row_says_so() -> None:
    app = hr.App("shop")
    rows = app.read("rows", hr.source.items([]), Order)
    orders = rows.key_by("id").upserts(deleted="cents < 0").named("orders")
    orders.show()
    assert str(orders.node.kind) == "changelog by id"
    assert "which goes where cents < 0" in app.explain()
    with Harness(app) as h:
        h.push(rows, Order(1, "x", 5), Order(2, "x", 7), Order(1, "x", 6))
        h.epoch()
        h.push(rows, Order(1, "", -1), Order(3, "", -1))
        h.epoch()
        said = h.take_changes(orders)
    assert sorted(said[:2], key=lambda each: each[1].id) == [("+I", Order(1, "x", 6)), ("+I", Order(2, "x", 7))]
    assert said[2:] == [("-D", Order(1, "x", 6))]
