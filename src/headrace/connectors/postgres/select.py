"""What is asked of Postgres for rows of a type, and how its answers become columns.

Every column comes as text of one form, whatever the server's settings are: times as whole microseconds, dates as days,
bytes as hexadecimal digits, nested values as JSON. The same text comes from COPY and from a query, so a snapshot and a
lookup read alike. What a column of Postgres can hold and ours cannot (the moment ``infinity``) comes as text that does
not decode: it costs the row that holds it, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.postgres.server import (
    Kind,
    TableColumn,
    psycopg_module,
    quoted,
    split_name,
    table_columns,
    why_not,
)
from headrace.errors import BadRow, EnvironmentMissing, HeadraceError, ProgramError
from headrace.model.jsonrows import JsonForm
from headrace.model.values import type_name

if TYPE_CHECKING:
    import psycopg

    from headrace.model.rows import RowCodec

_IS_QUERY: Final = re.compile(r"^\s*(select|with|values|table)\s", re.IGNORECASE)
_INTS: Final = ("int2", "int4", "int8")
_ANY: Final[tuple[str, ...]] = ()

_READ_FROM: Final[dict[Kind, tuple[str, ...]]] = {
    "int": (*_INTS, "oid"),
    "float": ("float8", "float4", "numeric", *_INTS),
    "bool": ("bool",),
    "text": _ANY,
    "bytes": ("bytea",),
    "moment": ("timestamptz", "timestamp", "date"),
    "span": ("interval",),
    "date": ("date",),
    "clock": ("time",),
    "decimal": ("numeric", *_INTS),
    "uuid": ("uuid", "text", "varchar"),
    "json": _ANY,
}
"""Types of columns that a kind is read from without losing anything; none listed: from any, by its text."""

_SQL: Final[dict[Kind, str]] = {
    "int": "({})::bigint",
    "float": "({})::float8",
    "bool": "({})::int",
    "text": "({})::text",
    "bytes": "encode({}, 'hex')",
    "moment": "CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::bigint::text ELSE ({0})::text END",
    "span": "CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::bigint::text ELSE ({0})::text END",
    "date": "CASE WHEN isfinite({0}) THEN (({0})::date - DATE '1970-01-01')::text ELSE ({0})::text END",
    "clock": "({})::time",
    # Arrow makes another number of one with too many digits, and says nothing: such text must be none.
    "decimal": "CASE WHEN abs(round(({0})::numeric, 18)) < 1e20 THEN (({0})::numeric(38, 18))::text "
    "ELSE ({0})::text || ' is beyond numeric(38, 18)' END",
    "uuid": "({})::text",
    "json": "to_jsonb({})",
}
SESSION: Final = "SET extra_float_digits = 1; SET datestyle = 'ISO, YMD'"

_UNFIT: Final = (HeadraceError, msgspec.MsgspecError, ValueError, OverflowError, pa.ArrowException)
"""What decoding raises of a text that does not say what it should."""


class Selection:
    """Rows of one type out of a table or a query."""

    def __init__(self, text: str, codec: RowCodec, where: str) -> None:
        self.where = where
        self.codec = codec
        self.columns = table_columns(codec)
        self.from_sql = from_clause(text, where)
        self._decoders = [_decoder(column) for column in self.columns]

    def select(self, types: dict[str, str]) -> str:
        """The columns as text, in the order of the fields; null for one that is not there."""
        return ", ".join(self._expression(column, column.name in types) for column in self.columns)

    def _expression(self, column: TableColumn, there: bool) -> str:
        if not there:
            return "NULL::text"
        name = f"t.{quoted(column.name)}"
        if not column.array:
            return f"({_SQL[column.kind].format(name)})::text"
        item = f"({_SQL[column.kind].format('u.v')})::text"
        items = f"SELECT coalesce(jsonb_agg({item} ORDER BY u.n), '[]') FROM unnest({name}) WITH ORDINALITY AS u(v, n)"
        return f"CASE WHEN {name} IS NULL THEN NULL ELSE ({items})::text END"

    def arrays(self, texts: Sequence[pa.Array]) -> tuple[list[pa.Array], dict[int, BadRow]]:
        """Columns of the codec's types, from the text of each; and the rows that are none, by their numbers.

        Those are left out of the columns: rows that hold what their type cannot, or lack what it needs.
        """
        bad: dict[int, BadRow] = {}
        parts = zip(self.columns, self._decoders, texts, strict=True)
        made = [self._decode_column(column, decode, text, 0, bad) for column, decode, text in parts]
        lacking = self.codec.bad_rows(made)
        for row in () if lacking is None else np.flatnonzero(lacking).tolist():
            if row not in bad:
                bad[row] = self._lacking([column.slice(row, 1) for column in made])
        if bad:
            good = np.ones(len(texts[0]), np.bool_)
            good[list(bad)] = False
            made = [column.filter(pa.array(good)) for column in made]
        return made, bad

    def _decode_column(
        self, column: TableColumn, decode: _Decode, texts: pa.Array, first: int, bad: dict[int, BadRow]
    ) -> pa.Array:
        """A column, with null for what does not decode. Few do not, so they are looked for by halves."""
        try:
            return decode(texts)
        except _UNFIT as error:
            if len(texts) > 1:
                half = len(texts) // 2
                halves = ((texts[:half], first), (texts[half:], first + half))
                return pa.concat_arrays([self._decode_column(column, decode, each, at, bad) for each, at in halves])
            bad.setdefault(first, self._unfit(column, error))
            return pa.nulls(1, column.column.arrow)

    def _unfit(self, column: TableColumn, error: Exception) -> BadRow:
        made = BadRow(
            f"the column {column.name} holds what its type cannot",
            where=self.where,
            expected=f"{column.name}: {type_name(column.annotation)}",
            found=" ".join(str(error).split())[:300],
            next_move="select it in another form, with a query in the place of the table's name",
        )
        made.__cause__ = error
        return made

    def _lacking(self, row: list[pa.Array]) -> BadRow:
        try:
            self.codec.to_objects(row)
        except BadRow as error:
            return error
        return BadRow(f"a row is no {type_name(self.codec.type)}", where=self.where)

    def shown(self, texts: Sequence[pa.Array], rows: Sequence[int]) -> list[str]:
        """These rows as JSON, as far as they can be read; a value that cannot is shown as Postgres gives it."""
        picked = pa.array(rows, pa.int64())
        names = [self.codec.encoded_names[column.name] for column in self.columns]
        parts = zip(self.columns, self._decoders, texts, strict=True)
        columns = [
            _as_json(column, decode, JsonForm(column.annotation), text.take(picked)) for column, decode, text in parts
        ]
        made = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
        return [msgspec.json.encode(row).decode() for row in made]

    def check(self, connection: psycopg.Connection[Any]) -> dict[str, str]:
        """The columns that are there, and their types. Raises ProgramError where rows cannot be made of them."""
        found = self._column_types(connection)
        wrong = [each for column in self.columns for each in self._differences(column, found)]
        if wrong:
            raise ProgramError(
                f"the rows of {self.where} are no {type_name(self.codec.type)}",
                where=self.where,
                expected=", ".join(f"{column.name} {column.ddl}" for column in self.columns),
                found="\n".join(f"- {each}" for each in wrong),
                next_move="correct the Record, or give a query that selects its columns",
            )
        return found

    def _column_types(self, connection: psycopg.Connection[Any]) -> dict[str, str]:
        cursor = connection.execute(f"SELECT * FROM {self.from_sql} AS t LIMIT 0")
        oids = [(column.name, column.type_code) for column in cursor.description or ()]
        rows = connection.execute(
            "SELECT t.oid::bigint, coalesce(b.typname, t.typname)::text FROM pg_type t "
            "LEFT JOIN pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd' WHERE t.oid = ANY(%s::oid[])",
            ([oid for _, oid in oids],),
        ).fetchall()
        names = dict(rows)
        return {name: names.get(oid, "unknown") for name, oid in oids}

    def _differences(self, column: TableColumn, found: dict[str, str]) -> list[str]:
        there = found.get(column.name)
        name = quoted(column.name)
        if there is None:
            return [f"{name} is missing"] if column.name in self.codec.required else []
        item = there.removeprefix("_") if there.startswith("_") else None
        if column.array != (item is not None) and column.kind != "json":
            return [f"{name} is {_type_text(there)}, rows have {column.ddl}"]
        allowed = _READ_FROM[column.kind]
        fits = not allowed or (item or there) in allowed
        return [] if fits else [f"{name} is {_type_text(there)}, rows have {column.ddl}"]


def _type_text(type: str) -> str:
    return f"{type[1:]}[]" if type.startswith("_") else type


def from_clause(text: str, where: str) -> str:
    """A table by its name, or a query in parentheses."""
    if _IS_QUERY.match(text):
        return f"({text.strip().rstrip(';')})"
    return ".".join(map(quoted, split_name(text, where)))


# --- text to columns

_Decode = Callable[[pa.Array], pa.Array]


def _decoder(column: TableColumn) -> _Decode:
    value = _value_decoder(column)
    if column.kind != "json":
        value = _known_words(column, value)
    return _list_decoder(column, value) if column.array else value


def _known_words(column: TableColumn, decode: _Decode) -> _Decode:
    """Refuses what is none of an Enum or a Literal: as a column it would pass for one, and fail far from here."""
    bare = column.bare
    is_enum = isinstance(bare, type) and issubclass(bare, Enum)
    if not is_enum and get_origin(bare) is not Literal:
        return decode
    words = list(bare) if is_enum else [word for word in get_args(bare) if word is not None]
    known = column.item.encode(words)

    def checked(texts: pa.Array) -> pa.Array:
        made = decode(texts)
        odd = made.filter(pc.invert(pc.or_(pc.is_in(made, value_set=known), made.is_null()))).unique()
        if len(odd):
            if not is_enum:
                raise ValueError(f"{odd[0].as_py()!r} is none of {', '.join(map(repr, words))}")
            # An Enum may know more values than its members have: flags together, or what its `_missing_` takes.
            column.item.decode(odd)
        return made

    return checked


def _value_decoder(column: TableColumn) -> _Decode:
    arrow = column.item.arrow
    if column.kind == "json":
        form = JsonForm(column.annotation)

        def from_json(texts: pa.Array) -> pa.Array:
            values = texts.to_pylist()
            return column.column.encode([None if text is None else form.decode(text.encode()) for text in values])

        return from_json
    if column.kind == "bytes":
        return lambda texts: pa.array([None if t is None else bytes.fromhex(t) for t in texts.to_pylist()], arrow)
    if column.kind == "moment":
        return lambda texts: texts.cast(pa.int64()).view(arrow)
    if column.kind == "date":
        return lambda texts: texts.cast(pa.int32()).view(arrow)
    return lambda texts: texts.cast(arrow)


def _list_decoder(column: TableColumn, value: _Decode) -> _Decode:
    read = msgspec.json.Decoder(list[str | None]).decode

    def decode(texts: pa.Array) -> pa.Array:
        lists = [None if text is None else read(text) for text in texts.to_pylist()]
        ends = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([0 if each is None else len(each) for each in lists], out=ends[1:])
        items = value(pa.array([item for each in lists for item in each or ()], pa.string()))
        mask = pa.array([each is None for each in lists]) if None in lists else None
        return pa.ListArray.from_arrays(pa.array(ends), items, type=column.column.arrow, mask=mask)

    return decode


def _as_json(column: TableColumn, decode: _Decode, form: JsonForm, texts: pa.Array) -> list[Any]:
    try:
        return list(map(msgspec.Raw, form.encode(column.column.decode(decode(texts)))))
    except _UNFIT:
        if len(texts) > 1:
            return [each for row in range(len(texts)) for each in _as_json(column, decode, form, texts.slice(row, 1))]
        given: str | None = texts[0].as_py()
        return [msgspec.Raw(given.encode()) if given is not None and column.kind == "json" else given]


def translate_select_error(error: BaseException, where: str, dsn: str) -> Exception:
    """What Postgres says no to while a source looks at it, in words."""
    psycopg = psycopg_module()
    said = why_not(error, dsn)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return EnvironmentMissing(
            "Postgres cannot be read just now",
            where=where,
            found=said,
            next_move="see that the server runs and can be reached from here, and start again",
        )
    return ProgramError(
        "Postgres refused the query",
        where=where,
        found=said,
        next_move="correct the name of the table, the query or the DSN",
    )
