from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.loading import load_app
from headrace.dataflow.graph import WriteNode
from tests.examples.programs import EXAMPLES, load_maker, read_lines


def load(data: Path) -> hr.App:
    return load_app(str(EXAMPLES / "machines" / "machines.sql"), variables={"data": str(data)})


def test_a_valley_is_told_with_the_reading_before_it_and_its_bottom(tmp_path: Path) -> None:
    (tmp_path / "readings").mkdir()
    app = load(tmp_path)
    (node,) = [node for node in app.nodes if node.name == "readings"]
    (output,) = [node for node in app.nodes if isinstance(node, WriteNode)]
    readings: hr.Stream[Any] = hr.Stream(app, node)
    failures: hr.Stream[Any] = hr.Stream(app, output.inputs[0])
    with hr.testing.Harness(app, start="2024-01-01") as h:
        for minute, celsius in enumerate([70.0, 69.0, 70.0, 64.0, 58.0, 61.0, 69.0, 68.5]):
            h.push(readings, node.codec.type(machine="m", at=h.at(f"12:0{minute}"), celsius=celsius))
        h.epoch(watermark="12:05")
        assert h.take(failures) == []
        h.epoch(watermark="12:30")
        (row,) = h.take(failures)
        assert (row.before, row.lowest, row.after, row.readings) == (70.0, 58.0, 69.0, 4)
        assert (row.since, row.until) == (h.at("12:03"), h.at("12:06"))


@pytest.mark.spark
def test_on_spark_every_failure_of_the_sample_data_is_found_once(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("machines")
    maker.write_files(maker.make_lines(240), tmp_path / "readings")
    load(tmp_path).run(until="drained", spark=spark, store=tmp_path / "store", parallelism=2)
    failures = read_lines(tmp_path / "failures")
    assert sorted(row["machine"] for row in failures) == [f"machine-{i}" for i in range(4)]
    assert all(row["before"] - row["lowest"] > 20 for row in failures)
