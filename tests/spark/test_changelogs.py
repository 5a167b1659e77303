"""Rows that come and go on real Spark: joined, put into order, put into windows, and written by another key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

pytestmark = pytest.mark.spark


class Order(hr.Record):
    id: int
    at: hr.Timestamp
    customer: str
    cents: int


class Customer(hr.Record):
    name: str
    city: str


MINUTE = 60_000_000


def test_joins_first_rows_windows_and_sinks_by_other_keys_come_to_what_the_newest_rows_say(
    tmp_path: Path, spark: Any
) -> None:
    app = hr.App("shop")
    rows = [Order(i % 7, hr.Timestamp(i * MINUTE), "abc"[i % 3], (i * 37) % 100 - 20) for i in range(60)]
    people = [Customer("abc"[i % 3], ["rome", "oslo", "bern", "wien"][i % 4]) for i in range(11)]
    orders = app.read("orders", hr.source.items(rows), Order, time=Order.at)
    customers = app.read("customers", hr.source.items(people), Customer)
    newest = orders.key_by("id").latest().named("newest")
    named = customers.key_by("name").latest().named("named")
    pairs = newest.where("cents > 0").key_by("customer").join(
        named.key_by("name"), within=None, how="left", on="left.cents < 70"
    ).named("pairs")  # fmt: skip
    lines = pairs.select(id="left.id", cents="left.cents", city="right.city")
    seen: dict[str, list[tuple[str, Any]]] = {"best": [], "lines": [], "windows": []}
    lines.key_by("city").top(1, by="-cents").named("best").write(
        hr.sink.call(lambda rows, epoch: seen["best"].extend(rows), kinds=True)
    )
    lines.write(hr.sink.call(lambda rows, epoch: seen["lines"].extend(rows), kinds=True))
    lines.write(hr.sink.delta(str(tmp_path / "lines"), key="id"))
    windows = newest.key_by("customer").window(hr.tumbling("20m")).aggregate(n=hr.count()).named("windows")
    windows.write(hr.sink.call(lambda rows, epoch: seen["windows"].extend(rows), kinds=True))
    app.run(until="drained", store=str(tmp_path / "store"), spark=spark, parallelism=2)

    last = {row.id: row for row in rows}
    cities = {person.name: person.city for person in people}
    wanted = {
        order.id: (order.cents, cities[order.customer] if order.cents < 70 else None)
        for order in last.values()
        if order.cents > 0
    }
    held = folded(seen["lines"])
    assert held == Counter((id, cents, city) for id, (cents, city) in wanted.items())
    best = Counter(
        (max(c for c, of in wanted.values() if of == city), city) for city in {of for _, of in wanted.values()}
    )
    assert Counter((cents, city) for _, cents, city in folded(seen["best"])) == best
    import deltalake

    table = deltalake.DeltaTable(str(tmp_path / "lines")).to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["cents"], row["city"]) for row in table} == wanted
    per_window = Counter((order.customer, order.at // (20 * MINUTE)) for order in last.values())
    assert (
        Counter({(row.customer, row.window_start // (20 * MINUTE)): row.n for _, row in seen["windows"]}) == per_window
    )


def folded(changes: list[tuple[str, Any]]) -> Counter[Any]:
    held: Counter[Any] = Counter()
    for sign, row in changes:
        held[row.id, row.cents, row.city] += -1 if sign.startswith("-") else 1
    return +held
