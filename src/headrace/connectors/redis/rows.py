"""Rows as writes to Redis, made in tasks: keys from a template, values as documents or field by field, in packs.

A pack is MessagePack that the releasing script unpacks inside the server: ``[shape, ttl_ms, maxlen, …]`` and then per
row ``key, value`` for strings (``key, ""`` in a pack of the shape ``gone``, whose keys are deleted), or ``key, n, name,
value, …, m, name, …`` for hashes and streams: n texts to set, and m names to remove. It says everything itself, so what
an earlier program staged is written as that program meant it.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.connectors.staged import encode_arrow
from headrace.connectors.text import json_lines, value_bytes
from headrace.errors import BadRow, ProgramError
from headrace.model.row_kind import DELETE, holds_or_goes
from headrace.model.values import type_name
from headrace.model.wire import ROW_KIND

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Shape = Literal["string", "hash", "stream"]
Format = Literal["json", "msgpack"]
Texts = list[bytes | None]

PACKS: Final = "packs"
"""The format of what is staged."""
_TEXT: Final = 0xDB
_INT_BYTES: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Of MessagePack: text of up to 4 GB, and whole numbers, which are never negative here, by their first byte."""
_GONE: Final = b"gone"
PACK_ROWS = 1000
PACK_BYTES = 512 * 1024
"""A pack is written as a whole or not at all; a release joins as many as the server can take at once."""


class Template:
    """Text with fields of the row in braces: ``"user:{user}"``."""

    def __init__(self, text: str, option: str, where: str) -> None:
        self.text = text
        self.option = option
        self.where = where
        self.parts: list[tuple[str, str | None]] = []
        """Literal text, and the field behind it."""
        try:
            for literal, name, spec, conversion in Formatter().parse(text):
                if name is not None and (spec or conversion or not name.isidentifier()):
                    raise ValueError(f"{{{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}")
                self.parts.append((literal, name))
        except (ValueError, TypeError) as error:
            raise ProgramError(
                f"{option} is no template",
                where=where,
                expected='text with names of fields in braces, as "user:{user}"',
                found=f"{text!r} ({error})",
                next_move="compute anything else with with_columns first; {{ and }} stand for braces",
            ) from error

    @property
    def fields(self) -> list[str]:
        return [name for _, name in self.parts if name is not None]

    def check(self, codec: RowCodec) -> None:
        for name in self.fields:
            codec.index(name, where=f"{self.where}, {self.option}=")
            column = codec.columns[name]
            if pa.types.is_nested(column.arrow) or column.packed:
                raise ProgramError(
                    f"{self.option} cannot hold {name}",
                    where=self.where,
                    expected="text, numbers, booleans, dates or times",
                    found=f"{name}: {type_name(codec.annotations[name])}",
                    next_move="compute a text with with_columns first",
                )

    def fill(self, table: pa.Table, codec: RowCodec) -> list[bytes]:
        """The text of each row."""
        columns: list[list[bytes]] = []
        for literal, name in self.parts:
            if literal:
                columns.append([literal.encode()] * table.num_rows)
            if name is not None:
                columns.append(self._present(name, plain_texts(table.column(name)), codec))
        if len(columns) == 1:
            return columns[0]
        return [b"".join(parts) for parts in zip(*columns, strict=True)]

    def _present(self, name: str, texts: Texts, codec: RowCodec) -> list[bytes]:
        present = [text for text in texts if text is not None]
        if len(present) < len(texts):
            raise BadRow(
                f"a row has no {name}, which is part of its {self.option}",
                where=self.where,
                expected=f"{self.option}={self.text!r}",
                found=f"{name} is None in a {type_name(codec.type)}",
                next_move=f"leave such rows out before they are written: .where('{name} IS NOT NULL')",
            )
        return present


class RowForm(NamedTuple):
    """How a row becomes a write."""

    shape: Shape
    key: Template
    field: Template | None
    """Of hashes and streams: the one field that holds the whole row; None: a field for each of its own."""
    format: Format
    ttl_ms: int
    maxlen: int

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The fields of a row by which it is found in Redis."""
        return tuple(dict.fromkeys([*self.key.fields, *(() if self.field is None else self.field.fields)]))


def pack_table(table: pa.Table, codec: RowCodec, form: RowForm) -> pa.Buffer:
    """The staged content of a part: one row per pack."""
    packs: list[bytes] = []
    counts: list[int] = []
    head: list[bytes | int] = [form.shape.encode(), form.ttl_ms, form.maxlen]
    content: list[bytes | int] = []
    rows = size = 0
    gone = None
    if ROW_KIND in table.schema.names:
        kinds = table.column(ROW_KIND).to_numpy()
        said = np.flatnonzero(holds_or_goes(kinds))
        table, gone = table.drop_columns([ROW_KIND]).take(pa.array(said)), kinds[said] == DELETE
    if gone is not None and form.shape == "string":
        # Of a key an epoch says one thing, so what goes may lie apart from what is set.
        keys = form.key.fill(table.filter(pa.array(gone)), codec)
        table = table.filter(pa.array(~gone))
        for start in range(0, len(keys), PACK_ROWS):
            some = keys[start : start + PACK_ROWS]
            packs.append(encode_pack([_GONE, 0, 0, *(part for key in some for part in (key, b""))]))
            counts.append(len(some))
        gone = None
    for row in _writes(table, codec, form, [False] * table.num_rows if gone is None else gone.tolist()):
        content += row
        rows += 1
        size += sum(len(part) for part in row if isinstance(part, bytes))
        if rows >= PACK_ROWS or size >= PACK_BYTES:
            packs.append(encode_pack(head + content))
            counts.append(rows)
            content, rows, size = [], 0, 0
    if rows:
        packs.append(encode_pack(head + content))
        counts.append(rows)
    return encode_arrow(pa.table({"pack": pa.array(packs, pa.binary()), "rows": pa.array(counts, pa.int32())}))


def encode_pack(items: list[bytes | int]) -> bytes:
    """An array of numbers and bytes, as the MessagePack of Redis' scripts knows it: older than the type for bytes."""
    out: list[bytes] = [b"\xdd" + len(items).to_bytes(4, "big")]
    for item in items:
        if isinstance(item, bytes):
            out += (b"\xdb" + len(item).to_bytes(4, "big"), item)
        else:
            out.append(msgspec.msgpack.encode(item))
    return b"".join(out)


def unpack_rows(pack: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """The keys of a pack of strings or hashes, each with the names of the fields that are set."""
    items = _items_of(pack)
    shape, at = items[0], 3
    while at < len(items):
        key = items[at]
        if shape in (b"string", _GONE):
            yield key, []
            at += 2
            continue
        set_to = at + 2 + items[at + 1]
        yield key, items[at + 2 : set_to : 2]
        at = set_to + 1 + items[set_to]


def _items_of(pack: bytes) -> list[Any]:
    """What `encode_pack` was given. By hand, since its texts are bytes, which need not be UTF-8."""
    items: list[Any] = []
    at, end, from_bytes = 5, len(pack), int.from_bytes
    while at < end:
        head = pack[at]
        if head == _TEXT:
            start = at + 5
            at = start + from_bytes(pack[at + 1 : start], "big")
            items.append(pack[start:at])
        elif head < 0x80:
            items.append(head)
            at += 1
        else:
            start = at + 1
            at = start + _INT_BYTES[head]
            items.append(from_bytes(pack[start:at], "big"))
    return items


def _writes(table: pa.Table, codec: RowCodec, form: RowForm, gone_rows: list[bool]) -> Iterator[list[bytes | int]]:
    """``gone_rows``: which rows are to go; then the fields that they had do."""
    keys = form.key.fill(table, codec)
    if form.shape == "string":
        for key, value in zip(keys, documents(table, codec, form.format), strict=True):
            yield [key, value]
        return
    if form.field is not None:
        names = form.field.fill(table, codec)
        for key, name, value, goes in zip(keys, names, documents(table, codec, form.format), gone_rows, strict=True):
            yield [key, 0, 1, name] if goes else [key, 2, name, value, 0]
        return
    columns = field_texts(table, codec)
    named = [name.encode() for name in columns]
    for key, goes, *values in zip(keys, gone_rows, *columns.values(), strict=True):
        there: list[bytes | int] = []
        gone: list[bytes | int] = []
        for name, value in zip(named, values, strict=True):
            if value is None or goes:
                gone.append(name)
            else:
                there += (name, value)
        if form.shape == "stream":
            if not there:
                raise BadRow(
                    "a row without any value cannot be an entry of a stream", where=form.key.where,
                    found=f"a {type_name(codec.type)} whose fields are all None",
                    next_move='leave such rows out, or write whole rows into one field: field="payload"',
                )  # fmt: skip
            gone = []
        yield [key, len(there), *there, len(gone), *gone]


def documents(table: pa.Table, codec: RowCodec, format: Format) -> list[bytes]:
    """Each row as one value."""
    if format == "json":
        return json_lines(table, codec).split(b"\n")[:-1]
    encode = msgspec.msgpack.Encoder().encode
    return [encode(row) for row in codec.to_objects([column.combine_chunks() for column in table.columns])]


def field_texts(table: pa.Table, codec: RowCodec) -> dict[str, Texts]:
    """Each field of the rows as text, by the name it has outside; None where there is no value."""
    texts: dict[str, Texts] = {}
    nested: list[str] = []
    for name, column in codec.columns.items():
        outside = codec.encoded_names[name]
        if pa.types.is_nested(column.arrow) or column.packed:
            nested.append(outside)
            texts[outside] = []
        else:
            texts[outside] = plain_texts(table.column(name))
    if nested:
        decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        rows = [decode(line) for line in documents(table, codec, "json")]
        for outside in nested:
            found = [row.get(outside) for row in rows]
            texts[outside] = [None if raw is None or bytes(raw) == b"null" else bytes(raw) for raw in found]
    return texts


def plain_texts(column: pa.ChunkedArray) -> Texts:
    """Values of a column without parts, as text: times in ISO form, bytes as they are."""
    return [text for chunk in column.chunks for text in value_bytes(chunk).to_pylist()]
