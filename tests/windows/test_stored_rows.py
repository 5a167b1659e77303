"""Rows that windows keep themselves: found by time, given in the order they came, and looked at once per window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.windows.by_row.row_contents import StoredRow, StoredRows


class Visit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 0


class Seen(hr.WindowProcess[Visit, tuple[int, list[int]], Any]):
    def on_window(self, rows: Sequence[Visit], ctx: hr.WindowContext[Any]) -> Iterator[tuple[int, list[int]]]:
        yield int(ctx.window.start), [row.n for row in rows]


class Looked(list[StoredRow]):
    """Counts the rows that somebody looks at."""

    rows = 0

    def __iter__(self) -> Iterator[StoredRow]:
        Looked.rows += len(self)
        return super().__iter__()

    def __getitem__(self, which: Any) -> Any:
        found = super().__getitem__(which)
        Looked.rows += len(found) if isinstance(which, slice) else 1
        return found


WINDOWS = {
    "tumbling": (hr.tumbling("1m"), 1),
    "sliding": (hr.sliding("3m", every="1m"), 3),
    "cumulating": (hr.cumulating("3m", every="1m"), 3),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_many_windows_of_one_key_look_at_their_own_rows_only(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = StoredRows._of_key

    def watched(self: StoredRows, slot: int) -> list[StoredRow]:
        if not isinstance(find(self, slot), Looked):
            self._rows = Looked(self._rows)
        return self._rows

    monkeypatch.setattr(StoredRows, "_of_key", watched)
    monkeypatch.setattr(Looked, "rows", 0)
    window, each = WINDOWS[kind]
    app = hr.App("visits")
    visits = app.read("visits", hr.source.items([]), Visit, time=Visit.at)
    seen = visits.window(window).process(Seen())
    seen.show()
    count, minutes = 1200, 120
    with hr.testing.Harness(app, start="2024-01-01T00:00", parallelism=1) as harness:
        noon = int(harness.at("00:00"))
        harness.push(visits, *(Visit("a", hr.Timestamp(noon + i * 6_000_000), i) for i in range(count)))
        harness.drain()
        found = harness.take(seen)
    assert sum(len(rows) for _, rows in found) == count * (2 if kind == "cumulating" else each)
    assert len(found) >= minutes
    assert count < Looked.rows < 12 * count


@given(st.sampled_from(list(WINDOWS)), st.lists(st.integers(0, 600), min_size=1, max_size=15), st.integers(1, 3))
def test_a_window_is_given_its_rows_in_the_order_they_came(kind: str, seconds: list[int], batches: int) -> None:
    window, _ = WINDOWS[kind]
    app = hr.App("visits")
    visits = app.read("visits", hr.source.items([]), Visit, time=Visit.at)
    seen = visits.window(window).process(Seen())
    ends = visits.key_by(Visit.page).window(window).aggregate(all=hr.collect("n")).named("ends")
    seen.show()
    ends.show()
    with hr.testing.Harness(app, start="2024-01-01T00:00", parallelism=1) as harness:
        noon = int(harness.at("00:00"))
        rows = [Visit("a", hr.Timestamp(noon + s * 1_000_000), i) for i, s in enumerate(seconds)]
        for start in range(batches):
            harness.push(visits, *rows[start::batches])
            harness.epoch(watermark="00:00:00")
        harness.drain()
        wanted = sorted((int(row.window_start), row.all) for row in harness.take(ends))
        assert sorted(harness.take(seen)) == wanted


CHANGES: list[tuple[Any, Any, list[tuple[str, list[int]]]]] = [
    (hr.tumbling("1h"), hr.tumbling("2h"), [("12:00", [1, 2]), ("12:00", [1, 2, 3])]),
    (hr.tumbling("2h"), hr.tumbling("1h"), [("12:00", [1, 2]), ("12:00", [1, 2, 3]), ("13:00", [3])]),
    (
        hr.sliding("2h", every="1h"),
        hr.tumbling("1h"),
        [("11:00", [1, 2]), ("12:00", [1, 2]), ("12:00", [1, 2, 3]), ("13:00", [3])],
    ),
    (
        hr.tumbling("2h"),
        hr.sliding("1h", every="30m"),
        [("12:00", [1, 2]), ("12:00", [1, 2, 3]), ("12:30", [2]), ("13:00", [3]), ("13:30", [3])],
    ),
]


@pytest.mark.parametrize(("before", "after", "expected"), CHANGES, ids=lambda each: str(each)[:30])
def test_rows_stay_for_every_open_window_when_a_program_comes_back_with_others(
    tmp_path: Path, before: Any, after: Any, expected: list[tuple[str, list[int]]]
) -> None:
    found: list[Any] = []
    noon = 0
    for number, window in enumerate((before, after)):
        app = hr.App("visits")
        visits = app.read("visits", hr.source.items([]), Visit, time=Visit.at)
        seen = visits.key_by(Visit.page).window(window).process(Seen())
        seen.show()
        with hr.testing.Harness(app, start="2024-01-01T12:00", store=str(tmp_path), parallelism=1) as harness:
            noon = int(harness.at("12:00"))
            if number == 0:
                harness.push(visits, Visit("a", harness.at("12:10"), 1))
                harness.epoch(watermark="12:11")
            else:
                harness.push(visits, Visit("a", harness.at("12:30"), 2), Visit("a", harness.at("13:30"), 3))
                for watermark in ("12:40", "13:00", "14:00"):
                    harness.epoch(watermark=watermark)
                    harness.maintain()
                harness.drain()
                assert not harness.state(seen, None, "a")
            found += harness.take(seen)
    hours = {f"{12 + minutes // 60}:{minutes % 60:02}": noon + minutes * 60_000_000 for minutes in range(-60, 121, 30)}
    assert sorted((start, rows) for start, rows in found) == sorted((hours[at], rows) for at, rows in expected)
