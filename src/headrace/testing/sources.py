"""Tries to break a source that is read by Python: `verify_source`.

The contract of `headrace.sources.contract.SplitReader`, made executable: positions survive JSON, every range can be
read again in another process with the same rows, and cutting the input differently neither loses nor doubles a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa

from headrace.sources.contract import Offset, Split, SplitReader

MAX_EPOCHS = 1000


def verify_source(
    make_reader: Callable[[], SplitReader], schema: pa.Schema, *, epochs: int = 8, limit: int | None = 7
) -> int:
    """Reads the input in several ways and raises AssertionError at the first promise that is broken.

    `make_reader` returns a new reader of the same input each time, as a restart does. `epochs` bounds how much of it is
    read, `limit` how many rows an epoch may have. Returns the number of rows that were checked.
    """
    first = make_reader().initial()
    assert make_reader().initial() == first, "initial() must be a constant: it is asked again before it is stored"
    positions = _walk(make_reader, first, epochs, limit)
    planner = make_reader()
    whole = _rows(planner, positions[0], positions[-1], schema)
    pieces = [_rows(planner, start, end, schema) for start, end in itertools.pairwise(positions)]
    _same(whole, _joined(pieces), "reading a range in one epoch and in several")
    for start, end, piece in zip(positions, positions[1:], pieces, strict=False):
        rows = sum(len(part) for part in piece.values())
        assert limit is None or rows <= limit, f"an epoch of at most {limit} rows had {rows}"
        _same(_rows(make_reader(), start, end, schema), piece, "reading a range again after a restart")
    for position in positions:
        assert planner.splits(position, position) == [], "an empty range has no splits"
    for start, end in itertools.combinations(positions[:4], 2):
        at = positions.index(start), positions.index(end)
        _same(_rows(planner, start, end, schema), _joined(pieces[at[0] : at[1]]), "reading an arbitrary range")
    planner.close()
    return sum(len(part) for part in whole.values())


def _walk(make_reader: Callable[[], SplitReader], first: Offset, epochs: int, limit: int | None) -> list[Offset]:
    """The positions of successive epochs; the reader is made anew in between, as restarts would."""
    positions = [first]
    reader = make_reader()
    reader.available_now()
    for number in range(min(epochs, MAX_EPOCHS)):
        start = positions[-1]
        end = _through_json(reader.latest(start, limit))
        if end == start:
            break
        positions.append(end)
        if number == epochs // 2:
            reader.close()
            reader = make_reader()
            reader.available_now()
    reader.close()
    assert len(positions) > 1, "the source has no rows to check; give the suite one that has"
    return positions


def _through_json(offset: Offset) -> Offset:
    stored: Offset = msgspec.json.decode(msgspec.json.encode(offset))
    assert stored == offset, f"positions are stored as JSON, and {offset!r} came back as {stored!r}"
    return stored


def _rows(reader: SplitReader, start: Offset, end: Offset, schema: pa.Schema) -> dict[str, list[Any]]:
    """Split id → its rows. Each split is read twice, once by a copy that has travelled."""
    found: dict[str, list[Any]] = {}
    for split in reader.splits(start, end):
        here = _read(reader, split, schema)
        sent: tuple[SplitReader, Split] = cloudpickle.loads(cloudpickle.dumps((reader, split)))
        assert _read(*sent, schema) == here, f"split {split} read by a pickled copy gave other rows"
        found.setdefault(split.id, []).extend(here)
    return found


def _read(reader: SplitReader, split: Split, schema: pa.Schema) -> list[Any]:
    rows: list[Any] = []
    for batch in reader.read(split):
        assert batch.schema.equals(schema), f"a batch has the schema {batch.schema}, expected {schema}"
        rows.extend(batch.to_pylist())
    return rows


def _joined(pieces: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    whole: dict[str, list[Any]] = {}
    for piece in pieces:
        for split, rows in piece.items():
            whole.setdefault(split, []).extend(rows)
    return whole


def _same(one: dict[str, list[Any]], other: dict[str, list[Any]], what: str) -> None:
    assert one == other, f"{what} gave different rows:\n  {one}\n  {other}"
