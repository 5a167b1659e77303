"""The setting ``epoch``: what may be written, and what is said of everything else."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError, SettingsError
from headrace.model.pace import Adaptive, FixedPace, Pace, adaptive, parse_pace


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("500ms", FixedPace(500_000)),
        ("adaptive(latency=1s)", Adaptive(1_000_000, 0.2)),
        ("adaptive(latency=1s, spend=20%)", Adaptive(1_000_000, 0.2)),
        (' adaptive( spend = 0.5 , latency = "2s", min_pause=50ms ) ', Adaptive(2_000_000, 0.5, 50_000)),
    ],
)
def test_the_setting_is_read(text: str, pace: Pace) -> None:
    assert parse_pace(text) == pace


@pytest.mark.parametrize("policy", [adaptive("1s"), adaptive("90s", spend=0.125), adaptive("1s", min_pause="10ms")])
def test_what_python_says_and_what_a_file_says_are_one(policy: Adaptive) -> None:
    assert parse_pace(str(policy)) == policy
    assert hr.App("pages").settings(epoch=policy).epoch == str(policy)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0s", "must be greater than zero"),
        ("often", "the setting 'epoch'"),
        ("adaptive()", "need a latency"),
        ("adaptive(1s)", "has the wrong form"),
        ("adaptive(latency=1s, speed=9)", "has the wrong form"),
        ("adaptive(latency=1s, latency=2s)", "has the wrong form"),
        ("adaptive(latency=0s)", "latency of adaptive epochs must be greater than zero"),
        ("adaptive(latency=soon)", "latency of adaptive epochs"),
        ("adaptive(latency=1s, spend=20)", "no share of the time"),
        ("adaptive(latency=1s, spend=-1%)", "no share of the time"),
        ("adaptive(latency=1s, spend=much)", "no share of the time"),
        ("adaptive(latency=1s, spend=nan)", "no share of the time"),
        ("adaptive(latency=1s, min_pause=1s)", "leaves no time for an epoch"),
    ],
)
def test_everything_else_is_a_wrong_setting(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        hr.App("pages").settings(epoch=text)


@pytest.mark.parametrize("words", [{"latency": 1}, {"latency": "1s", "spend": "0%"}, {"latency": "1s", "spend": 2}])
def test_a_mistake_in_a_program_is_told_with_its_line(words: dict[str, Any]) -> None:
    with pytest.raises(ProgramError) as wrong:
        adaptive(**words)
    assert "test_pace.py" in wrong.value.where
