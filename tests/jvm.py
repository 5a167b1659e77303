"""How the JVMs of tests are started: most of them live for seconds, so what counts is how soon they are there."""

from __future__ import annotations

import os
from typing import Final

QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A JVM that optimises little and collects garbage with one thread: a program of a few epochs takes 13 seconds of a
core with it, and 23 without."""

UNCOMPILED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of a Spark that makes no Java of its plans: a second less for each start of a program with few rows.
Only for tests that look at something else: users' programs run what Spark compiles."""

LAUNCH: Final = "SPARK_SUBMIT_OPTS"
"""Where Spark's launcher looks for options of the driver's JVM."""


def start_quickly() -> None:
    """For every Spark that is started from here on, also by a program that a test starts."""
    os.environ.setdefault(LAUNCH, " ".join(QUICK))
