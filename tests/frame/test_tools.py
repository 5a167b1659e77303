"""The shell scripts behind `make`, on machines that lack something: commands are faked at the head of PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


class Clone:
    """A fresh clone that holds nothing but the tools, on a machine where some commands are ours."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fakes = root / "fakes"
        self.fakes.mkdir()
        shutil.copytree(TOOLS, root / "tools")
        self.os_release("debian")

    def fake(self, path: str, script: str) -> None:
        command = self.root / path
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    def os_release(self, name: str) -> None:
        (self.root / "os-release").write_text(f"NAME=Some\nID={name}\n")

    def run(self, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {
            "PATH": os.pathsep.join([str(self.fakes), os.environ["PATH"]]),
            "OS_RELEASE": str(self.root / "os-release"),
        }
        environ.pop("PYTHON", None)
        command = [str(self.root / "tools" / tool), *arguments]
        return subprocess.run(
            command, cwd=self.root, env=environ, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def with_java_after_install(clone: Clone) -> None:
    """Java is missing until the faked apt-get has installed it."""
    flag = clone.root / "installed"
    clone.fake(".venv/bin/python", f'[ -e "{flag}" ] && echo /the/java || {{ echo "run: the line" >&2; exit 1; }}')
    clone.fake("fakes/apt-get", f'echo "apt-get $*"; case "$1" in install) touch "{flag}";; esac')
    clone.fake("fakes/mkdir", "exit 0")


def test_a_java_that_is_there_is_printed_and_nothing_else(clone: Clone) -> None:
    clone.fake(".venv/bin/python", "echo /the/java")
    done = clone.run("java.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "/the/java\n", "")


def test_root_on_debian_gets_java_installed_and_is_told(clone: Clone) -> None:
    with_java_after_install(clone)
    clone.fake("fakes/id", "echo 0")
    done = clone.run("java.sh")
    assert (done.returncode, done.stdout) == (0, "/the/java\n")
    assert "installing openjdk-17-jre-headless" in done.stderr


def test_others_are_told_the_line_and_nothing_is_installed(clone: Clone) -> None:
    with_java_after_install(clone)
    clone.fake("fakes/id", "echo 1000")
    done = clone.run("java.sh")
    assert done.returncode != 0
    assert done.stderr == "run: the line\n"


def test_root_on_another_system_is_told_the_line(clone: Clone) -> None:
    with_java_after_install(clone)
    clone.fake("fakes/id", "echo 0")
    clone.os_release("fedora")
    done = clone.run("java.sh")
    assert done.returncode != 0
    assert done.stderr == "run: the line\n"


def test_a_python_that_is_too_old_is_refused_with_what_to_do(clone: Clone) -> None:
    for name in ("python3.11", "python3.12", "python3.13", "python3.14", "python"):
        clone.fake(f"fakes/{name}", "exit 127")
    clone.fake("fakes/python3", 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    done = clone.run("install.sh", ".venv")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer; found: Python 3.9.2" in done.stderr
    assert "make test PYTHON=" in done.stderr


def test_an_environment_is_made_once_and_installed_with_constraints(clone: Clone) -> None:
    fake_python = 'case "$*" in *venv*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;; esac; echo "ran $*"'
    clone.fake("fakes/python3.11", fake_python)
    first, second = clone.run("install.sh", ".venv"), clone.run("install.sh", ".venv")
    assert "creating .venv" in first.stdout
    assert "creating .venv" not in second.stdout
    assert "--constraint constraints.txt --editable .[dev]" in second.stdout


def test_services_that_are_there_are_left_alone(clone: Clone) -> None:
    clone.fake("fakes/dpkg", "exit 0")
    done = clone.run("services.sh")
    assert (done.returncode, done.stdout) == (0, "• services: nothing to install\n")


def test_root_installs_the_services_that_are_missing(clone: Clone) -> None:
    clone.fake("fakes/dpkg", 'test "$2" != chromium')
    clone.fake("fakes/id", "echo 0")
    clone.fake("fakes/apt-get", 'echo "apt-get $*"')
    done = clone.run("services.sh")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "apt-get install -y -qq --no-install-recommends chromium"


def test_others_are_told_what_to_install(clone: Clone) -> None:
    clone.fake("fakes/dpkg", 'test "$2" != redis-server')
    clone.fake("fakes/id", "echo 1000")
    done = clone.run("services.sh")
    assert done.returncode == 1
    assert "sudo apt-get install redis-server" in done.stderr


def test_a_worker_loads_what_evaluates_expressions_only_where_there_are_some() -> None:
    """Spark starts many of them, and loading polars takes each as long as everything else."""
    program = "import sys, headrace.spark.executor; print([m for m in ('polars', 'sqlglot') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
