"""Avro's schemas: parsed, with every name resolved; and the schema of a row type.

A named type may contain itself, so types are linked by reference. The schema that a row type has depends on the type
alone: the same program gives the same text, which a registry recognises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from headrace.connectors.formats.fields import TreeField, is_enumeration
from headrace.connectors.formats.misfits import SchemaMistake
from headrace.errors import ProgramError
from headrace.model.columns import DECIMAL

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MISSING: Final = object()


@dataclass
class AvroField:
    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = _MISSING

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING


@dataclass
class AvroType:
    """One type of a schema. Which attributes count follows from `kind`."""

    kind: str
    logical: str = ""
    name: str = ""
    """Of a named type, with its namespace."""
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    inner: list[AvroType] = field(default_factory=list)
    """The items of an array, the values of a map, the branches of a union."""
    size: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def says(self) -> str:
        """The type, for people."""
        if self.kind == "union":
            return " or ".join(each.says for each in self.inner)
        if self.kind in ("array", "map"):
            return f"{self.kind} of {self.inner[0].says}"
        if self.kind in ("record", "enum", "fixed"):
            return f"{self.kind} {self.name}"
        return self.logical or self.kind


def parse_schema(said: Any, named: dict[str, AvroType] | None = None) -> AvroType:
    """A schema as text, or as what its JSON says. Raises SchemaMistake. `named`: types that it may refer to, by name.

    >>> parse_schema('{"type": "record", "name": "Hit", "fields": [{"name": "n", "type": ["null", "long"]}]}').says
    'record Hit'
    """
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except json.JSONDecodeError as error:
            if said not in PRIMITIVES:
                raise SchemaMistake(f"no JSON: {error}") from error
    return _parse(said, "", {} if named is None else named)


def _parse(said: Any, space: str, named: dict[str, AvroType]) -> AvroType:
    if isinstance(said, str):
        return _by_name(said, space, named)
    if isinstance(said, Sequence):
        return AvroType("union", inner=[_parse(each, space, named) for each in said])
    if not isinstance(said, Mapping) or "type" not in said:
        raise SchemaMistake(f"{json.dumps(said)[:80]} is no type")
    kind = said["type"]
    if not isinstance(kind, str):
        return _parse(kind, space, named)
    if kind in ("record", "error", "enum", "fixed"):
        return _parse_named(kind, said, space, named)
    if kind in ("array", "map"):
        inner = said.get("items" if kind == "array" else "values", _MISSING)
        if inner is _MISSING:
            raise SchemaMistake(f"{json.dumps(said)[:80]} does not say of what")
        return AvroType(kind, inner=[_parse(inner, space, named)])
    if kind in PRIMITIVES:
        return AvroType(kind, **_logical(said))
    return _by_name(kind, space, named)


def _by_name(name: str, space: str, named: dict[str, AvroType]) -> AvroType:
    if name in PRIMITIVES:
        return AvroType(name)
    found = named.get(f"{space}.{name}") if space and "." not in name else None
    found = found or named.get(name)
    if found is None:
        raise SchemaMistake(f"there is no type {name}")
    return found


def _parse_named(kind: str, said: Mapping[str, Any], space: str, named: dict[str, AvroType]) -> AvroType:
    short = said.get("name")
    if not isinstance(short, str) or not all(_NAME.fullmatch(part) for part in short.split(".")):
        raise SchemaMistake(f"{short!r} cannot be the name of a type")
    inside = short.rpartition(".")[0] if "." in short else str(said.get("namespace") or space)
    name = short if "." in short or not inside else f"{inside}.{short}"
    made = AvroType("record" if kind == "error" else kind, name=name, **_logical(said))
    named[name] = made
    if kind == "enum":
        made.symbols = tuple(map(str, said.get("symbols", ())))
    elif kind == "fixed":
        made.size = int(said.get("size", 0))
    else:
        for each in said.get("fields", ()):
            inner = _parse(each.get("type"), inside, named)
            aliases = tuple(map(str, each.get("aliases", ())))
            made.fields.append(AvroField(str(each.get("name")), inner, aliases, each.get("default", _MISSING)))
    return made


def _logical(said: Mapping[str, Any]) -> dict[str, Any]:
    logical = said.get("logicalType")
    if not isinstance(logical, str):
        return {}
    if logical != "decimal":
        return {"logical": logical}
    return {"logical": logical, "precision": int(said.get("precision", 0)), "scale": int(said.get("scale", 0))}


# --- the schema of a row type


_SIMPLE: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "long"),
    (pa.types.is_floating, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
)
_PRECISION: Final = DECIMAL.precision


def derive_schema(name: str, fields: Sequence[TreeField]) -> dict[str, Any]:
    """The schema of rows with these fields, as its JSON says it."""
    own = _plain_name(name)
    return _record(own, fields, {own: None})


def schema_text(schema: Any) -> str:
    """A schema as text, always the same one."""
    return json.dumps(schema, separators=(",", ":"))


def _record(name: str, fields: Sequence[TreeField], named: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_field(each, name, named) for each in fields]}


def _field(field: TreeField, within: str, named: dict[str, Any]) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise ProgramError(
            f"{field.name!r} cannot be the name of a field in Avro",
            expected="letters, digits and underscores, and no digit first",
            found=repr(field.name),
            next_move=f'give it another name in messages: {field.path} = hr.field(name="…")',
        )
    kind = _type(field, f"{within}_{field.name}", named)
    said: dict[str, Any] = {"name": field.name, "type": ["null", kind] if field.optional else kind}
    if field.former:
        said["aliases"] = list(field.former)
    default = None if field.default is None else _json_default(field)
    if default is not None and field.optional:
        # The default of a union is a value of its first branch.
        said["type"] = [kind, "null"]
    if default is not None or (field.optional and field.default is None):
        said["default"] = default
    return said


def _type(field: TreeField, name: str, named: dict[str, Any]) -> Any:
    kinds, kind = pa.types, field.kind
    if field.parts:
        return _nested(field, name, named)
    if kinds.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if kinds.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if kinds.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": _PRECISION, "scale": kind.scale}
    if field.annotation is UUID:
        return {"type": "string", "logicalType": "uuid"}
    if is_enumeration(field) and all(_NAME.fullmatch(each.value) for each in field.annotation):
        return _enum(field, name, named)
    return next(plain for test, plain in _SIMPLE if test(kind))


def _nested(field: TreeField, name: str, named: dict[str, Any]) -> Any:
    kinds, kind = pa.types, field.kind
    if kinds.is_list(kind):
        return {"type": "array", "items": _optional(field.parts[0], name, named)}
    if kinds.is_map(kind):
        return {"type": "map", "values": _optional(field.parts[1], name, named)}
    own = _plain_name(getattr(field.annotation, "__name__", name))
    # A type is told once and named from then on; another one of the same name gets the name of its place.
    if own in named and named[own] is not field.annotation:
        own = name
    if own in named:
        return own
    named[own] = field.annotation
    return _record(own, field.parts, named)


def _optional(field: TreeField, name: str, named: dict[str, Any]) -> Any:
    kind = _type(field, name, named)
    return ["null", kind] if field.optional else kind


def _enum(field: TreeField, name: str, named: dict[str, Any]) -> Any:
    own = _plain_name(field.annotation.__name__)
    if own in named and named[own] is not field.annotation:
        own = name
    if own in named:
        return own
    named[own] = field.annotation
    return {"type": "enum", "name": own, "symbols": [each.value for each in field.annotation]}


def _plain_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if _NAME.fullmatch(plain) else f"_{plain}"


def _json_default(field: TreeField) -> Any:
    """The default as a schema says it; None where a schema has no words for it, and then readers are told none."""
    assert field.default is not None
    value = field.default[0].as_py()
    if pa.types.is_timestamp(field.kind):
        return field.default.cast(pa.int64())[0].as_py()
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, (bytes, Decimal)):
        return None
    if field.parts:
        return None if value else ({} if pa.types.is_map(field.kind) else value)
    if isinstance(value, float) and value - value != 0:
        return None
    return value
