"""Fixtures that every room shares. One Spark session serves all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import EnvironmentMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with Headrace's settings."""
    from headrace.spark.session import make_session

    try:
        session = make_session(
            "tests",
            "local[2]",
            {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
        )
    except EnvironmentMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield session
    session.stop()


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store"
