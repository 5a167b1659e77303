"""Changes after changes: names and aggregates that come back, and fields that aggregates are of under new names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UpgradeRefused
from headrace.testing import Harness
from tests.testing.changed import FILES
from tests.upgrade.pages import VALUE, Hit, Make, Version, add, keeping
from tests.upgrade.test_matrix import HOUR, TOTAL, set_timer, told, windowed


def value(**names: Any) -> Make:
    return keeping(hr.ValueState[int], add, lambda state: state.get(), **names)


def run_each(store: Path, versions: list[Make], *, folds: bool) -> list[Any]:
    """What the last of some versions gives, each of which is started on what the one before left."""
    rows: list[Any] = []
    for number, make in enumerate(versions):
        with Version(store, make, parallelism=2 + number % 2) as version:
            for _ in range(4 if folds else 0):
                version.epoch()
                version.h.maintain()
            rows = version.epoch(("a", f"12:1{number}", 10**number), watermark=f"12:1{number}")
            if number == len(versions) - 1:
                rows += version.epoch(watermark="14:00")
    return told(rows)


TO_NEW, BACK, SAME = {"name": "new", "was": "kept"}, {"name": "kept", "was": "new"}, {"name": "kept"}


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize("last", [SAME, TO_NEW], ids=["stays", "goes again"])
def test_a_step_that_gets_its_old_name_back_goes_on(tmp_path: Path, last: dict[str, Any], folds: bool) -> None:
    versions = [VALUE, value(**TO_NEW), value(**BACK), value(**last), value(name=last["name"])]
    assert run_each(tmp_path, versions, folds=folds) == [("a", "11111")]


@pytest.mark.parametrize("window", [HOUR, hr.session("1h")], ids=["slices", "sessions"])
def test_windows_of_a_step_that_gets_its_old_name_back_go_on(tmp_path: Path, window: Any) -> None:
    versions = [windowed(window, **TOTAL, **names) for names in (SAME, TO_NEW, BACK, SAME)]
    assert run_each(tmp_path, versions, folds=False) == [("a", 1111)]


def test_timers_of_a_step_that_gets_its_old_name_back_fire(tmp_path: Path) -> None:
    none = [keeping(hr.Timer, lambda state, event: None, lambda state: None, **names) for names in (TO_NEW, BACK, SAME)]
    first = keeping(hr.Timer, set_timer, lambda state: None)
    assert run_each(tmp_path, [first, *none], folds=False) == [("a", "None"), ("a", "held fired")]


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
def test_a_state_that_gets_its_old_name_back_goes_on(tmp_path: Path, folds: bool) -> None:
    there, back = {"state": "sum", "state_was": "held"}, {"state": "held", "state_was": "sum"}
    versions = [VALUE, value(**there), value(**back), value(**there), value(state="sum")]
    assert run_each(tmp_path, versions, folds=folds) == [("a", "11111")]


# --- aggregates


class Renamed(hr.Record):
    page: str
    at: hr.Timestamp
    amount: float = hr.field(default=1.0, was="n")
    x: float = 0.5


class Swapped(hr.Record):
    page: str
    at: hr.Timestamp
    amount: int = hr.field(default=1, was="n")
    n: int = 0


class Program:
    """A step over hits of some type, and a harness that goes on with what is stored."""

    def __init__(self, store: Path, kind: Any, step: Any, **options: Any) -> None:
        self.app = hr.App("pages")
        self.hits = self.app.read("hits", hr.source.items([]), kind, time="at")
        self.step = step(self.hits.key_by("page")).named("kept")
        self.step.show()
        self.h = Harness(self.app, start="2024-01-01T12:00", store=store, limits=FILES, **options)

    def push(self, row: Any, watermark: str) -> list[Any]:
        self.h.push(self.hits, row)
        self.h.epoch(watermark=watermark)
        return self.h.take(self.step)


def rolling(**aggs: Any) -> Any:
    return lambda hits: hits.aggregate(**aggs)


def within(window: Any, **aggs: Any) -> Any:
    return lambda hits: hits.window(window).aggregate(**aggs)


WAYS: dict[str, Any] = {
    "rolling": rolling,
    "slices": lambda **aggs: within(HOUR, **aggs),
    "sessions": lambda **aggs: within(hr.session("1h"), **aggs),
    "one by one": lambda **aggs: lambda hits: hits.window(HOUR, fire=hr.per_row()).aggregate(**aggs),
}


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_aggregates_of_a_field_that_was_renamed_go_on(tmp_path: Path, way: Any, folds: bool) -> None:
    before = way(total=hr.sum("n * 2"), most=hr.max("x", by="n"), some=hr.count(where="n > 1"))
    after = way(total=hr.sum("amount*2"), most=hr.max("x", by="amount"), some=hr.count(where="(amount > 1)"))
    old = Program(tmp_path, Hit, before)
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 7, 0.25), "11:59")
    new = Program(tmp_path, Renamed, after, parallelism=3)
    with new.h as h:
        for _ in range(4 if folds else 0):
            h.epoch(watermark="11:59")
            h.maintain()
        rows = new.push(Renamed("a", h.at("12:01"), 1.5, 0.75), "11:59")
        h.drain()
        row = (rows + h.take(new.step))[-1]
        assert (row.total, row.most, row.some) == (17.0, 0.25, 2)


def test_an_aggregate_of_a_field_whose_old_name_another_field_has_now_means_something_else(tmp_path: Path) -> None:
    old = Program(tmp_path, Hit, rolling(total=hr.sum("n")))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 7), "11:59")
    with pytest.raises(UpgradeRefused, match=r"total=sum\('n'\), as stored"):
        Program(tmp_path, Swapped, rolling(total=hr.sum("n")))
    for _ in range(2):
        new = Program(tmp_path, Swapped, rolling(total=hr.sum("amount")))
        with new.h as h:
            [row] = new.push(Swapped("a", h.at("12:01"), 1, 100), "11:59")
    assert row.total == 9


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (Hit, hr.sum("n * 2", over="10m"), hr.sum("(n*2)", over="10m")),
        (Hit, hr.sum("n + n", where="n > 0", over="10m"), hr.sum("n+n", where="(n>0)", over="10m")),
        (Renamed, hr.sum("n * 2", over="10m"), hr.sum("amount*2", over="10m")),
        (
            Renamed,
            hr.sum("n + n", where="n > 0", over="10m"),
            hr.sum("amount + amount", where="amount > 0", over="10m"),
        ),
    ],
    ids=["other words", "other words for a condition", "renamed and widened", "renamed everywhere"],
)
def test_rows_in_a_horizon_are_found_under_the_words_of_today(
    tmp_path: Path, kind: Any, before: Any, after: Any, folds: bool
) -> None:
    old = Program(tmp_path, Hit, rolling(total=before))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 3), "12:00")
        assert [row.total for row in old.push(Hit("a", h.at("12:05"), 4), "12:05")] == [14]
    for minute, total in ((12, 28), (14, 48)):
        # The second start no longer knows what the words were.
        new = Program(tmp_path, kind, rolling(total=after), parallelism=3)
        with new.h as h:
            for _ in range(4 if folds else 0):
                h.epoch(watermark="12:05")
                h.maintain()
            at = h.at(f"12:{minute}")
            assert [row.total for row in new.push(kind("a", at, 10), f"12:{minute}")] == [total]


@pytest.mark.parametrize("window", [HOUR, hr.session("1h")], ids=["slices", "sessions"])
def test_a_sum_in_columns_that_no_float_holds_is_refused_in_words(tmp_path: Path, window: Any) -> None:
    old = Program(tmp_path, Hit, within(window, total=hr.sum("n")))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 2**53 + 1), "11:59")
    with pytest.raises(UpgradeRefused, match=r"2\*\*53") as caught:
        Program(tmp_path, Renamed, within(window, total=hr.sum("amount")))
    assert "`total`" in str(caught.value) and str(2**53 + 1) in str(caught.value)


@pytest.mark.parametrize("window", [HOUR, hr.session("1h")], ids=["slices", "sessions"])
def test_a_sum_in_columns_that_a_float_holds_goes_on_as_one(tmp_path: Path, window: Any) -> None:
    old = Program(tmp_path, Hit, within(window, total=hr.sum("n")))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 2**53), "11:59")
    new = Program(tmp_path, Renamed, within(window, total=hr.sum("amount")))
    with new.h as h:
        h.drain()
        assert [row.total for row in h.take(new.step)] == [float(2**53)]


class Sums(hr.Record):
    page: str
    total: int = 0
    rows: int = 0


class SumsNow(hr.Record):
    page: str
    sum: float = hr.field(default=0.0, was="total")
    rows: int = 0


class SumsMisspelt(hr.Record):
    page: str
    sum: int = hr.field(default=0, was="totl")
    rows: int = 0


def results(kind: Any, window: Any = None, over: str | None = None, **aggs: str) -> Any:
    made = {name: hr.sum(column, over=over) for name, column in aggs.items()}

    def step(hits: Any) -> Any:
        kept = hits if window is None else hits.window(*window[:1], **window[1])
        return kept.aggregate(kind, rows=hr.count(), **made)

    return step


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize(
    "way", [{}, {"over": "1h"}, {"window": (HOUR, {"fire": hr.per_row()})}], ids=["rolling", "horizon", "one by one"]
)
def test_an_aggregate_goes_on_under_another_name(tmp_path: Path, way: Any, folds: bool) -> None:
    old = Program(tmp_path, Hit, results(Sums, total="n * 2", **way))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 7), "11:59")
    for n, expected in ((1, 16.0), (2, 20.0)):
        new = Program(tmp_path, Renamed, results(SumsNow, sum="amount*2", **way), parallelism=3)
        with new.h as h:
            for _ in range(4 if folds else 0):
                h.epoch(watermark="11:59")
                h.maintain()
            assert [row.sum for row in new.push(Renamed("a", h.at("12:01"), n), "11:59")] == [expected]


@pytest.mark.parametrize("way", [{}, {"over": "1h"}, {"window": (HOUR, {})}], ids=["rolling", "horizon", "slices"])
def test_a_former_name_that_no_aggregate_had_is_refused(tmp_path: Path, way: Any) -> None:
    old = Program(tmp_path, Hit, results(Sums, total="n", **way))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 7), "11:59")
    with pytest.raises(UpgradeRefused, match="is to go on with `totl`, and no aggregate"):
        Program(tmp_path, Hit, results(SumsMisspelt, sum="n", **way))


# --- rows in horizons


class Texts(hr.Record):
    page: str
    at: hr.Timestamp
    n: str = ""


class Words(hr.Record):
    page: str
    at: hr.Timestamp
    word: str = ""


def newest_in(text: str, name: str = "most") -> Any:
    return rolling(rows=hr.count(over="10m"), **{name: hr.max(text, over="10m")})


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize(("kind", "text"), [(Words, "word"), (Texts, "concat(n, '')")], ids=["column", "expression"])
def test_a_horizon_over_another_type_needs_another_name_and_other_words(
    tmp_path: Path, kind: Any, text: str, folds: bool
) -> None:
    old = Program(tmp_path, Hit, newest_in("n", "total"))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 3), "12:00")
    for refused in (newest_in("n", "total"), newest_in("n")):
        with pytest.raises(UpgradeRefused, match="another name, and its expression other words"):
            Program(tmp_path, Texts, refused)
    for minute, value, rows in ((2, "x", 2), (4, "w", 3)):
        new = Program(tmp_path, kind, newest_in(text), parallelism=3)
        with new.h as h:
            for _ in range(4 if folds else 0):
                h.epoch(watermark="12:00")
                h.maintain()
            [row] = new.push(kind("a", h.at(f"12:0{minute}"), value), f"12:0{minute}")
            assert (row.most, row.rows) == ("x", rows)


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
def test_an_aggregate_of_another_column_over_a_horizon_begins_with_the_next_row(tmp_path: Path, folds: bool) -> None:
    old = Program(tmp_path, Hit, rolling(total=hr.sum("n", over="10m")))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 3), "12:00")
    more = {"half": hr.sum("x", over="10m"), "some": hr.count(where="x > 0", over="10m")}
    for minute, expected in ((2, (7, 0.5, 1)), (4, (11, 1.0, 2))):
        new = Program(tmp_path, Hit, rolling(total=hr.sum("n", over="10m"), **more), parallelism=3)
        with new.h as h:
            for _ in range(4 if folds else 0):
                h.epoch(watermark="12:00")
                h.maintain()
            [row] = new.push(Hit("a", h.at(f"12:0{minute}"), 4), f"12:0{minute}")
            assert (row.total, row.half, row.some) == expected


def test_a_plan_says_from_which_rows_on_an_aggregate_over_a_horizon_counts(tmp_path: Path) -> None:
    old = Program(tmp_path, Hit, rolling(total=hr.sum("n", over="10m")))
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 3), "12:00")
        more = {"least": hr.min("n", over="10m"), "half": hr.sum("x", over="10m")}
        new = Program(tmp_path / "other", Hit, rolling(total=hr.sum("n", over="10m"), **more))
        plan = str(new.app.plan(str(tmp_path)))
    assert "aggregate `least` added: counts the rows that are kept; complete 10m from now" in plan
    assert "aggregate `half` added: counts the rows from now on; complete 10m from now" in plan
