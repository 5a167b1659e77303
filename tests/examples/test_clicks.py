from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("clicks", tmp_path)


def test_a_click_after_half_an_hour_of_silence_begins_a_visit(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        for at in ("12:00", "12:10", "12:45", "12:50"):
            h.push(program.clicks, program.Click("ann", "/news", h.at(at)))
            h.epoch()
        began = [(visit.nth, visit.at) for visit in h.take(program.visits)]
        assert began == [(1, h.at("12:00")), (2, h.at("12:45"))]


def test_totals_of_a_page_count_clicks_and_distinct_users(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        for user, page in (("ann", "/"), ("ann", "/"), ("bob", "/"), ("bob", "/news")):
            h.push(program.clicks, program.Click(user, page, h.at("12:00:01")))
        h.epoch()
        totals = {total.page: total for total in h.take(program.pages)}
        assert totals["/"] == program.PageTotal("/", 3, 2, h.at("12:00:01"))
        assert totals["/news"].users == 1


@pytest.mark.spark
def test_on_spark_a_second_run_goes_on_where_the_first_stopped(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("clicks")
    rows = maker.make_clicks(users=10, visits=3)
    half = len(rows) // 2
    program = load_program("clicks", tmp_path)
    maker.write_files(rows[:half], tmp_path / "clicks", files=1)
    program.app.run(until="caught_up", spark=spark, store=tmp_path / "store", parallelism=2)
    maker.write_files(rows[half:], tmp_path / "more", files=1)
    (tmp_path / "more" / "clicks-0.json").rename(tmp_path / "clicks" / "more.json")
    program = load_program("clicks", tmp_path)
    program.app.run(until="caught_up", spark=spark, store=tmp_path / "store", parallelism=3)
    visits = read_lines(tmp_path / "visits")
    assert sorted({(row["user"], row["nth"]) for row in visits}) == sorted((row["user"], row["nth"]) for row in visits)
    assert len(visits) >= 30
    clicked = hr.Store(tmp_path / "store").state("pages")
    assert set(clicked) == {row["page"] for row in rows}
