"""Whose Spark a run uses, and who ends it. In a process of its own: the other tests share one context."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import time
from pyspark import SparkContext
from pyspark.sql import SparkSession
import headrace as hr


class Event(hr.Record):
    key: str
    n: int


def start(name, source, until="caught_up"):
    app, sink = hr.App(name), hr.sink.collect()
    app.read("events", source, Event).key_by(Event.key).aggregate(total=hr.sum("n")).named("total").write(sink)
    return app.start(until=until, store=f"{FOLDER}/{name}", parallelism=1), sink


def items():
    return hr.source.items([Event("a", 1), Event("a", 2)])


long, _ = start("long", hr.source.generator(lambda i, rng: Event("a", i), rate=50), "stopped")
while long.epoch < 0:
    assert not long.wait(0.05)
context = SparkContext._active_spark_context
short, sink = start("short", items())
assert short.wait(120)
assert sink.rows[-1].total == 3
assert SparkContext._active_spark_context is context, "another run uses it"
before = long.epoch
while long.epoch < before + 2:
    assert not long.wait(0.05)
long.stop()
assert SparkContext._active_spark_context is None, "the last run ends what a run began"

mine = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
mine.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
adaptive = mine.conf.get("spark.sql.adaptive.enabled")
run, sink = start("beside", items())
assert run.wait(120)
assert sink.rows[-1].total == 3
assert mine.range(3).count() == 3, "it is not ours to end"
assert mine.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
assert mine.conf.get("spark.sql.adaptive.enabled") == adaptive
mine.stop()
print("all is well")
"""


def test_runs_share_a_context_and_end_only_what_a_run_began(tmp_path: Path) -> None:
    program = PROGRAM.replace("{FOLDER}", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=380)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all is well"


GREEDY = """
import headrace as hr

app = hr.App("greedy")
app.read("n", hr.source.items([1]), int).write(hr.sink.discard())
app.run(until="drained", store={store!r}, plain=True, spark={{"driver.memory": "900000g"}})
"""


def test_a_jvm_that_does_not_start_is_told_in_words(tmp_path: Path) -> None:
    program = GREEDY.format(store=str(tmp_path / "store"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    said = done.stderr
    assert done.returncode == 1
    assert "Spark's JVM ended before it was ready" in said
    assert "spark.driver.memory" in said
    assert "object heap" in done.stdout, "what Java said itself is shown"
    assert "py4j" not in said
