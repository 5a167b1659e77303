"""Rules and rows in the order of their time: a broadcast row that has a time takes effect at its time.

Rows of the keyed stream wait as in any step in order (`headrace.operators.ordered`). Broadcast rows wait too, in a
mapping that all shards share, and cut the epoch: what lies before a rule's time is handled for all keys, timers too,
then the rule, then the rest. Of one time the rule comes first; rules of one time come by the columns of the order and
then by their contents. A rule whose time has passed, or that has none, takes effect as its epoch begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.model.batch import Rows
from headrace.operators.broadcast import BROADCAST, BroadcastOperator
from headrace.operators.order_spec import WAITING_RULES
from headrace.operators.ordered import OrderedProcessOperator
from headrace.operators.ordering import order_alike
from headrace.state.cells import ABSENT
from headrace.state.fitting import declared_codec
from headrace.state.shard import WALL_DUE

if TYPE_CHECKING:
    from headrace.model.batch import Keys
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import TaskInfo
    from headrace.operators.order_spec import TimeOrder
    from headrace.state.broadcast import BroadcastTable
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState

_KEY: Final = tuple[int, int, int]
"""Time of a rule that waits, epoch in which it came, and its place among those that came then."""


class OrderedBroadcastOperator(OrderedProcessOperator, BroadcastOperator):
    """Runs ``on_broadcast`` and ``on_event`` by time."""

    def __init__(
        self, step: str, function: Any, decls: Sequence[StateDecl], taken: Sequence[RowCodec], codec: RowCodec,
        order: TimeOrder, *, key_type: Any = None,
    ) -> None:  # fmt: skip
        rows, rules = taken
        super().__init__(step, function, decls, (rows,), codec, order, key_type=key_type)
        self._rule_codec = rules
        self._stored_rule = declared_codec(rules.type, what="a broadcast row", where=f"step {step}")

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self._later: BroadcastTable = self.state.shared.table(WAITING_RULES, self._stored_rule, _KEY, self._kept)

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        kind = BroadcastOperator if port == BROADCAST else OrderedProcessOperator
        kind.process(self, port, rows, keys)

    def finish(self) -> Iterator[None]:
        reached = self.task.ends_at(self.step)
        self.waiting.end_input(reached)
        at_once, rules = self._sort_rules(reached)
        for rows in at_once:
            # No key's time is meant by the wall clock that stands for the time of a rule without.
            self._apply(rows, self.watermark)
            yield
        after_us = self.watermark
        for rows in _by_time(rules):
            assert rows.times is not None
            time_us = int(rows.times[0])
            yield from self.advance(after_us, time_us - 1)
            self._apply(rows, time_us - 1)
            after_us = time_us - 1
            yield
        yield from self.advance(after_us, reached)
        yield from self.fire(WALL_DUE)

    def _apply(self, rows: Rows, watermark_us: int) -> None:
        self.context.watermark = self.rules_context.watermark = watermark_us  # type: ignore[assignment]
        self._handle_broadcast(rows)

    def _sort_rules(self, reached_us: int) -> tuple[list[Rows], Rows]:
        """What takes effect at once, in the order in which it came, and what does by time; the rest waits."""
        waiting = self._later.keys()
        known = [key for key in waiting if key[0] <= reached_us]
        events, times = [self._later.find(key) for key in known], [key[0] for key in known]
        at_once: list[Rows] = []
        waits = Rows.of_objects(self._rule_codec, [], [])
        for rows in self._rules_in_order():
            if rows.times is None:
                at_once.append(rows)
                continue
            late = rows.times <= self.watermark
            due = ~late & (rows.times <= reached_us)
            at_once.append(rows.take(np.flatnonzero(late)))
            in_time = rows.take(np.flatnonzero(due))
            events += in_time.objects
            times += [] if in_time.times is None else in_time.times.tolist()
            waits = _joined(waits, rows.take(np.flatnonzero(~late & ~due)))
        self._keep(known, waits)
        rules = Rows.of_objects(self._rule_codec, events, times)
        return [rows for rows in at_once if len(rows)], rules.take(order_alike(rules, self.order))

    def _keep(self, gone: Sequence[Any], waits: Rows) -> None:
        """What waited and is due goes, and what came and is not stays; every shard does the same."""
        assert waits.times is not None
        self._later.writable = True
        for key in gone:
            self._later.put(key, ABSENT)
        order = order_alike(waits, self.order)
        for place, (at, event) in enumerate(
            zip(waits.times[order].tolist(), [waits.objects[i] for i in order.tolist()])
        ):
            self._later.put((at, self.task.epoch, place), event)
        self._later.writable = False
        if self._is_first:
            self._count_waiting(len(waits) - len(gone))


def _joined(first: Rows, second: Rows) -> Rows:
    assert first.times is not None and second.times is not None
    times = np.concatenate([first.times, second.times])
    return Rows.of_objects(first.codec, [*first.objects, *second.objects], times)


def _by_time(rows: Rows) -> Iterator[Rows]:
    """Rows that are sorted, those of one time together."""
    assert rows.times is not None
    starts = np.flatnonzero(np.diff(rows.times, prepend=rows.times[:1] - 1))
    for start, end in zip(starts, [*starts[1:], len(rows)]):
        yield rows.take(np.arange(start, end))
