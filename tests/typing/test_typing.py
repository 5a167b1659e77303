"""Users' programs type-check, and wrong ones do not: under mypy --strict and pyright strict."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.model import migrations

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = [HERE / "sketch.py", HERE / "wrong.py"]


@pytest.mark.xdist_group("mypy")  # not at the same time as others that use its cache
def test_programs_pass_mypy_strict_and_wrong_lines_do_not() -> None:
    # Warnings about unused ignores are errors under --strict: a wrong line that passes fails the test.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), *map(str, PROGRAMS)],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    ours = [line for line in done.stdout.splitlines() if line.startswith("tests/typing/")]
    assert not ours, "\n".join(ours)
    assert "usage" not in done.stderr, done.stderr


@pytest.mark.slow
def test_programs_pass_pyright_strict_and_wrong_lines_do_not(tmp_path: Path) -> None:
    if shutil.which("node") is None and shutil.which("pyright", path=Path(sys.executable).parent) is None:
        pytest.skip("pyright is not installed")
    config = {
        "include": [path.name for path in PROGRAMS],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "reportMissingTypeStubs": False,
        "reportUnnecessaryTypeIgnoreComment": True,
        "enableTypeIgnoreComments": False,
        "reportUnusedExpression": False,
    }
    for path in PROGRAMS:  # pyright reads nothing outside of its project
        shutil.copy(path, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path), "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    found = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]
    assert not found, "\n".join(found)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)


def test_the_sketch_builds_and_explains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # What it registers is of its program alone: tests of upgrades see every function that a process knows.
    monkeypatch.setattr(migrations, "_registered", {})
    app = runpy.run_path(str(HERE / "sketch.py"))["app"]
    with pytest.warns(UserWarning, match="nobody reads"):
        text = app.explain()
    assert "fraud: process Fraud → Alert" in text
