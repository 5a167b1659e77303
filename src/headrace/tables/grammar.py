"""The grammar of statements: from the words of one to what it says. Queries inside it are left to the dialect.

`statement_reader` makes what `headrace.tables.dialect.parse_script` asks first for every statement of a script; it
gives None for a query. Nothing here knows which tables, options or functions there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

from headrace.model.nearest import nearest
from headrace.tables.column_types import read_type
from headrace.tables.dialect import ParsedStatement, StatementPiece, parse_script
from headrace.tables.statements import (
    CreateFunction,
    CreateTable,
    CreateView,
    DeclaredColumn,
    DropObject,
    Explain,
    InsertInto,
    JoinedOption,
    ObjectKind,
    OptionText,
    OptionValue,
    SecretOption,
    SetOption,
    ShowObjects,
    Statement,
    StatementSet,
    VariableOption,
    WatermarkClause,
)
from headrace.tables.words import Words

_QUERIES: Final = ("SELECT", "WITH", "VALUES", "TABLE", "(")
_STATEMENTS: Final = (
    "CREATE", "INSERT", "SET", "RESET", "DROP", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "BEGIN", "END", "EXECUTE",
)  # fmt: skip
_REFUSED: Final = {
    "UPDATE": "streams are not changed in place: correct single keys by `headrace edit`",
    "DELETE": "streams are not changed in place: a row goes when its query no longer gives it",
    "ALTER": "a program is changed in its text: edit the CREATE statement; `headrace plan` says what that keeps",
    "TRUNCATE": "start over with `headrace run --fresh`",
    "USE": "a program has one catalog: write names without a catalog and database before them",
    "LOAD": "modules are files here: CREATE FUNCTION f AS 'module:function'",
    "ADD": "put the file on the import path, beside the .sql file: CREATE FUNCTION f AS 'module:function'",
    "MERGE": "a sink with a key replaces rows by themselves: INSERT INTO it",
}


def statement_reader(origin: str = "", site: str = "") -> Callable[[StatementPiece], Any]:
    """Reads statements of a script; a mistake in one is told with the file, or with the line of the program."""

    def read(piece: StatementPiece) -> Statement | None:
        return read_statement(Words(piece, origin, site), origin, site)

    return read


def read_statement(words: Words, origin: str, site: str) -> Statement | None:
    """What a statement says; None for a query."""
    if any(words.sees(word) for word in _QUERIES):
        return None
    at, first = words.offset, words.next_word.upper()
    if first in _REFUSED:
        raise words.error(f"{first} is not a statement of streaming SQL", at, next_move=_REFUSED[first])
    if first not in _STATEMENTS:
        near = nearest(first, [*_STATEMENTS, *_QUERIES[:3]])
        raise words.error(
            f"no statement begins with {words.next_word}",
            at,
            expected="SELECT, CREATE, INSERT INTO, SET, SHOW, DESCRIBE, EXPLAIN, DROP or BEGIN STATEMENT SET",
            next_move=f"did you mean {near[0]}?" if near else "the guide SQL programs has all statements",
        )
    words.skip()
    statement = _Reader(words, origin, site).read(first)
    words.finish()
    return statement


class _Reader:
    def __init__(self, words: Words, origin: str, site: str) -> None:
        self._words = words
        self._origin = origin
        self._site = site

    def read(self, first: str) -> Statement:
        words = self._words
        match first:
            case "CREATE":
                return self._create()
            case "INSERT":
                return self._insert()
            case "SET":
                return self._set()
            case "RESET":
                return SetOption(words.literal("a key") if words.is_literal else "", reset=True)
            case "DROP":
                return self._drop()
            case "SHOW":
                return self._show()
            case "DESCRIBE" | "DESC":
                words.accept("TABLE")
                at = words.offset
                return ShowObjects("columns", self._object_name("a table"), at)
            case "EXPLAIN":
                return self._explain()
            case "EXECUTE":
                words.expect("STATEMENT", "SET")
                words.accept("BEGIN")
                return StatementSet(opens=True)
            case "BEGIN":
                words.expect("STATEMENT", "SET")
                return StatementSet(opens=True)
        return StatementSet(opens=False)

    # -- CREATE -------------------------------------------------------------------------------------------------------

    def _create(self) -> Statement:
        words = self._words
        replaces = words.accept("OR", "REPLACE")
        temporary = words.accept("TEMPORARY")
        system = temporary and words.accept("SYSTEM")
        if words.accept("FUNCTION"):
            return self._create_function()
        if not system and words.accept("VIEW"):
            return self._create_view(replaces, materialized=False)
        if not system and words.accept("MATERIALIZED", "VIEW"):
            return self._create_view(replaces, materialized=True)
        if not system and words.accept("TABLE"):
            return self._create_table()
        for name, instead in (
            ("CATALOG", "a program has one catalog, of its own tables"),
            ("DATABASE", "a program has one catalog, of its own tables"),
            ("MODEL", "call the model from a Python function: CREATE FUNCTION f AS 'module:function'"),
        ):
            if words.sees(name):
                raise words.error(f"CREATE {name} is not a statement of streaming SQL", words.offset, next_move=instead)
        raise words.unexpected("TABLE, VIEW, MATERIALIZED VIEW or FUNCTION")

    def _if_not_exists(self) -> bool:
        return self._words.accept("IF", "NOT", "EXISTS")

    def _object_name(self, what: str) -> str:
        """A name; those of catalog and database before it are refused."""
        words = self._words
        name = words.name(f"the name of {what}")
        if words.sees("."):
            raise words.error(
                "names have one part", words.offset, expected="a name without a catalog or database before it",
                next_move="leave out what stands before the last dot",
            )  # fmt: skip
        return name

    def _create_table(self) -> CreateTable:
        words = self._words
        if_not_exists = self._if_not_exists()
        name = self._object_name("the table")
        columns, watermark, key = self._table_body()
        comment = words.literal("a comment") if words.accept("COMMENT") else ""
        partitioned = words.names("a column") if words.accept("PARTITIONED", "BY") else ()
        for clause, instead in (
            ("LIKE", "write the columns out"),
            ("AS", "CREATE TABLE with its columns, then INSERT INTO it; or CREATE VIEW"),
            ("DISTRIBUTED", "rows are distributed by the keys of queries; leave it out"),
        ):
            if words.sees(clause):
                raise words.error(f"CREATE TABLE has no {clause}", words.offset, next_move=instead)
        if not words.sees("WITH"):
            raise words.unexpected("WITH ('connector' = '…')")
        words.expect("WITH")
        return CreateTable(
            name, tuple(columns), self._options(), watermark, key, partitioned, if_not_exists, comment,
        )  # fmt: skip

    def _table_body(self) -> tuple[list[DeclaredColumn], WatermarkClause | None, tuple[str, ...]]:
        words = self._words
        columns: list[DeclaredColumn] = []
        watermark: WatermarkClause | None = None
        key: tuple[str, ...] = ()
        words.expect("(")
        while True:
            if words.accept("WATERMARK", "FOR"):
                if watermark is not None:
                    raise words.error("a table has one watermark", words.offset, next_move="leave one of them out")
                column = words.name("the column that holds the event time")
                words.expect("AS")
                at = words.offset
                watermark = WatermarkClause(column, words.expression("an expression"), at)
            elif words.sees("PRIMARY") or words.sees("CONSTRAINT"):
                key = self._primary_key()
            else:
                column_, is_key = self._column()
                columns.append(column_)
                key = key or ((column_.name,) if is_key else ())
            if not words.accept(","):
                break
        words.expect(")")
        return columns, watermark, key

    def _primary_key(self) -> tuple[str, ...]:
        words = self._words
        if words.accept("CONSTRAINT"):
            words.name("the name of the constraint")
        words.expect("PRIMARY", "KEY")
        key = words.names("a column")
        self._not_enforced()
        return key

    def _not_enforced(self) -> None:
        if self._words.sees("ENFORCED"):
            raise self._words.error(
                "a key of a stream is not enforced", self._words.offset, next_move="write NOT ENFORCED, or nothing"
            )
        self._words.accept("NOT", "ENFORCED")

    def _column(self) -> tuple[DeclaredColumn, bool]:
        """A column, and whether it says that it is the primary key."""
        words = self._words
        at = words.offset
        name = words.name("a column, WATERMARK FOR or PRIMARY KEY")
        if words.accept("AS"):
            computed = words.expression("an expression", "COMMENT")
            return DeclaredColumn(name, at, computed=computed, comment=self._comment()), False
        begin = words.offset
        annotation = read_type(words, name)
        text = words.piece.script[begin : words.offset].strip()
        metadata, virtual, is_key = None, False, False
        if words.accept("METADATA"):
            metadata = words.literal("the name of the metadata") if words.accept("FROM") else name
            virtual = words.accept("VIRTUAL")
        if words.accept("PRIMARY", "KEY"):
            is_key = True
            self._not_enforced()
        if words.accept("NOT", "NULL"):
            raise words.error("NOT NULL stands right behind the type", at, next_move="move it there")
        if words.sees("DEFAULT"):
            raise words.error(
                "columns have no defaults", words.offset,
                next_move=f"coalesce({name}, …) in a query, or as a computed column",
            )  # fmt: skip
        return DeclaredColumn(name, at, annotation, text, None, metadata, virtual, self._comment()), is_key

    def _comment(self) -> str:
        return self._words.literal("a comment") if self._words.accept("COMMENT") else ""

    def _options(self) -> dict[str, OptionText]:
        """What stands in ``('key' = 'value', …)``."""
        words = self._words
        options: dict[str, OptionText] = {}
        words.expect("(")
        while not words.sees(")"):
            at = words.offset
            key = words.literal("the name of an option, in quotes")
            if key in options:
                raise words.error(f"the option {key!r} is said twice", at, next_move="leave one of them out")
            words.expect("=")
            options[key] = OptionText(self._value(), at)
            if not words.accept(","):
                break
        words.expect(")")
        return options

    def _value(self) -> OptionValue:
        """A value, or several with ``||`` between them; a secret stands alone, so that it stays one."""
        first = self._one_value()
        parts = [first]
        while self._words.sees("||"):
            at = self._words.offset
            self._words.skip()
            parts.append(self._one_value())
            if any(isinstance(part, SecretOption) for part in parts):
                raise self._words.error(
                    "a secret is a whole value", at, next_move="put all of the text into the secret"
                )
        return first if len(parts) == 1 else JoinedOption(tuple(cast(Any, parts)))

    def _one_value(self) -> OptionValue:
        words = self._words
        if words.accept("SECRET", "("):
            value: OptionValue = SecretOption(words.literal("the name of a secret, in quotes"))
        elif words.accept("VAR", "("):
            name = words.literal("the name of a variable, in quotes")
            value = VariableOption(name, words.literal("a default, in quotes") if words.accept(",") else None)
        else:
            return words.literal("a value in quotes, SECRET('NAME') or VAR('name')")
        words.expect(")")
        return value

    def _create_view(self, replaces: bool, *, materialized: bool) -> CreateView:
        words = self._words
        if_not_exists = self._if_not_exists()
        name = self._object_name("the view")
        columns: tuple[str, ...] = ()
        key: tuple[str, ...] = ()
        if words.sees("(", "PRIMARY"):
            words.expect("(")
            key = self._primary_key()
            words.expect(")")
        elif words.sees("("):
            columns = words.names("a column")
        if words.sees("PRIMARY"):
            key = self._primary_key()
        if words.accept("COMMENT"):
            words.literal("a comment")
        options = self._options() if words.accept("WITH") else None
        if (key or options) and not materialized:
            raise words.error(
                "a view keeps nothing, so it has no key and no options", words.offset,
                next_move="write CREATE MATERIALIZED VIEW",
            )  # fmt: skip
        words.expect("AS")
        return CreateView(name, self._query(), columns, materialized, key, options, if_not_exists, replaces)

    def _create_function(self) -> CreateFunction:
        words = self._words
        if_not_exists = self._if_not_exists()
        name = self._object_name("the function")
        words.expect("AS")
        target = words.literal("'module:function'")
        if words.accept("LANGUAGE") and not words.accept("PYTHON"):
            raise words.error("functions are Python functions", words.offset, next_move="LANGUAGE PYTHON, or nothing")
        return CreateFunction(name, target, if_not_exists)

    # -- the others ---------------------------------------------------------------------------------------------------

    def _insert(self) -> InsertInto:
        words = self._words
        if words.sees("OVERWRITE"):
            raise words.error(
                "a stream never ends, so there is nothing to write over", words.offset,
                next_move="INSERT INTO; a sink with a PRIMARY KEY replaces rows by it",
            )  # fmt: skip
        words.expect("INTO")
        at = words.offset
        target = self._object_name("a table")
        columns = words.names("a column") if words.sees("(") and not words.sees("(", "SELECT") else ()
        return InsertInto(target, at, self._query(), columns)

    def _set(self) -> SetOption:
        words = self._words
        if words.at_end:
            return SetOption()
        at = words.offset
        key = words.literal("a key") if words.is_literal else self._dotted()
        if words.at_end:
            return SetOption(key, at=at)
        words.expect("=")
        value = (
            self._value() if words.is_literal or words.sees("SECRET") or words.sees("VAR") else words.rest("a value")[0]
        )
        return SetOption(key, value, at=at)

    def _dotted(self) -> str:
        parts = [self._words.name("a key")]
        while self._words.accept("."):
            parts.append(self._words.name("a key"))
        return ".".join(parts)

    def _drop(self) -> DropObject:
        words = self._words
        words.accept("TEMPORARY")
        words.accept("MATERIALIZED")
        kinds = {"TABLE": "table", "VIEW": "view", "FUNCTION": "function"}
        kind = next((kinds[each] for each in kinds if words.accept(each)), None)
        if kind is None:
            raise words.unexpected("TABLE, VIEW, MATERIALIZED VIEW or FUNCTION")
        if_exists = words.accept("IF", "EXISTS")
        at = words.offset
        return DropObject(cast(ObjectKind, kind), self._object_name(f"a {kind}"), if_exists, at)

    def _show(self) -> ShowObjects:
        words = self._words
        if words.accept("CREATE"):
            words.accept("MATERIALIZED")
            if not words.accept("TABLE") and not words.accept("VIEW"):
                raise words.unexpected("TABLE or VIEW")
            at = words.offset
            return ShowObjects("create", self._object_name("a table or view"), at)
        if words.accept("COLUMNS"):
            if not words.accept("FROM"):
                words.expect("IN")
            at = words.offset
            return ShowObjects("columns", self._object_name("a table or view"), at)
        if words.accept("TABLES"):
            return ShowObjects("tables")
        if words.accept("VIEWS") or words.accept("MATERIALIZED", "VIEWS"):
            return ShowObjects("views")
        words.accept("USER")
        if words.accept("FUNCTIONS"):
            return ShowObjects("functions")
        raise words.unexpected("TABLES, VIEWS, FUNCTIONS, COLUMNS FROM t or CREATE TABLE t")

    def _explain(self) -> Explain:
        self._words.accept("PLAN", "FOR")
        return Explain(self._inner("a query or a statement"))

    def _query(self) -> ParsedStatement:
        words = self._words
        if not any(words.sees(word) for word in _QUERIES):
            raise words.unexpected("a query: SELECT …")
        return self._inner("a query")

    def _inner(self, what: str) -> ParsedStatement:
        """The statement that the rest is; its parts know where they stand in the whole script."""
        words = self._words
        _, at = words.rest(what)
        blank = "".join(char if char == "\n" else " " for char in words.piece.script[:at])
        text = blank + words.piece.script[at : words.piece.offset + len(words.piece.text)]
        reader = statement_reader(self._origin, self._site)
        (inner,) = parse_script(text, where=self._site, origin=self._origin, statements=[reader])
        return replace(inner, script=words.piece.script)
