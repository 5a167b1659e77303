from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cli.completing import complete_addresses, complete_programs, complete_stores
from tests.cli.calling import call
from tests.cli.processes import environment
from tests.serve.made_store import MadeStore, values


def test_completion_can_be_installed_and_shown() -> None:
    told = call("--help").stdout
    assert "--install-completion" in told
    assert "--show-completion" in told


def test_programs_are_files_that_make_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs").mkdir()
    Path("tweets.py").write_text('app = hr.App("tweets")\n')
    Path("tools.py").write_text("x = 1\n")
    Path("jobs/fraud.py").write_text('app = hr.App("fraud")\n')
    assert complete_programs("") == ["jobs/", "tweets.py"]
    assert complete_programs("t") == ["tweets.py"]
    assert complete_programs("jobs/") == ["jobs/fraud.py"]
    assert complete_programs("nowhere/") == []


def test_stores_and_their_states_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = MadeStore(tmp_path / ".headrace" / "tweets")
    made.epoch({"count": [values("views", [("a", 1)])]})
    assert complete_stores("") == [".headrace/tweets"]
    assert complete_stores(".h") == [".headrace/"]
    assert complete_stores(".headrace/") == [".headrace/tweets"]
    ctx = SimpleNamespace(params={"store": made.path})
    assert complete_addresses(ctx, "") == ["count.views"]
    assert complete_addresses(ctx, "x") == []
    assert complete_addresses(SimpleNamespace(params={"store": "nowhere"}), "") == []


def test_a_shell_that_asks_is_answered(tmp_path: Path) -> None:
    MadeStore(tmp_path / ".headrace" / "tweets").epoch({"count": [values("views", [("a", 1)])]})
    asking = {"_HEADRACE_COMPLETE": "complete_bash"}
    asking |= {"COMP_WORDS": "headrace state .headrace/tweets ", "COMP_CWORD": "3"}
    code = "import sys; sys.argv[0] = 'headrace'; from headrace.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment() | asking, cwd=tmp_path, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["count.views"], done.stderr
