"""What a client's statement is, and its answer: from the session, a key's rows, the catalog, or a setting.

A statement is looked at once, when it is prepared. Answers are of three kinds: a tag alone, a few rows that are there
at once, or rows that are computed as they are sent. What comes at once is made on the event loop; everything else in a
thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import StatementFailed
from headrace.serve.pg.catalog import asks_catalog
from headrace.serve.pg.encoding import TEXT, Cell, PgColumn, column_of, data_rows, field_of, row_message, sized
from headrace.serve.pg.wire import NULL_CELL, ResultField
from headrace.snapshots.literals import parameter_count, parameter_types
from headrace.snapshots.points import PointPlan, PointQuestion, parse_point, plan_point, point_key
from headrace.snapshots.settings import bare, parse_command

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.pg.catalog import PgCatalog
    from headrace.serve.pg.variables import Variables
    from headrace.snapshots.session import SqlSession
    from headrace.snapshots.table import StateTable

_TAGS = {"BEGIN": "BEGIN", "COMMIT": "COMMIT", "ROLLBACK": "ROLLBACK", "SET": "SET", "RESET": "RESET"}


@dataclass
class PreparedStatement:
    """A statement that was looked at."""

    text: str
    oids: list[int] = field(default_factory=list)
    """Types of its parameters; 0 where nobody said one."""
    point: PointQuestion | None = None
    schema: pa.Schema | None = None
    """Of its rows, once somebody asked."""
    described: bool = False
    known: tuple[Snapshot, PointWay | None] | None = None
    """The epoch that a point question was planned for, and its plan."""
    descriptions: dict[tuple[bool, ...], bytes] = field(default_factory=dict)
    """Formats of columns → how its rows are told to the client."""


@dataclass
class PointWay:
    """A planned question for single keys, ready to be answered again and again."""

    plan: PointPlan
    table: StateTable
    schema: pa.Schema
    columns: list[PgColumn]
    texts: list[Cell]
    """How each column is written as text."""


@dataclass
class PgAnswer:
    """The answer to a statement."""

    tag: str
    """For its end, with the number of rows where it is a SELECT."""
    schema: pa.Schema | None = None
    """None: there are no rows."""
    rows: Iterator[tuple[bytes, int]] = field(default_factory=lambda: iter(()))
    """Rows as messages, and how many, in pieces."""
    ready: bytes = b""
    """Rows that are there at once, and …"""
    count: int = 0
    """… how many."""


def prepare(text: str, oids: Sequence[int]) -> PreparedStatement:
    return PreparedStatement(text, list(oids), parse_point(text))


class Answering:
    """Statements of one connection."""

    def __init__(self, session: SqlSession, catalog: PgCatalog, variables: Variables) -> None:
        self.session = session
        self._catalog = catalog
        self._variables = variables

    def at_once(
        self, prepared: PreparedStatement, parameters: Sequence[Any], binary: Sequence[bool]
    ) -> PgAnswer | None:
        """The answer where it needs no thread: settings, and single keys of an epoch that is open."""
        if prepared.point is not None:
            way = self.way(prepared)
            return None if way is None else self.of_point(way, parameters, binary)
        text = bare(prepared.text)
        if len(text) > 400 or text[:1].upper() not in "BCERSADUL":
            return None
        command = parse_command(text)
        if command is not None and command.verb in ("BEGIN", "COMMIT", "ROLLBACK"):
            self.session.begin() if command.verb == "BEGIN" else self.session.end()
            return PgAnswer(command.verb)
        if command is not None:
            return None
        tag = self._variables.set(text)
        if tag is not None:
            return PgAnswer(tag)
        shown = self._variables.show(text)
        if shown is None:
            return None
        schema = pa.schema([(shown[0], pa.string())])
        return PgAnswer("SHOW", schema, ready=row_message([sized(shown[1].encode())]), count=1)

    def of_point(self, way: PointWay, parameters: Sequence[Any], binary: Sequence[bool]) -> PgAnswer | None:
        """The rows of a single key; None where DuckDB has to compare."""
        key = point_key(way.plan, way.table, parameters)
        if key is None:
            return None
        rows = way.table.plain_rows(key, way.plan.names)
        if not any(binary):
            writers = way.texts
        else:
            writers = [column.binary if how else column.text for column, how in zip(way.columns, binary)]
        ready = b"".join(
            [
                row_message([NULL_CELL if cell is None else sized(write(cell)) for cell, write in zip(row, writers)])
                for row in rows
            ]
        )
        return PgAnswer(f"SELECT {len(rows)}", way.schema, ready=ready, count=len(rows))

    def way(self, prepared: PreparedStatement) -> PointWay | None:
        """The plan of a point question; None where it is none, or files have to be read for it."""
        if prepared.point is None or not self.session.is_open:
            return None
        snapshot = self.session.snapshot()
        if prepared.known is not None and prepared.known[0] is snapshot:
            return prepared.known[1]
        way = self._plan(prepared, prepared.point)
        prepared.known = snapshot, way
        return way

    def _plan(self, prepared: PreparedStatement, point: PointQuestion) -> PointWay | None:
        tables = self.session.tables()
        plan = plan_point(point, tables)
        if plan is None:
            return None
        table = tables[point.table]
        fields = [table.schema.field(name).with_name(title) for name, title in zip(plan.names, plan.titles)]
        columns = [column_of(each.type) for each in fields]
        prepared.oids = [*prepared.oids, *[0] * (point.parameters - len(prepared.oids))]
        for part, kind in zip(plan.parts, table.key_types):
            if part.place >= 0 and not prepared.oids[part.place]:
                prepared.oids[part.place] = column_of(kind.arrow).oid
        return PointWay(plan, table, pa.schema(fields), columns, [column.text for column in columns])

    # --- in a thread

    def in_thread(self, prepared: PreparedStatement, parameters: Sequence[Any], binary: Sequence[bool]) -> PgAnswer:
        """The answer where it is computed, or files are read for it."""
        text = bare(prepared.text)
        command = parse_command(text)
        if command is None and asks_catalog(text):
            table = self._catalog.run(text, parameters, self.session)
            return _of_batches(table.schema, iter(table.to_batches()), binary)
        answer = self.session.run(text, parameters)
        if answer.done:
            return PgAnswer(_TAGS.get(answer.done, answer.done))
        return _of_batches(answer.schema, answer.batches, binary)

    def describe(self, prepared: PreparedStatement) -> None:
        """Finds out the types of a statement's parameters and rows, without running it."""
        prepared.described = True
        text = bare(prepared.text)
        way = self.way(prepared)
        if way is not None or not text:
            prepared.schema = None if way is None else way.schema
            return
        if text.upper().startswith("SHOW"):
            prepared.schema = self.session.run(text).schema
            return
        if parse_command(text) is not None or self._variables.is_set(text):
            return
        if asks_catalog(text):
            prepared.oids = _filled(prepared.oids, text, {})
            nulls = [None] * len(prepared.oids)
            prepared.schema = self._catalog.schema_of(text, nulls, self.session)
            return
        prepared.oids = _filled(prepared.oids, text, parameter_types(text, self.session.tables()))
        prepared.schema = self.session.schema_of(text, [None] * len(prepared.oids))


def _filled(oids: Sequence[int], text: str, beside: Mapping[int, pa.DataType]) -> list[int]:
    """The types of parameters: what the client said, else that of what they stand beside, else text."""
    said = [*oids, *[0] * (parameter_count(text) - len(oids))]
    return [oid or (column_of(beside[place]).oid if place in beside else TEXT) for place, oid in enumerate(said)]


def _of_batches(schema: pa.Schema, batches: Iterator[pa.RecordBatch], binary: Sequence[bool]) -> PgAnswer:
    formats = list(binary) or [False] * len(schema)
    return PgAnswer("SELECT", schema, ((data_rows(batch, formats), batch.num_rows) for batch in batches))


def fields_of(schema: pa.Schema, binary: Sequence[bool] = ()) -> list[ResultField]:
    formats = list(binary) or [False] * len(schema)
    return [field_of(each, how) for each, how in zip(schema, formats)]


def spread_formats(codes: Sequence[int], count: int) -> list[bool]:
    """Formats of columns as Bind says them: none is text, one is that of all."""
    if len(codes) <= 1:
        return [bool(codes and codes[0])] * count
    if len(codes) != count:
        raise StatementFailed("as many formats as columns are wanted", code="08P01", found=str(len(codes)))
    return [bool(code) for code in codes]
