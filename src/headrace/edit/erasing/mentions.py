"""Where the text of a key stands though no row is of it: in values of other keys, and in bytes that nobody reads.

In runs and rows of loops a mention is a whole text: a field, an element, the name of an entry, a part of a key. In all
other files it is the text as a word. So nobody is alarmed by ``ann`` inside of ``annual``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state import layout
from headrace.state.manifest import Manifest
from headrace.state.run import StateRun, open_ref
from headrace.state.store import StoreFiles

MENTION_BYTES: Final = 3
"""Texts below this stand everywhere, and are not looked for."""
ARROW: Final = "arrow"
"""How files of rows that wait in loops end."""


def text_needles(text: str) -> tuple[bytes, ...]:
    """The bytes of a text; of a short one none."""
    needle = text.encode()
    return (needle,) if len(needle) >= MENTION_BYTES else ()


def holds_bytes(data: Any, needles: Iterable[bytes]) -> bool:
    """Whether any of these stands in the bytes of a file."""
    view = memoryview(data)
    return any(re.search(re.escape(needle), view) for needle in needles)


def has_slack(run: StateRun) -> bool:
    """Whether a run holds bytes that no row of it refers to; what cannot be told counts as such."""
    return any(_is_slack(column) for batch in _batches(run) for column in batch.columns)


def _is_slack(column: pa.Array) -> bool:
    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        return bool(pa.types.is_nested(kind) or pa.types.is_dictionary(kind))
    _, places, data = column.buffers()
    if places is None or data is None:
        return False
    offsets = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]
    if not len(offsets):
        return False
    hidden = np.diff(offsets)[column.is_null().to_numpy(zero_copy_only=False)]
    content = np.frombuffer(data, np.uint8)
    # Buffers are filled up with zeros.
    return bool(hidden.any() or content[: offsets[0]].any() or content[offsets[-1] :].any())


def find_mentions(store: StoreFiles, manifests: Iterable[tuple[str, Manifest]], text: str) -> list[str]:
    """The files in which a text stands. ``manifests``: with their paths, all that are in the store."""
    needles = text_needles(text)
    if not needles:
        return []
    found = {path for path in store.list() if _file_mentions(store, path, needles[0])}
    for manifest_path, manifest in manifests:
        for listed in manifest.steps.values():
            for ref in (*(listed.runs or ()), *listed.added):
                path = ref.file or manifest_path
                if path not in found and mentions_text(open_ref(store, ref, cached=False), needles[0]):
                    found.add(path)
    return sorted(found)


def _file_mentions(store: StoreFiles, path: str, text: bytes) -> bool:
    """Of everything that is no run."""
    if layout.parse_run(path) is not None:
        return False
    data = store.open_buffer(path)
    if path.endswith(f".{ARROW}"):
        with pa.ipc.open_stream(data) as stream:
            return _batches_mention(stream, text)
    return re.search(rb"(?<!\w)" + re.escape(text) + rb"(?!\w)", memoryview(data)) is not None


def mentions_text(run: StateRun, text: bytes) -> bool:
    """Whether a run has the text as a whole anywhere."""
    return _batches_mention(_batches(run), text)


def _batches_mention(batches: Iterable[pa.RecordBatch], text: bytes) -> bool:
    spelled = _spellings(text)
    return any(_column_says(column, text, spelled) for batch in batches for column in batch.columns)


def _batches(run: StateRun) -> Iterator[pa.RecordBatch]:
    return (table.block(number).batch for table in run.tables.values() for number in range(len(table)))


def _spellings(text: bytes) -> tuple[bytes, ...]:
    """The text inside of a value (MessagePack), and as a part of a key or of the name of an entry."""
    return msgspec.msgpack.encode(text.decode()), struct.pack(">I", len(text) + 1) + b"s" + text


def _column_says(column: pa.Array, text: bytes, spelled: tuple[bytes, ...]) -> bool:
    kind = column.type
    if pa.types.is_string(kind):
        return bool(pc.any(pc.equal(column, text.decode())).as_py())
    if pa.types.is_binary(kind):
        return bool(pc.any(pc.equal(column, b"s" + text)).as_py()) or any(
            bool(pc.any(pc.match_substring(column, each)).as_py()) for each in spelled
        )
    # Lists of partial aggregates: what they hold is text in Arrow, or packed.
    return pa.types.is_nested(kind) and any(holds_bytes(buffer, (text,)) for buffer in column.buffers() if buffer)
