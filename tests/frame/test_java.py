"""Finding Java, on made-up machines: folders, `release` files and shell scripts that answer like a Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import EnvironmentMissing
from headrace.spark.java import find_java, install_line, parse_major


class Machine:
    """A file system of its own, with the environment of one user on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {"PATH": str(self.folder("usr/bin")), "HOME": str(self.folder("home/ada"))}

    def folder(self, path: str) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def command(self, path: str, script: str = "exit 1") -> Path:
        command = self.root / path
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        return command

    def java(self, home: str, version: str | None) -> Path:
        """A Java whose `release` file tells the version, or one that has no such file and does not start."""
        self.command(f"{home}/bin/java")
        if version is not None:
            (self.root / home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
        return self.root / home

    def find(self) -> Path:
        return find_java(self.environ, root=self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def answers(home: Path, version: str) -> str:
    return f"printf '    java.home = {home}\\n    java.version = {version}\\nopenjdk version \"{version}\"\\n' >&2"


@pytest.mark.parametrize(
    ("text", "major"),
    [("17.0.9", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25), ("11.0.2+9-LTS", 11), ("", 0), ("unknown", 0)],
)
def test_the_major_version_is_read_from_old_and_new_version_texts(text: str, major: int) -> None:
    assert parse_major(text) == major


def test_java_home_wins_over_path_and_usual_places(machine: Machine) -> None:
    machine.java("usr/lib/jvm/java-17-openjdk", "17.0.9")
    machine.environ["JAVA_HOME"] = str(machine.java("srv/my-java", "21.0.1"))
    assert machine.find() == machine.root / "srv/my-java"


def test_a_link_on_path_leads_to_its_java_home(machine: Machine) -> None:
    home = machine.java("srv/jdk-21", "21.0.1")
    (machine.root / "usr/bin/java").symlink_to(home / "bin" / "java")
    machine.java("usr/lib/jvm/java-17-openjdk", "17.0.9")
    assert machine.find() == home


def test_a_shim_on_path_is_asked_for_its_java_home(machine: Machine) -> None:
    machine.command("usr/bin/java", answers(Path("/somewhere/jdk"), "17.0.2"))
    assert machine.find() == Path("/somewhere/jdk")


def test_a_java_home_without_release_file_is_asked_for_its_version(machine: Machine) -> None:
    home = machine.java("srv/bare", None)
    machine.command("srv/bare/bin/java", answers(home, "17"))
    machine.environ["JAVA_HOME"] = str(home)
    assert machine.find() == home


@pytest.mark.parametrize(
    "place",
    [
        "usr/lib/jvm/java-17-openjdk-amd64",
        "opt/jdk-17",
        "usr/java/jdk-17",
        "Library/Java/JavaVirtualMachines/temurin-17.jdk/Contents/Home",
        "opt/homebrew/opt/openjdk@17/libexec/openjdk.jdk/Contents/Home",
        "home/ada/.sdkman/candidates/java/17.0.9-tem",
        "home/ada/.jdks/temurin-17",
    ],
)
def test_the_usual_places_are_searched(machine: Machine, place: str) -> None:
    home = machine.java(place, "17.0.9")
    assert machine.find() == home


def test_an_older_java_home_is_passed_over_for_a_newer_java_elsewhere(machine: Machine) -> None:
    machine.environ["JAVA_HOME"] = str(machine.java("srv/jdk-11", "11.0.2"))
    newer = machine.java("usr/lib/jvm/java-17-openjdk", "17.0.9")
    assert machine.find() == newer


def test_of_several_in_the_usual_places_the_oldest_that_suffices_is_taken(machine: Machine) -> None:
    for major in (25, 8, 21, 17, 11):
        machine.java(f"usr/lib/jvm/java-{major}", f"{major}.0.1")
    assert machine.find() == machine.root / "usr/lib/jvm/java-17"


def test_a_folder_without_a_java_command_is_no_java(machine: Machine) -> None:
    machine.folder("usr/lib/jvm/openjdk-17")
    machine.folder("opt/java-sources/bin/java")
    with pytest.raises(EnvironmentMissing, match="no Java"):
        machine.find()


def test_the_error_lists_what_was_found_and_ends_with_the_next_move(machine: Machine) -> None:
    machine.command("usr/bin/apt-get")
    old = machine.java("usr/lib/jvm/java-11-openjdk", "11.0.2")
    (machine.root / "usr/lib/jvm/default-java").symlink_to(old)
    with pytest.raises(EnvironmentMissing) as caught:
        machine.find()
    text = str(caught.value)
    assert text.count("Java 11 in") == 1
    assert caught.value.expected.startswith("Java 17 or newer")
    assert text.endswith(install_line(machine.environ))


def test_a_java_that_does_not_answer_is_named_with_an_unknown_version(machine: Machine) -> None:
    machine.environ["JAVA_HOME"] = str(machine.java("srv/broken", None))
    with pytest.raises(EnvironmentMissing, match="unknown version in .*broken"):
        machine.find()


@pytest.mark.parametrize(
    ("tool", "package"),
    [("apt-get", "openjdk-17-jre-headless"), ("dnf", "java-17-openjdk-headless"), ("apk", "openjdk17-jre-headless")],
)
def test_the_install_line_is_that_of_the_package_manager_at_hand(machine: Machine, tool: str, package: str) -> None:
    machine.command(f"usr/bin/{tool}")
    line = install_line(machine.environ, system="Linux")
    assert tool in line and package in line


def test_root_is_not_told_to_use_sudo(machine: Machine) -> None:
    machine.command("usr/bin/apt-get")
    assert install_line(machine.environ, system="Linux", user=0).startswith("apt-get ")
    assert install_line(machine.environ, system="Linux", user=1000).startswith("sudo apt-get ")


def test_on_macos_the_install_line_is_brew(machine: Machine) -> None:
    assert install_line(machine.environ, system="Darwin") == "brew install openjdk@17"


def test_without_a_package_manager_the_next_move_is_to_set_java_home(machine: Machine) -> None:
    assert "JAVA_HOME" in install_line(machine.environ, system="Linux")
