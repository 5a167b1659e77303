"""A table that CREATE TABLE declared: rows come in through it, go out through it, or both.

Nothing is opened when it is declared. Its source is read when a query first reads it, and its sink is made when rows
are first inserted into it; a table that nobody uses is not part of the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.sink_contract import Sink
from headrace.dataflow.asynchronous import retry
from headrace.dataflow.site import Site, placed_at
from headrace.errors import HeadraceError, ProgramError
from headrace.model.record import Row, row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.model.shapes import split_optional
from headrace.model.time import Span, Timestamp
from headrace.sql.expr import quote_name
from headrace.tables.catalog import Table
from headrace.tables.changing_tables import changing, check_changing, incoming_time, incoming_type, rows_by_key
from headrace.tables.column_types import type_name_of
from headrace.tables.connectors import CONNECTORS, LOOKUP, TableConnector, connector_named, known_options
from headrace.tables.lookup_joins import LookupTable
from headrace.tables.options import Side, TableOptions, plain_value
from headrace.tables.statements import CreateTable, DeclaredColumn

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.stream import Stream
    from headrace.tables.dialect import ParsedStatement

CONNECTOR: Final = "connector"
_PROCTIME: Final = re.compile(r"proctime\s*\(\s*\)", re.IGNORECASE)
_BOUND: Final = re.compile(
    r"INTERVAL\s+'?(?P<number>\d+(?:\.\d+)?)'?\s+(?P<unit>MILLISECOND|SECOND|MINUTE|HOUR|DAY)S?\s*$", re.IGNORECASE
)
_UNITS: Final = {"MILLISECOND": "ms", "SECOND": "s", "MINUTE": "m", "HOUR": "h", "DAY": "d"}


class DeclaredTable:
    """One table, checked as far as it can be without opening anything."""

    def __init__(self, statement: CreateTable, parsed: ParsedStatement, site: Site) -> None:
        self.statement = statement
        self.parsed = parsed
        self.site = site
        self.name = statement.name
        self.primary_key = statement.primary_key
        self.columns = {column.name: column for column in statement.columns}
        keys = {name.lower() for name in statement.primary_key}
        self.physical: dict[str, Any] = {
            each.name: split_optional(each.annotation)[0] if each.name.lower() in keys else each.annotation
            for each in statement.columns
            if each.annotation is not None
        }
        """Column → its type; without those that are computed. A part of the primary key is never null."""
        self.processing_time = tuple(each.name for each in statement.columns if _is_proctime(each))
        self.connector, self._connector = self._find_connector()
        self._check_columns()
        self.time_sql, self.out_of_order = self._watermark()

    # -- what it says -------------------------------------------------------------------------------------------------

    @property
    def can_read(self) -> bool:
        return self._connector.source is not None

    @property
    def can_be_asked(self) -> bool:
        return self._connector.lookup is not None

    @property
    def can_write(self) -> bool:
        return self._connector.sink is not None

    def metadata_fields(self, *, writable: bool = False) -> dict[str, str]:
        """Part of a message → the column that it fills; with ``writable`` only those that are also written."""
        return {
            each.metadata: each.name
            for each in self.statement.columns
            if each.metadata is not None and not (writable and each.virtual)
        }

    def read_codec(self) -> RowCodec:
        """The rows of the source: all columns but the computed ones, or changes of such rows."""
        row = self._row_type(self.physical)
        return codec_of(incoming_type(self, row) if changing(self) else row)

    def write_type(self) -> type[Row]:
        """The rows of the sink: columns that are read only are not among them."""
        return self._row_type({
            name: annotation for name, annotation in self.physical.items() if not self.columns[name].virtual
        })  # fmt: skip

    def _row_type(self, fields: dict[str, Any]) -> type[Row]:
        return row_type(type_name_of(self.name), fields, optional=True)

    # -- opening ------------------------------------------------------------------------------------------------------

    def read(self, app: App) -> Table:
        """The rows of the table, as a step of an app."""
        if self._connector.source is None:
            readable = ", ".join(name for name, each in CONNECTORS.items() if each.source is not None)
            raise self.error(
                f"the table {self.name!r} cannot be read: the connector {self.connector!r} only writes",
                expected=f"a connector that reads: {readable}",
            )
        with self.at_place():
            if changing(self):
                check_changing(self)
            options, arguments = self._options("source")
            source = self._connector.source(self, options, arguments)
            options.check_all_used(self.connector, known_options(self._connector))
            time = incoming_time(self, self.time_sql)
            rows = app.read(
                self.name.lower(), source, self.read_codec().type, time=time, out_of_order=self.out_of_order
            )
            if changing(self):
                kept = rows_by_key(self, rows, self._row_type(self.physical))
                return Table(self.name, kept, self._time_column(), self.primary_key)
            return Table(
                self.name, self._with_computed(rows), self._time_column(), self.primary_key, self.processing_time
            )

    def lookup(self) -> LookupTable:
        """The table as one that is asked for single rows; nothing is opened."""
        ask = self._connector.lookup
        assert ask is not None, "only tables that can be asked are registered as such"
        with self.at_place():
            options, arguments = self._options("source")
            options.check_all_used(self.connector, known_options(self._connector))
            said = options.arguments(LOOKUP, "source")
            if (retries := said.pop("retries", None)) is not None:
                said["retry"] = retry(retries)
            for each in self.statement.columns:
                if each.computed is not None:
                    raise self.error_at(
                        f"{each.name} is computed, and rows that are looked up are not", each.at,
                        next_move="compute it in the query",
                    )  # fmt: skip
            fixed = self.primary_key[0] if self.connector == "python" and len(self.primary_key) == 1 else None
            return LookupTable(
                self.name, self.read_codec(), lambda column: ask(self, dict(arguments), column), fixed, said
            )

    def open_sink(self) -> Sink:
        """Where rows that are inserted go; a new one each time."""
        if self._connector.sink is None:
            writable = ", ".join(name for name, each in CONNECTORS.items() if each.sink is not None)
            raise self.error(
                f"nothing can be inserted into {self.name!r}: the connector {self.connector!r} only reads",
                expected=f"a connector that writes: {writable}",
            )
        with self.at_place():
            options, arguments = self._options("sink")
            sink = self._connector.sink(self, options, arguments)
            options.check_all_used(self.connector, known_options(self._connector))
            return sink

    def _options(self, side: Side) -> tuple[TableOptions, dict[str, Any]]:
        options = TableOptions(self.statement.options, self.error_at)
        options.text(CONNECTOR)
        arguments = options.arguments(self._connector.options, side)
        if self._connector.lookup is not None:
            # How a table is asked is said beside how it is read.
            options.arguments(LOOKUP, side)
        for name in self.statement.options:
            # TableOptions of the other side are fine: a table may be read and written.
            if name.startswith(self._connector.prefixes):
                options.used.add(name)
        if self._connector.open:
            return options, arguments
        options.check_all_used(self.connector, known_options(self._connector))
        return options, arguments

    def _with_computed(self, rows: Stream[Any]) -> Stream[Any]:
        """All columns in the order they were declared, with those that are computed."""
        columns = [each for each in self.statement.columns if not _is_proctime(each)]
        if all(each.computed is None for each in columns):
            return rows
        computed: dict[str, str] = {}
        for each in columns:
            computed[each.name] = quote_name(each.name) if each.computed is None else each.computed
        return rows.select(**computed)

    def _time_column(self) -> str | None:
        return (
            None
            if self.statement.watermark is None
            else self.columns[self.declared_name(self.statement.watermark.column)].name
        )

    # -- checks -------------------------------------------------------------------------------------------------------

    def _find_connector(self) -> tuple[str, TableConnector]:
        given = self.statement.options.get(CONNECTOR)
        if given is None:
            raise self.error(
                f"the table {self.name!r} has no connector", expected="WITH ('connector' = '…', …)",
                next_move=f"one of {', '.join(CONNECTORS)}",
            )  # fmt: skip
        name = str(plain_value(given.value)).lower()
        return name, connector_named(name, lambda what, **parts: self.error_at(what, given.at, **parts))

    def _check_columns(self) -> None:
        seen: set[str] = set()
        for column in self.statement.columns:
            if column.name.lower() in seen:
                raise self.error_at(f"two columns are called {column.name!r}", column.at, next_move="rename one")
            seen.add(column.name.lower())
            if not column.name.isidentifier() or column.name.startswith("__"):
                raise self.error_at(
                    f"a column cannot be called {column.name!r}", column.at,
                    expected="letters, digits and underscores", next_move=f"rename {column.name!r}",
                )  # fmt: skip
            if column.metadata is not None and column.metadata not in (self._connector.metadata or {}):
                has = ", ".join(self._connector.metadata or {}) or "no metadata"
                raise self.error_at(
                    f"the connector {self.connector!r} has no metadata {column.metadata!r}", column.at, expected=has
                )
        if not self.physical:
            raise self.error(f"the table {self.name!r} has no columns of its own", expected="a column with a type")
        for name in (*self.primary_key, *self.statement.partitioned_by):
            self.declared_name(name)

    def declared_name(self, name: str) -> str:
        """The column of a name as it was declared."""
        same = [each for each in self.columns if each.lower() == name.lower()]
        if same:
            return same[0]
        from headrace.model.nearest import did_you_mean

        raise self.error(
            f"the table {self.name!r} has no column {name!r}", expected=f"one of {', '.join(self.columns)}",
            next_move=did_you_mean(name, self.columns),
        )  # fmt: skip

    def _watermark(self) -> tuple[str | None, Span | None]:
        """The event time as SQL over the columns of the source, and how long is waited for late rows."""
        clause = self.statement.watermark
        if clause is None:
            return None, None
        column = self.columns[self.declared_name(clause.column)]
        if column.computed is None and split_optional(column.annotation)[0] is not Timestamp:
            raise self.error_at(
                f"{column.name} holds no time", column.at, expected="a TIMESTAMP(3), or a computed column",
                next_move=f"{column.name}_time AS to_timestamp({column.name}), and WATERMARK FOR {column.name}_time",
            )  # fmt: skip
        time = quote_name(column.name) if column.computed is None else column.computed
        return time, self._wait(column.name, clause.expression, clause.at)

    def _wait(self, column: str, expression: str, at: int) -> Span:
        """``5s`` of ``at - INTERVAL '5' SECOND``."""
        name, minus, interval = expression.partition("-")
        if name.strip().strip("`").lower() == column.lower():
            if not minus:
                return "0s"
            bound = _BOUND.match(interval.strip())
            if bound is not None:
                return f"{bound['number']}{_UNITS[bound['unit'].upper()]}"
        raise self.error_at(
            "the watermark cannot be read",
            at,
            expected=f"{column}, or {column} - INTERVAL '5' SECOND",
            next_move="other watermarks are said in Python: app.read(…, watermark=…), then app.sql",
        )

    # -- mistakes -----------------------------------------------------------------------------------------------------

    def error(self, what: str, *, expected: str = "", found: str = "", next_move: str = "") -> ProgramError:
        """A mistake in the statement as a whole."""
        return self.error_at(what, self.parsed.offset, expected=expected, next_move=next_move)

    def option_error(self, option: str, what: str, found: str = "", expected: str = "") -> ProgramError:
        """A mistake in one option."""
        given = self.statement.options.get(option)
        at = self.parsed.offset if given is None else given.at
        detail = f" ({found})" if found else ""
        return self.error_at(f"{what}{detail}", at, expected=expected)

    def error_at(self, what: str, at: int, *, expected: str = "", next_move: str = "", **_: Any) -> ProgramError:
        error = ProgramError(
            what,
            where=self.parsed.where(at, str(self.site)),
            expected=expected,
            found=self.parsed.point(at),
            next_move=next_move,
        )
        error.in_query = True  # type: ignore[attr-defined]
        return error

    @contextmanager
    def at_place(self) -> Iterator[None]:
        """Steps made inside, and errors raised, stand at this statement."""
        with placed_at(self.site), in_statement(self.parsed, self.parsed.offset, self.site):
            yield


@contextmanager
def in_statement(parsed: ParsedStatement, at: int, site: Site) -> Iterator[None]:
    """What is wrong inside is told with the place of a character of a statement, if it has none in SQL already."""
    try:
        yield
    except HeadraceError as error:
        if not getattr(error, "in_query", False):
            error.where = parsed.where(at, str(site))
            error.in_query = True  # type: ignore[attr-defined]
        raise


def _is_proctime(column: DeclaredColumn) -> bool:
    return column.computed is not None and _PROCTIME.fullmatch(column.computed.strip()) is not None
