"""Many messages into rows and rows into messages, whatever their format: framing, and one reader per schema.

With a registry a message begins with the byte 0 and the id of its writer's schema (four bytes, the highest first); in
Protobuf also with which message type of that schema it is. Messages of one schema are read together. What was learnt of
a schema stays for the life of the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.connectors.formats import pieces
from headrace.connectors.formats.cursor import Cursor, Faults, Ints, scattered
from headrace.connectors.formats.fields import TreeField
from headrace.connectors.formats.misfits import SchemaMisfit
from headrace.connectors.formats.registry import NoSuchSchema, Registry, StoredSchema

ReadRows = Callable[[Cursor], list[pa.Array]]
WriteRows = Callable[[Sequence[pa.Array], int], pa.Array]

_MAGIC: Final = 0
_HEADER_BYTES: Final = 5
UNFRAMED: Final = -1
_DEPTH: Final = 16
"""How deep message types may lie within each other."""


class SchemaKey(NamedTuple):
    """What a message says of its schema."""

    id: int
    """`UNFRAMED`: nothing."""
    path: tuple[int, ...] = ()
    """Of Protobuf: which message type of the file, and which within it."""


class Schemas(ABC):
    """What knows the schemas of one format. `given`: the schema of messages that do not name theirs."""

    typed: bool
    """Whether messages name a type within their schema, as those of Protobuf do."""
    form = ""
    """In which form a registry gives a schema."""

    def __init__(self, fields: Sequence[TreeField], registry: Registry | None, given: StoredSchema | None) -> None:
        self._fields, self._registry, self._given = fields, registry, given
        self.framed = registry is not None

    def reader(self, key: SchemaKey) -> ReadRows:
        """What reads rows that were written under a schema; raises SchemaMisfit where there can be none."""
        if self._registry is None:
            assert self._given is not None
            return self._compile(self._given, self._fields)
        try:
            return self.reader_of(self._registry.schema(key.id, self.form)._replace(path=key.path))
        except NoSuchSchema as error:
            raise SchemaMisfit(f"the schema registry has no schema {key.id}") from error

    def reader_of(self, stored: StoredSchema) -> ReadRows:
        """What reads rows of a schema of the registry."""
        try:
            return self._compile(stored, self._fields)
        except SchemaMisfit as misfit:
            raise SchemaMisfit(f"schema {stored.id}: {misfit}") from misfit

    @abstractmethod
    def _compile(self, stored: StoredSchema, fields: Sequence[TreeField]) -> ReadRows: ...


class RowDecoder:
    """Messages into the columns of some fields."""

    def __init__(self, fields: Sequence[TreeField], schemas: Schemas) -> None:
        self._fields, self._schemas = tuple(fields), schemas
        self._readers: dict[SchemaKey, ReadRows | SchemaMisfit] = {}

    def decode(self, values: pa.Array) -> tuple[list[pa.Array], Faults]:
        """The columns for these messages, none of which is null; which of them are bad, and why."""
        faults = Faults(len(values))
        cursor = Cursor.over(values, faults)
        parts: list[tuple[Ints, list[pa.Array]]] = []
        for key, which in self._groups(cursor):
            whole = len(which) == len(cursor)
            part = cursor if whole else cursor.subset(which)
            read = self._reader(key)
            if isinstance(read, SchemaMisfit):
                part.fail(np.ones(len(part), np.bool_), str(read))
                continue
            columns = read(part)
            part.finish()
            if whole:
                return columns, faults
            parts.append((which, columns))
        return [
            scattered([(which, columns[i]) for which, columns in parts], len(values), field.kind)
            for i, field in enumerate(self._fields)
        ], faults

    def _reader(self, key: SchemaKey) -> ReadRows | SchemaMisfit:
        known = self._readers.get(key)
        if known is None:
            try:
                known = self._schemas.reader(key)
            except SchemaMisfit as misfit:
                known = misfit
            self._readers[key] = known
        return known

    def _groups(self, cursor: Cursor) -> Iterator[tuple[SchemaKey, Ints]]:
        """Messages by what they say of their schema; the cursor is behind that."""
        if not self._schemas.framed:
            yield SchemaKey(UNFRAMED), np.flatnonzero(~cursor.lost)
            return
        header = cursor.fixed(_HEADER_BYTES)
        cursor.fail((header[:, 0] != _MAGIC) & ~cursor.lost, "it does not begin as messages with a schema id do")
        ids = np.ascontiguousarray(header[:, 1:]).view(">u4")[:, 0].astype(np.int64)
        paths = _type_paths(cursor) if self._schemas.typed else np.zeros((len(cursor), 0), np.int64)
        alive = np.flatnonzero(~cursor.lost)
        said = np.column_stack([ids, paths])[alive]
        if len(said) and (said == said[0]).all():
            yield _key(said[0]), alive
            return
        keys, places = np.unique(said, axis=0, return_inverse=True)
        for number, key in enumerate(keys):
            yield _key(key), alive[places.ravel() == number]


def _key(said: Ints) -> SchemaKey:
    id, *path = said.tolist()
    return SchemaKey(id, tuple(each for each in path if each >= 0))


def _type_paths(cursor: Cursor) -> Ints:
    """Which type each message is, filled up with −1. A single 0 stands for the first type of the file."""
    counts = cursor.longs()
    cursor.fail((counts < 0) | (counts > _DEPTH), "it does not say which message type of its schema it is")
    paths = np.where(counts == 0, 0, -1)[:, None]
    for depth in range(int(counts.max(initial=0))):
        which = np.flatnonzero((counts > depth) & ~cursor.lost)
        column = np.full(len(cursor), -1, np.int64)
        part = cursor.subset(which)
        column[which] = part.longs()
        cursor.rejoin(which, part)
        paths = np.where(counts == 0, 0, column)[:, None] if depth == 0 else np.column_stack([paths, column])
    return paths


class RowEncoder(NamedTuple):
    """Rows into messages of one schema."""

    write: WriteRows
    header: bytes = b""
    """What stands before each message."""

    def encode(self, columns: Sequence[pa.Array], count: int) -> pa.Array:
        """Messages for so many rows. Raises UnfitValue for a value that the schema cannot say."""
        written = self.write(columns, count)
        return pieces.joined(pieces.constant(self.header, count), written) if self.header else written


def frame_header(id: int) -> bytes:
    """How a message begins whose schema has this id."""
    return bytes([_MAGIC]) + id.to_bytes(4, "big")
