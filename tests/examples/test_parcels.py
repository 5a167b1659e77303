from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("parcels", tmp_path)


def test_a_parcel_without_a_scan_for_ten_hours_is_missed_once(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T06:00") as h:

        def scan(parcel: str, at: str, what: str) -> None:
            h.push(program.scans, program.Scan(parcel, h.at(at), what, "van-1"))

        scan("delivered", "08:00", "loaded")
        scan("delivered", "10:00", "delivered")
        scan("returned", "08:00", "loaded")
        scan("returned", "15:00", "returned")
        scan("lost", "08:00", "loaded")
        scan("lost", "12:00", "nobody home")
        h.epoch(watermark="17:59")
        assert h.take(program.missed) == []
        (partial,) = h.state(program.watched, program.watched.partial, "lost").matches
        assert partial.until == h.at("18:00")
        assert h.state(program.watched, program.watched.partial, "delivered") is None
        h.crash(at="before_publish", watermark="18:00")
        h.epoch(watermark="18:00")
        assert h.take(program.missed) == [program.Missed("lost", "van-1", h.at("08:00"))]
        assert h.take(program.tours) == [program.Tour("delivered", "van-1", 120.0)]
        h.drain()
        assert h.take(program.missed) == []


@pytest.mark.spark
def test_on_spark_the_lost_parcels_of_the_sample_data_are_missed(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("parcels")
    maker.write_files(maker.make_scans(100), tmp_path / "scans")
    program = load_program("parcels", tmp_path)
    program.app.run(until="caught_up", spark=spark, store=tmp_path / "store", parallelism=2)
    missed = {row["parcel"] for row in read_lines(tmp_path / "missed")}
    assert missed == {f"parcel-{i}" for i in range(7, 100, 20)}
    waits = hr.Store(tmp_path / "store").state("missed.partial")
    assert list(waits) == ["parcel-100"]
