"""``SHOW`` and ``DESCRIBE``: what there is, as text. A secret is shown by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.sql.types import from_field
from headrace.tables.catalog import Table, catalog_of
from headrace.tables.dialect import ParsedStatement
from headrace.tables.statements import ShowObjects

if TYPE_CHECKING:
    from headrace.tables.declared import DeclaredTable
    from headrace.tables.program import Listing, SqlProgram

Refusal = Callable[[str, str], ProgramError]


def show(program: SqlProgram, statement: ShowObjects, error: Refusal) -> Listing:
    """The answer to a question about names."""
    from headrace.tables.program import Listing

    match statement.what:
        case "tables":
            return Listing(("table",), [(name,) for name in table_names(program)])
        case "views":
            return Listing(("view",), [(name,) for name in view_names(program)])
        case "functions":
            functions = catalog_of(program.app).functions
            return Listing(("function",), [(each.name,) for _, each in sorted(functions.items())])
        case "create":
            text = program.texts.get(statement.name.lower())
            if text is None:
                raise error(
                    f"no statement made {statement.name!r}",
                    did_you_mean(statement.name, list(program.texts), "SHOW TABLES lists what there is"),
                )
            return Listing(("statement",), [(line,) for line in text.splitlines()], True)
    rows = describe(program, statement.name, error)
    return Listing(("column", "type", "note"), [*rows])


def table_names(program: SqlProgram) -> list[str]:
    """Tables that can be read or written; without views."""
    views = {name.lower() for name in view_names(program)}
    declared = [table.name for table in program.tables.values()]
    rest = [name for name in catalog_of(program.app).names() if name.lower() not in {each.lower() for each in declared}]
    return sorted({*declared, *(name for name in rest if name.lower() not in views and "$" not in name)})


def view_names(program: SqlProgram) -> list[str]:
    return sorted({*catalog_of(program.app).views, *program.materialized})


def describe(program: SqlProgram, name: str, error: Refusal) -> list[tuple[str, str, str]]:
    """The columns of a table or view: name, type, and what is said of it."""
    declared = program.tables.get(name.lower())
    if declared is not None:
        return _declared_columns(declared)
    found: Any = catalog_of(program.app).find(name)
    if found is None:
        raise error(
            f"there is no table {name!r}",
            did_you_mean(name, catalog_of(program.app).names(), "SHOW TABLES lists what there is"),
        )
    if isinstance(found, ParsedStatement):
        from headrace.tables.explaining import scratch

        with scratch(program):
            node = program.query(found, None).node
            return [(field.name, str(from_field(field)), "") for field in node.codec.schema]
    assert isinstance(found, Table)
    key = found.stream.node.kind.key or found.primary_key
    return [
        (field.name, str(from_field(field)), _note(field.name == found.time, field.name in key))
        for field in found.stream.node.codec.schema
    ]


def _declared_columns(table: DeclaredTable) -> list[tuple[str, str, str]]:
    watermark = table.statement.watermark
    rows = []
    for column in table.statement.columns:
        timed = watermark is not None and watermark.column.lower() == column.name.lower()
        note = _note(timed, column.name in table.primary_key)
        if timed and watermark is not None:
            note += f", watermark {watermark.expression}"
        if column.metadata is not None:
            note += f", metadata {column.metadata}"
        if column.computed is not None:
            note += f", AS {column.computed}"
        rows.append((column.name, column.type_text, note.removeprefix(", ")))
    return rows


def _note(timed: bool, is_key: bool) -> str:
    return ", ".join(words for words, holds in (("event time", timed), ("key", is_key)) if holds)
