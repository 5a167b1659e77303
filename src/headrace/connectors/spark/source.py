"""`spark`: any source that Spark's Structured Streaming can read.

The user says how the source's columns become fields; each is cast to the field's type. A row in which a required field
is null, or in which a value cannot be cast, is a bad row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from headrace.connectors.reading import IS_BAD, FieldReads
from headrace.connectors.source_contract import BadInput, Source, SparkRead
from headrace.errors import ProgramError
from headrace.model.shapes import quoted, spark_type

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_ENDLESS: Final = ("rate", "socket")
"""Spark's sources that cannot be read up to what is there now."""


class StructuredSource(Source):
    kind: ClassVar[str] = "spark"
    python: ClassVar[bool] = False

    def __init__(
        self,
        format: str,
        *,
        path: str | None,
        schema: str | None,
        columns: Mapping[str, str],
        split: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self.format = format
        self.path = path
        self.schema = schema
        self.columns = dict(columns)
        self.split = split
        self.connector = "kafka" if format == "kafka" else ""
        self.options = {name: option_text(value) for name, value in options.items() if value is not None}

    @property
    def has_splits(self) -> bool:
        return self.split is not None

    def bind(self, codec: RowCodec) -> StructuredSource:
        unknown = [name for name in self.columns if name not in codec.schema.names]
        if unknown:
            raise ProgramError(
                f"columns= names {', '.join(unknown)}, which the row type does not have",
                where=f'source.spark("{self.format}")',
                expected=f"fields among {', '.join(codec.schema.names)}",
                found=", ".join(unknown),
                next_move="columns maps a field to the SQL text that computes it from the source's columns",
            )
        return self

    def spark(self, codec: RowCodec) -> SparkRead:
        fields = FieldReads(codec)
        for field in codec.schema:
            given = self.columns.get(field.name, quoted(field.name))
            fields.cast(field, given, f"try_cast({given} AS {spark_type(field.type)})")
        own = ", ".join([*fields.made, IS_BAD])
        read = fields.read(
            self.format,
            self.path,
            self.options,
            self.schema,
            raw=("CAST(NULL AS STRING)", f"to_json(struct(* EXCEPT ({own})))"),
        )
        return replace(
            read,
            split=None if self.split is None else f"CAST({self.split} AS STRING)",
            available_now=self.format not in _ENDLESS,
        )

    def explain_bad(self, codec: RowCodec, raw: str) -> BadInput:
        try:
            told = msgspec.json.decode(raw, type=dict[str, str])
        except msgspec.DecodeError:
            return super().explain_bad(codec, raw)
        return BadInput(where="", text=told.get("text", raw), reason=told.get("reason", "the row could not be decoded"))

    def describe(self) -> str:
        return f"spark {self.format}" + ("" if self.path is None else f" {self.path}")


def option_text(value: Any) -> str:
    """An option as Spark spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
