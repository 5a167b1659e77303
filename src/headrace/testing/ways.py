"""The ways in which an engine may run the same epochs: each a line of ``WAYS``, or of ``KEYED_WAYS`` for keyed steps.

How rows are cut into batches, how much memory there is, which worker runs a task, how often a task is given up, how
state lies in runs and which keys share a hash or a shard are the engine's business. What is tried in these ways, and
what has to be equal then, is told in `headrace.testing.operator_trial`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple

from headrace.testing.rig import NO_LIMIT

Batches = list[Sequence[Any]]


@dataclass(frozen=True)
class EpochInput:
    """The rows of one epoch and the clocks at its end: µs since 1970, or text; None leaves a clock where it is.

    Of a step with several inputs the rows are a sequence of (port, rows), in the order in which they come.
    """

    rows: Sequence[Any] = ()
    watermark: int | str | None = None
    clock: int | str | None = None
    final: bool = False


class Way(NamedTuple):
    """One way in which an engine may run epochs."""

    name: str
    cut: Callable[[Sequence[Any], Random], Batches]
    overlay_limit_bytes: int = NO_LIMIT
    as_objects: bool = False
    new_workers: bool = False
    """Each epoch is run by an operator that has seen none before."""
    given_up: bool = False
    """Each epoch is begun twice and given up before it is done for real."""
    folds: bool = False
    shards: tuple[int, ...] = (1,)
    """How many shards there are, epoch by epoch, from the beginning again when there are more epochs."""
    one_hash: bool = False


def whole(rows: Sequence[Any], random: Random) -> Batches:
    return [rows]


def row_by_row(rows: Sequence[Any], random: Random) -> Batches:
    return [[row] for row in rows]


def random_batches(rows: Sequence[Any], random: Random) -> Batches:
    cuts = sorted({0, len(rows), *(random.randrange(len(rows) + 1) for _ in range(min(4, len(rows))))})
    return [rows[start:end] for start, end in pairwise(cuts)]


def with_empty_batches(rows: Sequence[Any], random: Random) -> Batches:
    batches: Batches = [[]]
    for batch in random_batches(rows, random):
        batches += [batch, []]
    return batches


REFERENCE: Final = Way("in one batch", whole)
WAYS: Final = (
    Way("in one batch, again", whole),
    Way("row by row", row_by_row),
    Way("in random batches", random_batches),
    Way("in random batches of objects", random_batches, as_objects=True),
    Way("with empty batches in between", with_empty_batches),
    Way("by another worker each epoch", random_batches, new_workers=True),
    Way("after two attempts that were given up", random_batches, given_up=True),
)
KEYED_WAYS: Final = (
    Way("with state written and read back after every row", row_by_row, overlay_limit_bytes=1),
    Way("with state written and read back after every batch", with_empty_batches, overlay_limit_bytes=1),
    Way("with folds between epochs", random_batches, folds=True),
    Way("with folds and state read back", random_batches, overlay_limit_bytes=1, folds=True, new_workers=True),
    Way("with a changing number of shards", random_batches, shards=(1, 3, 2), given_up=True),
    Way("with all keys on one hash", random_batches, one_hash=True),
)
