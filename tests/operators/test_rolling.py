"""reduce, latest and aggregate: what is kept, what is given out, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.aggregates import declare as agg
from headrace.dataflow.aggregation import aggregate_codec
from headrace.dataflow.graph import KeySpec
from headrace.dataflow.site import call_site
from headrace.errors import FunctionFailed
from headrace.model.rows import codec_of
from headrace.operators.rolling import AggregateOperator, LatestOperator, ReduceOperator
from headrace.testing import Harness
from tests.effort import examples
from tests.operators.rig import Rig, Row, values


class Sale(hr.Record):
    shop: str
    cents: int | None
    at: hr.Timestamp
    rate: float = 0.0
    item: str = ""
    price: Decimal = Decimal(0)


SALES = codec_of(Sale)


def sale(shop: str, cents: int | None = 1, at: int = 0, **more: Any) -> Sale:
    return Sale(shop, cents, hr.Timestamp(at), **more)


def add(a: Sale, b: Sale) -> Sale:
    return a.replace(cents=(a.cents or 0) + (b.cents or 0))


def by_shop(row: Sale) -> str:
    return row.shop


# --- reduce


def test_reduce_gives_the_reduced_row_after_every_row_with_its_time() -> None:
    rig = Rig(ReduceOperator("step", add, SALES), SALES, by_shop)
    assert rig.epoch([sale("a", 1, 5), sale("b", 7, 6), sale("a", 2, 7)]) == [
        Row(sale("a", 1, 5), 5),
        Row(sale("a", 3, 5), 7),
        Row(sale("b", 7, 6), 6),
    ]
    assert values(rig.epoch([sale("a", 10)])) == [sale("a", 13, 5)]


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_reduce_once_per_epoch_gives_each_changed_key_once(limit: int) -> None:
    operator = ReduceOperator("step", add, SALES, per_row=False)
    rig = Rig(operator, SALES, by_shop, overlay_limit_bytes=limit)
    out = rig.epoch([sale("a", 1, 5), sale("b", 1, 6)], [sale("a", 2, 3)], [sale("c", 1, 9)], [sale("a", 4, 4)])
    assert sorted(out, key=lambda row: row.value.shop) == [
        Row(sale("a", 7, 5), 5),
        Row(sale("b", 1, 6), 6),
        Row(sale("c", 1, 9), 9),
    ]
    assert values(rig.epoch([sale("b", 1, 2)])) == [sale("b", 2, 6)]
    assert rig.epoch() == []
    assert (rig.spills > 0) == (limit == 1)


def test_a_failing_reduce_keeps_what_it_had() -> None:
    def picky(a: Sale, b: Sale) -> Sale:
        if b.cents == 13:
            raise ValueError("thirteen")
        return add(a, b)

    rig = Rig(ReduceOperator("step", picky, SALES, key_type=str), SALES, by_shop, outlets=["errors"])
    assert rig.epoch([sale("a", 1, 1), sale("a", 13, 2), sale("a", 2, 3)]) == [
        Row(sale("a", 1, 1), 1),
        Row(sale("a", 3, 1), 3),
    ]
    assert [(row.value.error, row.at) for row in rig.out["errors"]] == [("ValueError: thirteen", 2)]
    alone = Rig(ReduceOperator("step", picky, SALES, key_type=str), SALES, by_shop)
    with pytest.raises(FunctionFailed, match="picky raised ValueError") as caught:
        alone.epoch([sale("a", 1), sale("a", 13)])
    assert caught.value.failure.key == "a"


@pytest.mark.parametrize("per_row", [True, False])
def test_a_reduce_that_changes_the_key_is_refused_with_key_and_row(per_row: bool) -> None:
    def moves(a: Sale, b: Sale) -> Sale:
        return b.replace(shop="elsewhere") if b.cents == 13 else add(a, b)

    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    by_shop = sales.key_by(Sale.shop)
    moved = by_shop.reduce(moves, fire=None if per_row else hr.per_epoch()).named("moved")
    moved.show()
    with Harness(app) as h:
        h.push(sales, sale("a", 1), sale("a", 2))
        h.epoch()
        h.push(sales, sale("b", 1), sale("a", 13))
        with pytest.raises(
            FunctionFailed, match="reduce must leave the key as it is, and shop became 'elsewhere'"
        ) as c:
            h.epoch()
    assert c.value.where == "step moved"
    assert "key a" in c.value.found


def test_a_reduce_by_a_key_that_is_no_number_is_none_that_changes_it() -> None:
    class Reading(hr.Record):
        real: float
        n: int
        at: hr.Timestamp = hr.Timestamp(0)

    operator = ReduceOperator(
        "step", lambda a, b: Reading(math.nan, a.n + b.n), codec_of(Reading), key_columns=["real"]
    )
    rig = Rig(operator, codec_of(Reading), lambda row: row.real)
    assert values(rig.epoch([Reading(math.nan, 1), Reading(math.nan, 2)]))[-1].n == 3


# --- latest


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_latest_gives_the_newest_row_of_each_changed_key_once_per_epoch(limit: int) -> None:
    rig = Rig(LatestOperator("step", SALES), SALES, by_shop, overlay_limit_bytes=limit)
    out = rig.epoch([sale("a", 1, 5), sale("a", 2, 9), sale("b", 3, 1)], [sale("a", 4, 7)])
    assert sorted(out, key=lambda row: row.value.shop) == [
        Row(sale("a", 2, 9), 9),
        Row(sale("b", 3, 1), 1),
    ]
    assert rig.epoch([sale("a", 5, 8)]) == []  # Older than what is kept.
    assert rig.epoch([sale("a", 6, 9)]) == [Row(sale("a", 6, 9), 9)]  # Of two equally new, the later to come.


def test_latest_without_time_is_the_last_to_come() -> None:
    rig = Rig(LatestOperator("step", SALES), SALES, by_shop, timed=False)
    assert rig.epoch([sale("a", 1, 5), sale("a", 2, 3)]) == [Row(sale("a", 2, 3), None)]
    assert rig.epoch([sale("a", 3, 1)]) == [Row(sale("a", 3, 1), None)]


# --- aggregate


def rig_of(aggs: dict[str, hr.types.Agg[Any]], into: Any = None, *, per_row: bool = False, **options: Any) -> Rig:
    key = KeySpec(("shop",), None, str)
    out = aggregate_codec(SALES, key, into, aggs, call_site())
    operator = AggregateOperator("step", aggs, SALES, out, key_fields=("shop",), key_type=str, per_row=per_row)
    return Rig(operator, SALES, by_shop, **options)


def results(rig: Rig, *batches: Sequence[Sale]) -> dict[str, tuple[Any, ...]]:
    out = rig.epoch(*batches)
    names = list(rig.operator.codec.names)[1:]  # type: ignore[attr-defined]
    return {row.value.shop: tuple(getattr(row.value, name) for name in names) for row in out}


def test_aggregate_gives_each_changed_key_once_with_the_time_of_its_newest_row() -> None:
    rig = rig_of({"n": agg.count(), "total": agg.sum("cents")})
    out = rig.epoch([sale("a", 1, 5), sale("b", 2, 6), sale("a", 3, 4)], [sale("a", 5, 9)])
    assert [(row.value.shop, row.value.n, row.value.total, row.at) for row in out] == [("a", 3, 9, 9), ("b", 1, 2, 6)]
    assert results(rig, [sale("b", 10, 7)]) == {"b": (2, 12)}
    assert rig.epoch() == []


def test_nulls_and_rows_outside_the_condition_are_left_out() -> None:
    aggs = {
        "n": agg.count(where="cents > 1"),
        "total": agg.sum("cents", where="cents > 1"),
        "mean": agg.avg("cents"),
        "least": agg.min("cents"),
        "all": agg.collect("cents"),
        "kinds": agg.count_distinct("cents"),
    }
    rig = rig_of(aggs)
    assert results(rig, [sale("a", None), sale("b", 1), sale("b", None), sale("b", 4)]) == {
        "a": (0, 0, None, None, [], 0),
        "b": (1, 4, 2.5, 1, [1, 4], 2),
    }


def test_a_column_may_be_an_expression() -> None:
    rig = rig_of({"double": agg.sum("cents * 2"), "shout": agg.max("upper(item)")})
    assert results(rig, [sale("a", 1, item="x"), sale("a", 2, item="y")]) == {"a": (6, "Y")}


def test_min_and_max_by_give_the_value_of_the_row_where_that_is_extreme() -> None:
    aggs = {"cheap": agg.min("item", by="cents"), "dear": agg.max("item", by="cents")}
    rig = rig_of(aggs)
    assert results(rig, [sale("a", 5, item="x"), sale("a", 2, item="y"), sale("a", 2, item="z")]) == {"a": ("y", "x")}
    assert results(rig, [sale("a", 2, item="later"), sale("a", 9, item="w")]) == {"a": ("y", "w")}


def test_first_and_last_go_by_time_then_by_arrival() -> None:
    aggs = {"first": agg.first("item"), "last": agg.last("item")}
    rig = rig_of(aggs)
    assert results(rig, [sale("a", at=5, item="x"), sale("a", at=3, item="y"), sale("a", at=5, item="z")]) == {
        "a": ("y", "z")
    }
    assert results(rig, [sale("a", at=4, item="mid")]) == {"a": ("y", "z")}
    assert results(rig, [sale("a", at=3, item="tie"), sale("a", at=6, item="new")]) == {"a": ("y", "new")}
    untimed = rig_of(aggs, timed=False)
    assert results(untimed, [sale("a", at=5, item="x"), sale("a", at=3, item="y")]) == {"a": ("x", "y")}
    assert results(untimed, [sale("a", at=1, item="z")]) == {"a": ("x", "z")}


def test_top_keeps_the_greatest_first_and_older_ones_among_equals() -> None:
    rig = rig_of({"best": agg.top("item", 2, by="cents"), "most": agg.top("cents", 3)})
    assert results(rig, [sale("a", 5, item="x"), sale("a", 9, item="y"), sale("a", 1, item="z")]) == {
        "a": (["y", "x"], [9, 5, 1])
    }
    assert results(rig, [sale("a", 9, item="w"), sale("a", 5, item="v")]) == {"a": (["y", "w"], [9, 9, 5])}


def test_sums_beyond_64_bits_on_the_way_are_exact() -> None:
    rig = rig_of({"total": agg.sum("cents")})
    assert results(rig, [sale("a", 2**62), sale("a", 2**62), sale("a", -(2**62))]) == {"a": (2**62,)}


def test_decimals_stay_exact() -> None:
    rig = rig_of({"total": agg.sum("price"), "mean": agg.avg("price")})
    rows = [sale("a", price=Decimal("0.1")), sale("a", price=Decimal("0.2"))]
    assert results(rig, rows) == {"a": (Decimal("0.3"), Decimal("0.15"))}


def test_not_a_number_is_the_greatest_number() -> None:
    rig = rig_of({"least": agg.min("rate"), "most": agg.max("rate")})
    assert results(rig, [sale("a", rate=math.nan), sale("a", rate=2.0)])["a"][0] == 2.0
    assert math.isnan(results(rig, [sale("a", rate=3.0)])["a"][1])


def test_a_quantile_is_within_a_percent() -> None:
    rig = rig_of({"median": agg.quantile("cents", 0.5), "high": agg.quantile("cents", 0.99)})
    found = results(rig, [sale("a", n) for n in range(-100, 400)], [sale("a", n) for n in range(400, 901)])
    assert found["a"] == (pytest.approx(400, rel=0.011), pytest.approx(890, rel=0.011))


class Mean(hr.Aggregator[Sale, tuple[int, int], float]):
    def zero(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, acc: tuple[int, int], x: Sale) -> tuple[int, int]:
        if x.cents == 13:
            raise ValueError("thirteen")
        return (acc[0] + (x.cents or 0), acc[1] + 1)

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return (a[0] + b[0], a[1] + b[1])

    def result(self, acc: tuple[int, int]) -> float:
        return acc[0] / max(acc[1], 1)


@pytest.mark.parametrize("per_row", [False, True])
def test_an_own_aggregator_stands_among_the_others(per_row: bool) -> None:
    rig = rig_of({"n": agg.count(), "mean": Mean()}, per_row=per_row)
    rig.epoch([sale("a", 2), sale("a", 4)])
    assert results(rig, [sale("a", 9)]) == {"a": (3, 5.0)}


@pytest.mark.parametrize("per_row", [False, True])
def test_a_row_that_an_own_aggregator_refuses_goes_to_errors(per_row: bool) -> None:
    rig = rig_of({"mean": Mean()}, per_row=per_row, outlets=["errors"])
    assert results(rig, [sale("a", 2), sale("a", 13, at=7), sale("a", 4)]) == {"a": (3.0,)}
    assert [row.at for row in rig.out["errors"]] == [7]
    with pytest.raises(FunctionFailed, match="Mean.add raised ValueError"):
        rig_of({"mean": Mean()}, per_row=per_row).epoch([sale("a", 13)])


def test_per_row_gives_a_result_after_every_row() -> None:
    rig = rig_of({"n": agg.count(), "total": agg.sum("cents", where="cents > 1")}, per_row=True)
    out = rig.epoch([sale("a", 1, 5), sale("a", 4, 3), sale("b", 2, 9)])
    assert [(row.value.shop, row.value.n, row.value.total, row.at) for row in out] == [
        ("a", 1, 0, 5),
        ("a", 2, 4, 3),
        ("b", 1, 2, 9),
    ]


def test_results_fit_a_type_of_the_users() -> None:
    class Best(hr.Record):
        total: float
        shop: str
        note: str = "-"

    rig = rig_of({"total": agg.sum("cents")}, Best)
    assert values(rig.epoch([sale("a", 3)])) == [Best(3.0, "a", "-")]


def test_an_aggregate_added_later_starts_from_nothing_and_others_go_on() -> None:
    before = rig_of({"n": agg.count(), "gone": agg.max("cents")})
    before.epoch([sale("a", 5), sale("a", 6)])
    after = rig_of({"total": agg.sum("cents"), "n": agg.count()})
    after.runs, after.epoch_number = before.runs, 1
    assert results(after, [sale("a", 7)]) == {"a": (7, 3)}


def test_a_composite_key_comes_back_part_by_part() -> None:
    aggs = {"n": agg.count()}
    key = KeySpec(("shop", "item"), None, tuple[str, str])
    out = aggregate_codec(SALES, key, None, aggs, call_site())
    operator = AggregateOperator(
        "step", aggs, SALES, out, key_fields=("shop", "item"), key_type=tuple[str, str]
    )  # fmt: skip
    rig = Rig(operator, SALES, lambda row: (row.shop, row.item))
    [row] = values(rig.epoch([sale("a", item="x"), sale("a", item="x")]))
    assert (row.shop, row.item, row.n) == ("a", "x", 2)


ALL = {
    "n": agg.count(),
    "total": agg.sum("cents"),
    "mean": agg.avg("cents"),
    "least": agg.min("cents"),
    "most": agg.max("cents"),
    "some": agg.sum("cents", where="cents % 2 = 0"),
    "kinds": agg.count_distinct("cents"),
    "all": agg.collect("cents"),
    "best": agg.top("cents", 2),
    "by": agg.max("item", by="cents"),
    "first": agg.first("item"),
    "last": agg.last("item"),
}


def plain(rows: list[Sale]) -> tuple[Any, ...]:
    cents = [row.cents for row in rows if row.cents is not None]
    paid = [row for row in rows if row.cents is not None]
    timed = sorted(rows, key=lambda row: int(row.at))
    newest = max(int(row.at) for row in rows)
    greatest = max(cents, default=None)
    return (
        len(rows),
        sum(cents),
        sum(cents) / len(cents) if cents else None,
        min(cents, default=None),
        greatest,
        sum(n for n in cents if n % 2 == 0),
        len(set(cents)),
        cents,
        sorted(cents, reverse=True)[:2],
        next((row.item for row in paid if row.cents == greatest), None),
        timed[0].item,
        [row for row in rows if int(row.at) == newest][-1].item,
    )


sales = st.builds(
    lambda shop, cents, at, item: sale(shop, cents, at, item=item),
    st.sampled_from("abc"),
    st.none() | st.integers(-50, 50),
    st.integers(0, 5),
    st.text("xyz", max_size=3),
)


@settings(max_examples=examples(30))
@given(
    epochs=st.lists(st.lists(st.lists(sales, max_size=8), max_size=3), max_size=4),
    limit=st.sampled_from([1, 1 << 40]),
    per_row=st.booleans(),
)
def test_aggregates_equal_plain_python(epochs: list[list[list[Sale]]], limit: int, per_row: bool) -> None:
    rig = rig_of(ALL, per_row=per_row, overlay_limit_bytes=limit)
    so_far: dict[str, list[Sale]] = {}
    for batches in epochs:
        rig.attempt(*batches)
        found = results(rig, *batches)
        changed = {row.shop for batch in batches for row in batch}
        for batch in batches:
            for row in batch:
                so_far.setdefault(row.shop, []).append(row)
        assert found == {shop: plain(so_far[shop]) for shop in changed}
        assert len(rig.out.get("main", [])) == (sum(map(len, batches)) if per_row else len(changed))
