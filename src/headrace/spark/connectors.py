"""Jars that Spark lacks for some sources: where they are found, and how they are fetched, once.

A session must have them from its start, so they are looked for before it is made, in this order:

1. jars that Spark has already: in its own folder, or named by its settings (``spark.jars``, ``spark.jars.packages``);
2. the folder of connectors, filled by ``headrace connectors install`` or by a program that needed one: one folder per
   connector and version of Spark, which appears whole or not at all;
3. fetched into that folder: by Maven in the version of the running Spark, or else in versions that are known to run
   with it; where there is no Maven, by Spark's own resolver of packages.

Nothing here imports pyspark at the top: a command that only lists what is there starts no JVM.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.durable import move
from headrace.errors import EnvironmentMissing
from headrace.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.plan.physical import Program

log = logging.getLogger("headrace.connectors")

FOLDER: Final = "HEADRACE_CONNECTORS_DIR"
"""Environment variable that names the folder of connectors."""

_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_FETCH_TIMEOUT_S: Final = 300
_JAR_SETTINGS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")

Say = Callable[[str], object]


class Artifact(NamedTuple):
    """A jar by its coordinates; `scala`: the name ends with the version of Scala that Spark was built with."""

    group: str
    name: str
    scala: bool = False
    of_spark: bool = False
    """Whether it has the version of Spark."""
    pinned: str = ""
    """A version that is known to run, where Spark's own cannot be had; for others, the version."""


class Connector(NamedTuple):
    """What a format of Spark needs."""

    name: str
    format: str
    """How Spark is asked for it."""
    artifacts: tuple[Artifact, ...]
    """The first one is the connector itself; the others are what it needs and Spark has not."""

    @property
    def mark(self) -> str:
        """What the name of its jar begins with."""
        return self.artifacts[0].name


CONNECTORS: Final = {
    "kafka": Connector(
        "kafka",
        "kafka",
        (
            Artifact("org.apache.spark", "spark-sql-kafka-0-10", scala=True, of_spark=True, pinned="4.2.0"),
            Artifact("org.apache.spark", "spark-token-provider-kafka-0-10", scala=True, of_spark=True, pinned="4.0.0"),
            Artifact("org.apache.kafka", "kafka-clients", pinned="3.9.2"),
            Artifact("org.apache.commons", "commons-pool2", pinned="2.13.1"),
        ),
    )
}


class Spark(NamedTuple):
    """The Spark that programs run on, as far as its folder tells."""

    home: Path
    version: str
    scala: str


class InstalledConnector(NamedTuple):
    """Where a connector is."""

    where: str
    """``spark`` (it has it already), ``folder``, or ``settings``."""
    jars: tuple[str, ...] = ()
    """To be added to the session."""


def find_spark() -> Spark:
    """The installed Spark, without starting it."""
    from pyspark.find_spark_home import _find_spark_home

    home = Path(_find_spark_home())
    for jar in (home / "jars").glob("spark-core_*.jar"):
        if named := re.fullmatch(r"spark-core_([\d.]+)-(.+)\.jar", jar.name):
            return Spark(home, named[2], named[1])
    raise EnvironmentMissing(
        "the Spark installation is incomplete",
        where=str(home),
        expected="a folder jars/ with spark-core in it",
        found="none",
        next_move="pip install --force-reinstall pyspark",
    )


def connectors_folder() -> Path:
    """Where fetched jars are kept; it can be deleted at any time."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "headrace" / "connectors"


def jar_folder(connector: Connector, spark: Spark) -> Path:
    return connectors_folder() / f"{connector.name}-spark{spark.version}"


def find_connector(name: str, spark: Spark, conf: Mapping[str, str] | None = None) -> InstalledConnector | None:
    """Where a connector is; None: it has to be fetched. Looks at files and settings only."""
    connector = CONNECTORS[name]
    if any((spark.home / "jars").glob(f"{connector.mark}*.jar")):
        return InstalledConnector("spark")
    if any(connector.mark in text for text in _jar_settings(spark, conf or {})):
        return InstalledConnector("settings")
    jars = sorted(jar_folder(connector, spark).glob("*.jar"))
    return InstalledConnector("folder", tuple(map(str, jars))) if jars else None


def _jar_settings(spark: Spark, conf: Mapping[str, str]) -> Iterable[str]:
    """Texts in which a user may have named jars."""
    yield from (conf[name] for name in _JAR_SETTINGS if name in conf)
    yield os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or spark.home / "conf") / "spark-defaults.conf"
    if defaults.is_file():
        lines = defaults.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from (line for line in lines if line.lstrip().startswith(_JAR_SETTINGS))


def needed_connectors(program: Program) -> tuple[str, ...]:
    """The connectors that the sources of a program need."""
    return tuple(sorted({source.source.connector for source in program.sources if source.source.connector}))


def with_connectors(names: Collection[str], conf: Mapping[str, str], say: Say = log.warning) -> dict[str, str]:
    """The settings of a session to be made, with the jars it has to have. Fetches those that are nowhere."""
    made = dict(conf)
    if not names:
        return made
    spark = find_spark()
    for name in names:
        found = find_connector(name, spark, made) or install_connector(name, spark, say)
        if found.jars:
            given = made.get("spark.jars", "")
            made["spark.jars"] = ",".join([*([given] if given else []), *found.jars])
    return made


def check_connectors(session: SparkSession, names: Collection[str]) -> None:
    """Refuses a session that runs already and lacks a connector: jars cannot be added to it any more."""
    jvm: Any = session.sparkContext._jvm
    for name in names:
        connector = CONNECTORS[name]
        try:
            conf = session._jsparkSession.sessionState().conf()
            jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(connector.format, conf)
        except Exception as error:
            found = find_connector(name, find_spark())
            jars = ",".join(found.jars) if found is not None else ""
            raise EnvironmentMissing(
                f"the Spark session has no connector for {connector.format}",
                where="the session that was given, or that runs in this process",
                expected=f"{connector.mark} among the jars it was started with",
                found="none",
                next_move=f'make the session with .config("spark.jars", "{jars}"), or let us make it'
                if jars
                else f"headrace connectors install {name}, and make the session with those jars, or let us make it",
            ) from error


# --- fetching


def install_connector(name: str, spark: Spark, say: Say, *, replace: bool = False) -> InstalledConnector:
    """Fetches the jars of a connector into their folder. ``replace``: also where somebody was quicker."""
    connector = CONNECTORS[name]
    folder = jar_folder(connector, spark)
    maven = shutil.which("mvn")
    say(f"fetching the connector for {name} ({'by Maven' if maven else 'as a package of Spark'}), once: {folder}")
    reasons = []
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as scratch:
            for way in _ways(connector, spark, maven):
                jars = Path(scratch) / "jars"
                shutil.rmtree(jars, ignore_errors=True)
                reason = way(jars)
                if reason is None:
                    return _put_in_place(jars, folder, Path(scratch) / "before" if replace else None)
                reasons.append(reason)
    except OSError as error:
        reasons.append(f"{folder}: {error.strerror or error}")
    raise EnvironmentMissing(
        f"the jars that Spark needs to read from {name} are not here, and could not be fetched",
        where="connectors",
        expected=f"{connector.mark} among Spark's jars, or in {connectors_folder()}",
        found="; ".join(reasons) or "nothing that could fetch them",
        next_move=f"headrace connectors install {name}, where a repository of Maven can be reached"
        + ("" if maven else " (apt-get install maven may help)")
        + f"; or copy such a folder from another machine to {folder}",
    )


def _put_in_place(jars: Path, folder: Path, aside: Path | None) -> InstalledConnector:
    """Only a whole folder gets the name. One that is there goes aside, or stays: a JVM may be reading it."""
    if aside is not None and folder.is_dir():
        move(folder, aside)
    try:
        move(jars, folder)
    except OSError:
        if not any(folder.glob("*.jar")):
            raise
    return InstalledConnector("folder", tuple(map(str, sorted(folder.glob("*.jar")))))


Way = Callable[[Path], str | None]
"""Fetches jars into a folder that it makes; the reason, where it cannot."""


def _ways(connector: Connector, spark: Spark, maven: str | None) -> Iterable[Way]:
    own = [_coordinates(artifact, spark, artifact.of_spark) for artifact in connector.artifacts]
    known = [_coordinates(artifact, spark, False) for artifact in connector.artifacts]
    if maven is not None:
        yield lambda jars: _fetch_by_maven(maven, own, jars)
        if known != own:
            yield lambda jars: _fetch_by_maven(maven, known, jars)
    yield lambda jars: _fetch_by_spark(spark, own[0], jars)


def _coordinates(artifact: Artifact, spark: Spark, as_spark: bool) -> str:
    name = f"{artifact.name}_{spark.scala}" if artifact.scala else artifact.name
    return f"{artifact.group}:{name}:{spark.version if as_spark else artifact.pinned}"


_POM: Final = """<project>
<modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>connectors</artifactId><version>1</version><packaging>pom</packaging>
<build><plugins><plugin>
<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>
<configuration><outputDirectory>{folder}</outputDirectory><artifactItems>{items}</artifactItems></configuration>
</plugin></plugins></build>
</project>
"""
_ITEM: Final = "<artifactItem><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></artifactItem>"


def _fetch_by_maven(maven: str, coordinates: list[str], jars: Path) -> str | None:
    """Each jar by itself: what they depend on is listed, and Spark has the rest."""
    items = "".join(_ITEM.format(*each.split(":")) for each in coordinates)
    (jars.parent / "pom.xml").write_text(_POM.format(folder=jars, items=items), encoding="utf-8")
    said = _run([maven, "-q", "-B", _PLUGIN], jars.parent)
    missing = len(coordinates) - len(list(jars.glob("*.jar")))
    if said is None and missing == 0:
        return None
    first = next((line for line in (said or "").splitlines() if "ERROR" in line), said or f"{missing} jars are missing")
    return f"Maven, {coordinates[0]}: {_plain(first)}"


def _fetch_by_spark(spark: Spark, coordinates: str, jars: Path) -> str | None:
    """What ``spark.jars.packages`` does, in a process of its own: the session's would end at a failure."""
    submit = spark.home / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", "--packages", coordinates]
    # Any program that ends by itself will do; the jars are fetched before it starts.
    command += ["--conf", f"spark.jars.ivy={jars.parent}", "--class", "org.apache.hadoop.util.VersionInfo"]
    said = _run([*command, "spark-internal"], jars.parent)
    if said is None and any(jars.glob("*.jar")):
        return None
    first = next((line for line in (said or "").splitlines() if "unresolved" in line or "Exception" in line), "no jars")
    return f"Spark's packages, {coordinates}: {_plain(first)}"


def _run(command: list[str], folder: Path) -> str | None:
    """What a program said, where it failed; None where it did not."""
    environ = {**os.environ, "JAVA_HOME": str(find_java())}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_FETCH_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"ERROR {error}"
    return None if done.returncode == 0 else done.stdout + done.stderr


def _plain(line: str) -> str:
    line = re.sub(r"\x1b\[[\d;]*m|\[ERROR\]|-> \[Help \d+\]", "", line)
    return re.sub(r".*?(Could not|Unable to|Unknown host|unresolved)", r"\1", line).strip()[:200]
