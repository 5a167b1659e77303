"""A class archive: what lets the second start of Spark on a machine take two thirds of the time of the first.

Spark's JVM reads, checks and links some fifteen thousand classes before the first epoch. Java can write them, ready for
use, into a file that later JVMs map. The first JVM of a machine writes it while it ends, when nobody waits for it any
more; every later one maps it.

A file that is half written, or of another Java or other jars, costs nothing but the gain: Java checks it, and does
without. So nothing is locked here, and nothing is in the way of a run. ``HEADRACE_CLASS_ARCHIVE=off`` turns it off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

SWITCH: Final = "HEADRACE_CLASS_ARCHIVE"
LAUNCH: Final = "SPARK_SUBMIT_OPTS"
"""Where Spark's launcher looks for options of the driver's JVM."""

WHOLE_BYTES: Final = 128 * 2**20
"""A smaller archive is of a session that ended before it ran a program; the next one writes it anew."""

_OWN_CLASS_PATH: Final = ("spark.driver.extraClassPath", "spark.driver.defaultJavaOptions")
"""Settings under which the class path may be another one than most runs have."""


@contextmanager
def class_archive(java: Path, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """A JVM started inside the block uses the archive, or writes it at its end."""
    options = archive_options(java, conf, environment)
    before = os.environ.get(LAUNCH)
    if options:
        os.environ[LAUNCH] = " ".join([*([before] if before else []), *(f'"{option}"' for option in options)])
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(LAUNCH, None)
        else:
            os.environ[LAUNCH] = before


def archive_options(
    java: Path, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ, *, whole_bytes: int = WHOLE_BYTES
) -> list[str]:
    """The options of the JVM; none where there is no place for an archive, or the user does not want one."""
    if environment.get(SWITCH, "").lower() in ("off", "0", "false", "no"):
        return []
    file = archive_file(java, environment)
    if file is None:
        return []
    # Java would list every class that cannot be kept.
    silent = "-Xlog:cds*=off"
    if _size_bytes(file) >= whole_bytes:
        return [f"-XX:SharedArchiveFile={file}", silent]
    if any(name in conf for name in _OWN_CLASS_PATH):
        return []
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return []
    return [f"-XX:ArchiveClassesAtExit={file}", silent] if os.access(file.parent, os.W_OK) else []


def archive_file(java: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the archive of this Java and this Spark lies; None: only HotSpot, which most are, knows such files."""
    try:
        release = (java / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    variant = [line for line in release.splitlines() if line.startswith("JVM_VARIANT=")]
    if variant and "hotspot" not in variant[0].lower():
        return None
    home = environment.get("XDG_CACHE_HOME") or (environment.get("HOME") and str(Path(environment["HOME"], ".cache")))
    if not home:
        return None
    import pyspark

    what = f"{release}\n{pyspark.__version__}\n{Path(pyspark.__file__).parent}"
    return Path(home) / "headrace" / "classes" / f"{xxhash.xxh64_hexdigest(what.encode())}.jsa"


def _size_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1
