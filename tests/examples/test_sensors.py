from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("sensors", tmp_path)


def test_readings_are_converted_and_impossible_ones_left_out(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        at = h.at("12:00:00")
        h.push(program.readings, program.Reading("hall-1", at, 100.0), program.Reading("loft-2", at, 999.0))
        h.epoch()
        assert h.take(program.measured) == [program.Measured("hall-1", "hall", at, 100.0, 212.0, True)]


def test_the_latest_reading_of_a_sensor_is_kept_by_event_time(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.readings, program.Reading("hall-1", h.at("12:00:05"), 20.0))
        h.epoch()
        h.push(program.readings, program.Reading("hall-1", h.at("12:00:01"), 99.0))
        h.epoch()
        assert h.state(program.latest, key="hall-1").celsius == 20.0


def told(rows: list[Any]) -> list[tuple[str, int, float, str, str]]:
    return sorted((row.room, row.readings, row.mean, row.warmest, row.pane) for row in rows)


def test_sensors_of_a_room_share_its_windows_in_whatever_order_readings_come(program: Any) -> None:
    rows = [("hall-1", "12:04:59"), ("hall-2", "12:00:00"), ("loft-1", "12:03"), ("hall-1", "12:05:00")]
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        for celsius, (sensor, at) in enumerate(rows):
            h.push(program.readings, program.Reading(sensor, h.at(at), float(celsius)))
        h.epoch(watermark="12:05")
        assert told(h.take(program.climate)) == [
            ("hall", 2, 0.5, "hall-2", "on_time"),
            ("loft", 1, 2.0, "loft-1", "on_time"),
        ]
        assert h.state(program.climate, key="hall").window_start == h.at("12:05"), "the next window fills"


def test_a_window_is_shown_while_it_fills_then_on_time_then_refined_and_kept_once(program: Any) -> None:
    finals, late = program.climate.finals(), program.climate.late
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.readings, program.Reading("hall-1", h.at("12:01"), 20.0))
        h.epoch(clock="12:00:09")
        assert h.take(program.climate) == []
        h.epoch(clock="12:00:10")
        assert told(h.take(program.climate)) == [("hall", 1, 20.0, "hall-1", "early")]
        h.push(program.readings, program.Reading("hall-2", h.at("12:02"), 30.0))
        h.crash(at="before_publish", watermark="12:05")
        h.epoch(watermark="12:05")
        assert told(h.take(program.climate)) == [("hall", 2, 25.0, "hall-2", "on_time")]
        h.push(program.readings, program.Reading("hall-3", h.at("12:03"), 40.0))
        h.epoch(watermark="12:10")
        refined = h.take(program.climate)
        assert told(refined) == [("hall", 3, 30.0, "hall-3", "late")]
        assert h.take(finals) == []
        h.epoch(watermark="12:15")
        assert h.take(finals) == refined
        h.push(program.readings, program.Reading("hall-4", h.at("12:04"), 50.0))
        h.epoch()
        assert [row.sensor for row in h.take(late)] == ["hall-4"]
        assert h.take(program.climate) == h.take(finals) == []


def test_of_the_sample_data_every_reading_is_in_one_window_or_late(program: Any) -> None:
    maker = load_maker("sensors")
    finals, late = program.climate.finals(), program.climate.late
    with hr.testing.Harness(program.app, start="2024-01-01T00:00") as h:
        sound = [row for row in readings_of(program, maker.make_lines(3000)) if row.celsius < 150]
        held_back = list(readings_of(program, maker.make_late_lines(3000)))
        h.push(program.readings, *sound)
        h.epoch()
        closed = h.take(finals)
        assert len(closed) == 21, "three rooms, windows that end ten minutes before the newest reading or earlier"
        h.push(program.readings, *held_back)
        h.epoch()
        too_late = h.take(late)
        assert 0 < len(too_late) < len(held_back)
        h.drain()
        counted = sum(row.readings for row in closed + h.take(finals))
        assert counted + len(too_late) == len(sound) + len(held_back)


def readings_of(program: Any, lines: list[str]) -> Iterator[Any]:
    for line in lines:
        sensor, at, celsius = line.split(",")
        if celsius != "warm":
            yield program.Reading(sensor, hr.timestamp(at), float(celsius))


@pytest.mark.spark
def test_on_spark_bad_rows_go_to_their_folder_and_the_rest_goes_on(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("sensors")
    lines = maker.make_lines(500)
    maker.write_files(lines, tmp_path / "readings")
    program = load_program("sensors", tmp_path)
    program.app.run(until="caught_up", spark=spark, store=tmp_path / "store", parallelism=2)
    bad = read_lines(tmp_path / "bad")
    assert len(bad) == sum(line.endswith(",warm") for line in lines)
    sensors = {line.split(",")[0] for line in lines}
    latest = hr.Store(tmp_path / "store").state("latest", program.Measured)
    assert set(latest) == sensors
    assert all(row.celsius <= 150 for row in latest.values())
    assert latest.to_polars().height == len(sensors)
