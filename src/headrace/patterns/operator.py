"""The operators of a pattern: in the order of event time, and in that of the wall clock.

In event time rows wait until the watermark has passed them and come in the order of their time
(`headrace.operators.ordered`), so matches do not depend on where epochs end; a row that is late goes to ``late``. Rows
that cannot change anything do not even wait. By the wall clock rows count as they come, at the time of their epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import EpochFailed, HeadraceError
from headrace.model.batch import Rows
from headrace.model.key_text import key_phrase
from headrace.model.keys import decode_key
from headrace.operators.ordered import OrderedProcessOperator
from headrace.operators.process import ProcessOperator
from headrace.patterns.follower import KeyHandles, PatternFollower
from headrace.patterns.partial import DEADLINE, PARTIAL

if TYPE_CHECKING:
    from headrace.model.batch import Keys
    from headrace.model.report import StepReport
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import TaskInfo
    from headrace.operators.keyed import KeyedBatch
    from headrace.operators.order_spec import TimeOrder
    from headrace.operators.waiting import DueRows
    from headrace.patterns.plan import PatternPlan
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState

TIMED_OUT: Final = "timed_out"
"""Outlet of partial matches whose time is over."""


class PatternStates:
    """Stands where a process function stands: its states are the partial matches of a key."""

    def on_event(self, event: Any, context: Any) -> None:
        """Rows are followed many at a time; nobody calls this."""

    def on_timer(self, timer: Any, context: Any) -> None:
        """The operator asks what is due itself."""


class Following:
    """What all these operators share: a follower per task, and the ways out."""

    follower: Any

    def _open_follower(self, handles: KeyHandles) -> Any:
        """The follower of a task."""
        raise NotImplementedError

    def _match_rows(self, matches: Sequence[Any], *, over: bool = False) -> list[Any]:
        """Matches as rows. ``over``: these ran out of time."""
        raise NotImplementedError

    def begin(self: Any, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)  # type: ignore[misc]
        by_name = self.bound.by_name
        self.follower = self._open_follower(KeyHandles(by_name[PARTIAL], by_name[DEADLINE]))

    def _place_failure(self: Any, error: Exception, slot: int) -> Exception:
        """Says of an error of ours in which step and for which key it happened."""
        if not isinstance(error, HeadraceError):
            return error
        if isinstance(error, EpochFailed) and not error.where:
            key = decode_key(self.state.name(slot), self.key_type)
            error.where = f"step {self.step}, {key_phrase(key)}"
        return error

    def _give_matches(self: Any) -> None:
        follower = self.follower
        matches, over = follower.matches, follower.timed_out
        follower.matches, follower.timed_out = [], []
        if matches:
            self.emit(Rows.of_objects(self.codec, self._match_rows(matches), [match.end_us for match in matches]))
        outlet = self.outlets.get(TIMED_OUT)
        if over and outlet is not None:
            rows = self._match_rows(over, over=True)
            outlet(Rows.of_objects(self.codec, rows, [match.end_us for match in over]))

    def end(self: Any) -> StepReport:
        report: StepReport = super().end()  # type: ignore[misc]
        report.counters = self._counts()
        return report

    def _counts(self) -> dict[str, int]:
        counts = {"dropped_partial": self.follower.dropped, "forgotten_partial": self.follower.forgotten}
        return {name: count for name, count in counts.items() if count}


class _OnePattern(Following):
    """Follows one pattern, which the program states."""

    def __init__(self, plan: PatternPlan, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plan = plan

    def _open_follower(self: Any, handles: KeyHandles) -> PatternFollower:
        return PatternFollower(self.plan, self.step, handles, self._place_failure)

    def _match_rows(self, matches: Sequence[Any], *, over: bool = False) -> list[Any]:
        return self.plan.match_rows.rows(matches, over=over)


class FollowingByTime(OrderedProcessOperator):
    """Brings rows to a follower in the order of event time."""

    follower: Any

    def _give_matches(self) -> None:
        raise NotImplementedError

    def advance_group(self, due: DueRows, start: int, end: int, upto_us: int) -> Iterator[None]:
        hashes, keys = due.hashes[start:end], due.keys[start:end]
        alone = end - start == 1
        for piece in due.pieces(start, end, self._piece_rows):
            slots = self.state.enter(hashes, keys)
            bounds = np.searchsorted(piece.codes, np.arange(start, end + 1))
            # Of a key that comes in several pieces time goes on to the end behind the last of them only.
            self.follower.follow(piece.only, piece.times, slots.tolist(), bounds, None if alone else upto_us)
            self._count_waiting(-len(piece.codes))
            self._give_all(len(piece.codes))
            yield
        if alone:
            self.follower.expire(int(self.state.enter(hashes, keys)[0]), upto_us)
            self._give_all(0)

    def _give_all(self, rows: int) -> None:
        self._give_matches()
        super()._give_all(rows)


class FollowingAsTheyCome(ProcessOperator):
    """Brings rows to a follower in the order in which they come."""

    follower: Any

    def _give_matches(self) -> None:
        raise NotImplementedError

    def handle(self, port: int, batch: KeyedBatch) -> None:
        starts = batch.starts()
        slots = batch.slots[starts].tolist()
        bounds = np.append(starts, len(batch.slots))
        self.follower.follow(batch.rows, self.task.clock_us, slots, bounds, None)
        self._give_matches()

    def _call_timer(self, timer: Any, at_us: int, rows: list[Any], times: list[int]) -> None:
        self.follower.expire(timer._slot, self.task.clock_us)
        self._give_matches()


class PatternOperator(_OnePattern, FollowingByTime):
    """Follows a pattern in the order of event time."""

    def __init__(
        self, plan: Any, step: str, decls: Sequence[StateDecl], taken: Sequence[RowCodec], codec: RowCodec,
        order: TimeOrder, *, key_type: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(plan, step, PatternStates(), decls, taken, codec, order, key_type=key_type)

    def hold_all(self, port: int, rows: Rows, keys: Keys) -> None:
        """Keeps rows until their time, whatever they hold."""
        super().hold(port, rows, keys)

    def hold(self, port: int, rows: Rows, keys: Keys) -> None:
        relevant = self.plan.may_matter(self.plan.conditions.bits(rows))
        if relevant is not None and not relevant.all():
            some = np.flatnonzero(relevant)
            rows, keys = rows.take(some), keys.take(some)
        if len(rows):
            super().hold(port, rows, keys)


class WallPatternOperator(_OnePattern, FollowingAsTheyCome):
    """Follows a pattern in the order in which rows come."""

    def __init__(
        self, plan: PatternPlan, step: str, decls: Sequence[StateDecl], codec: RowCodec, *, key_type: Any = None
    ) -> None:
        super().__init__(plan, step, PatternStates(), decls, codec, key_type=key_type)
