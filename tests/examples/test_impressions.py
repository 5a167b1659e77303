from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_program


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("impressions", tmp_path)


def push(h: hr.testing.Harness, program: Any, *seen: tuple[str, str]) -> None:
    h.push(program.impressions, *(program.Impression(tweet, h.at(at)) for tweet, at in seen))


def test_views_are_counted_in_all_and_in_windows(program: Any, store_path: Path) -> None:
    with hr.testing.Harness(program.app, start="2024-05-01T12:00", store=store_path) as h:
        push(h, program, ("tweet-1", "12:00:01"), ("tweet-1", "12:00:02"), ("tweet-2", "12:00:02"))
        h.epoch(watermark="12:00:01")
        push(h, program, ("tweet-1", "12:00:06"))
        h.epoch(watermark="12:00:03")
        store = hr.Store(store_path)
        totals = store.state("totals", program.Total)
        assert (totals["tweet-1"].views, totals["tweet-1"].last_seen) == (3, h.at("12:00:06"))
        windows = store.state("recent", program.Recent).windows("tweet-1")
        assert [value.views for value in windows.values()] == [2, 1]


def test_a_closed_window_stays_readable_for_two_minutes(program: Any, store_path: Path) -> None:
    with hr.testing.Harness(program.app, start="2024-05-01T12:00", store=store_path) as h:
        push(h, program, ("tweet-1", "12:00:01"))
        h.epoch(watermark="12:00:10")
        assert len(hr.Store(store_path).state("recent").windows("tweet-1")) == 1
        push(h, program, ("tweet-1", "12:02:30"))
        h.epoch(watermark="12:02:30")
        windows = hr.Store(store_path).state("recent").windows("tweet-1")
        assert [str(window.start) for window in windows] == [str(h.at("12:02:30"))]


def test_nothing_is_counted_twice_after_a_crash(program: Any, store_path: Path) -> None:
    with hr.testing.Harness(program.app, start="2024-05-01T12:00", store=store_path) as h:
        push(h, program, ("tweet-1", "12:00:01"))
        h.epoch(watermark="12:00:01")
        push(h, program, ("tweet-1", "12:00:02"))
        h.crash(at="before_publish", watermark="12:00:02")
        assert hr.Store(store_path).state("totals", program.Total)["tweet-1"].views == 1
        h.epoch(watermark="12:00:02")
        assert hr.Store(store_path).state("totals", program.Total)["tweet-1"].views == 2


def test_views_are_skewed_and_other_tweets_take_over(program: Any) -> None:
    rng = random.Random(1)
    early = Counter(program.make_impression(i, rng).tweet for i in range(3000))
    late = Counter(program.make_impression(i, rng).tweet for i in range(30 * program.RATE, 30 * program.RATE + 3000))
    most, views = early.most_common(1)[0]
    assert views > 1000
    assert late[most] < views / 4


@pytest.mark.spark
def test_on_spark_the_totals_are_what_was_made(tmp_path: Path, spark: Any) -> None:
    program = load_program("impressions", tmp_path)
    store = tmp_path / "store"
    program.app.run(until="caught_up", spark=spark, store=store, parallelism=2)
    totals = dict(hr.Store(store).state("totals", program.Total).scan())
    assert sum(total.views for total in totals.values()) == 2 * program.RATE
