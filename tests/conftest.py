"""Fixtures that every room shares. One Spark session, and one object store, serve all tests that need one."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import EnvironmentMissing
from tests.effort import load_profile, spare_the_disk
from tests.jvm import start_quickly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.objects import ObjectServer
    from tests.services.kafka import Broker
    from tests.services.postgres import Postgres
    from tests.services.redis import Redis

load_profile()
spare_the_disk()
start_quickly()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets processes share the work: what takes seconds to start is started in few of them, the long ones first."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_shared(item) or item.nodeid.partition("::")[0]))
    items.sort(key=_begins)


def pytest_collection_finish() -> None:
    """Thousands of tests and all modules are there to stay: looking at them again and again, whether they are garbage,
    took a tenth of the time of what runs in these processes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _shared(item: pytest.Item) -> str:
    """Tests of one name run in one process: one Spark for all who need it, one broker for those who need no Spark."""
    fixtures = set(getattr(item, "fixturenames", ()))
    if "spark" in fixtures:
        return "spark"
    return "servers" if fixtures & {"kafka", "postgres"} else ""


def _begins(item: pytest.Item) -> int:
    """Pieces are given out in this order; the longest must not begin last."""
    if _shared(item):
        return 0
    if item.get_closest_marker("spark"):  # of its own, which takes longest
        return 1
    return 2 if item.get_closest_marker("slow") else 3


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with Headrace's settings, and with Kafka's connector where it can be had."""
    from headrace.spark.connectors import with_connectors
    from headrace.spark.session import make_session

    conf = {"spark.driver.memory": "1g"}
    with contextlib.suppress(EnvironmentMissing):  # tests that need it ask for `kafka_spark`
        conf = with_connectors(["kafka"], conf)
    try:
        session = make_session("tests", "local[2]", conf)
    except EnvironmentMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    jvm = session.sparkContext._gateway.proc
    yield session
    session.stop()
    # Left to end by itself, the first JVM of a machine writes an archive of all classes that it has loaded, for a
    # minute of a core. Those that tests start as users do write one of those that users need.
    jvm.kill()


@pytest.fixture(scope="session")
def kafka_spark(spark: SparkSession) -> SparkSession:
    """The same session, for tests that read Kafka with it."""
    from headrace.spark.connectors import check_connectors

    try:
        check_connectors(spark, ["kafka"])
    except EnvironmentMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    return spark


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the whole run; a test uses topics of its own, and leaves it running."""
    from tests.services.kafka import Broker

    broker = Broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A cluster for the whole run; a test uses a database of its own, and leaves it running."""
    from tests.services.postgres import Postgres

    cluster = Postgres()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis for the whole run; a test uses keys of its own, and leaves it running."""
    from tests.services.redis import Redis

    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


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


@pytest.fixture(scope="module")
def new_clients() -> Iterator[None]:
    """Clients of object stores are kept by their arguments, and the environment is none of them."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(
    object_server: ObjectServer, new_clients: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A new bucket, to be reached as users reach theirs: by what the environment says."""
    from s3fs import S3FileSystem

    from tests.objects import ACCESS, Faults

    access = {**ACCESS, "AWS_ENDPOINT_URL": object_server.url}
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "FSSPEC_S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "machine"))
    yield object_server.make_bucket()
    object_server.faults = Faults()
    # A client takes half a second to make and some megabytes, so that most tests of a file share one.
    if any(os.environ.get(name) != value for name, value in access.items()):
        S3FileSystem.clear_instance_cache()
