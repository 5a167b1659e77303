"""Where the jars of a connector are found, how they are fetched, and what is said when they cannot be had."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace.errors import EnvironmentMissing
from headrace.spark.connectors import (
    CONNECTORS,
    FOLDER,
    Spark,
    check_connectors,
    find_connector,
    find_spark,
    install_connector,
    with_connectors,
)
from tests.cli.calling import call, call_json

KAFKA = CONNECTORS["kafka"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of connectors, and no word of jars in the environment."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "connectors"))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    return tmp_path / "connectors"


def program(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


def filled(folder: Path, spark: Spark) -> str:
    jar = folder / f"kafka-spark{spark.version}" / "spark-sql-kafka-0-10_2.13-4.2.0.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    return str(jar)


def test_jars_are_looked_for_in_spark_then_in_settings_then_in_the_folder(folder: Path, tmp_path: Path) -> None:
    spark = find_spark()
    assert find_connector("kafka", spark) is None
    jar = filled(folder, spark)
    found = find_connector("kafka", spark)
    assert found is not None and (found.where, found.jars) == ("folder", (jar,))
    named = find_connector("kafka", spark, {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"})
    assert named is not None and (named.where, named.jars) == ("settings", ())
    whole = spark._replace(home=tmp_path / "spark")
    (whole.home / "jars").mkdir(parents=True)
    (whole.home / "jars" / "spark-sql-kafka-0-10_2.13-4.3.0.jar").touch()
    assert find_connector("kafka", whole) == ("spark", ())


def test_a_session_gets_the_jars_beside_those_the_user_named(folder: Path) -> None:
    jar = filled(folder, find_spark())
    assert with_connectors(["kafka"], {"spark.jars": "mine.jar"}) == {"spark.jars": f"mine.jar,{jar}"}
    assert with_connectors([], {}) == {}


def test_the_version_of_the_running_spark_is_tried_before_one_that_is_known_to_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    # A Maven that has everything but the version of the running Spark.
    program(
        tmp_path / "bin" / "mvn",
        f"cat pom.xml >> {asked}",
        'if grep -q "<version>9.9.9</version>" pom.xml; then echo "[ERROR] Could not find artifact"; exit 1; fi',
        "out=$(sed -n 's/.*<outputDirectory>\\(.*\\)<.outputDirectory>.*/\\1/p' pom.xml)",
        'mkdir -p "$out"; for n in 1 2 3 4; do touch "$out/$n.jar"; done',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    said: list[str] = []
    found = install_connector("kafka", Spark(tmp_path, "9.9.9", "2.13"), said.append)
    assert [Path(jar).name for jar in found.jars] == ["1.jar", "2.jar", "3.jar", "4.jar"]
    assert len(said) == 1 and "fetching the connector for kafka (by Maven), once" in said[0]
    assert asked.read_text().count("<version>9.9.9</version>") == 2
    assert KAFKA.artifacts[0].pinned in asked.read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["kafka-spark9.9.9"], "nothing half done is left"
    again = install_connector("kafka", Spark(tmp_path, "9.9.9", "2.13"), said.append, replace=True)
    assert again == found and len(list(folder.iterdir())) == 1


def test_when_nothing_can_be_fetched_one_message_says_what_to_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "mvn", 'echo "[ERROR] Unknown host repository"; exit 1')
    program(tmp_path / "spark" / "bin" / "spark-submit", 'echo "unresolved dependency: not found"; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(EnvironmentMissing) as missing:
        install_connector("kafka", Spark(tmp_path / "spark", "4.3.0", "2.13"), lambda text: None)
    assert "headrace connectors install kafka" in missing.value.next_move
    assert "Unknown host" in missing.value.found and "Spark's packages" in missing.value.found
    assert not list(folder.iterdir())


def test_the_command_lists_what_is_there_and_says_how_to_get_the_rest(folder: Path) -> None:
    assert "headrace connectors install kafka" in call("connectors", "list").stdout
    jar = filled(folder, find_spark())
    listed = call_json("connectors", "list")
    assert listed["connectors"] == [{"name": "kafka", "where": "folder", "jars": [jar]}]
    assert call("connectors", "install", "kafak").exit_code == 2


@pytest.mark.spark
def test_a_given_session_without_the_connector_is_refused_in_words(
    kafka_spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_connectors(kafka_spark, ["kafka"])  # type: ignore[arg-type]
    monkeypatch.setitem(CONNECTORS, "kafka", KAFKA._replace(format="kafka-of-tomorrow"))
    with pytest.raises(EnvironmentMissing) as refused:
        check_connectors(kafka_spark, ["kafka"])  # type: ignore[arg-type]
    assert "spark.jars" in refused.value.next_move and "spark-sql-kafka" in refused.value.expected
