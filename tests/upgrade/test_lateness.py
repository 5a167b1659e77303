"""Windows that were closed stay closed when a program allows rows to be later; open ones take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.upgrade.pages import Hit, Make, Version
from tests.upgrade.test_matrix import HOUR, Listed, told, windowed

WINDOWS: dict[str, Any] = {
    "slices": lambda **more: windowed(HOUR, more=more, total=hr.sum("n")),
    "sliding slices": lambda **more: windowed(hr.sliding("1h", every="30m"), more=more, total=hr.sum("n")),
    "one by one": lambda **more: (
        lambda hits: hits.key_by(Hit.page).window(HOUR, **more).process(Listed()).named("kept")
    ),
}


def sums(rows: list[Any]) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in told(rows)]


@pytest.fixture(params=WINDOWS)
def window(request: pytest.FixtureRequest) -> Any:
    return WINDOWS[request.param]


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize("before", [{}, {"allow_late": "1m"}], ids=["none", "some"])
def test_a_late_row_opens_no_window_that_was_closed_before_rows_might_be_late(
    tmp_path: Path, window: Any, before: dict[str, str], folds: bool
) -> None:
    with Version(tmp_path, window(**before)) as old:
        rows = old.epoch(("a", "12:10", 1), ("a", "13:10", 2), watermark="13:05")
        assert ("a", 1) in sums(rows)
    longer: Make = window(allow_late="3h")
    # The second start finds nothing changed, and still knows.
    for _ in range(2):
        with Version(tmp_path, longer, parallelism=3) as new:
            for _ in range(4 if folds else 0):
                new.epoch()
                new.h.maintain()
            assert new.epoch(("a", "12:15", 100)) == []
    with Version(tmp_path, longer) as new:
        rows = new.epoch(("a", "13:20", 4), watermark="14:05")
        assert ("a", 6) in sums(rows)
        # This window was open when the lateness grew.
        assert ("a", 14) in sums(new.epoch(("a", "13:25", 8), watermark="15:30"))
        # In time the new lateness is all there is, and the manifest says nothing more.
        new.epoch(watermark="17:00")
        new.epoch()
        assert new.h._coordinator.state.manifest.closed == {}


def test_a_session_that_was_closed_stays_closed(tmp_path: Path) -> None:
    def sessions(**more: Any) -> Make:
        return windowed(hr.session("10m"), more=more, total=hr.sum("n"))

    with Version(tmp_path, sessions()) as old:
        assert sums(old.epoch(("a", "12:10", 1), watermark="13:00")) == [("a", 1)]
    with Version(tmp_path, sessions(allow_late="3h")) as new:
        assert new.epoch(("a", "12:15", 100)) == []
        assert sums(new.epoch(("a", "13:01", 2), watermark="14:00")) == [("a", 2)]
        assert sums(new.epoch(("a", "13:02", 4), watermark="14:10")) == [("a", 6)]
