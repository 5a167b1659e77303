"""A sink that is slower than its source, for a moment of what `tests.slow_sink` does for minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import EnvironmentMissing
from headrace.spark.java import find_java
from tests.services import missing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the memory of other processes")
def test_memory_stays_where_it_is_while_a_sink_is_slower_than_the_source() -> None:
    try:
        find_java()
    except EnvironmentMissing as no_java:
        missing(str(no_java))
    command = [sys.executable, "-m", "tests.slow_sink", "--seconds", "6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {word for word in ("driver", "jvm", "worker") if word in done.stdout.splitlines()[-1]} == {
        "driver",
        "jvm",
        "worker",
    }
