"""How an aligned source plans its next epoch: as its reader says, unless it was told to wait.

Pure but for the reader: who waits comes in, and the position to write down goes out. A source that waits keeps its
position; where input is read to its end, the position must change all the same, because Spark takes one that does not
for that end. So it then counts how often it waited, in a field of the position that no reader ever sees.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from headrace.model.watermarks import WAITED, SourceHold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.connectors.source_contract import Offset, Split, SplitReader

_NOBODY = SourceHold()


def plan_next(
    reader: SplitReader, start: Offset, limit: int | None, hold: SourceHold | None, *, bounded: bool
) -> Offset:
    """The position up to which the next epoch reads. ``bounded``: the run ends with its input."""
    mine = plain_position(start)
    hold = hold or _NOBODY
    apart = reader.hold(frozenset(hold.splits))
    end = mine if hold.whole and not apart else reader.latest(mine, limit)
    if bounded and hold.splits and end == mine:
        return {**end, WAITED: start.get(WAITED, 0) + 1}
    return {**end, WAITED: start[WAITED]} if end == mine and WAITED in start else end


def plain_position(offset: Offset) -> Offset:
    """The position as its reader knows it."""
    return {name: value for name, value in offset.items() if name != WAITED}


def whole_splits(splits: Iterable[Split]) -> list[tuple[Split, ...]]:
    """The slices of each split together, in their order: for those who have to see all its rows in one task."""
    ordered = sorted(splits, key=lambda split: split.id)
    return [tuple(slices) for _, slices in groupby(ordered, key=lambda split: split.id)]
