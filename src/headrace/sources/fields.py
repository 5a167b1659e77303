"""Collects, field by field, how Spark makes a record of a source's columns, and when a row is bad.

Casts, and whether a row is bad, are computed once per row, in a projection of their own (`SparkRead.prepare`): the
expressions behind it name them several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.model.shapes import quoted, spark_type
from headrace.sources.contract import SparkRead
from headrace.sources.nested import nested_of
from headrace.sources.sql import any_of, bad_row_json, first_reason, missing_reasons, or_default, text

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

IS_BAD: Final = "__is_bad"
NO_JSON: Final = "not a JSON object, or a value of another type"


class FieldReads:
    """Call `take`, `cast` or `take_json` once per field of the codec, then `read`."""

    def __init__(self, codec: RowCodec, prepare: tuple[str, ...] = ()) -> None:
        self.codec = codec
        self.reasons: dict[str, str] = {}
        """Condition under which a row is bad → SQL of the reason. The first that holds is told."""
        self.made: list[str] = []
        """Names of the casts that `prepare` adds to the source's columns."""
        self._prepare = list(prepare)
        self._columns: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def take(self, field: pa.Field, value: str) -> None:
        """The field is this expression, which costs nothing to evaluate again."""
        self._values[field.name] = value
        self._columns[field.name] = or_default(value, field.name, self.codec)

    def take_parsed(self, field: pa.Field, given: str, *, json: bool) -> str:
        """The field is what Spark parsed, with what is absent inside of it filled in. Returns the type to parse."""
        inner = nested_of(self.codec.annotations[field.name], json=json)
        if inner is None:
            self.take(field, given)
            return spark_type(field.type)
        if (wrong := inner.bad(given)) is not None:
            self.reasons[wrong] = text(f"{field.name} lacks a field, or has a time that is not an ISO time")
        if inner.changes:
            # A default is never null, and Spark puts that into the type, which has to be the same for all sources.
            filled = f"CAST({inner.fill(given)} AS {spark_type(field.type)})"
            given = self._prepared(f"__{field.name}_filled", filled)
        self.take(field, given)
        return inner.ddl

    def _prepared(self, name: str, value: str) -> str:
        """The name under which an expression can be used often, and is computed once."""
        self.made.append(quoted(name))
        self._prepare.append(f"{value} AS {quoted(name)}")
        return quoted(name)

    def cast(self, field: pa.Field, given: str, value: str) -> None:
        """The field is what `value` makes of `given`; a value that it makes nothing of is bad."""
        name = self._prepared(f"__{field.name}", value)
        shown = text(f"{field.name} is not {_in_words(field.type)}: ")
        self.reasons[f"({given}) IS NOT NULL AND {name} IS NULL"] = f"concat({shown}, CAST({given} AS STRING))"
        self.take_parsed(field, name, json=False)

    def take_json(self, names: Iterable[str], *, corrupt: str, within: str = "") -> str:
        """These fields are read from JSON by Spark's parser: columns, or members of the struct `within`.

        Returns the DDL to parse with; `corrupt` is the column that holds the text of what could not be parsed.
        Timestamps come as text, so that a number is not taken for seconds.
        """
        holder = f"{within}." if within else ""
        self.reasons[f"{holder}{corrupt} IS NOT NULL"] = text(NO_JSON)
        ddl = []
        for name in names:
            field, key = self.codec.schema.field(name), quoted(self.codec.encoded_names[name])
            if pa.types.is_timestamp(field.type):
                ddl.append(f"{key} STRING")
                self.cast(field, holder + key, f"try_cast({holder}{key} AS TIMESTAMP)")
            else:
                ddl.append(f"{key} {self.take_parsed(field, holder + key, json=True)}")
        return ", ".join([*ddl, f"{corrupt} STRING"])

    def prepare_first(self, expression: str) -> None:
        """Something that the casts are made of, as ``expression AS name``."""
        self._prepare.insert(0, expression)

    def read(
        self,
        format: str,
        path: str | None,
        options: Mapping[str, str],
        schema_ddl: str | None,
        *,
        raw: tuple[str, str],
    ) -> SparkRead:
        """`raw` is SQL of the place a bad row came from, and of its text."""
        reasons = self.reasons | missing_reasons(self._values, self.codec)
        bad = any_of(reasons)
        prepare = self._prepare if bad is None else [*self._prepare, f"{bad} AS {IS_BAD}"]
        return SparkRead(
            format=format,
            options=dict(options),
            schema_ddl=schema_ddl,
            load_path=path,
            prepare=tuple(prepare),
            columns={name: self._columns[name] for name in self.codec.schema.names},
            bad=None if bad is None else IS_BAD,
            raw=None if bad is None else bad_row_json(*raw, first_reason(reasons)),
        )


def _in_words(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "an ISO time"
    if pa.types.is_binary(kind):
        return "base64"
    if pa.types.is_string(kind):
        return "UTF-8 text"
    return spark_type(kind)
