"""The documents run: every Python block of README and docs/ is executed, type-checked, or says why not.

Marks in the pages are explained in tests/frame/doc_blocks.py. Each page is executed in a process and a folder of its
own, as a module (so `if __name__ == "__main__":` does not start it).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import run_program
from tests.frame.doc_blocks import Page, read_page

ROOT = Path(__file__).resolve().parents[1]
RUN_TIMEOUT_S = 170
NOT_ASKED_OF_PAGES = (
    *("disallow-untyped-defs", "disallow-incomplete-defs", "disallow-untyped-calls", "disallow-untyped-decorators"),
    *("disallow-any-generics", "disallow-subclassing-any", "warn-return-any", "warn-unused-ignores"),
    *("strict-equality", "extra-checks", "no-implicit-reexport"),
)
"""A page shows its point and leaves out annotations that a library would need: mypy is not strict with it."""
NOT_INSTALLED = 'disable-error-code="import-not-found, import-untyped"'
LENIENT = ", ".join([NOT_INSTALLED, *(f"{rule}=False" for rule in NOT_ASKED_OF_PAGES)])


def paths() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def name_of(page: Page) -> str:
    return str(page.path.relative_to(ROOT))


def module_of(page: Page) -> str:
    return "page_" + re.sub(r"\W", "_", name_of(page).removesuffix(".md"))


PAGES = [page for path in paths() if (page := read_page(path)).blocks]
RUNNING = [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.spark] if page.needs_spark else [])
    for page in PAGES
    if page.has("run")
]


@pytest.mark.parametrize("page", RUNNING)
def test_the_python_of_a_page_runs(page: Page, tmp_path: Path) -> None:
    (tmp_path / f"{module_of(page)}.py").write_text(page.program("run"), encoding="utf-8")
    starter = tmp_path / "starter.py"
    starter.write_text(f"import {module_of(page)}\n", encoding="utf-8")
    done = _run_with_spark(starter) if page.needs_spark else run_program(starter, timeout_s=RUN_TIMEOUT_S)
    assert done.returncode == 0, f"{name_of(page)} does not run (line numbers are those of the page):\n{done.stderr}"


def _run_with_spark(starter: Path) -> subprocess.CompletedProcess[str]:
    # Spark's workers start elsewhere and have to find the page's module, too.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(starter.parent), str(ROOT / "src")])}
    return subprocess.run(
        [sys.executable, str(starter)],
        cwd=starter.parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


@pytest.mark.xdist_group("mypy")
def test_the_python_of_pages_that_are_not_run_type_checks(tmp_path: Path) -> None:
    pages = [page for page in PAGES if page.has("compile")]
    if not pages:
        pytest.skip("no page has blocks marked `compile`")
    for page in pages:
        program = page.program("run", "compile")
        (tmp_path / f"{module_of(page)}.py").write_text(f"{program}\n# mypy: {LENIENT}\n", encoding="utf-8")
    # Headrace itself is seen as `make types` sees it: what that found out is kept, and need not be found out again.
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(ROOT / ".mypy_cache"), "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    # Only what the pages say is judged here; `make types` judges src/.
    wrong = [line for line in done.stdout.splitlines() if line.startswith("page_") and ": error:" in line]
    assert not wrong and not done.stderr, "\n".join([*wrong, done.stderr])
