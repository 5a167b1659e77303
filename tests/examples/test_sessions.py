from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("sessions", tmp_path)


def push(h: hr.testing.Harness, program: Any, user: str, *clicks: str) -> None:
    for click in clicks:
        at, _, page = click.partition(" ")
        h.push(program.clicks, program.Click(user, page or "/", h.at(at)))


def told(rows: list[Any]) -> list[tuple[str, int, str, str, str]]:
    return sorted((row.user, row.clicks, row.entry, row.exit, row.pane) for row in rows)


def test_half_an_hour_without_a_click_ends_a_session_in_whatever_order_clicks_come(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        push(h, program, "ann", "12:50 /about", "12:00 /", "12:20 /news")
        push(h, program, "bob", "12:00 /")
        h.epoch(watermark="12:49")
        assert told(h.take(program.sessions)) == [("bob", 1, "/", "/", "on_time")]
        h.epoch(watermark="13:20")
        assert told(h.take(program.sessions)) == [("ann", 3, "/", "/about", "on_time")], "12:20 and 12:50 touch"


def test_a_click_that_comes_late_makes_one_session_of_two(program: Any) -> None:
    finals, late = program.sessions.finals(), program.sessions.late
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        push(h, program, "ann", "12:00 /", "13:00 /about")
        h.epoch(watermark="14:00")
        assert [row[1:4] for row in told(h.take(program.sessions))] == [(1, "/", "/"), (1, "/about", "/about")]
        push(h, program, "ann", "12:30 /news")
        h.crash(at="outputs_staged")
        h.epoch()
        merged = h.take(program.sessions)
        assert told(merged) == [("ann", 3, "/", "/about", "late")]
        assert (merged[0].window_start, merged[0].window_end) == (h.at("12:00"), h.at("13:30"))
        h.epoch(watermark="19:30")
        assert h.take(finals) == merged
        push(h, program, "ann", "12:31 /weather")
        h.epoch()
        assert [click.page for click in h.take(late)] == ["/weather"]
        assert h.take(program.sessions) == []


def test_journeys_are_counted_from_session_to_session_and_robots_noticed(program: Any) -> None:
    robots = program.journeys.side(program.Journeys.robots)
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        push(h, program, "ann", "12:10 /news", "12:00 /")
        push(h, program, "bot", *(f"12:00:{second:02d} /" for second in range(20)))
        h.epoch(watermark="13:00")
        journeys = {row.user: row for row in h.take(program.journeys)}
        assert journeys["ann"] == program.Journey("ann", 1, h.at("12:00"), hr.minutes(10), ["/", "/news"])
        assert h.take(robots) == ["bot"]
        h.restart()
        push(h, program, "ann", "14:00 /")
        h.epoch(watermark="15:00")
        assert [row.nth for row in h.take(program.journeys)] == [2]


def test_sessions_are_counted_in_the_hour_in_which_they_ended(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        push(h, program, "ann", "12:00 /", "12:10 /", "12:50 /")
        push(h, program, "bob", "12:15 /")
        h.epoch(watermark="13:00")
        assert h.take(program.hours) == [program.Hour(h.at("12:00"), 2, 3)]
        h.drain()
        assert h.take(program.hours) == [program.Hour(h.at("13:00"), 1, 1)]


def test_both_steps_share_an_exchange(program: Any) -> None:
    assert "exchange 1 by user, shared by 2 steps" in program.app.explain()


def test_of_the_sample_data_every_click_is_in_one_session_or_late(program: Any) -> None:
    sent, held_back = load_maker("sessions").make_clicks(users=20, sessions=4)
    codec = program.clicks.node.codec
    finals, late = program.sessions.finals(), program.sessions.late
    with hr.testing.Harness(program.app, start="2024-01-01T08:00") as h:
        for rows in (sent, held_back):
            h.push(program.clicks, *(codec.from_json(json.dumps(row).encode()) for row in rows))
            h.epoch()
        on_time = [row for row in h.take(program.sessions) if row.pane == "on_time"]
        h.drain()
        ended = h.take(finals)
        assert sum(row.clicks for row in ended) + len(h.take(late)) == len(sent) + len(held_back)
        assert len(ended) < len(on_time), "some of them became one"


@pytest.mark.spark
def test_on_spark_late_clicks_of_a_second_run_merge_sessions_of_the_first(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("sessions")
    sent, held_back = maker.make_clicks(users=8, sessions=2)
    for rows, name, until in ((sent, "clicks", "caught_up"), (held_back, "late", "drained")):
        maker.write_file(rows, tmp_path / "clicks", name)
        program = load_program("sessions", tmp_path)
        program.app.run(until=until, spark=spark, store=tmp_path / "store", parallelism=2)
        if until == "caught_up":
            kept: Any = hr.Store(tmp_path / "store").state("sessions")
            clicks = [row["clicks"] for user in kept for row in kept.windows(user).values()]
            assert 0 < sum(clicks) == kept.to_polars()["clicks"].sum() <= len(sent)
    sessions = read_lines(tmp_path / "sessions")
    late = read_lines(tmp_path / "late")
    assert sum(row["clicks"] for row in sessions) + len(late) == len(sent) + len(held_back)
    assert any(row["pane"] == "late" for row in sessions)
    assert [row["value"] for row in read_lines(tmp_path / "robots")] == ["robot"]
