"""What statements say, once they are read: plain values, without a look at tables, types or files.

Each knows where it stands, for errors. Queries inside them are trees of the dialect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.tables.dialect import ParsedStatement

ObjectKind = Literal["table", "view", "function"]


@dataclass(frozen=True)
class SecretOption:
    """``SECRET('NAME')`` in place of a value: what it stands for is known at the start and shown nowhere."""

    name: str

    def __str__(self) -> str:
        return f"SECRET('{self.name}')"


@dataclass(frozen=True)
class VariableOption:
    """``VAR('name')`` or ``VAR('name', 'default')``: a value of ``--var``, the environment or headrace.toml."""

    name: str
    default: str | None = None

    def __str__(self) -> str:
        return f"VAR('{self.name}')" if self.default is None else f"VAR('{self.name}', '{self.default}')"


@dataclass(frozen=True)
class JoinedOption:
    """Values with ``||`` between them."""

    parts: tuple[str | VariableOption, ...]

    def __str__(self) -> str:
        return " || ".join(f"'{part}'" if isinstance(part, str) else str(part) for part in self.parts)


OptionValue = str | SecretOption | VariableOption | JoinedOption


@dataclass(frozen=True)
class OptionText:
    """A value of ``WITH (…)``, and where its name stands."""

    value: OptionValue
    at: int


@dataclass(frozen=True)
class DeclaredColumn:
    """A column of CREATE TABLE."""

    name: str
    at: int
    annotation: Any = None
    """Its type; None for a computed column."""
    type_text: str = ""
    computed: str | None = None
    """The expression of a computed column."""
    metadata: str | None = None
    """The part of a message that fills it."""
    virtual: bool = False
    """Whether a metadata column is only read."""
    comment: str = ""


@dataclass(frozen=True)
class WatermarkClause:
    column: str
    expression: str
    at: int
    """Where the expression stands."""


@dataclass(frozen=True)
class CreateTable:
    name: str
    columns: tuple[DeclaredColumn, ...]
    options: dict[str, OptionText]
    watermark: WatermarkClause | None = None
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    if_not_exists: bool = False
    comment: str = ""


@dataclass(frozen=True)
class CreateView:
    name: str
    query: ParsedStatement
    columns: tuple[str, ...] = ()
    materialized: bool = False
    primary_key: tuple[str, ...] = ()
    options: dict[str, OptionText] | None = None
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True)
class CreateFunction:
    name: str
    target: str
    """``module:function``, or ``file.py:function``."""
    if_not_exists: bool = False


@dataclass(frozen=True)
class InsertInto:
    target: str
    target_at: int
    query: ParsedStatement
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetOption:
    """``SET 'key' = 'value'``; without a value, or without a key, it asks."""

    key: str = ""
    value: OptionValue | None = None
    reset: bool = False
    at: int = 0


@dataclass(frozen=True)
class DropObject:
    kind: ObjectKind
    name: str
    if_exists: bool = False
    at: int = 0


@dataclass(frozen=True)
class ShowObjects:
    what: Literal["tables", "views", "functions", "create", "columns"]
    name: str = ""
    at: int = 0


@dataclass(frozen=True)
class Explain:
    inner: ParsedStatement


@dataclass(frozen=True)
class StatementSet:
    """``BEGIN STATEMENT SET`` opens one, ``END`` closes it; every program here is one job anyhow."""

    opens: bool


Statement = (
    CreateTable
    | CreateView
    | CreateFunction
    | InsertInto
    | SetOption
    | DropObject
    | ShowObjects
    | Explain
    | StatementSet
)
