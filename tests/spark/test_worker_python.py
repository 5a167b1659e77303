"""Spark's Python processes run the driver's interpreter, with the modules that the driver has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark import session

SCRIPT = Path(session.__file__).with_name("worker_python.sh")


def ask(code: str, path: list[str]) -> str:
    """What the interpreter says that Spark would start, with this PYTHONPATH from Spark."""
    environment = {**os.environ, "HEADRACE_WORKER_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([SCRIPT, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_archives_of_spark_are_passed_over_and_everything_else_is_kept_in_order() -> None:
    spark = "/opt/spark/4.3"
    told = ask(
        "import os; print(os.environ['PYTHONPATH'])",
        [
            f"{spark}/python/lib/pyspark.zip",
            f"{spark}/python/lib/py4j-0.10.9.9-src.zip",
            "/srv/ann/my modules",
            f"{spark}/jars/spark-core_2.13-4.3.0.jar",
            "/srv/ann/shared/*.zip",
            "/srv/ann/shared/rules.zip",
        ],
    )
    assert told.split(os.pathsep) == ["/srv/ann/my modules", "/srv/ann/shared/*.zip", "/srv/ann/shared/rules.zip"]


def test_it_is_the_drivers_interpreter_with_its_arguments() -> None:
    assert ask("import sys; print(sys.executable)", []) == sys.executable
    assert ask("print('two words')", []) == "two words"


def test_pyspark_comes_from_where_the_driver_has_it() -> None:
    import pyspark

    archive = str(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")
    assert ask("import pyspark; print(pyspark.__file__)", [archive]) == pyspark.__file__


def test_other_machines_are_not_told_of_a_script_that_only_this_one_has() -> None:
    assert session._worker_python("local[2]") == str(SCRIPT)
    assert session._worker_python("spark://host:7077") == sys.executable


def test_what_the_user_says_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    session._choose_python("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_importing_headrace_loads_no_room_and_a_ticker_needs_few() -> None:
    counted = "import {}, sys; print(sum(name.startswith('headrace.') for name in sys.modules))"
    assert int(ask(counted.format("headrace"), [])) == 0
    assert int(ask(counted.format("headrace.spark.ticker"), [])) < 15
    assert int(ask(counted.format("headrace.spark.python_source"), [])) < 50


def test_a_room_that_is_loaded_first_does_not_hide_a_public_name() -> None:
    assert ask("import headrace.state.layout, headrace; print(callable(headrace.state))", []) == "True"
