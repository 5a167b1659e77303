"""Key bytes and hashes computed by the JVM are those that Python computes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.model.keys import encode_columns, encode_key, hash_encoded, hash_sql, key_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

VALUES: dict[str, tuple[Any, list[Any]]] = {
    "text": (pa.string(), ["a", "", "Grüße", "😀", "x" * 1000, "nul\0byte", "n", None]),
    "whole": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 255, None, 4096]),
    "small": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31), 255, None, 4096]),
    "raw": (pa.binary(), [b"a", b"", b"\x00\xff", b"n", b"y" * 300, b"\n", None, b"("]),
    "flag": (pa.bool_(), [True, False, None, True, False, True, None, False]),
    "day": (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31), None] * 2),
    "at": (
        pa.timestamp("us", "UTC"),
        [
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(2024, 2, 29, 12, 13, 14, 15, tzinfo=UTC),
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, tzinfo=UTC),
            None,
            datetime(2000, 1, 1, tzinfo=UTC),
            None,
        ],
    ),
}
KEYS: list[list[str]] = [
    *([name] for name in VALUES),
    ["text", "whole"],
    ["text", "text"],
    ["raw", "text", "flag"],
    ["day", "at"],
    ["small", "flag", "text", "day", "raw", "at", "whole"],
]


def _table(names: Sequence[str]) -> pa.Table:
    columns = {f"{name} {i}": pa.array(VALUES[name][1][:8], VALUES[name][0]) for i, name in enumerate(names)}
    return pa.table({"row": pa.array(range(8)), **columns})


@pytest.mark.parametrize("names", KEYS, ids=", ".join)
def test_bytes_and_hash_are_the_same_in_the_jvm(spark: SparkSession, names: list[str]) -> None:
    table = _table(names)
    text = key_sql([(field.name, field.type) for field in table.schema][1:])
    assert text is not None
    frame = spark.createDataFrame(table).selectExpr("row", f"{text} AS key", f"{hash_sql(text)} AS hash")
    assert not frame.schema["key"].nullable
    computed = frame.toArrow().sort_by("row")
    expected = encode_columns([column.combine_chunks() for column in table.columns[1:]])
    assert computed.column("key").to_pylist() == expected.to_pylist()
    assert np.array_equal(computed.column("hash").to_numpy().view(np.uint64), hash_encoded(expected))


@pytest.mark.parametrize("names", KEYS, ids=", ".join)
def test_bytes_of_the_columns_are_those_of_the_values(names: list[str]) -> None:
    table = _table(names)
    rows = list(zip(*(column.to_pylist() for column in table.columns[1:]), strict=True))
    expected = [encode_key(row[0] if len(names) == 1 else row) for row in rows]
    assert encode_columns([column.combine_chunks() for column in table.columns[1:]]).to_pylist() == expected
