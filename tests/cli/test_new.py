from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import call, call_json
from tests.cli.processes import SOURCES, run_headrace

FILES = ["app.py", "test_app.py", "headrace.toml", "README.md", "events/sample.json"]


def test_a_new_folder_has_a_program_a_test_settings_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("new", "views")
    assert result.exit_code == 0, result.stderr
    assert "cd views && python -m pytest" in result.stdout
    assert sorted(str(path.relative_to("views")) for path in Path("views").rglob("*") if path.is_file()) == sorted(
        FILES
    )
    assert len(Path("views/README.md").read_text().splitlines()) == 5
    assert call_json("new", "others") == {"folder": "others", "files": FILES}


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("views").mkdir()
    Path("views/mine.txt").write_text("mine")
    result = call("new", "views")
    assert result.exit_code == 1
    assert "something of this name already" in result.stderr
    assert [path.name for path in Path("views").iterdir()] == ["mine.txt"]


def test_a_name_that_no_app_can_have_is_refused_with_one_that_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("new", "My-Views")
    assert result.exit_code == 1
    assert "call it 'my_views'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_test_of_a_new_folder_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("new", "views").exit_code == 0
    environ = os.environ | {"PYTHONPATH": str(SOURCES)}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"]
    done = subprocess.run(words, cwd="views", env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_the_program_of_a_new_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("new", "views").exit_code == 0
    done = run_headrace("run", "app.py", "--until", "drained", cwd=tmp_path / "views")
    assert done.returncode == 0, done.stderr
    assert '"page":"home"' in done.stdout
    assert "4 rows in" in done.stdout


def test_a_new_file_of_sql_is_a_program_that_explains_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "headrace run pages.sql" in call("new", "pages.sql").stdout
    explained = call("explain", "pages.sql")
    assert explained.exit_code == 0, explained.stderr
    assert "app pages" in explained.stdout
    assert "per_page: aggregate" in explained.stdout
    again = call("new", "pages.sql")
    assert again.exit_code == 1
    assert "something of this name already" in again.stderr


def test_a_file_of_sql_is_a_program_for_plan_and_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("new", "pages.sql")
    (tmp_path / "sample").mkdir()
    views = [f'{{"page": "a", "n": 1, "at": "2024-01-01T00:00:{second:02}Z"}}' for second in range(5)]
    (tmp_path / "sample" / "views.jsonl").write_text("\n".join(views))
    planned = call("plan", "pages.sql", "--store", "./state")
    assert planned.exit_code == 0, planned.stderr
    assert "per_page" in planned.stdout
    checked = call("verify", "pages.sql", "--data", "sample", "--tries", "3")
    assert checked.exit_code == 0, checked.stdout + checked.stderr
