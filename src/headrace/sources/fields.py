"""Collects, field by field, how Spark makes a record of a source's columns, and when a row is bad.

Casts, and whether a row is bad, are computed once per row, in a projection of their own (`SparkRead.prepare`): the
expressions behind it name them several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.model.shapes import quoted, spark_type
from headrace.sources.contract import SparkRead
from headrace.sources.sql import any_of, bad_row_json, first_reason, missing_reasons, or_default, text

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

IS_BAD: Final = "__is_bad"


class FieldReads:
    """Call `take` or `cast` once per field of the codec, then `read`."""

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

    def cast(self, field: pa.Field, given: str, value: str) -> None:
        """The field is what `value` makes of `given`; a value that it makes nothing of is bad."""
        name = quoted(f"__{field.name}")
        self.made.append(name)
        self._prepare.append(f"{value} AS {name}")
        shown = text(f"{field.name} is not {_in_words(field.type)}: ")
        self.reasons[f"({given}) IS NOT NULL AND {name} IS NULL"] = f"concat({shown}, CAST({given} AS STRING))"
        self.take(field, name)

    def read(
        self,
        format: str,
        path: str | None,
        options: Mapping[str, str],
        schema_ddl: str | None,
        *,
        raw: tuple[str, str],
    ) -> SparkRead:
        """`raw` is SQL of a bad row's file and of its text."""
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
    return spark_type(kind)
