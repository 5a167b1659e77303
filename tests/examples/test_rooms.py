from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.loading import load_app
from headrace.dataflow.graph import WriteNode
from tests.examples.programs import EXAMPLES, load_maker, read_lines


def load(data: Path) -> hr.App:
    return load_app(str(EXAMPLES / "rooms" / "rooms.sql"), variables={"data": str(data)})


def output(app: hr.App, name: str) -> hr.Stream[Any]:
    (node,) = [node for node in app.nodes if isinstance(node, WriteNode) and node.name == name]
    return hr.Stream(app, node.inputs[0])


@pytest.fixture
def app(tmp_path: Path) -> hr.App:
    (tmp_path / "readings").mkdir()
    return load(tmp_path)


def reading(app: hr.App, h: hr.testing.Harness, sensor: str, at: str, celsius: float) -> Any:
    (node,) = [node for node in app.nodes if node.name == "readings"]
    return node.codec.type(sensor=sensor, at=h.at(at), celsius=celsius)


def test_rooms_are_seen_while_windows_fill_and_once_when_they_are_closed(app: hr.App) -> None:
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        (node,) = [node for node in app.nodes if node.name == "readings"]
        readings: hr.Stream[Any] = hr.Stream(app, node)
        h.push(readings, reading(app, h, "hall-1", "12:00:10", 20.0), reading(app, h, "hall-2", "12:01:00", 21.0))
        h.push(readings, reading(app, h, "hall-2", "12:01:10", 2000.0))
        h.epoch()
        (filling,) = h.take(app.table("filling"))
        assert (filling.room, filling.readings, filling.mean) == ("hall", 2, 20.5)
        assert h.take(output(app, "climate")) == []
        h.push(readings, reading(app, h, "hall-1", "12:06:00", 22.0))
        h.epoch()
        (closed,) = h.take(output(app, "climate"))
        assert (closed.room, closed.window_end, closed.readings, closed.mean) == ("hall", h.at("12:05"), 2, 20.5)
        h.push(readings, reading(app, h, "hall-2", "12:02:00", 19.0))
        h.epoch()
        assert [row.sensor for row in h.take(output(app, "late"))] == ["hall-2"]


@pytest.mark.spark
def test_on_spark_files_hold_each_window_once_and_bad_lines_apart(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("sensors")
    lines = maker.make_lines(500)
    maker.write_files(lines, tmp_path / "readings")
    load(tmp_path).run(until="drained", spark=spark, store=tmp_path / "store", parallelism=2)
    climate = read_lines(tmp_path / "climate")
    windows = [(row["room"], row["window_start"]) for row in climate]
    assert len(set(windows)) == len(windows) > 5
    bad = read_lines(tmp_path / "bad")
    assert len(bad) == sum(line.endswith(",warm") for line in lines)
    assert len(read_lines(tmp_path / "late")) == 0
    filling = hr.Store(tmp_path / "store").state("filling")
    assert sum(row["readings"] for row in filling.values()) == sum(row["readings"] for row in climate)
