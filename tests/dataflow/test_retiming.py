"""``timed_by=``: rows get another event time where the program proves that none becomes earlier."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ExpressionError, ProgramError
from headrace.testing import Harness

MINUTE = 60_000_000


class Order(hr.Record):
    shop: str
    at: hr.Timestamp
    due: hr.Timestamp | None = None
    n: int = 1


def minute(number: int) -> hr.Timestamp:
    return hr.Timestamp(number * MINUTE)


def program(**read: Any) -> tuple[hr.App, hr.Stream[Order]]:
    app = hr.App("orders")
    return app, app.read("orders", hr.source.items([]), Order, **{"time": Order.at, **read})


PROVED = {
    "the time itself": lambda rows: rows.with_columns(timed_by="at"),
    "a span added": lambda rows: rows.with_columns(timed_by="at + interval 30 minutes"),
    "months": lambda rows: rows.with_columns(timed_by="at + interval 1 month"),
    "a span of nothing": lambda rows: rows.with_columns(timed_by="at + interval 0 seconds"),
    "the greatest of several": lambda rows: rows.with_columns(timed_by="greatest(due, at)"),
    "the first that there is": lambda rows: rows.with_columns(timed_by="coalesce(at + interval 1 day, at)"),
    "a column made of it": lambda rows: rows.select("shop", later="greatest(at, due) + interval 1 hour").where(
        "shop <> 'x'"
    ).select("shop", done="later", timed_by="done"),
    "twice": lambda rows: rows.with_columns(ready="at + interval 1 hour", timed_by="ready").with_columns(
        timed_by="ready + interval 1 hour"
    ),
    "the newest of each key": lambda rows: rows.key_by("shop").latest().named("newest").with_columns(timed_by="at"),
    "the end of a window": lambda rows: rows.key_by("shop").window(hr.tumbling("1h")).aggregate(n=hr.count()).named(
        "hours"
    ).with_columns(timed_by="window_end"),
    "both sides of a union": lambda rows: rows.where("n > 1").union(rows.where("n < 1")).with_columns(timed_by="at"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVED)
def test_a_time_that_is_not_before_that_of_its_row_is_taken(name: str) -> None:
    app, orders = program()
    PROVED[name](orders).show()
    assert "timed by" in app.explain()


REFUSED = {
    "another column": lambda rows: rows.with_columns(timed_by="due"),
    "a span taken away": lambda rows: rows.with_columns(timed_by="at - interval 1 minute"),
    "a negative span": lambda rows: rows.with_columns(timed_by="at + interval '-1' minute"),
    "the least of several": lambda rows: rows.with_columns(timed_by="least(at, due)"),
    "cut to the hour": lambda rows: rows.with_columns(timed_by="date_trunc('hour', at)"),
    "one of two": lambda rows: rows.with_columns(timed_by="coalesce(due, at)"),
    "behind a function": lambda rows: rows.map(lambda row: row, output=Order).with_columns(timed_by="at"),
    "a column that was put in its place": lambda rows: rows.with_columns(Order, at="due").with_columns(timed_by="at"),
    "the old time behind a new one": lambda rows: rows.with_columns(
        ready="at + interval 1 hour", timed_by="ready"
    ).with_columns(timed_by="at"),
    "the start of a window": lambda rows: rows.key_by("shop").window(hr.tumbling("1h")).aggregate(
        n=hr.count()
    ).with_columns(timed_by="window_start"),
    "a total that is a time": lambda rows: rows.key_by("shop").aggregate(at=hr.min("at")).with_columns(timed_by="at"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_time_that_may_be_earlier_is_refused_with_the_way_out(name: str) -> None:
    _, orders = program()
    with pytest.raises(ProgramError, match="may become earlier") as refused:
        REFUSED[name](orders)
    assert "test_retiming.py:" in refused.value.where
    assert "out_of_order=" in refused.value.next_move


def test_what_is_no_time_or_has_none_is_refused() -> None:
    _, orders = program()
    with pytest.raises(ProgramError, match="takes a time"):
        orders.with_columns(timed_by="n")
    with pytest.raises((ProgramError, ExpressionError), match="no column 'dew'"):
        orders.with_columns(timed_by="dew")
    _, untimed = program(time=None)
    with pytest.raises(ProgramError, match="these have none"):
        untimed.with_columns(timed_by="at")


@pytest.mark.parametrize("seed", range(4))
def test_windows_put_rows_where_their_new_time_is_and_none_is_late_that_was_in_time(seed: int) -> None:
    rng = random.Random(seed)
    app, orders = program(out_of_order="10m")
    ready = orders.with_columns(ready="greatest(at + interval 7 minutes, due)", timed_by="ready")
    out = ready.key_by("shop").window(hr.tumbling("10m")).aggregate(n=hr.sum("n")).named("sums")
    late = out.late
    late.show()
    wanted: Counter[Any] = Counter()
    newest = 0
    with Harness(app, parallelism=1 + 2 * (seed % 2)) as h:
        for _ in range(6):
            for _ in range(rng.randrange(6)):
                at = max(0, newest + rng.randrange(-8, 12))
                newest = max(newest, at)
                due = rng.choice([None, at - 30, at + rng.randrange(60)])
                row = Order(rng.choice("xy"), minute(at), None if due is None else minute(due), rng.randrange(1, 9))
                h.push(orders, row)
                wanted[row.shop, max(at + 7, at if due is None else due) // 10 * 10] += row.n
            if rng.random() < 0.3:
                h.crash(at="before_publish")
            h.epoch()
        h.epoch(watermark=minute(10**4))
        found = Counter({(row.shop, row.window_start // MINUTE): row.n for row in h.take(out)})
        assert found == wanted
        assert not h.take(late)


def test_what_is_taken_back_has_the_time_that_it_had_when_it_came() -> None:
    app, orders = program()
    newest = orders.key_by("shop").latest().named("newest").with_columns(timed_by="at + interval 1 hour")
    sums = newest.key_by("n").window(hr.tumbling("1h")).aggregate(rows=hr.count()).named("hours")
    sums.show()
    with Harness(app) as h:
        h.push(orders, Order("x", minute(5), n=1), Order("y", minute(6), n=1))
        h.epoch()
        h.push(orders, Order("x", minute(9), n=2))
        h.epoch(watermark=minute(1000))
        assert sorted((row.n, row.rows, row.window_start // MINUTE) for row in h.take(sums)) == [(1, 1, 60), (2, 1, 60)]
