"""A start that reads again what somebody had erased says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoint.rewind import rewinder
from headrace.checkpoint.rewind.fork import begin_fork
from headrace.checkpoint.rewind.request import parse_start
from headrace.edit.erasing.erase import erase_key
from headrace.plan.compile import compile_app
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.checkpoint.test_rewind import Program, counting, played, total

WORDS = "a key was erased in epoch 3: what sources still have of it is read again, so erase it once more"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What starts say."""
    said: list[str] = []
    begin = rewinder.Rewinder.begin

    def listen(self: Any, request: Any) -> list[str]:
        said.extend(found := begin(self, request))
        return found

    monkeypatch.setattr(rewinder.Rewinder, "begin", listen)
    return said


def erased(path: Path) -> Program:
    program = counting(hr.sink.collect())
    with Harness(program.app, store=path) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 2)
    erase_key(LocalStore(path, durable=False), "a")
    return program


def test_going_back_behind_an_erasure(tmp_path: Path, lines: list[str]) -> None:
    program = erased(tmp_path)
    with Harness(program.app, store=tmp_path, start_from="before") as h:
        assert lines[-1] == WORDS
        assert total(h, program) == 0, "the epoch that is gone back to has been cleared of it, too"
        played(h, program, 1)
        h.rewind(1)
    assert lines.count(WORDS) == 1, "the erasure is no part of what the job goes back behind now"


def test_a_fork_of_an_epoch_from_before_an_erasure(tmp_path: Path) -> None:
    program = erased(tmp_path / "store")
    facts = compile_app(program.app, parallelism=2, key_groups=128).facts

    def fork(name: str, moment: str) -> list[str]:
        target = LocalStore(tmp_path / name, durable=False)
        return begin_fork(target, parse_start(f"{tmp_path / 'store'}{moment}", target.url), facts, {}, LocalStore)

    assert fork("first", "@before")[-1] == WORDS
    assert WORDS not in fork("second", "")
