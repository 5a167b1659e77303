"""The archive of closed windows: what whoever writes it and whoever reads it have to agree on.

An archive is a folder of Parquet files, put there by a files sink: final results as they left their step, with two
columns more. Files lie in folders by the day their windows end in (``day=2024-01-01``), and are sorted by the hash of
the key, so that the rows of a key are found by the statistics of row groups.

=============  =====================================================================================
``_hash``      xxhash64 of the key's bytes, signed
``_epoch``     the epoch that closed the window: a reader of an older one leaves the row out
=============  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from decimal import Decimal
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.model.part_names import HIDDEN

HASH: Final = "_hash"
EPOCH: Final = "_epoch"
ROW_GROUP_ROWS: Final = 8192
DAY_US: Final = 86_400_000_000
MARKER: Final = f"{HIDDEN}/archive.json"
"""Says whose archive a folder is, as a `FolderClaim`. A folder without it is none, whatever its path."""

_DAY: Final = "day="


KINDS: Final[dict[str, type]] = {
    "text": str, "whole": int, "float": float, "bytes": bytes, "bool": bool, "date": date, "decimal": Decimal,
}  # fmt: skip
"""What keys are made of; times are whole numbers in them."""


def kind_of(column: pa.DataType) -> str:
    """The kind of a part of a key, by the type of its column.

    >>> kind_of(pa.string()), kind_of(pa.timestamp("us", "UTC"))
    ('text', 'whole')
    """
    kinds = pa.types
    if kinds.is_integer(column) or kinds.is_timestamp(column) or kinds.is_duration(column):
        return "whole"
    tests = {
        "float": kinds.is_floating, "bytes": kinds.is_binary, "bool": kinds.is_boolean, "date": kinds.is_date,
        "decimal": kinds.is_decimal,
    }  # fmt: skip
    return next((name for name, test in tests.items() if test(column)), "text")


class Archive(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the closed windows of a step go; kept in manifests, so that a server finds them without the program."""

    path: str
    """A folder of the job's machine, or a URL."""
    output: str
    """The output of the job that writes it."""
    key: tuple[str, ...] = ()
    """Columns that hold the key, part by part."""
    kinds: tuple[str, ...] = ()
    """What the parts of a key are, in `KINDS`."""
    results: tuple[str, ...] = ()
    """Columns that hold results."""
    former_keys: tuple[tuple[str, ...], ...] = ()
    """What the columns of the key were called before, the newest first: files written then have those."""

    def key_in(self, columns: Collection[str]) -> tuple[str, ...] | None:
        """The columns of the key in a file that has these; None where it is none of this archive."""
        return next((key for key in (self.key, *self.former_keys) if all(name in columns for name in key)), None)


def signed(hash_: int) -> int:
    """A key's hash as it stands in an archive."""
    return hash_ - 2**64 if hash_ >= 2**63 else hash_


def bucket_of(time_us: int) -> str:
    """The folder of windows that end there.

    >>> bucket_of(1_704_110_400_000_000)
    'day=2024-01-01'
    """
    return f"{_DAY}{np.datetime64(time_us, 'us').astype('M8[D]')}"


def first_us_of(bucket: str) -> int | None:
    """Where the day of a folder begins; None where the folder is none of an archive.

    >>> first_us_of("day=2024-01-01")
    1704067200000000
    """
    if not bucket.startswith(_DAY):
        return None
    try:
        return int(np.datetime64(bucket.removeprefix(_DAY), "D").astype("M8[us]").astype(np.int64))
    except ValueError:
        return None
