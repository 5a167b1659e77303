"""Folders by value, as Hive, Spark, polars and pyarrow name them: ``day=2024-01-01/shop=a%2Fb``.

A value that fits into no folder's name is found while rows are cut, in the task: were its epoch published, no change of
the program could let the row out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.staged import SplitRows
from headrace.connectors.text import iso_text
from headrace.errors import SinkFailed

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null and for the empty text, which cannot be a folder's name."""

_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 4095
"""Of the file systems that are in use."""
_KEY_BYTES: Final = 1024
"""Of the object stores that are in use."""
_AROUND_BYTES: Final = 150
"""Of a path, for what stands before and behind the folders (`headrace.model.part_names`), but for the output's name."""
_SHOWN: Final = 80

_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}


SPANS: Final[dict[str, tuple[str, ...]]] = {"month": ("month",), "day": ("day",), "hour": ("day", "hour")}
"""A span of time → the folders that name it, the outer first."""


class BucketBy(NamedTuple):
    """Folders by time: of a column, the span that its value lies in."""

    column: str
    span: str


class Room(NamedTuple):
    """How long folders may be called, in bytes of UTF-8."""

    name: int
    """One of them."""
    path: int
    """All of a row's, one in the other."""
    where: str
    """The sink, for people."""

    def check(self, folders: Sequence[str], limit: int, columns: Sequence[str]) -> None:
        found = max(folders, key=_size, default="")
        if _size(found) > limit:
            raise SinkFailed(
                f"a row's {' and '.join(columns)} is too long for a folder",
                where=self.where,
                expected=f"at most {limit:,} bytes of {'/'.join(f'{name}=…' for name in columns)}",
                found=f"{_size(found):,} bytes: {found if len(found) <= _SHOWN else found[:_SHOWN] + '…'}",
                next_move="partition by another column, or shorten it with with_columns before writing; nothing of "
                "this epoch was written, start again after the change",
            )


def room_at(path: str, output: str, where: str) -> Room:
    """What a disk takes, or an object store, to which a path is one long name."""
    around = _AROUND_BYTES + 2 * _size(output)
    scheme, _, rest = path.removeprefix("file://").partition("://")
    if rest:
        return Room(_KEY_BYTES, _KEY_BYTES - _size(rest.partition("/")[2]) - around, where)
    return Room(_NAME_BYTES, _PATH_BYTES - _size(os.path.abspath(scheme)) - around, where)


def _size(text: str) -> int:
    return len(text.encode())


def split_by(columns: tuple[str, ...], bucket: BucketBy | None, room: Room) -> SplitRows:
    """Cuts a batch by time and by the values of some columns; rows of a folder keep their order."""

    def split(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        codes = np.zeros(batch.num_rows, np.int64)
        folders = [""]
        named = [(name, batch.column(name)) for name in columns]
        if bucket is not None:
            named = [*_spans(batch.column(bucket.column), bucket.span), *named]
        for name, column in named:
            names, which = _folders(name, column)
            room.check(names, room.name, [name])
            codes = codes * len(names) + which
            folders = [f"{outer}/{inner}" if outer else inner for outer in folders for inner in names]
            # Only combinations that occur are kept, so that many columns do not multiply without end.
            present, codes = np.unique(codes, return_inverse=True)
            folders = [folders[code] for code in present.tolist()]
        room.check(folders, room.path, columns)
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(folders)), side="right").tolist()
        start = 0
        for folder, end in zip(folders, ends, strict=True):
            yield folder, batch.take(pa.array(order[start:end]))
            start = end

    return split


def check_texts(table: pa.Table, columns: Sequence[str], room: Room, spelled: Callable[[str], str]) -> None:
    """For whoever has rows cut later and elsewhere. Only of text can a folder's name become too long."""
    for name in columns:
        column = table.column(name)
        if pa.types.is_string(column.type):
            folders = [f"{spelled(name)}={spelled(text)}" for text in column.unique().to_pylist() if text]
            room.check(folders, min(room.name, room.path), [name])


def _spans(times: pa.Array, span: str) -> list[tuple[str, pa.Array]]:
    """What folders are named by, in UTC: ``month=2024-01``, ``day=2024-01-01``, ``day=2024-01-01/hour=13``."""
    dates = times.cast(pa.date32()).cast(pa.string())
    if span == "month":
        return [("month", pc.utf8_slice_codeunits(dates, 0, -3))]
    if span == "day":
        return [("day", dates)]
    return [("day", dates), ("hour", pc.utf8_lpad(pc.hour(times).cast(pa.string()), 2, "0"))]


def _folders(name: str, column: pa.Array) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The distinct folder names of a column, and which of them each row has."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    texts = iso_text(values) if pa.types.is_timestamp(values.type) else values.cast(pa.string())
    names = [f"{escape(name)}={escape(text) if text else NULL_FOLDER}" for text in texts.to_pylist()]
    # Null has no place in the dictionary, so it gets the one behind the last.
    which = encoded.indices.cast(pa.int64()).fill_null(len(names)).to_numpy(zero_copy_only=False)
    if column.null_count:
        names.append(f"{escape(name)}={NULL_FOLDER}")
    return names, which


def escape(text: str) -> str:
    """Text as part of a folder's name.

    >>> escape("a/b=c")
    'a%2Fb%3Dc'
    """
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
