"""Rows out of files of JSON lines without Spark: for replays, which read few files and start no JVM.

A line is decoded as the row type's own JSON, with the same rules as events taken by HTTP. Production reads JSON by
Spark, whose reader is the faster one for many files (`headrace.connectors.files.reads`).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.files.errors import local_file
from headrace.connectors.reading import BATCH_ROWS
from headrace.connectors.source_contract import BadRows
from headrace.errors import BadRow, InputLost

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


def read_json_file(codec: RowCodec, uri: str) -> Iterator[pa.RecordBatch | BadRows]:
    """The rows of a file, by the name that Spark gives it."""
    path = local_file(uri)
    if path is None or not path.is_file():
        raise InputLost(
            "a file that the job has read is not there any more",
            where=uri,
            next_move="bring it back, or replay epochs whose input is still there",
        )
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        numbered = enumerate(_lines(file), 1)
        while part := list(islice(numbered, BATCH_ROWS)):
            yield from _decode(codec, uri, part)


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    return (line.removeprefix(b"\xef\xbb\xbf").strip() for line in file)


def _decode(codec: RowCodec, uri: str, lines: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch | BadRows]:
    rows, bad = [], []
    for number, line in lines:
        if not line:
            continue
        try:
            row = codec.from_json(line)
            codec.to_arrays([row])
            rows.append(row)
        except BadRow as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            bad.append(BadRows.text(f"{uri}:{number}", line.decode(errors="replace"), reason))
    if rows:
        yield pa.RecordBatch.from_arrays(codec.to_arrays(rows), schema=codec.schema)
    if bad:
        yield BadRows(bad)
