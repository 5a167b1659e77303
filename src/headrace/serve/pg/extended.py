"""PreparedStatement statements of one connection: parsed, bound to values, described, executed, some rows at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import StatementFailed
from headrace.serve.pg import wire
from headrace.serve.pg.parameters import read_parameter
from headrace.serve.pg.statements import PreparedStatement, fields_of, prepare, spread_formats
from headrace.snapshots.settings import bare

if TYPE_CHECKING:
    from headrace.serve.pg.connection import PgConnection


@dataclass
class Portal:
    """A prepared statement with values for its parameters."""

    prepared: PreparedStatement
    parameters: list[Any]
    formats: Sequence[int]
    rest: deque[tuple[bytes, int]] | None = None
    """Rows that were computed and not asked for yet."""
    sent: int = 0


class ExtendedQueries:
    """Statements and portals of a connection, by their names. What gives something back has to be waited for."""

    def __init__(self, line: PgConnection) -> None:
        self._line = line
        self._statements: dict[str, PreparedStatement] = {}
        self._portals: dict[str, Portal] = {}

    def close(self, reader: wire.BodyReader) -> None:
        where: dict[str, Any] = self._statements if reader.byte() == b"S" else self._portals
        where.pop(reader.text(), None)
        self._line.send(wire.CLOSED)

    def synchronized(self) -> None:
        """Portals last as long as their transaction."""
        if not self._line.in_transaction:
            self._portals = {}

    def parse(self, reader: wire.BodyReader) -> None:
        name, text = reader.text(), reader.text()
        oids = [reader.int4() & 0xFFFFFFFF for _ in range(reader.int2())]
        self._line.check(text)
        self._statements[name] = prepare(text, oids)
        self._line.send(wire.PARSED)

    def bind(self, reader: wire.BodyReader) -> None:
        portal, name = reader.text(), reader.text()
        prepared = self._prepared(name)
        codes = [reader.int2() for _ in range(reader.int2())]
        cells = [reader.cell() for _ in range(reader.int2())]
        formats = [reader.int2() for _ in range(reader.int2())]
        if prepared.point is not None:
            # Tells the types of parameters, where the client did not.
            self._line.answers.way(prepared)
        binary = spread_formats(codes, len(cells))
        oids = [*prepared.oids, *[0] * len(cells)]
        values = [read_parameter(cell, oid, how) for cell, oid, how in zip(cells, oids, binary)]
        self._portals[portal] = Portal(prepared, values, formats)
        self._line.send(wire.BOUND)

    def _prepared(self, name: str) -> PreparedStatement:
        found = self._statements.get(name)
        if found is None:
            raise StatementFailed(f'there is no prepared statement "{name}"', code="26000")
        return found

    def _portal(self, name: str) -> Portal:
        found = self._portals.get(name)
        if found is None:
            raise StatementFailed(f'there is no portal "{name}"', code="34000")
        return found

    def describe(self, reader: wire.BodyReader) -> Any:
        kind, name = reader.byte(), reader.text()
        portal = self._portal(name) if kind == b"P" else None
        prepared = self._prepared(name) if portal is None else portal.prepared
        way = self._line.answers.way(prepared)
        if way is not None and prepared.schema is not way.schema:
            prepared.schema, prepared.described = way.schema, True
            prepared.descriptions.clear()
        if prepared.described:
            self._tell(prepared, portal)
            return None
        return self._find_out(prepared, portal)

    async def _find_out(self, prepared: PreparedStatement, portal: Portal | None) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._line.server.threads, self._line.answers.describe, prepared
        )
        self._tell(prepared, portal)

    def _tell(self, prepared: PreparedStatement, portal: Portal | None) -> None:
        if portal is None:
            self._line.send(wire.parameter_description(prepared.oids))
        if prepared.schema is None:
            self._line.send(wire.NO_DATA)
            return
        formats = tuple(spread_formats(() if portal is None else portal.formats, len(prepared.schema)))
        known = prepared.descriptions.get(formats)
        if known is None:
            known = prepared.descriptions[formats] = wire.row_description(fields_of(prepared.schema, formats))
        self._line.send(known)

    def execute(self, reader: wire.BodyReader) -> Any:
        portal, most = self._portal(reader.text()), reader.int4()
        prepared = portal.prepared
        if portal.rest is not None:
            self.send_part(portal, most)
            return None
        self._line.check(prepared.text)
        way = self._line.answers.way(prepared)
        if way is not None:
            binary = spread_formats(portal.formats, len(way.columns))
            answer = self._line.answers.of_point(way, portal.parameters, binary)
        elif not bare(prepared.text):
            self._line.send(wire.EMPTY_QUERY)
            return None
        else:
            answer = self._line.answers.at_once(prepared, portal.parameters, ())
        if answer is None:
            return self._execute_in_thread(portal, most)
        self._line.send_ready(answer, described=True)
        return None

    async def _execute_in_thread(self, portal: Portal, most: int) -> None:
        prepared = portal.prepared
        if not prepared.described and any(portal.formats):
            await asyncio.get_running_loop().run_in_executor(
                self._line.server.threads, self._line.answers.describe, prepared
            )
        columns = 0 if prepared.schema is None else len(prepared.schema)
        binary = spread_formats(portal.formats, columns) if columns else ()
        await self._line.run(prepared, portal.parameters, binary, portal, most)

    def send_part(self, portal: Portal, most: int) -> None:
        """So many rows of a portal that has them; then it waits to be asked again, or ends."""
        assert portal.rest is not None
        left = most or sum(rows for _, rows in portal.rest)
        while left and portal.rest:
            data, rows = portal.rest.popleft()
            if rows > left:
                head, rest = _cut_rows(data, left)
                portal.rest.appendleft((rest, rows - left))
                data, rows = head, left
            self._line.send(data)
            portal.sent += rows
            left -= rows
        done = not portal.rest
        self._line.send(wire.command_complete(f"SELECT {portal.sent}") if done else wire.SUSPENDED)


def _cut_rows(data: bytes, count: int) -> tuple[bytes, bytes]:
    """The first rows of some, and the others."""
    at = 0
    for _ in range(count):
        at += 1 + int(wire.INT4.unpack_from(data, at + 1)[0])
    return data[:at], data[at:]
