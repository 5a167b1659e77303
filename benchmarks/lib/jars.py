"""Jars that peers need, fetched once by Maven into `benchmarks/.envs/jars/`.

Each is fetched by itself: the connectors' poms name repositories that need not be reachable.
"""

from __future__ import annotations

import shutil
import subprocess

from benchmarks.lib.environments import ENVIRONMENTS
from benchmarks.lib.progress import say

FLINK_KAFKA = ("org.apache.flink:flink-sql-connector-kafka:4.0.1-2.0",)
FLINK_PARQUET = (
    "org.apache.flink:flink-sql-parquet:2.3.0",
    # Its reader takes settings of Hadoop's class, though it reads no file by it.
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "commons-logging:commons-logging:1.3.4",
)
SPARK_KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


class MavenMissing(Exception):
    """There is no Maven on this machine to fetch jars with."""


def jars(artifacts: tuple[str, ...]) -> list[str]:
    """The paths of these artifacts on this machine."""
    return [_jar(artifact) for artifact in artifacts]


def _jar(artifact: str) -> str:
    _, name, version = artifact.split(":")
    folder = ENVIRONMENTS / "jars"
    file = folder / f"{name}-{version}.jar"
    if not file.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise MavenMissing(f"Maven is needed to fetch {artifact}: apt-get install maven")
        say(f"fetching {artifact}, once")
        command = [maven, "-q", "-B", _COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(file)
