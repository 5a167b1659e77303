"""``headrace ingest`` as a command: types from programs, and errors in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.ingest import plan_streams
from headrace.errors import ProgramError, SettingsError
from headrace.ingest.log import Log
from tests.cli.calling import call

PROGRAM = """
import headrace as hr

class Click(hr.Record):
    user: str

class Post(hr.Record, tag=True):
    text: str

class Like(hr.Record, tag=True):
    post: int

Command = Post | Like
app = hr.App("ingested")
clicks = app.read("clicks", hr.source.ingest("log", stream="clicks"), Click)
commands = app.read("commands", hr.source.ingest("log", stream="commands"), Command)
empty = hr.App("empty")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "ingested_program.py"
    path.write_text(PROGRAM)
    return path


def test_without_a_word_every_stream_is_taken() -> None:
    streams = plan_streams([], [])
    taken = streams.find("anything")
    assert taken is not None and (taken.partitions, taken.codec) == (1, None)


def test_named_streams_are_the_only_ones() -> None:
    streams = plan_streams(["clicks", "orders:4"], [])
    assert {name: taken.partitions for name, taken in streams.named.items()} == {"clicks": 1, "orders": 4}
    assert streams.find("other") is None


def test_types_come_from_a_record_for_all_or_one_stream(program: Path) -> None:
    everywhere = plan_streams([], [f"{program}:Click"]).find("anything")
    assert everywhere is not None and everywhere.type_name == "Click"
    streams = plan_streams(["clicks:2"], [f"clicks={program}:Click", f"commands={program}:Command"])
    assert {name: taken.type_name for name, taken in streams.named.items()} == {
        "clicks": "Click",
        "commands": "Post | Like",
    }
    assert streams.named["clicks"].partitions == 2


def test_an_app_says_the_types_of_the_streams_that_it_reads(program: Path) -> None:
    for spec in (str(program), f"{program}:app"):
        streams = plan_streams([], [spec])
        assert {name: taken.type_name for name, taken in streams.named.items()} == {
            "clicks": "Click",
            "commands": "Post | Like",
        }


def test_what_cannot_be_meant_is_told(program: Path) -> None:
    with pytest.raises(ProgramError, match="reads no log"):
        plan_streams([], [f"{program}:empty"])
    with pytest.raises(ProgramError, match="no app"):
        plan_streams([], [f"{program}:Clack"])
    for wrong in ("Clicks", "clicks:0", "clicks:x", ""):
        with pytest.raises(SettingsError, match="cannot be a stream"):
            plan_streams([wrong], [])


def test_a_log_in_use_and_an_open_door_are_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    result = call("ingest", "--log", tmp_path / "log", "--port", 0)
    assert (result.exit_code, "another server writes this log" in result.stderr) == (4, True)
    log.close()
    result = call("ingest", "--log", tmp_path / "log", "--bind", "0.0.0.0")
    assert (result.exit_code, "other machines could write" in result.stderr) == (1, True)
