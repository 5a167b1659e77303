"""The shell driven as people and scripts drive it, over a session in memory."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from headrace.cli.shell.commands import COMMANDS
from headrace.cli.shell.completing import SqlCompleter
from headrace.cli.shell.printing import SHOWN_ROWS, OutputFormat, Printer
from headrace.cli.shell.shell import HISTORY, Shell, open_prompt
from headrace.errors import ProgramError
from tests.shell.sessions import COUNTS, SALES, LiveRows, MemorySession, changes


def make_shell(
    session: MemorySession, format: OutputFormat = "table", *, terminal: bool = False
) -> tuple[Shell, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=100, height=20, force_terminal=terminal, highlight=False, color_system=None)
    return Shell(session, Printer(format, console=console, out=out)), out


def type_in(keys: str, session: MemorySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the shell shows when these keys are typed."""
    monkeypatch.setenv(HISTORY, str(tmp_path / "history"))
    shell, out = make_shell(session)
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        keyboard.send_text(keys)
        shell.interact(open_prompt(session))
    return out.getvalue()


def test_statements_of_a_text_run_in_order_and_comments_end_none() -> None:
    session = MemorySession({"sales": SALES})
    shell, _ = make_shell(session)
    shell.run_text("SAY one; -- SAY two;\nSAY 'three;';")
    assert session.statements == ["SAY one", "SAY 'three;'"]


def test_a_mistake_in_a_script_names_its_line_and_ends_it() -> None:
    session = MemorySession({"sales": SALES})
    shell, _ = make_shell(session)
    with pytest.raises(ProgramError) as caught:
        shell.run_text("SAY one;\n\n  TABLE sale;\nSAY two;", "shop.sql")
    assert caught.value.where == "shop.sql:3:3"
    assert session.statements == ["SAY one", "TABLE sale"]


@pytest.mark.parametrize(
    ("format", "lines"),
    [
        ("csv", ["shop,cents,at", "a,5,2023-11-14T22:13:20Z", "b,,1970-01-01T00:00:00Z"]),
        (
            "json",
            [
                '{"shop": "a", "cents": 5, "at": "2023-11-14T22:13:20Z"}',
                '{"shop": "b", "cents": null, "at": "1970-01-01T00:00:00Z"}',
            ],
        ),
    ],
)
def test_machines_get_a_line_for_each_row(
    format: OutputFormat, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shell, out = make_shell(MemorySession({"sales": SALES}), format)
    shell.run_text("TABLE sales;")
    assert (out.getvalue() or capsys.readouterr().out).splitlines() == lines


def test_people_get_a_table_that_says_null_and_counts_its_rows() -> None:
    shell, out = make_shell(MemorySession({"sales": SALES}))
    shell.run_text("TABLE sales")
    assert "NULL" in out.getvalue()
    assert out.getvalue().rstrip().endswith("2 rows")


def test_a_long_answer_is_cut_for_people_and_whole_for_machines() -> None:
    long = pa.table({"n": list(range(SHOWN_ROWS + 1))})
    shell, out = make_shell(MemorySession({"long": long}))
    shell.run_text("TABLE long")
    assert f"the first {SHOWN_ROWS} rows" in out.getvalue()
    shell, out = make_shell(MemorySession({"long": long}), "csv")
    shell.run_text("TABLE long")
    assert len(out.getvalue().splitlines()) == SHOWN_ROWS + 2


def test_a_person_types_over_lines_until_a_semicolon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = MemorySession({"sales": SALES})
    type_in("TABLE\r  sales\r;\r\x04", session, tmp_path, monkeypatch)
    assert session.statements == ["TABLE\n  sales"]
    assert "TABLE" in (tmp_path / "history").read_text()


def test_a_semicolon_in_a_literal_does_not_end_what_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = MemorySession({})
    type_in("SAY 'a;\rb';\r\x04", session, tmp_path, monkeypatch)
    assert session.statements == ["SAY 'a;\nb'"]


def test_a_mistake_and_ctrl_c_leave_the_shell_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveRows([changes([("a", 1)]), KeyboardInterrupt], COUNTS, key=["shop"])
    session = MemorySession({"sales": SALES}, {"counts": live})
    shown = type_in("TABLE sale;\rLIVE counts;\rSAY alive;\r\\q\r", session, tmp_path, monkeypatch)
    assert "there is no table 'sale'" in capsys.readouterr().err
    assert live.stopped == 1
    assert "alive" in shown


def completions(text: str) -> list[str]:
    session = MemorySession({"sales": SALES})
    before, _, after = text.partition("|")
    document = Document(before + after, len(before))
    offered = SqlCompleter(session, COMMANDS).get_completions(document, CompleteEvent(completion_requested=True))
    return [each.text for each in offered]


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("SELECT 1 FROM sa|", ["sales"]),
        ("SELECT s.ce| FROM sales s", ["cents"]),
        ("SELECT sales.| FROM sales", ["shop", "cents", "at"]),
        ("SELECT sh| FROM sales", ["shop", "show"]),
        ("SELECT ce|; SELECT 1 FROM sales", []),
        ("SELECT us|", ["usd", "using"]),
        ("\\d sa|", ["sales"]),
        ("\\ti|", ["\\timing"]),
        ("DESCRIBE |", ["sales"]),
    ],
)
def test_what_is_offered_follows_from_the_statement(text: str, offered: list[str]) -> None:
    assert completions(text) == offered


def test_backslash_commands_list_describe_and_refuse(tmp_path: Path) -> None:
    shell, out = make_shell(MemorySession({"sales": SALES}))
    (tmp_path / "more.sql").write_text("SAY from a file;\n\\dt\n")
    for line in ("\\dt", "\\d sales", "\\df", f"\\i {tmp_path}/more.sql", "\\timing", "\\?"):
        shell.answer(line)
    shown = out.getvalue()
    for part in ("shop, cents, at", "timestamp[us, tz=UTC]", "usd", "from a file", "timing is on", "datagen"):
        assert part in shown


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    shell, _ = make_shell(MemorySession({}))
    shell.answer("\\formt csv")
    assert "did you mean \\format" in capsys.readouterr().err


def test_a_live_table_shows_the_newest_row_of_each_key_and_its_status() -> None:
    looks = [changes([("a", 1), ("b", 1)]), changes([("a", 2)], ["+U"]), changes([("b", 1)], ["-D"])]
    session = MemorySession({}, {"counts": LiveRows(looks, COUNTS, key=["shop"])})
    shell, out = make_shell(session, terminal=True)
    shell.run_text("LIVE counts")
    last = out.getvalue().rpartition("shop")[2]
    assert "7 rows/s" in last
    assert [line.split() for line in last.splitlines() if line.strip()[:1] in ("a", "b")] == [["a", "2"]]


def test_a_live_answer_in_a_pipe_is_a_line_for_each_change() -> None:
    looks = [changes([("a", 1)], ["+I"]), changes([("a", 1), ("a", 2)], ["-U", "+U"])]
    session = MemorySession({}, {"counts": LiveRows(looks, COUNTS, key=["shop"])})
    shell, out = make_shell(session, "csv")
    shell.run_text("LIVE counts")
    assert out.getvalue().splitlines() == ["op,shop,n", "+I,a,1", "-U,a,1", "+U,a,2"]


def test_a_changelog_on_a_terminal_shows_every_change() -> None:
    looks = [changes([("a", 1)], ["+I"]), changes([("a", 1)], ["-D"])]
    session = MemorySession({}, {"counts": LiveRows(looks, COUNTS, key=["shop"], as_changelog=True)})
    shell, out = make_shell(session, terminal=True)
    shell.run_text("LIVE counts")
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["op", "shop", "n"], ["+I", "a", "1"], ["-D", "a", "1"], ["7", "rows/s"],
    ]  # fmt: skip
