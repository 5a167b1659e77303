"""A whole state under one schema, batch by batch: typed columns for files and DataFrames, rows for JSON.

Memory is bounded by the size of a piece, whatever the state holds. What a reader gets is of one epoch from the first
row to the last, because the state it is read from never changes. A state that does not fit into one piece is walked
twice: once to see which types its columns have, and once to give them out (`headrace.read.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa

from headrace.model.key_text import float_words
from headrace.model.time_shape import TIME, time_writer
from headrace.read.columns import Piece, derive_schema, spread, to_batch, with_times
from headrace.read.forms import WRITE_TIME, encode
from headrace.read.reader import Reader

KEY: Final = "key"
JSON_ROWS: Final = 1024
"""Rows of JSON that are handed on together."""

Tell = Callable[[int], None]
"""Called with how many more rows have been walked over."""


def batches_of(
    table: Reader, prefix: str, form: str = "", *, expires: bool = False, tell: Tell | None = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """``form``: how times are written as text; empty: columns keep their types."""

    def walk_pieces() -> Iterator[Piece]:
        for piece in table.pieces(prefix, expires=expires):
            yield _write_times(piece, table, form) if form else piece
            if tell is not None:
                tell(_rows_in(piece))

    pieces = walk_pieces()
    first = list(islice(pieces, 2)) or [table.no_rows]
    if len(first) < 2:
        schema, walk = derive_schema(first), iter(first)
    else:
        schema, walk = derive_schema(chain(first, pieces)), walk_pieces()
    return schema, (to_batch(piece, schema) for piece in walk)


def _rows_in(piece: Piece) -> int:
    return max((len(values) for values in piece.values()), default=0)


def typed_batches(
    table: Reader, prefix: str = "", *, times: bool = False, expires: bool = False, tell: Tell | None = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A state as columns with types, values that are Records spread over several.

    ``times``: numbers that are times become times. ``expires``: with when rows expire. ``tell`` is called for every
    row, of a state that is walked twice two times.
    """
    schema, batches = batches_of(table, prefix, expires=expires, tell=tell)

    def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
        return spread(with_times(batch, table.column_times) if times else batch)

    return typed(pa.RecordBatch.from_pylist([], schema)).schema, map(typed, batches)


def json_rows(
    table: Reader, prefix: str, form: str, *, expires: bool = False, tell: Tell | None = None
) -> Iterator[list[bytes]]:
    """Rows as JSON, some at a time."""
    for piece in table.pieces(prefix, expires=expires):
        if tell is not None:
            tell(_rows_in(piece))
        rows = _rows_of(_write_times(piece, table, form))
        while held := [encode(row, form) for row in islice(rows, JSON_ROWS)]:
            yield held


def _rows_of(piece: Piece) -> Iterator[dict[str, Any]]:
    names = list(piece)
    columns: Iterable[Any] = (v.to_pylist() if isinstance(v, pa.Array) else v for v in piece.values())
    return (dict(zip(names, row)) for row in zip(*columns))


def _key_words(keys: Any) -> Any:
    """Keys for JSON: floats that it has no word for as text, so that none of them becomes null."""
    if isinstance(keys, pa.Array) or not any(type(key) is float for key in keys):
        return keys
    return [float_words(key) if type(key) is float else key for key in keys]


def _write_times(piece: Piece, table: Reader, form: str) -> Piece:
    """Columns with the times in them as a form writes them."""
    shapes, write = table.column_times, WRITE_TIME[form]
    shown: Piece = {}
    for name, values in piece.items():
        shape = shapes.get(name)
        if shape is None and isinstance(values, pa.Array) and pa.types.is_timestamp(values.type):
            shape = TIME
        replace = time_writer(shape, write)
        if replace is None:
            shown[name] = _key_words(values) if name == KEY else values
        else:
            shown[name] = list(map(replace, values.to_pylist() if isinstance(values, pa.Array) else values))
    return shown
