"""Aggregates in columns that get another name, go, and come back, while windows that hold a part of them are open."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UpgradeRefused
from headrace.model import job
from tests.upgrade.pages import Hit
from tests.upgrade.test_changes_again import HOUR, WAYS, Program

KINDS: dict[str, tuple[Any, Any]] = {
    "count": (hr.count(where="n > 1"), int),
    "sum": (hr.sum("n"), int),
    "avg": (hr.avg("x"), float),
    "min": (hr.min("n"), int),
    "max by": (hr.max("x", by="n"), float),
    "first": (hr.first("n"), int),
    "last": (hr.last("x"), float),
    "distinct": (hr.count_distinct("n"), int),
    "quantile": (hr.quantile("x", 0.5), float),
    "collect": (hr.collect("n"), list[int]),
    "top": (hr.top("n", 2, by="x"), list[int]),
}
"""An aggregate of each kind, and the type of its result."""
WINDOWS: dict[str, Any] = {
    "tumbling": HOUR,
    "sliding": hr.sliding("1h", every="30m"),
    "cumulating": hr.cumulating("1h", every="30m"),
    "sessions": hr.session("1h"),
}


def results(made: Any) -> list[Any]:
    """The types of results of four programs, each of which renames what the one before gave; last of one without."""

    class First(hr.Record):
        page: str
        rows: int
        a: made | None = None
        gone: int | None = None

    class Second(hr.Record):
        page: str
        rows: int
        b: made | None = hr.field(default=None, was="a")

    class Third(hr.Record):
        page: str
        c: made | None = hr.field(default=None, was="b")
        lines: int = hr.field(default=0, was="rows")
        gone: int | None = None
        a: int | None = None

    class Fourth(hr.Record):
        """Nobody says former names any more."""

        page: str
        c: made | None = None
        lines: int = 0
        gone: int | None = None
        a: int | None = None

    class Never(hr.Record):
        page: str
        c: made | None = None
        lines: int = 0

    return [First, Second, Third, Fourth, Never]


FIRST, SECOND, *_ = results(int)


def program(store: Path, window: Any, row_type: Any, **aggs: Any) -> Program:
    return Program(store, Hit, lambda hits: hits.window(window).aggregate(row_type, **aggs))


CASES = [
    *((kind, window, bool(number % 2)) for number, (kind, window) in enumerate(zip(KINDS, cycle(WINDOWS)))),
    *(("max by", window, folds) for window in WINDOWS for folds in (False, True)),
]


@pytest.mark.parametrize(("kind", "window", "folds"), CASES)
def test_open_windows_go_on_with_an_aggregate_under_its_new_names(
    tmp_path: Path, kind: str, window: str, folds: bool
) -> None:
    (agg, made), more = KINDS[kind], {"gone": hr.sum("n"), "a": hr.max("n")}
    *types, unchanged = results(made)
    last = {"c": agg, "lines": hr.count(), **more}
    first, second = {"rows": hr.count(), "a": agg, "gone": hr.sum("n")}, {"rows": hr.count(), "b": agg}
    steps = list(zip(types, [first, second, last, last], strict=True))
    never = program(tmp_path / "never", WINDOWS[window], unchanged, c=agg, lines=hr.count())
    expected: list[Any] = []
    with never.h as h:
        for minute in range(4):
            h.push(never.hits, Hit("a", h.at(f"12:0{minute}"), 3 - minute, minute / 2), Hit("b", h.at("12:20"), minute))
            h.epoch(watermark="11:59")
        h.drain()
        expected = h.take(never.step)
    for minute, (row_type, aggs) in enumerate(steps):
        new = program(tmp_path / "store", WINDOWS[window], row_type, **aggs)
        with new.h as h:
            for _ in range(3 if folds and minute else 0):
                h.epoch(watermark="11:59")
                h.maintain()
            h.push(new.hits, Hit("a", h.at(f"12:0{minute}"), 3 - minute, minute / 2), Hit("b", h.at("12:20"), minute))
            h.epoch(watermark="11:59")
            shown = {key: h.state(new.step, key=key) for key in "ab"} if minute else {}
            if minute == len(steps) - 1:
                h.drain()
                rows = h.take(new.step)
    order = sorted([(row.page, str(row.c), row.lines) for row in rows])
    assert order == sorted([(row.page, str(row.c), row.lines) for row in expected])
    assert {key: (str(row.c), row.lines) for key, row in shown.items() if row} == newest_of(expected, shown)
    # What came back, or got a name that another had, counts from its program on.
    assert {row.gone for row in rows if row.page == "a" and row.lines == 4} == {1}
    assert {row.a for row in rows if row.page == "a" and row.lines == 4} == {1}


def newest_of(expected: list[Any], shown: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Of each key the row of the window that ends last."""
    last = {row.page: (str(row.c), row.lines) for row in expected}
    return {key: last[key] for key, row in shown.items() if row}


def test_readers_without_the_program_say_the_present_names(tmp_path: Path) -> None:
    total = hr.sum("n")
    for minute, (row_type, name) in enumerate(((FIRST, "a"), (SECOND, "b"))):
        more = {"gone": hr.count()} if row_type is FIRST else {}
        job = program(tmp_path, HOUR, row_type, rows=hr.count(), **{name: total}, **more)
        job.step.queryable()
        with job.h as h:
            h.push(job.hits, Hit("a", h.at(f"12:0{minute}"), 7), *[Hit("b", h.at("12:00"), 5)] * (not minute))
            h.epoch(watermark="11:59")
    store = hr.Store(tmp_path)
    kept = store.state("kept")
    assert {key: (kept[key]["b"], kept[key]["rows"]) for key in "ab"} == {"a": (14, 2), "b": (5, 1)}
    assert sorted(kept.to_polars().select("page", "b", "rows").rows()) == [("a", 14, 2), ("b", 5, 1)]
    assert store.at(0).state("kept")["a"]["a"] == 7
    found = hr.diff(f"{tmp_path}@0", str(tmp_path))
    assert [(each.key, each.change) for each in found] == [("a", "changed")]
    then, now = (next(iter(version.value.values())) for version in store.history("kept", "a"))
    assert (then["a"], now["b"]) == (7, 14) and "b" not in then and "a" not in now


def test_going_back_behind_a_renaming_and_forth_again_keeps_what_was_counted(tmp_path: Path) -> None:
    old = program(tmp_path, HOUR, FIRST, rows=hr.count(), a=hr.sum("n"), gone=hr.count())
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 1), "11:59")
    new = program(tmp_path, HOUR, SECOND, rows=hr.count(), b=hr.sum("n"))
    with new.h as h:
        new.push(Hit("a", h.at("12:01"), 10), "11:59")
        h.rewind(0)
        h.epoch(watermark="11:59")
        assert (h.state(new.step, key="a").b, h.state(new.step, key="a").rows) == (11, 2)


def test_the_plan_tells_of_a_renamed_aggregate(tmp_path: Path) -> None:
    old = program(tmp_path, HOUR, FIRST, rows=hr.count(), a=hr.sum("n"), gone=hr.count())
    with old.h as h:
        old.push(Hit("a", h.at("12:00"), 1), "11:59")
    app = hr.App("pages")
    hits = app.read("hits", hr.source.items([]), Hit, time="at")
    hits.key_by("page").window(HOUR).aggregate(SECOND, rows=hr.count(), b=hr.sum("n")).named("kept").show()
    plan = app.plan(str(tmp_path))
    assert not plan.refused
    assert "aggregate `b` was `a`" in str(plan) and "aggregate `gone` taken out" in str(plan)


@pytest.mark.parametrize("way", ["slices", "sessions"])
def test_an_aggregate_that_comes_back_begins_anew(tmp_path: Path, way: str) -> None:
    def versions(**more: Any) -> Any:
        return WAYS[way](rows=hr.count(), **more)

    steps = (versions(total=hr.sum("n")), versions(), versions(total=hr.sum("n * 2")))
    for step in steps:
        new = Program(tmp_path, Hit, step)
        with new.h as h:
            new.push(Hit("a", h.at("12:00"), 7), "11:59")
            if step is steps[-1]:
                h.drain()
                assert [(row.rows, row.total) for row in h.take(new.step)] == [(3, 14)]


@pytest.mark.parametrize("way", ["slices", "sessions"])
def test_an_aggregate_that_an_earlier_headrace_took_out_comes_back_when_no_window_holds_a_part_of_it(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions(**more: Any) -> Any:
        return WAYS[way](rows=hr.count(), **more)

    with monkeypatch.context() as earlier:
        # Manifests did not say then what became of aggregates in columns.
        earlier.setattr(job, "_became", lambda state, before: None)
        for step in (versions(total=hr.sum("n")), versions()):
            old = Program(tmp_path, Hit, step)
            with old.h as h:
                old.push(Hit("a", h.at("12:00"), 7), "11:59")
    for again in (hr.sum("n"), hr.sum("n * 2")):
        with pytest.raises(UpgradeRefused, match="`total` of the step 'kept' was taken out"):
            Program(tmp_path, Hit, versions(total=again))
    with old.h.__class__(old.app, start="2024-01-01T12:00", store=tmp_path) as h:
        h.epoch(watermark="15:00")
    new = Program(tmp_path, Hit, versions(total=hr.sum("n * 2")))
    with new.h as h:
        new.push(Hit("a", h.at("16:00"), 4), "16:00")
        h.drain()
        assert [row.total for row in h.take(new.step)] == [8]
