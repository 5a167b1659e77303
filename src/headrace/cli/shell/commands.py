"""Commands of the shell itself: a backslash and a letter or a word, as psql has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.cli.shell.printing import FORMATS
from headrace.cli.shell.session import ShellAnswer
from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean

if TYPE_CHECKING:
    from headrace.cli.shell.shell import Shell


class Quit(Exception):
    """The person is done."""


def run_command(shell: Shell, line: str) -> None:
    """Does what a line that begins with a backslash says."""
    name, _, rest = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise ProgramError(
            f"the shell has no command {name}",
            expected=", ".join(COMMANDS),
            found=line.strip(),
            next_move=did_you_mean(name, COMMANDS, "\\? lists them"),
        )
    command[0](shell, rest.strip().rstrip(";").strip())


def _describe(shell: Shell, table: str) -> None:
    if not table:
        _list_tables(shell, "")
        return
    columns = shell.session.columns(table)
    rows = {"column": [each.name for each in columns], "type": [each.type for each in columns]}
    if any(each.note for each in columns):
        rows[""] = [each.note for each in columns]
    shell.printer.show(table_answer(rows))


def _list_tables(shell: Shell, _: str) -> None:
    tables = list(shell.session.tables())
    if not tables:
        shell.printer.say("no tables yet; \\? says how to make one")
        return
    columns = [", ".join(column.name for column in shell.session.columns(name)) for name in tables]
    shell.printer.show(table_answer({"table": tables, "columns": columns}))


def _list_functions(shell: Shell, _: str) -> None:
    shell.printer.show(table_answer({"function": sorted(shell.session.functions())}))


def _include(shell: Shell, path: str) -> None:
    shell.run_text(read_script(path), path)


def _choose_format(shell: Shell, name: str) -> None:
    for each in FORMATS:
        if name == each:
            shell.printer.format = each
            return
    raise ProgramError(
        f"there is no format {name!r}",
        expected=f"\\format {' | '.join(FORMATS)}",
        found=name or "no name",
        next_move=did_you_mean(name, FORMATS),
    )


def _switch_timing(shell: Shell, _: str) -> None:
    shell.timing = not shell.timing
    shell.printer.say(f"timing is {'on' if shell.timing else 'off'}")


def _quit(shell: Shell, _: str) -> None:
    raise Quit


def _help(shell: Shell, _: str) -> None:
    width = max(map(len, COMMANDS))
    lines = [f"{name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    shell.printer.say("\n".join([*lines, "", FIRST_STEPS]))


FIRST_STEPS: Final = """A first table, of rows that are made up, and a question to it:

  CREATE TABLE sensors (room STRING, celsius DOUBLE, at TIMESTAMP, WATERMARK FOR at AS at)
  WITH ('connector' = 'datagen', 'rows-per-second' = '50');
  SELECT room, count(*) AS n, avg(celsius) AS mean FROM sensors GROUP BY room;

A statement ends with a semicolon. Ctrl-C ends a query, Ctrl-D the shell."""

COMMANDS: Final[dict[str, tuple[Callable[[Shell, str], None], str]]] = {
    "\\d": (_describe, "the tables; with a name, its columns"),
    "\\dt": (_list_tables, "the tables"),
    "\\df": (_list_functions, "the functions"),
    "\\i": (_include, "run the statements of a file"),
    "\\format": (_choose_format, "table, json or csv"),
    "\\timing": (_switch_timing, "say how long each statement took"),
    "\\?": (_help, "this help"),
    "\\q": (_quit, "leave"),
}


def table_answer(columns: dict[str, list[str]]) -> ShellAnswer:
    """Words in columns."""
    batch = pa.RecordBatch.from_pydict({name: pa.array(each, pa.string()) for name, each in columns.items()})
    return ShellAnswer(batch.schema, [batch])


def read_script(path: str) -> str:
    """The text of a file of statements."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(
            "the file of statements cannot be read",
            where=path,
            expected="a text file in UTF-8",
            found=getattr(error, "strerror", None) or str(error),
            next_move="correct the path",
        ) from error
