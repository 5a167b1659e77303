from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.markup import render

from headrace.cli import app as command_line
from headrace.cli.exits import Exit, describe, error_text, exit_code, report_errors
from headrace.errors import (
    CorruptFile,
    EnvironmentMissing,
    FunctionFailed,
    HeadraceError,
    ProgramError,
    SettingsError,
    StoreInUse,
)
from tests.cli.calling import call
from tests.cli.processes import command, environment


def commands_below(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands_below(each, *words, name)
        else:
            yield (*words, name), each


COMMANDS = dict(commands_below(typer.main.get_command(command_line)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(words: tuple[str, ...]) -> None:
    result = call(*words, "--help")
    assert result.exit_code == 0
    assert f"Example: headrace {' '.join(words)}" in result.stdout
    assert "--json" in result.stdout
    assert "--trace" in result.stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_word_of_a_help_is_taken_for_markup(words: tuple[str, ...]) -> None:
    texts = [getattr(param, "help", None) or "" for param in COMMANDS[words].params]
    assert [text for text in texts if render(text).plain != text] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProgramError("x"), 1),
        (SettingsError("x"), 1),
        (FunctionFailed("x"), 1),
        (ValueError("x"), 1),
        (EnvironmentMissing("x"), 3),
        (StoreInUse("x"), 4),
        (CorruptFile("x"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_goes_by_the_type_of_the_error(error: BaseException, code: int) -> None:
    assert exit_code(error) == code
    with pytest.raises(typer.Exit) as left, report_errors():
        raise error
    assert left.value.exit_code == code


def test_a_package_that_is_not_there_is_named_as_what_the_machine_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, report_errors():
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")
    assert left.value.exit_code == Exit.ENVIRONMENT
    told_of = capsys.readouterr().err
    assert "the package pyspark cannot be imported" in told_of
    assert "-m pip install pyspark" in told_of


def test_a_wrong_option_ends_with_two(store_path: Path) -> None:
    assert call("epochs", store_path, "--nonsense").exit_code == Exit.USAGE
    assert call("epochs", store_path, "--limit", -1).exit_code == Exit.USAGE
    assert call("state", store_path, "--limit", -1).exit_code == Exit.USAGE
    assert call("serve", store_path, "--port", 70_000).exit_code == Exit.USAGE
    assert call("run", "app.py", "--http-port", 70_000).exit_code == Exit.USAGE
    assert call("ingest", "--log", store_path, "--port", -1).exit_code == Exit.USAGE
    assert call("nonsense").exit_code == Exit.USAGE


@pytest.mark.parametrize("command", ["run", "explain", "epochs", "state", "serve", "token", "ingest"])
def test_a_command_without_its_argument_shows_its_help_with_an_example_and_ends_with_two(command: str) -> None:
    result = call(command)
    assert result.exit_code == Exit.USAGE
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert f"Example: headrace {command}" in result.stdout + result.stderr


def test_an_argument_behind_two_dashes_is_the_program(tmp_path: Path) -> None:
    result = call("run", "--", tmp_path / "-app.py")
    assert result.exit_code == Exit.WRONG
    assert "there is no such file" in result.stderr
    assert "-app.py" in result.stderr


def test_an_error_is_told_in_its_parts_and_without_a_traceback(tmp_path: Path) -> None:
    result = call("epochs", tmp_path / "nowhere")
    assert result.exit_code == Exit.STORE
    assert result.stdout == ""
    assert result.stderr.startswith("error there is no store here\n")
    for label in ("where", "expected", "next"):
        assert f"\n  {label} " in result.stderr
    assert "Traceback" not in result.stderr


def test_trace_shows_where_python_was(tmp_path: Path) -> None:
    result = call("epochs", tmp_path / "nowhere", "--trace")
    assert result.exit_code == Exit.STORE
    assert "Traceback" in result.stderr


def test_an_error_for_machines_is_json_on_standard_error(tmp_path: Path) -> None:
    result = call("epochs", tmp_path / "nowhere", "--json")
    assert result.stdout == ""
    error = json.loads(result.stderr)["error"]
    assert error["type"] == "MissingStore"
    assert error["what"] == "there is no store here"
    assert set(error) == {"type", "what", "where", "expected", "next"}


def test_parts_of_several_lines_stay_under_their_label() -> None:
    error = HeadraceError("it broke", found="row 1\nrow 2", next_move="fix it")
    assert error_text(error).plain == "error it broke\n  found     row 1\n            row 2\n  next      fix it"


def test_an_unexpected_error_asks_for_trace_and_is_described_for_machines() -> None:
    assert "--trace" in error_text(ValueError("odd")).plain
    assert describe(ValueError("odd")) == {"type": "ValueError", "what": "odd"}


def test_brackets_in_an_error_are_no_markup() -> None:
    assert "[red]" in error_text(ProgramError("bad", found="[red]")).plain


def test_a_terminal_without_letters_for_arrows_is_told_all_the_same(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(
        "import headrace as hr\n\n"
        "class Hit(hr.Record):\n    page: str\n\n"
        'app = hr.App("hits")\napp.read("hits", hr.source.items([]), Hit).show()\n'
    )
    env = environment() | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command("explain", program), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u2192 Hit" in done.stdout
