"""One state of one epoch as a table: its columns, its rows in pieces, and the rows of single keys.

The kinds of tables: a row per key (`headrace.snapshots.values`), per entry or element (`headrace.snapshots.entries`),
per window (`headrace.snapshots.windows`). What a manifest says nothing of is a table, too: its columns are derived from
its rows, as exports derive them (`WalkedTable`).

The columns of a key are called as the program calls them where the manifest says so, else ``key``, or ``key_0``,
``key_1`` and so on where it has parts.

Invariants
- A table is of one epoch: it reads what its reader reads.
- Reading a table again gives the same rows in the same order, whichever columns are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.errors import StoreError
from headrace.model.columns import TIMESTAMP
from headrace.model.job import DeclaredState
from headrace.model.keys import decode_columns, encode_key
from headrace.read.batches import typed_batches
from headrace.read.reader import Reader
from headrace.snapshots.column_types import ColumnType, key_types

PIECE_ROWS: Final = 65_536
PUBLIC: Final = "public"
"""The schema of states that go by their step's name alone."""
UNFIT: Final = (pa.ArrowException, TypeError, ValueError, AttributeError, ArithmeticError, msgspec.MsgspecError)
"""What a stored value raises that is not of the type that the manifest says."""


class StateColumn(NamedTuple):
    """One column of a table."""

    name: str
    type: ColumnType
    key_part: int | None = None
    """Which part of the key it is; None: none."""


class TableName(NamedTuple):
    """A table as SQL names it."""

    schema: str
    table: str

    def __str__(self) -> str:
        return self.table if self.schema == PUBLIC else f"{self.schema}.{self.table}"


def table_name(address: str) -> TableName:
    """``fraud.shops`` is a table of the schema ``fraud``; what goes by its step's name alone one of ``public``.

    >>> str(table_name("fraud.shops")), str(table_name("hourly"))
    ('fraud.shops', 'hourly')
    """
    step, _, state = address.partition(".")
    return TableName(step, state) if state else TableName(PUBLIC, step)


class StateTable:
    """A state of one epoch as a table. May be read by several threads."""

    looks_up = True
    """Whether rows of single keys can be had without walking over all."""

    def __init__(self, reader: Reader, declared: DeclaredState | None) -> None:
        self.reader = reader
        self.declared = declared
        self.address = reader.address
        self.name = table_name(reader.address)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, epoch {self.reader.epoch})"

    @cached_property
    def columns(self) -> tuple[StateColumn, ...]:
        """All columns, those of the key first."""
        parts = zip(self.key_names, self.key_types)
        keys = [StateColumn(name, type, part) for part, (name, type) in enumerate(parts)]
        taken = {column.name for column in keys}
        more = [
            StateColumn(f"value.{name}" if name in taken else name, type) for name, type in self.more_columns() if name
        ]
        return (*keys, *more)

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([column.type.field(column.name) for column in self.columns])

    @cached_property
    def by_name(self) -> dict[str, StateColumn]:
        return {column.name: column for column in self.columns}

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that no two rows have the same values in; empty where nobody knows."""
        return self.key_names

    @property
    def version(self) -> tuple[object, ...]:
        """Equal while reading the table again gives the same, over epochs, too."""
        reader = self.reader
        return id(reader.layers), reader.table, None if reader.stable else reader.now_us, self.schema.to_string()

    # --- keys

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        named = self.named_keys()
        if named:
            return named
        return ("key",) if len(self.key_types) == 1 else tuple(f"key_{part}" for part in range(len(self.key_types)))

    def named_keys(self) -> tuple[str, ...]:
        """The columns of the key as the program calls them; empty where nobody says."""
        return ()

    @cached_property
    def key_types(self) -> list[ColumnType]:
        shape = None if self.declared is None else self.declared.key_type
        return key_types(self.reader.key_type if shape is None else None, shape, self.reader.key_times)

    def key_columns(self, keys: pa.BinaryArray, parts: Sequence[int]) -> dict[int, pa.Array]:
        """Parts of stored keys as columns."""
        if not parts:
            return {}
        columns = decode_columns(keys, [each.arrow for each in self.key_types])
        if columns is not None:
            return {part: columns[part] for part in parts}
        decoded = [self.reader.decoded(key) for key in keys.to_pylist()]
        if len(self.key_types) == 1:
            return {0: self.key_types[0].column(decoded)}
        return {part: self.key_types[part].column([key[part] for key in decoded]) for part in parts}

    def key_bytes(self, parts: Sequence[Any]) -> bytes | None:
        """A key by what its columns hold; None where a value is of another type than its column."""
        plain = [_part_of(part, type) for part, type in zip(parts, self.key_types, strict=True)]
        if any(part is None for part in plain):
            return None
        return encode_key(plain[0] if len(plain) == 1 else tuple(plain))

    # --- rows

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows, in pieces, with these columns, of which there is one at least."""
        raise NotImplementedError

    def rows_of(self, keys: Sequence[bytes], names: Sequence[str]) -> pa.RecordBatch:
        """The rows of some keys, with these columns. Asked only where the table `looks_up`."""
        raise NotImplementedError

    def plain_rows(self, key: bytes, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows of a key as plain values, times as µs: for who asks for single keys, many times."""
        columns = []
        for column in self.rows_of([key], names).columns:
            timed = pa.types.is_timestamp(column.type)
            columns.append((column.view(pa.int64()) if timed else column).to_pylist())
        return list(zip(*columns))

    def more_columns(self) -> Iterator[tuple[str, ColumnType]]:
        """The columns behind those of the key."""
        raise NotImplementedError

    def batch(self, keys: pa.BinaryArray, names: Sequence[str], more: dict[str, pa.Array]) -> pa.RecordBatch:
        """A piece of the table. ``keys``: of each row; ``more``: the other columns that were asked for."""
        columns = [self.by_name[name] for name in names]
        parts = self.key_columns(keys, [each.key_part for each in columns if each.key_part is not None])
        arrays = [more[each.name] if each.key_part is None else parts[each.key_part] for each in columns]
        schema = pa.schema([each.type.field(each.name) for each in columns])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def value_names(self, names: Sequence[str]) -> list[str]:
        """Those of some columns that are not of the key."""
        return [name for name in names if self.by_name[name].key_part is None]

    def unfit(self, error: BaseException) -> StoreError:
        return StoreError(
            "a stored value does not fit the columns of its table",
            where=f"state {self.address}",
            expected=", ".join(f"{column.name} {column.type.arrow}" for column in self.columns)[:400],
            found=str(error)[:400],
            next_move="read the state by its keys (`headrace state`), or run `headrace rewrite` if its type changed",
        )


_PARTS: Final[dict[pa.DataType, tuple[type, ...]]] = {
    pa.string(): (str,),
    pa.int64(): (int,),
    pa.binary(): (bytes,),
    pa.bool_(): (bool,),
    pa.float64(): (float, int),
    pa.date32(): (date,),
    TIMESTAMP: (int, datetime),
}
"""Column of a key → what values of it are in Python."""


def _part_of(value: Any, kind: ColumnType) -> Any:
    """A value as a part of a key; None where it cannot be one, or another type is compared in a way of its own."""
    if kind.json or type(value) not in _PARTS.get(kind.arrow, ()):
        return None
    if kind.arrow == pa.float64():
        return float(value)
    return value if type(value) is not int or -(2**63) <= value < 2**63 else None


class WalkedTable(StateTable):
    """A state of which nobody says what it keeps: its columns are derived from its rows, which are all walked over."""

    looks_up = False
    row_key = ()

    def __init__(self, reader: Reader, declared: DeclaredState | None) -> None:
        super().__init__(reader, declared)
        self._schema, _ = typed_batches(reader, times=True)

    @cached_property
    def columns(self) -> tuple[StateColumn, ...]:
        flat = _flat(pa.RecordBatch.from_pylist([], self._schema)).schema
        return tuple(StateColumn(field.name, ColumnType(_writable(field.type))) for field in flat)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        _, batches = typed_batches(self.reader, times=True)
        for batch in batches:
            flat = _flat(batch)
            arrays = [flat.column(name).cast(self.by_name[name].type.arrow) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(name) for name in names]))


def _writable(kind: pa.DataType) -> pa.DataType:
    """A column that is null everywhere has the type of text."""
    return pa.string() if pa.types.is_null(kind) else kind


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A key of parts as columns of its own, as all tables have it."""
    place = batch.schema.get_field_index("key")
    if place < 0 or not pa.types.is_struct(batch.schema.field(place).type):
        return batch
    fields, columns = list(batch.schema), batch.columns
    parts = [field.with_name(f"key_{part}") for part, field in enumerate(fields[place].type)]
    fields[place : place + 1] = parts
    columns[place : place + 1] = columns[place].flatten()
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
