"""Statements become a program: tables are declared, views named, queries lowered and written, settings taken down.

One `SqlProgram` belongs to one app. Statements are executed in order, and each either holds whole or raises before it
has changed anything that a later one sees. A program from a file and one that a person types statement by statement
are the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.dataflow.site import Site, placed_at
from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.tables.catalog import Table, catalog_of
from headrace.tables.declared import DeclaredTable, in_statement
from headrace.tables.dialect import ParsedStatement, parse_script
from headrace.tables.grammar import statement_reader
from headrace.tables.inserting import insert_rows
from headrace.tables.python_functions import read_function
from headrace.tables.python_objects import load_object
from headrace.tables.query import lower_query, run_sql
from headrace.tables.script_settings import ScriptSettings
from headrace.tables.statements import (
    CreateFunction,
    CreateTable,
    CreateView,
    DropObject,
    Explain,
    InsertInto,
    SetOption,
    ShowObjects,
    Statement,
    StatementSet,
)

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.stream import Stream


@dataclass(frozen=True)
class Listing:
    """What a statement that asks comes to: words in columns."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    is_text: bool = False
    """Whether the rows are the lines of one text."""

    def __str__(self) -> str:
        return "\n".join("\t".join(row) for row in self.rows)


Outcome = "Stream[Any] | Listing | str"
"""Of a query its stream; of a question its answer; of all others what was done."""


@dataclass
class SqlProgram:
    """The statements of one app, as far as they have come."""

    app: App
    site: Site | None = None
    """Where the text stands, if not in a file of its own."""
    tables: dict[str, DeclaredTable] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """View → its statement, for SHOW CREATE."""
    materialized: set[str] = field(default_factory=set)
    settings: ScriptSettings = field(default_factory=ScriptSettings)
    inserts: dict[str, int] = field(default_factory=dict)
    """Table → how often something was inserted into it."""

    def read(self, text: str, origin: str = "") -> list[ParsedStatement]:
        """The statements of a text."""
        site = str(self.site or "")
        return parse_script(text, where=site, origin=origin, statements=[statement_reader(origin, site)])

    def execute(self, parsed: ParsedStatement) -> Any:
        """Does what a statement says; see `Outcome`."""
        site = self._site_of(parsed)
        with placed_at(site), in_statement(parsed, parsed.offset, site):
            if not isinstance(parsed.tree, Statement):
                return self.query(parsed, None)
            return self._does[type(parsed.tree)](self, parsed.tree, parsed, site)

    def query(self, parsed: ParsedStatement, name: str | None) -> Stream[Any]:
        """The stream of a query; ``name`` is that of what it keeps."""
        return lower_query(self.app, parsed, catalog_of(self.app), name=name, at=self._site_of(parsed))

    def _site_of(self, parsed: ParsedStatement) -> Site:
        if parsed.origin:
            return Site(parsed.origin, parsed.line(parsed.offset))
        return self.site or Site("<sql>", parsed.line(parsed.offset))

    # -- what statements do -------------------------------------------------------------------------------------------

    def _create_table(self, statement: CreateTable, parsed: ParsedStatement, site: Site) -> str:
        if self._is_there(statement.name, statement.if_not_exists):
            return f"{statement.name} is there already"
        table = DeclaredTable(statement, parsed, site)
        low = statement.name.lower()

        def read() -> Table:
            return table.read(self.app)

        catalog_of(self.app).declare(statement.name, read, parsed.where(parsed.offset, str(site)))
        if table.can_be_asked:
            catalog_of(self.app).lookups[low] = table.lookup
        self.tables[low] = table
        self.texts[low] = parsed.text
        return f"table {statement.name}"

    def _create_view(self, statement: CreateView, parsed: ParsedStatement, site: Site) -> str:
        if self._is_there(statement.name, statement.if_not_exists):
            return f"{statement.name} is there already"
        if statement.replaces:
            catalog_of(self.app).views.pop(statement.name.lower(), None)
        from headrace.tables.views import materialize, view_query

        if statement.materialized:
            materialize(self, statement, parsed, site)
            self.materialized.add(statement.name.lower())
        else:
            where = parsed.where(parsed.offset, str(site))
            catalog_of(self.app).add_view(statement.name, view_query(self, statement, parsed, site), where)
        self.texts[statement.name.lower()] = parsed.text
        return f"{'materialized ' if statement.materialized else ''}view {statement.name}"

    def _create_function(self, statement: CreateFunction, parsed: ParsedStatement, site: Site) -> str:
        functions, low = catalog_of(self.app).functions, statement.name.lower()
        if statement.if_not_exists and low in functions:
            return f"{statement.name} is there already"

        def error(what: str, *, found: str = "", **parts: str) -> ProgramError:
            detail = f" ({found})" if found and found not in what else ""
            refused = ProgramError(
                what + detail, where=parsed.where(parsed.offset, str(site)), found=parsed.point(parsed.offset), **parts
            )
            refused.in_query = True  # type: ignore[attr-defined]
            return refused

        functions[low] = read_function(statement.name, load_object(statement.target, error), error)
        return f"function {statement.name}"

    def _insert(self, statement: InsertInto, parsed: ParsedStatement, site: Site) -> str:
        table = self._table(statement.target, parsed, statement.target_at, site)
        if not table.can_write:
            raise self._error(
                parsed, statement.target_at, site, f"the connector {table.connector!r} of {table.name!r} only reads",
                "insert into a table whose connector writes: files, kafka, postgres, print, …",
            )  # fmt: skip
        low = table.name.lower()
        number = self.inserts.get(low, 0) + 1
        suffix = "" if number == 1 else f"_{number}"
        rows = self.query(statement.query, f"into_{low}{suffix}")
        insert_rows(table, statement, rows, parsed, f"{low}{suffix}", site)
        self.inserts[low] = number
        return f"rows go into {table.name}"

    def _set(self, statement: SetOption, parsed: ParsedStatement, site: Site) -> Any:
        if statement.value is None and not statement.reset:
            rows = self.settings.rows()
            return Listing(("key", "value"), [row for row in rows if statement.key in ("", row[0])])
        with in_statement(parsed, statement.at or parsed.offset, site):
            if statement.reset or statement.value is None:
                self.settings.reset(statement.key)
                self._apply_settings()
                return "settings are as they were"
            self.settings.set(statement.key, statement.value, parsed.point(statement.at))
            self._apply_settings()
        return f"{statement.key} is set"

    def _apply_settings(self) -> None:
        """Tells queries that come what was set for them."""
        catalog = catalog_of(self.app)
        catalog.state_ttl, catalog.emits = self.settings.state_ttl, self.settings.emits

    def _drop(self, statement: DropObject, parsed: ParsedStatement, site: Site) -> str:
        low = statement.name.lower()
        catalog = catalog_of(self.app)
        if statement.kind == "function" and low in catalog.functions:
            del catalog.functions[low]
        elif statement.kind == "view" and low in catalog.views:
            del catalog.views[low]
        elif statement.kind == "table" and low in catalog.declared and low not in catalog.tables:
            del catalog.declared[low], self.tables[low]
            catalog.lookups.pop(low, None)
        elif low in catalog.tables or low in self.materialized:
            raise self._error(parsed, statement.at, site, f"{statement.name} is read by what was said before", (
                "a program is its text: leave the statements out that make and read it"))  # fmt: skip
        elif not statement.if_exists:
            known = catalog.functions if statement.kind == "function" else [*self.tables, *catalog.views]
            raise self._error(
                parsed, statement.at, site, f"there is no {statement.kind} {statement.name!r}",
                did_you_mean(statement.name, known, "SHOW TABLES lists them"),
            )  # fmt: skip
        self.texts.pop(low, None)
        return f"{statement.kind} {statement.name} is gone"

    def _show(self, statement: ShowObjects, parsed: ParsedStatement, site: Site) -> Listing:
        from headrace.tables.listing import show

        return show(self, statement, lambda what, move: self._error(parsed, statement.at, site, what, move))

    def _explain(self, statement: Explain, parsed: ParsedStatement, site: Site) -> Listing:
        from headrace.tables.explaining import explain_statement

        return Listing(("plan",), [(line,) for line in explain_statement(self, statement.inner).splitlines()], True)

    def _statement_set(self, statement: StatementSet, parsed: ParsedStatement, site: Site) -> str:
        return "a program is one job: all its statements run together"

    _does: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        handlers: dict[type, Callable[..., Any]] = {
            CreateTable: SqlProgram._create_table,
            CreateView: SqlProgram._create_view,
            CreateFunction: SqlProgram._create_function,
            InsertInto: SqlProgram._insert,
            SetOption: SqlProgram._set,
            DropObject: SqlProgram._drop,
            ShowObjects: SqlProgram._show,
            Explain: SqlProgram._explain,
            StatementSet: SqlProgram._statement_set,
        }
        self._does = handlers

    # -- names --------------------------------------------------------------------------------------------------------

    def _is_there(self, name: str, wanted: bool) -> bool:
        return wanted and name.lower() in {each.lower() for each in catalog_of(self.app).names()}

    def _table(self, name: str, parsed: ParsedStatement, at: int, site: Site) -> DeclaredTable:
        table = self.tables.get(name.lower())
        if table is None:
            raise self._error(
                parsed, at, site, f"there is no table {name!r} to insert into",
                did_you_mean(name, [each.name for each in self.tables.values()], "CREATE TABLE it before"),
            )  # fmt: skip
        return table

    def _error(self, parsed: ParsedStatement, at: int, site: Site, what: str, next_move: str) -> ProgramError:
        error = ProgramError(what, where=parsed.where(at, str(site)), found=parsed.point(at), next_move=next_move)
        error.in_query = True  # type: ignore[attr-defined]
        return error


def program_of(app: App, site: Site | None = None) -> SqlProgram:
    """The statements of an app; the same ones each time."""
    catalog = catalog_of(app)
    if catalog.program is None:
        catalog.program = SqlProgram(app)
    found: SqlProgram = catalog.program
    found.site = site
    return found


def run_text(app: App, first: Any, second: Any, name: str | None, tables: Mapping[str, Any], at: Site) -> Stream[Any]:
    """What ``app.sql`` gives: of a query its stream; of statements that of the last one that gives one, else None."""
    if not isinstance(first, str) or second is not None:
        return run_sql(app, first, second, name, tables, at)
    program = program_of(app, at)
    statements = program.read(first)
    if not any(isinstance(each.tree, Statement) for each in statements):
        return run_sql(app, first, second, name, tables, at)
    result: Any = None
    for each in statements:
        outcome = program.execute(each)
        result = outcome if outcome is not None and not isinstance(outcome, str) else result
    return result  # type: ignore[no-any-return]


def table_stream(app: App, name: str, at: Site) -> Stream[Any]:
    """The rows of a table or view, as a stream: what ``app.table`` gives."""
    catalog = catalog_of(app)
    with placed_at(at):
        found = catalog.find(name)
    if isinstance(found, Table):
        return found.stream
    if found is None:
        error = catalog.missing(name, {})
        error.where = str(at)
        raise error
    return lower_query(app, found, catalog, name=None, at=at)
