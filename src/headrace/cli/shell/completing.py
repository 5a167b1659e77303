"""What the shell offers while a person types: words of SQL, tables, columns and functions.

Behind FROM, JOIN, INTO and their like tables come first; behind ``t.`` the columns of ``t``, which may be an alias that
stands somewhere in the statement; elsewhere the columns of the tables that the statement names, then everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from headrace.cli.shell.session import ShellColumn, ShellSession
from headrace.errors import HeadraceError
from headrace.sql.parse import blank_quoted
from headrace.sql.script import cut_statements

KEYWORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "ORDER", "LIMIT", "DISTINCT", "AS", "CASE", "WHEN",
    "THEN", "ELSE", "END", "AND", "OR", "NOT", "IN", "EXISTS", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE",
    "UNION", "ALL", "INTERSECT", "EXCEPT", "WITH", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI",
    "ANTI", "CROSS", "ON", "USING", "OVER", "PARTITION", "ROWS", "RANGE", "PRECEDING", "FOLLOWING", "CURRENT",
    "ROW", "INTERVAL", "CAST", "TUMBLE", "HOP", "CUMULATE", "SESSION", "DESCRIPTOR", "TABLE", "LATERAL", "UNNEST",
    "VALUES", "FILTER", "CREATE", "TEMPORARY", "VIEW", "MATERIALIZED", "FUNCTION", "INSERT", "INTO", "WATERMARK",
    "FOR", "PRIMARY", "KEY", "METADATA", "DROP", "SHOW", "TABLES", "VIEWS", "FUNCTIONS", "DESCRIBE", "EXPLAIN",
    "SET", "RESET", "BEGIN", "STATEMENT", "IF",
)  # fmt: skip
_BEFORE_TABLES: Final = frozenset(
    {"from", "join", "into", "table", "view", "describe", "explain", "tumble", "hop", "cumulate", "session", "exists"}
)
_WORD: Final = re.compile(r"[A-Za-z_][\w$]*$")
_QUALIFIED: Final = re.compile(r"([A-Za-z_][\w$]*)\.([A-Za-z_][\w$]*)?$")
_NAMED_TABLES: Final = re.compile(
    r"\b(?:from|join|into|table|,)\s+([A-Za-z_][\w$]*)(?:\s+(?:as\s+)?([A-Za-z_]\w*))?", re.IGNORECASE
)


class SqlCompleter(Completer):
    """Offers what a session knows."""

    def __init__(self, session: ShellSession, commands: Iterable[str] = ()) -> None:
        self._session = session
        self._commands = tuple(commands)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.startswith("\\"):
            yield from self._after_backslash(before)
            return
        start = max((each.offset for each in cut_statements(before) if not each.ended), default=len(before))
        statement = blank_quoted(before[start:] + document.text_after_cursor.partition(";")[0])
        typed = before[start:]
        qualified = _QUALIFIED.search(typed)
        if qualified is not None:
            yield from self._columns_behind(qualified[1], qualified[2] or "", statement)
            return
        word = _WORD.search(typed)
        if word is None and complete_event.text_inserted:
            return
        yield from self._plain(word[0] if word else "", typed, statement)

    def _plain(self, word: str, typed: str, statement: str) -> Iterator[Completion]:
        lead = typed[: len(typed) - len(word)].split()
        tables = self._session.tables()
        if lead and lead[-1].rpartition("(")[2].lower() in _BEFORE_TABLES:
            yield from _offer(tables, word, "table")
            return
        known = {name.lower() for name in tables}
        for table in dict.fromkeys(name for name, _ in _named(statement) if name.lower() in known):
            for column in self._columns(table):
                yield from _offer([column.name], word, column.type)
        if word:
            yield from _offer(tables, word, "table")
            yield from _offer(self._session.functions(), word, "function")
            lower = word.islower()
            yield from _offer([each.lower() if lower else each for each in KEYWORDS], word, "")

    def _columns_behind(self, table: str, word: str, statement: str) -> Iterator[Completion]:
        aliases = {alias.lower(): name for name, alias in _named(statement) if alias}
        for column in self._columns(aliases.get(table.lower(), table)):
            yield from _offer([column.name], word, column.type)

    def _columns(self, table: str) -> Iterable[ShellColumn]:
        try:
            return self._session.columns(table)
        except HeadraceError:
            return ()

    def _after_backslash(self, before: str) -> Iterator[Completion]:
        command, space, word = before.partition(" ")
        if space:
            yield from _offer(self._session.tables(), word, "table")
        else:
            yield from _offer(self._commands, command, "")


def _named(statement: str) -> list[tuple[str, str]]:
    """The tables that a statement names, with their aliases."""
    keywords = {word.lower() for word in KEYWORDS}
    return [(name, "" if alias.lower() in keywords else alias) for name, alias in _NAMED_TABLES.findall(statement)]


def _offer(names: Iterable[str], word: str, what: str) -> Iterator[Completion]:
    start = word.lower()
    for name in names:
        if name.lower().startswith(start) and name != word:
            yield Completion(name, start_position=-len(word), display_meta=what)
