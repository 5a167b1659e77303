"""`verify_source` has teeth: each way of breaking the contract is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pyarrow as pa
import pytest

from headrace.sources.contract import Offset, Split, SplitReader
from headrace.testing.sources import verify_source

SCHEMA = pa.schema([pa.field("n", pa.int64())])
_calls = count()


class Honest(SplitReader):
    def initial(self) -> Offset:
        return {"i": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        return {"i": max(start["i"], min(20, start["i"] + (20 if limit is None else limit)))}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return [Split("0", start, end)] if start != end else []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(range(split.start["i"], split.end["i"]), pa.int64())], schema=SCHEMA)


class StartsAtNow(Honest):
    def initial(self) -> Offset:
        return {"i": next(_calls)}


class ForgetsTheLimit(Honest):
    def latest(self, start: Offset, limit: int | None) -> Offset:
        return {"i": 20}


class ReadsSomethingElseEachTime(Honest):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([next(_calls)], pa.int64())], schema=SCHEMA)


class ReadsOneTooMany(Honest):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from super().read(Split("0", split.start, {"i": split.end["i"] + 1}))


class HasAnotherSchema(Honest):
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": ["text"]})


class SplitsNothing(Honest):
    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return [Split("0", start, end)]


class KeepsTuples(Honest):
    def latest(self, start: Offset, limit: int | None) -> Offset:
        return {"i": (1, 2)}


class HasNothing(Honest):
    def latest(self, start: Offset, limit: int | None) -> Offset:
        return start


def test_an_honest_reader_passes() -> None:
    assert verify_source(Honest, SCHEMA) == 20


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (StartsAtNow, "must be a constant"),
        (ForgetsTheLimit, "at most 7 rows"),
        (ReadsSomethingElseEachTime, "pickled copy"),
        (ReadsOneTooMany, "different rows"),
        (HasAnotherSchema, "schema"),
        (SplitsNothing, "no splits"),
        (KeepsTuples, "stored as JSON"),
        (HasNothing, "no rows"),
    ],
)
def test_every_broken_promise_is_found(reader: Callable[[], SplitReader], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        verify_source(reader, SCHEMA)
