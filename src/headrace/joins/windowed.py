"""Two streams in the same windows: the window join, and co-groups, whose function sees the rows of both sides.

Rows of both sides are put into one windowed step (`headrace.windows`), each as a pair that lacks the other
side; so windows, sessions, lateness and state are those of any window. Sessions are made of the rows of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.joins.buffered import OUTER, UNMATCHED
from headrace.joins.spec import How
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.pairs import PairCodec
from headrace.operators.contract import LATES
from headrace.windows.by_row.operator import WindowOperator
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from headrace.operators.contract import TaskInfo
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState
    from headrace.windows.context import WindowContext
    from headrace.windows.kinds import Assigner


class CoGroupOperator(WindowOperator):
    """Calls a function with the left and the right rows of each key and window."""

    def __init__(self, assigner: Assigner, function: Any, info: StepInfo) -> None:
        self.pairs = PairCodec(*info.taken)
        spec = WindowSpec(assigner, function=function)
        super().__init__(spec, replace(info, taken=(self.pairs,)))
        assert self.function is not None
        user = self.function.function
        user.on_window = SplitRows(user.on_window)

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        super().process(0, self._one_sided(port, rows), keys)

    def _one_sided(self, port: int, rows: Rows) -> Rows:
        fields = [list(kind) for kind in self.pairs.schema.types]
        columns = [
            # Spark writes its own zone on times, and other names on the elements of lists.
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(rows.columns, fields[port], strict=True)
        ]
        mine = pa.StructArray.from_arrays(columns, fields=fields[port])
        other = pa.nulls(len(rows), self.pairs.schema.types[1 - port])
        return Rows.of_columns(self.pairs, [mine, other] if port == 0 else [other, mine], rows.times)

    def give_late(self, rows: Rows, positions: Int64s) -> None:
        self.report.late += len(positions)
        for port, codec in enumerate((self.pairs.left, self.pairs.right)):
            outlet = self.outlets.get(LATES[port])
            if outlet is not None and len(positions):
                side = rows.columns[port]
                mine = positions[side.is_valid().to_numpy(zero_copy_only=False)[positions]]
                if len(mine):
                    columns = side.take(pa.array(mine)).flatten()
                    outlet(Rows.of_columns(codec, columns, None if rows.times is None else rows.times[mine]))


class SplitRows:
    """A function of both sides' rows, called with the rows of a window."""

    def __init__(self, fn: Callable[[list[Any], list[Any], Any], Any]) -> None:
        self.fn = fn
        # So that errors name the user's function, and know which frames are his.
        self.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.__func__ = getattr(fn, "__func__", fn)

    def __call__(self, rows: Sequence[Any], ctx: WindowContext[Any]) -> Iterable[Any] | None:
        lefts = [row.left for row in rows if row.left is not None]
        rights = [row.right for row in rows if row.right is not None]
        result: Iterable[Any] | None = self.fn(lefts, rights, ctx)
        return result


class PairUp:
    """Every pair of a window's rows, or each row alone where the other side has none."""

    def __init__(self, make: Callable[[Any, Any], Any]) -> None:
        self.make = make
        self.tells = (False, False)
        """By side: whether anybody wants to know of rows alone."""

    def on_window(self, lefts: list[Any], rights: list[Any], ctx: WindowContext[Any]) -> Iterator[Any]:
        make = self.make
        if lefts and rights and not _has_none(ctx.key):
            for left in lefts:
                for right in rights:
                    yield make(left, right)
            return
        if self.tells[0]:
            for left in lefts:
                yield make(left, None)
        if self.tells[1]:
            for right in rights:
                yield make(None, right)


class WindowJoinOperator(CoGroupOperator):
    """Every pair of rows of one key and window, and rows alone."""

    def __init__(self, assigner: Assigner, how: How, info: StepInfo) -> None:
        self.outer = OUTER[how]
        super().__init__(assigner, PairUp(PairCodec(*info.taken).type), info)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        assert self.function is not None
        self.function.function.tells = tuple(self.outer[port] or UNMATCHED[port] in self.outlets for port in (0, 1))
        super().begin(task, state)

    def emit(self, rows: Rows) -> None:
        """Parts rows that are alone: to those who read them, and to the pairs in an outer join."""
        objects = rows.objects
        kept = np.ones(len(objects), np.bool_)
        for port, codec in enumerate((self.pairs.left, self.pairs.right)):
            alone = [i for i, pair in enumerate(objects) if (pair.right, pair.left)[port] is None]
            outlet = self.outlets.get(UNMATCHED[port])
            if outlet is not None and alone:
                mine = [(objects[i].left, objects[i].right)[port] for i in alone]
                outlet(Rows.of_objects(codec, mine, None if rows.times is None else rows.times[alone]))
            if not self.outer[port]:
                kept[alone] = False
        super().emit(rows if kept.all() else rows.take(np.flatnonzero(kept)))


def _has_none(key: Any) -> bool:
    """A null key, or one with a part that is null, equals nothing."""
    return key is None or (isinstance(key, tuple) and None in key)
