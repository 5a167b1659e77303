"""Fixtures that every room shares. One Spark session, and one object store, serve all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import EnvironmentMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.objects import ObjectServer


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


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """S3 as moto plays it, on a port of its own."""
    from tests.objects import ObjectServer

    try:
        import s3fs  # noqa: F401

        server = ObjectServer()
    except ImportError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f'{missing}; pip install -e ".[dev]" brings an object store for tests')
    with server:
        yield server


@pytest.fixture
def bucket(object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket, to be reached as users reach theirs: by what the environment says."""
    from s3fs import S3FileSystem

    from tests.objects import ACCESS, Faults

    for name, value in {**ACCESS, "AWS_ENDPOINT_URL": object_server.url}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "FSSPEC_S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "machine"))
    # Clients are kept by their arguments, and the environment is none of them.
    S3FileSystem.clear_instance_cache()
    yield object_server.make_bucket()
    object_server.faults = Faults()
    S3FileSystem.clear_instance_cache()
