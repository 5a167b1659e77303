"""Aggregators of one's own where errors are read: a row that one of them refuses counts nowhere."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.aggregates import declare as agg
from headrace.dataflow.aggregation import aggregate_codec
from headrace.dataflow.site import call_site
from headrace.errors import FunctionFailed
from headrace.model.keyspec import KeySpec
from headrace.model.rows import codec_of
from headrace.operators.rolling import AggregateOperator, ReduceOperator
from tests.operators.rig import Rig, Row, values


class Sale(hr.Record):
    shop: str
    cents: int
    at: hr.Timestamp


SALES = codec_of(Sale)


def sale(shop: str, cents: int, at: int = 0) -> Sale:
    return Sale(shop, cents, hr.Timestamp(at))


class Trail(hr.Aggregator[Sale, list[int], list[int]]):
    """Changes its accumulator in place, and refuses one amount after it has done so."""

    def __init__(self, refused: int) -> None:
        self.refused = refused

    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: Sale) -> list[int]:
        acc.append(x.cents)
        if x.cents == self.refused:
            raise ValueError(f"{x.cents} is refused")
        return acc

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, acc: list[int]) -> list[int]:
        if len(acc) > 6:
            raise ValueError("too many")
        return list(acc)


def rig(*, per_row: bool = False, errors: bool = True, **options: Any) -> Rig:
    aggs: dict[str, hr.types.Agg[Any]] = {
        "n": agg.count(),
        "first": Trail(13),
        "total": agg.sum("cents"),
        "second": Trail(7),
        "last": agg.last("cents"),
    }
    out = aggregate_codec(SALES, KeySpec(("shop",), None, str), None, aggs, call_site())
    operator = AggregateOperator("step", aggs, SALES, out, key_fields=("shop",), key_type=str, per_row=per_row)
    return Rig(operator, SALES, lambda row: row.shop, outlets=["errors"] if errors else [], **options)


def told(row: Row) -> tuple[Any, ...]:
    value = row.value
    return value.shop, value.n, value.first, value.total, value.second, value.last, row.at


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_a_refused_row_counts_in_no_aggregate_and_moves_no_time(limit: int) -> None:
    r = rig(overlay_limit_bytes=limit)
    rows = [sale("a", 1, 1), sale("a", 13, 50), sale("a", 2, 2), sale("a", 7, 60), sale("b", 3, 3), sale("a", 4, 4)]
    assert sorted(map(told, r.epoch(rows))) == [
        ("a", 3, [1, 2, 4], 7, [1, 2, 4], 4, 4),
        ("b", 1, [3], 3, [3], 3, 3),
    ]
    assert [(row.value.key, row.value.error, row.at) for row in r.out["errors"]] == [
        ("a", "ValueError: 13 is refused", 50),
        ("a", "ValueError: 7 is refused", 60),
    ]
    assert list(map(told, r.epoch([sale("a", 7, 70), sale("a", 5, 5)]))) == [
        ("a", 4, [1, 2, 4, 5], 12, [1, 2, 4, 5], 5, 5)
    ]


def test_a_key_whose_rows_were_all_refused_has_not_changed() -> None:
    r = rig()
    assert r.epoch([sale("a", 13), sale("b", 7)]) == []
    assert r.runs == []
    assert len(r.out["errors"]) == 2


def test_with_a_result_for_every_row_refused_rows_give_none() -> None:
    r = rig(per_row=True)
    rows = [sale("a", 1, 1), sale("a", 13, 50), sale("a", 2, 2), sale("a", 7, 60), sale("a", 4, 3)]
    assert list(map(told, r.epoch(rows))) == [
        ("a", 1, [1], 1, [1], 1, 1),
        ("a", 2, [1, 2], 3, [1, 2], 2, 2),
        ("a", 3, [1, 2, 4], 7, [1, 2, 4], 4, 3),
    ]
    assert len(r.out["errors"]) == 2
    assert r.epoch([sale("a", 13)]) == []


def test_without_readers_of_errors_a_refused_row_stops_the_task_and_tells_of_them() -> None:
    for per_row in (False, True):
        with pytest.raises(FunctionFailed, match=r"Trail\.add raised ValueError: 7 is refused") as caught:
            rig(per_row=per_row, errors=False).epoch([sale("a", 1), sale("a", 7)])
        assert ".errors" in caught.value.next_move
        assert caught.value.failure.key == "a"


def test_a_result_that_fails_stops_the_task_and_advises_nothing_that_would_not_help() -> None:
    with pytest.raises(FunctionFailed, match=r"Trail\.result raised ValueError: too many") as caught:
        rig().epoch([sale("a", n) for n in range(20, 30)])
    assert ".errors" not in caught.value.next_move


def test_reduce_takes_no_time_of_rows_that_failed() -> None:
    def picky(a: Sale, b: Sale) -> Sale:
        if b.cents == 13:
            raise ValueError("thirteen")
        return a.replace(cents=a.cents + b.cents)

    operator = ReduceOperator("step", picky, SALES, key_type=str, per_row=False)
    r = Rig(operator, SALES, lambda row: row.shop, outlets=["errors"])
    assert r.epoch([sale("a", 1, 5), sale("a", 13, 90), sale("a", 2, 3)]) == [Row(sale("a", 3, 5), 5)]
    assert r.epoch([sale("a", 13, 95)]) == []
    assert values(r.epoch([sale("a", 4, 6)])) == [sale("a", 7, 5)]
    assert [row.at for row in r.epoch([sale("a", 1, 1)])] == [6]


class Product(hr.Aggregator[Sale, int, Any]):
    """Its result may be anything; what is stored fits."""

    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Sale) -> int:
        return acc + x.cents

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return {1: 2**64, 2: "two"}.get(acc, acc)  # type: ignore[return-value]


class Made(hr.Record):
    shop: str
    x: int


SECOND = 1_000_000


def refusal_of(aggregator: hr.Aggregator[Sale, Any, Any], where: str, cents: int, watermark: int = 0) -> FunctionFailed:
    """The error of an epoch in which a shop called odd has a sale of so many cents."""
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    by_shop = sales.key_by(Sale.shop)
    if where == "in a window":
        made = by_shop.window(hr.tumbling("1s")).aggregate(Made, x=aggregator)
    else:
        made = by_shop.aggregate(Made, x=aggregator, fire=hr.per_row() if where == "per row" else None)
    made.named("made").show()
    with hr.testing.Harness(app) as h:
        h.push(sales, sale("fine", 7), sale("odd", cents))
        with pytest.raises(FunctionFailed) as refused:
            h.epoch(watermark=hr.Timestamp(watermark))
    assert refused.value.where.startswith("step made")
    assert refused.value.found.endswith("key odd")
    return refused.value


@pytest.mark.parametrize("where", ["once per epoch", "per row", "in a window"])
@pytest.mark.parametrize("cents", [1, 2])
def test_a_result_that_its_column_cannot_hold_is_refused_with_aggregate_step_and_key(cents: int, where: str) -> None:
    refused = refusal_of(Product(), where, cents, SECOND)
    assert refused.what.startswith("the aggregate 'x' gave")
    assert "an int of 64 bits or a float" in refused.next_move


LOOP: list[Any] = []
LOOP.append(LOOP)


class Unsound(Product):
    """Its accumulator may be anything; its results fit."""

    def add(self, acc: int, x: Sale) -> int:
        return {1: 2**70, 2: "two", 3: LOOP}.get(x.cents, acc)  # type: ignore[return-value]

    def result(self, acc: int) -> int:
        return 0


@pytest.mark.parametrize("where", ["once per epoch", "in a window"])
@pytest.mark.parametrize("cents", [1, 2, 3])
def test_an_accumulator_that_its_type_cannot_hold_is_refused_with_aggregate_step_and_key(
    cents: int, where: str
) -> None:
    refused = refusal_of(Unsound(), where, cents)
    shown = {1: str(2**70), 2: "'two'", 3: "[[...]]"}[cents]
    assert refused.what.startswith(f"the accumulator of the aggregate 'x' is {shown}, which its type cannot hold: ")
    assert refused.next_move.endswith("return what the type of the accumulator says from zero, add and merge, or "
                                      "change that type")  # fmt: skip


class Unfinished(Product):
    def result(self, acc: int) -> int:
        raise ValueError("no result")


@pytest.mark.parametrize("where", ["once per epoch", "in a window"])
def test_a_result_that_cannot_be_made_is_refused_with_its_key(where: str) -> None:
    refused = refusal_of(Unfinished(), where, 3, SECOND)
    assert refused.what == "Unfinished.result raised ValueError: no result"
