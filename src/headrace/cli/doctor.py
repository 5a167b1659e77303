"""``headrace doctor``: whether this machine has what a run needs, and the one line that helps where it has not."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headrace.cli.exits import Exit, Json, Trace, report_errors
from headrace.errors import EnvironmentMissing, HeadraceError


class Finding(NamedTuple):
    what: str
    ok: bool
    found: str
    next_move: str = ""


def doctor(
    store: Annotated[str, typer.Option("--store", help="Folder or URL in which stores would be made.")] = ".",
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Look whether this machine can run programs: Java, Python, Spark, and a folder to write to.

    Example: headrace doctor
    """
    with report_errors(trace=trace, as_json=as_json):
        from rich.text import Text

        from headrace.cli.show import make_console, print_json

        findings = [check(store) for check in CHECKS]
        if as_json:
            print_json([finding._asdict() for finding in findings])
        else:
            console = make_console()
            for finding in findings:
                mark = ("ok     ", "green") if finding.ok else ("missing", "bold red")
                console.print(Text.assemble(mark, (f"  {finding.what:<8}", "bold"), finding.found))
                if finding.next_move:
                    console.print(Text.assemble(" " * 17, ("next ", "green"), finding.next_move))
        if not all(finding.ok for finding in findings):
            raise typer.Exit(Exit.ENVIRONMENT)


def check_python(_: str) -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding(
        "python", ok, f"{platform.python_version()} in {sys.executable}", "" if ok else "use Python 3.11 or newer"
    )


def check_java(_: str) -> Finding:
    from headrace.spark.java import find_java

    try:
        return Finding("java", True, str(find_java()))
    except EnvironmentMissing as missing:
        return Finding("java", False, missing.found, missing.next_move)


def check_spark(_: str) -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding("pyspark", True, version("pyspark"))
    except PackageNotFoundError:
        return Finding("pyspark", False, "not installed", "pip install headrace, which brings it")


def check_store(folder: str) -> Finding:
    """Tries out what a store needs: a folder that can be made, and files that are created only if absent."""
    from headrace.state.store import LocalStore

    if "://" in folder and not folder.startswith("file://"):
        return check_remote_store(folder)
    path = Path(folder).absolute()
    try:
        with tempfile.TemporaryDirectory(prefix=".headrace-doctor-", dir=path) as made:
            trial = LocalStore(made)
            trial.create("probe", b"x")
        free_gb = _free_gb(path)
        return Finding("store", True, f"{path} can be written to, {free_gb:,.0f} GB free")
    except (OSError, HeadraceError) as error:
        found = error.what if isinstance(error, HeadraceError) else str(error)
        return Finding("store", False, found, "choose another folder: --store, or HEADRACE_STORE for every run")


def check_remote_store(url: str) -> Finding:
    """The same where files are objects; opening a store there makes nothing, so one may be tried out in place."""
    from headrace.state import layout
    from headrace.state.store import open_store

    probe = layout.probe(os.urandom(8).hex())
    try:
        trial = open_store(url)
        trial.create(probe, b"x")
        trial.delete(probe)
        return Finding("store", True, f"{url} can be written to, and creates objects only if absent")
    except HeadraceError as error:
        return Finding("store", False, f"{error.what}: {error.found}", error.next_move)


def _free_gb(path: Path) -> float:
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize / 1e9


CHECKS: tuple[Callable[[str], Finding], ...] = (check_python, check_java, check_spark, check_store)
