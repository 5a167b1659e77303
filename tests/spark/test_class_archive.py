"""The class archive: written by the first JVM, used by the second, and never in the way."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyspark
import pytest

from headrace.errors import EnvironmentMissing
from headrace.spark.java import find_java
from headrace.spark.jvm import _LATE_COMPILER, LAUNCH, archive_file, archive_options, quick_start


@pytest.fixture
def java() -> Path:
    try:
        return find_java()
    except EnvironmentMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


def start(java: Path, options: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    """Something small of Spark's, with the class path that all of it has."""
    jars = Path(pyspark.__file__).parent / "jars"
    command = [str(java / "bin" / "java"), *options, *more, "-cp", f"{jars}/*"]
    command += ["org.apache.spark.deploy.SparkSubmit", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_the_first_jvm_writes_the_archive_and_the_second_maps_it(java: Path, tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    first = start(java, archive_options(java, {}, environment))
    file = archive_file(java, environment)
    assert file is not None
    assert file.exists()
    assert "cds" not in first.stdout + first.stderr, "Java must not list the classes it could not keep"

    again = archive_options(java, {}, environment)
    assert again[0].startswith("-XX:ArchiveClassesAtExit="), "so small an archive is of no program, and written anew"
    second = start(java, archive_options(java, {}, environment, whole_bytes=1), "-Xlog:class+load=info")
    loaded = [line for line in second.stdout.splitlines() if "org.apache.spark.deploy.SparkSubmit " in line]
    assert "shared objects file (top)" in loaded[0]


def test_half_an_archive_costs_nothing_but_the_gain(java: Path, tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    file = archive_file(java, environment)
    assert file is not None
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\0" * 100_000)
    done = start(java, archive_options(java, {}, environment, whole_bytes=1))
    assert "cds" not in done.stdout + done.stderr


def test_options_go_to_the_launcher_in_front_of_the_users_own_and_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv(LAUNCH, "-Dmine=1")
    with quick_start(tmp_path / "java", {}, {"HOME": str(tmp_path / "a home")}):
        ours, mine = os.environ[LAUNCH].rsplit(" ", 1)
        assert mine == "-Dmine=1", "of two that say the same, Java takes the last"
        assert f'"-XX:ArchiveClassesAtExit={tmp_path}/a home/.cache/headrace/' in ours
    assert os.environ[LAUNCH] == "-Dmine=1"


def test_a_java_that_knows_no_such_options_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "release").write_text('JVM_VARIANT="Openj9"\n')
    monkeypatch.delenv(LAUNCH, raising=False)
    with quick_start(tmp_path, {}, {"HOME": str(tmp_path)}):
        assert LAUNCH not in os.environ


def test_java_takes_the_options_of_its_compiler(java: Path) -> None:
    flags = start(java, list(_LATE_COMPILER), "-XX:+PrintFlagsFinal").stdout
    for option in _LATE_COMPILER:
        name, value = option.removeprefix("-XX:").split("=")
        assert re.search(rf"\b{name}\s+= {value}\b", flags), option


@pytest.mark.parametrize(
    ("release", "conf", "environment"),
    [
        ('JVM_VARIANT="Openj9"\n', {}, {"HOME": "{home}"}),
        ('JVM_VARIANT="Hotspot"\n', {}, {"HOME": "{home}", "HEADRACE_CLASS_ARCHIVE": "off"}),
        ('JVM_VARIANT="Hotspot"\n', {"spark.driver.extraClassPath": "x.jar"}, {"HOME": "{home}"}),
        ('JVM_VARIANT="Hotspot"\n', {}, {}),
    ],
    ids=["another kind of JVM", "turned off", "a class path of one's own", "no home"],
)
def test_there_is_no_archive_where(
    release: str, conf: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "release").write_text(release)
    told = {name: value.format(home=tmp_path) for name, value in environment.items()}
    assert archive_options(tmp_path, conf, told) == []
