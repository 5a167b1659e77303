from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.processes import headrace


def test_a_test_that_fails_while_a_command_runs_fails_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), headrace("serve", tmp_path / "none", "--port", 0, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert "Ctrl-C ends it" in process.stdout.readline()
        raise ZeroDivisionError
    assert process.returncode == -9
    assert process.stdout.closed
