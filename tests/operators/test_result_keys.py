"""Keys as columns of results: in bulk or one by one, they are the values that rows were keyed by."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import headrace as hr
from headrace.model.keys import encode_key
from headrace.model.record import row_type
from headrace.model.rows import codec_of
from headrace.operators.result_keys import ResultKeys


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


KEYS: dict[str, tuple[Any, list[Any]]] = {
    "text": (str, ["", "a", "日\0本"]),
    "text that may be missing": (str | None, ["a", None, ""]),
    "numbers": (int, [0, -1, 2**63 - 1]),
    "numbers that may be missing": (int | None, [None, 7]),
    "nothing at all": (int | None, [None, None]),
    "floats": (float, [0.5, -1e300]),
    "truth": (bool, [True, False]),
    "bytes": (bytes, [b"", b"\xff\0"]),
    "timestamps": (hr.Timestamp, [hr.Timestamp(0), hr.Timestamp(-5)]),
    "datetimes": (datetime, [datetime(2024, 1, 2, tzinfo=UTC)]),
    "spans": (timedelta, [timedelta(seconds=3)]),
    "dates": (date, [date(1969, 12, 31), date(2024, 2, 29)]),
    "decimals": (Decimal, [Decimal("1.50"), Decimal(0)]),
    "UUIDs": (UUID, [UUID(int=5)]),
    "enums": (Colour, [Colour.BLUE, Colour.RED]),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("parts", [1, 2])
def test_the_columns_of_a_key_hold_its_parts(name: str, parts: int) -> None:
    kind, values = KEYS[name]
    codec = codec_of(row_type("Row", {"key": kind, **({"beside": str} if parts == 2 else {}), "n": int}))
    key_type = kind if parts == 1 else tuple[kind, str]
    keys = values if parts == 1 else [(value, f"{i}") for i, value in enumerate(values)]
    encoded = pa.array([encode_key(key) for key in keys], pa.binary())
    found = ResultKeys(codec, ("key", "beside")[:parts], key_type).of(encoded)
    assert codec.columns["key"].decode(found["key"]) == values
    assert list(found) == ["key", "beside"][:parts]
    if parts == 2:
        assert found["beside"].to_pylist() == [f"{i}" for i in range(len(values))]


def test_results_need_not_have_every_part_of_their_key() -> None:
    codec = codec_of(row_type("Row", {"shop": str, "n": int}))
    encoded = pa.array([encode_key(("a", 1)), encode_key(("b", 2))], pa.binary())
    found = ResultKeys(codec, ("shop", "till"), tuple[str, int]).of(encoded)
    assert {name: column.to_pylist() for name, column in found.items()} == {"shop": ["a", "b"]}
    assert ResultKeys(codec, ("till",), int).of(pa.array([encode_key(1)], pa.binary())) == {}
