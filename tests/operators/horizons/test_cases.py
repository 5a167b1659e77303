"""Horizons case by case (``cases``): which rows count, what becomes of late ones, what is kept and how long."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.operators.horizons.operator import HorizonOperator
from headrace.operators.matching import RowLine
from headrace.testing.rig import OperatorRig
from tests.operators.horizons.features import Tx, operator_of, rig_of, rows_of, told, tx, us

Aggs = dict[str, hr.types.Agg[Any]]

SUM_10: Aggs = {"sum": hr.sum("n", over=us(10))}
SPANS: Aggs = {"n_5": hr.count(over=us(5)), "sum_20": hr.sum("n", over=us(20)), "total": hr.sum("n")}

CASES = tomllib.loads((Path(__file__).parent / "cases" / "horizons.toml").read_text())["case"]


def as_text(results: Sequence[tuple[Any, ...]]) -> str:
    return ", ".join(f"{' '.join(map(str, result[:-1]))}@{result[-1]}" for result in results)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("limit", [1, 1 << 40])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_gives_what_it_says(case: dict[str, Any], limit: int, fold: bool) -> None:
    aggs: Aggs = eval(case["aggregates"], {"hr": hr})
    rig = rig_of(aggs, per_row=case.get("per_row", False), overlay_limit_bytes=limit)
    for epoch in case["epochs"]:
        found = told(rig.epoch(rows_of(epoch["rows"]), watermark=epoch.get("watermark")))
        assert as_text(found) == epoch["out"]
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
    assert told(rig.epoch([tx("a", 20, 11)])) == [("a", Decimal("0.3"), Decimal("0.15"), 11)]


def test_floats_are_added_up_anew_so_that_no_rounding_error_stays() -> None:
    rig = rig_of({"sum": hr.sum("rate", over=us(10))})
    rig.epoch([Tx("a", 0, hr.Timestamp(1), rate=1e300), Tx("a", 0, hr.Timestamp(2), rate=0.1)])
    assert told(rig.epoch([Tx("a", 0, hr.Timestamp(11), rate=0.2)])) == [("a", 0.1 + 0.2, 11)]


# --- what is kept, and what is read


class Watched(HorizonOperator):
    """Tells how many kept rows its results were made from."""

    read = 0

    def _accs(self, line: RowLine, old: Any, *more: Any) -> dict[int, list[Any]]:
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
