"""Horizons case by case: which rows count, what becomes of late ones, what is kept and how long."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.operators.horizons.operator import HorizonOperator
from headrace.operators.joins.matching import Line
from headrace.testing.rig import OperatorRig
from tests.operators.horizons.features import Tx, operator_of, rig_of, rows_of, told, tx, us

Aggs = dict[str, hr.Agg[Any]]

SUM_10: Aggs = {"sum": hr.sum("n", over=us(10))}
SPANS: Aggs = {"n_5": hr.count(over=us(5)), "sum_20": hr.sum("n", over=us(20)), "total": hr.sum("n")}

CASES: dict[str, tuple[Aggs, bool, list[tuple[str, int | None, str]]]] = {
    "a horizon ends with its result and does not hold the instant at which it begins": (
        SUM_10,
        True,
        [("a1@0 a2@9 a4@10", None, "a 1@0, a 3@9, a 6@10"), ("a8@19", None, "a 12@19"), ("a16@20", None, "a 24@20")],
    ),
    "once per epoch a key gives its horizon as of its newest row": (
        SUM_10,
        False,
        [("a1@0 a2@9 b5@3 a4@10", None, "a 6@10, b 5@3"), ("b1@30", None, "b 1@30"), ("a8@4", None, "a 14@10")],
    ),
    "within an epoch rows count in the order of their time, and those of one time as they came": (
        SUM_10,
        True,
        [("a1@9 a2@3 a4@3 a8@12", None, "a 2@3, a 6@3, a 7@9, a 15@12")],
    ),
    "a late row changes its own result and later ones only": (
        SUM_10,
        True,
        [("a1@5 a2@12", 11, "a 1@5, a 3@12"), ("a4@8", 13, "a 5@8"), ("a8@17", 20, "a 14@17")],
    ),
    "several horizons and a total stand in one step": (
        SPANS,
        True,
        [("a1@1 a2@4 a4@7", None, "a 1 1 1@1, a 2 3 3@4, a 2 7 7@7"), ("a8@25", None, "a 1 12 15@25")],
    ),
    "rows outside the condition and nulls are left out": (
        {"big": hr.count(where="n > 2", over=us(10)), "mean": hr.avg("n", over=us(10)), "low": hr.min("n", over=us(3))},
        True,
        [("a1@1 a-@2 a5@3", None, "a 0 1.0 1@1, a 0 1.0 1@2, a 1 3.0 1@3"), ("a-@20", None, "a 0 None None@20")],
    ),
    "a row that comes later than rows are kept counts in no horizon, and in totals": (
        {"sum": hr.sum("n", over=us(8)), "total": hr.sum("n")},
        True,
        [("a1@1", 50, "a 1 1@1"), ("a2@40 a4@41 a8@51", 60, "a 0 3@40, a 4 7@41, a 8 15@51")],
    ),
    "what a late row finds does not depend on what a fold has left": (
        {"n": hr.count(over=us(8)), "rows": hr.count()},
        True,
        [
            ("a1@34 a1@39 a1@41", 44, "a 1 1@34, a 2 2@39, a 3 3@41"),
            ("a1@60", 50, "a 1 4@60"),
            ("a1@42", 60, "a 2 5@42"),
        ],
    ),
    "a key of horizons alone is forgotten with its rows": (
        SUM_10,
        False,
        [("a1@10", 21, "a 1@10"), ("b2@25", 22, "b 2@25"), ("a4@9", 30, "a 0@9")],
    ),
    "a key with a total is as new as its newest row": (
        {"sum": hr.sum("n", over=us(10)), "total": hr.sum("n")},
        False,
        [("a1@10", 21, "a 1 1@10"), ("b2@25", 22, "b 2 2@25"), ("a4@9", 30, "a 0 5@10")],
    ),
}


def as_text(results: Sequence[tuple[Any, ...]]) -> str:
    return ", ".join(f"{' '.join(map(str, result[:-1]))}@{result[-1]}" for result in results)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("limit", [1, 1 << 40])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, limit: int, fold: bool) -> None:
    aggs, per_row, epochs = CASES[name]
    rig = rig_of(aggs, per_row=per_row, overlay_limit_bytes=limit)
    for rows, watermark, expected in epochs:
        assert as_text(told(rig.epoch(rows_of(rows), watermark=watermark))) == expected
        if fold:
            rig.fold()


def test_late_rows_that_somebody_reads_count_nowhere() -> None:
    rig = rig_of(SPANS, outlets=["late"])
    rig.epoch(rows_of("a1@10"), watermark=10)
    assert as_text(told(rig.epoch(rows_of("a2@9 a4@11")))) == "a 2 5 5@11"
    assert [row.at for row in rig.out["late"]] == [9]
    assert rig.report.late == 1


# --- sums that go on stay exact


def test_sums_beyond_64_bits_on_the_way_are_exact() -> None:
    rig = rig_of(SUM_10)
    big = 2**62
    assert told(rig.epoch([tx("a", big, 1), tx("a", big - 1, 2), tx("a", -big, 3)])) == [("a", big - 1, 3)]
    assert told(rig.epoch([tx("a", big, 8), tx("a", -big, 9)])) == [("a", big - 1, 9)]
    assert told(rig.epoch([tx("a", 1, 12)])) == [("a", 1 - big, 12)]


def test_decimals_stay_exact() -> None:
    rig = rig_of({"sum": hr.sum("price", over=us(10)), "mean": hr.avg("price", over=us(10))})
    huge = Tx("a", 0, hr.Timestamp(1), price=Decimal("12345678901234567890.123456789012345678"))
    assert told(rig.epoch([huge, tx("a", 10, 2)]))[0][1] == Decimal("12345678901234567890.223456789012345678")
    assert told(rig.epoch([tx("a", 20, 11)])) == [("a", Decimal("0.3"), pytest.approx(0.15), 11)]


def test_floats_are_added_up_anew_so_that_no_rounding_error_stays() -> None:
    rig = rig_of({"sum": hr.sum("rate", over=us(10))})
    rig.epoch([Tx("a", 0, hr.Timestamp(1), rate=1e300), Tx("a", 0, hr.Timestamp(2), rate=0.1)])
    assert told(rig.epoch([Tx("a", 0, hr.Timestamp(11), rate=0.2)])) == [("a", 0.1 + 0.2, 11)]


# --- what is kept, and what is read


class Watched(HorizonOperator):
    """Tells how many kept rows its results were made from."""

    read = 0

    def _accs(self, line: Line, old: Any, *more: Any) -> dict[int, list[Any]]:
        self.read = len(old)
        return super()._accs(line, old, *more)


def watched(aggs: Aggs, **options: Any) -> tuple[OperatorRig, Watched]:
    made = operator_of(aggs, **options)
    made.__class__ = Watched
    assert isinstance(made, Watched)
    return OperatorRig(made, Tx, lambda row: row.card), made


def test_counts_and_sums_read_only_what_came_and_went() -> None:
    aggs: Aggs = {"n": hr.count(over=us(1000)), "sum": hr.sum("n", over=us(500)), "mean": hr.avg("n", over=us(1000))}
    rig, operator = watched(aggs)
    rig.epoch([tx("a", 1, at) for at in range(1000)])
    assert as_text(told(rig.epoch([tx("a", 1, 1004)], watermark=1000))) == "a 996 496 1.0@1004"
    assert operator.read == 5 + 5


def test_other_kinds_read_their_own_horizon_and_no_longer_one() -> None:
    rig, operator = watched({"n": hr.count(over=us(1000)), "least": hr.min("n", over=us(50))})
    rig.epoch([tx("a", 1, at) for at in range(1000)])
    assert as_text(told(rig.epoch([tx("a", 1, 1004)]))) == "a 996 1@1004"
    assert operator.read == 5 + 45


def test_a_key_that_was_silent_for_long_is_made_anew_from_its_rows() -> None:
    rig, operator = watched({"n": hr.count(over=us(80))})
    rig.epoch([tx("a", 1, at) for at in range(100)])
    rig.epoch(watermark=120)
    rig.fold()
    assert as_text(told(rig.epoch([tx("a", 1, 121)]))) == "a 59@121"
    assert operator.read == 58


def test_folds_leave_out_what_no_horizon_can_hold_any_more() -> None:
    rig = rig_of({"n": hr.count(over=us(80)), "all": hr.collect("n", over=us(8))})
    rig.epoch([tx(card, 1, at) for card in "abcd" for at in range(50)], watermark=49)
    rig.fold()
    assert rig.runs
    rig.epoch(watermark=200)
    rig.fold()
    assert not rig.runs


# --- programs change


def after(rig: OperatorRig, aggs: Aggs) -> OperatorRig:
    """The next version of the program, over what the one before has kept."""
    changed = rig_of(aggs)
    changed.runs, changed.epoch_number, changed.watermark = rig.runs, rig.epoch_number, rig.watermark
    return changed


def test_another_span_is_computed_from_the_rows_that_are_kept() -> None:
    rig = rig_of({"sum": hr.sum("n", over=us(20))})
    rig.epoch(rows_of("a1@1 a2@12 a4@15"))
    assert as_text(told(after(rig, {"sum": hr.sum("n", over=us(8))}).epoch(rows_of("a8@20")))) == "a 12@20"


def test_another_name_or_aggregate_of_the_same_column_counts_what_is_kept() -> None:
    rig = rig_of({"sum": hr.sum("n", over=us(20))})
    rig.epoch(rows_of("a1@1 a2@12"))
    changed = after(rig, {"all": hr.collect("n", over=us(20)), "total": hr.sum("n", over=us(20))})
    assert as_text(told(changed.epoch(rows_of("a8@20")))) == "a [1, 2, 8] 11@20"


def test_what_was_not_kept_counts_from_now_on() -> None:
    rig = rig_of({"sum": hr.sum("n", over=us(20)), "total": hr.sum("n")})
    rig.epoch(rows_of("a1@1 a2@12"))
    aggs: Aggs = {"sum": hr.sum("n * 10", over=us(20)), "n": hr.count(where="n > 1", over=us(20)), "total": hr.sum("n")}
    assert as_text(told(after(rig, aggs).epoch(rows_of("a8@20")))) == "a 80 1 11@20"


def test_a_total_may_get_a_horizon() -> None:
    rig = rig_of({"n": hr.count(), "mean": hr.avg("n")})
    rig.epoch(rows_of("a1@1 a2@12"))
    changed = after(rig, {"n": hr.count(over=us(20)), "mean": hr.avg("n", over=us(20))})
    assert as_text(told(changed.epoch(rows_of("a8@20")))) == "a 1 8.0@20"


# --- aggregators of one's own beside horizons


class Longest(hr.Aggregator[Tx, int, int]):
    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Tx) -> int:
        if x.n == 13:
            raise ValueError("thirteen")
        return max(acc, x.n or 0)

    def merge(self, a: int, b: int) -> int:
        return max(a, b)

    def result(self, acc: int) -> int:
        return acc


@pytest.mark.parametrize("per_row", [False, True])
def test_a_row_that_an_own_aggregator_refuses_counts_in_no_horizon(per_row: bool) -> None:
    aggs: Aggs = {"longest": Longest(), "sum": hr.sum("n", over=us(10))}
    rig = rig_of(aggs, per_row=per_row, outlets=["errors"])
    rig.epoch(rows_of("a1@1 a13@2 b13@2"))
    assert [row.at for row in rig.out["errors"]] == [2, 2]
    assert as_text(told(rig.epoch(rows_of("a4@10")))) == "a 4 5@10"
    with pytest.raises(FunctionFailed, match="thirteen"):
        rig_of(aggs, per_row=per_row).epoch(rows_of("a13@2"))
