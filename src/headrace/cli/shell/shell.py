"""The shell's loop: statements from a person, a text or a pipe, each answered before the next is taken.

A mistake in a statement that a person typed is told, and the next one is waited for; in a script it ends the script.
Ctrl-C while an answer is shown ends that answer, and in a script the script.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from headrace.cli.exits import error_text
from headrace.cli.shell.commands import COMMANDS, Quit, run_command
from headrace.cli.shell.live import ChangelogView, LiveView
from headrace.cli.shell.printing import Printer
from headrace.cli.shell.session import LiveAnswer, ShellAnswer, ShellSession
from headrace.errors import HeadraceError
from headrace.model.packages import package
from headrace.sql.script import cut_statements, is_whole, place_of

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

HISTORY: Final = "HEADRACE_SQL_HISTORY"
_HISTORY_FILE: Final = "~/.headrace/sql_history"
MORE: Final = "... "


class Shell:
    """Statements in, answers out."""

    def __init__(self, session: ShellSession, printer: Printer, *, trace: bool = False) -> None:
        self.session = session
        self.printer = printer
        self.timing = False
        self._trace = trace
        self._interactive = False

    # -- scripts -----------------------------------------------------------------------------------------------------

    def run_text(self, text: str, origin: str = "") -> None:
        """Runs the statements of a text in order. What a statement raises names the line of the text."""
        for each in cut_statements(text):
            if each.text.startswith("\\"):
                # A command has no semicolon: it ends with its line.
                self._run_lines(each.text, origin)
                continue
            try:
                self.run_statement(each.text)
            except HeadraceError as error:
                if not error.where and origin:
                    error.where = f"{origin}:{place_of(text, each.offset)}"
                raise

    def _run_lines(self, text: str, origin: str) -> None:
        command, _, rest = text.partition("\n")
        run_command(self, command)
        self.run_text(rest, origin)

    def run_statement(self, text: str) -> None:
        """One statement and its answer."""
        began = time.monotonic()
        answer = self.session.execute(text)
        if isinstance(answer, ShellAnswer):
            self.printer.show(answer)
        else:
            self._follow(answer)
        if self.timing:
            self.printer.say(f"{time.monotonic() - began:.3f} s")

    def _follow(self, answer: LiveAnswer) -> None:
        """A live answer until it ends; on a terminal Ctrl-C ends it, too."""
        try:
            self._view().follow(answer) if not answer.as_changelog else self._changelog().follow(answer)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
        finally:
            answer.stop()

    def _view(self) -> Any:
        return LiveView(self.printer.console) if self._draws else self.printer

    def _changelog(self) -> Any:
        return ChangelogView(self.printer.console) if self._draws else self.printer

    @property
    def _draws(self) -> bool:
        return self.printer.format == "table" and self.printer.console.is_terminal

    # -- a person ----------------------------------------------------------------------------------------------------

    def interact(self, prompt: PromptSession[str] | None = None) -> None:
        """Reads and answers statements until the person is done."""
        self._interactive = True
        lines = prompt or open_prompt(self.session)
        while True:
            try:
                text = lines.prompt(f"{self.session.title}> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            try:
                self.answer(text)
            except Quit:
                return

    def answer(self, text: str) -> None:
        """What a person typed: its answer, or what is wrong with it. Raises Quit where the person is done."""
        try:
            if text.lstrip().startswith("\\"):
                run_command(self, text)
            else:
                self.run_text(text)
        except KeyboardInterrupt:
            self.printer.say("interrupted")
        except HeadraceError as error:
            self._tell(error)
        except (Quit, EOFError, SystemExit):
            raise
        except Exception as error:
            # A mistake of ours must not end the person's session.
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if self._trace:
            import traceback

            traceback.print_exception(error)
        Console(stderr=True, soft_wrap=True).print(error_text(error, traced=self._trace))


def open_prompt(session: ShellSession, **terminal: Any) -> PromptSession[str]:
    """Where a person types: history, completion, colours, and further lines until a semicolon."""
    with package("prompt_toolkit", extra="sql", where="headrace sql", instead="or give statements by -e or -f"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.lexers import PygmentsLexer
        from pygments.lexers.sql import SqlLexer  # type: ignore[import-untyped]

    from headrace.cli.shell.completing import SqlCompleter

    keys = KeyBindings()

    @Condition
    def is_done() -> bool:
        text = lines.default_buffer.text
        return not text.strip() or text.lstrip().startswith("\\") or is_whole(text)

    @keys.add("enter", filter=is_done)
    def _enter(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    file = _history_file()
    lines: PromptSession[str] = PromptSession(
        history=InMemoryHistory() if file is None else FileHistory(str(file)),
        completer=SqlCompleter(session, COMMANDS),
        complete_while_typing=False,
        lexer=PygmentsLexer(SqlLexer),
        multiline=True,
        prompt_continuation=lambda width, number, is_soft_wrap: MORE.rjust(width),
        key_bindings=keys,
        **terminal,
    )
    return lines


def _history_file() -> Path | None:
    """Where what was typed is kept; None where there is no place for it."""
    file = Path(os.environ.get(HISTORY) or _HISTORY_FILE).expanduser()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        return file
    return None
