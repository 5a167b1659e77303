"""Which operator runs a windowed step is a function of its specification, and everybody reads the same answer."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.plan.compile import compile_app
from headrace.windows.evictors import KeepRows
from headrace.windows.kinds import Cumulating, RowCount, Session, Sliding, Tumbling, Unbounded
from headrace.windows.triggers import EveryRows, OnDelta, PerEpoch, Periodic, PerRow, Timeout
from tests.windows.panes.steps import AGGS, info_of, spec_of


class Longest(hr.Aggregator[Any, int, int]):
    def zero(self) -> int:
        return 0

    def add(self, acc: int, row: Any) -> int:
        return acc + 1

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


class OwnTrigger(hr.Trigger):
    pass


COUNTS = {"rows": hr.count()}


@pytest.mark.parametrize("kind", [Tumbling(10), Sliding(10, 5), Cumulating(10, 5)])
@pytest.mark.parametrize("fire", [None, PerEpoch(), Periodic(3)])
def test_aggregates_over_windows_with_fixed_bounds_run_on_slices(kind: Any, fire: Any) -> None:
    assert spec_of(kind, AGGS, fire=fire).choose(info_of(AGGS)).operator == "sliced"


@pytest.mark.parametrize("kind", [Session(10), Session(None, "cents", "wall")])
def test_aggregates_over_sessions_run_on_fragments(kind: Any) -> None:
    assert spec_of(kind, AGGS, fire=PerEpoch()).choose(info_of(AGGS)).operator == "sessions"


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        (Tumbling(10), {"fire": PerRow()}, "per_row decides"),
        (Tumbling(10), {"fire": EveryRows(2)}, "every(rows=…) decides"),
        (Tumbling(10), {"fire": OnDelta(1.0, "cents")}, "on_delta decides"),
        (Session(10), {"fire": Timeout(5)}, "timeout decides"),
        (Session(10), {"fire": OwnTrigger()}, "OwnTrigger decides"),
        (Session(10), {"fire": PerEpoch(), "discard": True}, "a session that was emptied"),
        (Session(10), {"allow_late_us": 5, "discard": True}, "a session that was emptied"),
        (Tumbling(10), {"reduce": lambda a, b: a}, "reduce calls a Python function"),
        (Tumbling(10), {"evict": KeepRows(2)}, "an evictor looks"),
        (Tumbling(10), {"aggs": {"all": Longest()}}, "the aggregate 'all' has no columns"),
        (Unbounded(), {"fire": PerEpoch()}, "an unbounded window has no slices"),
        (RowCount(2, 2), {}, "windows of rows are counted"),
    ],
)
def test_what_needs_python_for_rows_runs_row_by_row(kind: Any, more: dict[str, Any], why: str) -> None:
    aggs = more.pop("aggs", COUNTS)
    choice = spec_of(kind, aggs, **more).choose(info_of(COUNTS))
    assert choice.operator == "by row"
    assert choice.why.startswith(why)


class View(hr.Record):
    page: str
    at: hr.Timestamp


def app_of(fire: Any) -> hr.App:
    app = hr.App("pages")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    hourly = views.key_by(View.page).window(hr.tumbling("1h"), fire=fire).aggregate(n=hr.count()).named("hourly")
    hourly.queryable()
    return app


def test_the_program_carries_the_choice_and_explain_prints_it() -> None:
    sliced, by_row = app_of(hr.early("1s")), app_of(hr.per_row())
    choice = compile_app(by_row, parallelism=1, key_groups=1).steps["hourly"].choice
    assert choice is not None and choice.operator == "by row"
    assert f"runs row by row: {choice.why}" in by_row.explain()
    assert f"keeps {choice.table}: n" in by_row.explain()
    assert "runs on slices in columns: the windows have fixed bounds" in sliced.explain()
    assert "keeps partial aggregates per key and slice of time: n" in sliced.explain()


def test_programs_that_keep_different_tables_have_different_fingerprints() -> None:
    prints = [
        compile_app(app_of(fire), parallelism=1, key_groups=1).fingerprint
        for fire in (hr.early("1s"), hr.early("2s"), hr.per_row())
    ]
    assert prints[0] == prints[1]
    assert prints[0] != prints[2]
