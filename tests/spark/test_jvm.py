from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from headrace.errors import JvmDied
from headrace.spark.jvm import describe_exit, jvm_death


class Process:
    """A JVM's process that has ended with a code, or lives."""

    pid = 4711

    def __init__(self, code: int | None) -> None:
        self.code = code

    def wait(self, timeout_s: float) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("java", timeout_s)
        return self.code


def session(process: Process | None) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


def test_a_broken_connection_to_a_dead_jvm_is_told_with_how_the_jvm_ended() -> None:
    died = jvm_death(session(Process(-9)), Py4JNetworkError("answer from Java side is empty"))
    assert isinstance(died, JvmDied)
    assert "process 4711" in died.where
    assert "SIGKILL" in died.found
    assert "spark.driver.memory" in died.next_move


def test_any_error_of_a_jvm_that_has_ended_is_its_death() -> None:
    assert jvm_death(session(Process(1)), ValueError("something that followed from it")) is not None


def test_an_error_of_a_jvm_that_lives_is_not_its_death() -> None:
    assert jvm_death(session(Process(None)), ValueError("a wrong expression")) is None


def test_a_jvm_of_somebody_else_that_does_not_answer_is_told_by_the_error_of_the_connection() -> None:
    died = jvm_death(session(None), ConnectionRefusedError(111, "Connection refused"))
    assert died is not None
    assert "Connection refused" in died.found


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "SIGKILL"), (137, "SIGKILL"), (-15, "SIGTERM"), (143, "SIGTERM"), (3, "OutOfMemoryError"), (52, "code 52")],
)
def test_how_a_jvm_ended_is_told_by_signal_or_code(code: int, words: str) -> None:
    assert words in describe_exit(code)
