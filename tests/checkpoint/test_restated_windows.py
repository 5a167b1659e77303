"""Outputs of windows that a rewind brings back by what state and archive still have of windows that ended since."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import headrace as hr
from headrace.errors import Refused
from headrace.model import crash
from headrace.testing import Harness
from tests.checkpoint.keyed_table import KeyedTable


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


class Hourly(hr.Record):
    page: str
    window_start: hr.Timestamp
    window_end: hr.Timestamp
    n: int


class Program(NamedTuple):
    app: hr.App
    hits: Any
    table: KeyedTable


KEY = ("page", "window_start", "window_end")
WINDOWS: dict[str, Any] = {
    "tumbling": hr.tumbling("1h"),
    "sliding": hr.sliding("1h", every="30m"),
    "cumulating": hr.cumulating("1h", every="30m"),
    "sessions": hr.session("10m"),
}


def program(
    table: KeyedTable, window: Any, *, keep: str | None = None, archive: Path | None = None, above: int = 0,
    then: Any = None, **options: Any,
) -> Program:  # fmt: skip
    app = hr.App("pages")
    hits = app.read("hits", hr.source.items([]), Hit, time="at")
    hourly = hits.key_by(Hit.page).window(window, **options).aggregate(Hourly, n=hr.sum("n")).named("hourly")
    if keep or archive:
        hourly.queryable(keep=keep, archive=archive)
    shown = hourly if not above else hourly.where(f"n > {above}")
    (shown if then is None else shown.map(then, output=Hourly)).write(table, name="table")
    return Program(app, hits, table)


def play(h: Harness, made: Program, epochs: Any) -> None:
    for rows, watermark in epochs:
        h.push(made.hits, *(Hit(page, h.at(at), n) for page, at, n in rows))
        h.epoch(watermark=watermark)


BEFORE = [
    ([("a", "12:10", 1), ("b", "12:50", 2), ("a", "13:10", 30)], "13:05"),
]
BEHIND = [
    ([("a", "13:20", 4), ("c", "13:30", 5), ("a", "12:56", 100)], "14:10"),
    ([("b", "14:30", 6), ("a", "14:40", 7)], "15:30"),
]


def shown(table: KeyedTable) -> dict[Any, int]:
    return {key: row.n for key, row in table.rows.items()}


@pytest.mark.parametrize(
    ("window", "known", "late"),
    [
        *((window, known, "15m") for window in ("tumbling", "sliding", "cumulating") for known in ("kept", "archived")),
        ("tumbling", "kept", None),
        ("sliding", "archived", None),
        ("sessions", "archived", None),
    ],
)
def test_the_target_is_as_it_was_and_then_as_if_nothing_had_been(
    tmp_path: Path, window: str, known: str, late: str | None
) -> None:
    options = {"keep": "4h"} if known == "kept" else {"archive": tmp_path / "archive"}
    if late:
        options["allow_late"] = late
    made = program(KeyedTable(*KEY), WINDOWS[window], above=1, **options)
    with Harness(made.app, store=tmp_path / "store", sinks=True, start="2024-01-01T12:00") as h:
        play(h, made, BEFORE)
        before = shown(made.table)
        h.savepoint("before")
        play(h, made, BEHIND)
        end = shown(made.table)
        assert end != before and before
        h.rewind("before")
        assert shown(made.table) == before
        play(h, made, [([], "14:10"), ([], "15:30")])
        assert shown(made.table) == end


def epochs_at_random(random: Random, minute: int) -> list[Any]:
    """Some epochs whose rows come early, on time and late. ``minute``: of the day, where time is."""
    made = []
    for _ in range(random.randrange(1, 4)):
        times = [max(12 * 60, minute + random.randrange(-50, 60)) for _ in range(random.randrange(4))]
        rows = [(random.choice("abé"), f"{at // 60}:{at % 60:02d}", random.randrange(1, 4)) for at in times]
        minute += random.randrange(50)
        made.append((rows, f"{minute // 60}:{minute % 60:02d}"))
    return made


@pytest.mark.parametrize("seed", range(12))
def test_whatever_came_the_target_is_as_it_was(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    window = random.choice(list(WINDOWS))
    options: dict[str, Any] = (
        {"keep": "20h"} if seed % 2 and window != "sessions" else {"archive": tmp_path / "archive"}
    )
    if window != "sessions":
        options["allow_late"] = random.choice(["5m", "15m", "40m"])
    made = program(KeyedTable(*KEY), WINDOWS[window], above=random.choice([0, 2]), **options)

    def start() -> Harness:
        shards = random.choice([1, 2, 3])
        return Harness(made.app, store=tmp_path / "store", sinks=True, start="2024-01-01T12:00", parallelism=shards)

    with start() as h:
        play(h, made, epochs_at_random(random, 12 * 60))
        before = shown(made.table)
        h.savepoint("before")
        play(h, made, epochs_at_random(random, 14 * 60))
        h.maintain()
    with start() as h:
        for _ in range(2):
            h.rewind("before", again=True)
            assert shown(made.table) == before, f"seed {seed}"
            play(h, made, epochs_at_random(random, 14 * 60))


@pytest.mark.parametrize("point", ["rewind_staged", "rewind_sealed", "rewind_pinned", "rewind_forgotten"])
def test_a_death_on_the_way_is_made_good(tmp_path: Path, point: str) -> None:
    made = program(KeyedTable(*KEY), WINDOWS["tumbling"], archive=tmp_path / "archive")

    def strike(reached: str, epoch: int) -> None:
        if reached == point:
            raise crash.Crash(point)

    with Harness(made.app, store=tmp_path / "store", sinks=True, start="2024-01-01T12:00") as h:
        play(h, made, BEFORE)
        before = shown(made.table)
        play(h, made, BEHIND)
    with pytest.raises(crash.Crash), crash.planned(strike):
        Harness(made.app, store=tmp_path / "store", sinks=True, start_from="0")
    with Harness(made.app, store=tmp_path / "store", sinks=True, start_from="0") as h:
        assert shown(made.table) == before and hr.Store(h.store).timeline == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "which leave the state when they are over"),
        ({"keep": "30m"}, "windows ended there that are kept no longer"),
        ({"keep": "4h", "fire": hr.per_epoch()}, "which give rows before they end"),
        ({"keep": "4h", "then": lambda row: row.replace(page=row.page.upper())}, "that are changed on their way"),
    ],
    ids=["gone", "kept too short", "early", "another key"],
)
def test_what_no_state_tells_is_refused_with_the_reason(tmp_path: Path, options: Any, reason: str) -> None:
    made = program(KeyedTable(*KEY), WINDOWS["tumbling"], **options)
    with Harness(made.app, store=tmp_path / "store", sinks=True, start="2024-01-01T12:00") as h:
        play(h, made, BEFORE)
        play(h, made, BEHIND)
        end = shown(made.table)
        with pytest.raises(Refused, match="rows went out behind epoch 0") as refused:
            h.rewind(0)
        assert reason in str(refused.value.found)
        assert shown(made.table) == end


def test_a_target_that_finds_rows_by_less_than_key_and_window_is_refused(tmp_path: Path) -> None:
    made = program(KeyedTable("page"), WINDOWS["tumbling"], keep="4h")
    with Harness(made.app, store=tmp_path / "store", sinks=True, start="2024-01-01T12:00") as h:
        play(h, made, BEFORE)
        play(h, made, BEHIND)
        with pytest.raises(Refused) as refused:
            h.rewind(0)
        assert "does not find by key and window" in str(refused.value.found)
