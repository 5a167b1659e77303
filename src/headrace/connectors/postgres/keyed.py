"""A table of Postgres as a target of one row per key: compared, and filled, by the server itself.

Rows come by COPY into a temporary table, and one query says how they stand against the target. A second temporary table
has the keys that came, so extra rows are what is not in there. Comparing happens in one snapshot of the database with
the epoch of the target; writing locks that epoch, so a release waits for a moment, and never meets older rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.keyed_target import EXAMPLES, Comparison, Difference, InlineParts, KeyedTarget, Position
from headrace.connectors.postgres.copying import RowCopy
from headrace.connectors.postgres.errors import Place
from headrace.connectors.postgres.server import listed, quoted, table_columns

if TYPE_CHECKING:
    import psycopg

    from headrace.connectors.postgres.sink import PostgresSink
    from headrace.model.report import StagedPart

_SEEN: Final = "pg_temp.headrace_seen"


class PostgresKeyed(KeyedTarget):
    def __init__(self, sink: PostgresSink, job: str) -> None:
        assert sink.codec is not None
        self._sink = sink
        self._job = job
        self._columns = {column.name: column for column in table_columns(sink.codec)}
        self._same = " AND ".join(f"t.{quoted(name)} = r.{quoted(name)}" for name in sink.key)
        self._copy: RowCopy | None = None

    def position(self) -> Position:
        with self._sink.connected("read the newest epoch") as connection:
            return self._sink.recorded(connection, self._job)

    def compare(self, parts: Sequence[StagedPart], position: Position, *, write: bool) -> Comparison | None:
        reader = InlineParts()
        kinds = {name: column.kind for name, column in self._columns.items() if not column.array}
        place = Place(reader.read, kinds)
        doing = "write rows again" if write else "compare rows"
        total = Comparison()
        with self._at(position, doing, place, lock=write) as connection:
            if connection is None:
                return None
            rows = self._rows_of(connection)
            for columns in rows.by_rows(parts, reader, place):
                found = self._differences(connection, rows, columns)
                self._remember(connection, rows, columns)
                if write and not found.agrees:
                    rows.merge(columns)
                total = total.plus(found)
        return total

    def find_extra(self, position: Position) -> Comparison | None:
        with self._at(position, "look for other rows", None, lock=False) as connection:
            if connection is None:
                return None
            self._make_seen(connection)
            found = connection.execute(f"SELECT count(*) {self._extra}").fetchone()
            count = 0 if found is None else int(found[0])
            examples = connection.execute(
                f"SELECT {self._key_text('t')}, to_jsonb(t)::text {self._extra} ORDER BY 1 LIMIT {EXAMPLES}"
            ).fetchall()
        return Comparison(extra=count, examples=tuple(Difference("extra", key, target=row) for key, row in examples))

    def delete_extra(self, position: Position) -> int | None:
        with self._at(position, "delete other rows", None, lock=True) as connection:
            if connection is None:
                return None
            self._make_seen(connection)
            return connection.execute(f"DELETE {self._extra}").rowcount

    def close(self) -> None:
        self._sink.close()

    # --- one transaction

    @contextmanager
    def _at(
        self, position: Position, doing: str, place: Place | None, *, lock: bool
    ) -> Iterator[psycopg.Connection[Any] | None]:
        """A transaction in which the target has this position; None where it has another."""
        with self._sink.connected(doing, place) as connection, connection.transaction():
            if not lock:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            same = self._sink.recorded(connection, self._job, lock=lock) == position
            yield connection if same else None

    def _rows_of(self, connection: psycopg.Connection[Any]) -> RowCopy:
        if self._copy is None:
            assert self._sink.codec is not None
            self._copy = RowCopy(connection, self._sink.target, self._sink.codec, self._sink.key, self._sink.format)
        return self._copy

    # --- queries

    def _differences(self, connection: psycopg.Connection[Any], rows: RowCopy, columns: Sequence[str]) -> Comparison:
        first = f"t.{quoted(self._sink.key[0])}"
        rest = [name for name in columns if name not in self._sink.key]
        differs = " OR ".join(f"{self._value('t', name)} IS DISTINCT FROM {self._value('r', name)}" for name in rest)
        joined = f"FROM ({rows.newest_rows(columns)}) r LEFT JOIN {self._sink.target.sql} t ON {self._same}"
        state = f"CASE WHEN {first} IS NULL THEN 'missing' WHEN {differs or 'false'} THEN 'different' ELSE 'same' END"
        counts = dict(connection.execute(f"SELECT {state}, count(*) {joined} GROUP BY 1").fetchall())
        missing, different = counts.get("missing", 0), counts.get("different", 0)
        examples: list[Difference] = []
        if missing or different:
            mine = ", ".join(f"'{name.replace(chr(39), chr(39) * 2)}', t.{quoted(name)}" for name in columns)
            found = connection.execute(
                f"SELECT state, key, there, mine FROM (SELECT {state} AS state, {self._key_text('r')} AS key, "
                f"jsonb_build_object({mine})::text AS there, to_jsonb(r)::text AS mine, "
                f"row_number() OVER (PARTITION BY {state}) AS place {joined}) d "
                f"WHERE state <> 'same' AND place <= {EXAMPLES} ORDER BY state, key"
            ).fetchall()
            examples = [
                Difference(kind, key, "" if kind == "missing" else there, mine) for kind, key, there, mine in found
            ]
        return Comparison(sum(counts.values()), missing, different, examples=tuple(examples))

    def _value(self, row: str, name: str) -> str:
        """A value as it is compared: plain JSON has no equality."""
        column = self._columns.get(name)
        cast = "::jsonb" if column is not None and column.kind == "json" and not column.array else ""
        return f"{row}.{quoted(name)}{cast}"

    def _key_text(self, row: str) -> str:
        return "concat_ws(', ', " + ", ".join(f"{row}.{quoted(name)}::text" for name in self._sink.key) + ")"

    @property
    def _extra(self) -> str:
        return f"FROM {self._sink.target.sql} t WHERE NOT EXISTS (SELECT 1 FROM {_SEEN} r WHERE {self._same})"

    def _remember(self, connection: psycopg.Connection[Any], rows: RowCopy, columns: Sequence[str]) -> None:
        self._make_seen(connection)
        key = listed(self._sink.key)
        connection.execute(f"INSERT INTO {_SEEN} SELECT {key} FROM ({rows.newest_rows(columns)}) r")

    def _make_seen(self, connection: psycopg.Connection[Any]) -> None:
        """A table of keys that lives as long as the connection."""
        found = connection.execute("SELECT to_regclass(%s)", (_SEEN,)).fetchone()
        if found is None or found[0] is None:
            name = _SEEN.partition(".")[2]
            connection.execute(
                f"CREATE TEMPORARY TABLE {name} AS SELECT {listed(self._sink.key)} FROM {self._sink.target.sql} "
                "WITH NO DATA"
            )
