"""What differs between two epochs: of one store, of two savepoints, of two stores. `hr.diff`.

Both sides are read as anybody reads them, so what counts is what a reader sees: how many shards wrote it, which runs
were folded, and what an aggregate is made of make no difference. A state that had another name on one side (`was`) is
held against the one that it became, and values of an older type as rules make them of the newer one. What a key is on
either side is compared as a whole, entries, windows and all; windows that lie in an archive alone are not.

Keys come by the hash of their bytes, state by state, and memory is bounded by a stretch of them
(`headrace.read.unshared`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa

from headrace.errors import StoreError
from headrace.model.keys import hash_key
from headrace.read.changes import ABSENT, parts_changed
from headrace.read.columns import json_text, polars_frame
from headrace.read.pairs import StatePair, derive_pairs, open_side, shown_difference
from headrace.read.store import Store

if TYPE_CHECKING:
    import polars as pl

Change = Literal["added", "removed", "changed"]
Tell = Callable[[int, int], None]
"""Called with how many rows were looked at, and of how many."""

BATCH_ROWS: Final = 16_384
SCHEMA: Final = pa.schema([(name, pa.string()) for name in ("state", "key", "change", "part", "before", "after")])
"""A row for each part of a key that differs; keys as people write them, values as JSON."""


class StateDiff(NamedTuple):
    """How many keys of a state differ."""

    address: str
    """``step`` or ``step.state``, as the second side calls it, or the first where only that has it."""
    kind: str
    added: int
    removed: int
    changed: int
    was: str = ""
    """What the first side calls it, where that is another name."""
    only: Literal["", "first", "second"] = ""
    """The side that alone keeps the state."""
    note: str = ""
    """What is to be said of values of an older type that cannot be read as the newer one."""

    @property
    def same(self) -> bool:
        return not (self.added or self.removed or self.changed)


class KeyDiff(NamedTuple):
    """A key that differs."""

    address: str
    key: Any
    change: Change
    before: Any
    """What the first side has of it, as plain Python: of windows all of them; None: nothing."""
    after: Any
    """The same of the second side."""


class StoreDiff:
    """The difference of two epochs. Made by `hr.diff`; nothing is compared before it is asked for."""

    def __init__(self, pairs: list[StatePair], epochs: tuple[int, int], tell: Tell | None = None) -> None:
        self.pairs = pairs
        self.epochs = epochs
        """Of the first and the second side."""
        self._tell = tell
        self._states: list[StateDiff] | None = None

    def __repr__(self) -> str:
        return f"StoreDiff(epoch {self.epochs[0]} to {self.epochs[1]}, {len(self.pairs)} states)"

    @property
    def states(self) -> list[StateDiff]:
        """Every state with how many of its keys differ, also those where none does."""
        if self._states is None:
            for _ in self.walk():
                pass
        assert self._states is not None
        return self._states

    @property
    def same(self) -> bool:
        """Whether both sides say the same of every key."""
        return all(state.same for state in self.states)

    def __iter__(self) -> Iterator[KeyDiff]:
        """Every key that differs, with its values, one after the other: there may be any number of them."""
        for pair, key, before, after in self.walk():
            yield KeyDiff(pair.shown.address, pair.shown.decoded(key), change_of(before, after), before, after)

    def to_polars(self) -> pl.DataFrame:
        """A row for each part of a key that differs: ``state``, ``key``, ``change``, ``part``, ``before``, ``after``.

        A part is an entry of a map, a window, a field of a row or the place of an element; keys are as people write
        them, values JSON.
        """
        return polars_frame(pa.Table.from_batches(self.batches(), SCHEMA))

    # --- for tools

    def walk(self, behind: tuple[str, int] | None = None) -> Iterator[tuple[StatePair, bytes, Any, Any]]:
        """State, stored key and both values of every key that differs; counts them when it comes to the end.

        ``behind``: a state's address and a hash, where a walk before ended; what is counted then is not all.
        """
        total = sum(stretch.rows for pair in self.pairs for stretch in pair.stretches)
        done, states = 0, []
        skipping = behind is not None
        for pair in self.pairs:
            counts: Counter[Change] = Counter()
            here = skipping and behind is not None and pair.shown.address == behind[0]
            after_hash = behind[1] if here and behind is not None else -1
            skipping = skipping and not here
            for stretch in pair.stretches:
                if not (skipping or (here and stretch.high <= after_hash)):
                    for key, before, after in pair.differences(stretch, after_hash):
                        counts[change_of(before, after)] += 1
                        yield pair, key, before, after
                done += stretch.rows
                if self._tell is not None:
                    self._tell(done, total)
            states.append(_state_diff(pair, counts))
        if behind is None:
            self._states = states

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same as `to_polars`, piece by piece."""
        rows = (row for pair, *difference in self.walk() for row in rows_of(pair, *difference))
        while part := list(islice(rows, BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(part, SCHEMA)


def diff(
    first: Store | str | os.PathLike[str],
    second: Store | str | os.PathLike[str],
    *,
    state: str | None = None,
    tell: Tell | None = None,
) -> StoreDiff:
    """What differs between two epochs, each a store or its address: ``./state@41``, ``./state@before-v2``.

    ``state``: only this one, ``step.state``, or all of a step. ``tell`` hears how many rows were looked at, and of how
    many.

    >>> found = hr.diff("./state@41", "./state@57")                      # doctest: +SKIP
    >>> [(state.address, state.changed) for state in found.states]       # doctest: +SKIP
    [('watch.spent', 17)]
    >>> next(iter(found))                                               # doctest: +SKIP
    KeyDiff(address='watch.spent', key='card-7', change='changed', before=400, after=1200)
    """
    sides = [open_side(each if isinstance(each, Store) else Store(each)) for each in (first, second)]
    pairs = derive_pairs(*sides)
    wanted = [pair for pair in pairs if state is None or _is_of(pair, state)]
    if state is not None and not wanted:
        raise StoreError(
            f"no step keeps a state {state!r} on either side",
            expected=" or ".join(pair.shown.address for pair in pairs) or "a state; neither side keeps any",
            found=state,
            next_move="`headrace state STORE` lists steps and states",
        )
    return StoreDiff(wanted, (sides[0].state.epoch, sides[1].state.epoch), tell)


def change_of(before: Any, after: Any) -> Change:
    return "added" if before is None else "removed" if after is None else "changed"


def _is_of(pair: StatePair, state: str) -> bool:
    addresses = {each.address for each in (pair.first, pair.second) if each is not None}
    return any(state in (address, address.partition(".")[0]) for address in addresses)


# --- what was found


def _state_diff(pair: StatePair, counts: Counter[Change]) -> StateDiff:
    first, second = pair.first, pair.second
    was = first.address if first is not None and second is not None and first.address != second.address else ""
    return StateDiff(
        pair.shown.address, pair.shown.kind, counts["added"], counts["removed"], counts["changed"], was,
        "second" if first is None else "first" if second is None else "", pair.note,
    )  # fmt: skip


def rows_of(pair: StatePair, key: bytes, before: Any, after: Any) -> Iterator[dict[str, str | None]]:
    head = {"state": pair.shown.address, "key": pair.shown.text(key), "change": change_of(before, after)}
    for name, was, now in parts_changed(pair.shown.kind, *shown_difference(pair, before, after)):
        part = None if name is None else name if isinstance(name, str) else json_text(name)
        yield {**head, "part": part, "before": _json(was), "after": _json(now)}


def _json(value: Any) -> str | None:
    return None if value is ABSENT else json_text(value)


def cursor_of(pair: StatePair, key: bytes) -> tuple[str, int]:
    """Where a walk goes on behind a key."""
    return pair.shown.address, hash_key(key)
