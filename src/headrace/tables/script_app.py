"""A file of statements as a program: its App, named after the file unless the file says otherwise.

A SELECT that stands alone is shown on the console. What is asked (SHOW, DESCRIBE, EXPLAIN) is answered through ``say``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.dataflow.naming import check_name, slug
from headrace.dataflow.site import Site, placed_at
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.tables.dialect import ParsedStatement
from headrace.tables.options import plain_value
from headrace.tables.program import Listing, SqlProgram, program_of
from headrace.tables.script_settings import NAME
from headrace.tables.statements import SetOption, Statement

if TYPE_CHECKING:
    from headrace.dataflow.app import App

_NAMES = (NAME, "pipeline.name")


def script_app(text: str, origin: str, say: Callable[[str], None]) -> App:
    """The app of a script; ``origin`` is its file."""
    from headrace.dataflow.app import App

    statements = SqlProgram(None, None).read(text, origin)  # type: ignore[arg-type]
    if not statements:
        raise ProgramError(
            "there is no statement in this file", where=origin, expected="CREATE TABLE …; INSERT INTO … SELECT …;",
            next_move="headrace new pipeline.sql writes one to begin with",
        )  # fmt: skip
    with placed_at(Site(origin, 1)):
        app = App(_app_name(statements, origin))
    program = program_of(app)
    queries = 0
    for each in statements:
        if isinstance(each.tree, Statement):
            _tell(program.execute(each), say)
            continue
        queries += 1
        show_query(program, each, "query" if queries == 1 else f"query_{queries}")
    app.own_settings = program.settings.run_settings()
    return app


def show_query(program: SqlProgram, query: ParsedStatement, name: str) -> Stream[object]:
    """Shows the rows of a query on the console."""
    site = Site(query.origin, query.line(query.offset))
    with placed_at(site):
        rows = program.query(query, name)
        rows.show()
    return rows


def _tell(outcome: object, say: Callable[[str], None]) -> None:
    if isinstance(outcome, Listing):
        for row in outcome.rows:
            say("\t".join(row))


def _app_name(statements: list[ParsedStatement], origin: str) -> str:
    for each in statements:
        if isinstance(each.tree, SetOption) and each.tree.key in _NAMES and each.tree.value is not None:
            where = each.where(each.tree.at, origin)
            return check_name(str(plain_value(each.tree.value)), "an app", where)
    stem = origin.replace("\\", "/").rpartition("/")[2].removesuffix(".sql")
    return check_name(slug(stem).lstrip("0123456789_") or "pipeline", "an app", origin)
