"""What a run looks at before it starts Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

import headrace as hr
from headrace.spark import own_session


class Line(hr.Record):
    text: str


def no_spark(*arguments: Any) -> NoReturn:
    raise AssertionError("Spark is not to be started")


def test_a_missing_folder_is_told_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_session, "make_session", no_spark)
    app = hr.App("lines")
    lines = app.read("lines", hr.source.files(str(tmp_path / "nowhere")), Line)
    lines.write(hr.sink.collect())
    with pytest.raises(hr.ProgramError, match="there is no folder") as caught:
        app.run(until="caught_up", store=str(tmp_path / "store"), plain=True)
    assert "mkdir -p" in caught.value.next_move
