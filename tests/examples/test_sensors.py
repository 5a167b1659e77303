from __future__ import annotations

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
        h.push(program.readings, program.Reading("mill-1", at, 100.0), program.Reading("weir-2", at, 999.0))
        h.epoch()
        assert h.take(program.measured) == [program.Measured("mill-1", "mill", at, 100.0, 212.0, True)]


def test_the_latest_reading_of_a_sensor_is_kept_by_event_time(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.readings, program.Reading("mill-1", h.at("12:00:05"), 20.0))
        h.epoch()
        h.push(program.readings, program.Reading("mill-1", h.at("12:00:01"), 99.0))
        h.epoch()
        assert h.state(program.latest, key="mill-1").celsius == 20.0


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
    assert latest.to_polars().unnest("value").height == len(sensors)
