"""Calls the command line in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from headrace.cli import app


def call(*arguments: object, catch_exceptions: bool = True) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=catch_exceptions)


def call_json(*arguments: object, code: int = 0) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)
