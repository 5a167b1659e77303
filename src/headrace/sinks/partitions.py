"""Folders by value, as Hive, Spark, polars and pyarrow name them: ``day=2024-01-01/shop=a%2Fb``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.staged import SplitRows
from headrace.sinks.text import iso_text

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null and for the empty text, which cannot be a folder's name."""

_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}


SPANS: Final[dict[str, tuple[str, ...]]] = {"month": ("month",), "day": ("day",), "hour": ("day", "hour")}
"""A span of time → the folders that name it, the outer first."""


class BucketBy(NamedTuple):
    """Folders by time: of a column, the span that its value lies in."""

    column: str
    span: str


def split_by(columns: tuple[str, ...], bucket: BucketBy | None = None) -> SplitRows:
    """Cuts a batch by time and by the values of some columns; rows of a folder keep their order."""

    def split(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        codes = np.zeros(batch.num_rows, np.int64)
        folders = [""]
        named = [(name, batch.column(name)) for name in columns]
        if bucket is not None:
            named = [*_spans(batch.column(bucket.column), bucket.span), *named]
        for name, column in named:
            names, which = _folders(name, column)
            codes = codes * len(names) + which
            folders = [f"{outer}/{inner}" if outer else inner for outer in folders for inner in names]
            # Only combinations that occur are kept, so that many columns do not multiply without end.
            present, codes = np.unique(codes, return_inverse=True)
            folders = [folders[code] for code in present.tolist()]
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(folders)), side="right").tolist()
        start = 0
        for folder, end in zip(folders, ends, strict=True):
            yield folder, batch.take(pa.array(order[start:end]))
            start = end

    return split


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
