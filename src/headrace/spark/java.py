"""Finding a Java that Spark can run on.

Owns the one answer to "which JAVA_HOME?" for the driver, the command line and the Makefile (``python -m
headrace.spark.java`` prints it). It looks in JAVA_HOME, on PATH and in the usual places of each system, in that order,
and takes the first that is new enough. It reads files where it can and starts a Java only where no file tells the
version. It never installs anything and never imports pyspark, so that it works before Spark does.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from headrace.errors import EnvironmentMissing

OLDEST: Final = 17
"""The oldest Java that Spark 4 starts on."""

ANSWER_TIMEOUT_S: Final = 20

# Patterns below the root of the file system, then below the user's home. A `*` also meets folders that are no Java;
# they are passed over because they lack bin/java.
SYSTEM_PLACES: Final = (
    "usr/lib/jvm/*",
    "usr/lib64/jvm/*",
    "usr/java/*",
    "usr/local/java/*",
    "usr/local/openjdk-*",
    "opt/*",
    "opt/java/*",
    "Library/Java/JavaVirtualMachines/*/Contents/Home",
    "opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
HOME_PLACES: Final = (
    ".sdkman/candidates/java/*",
    ".jdks/*",
    ".asdf/installs/java/*",
    ".local/share/mise/installs/java/*",
    "Library/Java/JavaVirtualMachines/*/Contents/Home",
)

INSTALL_LINES: Final = (
    ("apt-get", "apt-get install -y openjdk-17-jre-headless"),
    ("dnf", "dnf install -y java-17-openjdk-headless"),
    ("zypper", "zypper install -y java-17-openjdk-headless"),
    ("pacman", "pacman -S --noconfirm jre17-openjdk-headless"),
    ("apk", "apk add openjdk17-jre-headless"),
    ("brew", "brew install openjdk@17"),
)


class Java(NamedTuple):
    """One Java of this machine."""

    home: Path
    major: int
    """8, 11, 17, …; 0 when it would not say."""


def find_java(environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> Path:
    """The folder to use as JAVA_HOME; raises EnvironmentMissing when no Java here is new enough.

    `root` is where the file system starts, so that a test can bring its own.
    """
    seen: list[Java] = []
    for java in _in_order(environ, root):
        if java.major >= OLDEST:
            return java.home
        seen.append(java)
    raise EnvironmentMissing(
        f"Spark needs Java {OLDEST} or newer",
        where="java",
        expected=f"Java {OLDEST} or newer in JAVA_HOME, on PATH or in one of the usual places",
        found=_describe(seen),
        next_move=install_line(environ),
    )


def install_line(environ: Mapping[str, str] = os.environ, *, system: str | None = None, user: int | None = None) -> str:
    """The one line that gives this system a Java, by the package manager it has."""
    if (system or platform.system()) == "Darwin":
        return "brew install openjdk@17"
    path = environ.get("PATH", os.defpath)
    for tool, line in INSTALL_LINES:
        if shutil.which(tool, path=path):
            # A root shell in a container often has no sudo at all, and Homebrew refuses to run under it.
            needs_sudo = (os.geteuid() if user is None else user) != 0 and tool != "brew"
            return f"sudo {line}" if needs_sudo else line
    return "install a Java 17 runtime, for example from https://adoptium.net, and set JAVA_HOME to its folder"


def parse_major(version: str) -> int:
    """17 for "17.0.9", 8 for "1.8.0_392", 25 for "25-ea"; 0 for text that is no version."""
    match = re.match(r"(?:1\.)?(\d+)", version.strip())
    return int(match.group(1)) if match else 0


def _in_order(environ: Mapping[str, str], root: Path) -> Iterator[Java]:
    """Every Java of the machine, each once, in the order in which we would take it."""
    met: set[Path] = set()
    for java in _candidates(environ, root):
        # Debian links one Java under several names; the error should list it once.
        real = java.home.resolve()
        if real not in met:
            met.add(real)
            yield java


def _candidates(environ: Mapping[str, str], root: Path) -> Iterator[Java]:
    if named := environ.get("JAVA_HOME"):
        yield from _look_at(Path(named))
    if command := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield from _behind_command(Path(command))
    usual = [java for home in _usual_places(environ, root) for java in _look_at(home)]
    # Of several we take the oldest that is new enough: Spark is tested there longest.
    yield from sorted(usual, key=lambda java: (java.major < OLDEST, java.major))


def _usual_places(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    for pattern in SYSTEM_PLACES:
        yield from sorted(root.glob(pattern))
    if home := environ.get("HOME"):
        for pattern in HOME_PLACES:
            yield from sorted(Path(home).glob(pattern))


def _look_at(home: Path) -> Iterator[Java]:
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK) or command.is_dir():
        return
    major = _major_in_release(home / "release")
    yield Java(home, major or _ask(command)[1])


def _behind_command(command: Path) -> Iterator[Java]:
    """What stands behind a `java` on PATH: a link into a JAVA_HOME, or a shim that has to be asked."""
    home = command.resolve().parent.parent
    if major := _major_in_release(home / "release"):
        yield Java(home, major)
        return
    # Apple's /usr/bin/java and the shims of version managers lie in no JAVA_HOME; the Java they start knows its own.
    answered, major = _ask(command)
    if answered is not None:
        yield Java(answered, major)


def _major_in_release(release: Path) -> int:
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    match = re.search(r'^JAVA_VERSION="?([^"\n]+)', text, re.MULTILINE)
    return parse_major(match.group(1)) if match else 0


def _ask(command: Path) -> tuple[Path | None, int]:
    """The java.home and the major version that a Java tells of itself."""
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, 0
    text = answer.stderr + answer.stdout
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (.+)$", text, re.MULTILINE) or re.search(r'version "([^"]+)"', text)
    return (Path(home.group(1).strip()) if home else None), (parse_major(version.group(1)) if version else 0)


def _describe(seen: list[Java]) -> str:
    if not seen:
        return "no Java"
    return ", ".join(f"Java {java.major or 'of unknown version'} in {java.home}" for java in seen)


def main() -> int:
    """Prints JAVA_HOME, or says what is missing; for shell scripts."""
    try:
        print(find_java())
    except EnvironmentMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
