"""Two streams to join, naive joins over all their rows, and epochs that hypothesis makes up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

import headrace as hr
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.pairs import pair_type
from headrace.testing.rig import EmittedRow, OperatorRig


class Left(hr.Record):
    key: str | None
    at: hr.Timestamp
    n: int


class Right(hr.Record):
    name: str | None
    at: hr.Timestamp
    text: str


Pair: Any = pair_type(Left, Right)


def left(key: str | None, at: int, n: int = 0) -> Left:
    return Left(key, hr.Timestamp(at), n)


def right(name: str | None, at: int, text: str = "") -> Right:
    return Right(name, hr.Timestamp(at), text)


KEYS = (lambda row: row.key, lambda row: row.name)
OUTLETS = ("unmatched_left", "unmatched_right", "late_left", "late_right")


def join_rig(operator: Any, **options: Any) -> OperatorRig:
    options.setdefault("outlets", OUTLETS)
    return OperatorRig(operator, (Left, Right), KEYS, **options)


class Epoch(NamedTuple):
    """Rows of both sides in one epoch, and the watermark at its end."""

    lefts: Sequence[Left]
    rights: Sequence[Right]
    watermark: int


@dataclass
class Expected:
    """What an epoch has to give, with times."""

    main: Counter[Any] = field(default_factory=Counter)
    sides: dict[str, Counter[Any]] = field(default_factory=lambda: {tag: Counter() for tag in OUTLETS})


def seen(rig: OperatorRig) -> Expected:
    """What an epoch gave."""
    found = Expected()
    found.main = Counter(_flat(rig.out.get("main", [])))
    for tag in OUTLETS:
        found.sides[tag] = Counter(_flat(rig.out.get(tag, [])))
    return found


def _flat(rows: Sequence[EmittedRow]) -> Iterator[Any]:
    return ((row.value, row.at) for row in rows)


# --- the interval join, from all rows


def naive_interval(epochs: Sequence[Epoch], low: int, high: int, how: str) -> list[Expected]:
    """Goes over all pairs of rows ever seen, epoch by epoch, by the letter of the rules."""
    lasts, hopes = (high, -low), (high + max(0, -low), -low + max(0, high))
    kept: tuple[list[list[Any]], list[list[Any]]] = ([], [])
    watermark = MIN_TIME
    found = []
    for epoch in epochs:
        expected = Expected()
        fresh: tuple[list[list[Any]], list[list[Any]]] = ([], [])
        for port, rows in enumerate((epoch.lefts, epoch.rights)):
            for row in rows:
                if watermark > MIN_TIME and row.at + hopes[port] <= watermark:
                    expected.sides[OUTLETS[2 + port]][row, row.at] += 1
                else:
                    fresh[port].append([row, False])
        alive = tuple([held for held in kept[port] if held[0].at + lasts[port] > watermark] for port in (0, 1))
        for mine in alive[0] + fresh[0]:
            for other in alive[1] + fresh[1]:
                is_new = any(mine is each for each in fresh[0]) or any(other is each for each in fresh[1])
                if is_new and _same(mine[0].key, other[0].name) and low <= other[0].at - mine[0].at <= high:
                    expected.main[Pair(mine[0], other[0]), max(mine[0].at, other[0].at)] += 1
                    mine[1] = other[1] = True
        reached = max(watermark, epoch.watermark)
        for port in (0, 1):
            still = []
            for held in alive[port] + fresh[port]:
                row, met = held
                nobody = KEYS[port](row) is None
                if row.at + lasts[port] > reached and not nobody:
                    still.append(held)
                elif not met:
                    _alone(expected, port, row, max(row.at, row.at + lasts[port]), how)
            kept[port][:] = still
        watermark = reached
        found.append(expected)
    return found


def _same(mine: str | None, other: str | None) -> bool:
    return mine is not None and mine == other


def _alone(expected: Expected, port: int, row: Any, at: int, how: str) -> None:
    expected.sides[OUTLETS[port]][row, at] += 1
    if how in (("left", "full"), ("right", "full"))[port]:
        expected.main[Pair(row, None) if port == 0 else Pair(None, row), at] += 1


# --- as of a time, from all rows


def naive_as_of(epochs: Sequence[Epoch], tolerance: int | None) -> list[Expected]:
    rights: list[Right] = []
    waiting: list[Left] = []
    watermark = MIN_TIME
    found = []
    for epoch in epochs:
        expected = Expected()
        for row in epoch.rights:
            if tolerance is not None and watermark > MIN_TIME and row.at + tolerance <= watermark:
                expected.sides["late_right"][row, row.at] += 1
            else:
                rights.append(row)
        for each in epoch.lefts:
            if watermark > MIN_TIME and each.at <= watermark:
                expected.sides["late_left"][each, each.at] += 1
            else:
                waiting.append(each)
        watermark = max(watermark, epoch.watermark)
        for each in waiting:
            if each.at <= watermark or each.key is None:
                held = _held(rights, each, tolerance)
                expected.main[Pair(each, held), each.at] += 1
                if held is None:
                    expected.sides["unmatched_left"][each, each.at] += 1
        waiting = [each for each in waiting if each.at > watermark and each.key is not None]
        found.append(expected)
    return found


def _held(rights: Sequence[Right], row: Left, tolerance: int | None) -> Right | None:
    """The newest at or before the row's time; of several of one time the last to come."""
    best: Right | None = None
    for each in rights:
        in_time = each.at <= row.at and (tolerance is None or each.at >= row.at - tolerance)
        if in_time and _same(row.key, each.name) and (best is None or each.at >= best.at):
            best = each
    return best


# --- without a limit, from all rows


def naive_all(epochs: Sequence[Epoch]) -> list[Expected]:
    old: tuple[list[Left], list[Right]] = ([], [])
    found = []
    for epoch in epochs:
        expected = Expected()
        everyone = (old[0] + list(epoch.lefts), old[1] + list(epoch.rights))
        for i, mine in enumerate(everyone[0]):
            for j, other in enumerate(everyone[1]):
                if (i >= len(old[0]) or j >= len(old[1])) and _same(mine.key, other.name):
                    expected.main[Pair(mine, other), max(mine.at, other.at)] += 1
        old = everyone
        found.append(expected)
    return found


def naive_latest(epochs: Sequence[Epoch], how: str) -> list[Expected]:
    newest: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    found = []
    for epoch in epochs:
        expected = Expected()
        changed: set[str] = set()
        for port, rows in enumerate((epoch.lefts, epoch.rights)):
            for row in rows:
                key = KEYS[port](row)
                if key is None:
                    if how in (("left", "full"), ("right", "full"))[port]:
                        expected.main[Pair(row, None) if port == 0 else Pair(None, row), row.at] += 1
                elif key not in newest[port] or row.at >= newest[port][key].at:
                    newest[port][key] = row
                    changed.add(key)
        for key in changed:
            pair = Pair(newest[0].get(key), newest[1].get(key))
            wanted = (pair.right is not None or how in ("left", "full")) and (
                pair.left is not None or how in ("right", "full")
            )
            if wanted:
                expected.main[pair, max(row.at for row in (pair.left, pair.right) if row is not None)] += 1
        found.append(expected)
    return found


# --- epochs that hypothesis makes up

HOWS = st.sampled_from(["inner", "left", "right", "full"])
_KEY = st.sampled_from(["a", "a", "b", "c", None])
_TIME = st.integers(-3, 30)


@st.composite
def epochs(draw: st.DrawFn) -> list[Epoch]:
    """A few epochs of rows around a watermark that moves on; the last one may end all time."""
    made: list[Epoch] = []
    number = 0
    watermark = draw(st.integers(-2, 5))
    for _ in range(draw(st.integers(1, 6))):
        sides: tuple[list[Left], list[Right]] = ([], [])
        for _ in range(draw(st.integers(0, 8))):
            key, at, number = draw(_KEY), draw(_TIME), number + 1
            if draw(st.booleans()):
                sides[0].append(left(key, at, number))
            else:
                sides[1].append(right(key, at, f"r{number}"))
        watermark += draw(st.integers(0, 8))
        made.append(Epoch(*sides, watermark))
    if draw(st.booleans()):
        made.append(Epoch([], [], MAX_TIME))
    return made


class Running(NamedTuple):
    """How an engine runs the epochs."""

    batch_rows: int
    """Rows of a batch."""
    spills: bool
    right_first: bool
    shards: tuple[int, ...]
    folds: bool
    gives_up: bool


RUNNING = st.builds(
    Running,
    batch_rows=st.integers(1, 9),
    spills=st.booleans(),
    right_first=st.booleans(),
    shards=st.sampled_from([(1,), (2,), (1, 3, 2)]),
    folds=st.booleans(),
    gives_up=st.booleans(),
)


def run(rig: OperatorRig, made: Sequence[Epoch], how: Running) -> Iterator[Expected]:
    """Runs epochs in some way and tells what each gave."""
    rig.overlay_limit_bytes = 1 if how.spills else rig.overlay_limit_bytes
    for number, epoch in enumerate(made):
        rig.parallelism = how.shards[number % len(how.shards)]
        ports = (1, 0) if how.right_first else (0, 1)
        batches = [batch for port in ports for batch in _cut(port, epoch[port], how.batch_rows)]
        if how.gives_up:
            rig.attempt(*batches, watermark=epoch.watermark)
            rig.attempt(*batches[: len(batches) // 2], finish=False)
        rig.epoch(*batches, watermark=epoch.watermark)
        yield seen(rig)
        if how.folds:
            rig.fold(newest=2 if number % 3 else None)


def _cut(port: int, rows: Sequence[Any], count: int) -> list[tuple[int, Sequence[Any]]]:
    return [(port, rows[start : start + count]) for start in range(0, len(rows), count)]
