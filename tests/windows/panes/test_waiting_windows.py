"""What columnar windows wait for: the end of the first that is open, told to whoever asks why nothing comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.model.time import parse_time
from headrace.progress import Standstill
from headrace.read.store import Store, newest_manifests
from headrace.testing.rig import OperatorRig
from headrace.windows.kinds import Cumulating, Sliding, Tumbling
from headrace.windows.sliced.operator import PaneOperator
from headrace.windows.slices import Slices
from headrace.windows.triggers import Periodic
from tests.windows.panes.steps import AGGS, Sale, info_of, spec_of

ASSIGNERS = [
    Tumbling(10),
    Tumbling(10, 3),
    Sliding(10, 5),
    Sliding(10, 4),
    Sliding(10, 3, 2),
    Sliding(4, 10),
    Cumulating(12, 4),
    Cumulating(12, 4, 5),
]


class View(hr.Record):
    page: str
    at: hr.Timestamp
    seconds: int = 1


WINDOWS: dict[str, tuple[Any, str]] = {
    "tumbling": (hr.tumbling("1h"), "13:00"),
    "sliding": (hr.sliding("1h", every="5m"), "12:05"),
    "cumulating": (hr.cumulating("1h", every="20m"), "12:20"),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_sum_that_waits_for_a_silent_input_says_so(kind: str) -> None:
    window, end = WINDOWS[kind]
    app = hr.App("pages")
    views = app.read("views", hr.source.items([]), View, time=View.at, out_of_order="5s")
    views.key_by(View.page).window(window).aggregate(total=hr.sum("seconds")).named("totals").show()
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(views, View("a", h.at("12:00:10")), split="p0")
        h.push(views, View("a", h.at("12:00:10")), split="p1")
        h.epoch()
        h.push(views, View("a", h.at("13:30:10")), split="p0")
        h.epoch(clock="12:05")
        manifest = newest_manifests(Store(h.store))[-1]
        standstill = Standstill(lambda: int(h.at("12:10")))
        standstill(manifest)
        assert manifest.waits_for == {"totals": parse_time(f"2024-01-01T{end}:00") - 1}
        assert "held back by views, split p1" in standstill.now()[0]
        assert standstill.left()[0].startswith("not out yet: totals")
        h.drain()
        assert newest_manifests(Store(h.store))[-1].waits_for == {}


def test_windows_that_are_over_are_not_waited_for_while_late_rows_may_come() -> None:
    rig = OperatorRig(PaneOperator(spec_of(Tumbling(10), allow_late_us=50), info_of(AGGS)), Sale, lambda s: s.shop)
    rig.epoch([Sale("a", 1), Sale("a", 25)], watermark=3)
    assert (rig.report.waits_for_us, rig.report.next_due_us) == (9, None)
    rig.epoch([], watermark=9)
    assert rig.report.waits_for_us == 29
    rig.epoch([Sale("a", 2)], watermark=29)
    assert rig.report.waits_for_us is None


def test_early_results_by_event_time_are_waited_for_where_something_changed() -> None:
    spec = spec_of(Tumbling(100), fire=Periodic(10, "event"))
    rig = OperatorRig(PaneOperator(spec, info_of(AGGS)), Sale, lambda s: s.shop)
    rig.epoch([Sale("a", 1)], watermark=3)
    rig.epoch([Sale("a", 1)], watermark=4)
    assert rig.report.waits_for_us == 10
    rig.epoch([], watermark=12)
    assert rig.report.waits_for_us == 99


@given(st.sampled_from(ASSIGNERS), st.integers(-40, 40), st.integers(-60, 60))
def test_the_next_end_of_a_slice_is_that_of_the_first_window_that_is_not_over(
    assigner: Any, time: int, reached: int
) -> None:
    slices = Slices(assigner)
    found = slices.of(np.array([time], np.int64))
    ends = slices.windows(found).ends
    if not len(ends):
        return
    still_open = ends[ends - 1 > reached]
    assert (int(found[0]) >= slices.first_open(reached)) == bool(len(still_open))
    if len(still_open):
        assert slices.next_end(int(found[0]), reached) == still_open.min()
