"""`verify_source` has teeth: each way of breaking the contract is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pyarrow as pa
import pytest

from headrace.connectors.source_contract import Offset, Split, SplitReader
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


class StandsStillAtOne(Honest):
    def latest(self, start: Offset, limit: int | None) -> Offset:
        return start if limit == 1 else super().latest(start, limit)


class ForgetsAfterARestart(Honest):
    """Finds less when it is asked anew."""

    asked = 0

    def latest(self, start: Offset, limit: int | None) -> Offset:
        self.asked += 1
        return super().latest(start, limit if self.asked > 1 or start == {"i": 0} else 2)


class ReadsFromOneCursor(Honest):
    """Two attempts that share a cursor take rows from each other."""

    def __init__(self) -> None:
        self.cursors: dict[int, Iterator[int]] = {}

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        first, stop = split.start["i"], split.end["i"]
        cursor = self.cursors.setdefault(first, iter(range(first, stop)))
        for n in cursor:
            yield pa.RecordBatch.from_arrays([pa.array([n], pa.int64())], schema=SCHEMA)
        self.cursors.pop(first, None)


class SaysItHolds(Honest):
    def hold(self, splits: frozenset[str]) -> bool:
        return True


class CountsWrongly(Honest):
    def remaining(self, start: Offset) -> int:
        return int(start["i"])


class NeverGetsThere(Honest):
    def remaining(self, start: Offset) -> int:
        return 21 - int(start["i"])


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
        (StandsStillAtOne, "stands still"),
        (ForgetsAfterARestart, "after a restart only 2"),
        (ReadsFromOneCursor, "two attempts|given up"),
        (SaysItHolds, "was to be held"),
        (CountsWrongly, "grows"),
        (NeverGetsThere, "1 at the end"),
    ],
)
def test_every_broken_promise_is_found(reader: Callable[[], SplitReader], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        verify_source(reader, SCHEMA)
