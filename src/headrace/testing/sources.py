"""Tries to break a source that is read by Python: `verify_source`.

The contract of `headrace.connectors.source_contract.SplitReader`, made executable: positions survive JSON, every range
can be read again in another process with the same rows, whatever was asked before and wherever a restart comes, and
cutting the input differently neither loses nor doubles a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa

from headrace.connectors.source_contract import BadRows, Offset, Split, SplitReader

MAX_EPOCHS = 1000
_BAD = "bad row"
"""Stands before the text of a row that could not be decoded, among the rows of its split."""


def verify_source(
    make_reader: Callable[[], SplitReader], schema: pa.Schema, *, epochs: int = 8, limit: int | None = 7
) -> int:
    """Reads the input in several ways and raises AssertionError at the first promise that is broken.

    `make_reader` returns a new reader of the same input each time, as a restart does; the input stands still meanwhile.
    `epochs` bounds how much of it is read, `limit` how many rows an epoch may have. Returns the number of rows that
    were checked.

    What a reader has to do to pass:

    - It can be pickled, to plan elsewhere and to read elsewhere, and pickled copies do what the original does.
    - `initial` is a constant. Positions are JSON: only int, str, bool, None, lists and dicts.
    - `latest` never passes `limit` rows, and never stands still while there are rows: also with ``limit=1`` it moves.
      Asked again from the same position by a reader that was made anew, it may give more, never less.
    - `splits` of a range hold each of its rows once, whatever positions of `latest` bound it; an empty range has none.
    - `read` gives the same rows and `BadRows` in the same order each time, also after a reading that was given up in
      the middle, and to two tasks at once; in batches of exactly the schema.
    - `hold` that returns True is obeyed by the next `latest`, and let go by ``hold(frozenset())``.
    - `remaining`, where it tells anything, is 0 at the end and never grows from one position to the next.

    >>> import headrace as hr
    >>> from headrace.model.rows import codec_of
    >>> class Hit(hr.Record):
    ...     page: str
    >>> codec = codec_of(Hit)
    >>> verify_source(lambda: hr.source.items([Hit(f"/{i}") for i in range(9)]).reader(codec), codec.schema)
    9
    """
    first = make_reader().initial()
    assert make_reader().initial() == first, "initial() must be a constant: it is asked again before it is stored"
    positions = _walk(make_reader, first, epochs, limit)
    planner: SplitReader = cloudpickle.loads(cloudpickle.dumps(make_reader()))
    whole = _rows(planner, positions[0], positions[-1], schema)
    pieces = [_rows(planner, start, end, schema) for start, end in itertools.pairwise(positions)]
    _same(whole, _join_pieces(pieces), "reading a range in one epoch and in several")
    for start, end, piece in zip(positions, positions[1:], pieces, strict=False):
        rows = _count(piece)
        assert limit is None or rows <= limit, f"an epoch of at most {limit} rows had {rows}"
        _same(_rows(make_reader(), start, end, schema), piece, "reading a range again after a restart")
        _check_again(make_reader, start, end, rows, limit, schema)
    for position in positions:
        assert planner.splits(position, position) == [], "an empty range has no splits"
    for start, end in itertools.combinations(positions[:4], 2):
        at = positions.index(start), positions.index(end)
        _same(_rows(planner, start, end, schema), _join_pieces(pieces[at[0] : at[1]]), "reading an arbitrary range")
    _check_attempts(planner, positions[0], positions[-1], schema)
    _check_hold(make_reader, positions[0], schema)
    _check_remaining(make_reader, positions)
    planner.close()
    return _count(whole)


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


def _check_again(
    make_reader: Callable[[], SplitReader], start: Offset, end: Offset, rows: int, limit: int | None, schema: pa.Schema
) -> None:
    """What a reader says that was made anew after a crash, before this epoch was read."""
    reader = make_reader()
    reader.available_now()
    again = _through_json(reader.latest(start, limit))
    found = rows if again == end else _count(_rows(reader, start, again, schema))
    assert found >= rows, f"latest() gave {rows} rows behind {start}, and after a restart only {found}"
    one = _through_json(reader.latest(start, 1))
    assert one != start, f"latest() stands still at {start} with a limit of 1, though there are {rows} rows"
    found = _count(_rows(reader, start, one, schema))
    assert found <= 1, f"an epoch of at most 1 rows had {found}"
    reader.close()


def _check_attempts(reader: SplitReader, start: Offset, end: Offset, schema: pa.Schema) -> None:
    """Two attempts of a task read a split at the same time, and a third one gives up."""
    for split in reader.splits(start, end):
        here = _read(reader, split, schema)
        given_up = iter(reader.read(split))
        next(given_up, None)
        both = list(itertools.zip_longest(reader.read(split), reader.read(split)))
        assert all(one == other for one, other in both), f"two attempts to read {split} at once gave different rows"
        assert _read(reader, split, schema) == here, f"split {split} gave other rows after a reading was given up"


def _check_hold(make_reader: Callable[[], SplitReader], start: Offset, schema: pa.Schema) -> None:
    reader = make_reader()
    reader.available_now()
    free = _rows(reader, start, reader.latest(start, None), schema)
    for held in free:
        if not reader.hold(frozenset({held})):
            break
        found = _rows(reader, start, reader.latest(start, None), schema)
        assert held not in found, f"split {held!r} was to be held, and latest() moved it"
        reader.hold(frozenset())
        again = _rows(reader, start, reader.latest(start, None), schema)
        assert _count(again) >= _count(free), f"split {held!r} was let go, and latest() still holds it"
    reader.close()


def _check_remaining(make_reader: Callable[[], SplitReader], positions: Sequence[Offset]) -> None:
    reader = make_reader()
    told = [reader.remaining(position) for position in positions]
    known = [rows for rows in told if rows is not None]
    assert len(known) in (0, len(told)), f"remaining() tells at some positions only: {told}"
    assert all(rows >= 0 for rows in known), f"remaining() is below zero: {known}"
    assert known == sorted(known, reverse=True), f"remaining() grows as rows are read: {known}"
    reader.available_now()
    if known and reader.latest(positions[-1], None) == positions[-1]:
        assert known[-1] == 0, f"remaining() is {known[-1]} at the end"
    reader.close()


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
        if isinstance(batch, BadRows):
            assert not reader.never_bad, "read() gave BadRows, though the reader says that there never are any"
            rows.extend((_BAD, text) for text in batch.texts)
            continue
        assert batch.schema.equals(schema), f"a batch has the schema {batch.schema}, expected {schema}"
        rows.extend(batch.to_pylist())
    return rows


def _count(rows: dict[str, list[Any]]) -> int:
    return sum(len(part) for part in rows.values())


def _join_pieces(pieces: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    whole: dict[str, list[Any]] = {}
    for piece in pieces:
        for split, rows in piece.items():
            whole.setdefault(split, []).extend(rows)
    return whole


def _same(one: dict[str, list[Any]], other: dict[str, list[Any]], what: str) -> None:
    assert one == other, f"{what} gave different rows:\n  {one}\n  {other}"
