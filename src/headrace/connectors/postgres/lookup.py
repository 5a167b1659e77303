"""A table as the other side of ``stream.lookup``: values are gathered and asked for by one query.

While a query is under way, the values that come meanwhile wait for the next one, so the batches are as large as the
server is slow. One connection per worker. A connection that was lost is opened again once; a SELECT may be repeated.

Which values share a query is chance, so none may fail for another: where Postgres refuses one of them, they are asked
for in halves until it stands alone, and a row that cannot be decoded fails for its own value.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.connectors.postgres.select import SESSION, Selection, translate_select_error
from headrace.connectors.postgres.server import connection_arguments, psycopg_module, quoted
from headrace.errors import ProgramError
from headrace.model.requests import AsyncFunction

if TYPE_CHECKING:
    import psycopg

    from headrace.model.rows import RowCodec

BATCH_VALUES: Final = 1000
"""Values that one query asks for."""
_MOMENTS: Final = ("timestamptz", "timestamp")
_WHOLE_NUMBERS: Final = ("int2", "int4", "int8")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TableLookup(AsyncFunction[Any, Any]):
    """The row of a key in a table, or None; made by ``hr.source.table(…).lookup(Type, key=…)``."""

    def __init__(self, text: str, dsn: str, codec: RowCodec, key: str, where: str) -> None:
        self.text = text
        self.dsn = dsn
        self.codec = codec
        self.key = key
        self.where = where
        self.output = codec.type
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._asking: asyncio.Task[None] | None = None
        self._statement = ""
        self._selection: Selection | None = None

    async def open(self) -> None:
        self._selection = Selection(self.text, self.codec, self.where)
        self._waiting, self._asking, self._connection = [], None, None
        psycopg = psycopg_module()
        try:
            await asyncio.to_thread(self._prepare)
        except psycopg.Error as error:
            raise translate_select_error(error, self.where, self.dsn) from error

    def _prepare(self) -> None:
        """Compares the table with the type, and settles the statement."""
        from headrace.connectors.postgres.server import open_connection

        assert self._selection is not None
        with open_connection(self.dsn, "headrace lookup") as connection:
            types = self._selection.check(connection)
        if self.key not in types:
            raise ProgramError(
                f"there is no column {self.key!r} to look up by",
                where=self.where,
                expected=f"one of {', '.join(types)}",
                found=repr(self.key),
            )
        self._key_type = types[self.key]
        # Whole numbers compare, by an index too, whatever their widths: a larger one than fits is just not found.
        self._wanted = f"%s::{quoted('int8' if self._key_type in ('int2', 'int4') else self._key_type)}[]"
        self._statement = (
            f"SELECT wanted.n, {self._selection.select(types)} "
            f"FROM unnest({self._wanted}) WITH ORDINALITY AS wanted(value, n) "
            f"JOIN {self._selection.from_sql} AS t ON t.{quoted(self.key)} = wanted.value"
        )

    async def call(self, row: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((row, answer))
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
        return await answer

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        await self._disconnect()

    async def _ask(self) -> None:
        """Until nobody waits any more."""
        try:
            while self._waiting:
                # Whoever gave up waiting (a timeout) needs no answer.
                asked = [each for each in self._waiting[:BATCH_VALUES] if not each[1].done()]
                del self._waiting[:BATCH_VALUES]
                try:
                    found = await self._find([value for value, _ in asked]) if asked else []
                except Exception as error:
                    found = [error] * len(asked)
                for (_, answer), value in zip(asked, found, strict=True):
                    if answer.done():
                        continue
                    if isinstance(value, Exception):
                        answer.set_exception(value)
                    else:
                        answer.set_result(value)
        finally:
            self._asking = None

    async def _find(self, values: list[Any]) -> list[Any]:
        """To each value its row, None, or the exception that is its own. Raises what concerns all of them."""
        psycopg = psycopg_module()
        try:
            rows = await self._rows([self._adapted(value) for value in values])
        except (psycopg.DataError, psycopg.NotSupportedError, OverflowError) as error:
            if len(values) == 1:
                return [await self._refusal(values[0], error)]
            half = len(values) // 2
            return [*await self._find(values[:half]), *await self._find(values[half:])]
        except psycopg.Error as error:
            raise translate_select_error(error, self.where, self.dsn) from error
        return self._answers(values, rows)

    async def _refusal(self, value: Any, error: Exception) -> Exception | None:
        """Why a value cannot be asked for; None where its column cannot hold it, so that there is no such row."""
        if isinstance(error, OverflowError):
            return LookupError(f"{self.where}: {self.key} = {value!r} lies outside of the years 1 to 9999")
        psycopg = psycopg_module()
        assert self._connection is not None
        try:
            await self._connection.execute(f"SELECT {self._wanted}", ([self._adapted(value)],))
        except (psycopg.DataError, psycopg.NotSupportedError):
            return None
        except psycopg.Error as again:
            return translate_select_error(again, self.where, self.dsn)
        # The value is a good one: it is the row, or the query, that cannot be computed.
        return translate_select_error(error, self.where, self.dsn)

    async def _rows(self, values: list[Any]) -> list[tuple[Any, ...]]:
        psycopg = psycopg_module()
        kept = self._connection is not None
        try:
            return await self._query(values)
        except psycopg.OperationalError:
            await self._disconnect()
            if not kept:
                raise
        # The connection was idle for a while, and the server restarted meanwhile.
        try:
            return await self._query(values)
        except psycopg.OperationalError:
            await self._disconnect()
            raise

    async def _query(self, values: list[Any]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            psycopg = psycopg_module()
            self._connection = await psycopg.AsyncConnection.connect(
                **connection_arguments(self.dsn, "headrace lookup"), autocommit=True
            )
            await self._connection.execute(SESSION)
        cursor = await self._connection.execute(self._statement, (values,))
        rows: list[tuple[Any, ...]] = await cursor.fetchall()
        return rows

    def _answers(self, values: list[Any], rows: list[tuple[Any, ...]]) -> list[Any]:
        assert self._selection is not None
        texts = list(zip(*rows, strict=True))[1:] if rows else [()] * len(self.codec.names)
        columns, bad = self._selection.arrays([pa.array(list(column), pa.string()) for column in texts])
        good = iter(self._objects(columns))
        answers: list[Any] = [None] * len(values)
        for number, row in enumerate(rows):
            place, found = row[0] - 1, bad[number] if number in bad else next(good)
            if answers[place] is not None:
                answers[place] = LookupError(
                    f"{self.where} has several rows with {self.key} = {values[place]!r}; look up by a unique column"
                )
            else:
                answers[place] = found
        return answers

    def _objects(self, columns: list[pa.Array]) -> list[Any]:
        """The rows; in the place of one that cannot be made what it raised."""
        try:
            return self.codec.to_objects(columns)
        except Exception as error:
            if len(columns[0]) == 1:
                return [error]
            singly = ([column.slice(row, 1) for column in columns] for row in range(len(columns[0])))
            return [self._objects(row)[0] for row in singly]

    def _adapted(self, value: Any) -> Any:
        """A value as the column compares it: our times are whole microseconds. None: no row can have it."""
        if isinstance(value, int) and not isinstance(value, bool) and self._key_type in _MOMENTS:
            value = _EPOCH + timedelta(microseconds=value)
        if self._key_type == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            # Such a column holds UTC; the server would turn a moment into the time of its own zone.
            return value.astimezone(UTC).replace(tzinfo=None)
        value = getattr(value, "value", value)
        if isinstance(value, float | Decimal) and self._key_type in _WHOLE_NUMBERS:
            # Postgres would round it, and find a row with another key.
            return _whole(value)
        return value

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                await connection.close()


def _whole(number: float | Decimal) -> int | None:
    """The whole number that it is; None where it is none."""
    if not math.isfinite(number):
        return None
    above, below = number.as_integer_ratio()
    return above if below == 1 else None
