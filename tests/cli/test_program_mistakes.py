"""Programs that Python itself runs: a mistake in them is told in four parts, as ``headrace run`` tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.program_mistakes import print_mistakes_in_words

HEAD = "import headrace as hr\n\n\nclass Hit(hr.Record):\n    page: str\n    n: int = 0\n\n\n"
READ = 'rows = hr.App("hits").read("hits", hr.source.items([]), Hit)\n'


def python(path: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(path)], env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (HEAD.replace("page: str\n    n: int = 0", "n: int = 0\n    page: str"), 4, "move 'page' up"),
        (HEAD + READ + 'rows.where("n >")\n', 10, "it ends too early"),
        (HEAD + READ + "rows.where(Hit.n > 0)\n", 10, 'hr.col("n") > 0'),
    ],
    ids=["a default before a field without", "a mistake in SQL", "a field compared"],
)
def test_a_script_tells_a_mistake_with_its_line_and_without_a_traceback(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = tmp_path / "app.py"
    done = python(path, text)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(f"{path}:{line}: ")
    assert words in done.stderr


def test_the_traceback_is_there_for_whoever_asks_and_for_all_other_errors(tmp_path: Path) -> None:
    traced = python(tmp_path / "app.py", HEAD + READ + 'rows.where("n >")\n', HEADRACE_TRACE="1")
    assert traced.stderr.startswith("Traceback")
    other = python(tmp_path / "app.py", "import headrace as hr\nhr.Record\n1 / 0\n")
    assert other.stderr.startswith("Traceback")
    assert "ZeroDivisionError" in other.stderr


def test_a_hook_that_somebody_else_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(*error: object) -> None: ...

    monkeypatch.setattr(sys, "excepthook", hook)
    print_mistakes_in_words()
    assert sys.excepthook is hook
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    print_mistakes_in_words()
    assert sys.excepthook is not sys.__excepthook__
    assert hr.Record is not None
