"""When the next epoch begins, where epochs are adaptive: decided from what the last ones cost.

An epoch has a cost of its own, c, whatever it reads, and work for its rows, which grows with the time since the epoch
before: with a period T between two beginnings it is r·T, and the whole epoch takes c + r·T. So

- the share of what epochs cost by themselves is c / T, and at most ``spend`` where T ≥ c / spend;
- epochs keep up with the input where T ≥ c / (1 − r); with r ≥ 1 nothing keeps up;
- a row that came right behind a beginning is out after T + c + r·T, so the latency L holds where T ≤ (L − c) / (1 + r).

The shortest T that satisfies the first two is taken, and no longer one than the third allows: latency wins over spend.
Costs are smoothed over a few epochs, and of the latency some is left for epochs that take longer: the more, the more
their costs differ. While a source is behind there is no pause at all: its rows are late already, and epochs are longer
by themselves, as more rows wait for each.

What this module deliberately does not do: wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace.errors import SettingsError
from headrace.model.amounts import count_of
from headrace.model.pace import Adaptive, EpochCost, percent_text
from headrace.model.time import format_span
from headrace.state.manifest import Manifest, TaskStats

log = logging.getLogger("headrace.pacing")

ASSUMED_FLOOR_US: Final = 100_000
"""What an epoch of a small job costs by itself where nothing was measured yet: most of it is Spark's."""
MEASURED_AT_LEAST: Final = 3
"""So many epochs have to be measured before they count for more than the assumption."""
NEWEST_WEIGHT: Final = 0.3
"""Of the newest epoch, in what is smoothed over several."""
HEADROOM: Final = 0.95
"""Of the latency: the rest is for what nobody measures."""
SPREADS: Final = 2.0
"""So many times what the costs of epochs differ by is left for those that take longer."""
_PATIENCE_EPOCHS: Final = 3
"""A latency is broken, and holds again, after so many epochs in a row."""
_IDLE_US: Final = 250_000
"""When an epoch begins so much later than it might have, there was nothing to read before."""
_ROUND_US: Final = 1_000


class Load(NamedTuple):
    """What epochs cost at the moment."""

    own_us: float
    rate: float
    """Work per time: at 1 and beyond the input comes faster than it is handled."""
    spread_us: float = 0.0
    """What the own costs differ by, from epoch to epoch."""


class PeriodPlan(NamedTuple):
    """From the beginning of one epoch to that of the next."""

    period_us: int
    late: bool = False
    """Whether no period holds the latency."""


def derive_cost(own_and_work_us: int, tasks: Sequence[TaskStats], period_us: int) -> EpochCost:
    """``own_and_work_us``: the whole epoch, from its planning to its release."""
    work_us = min(derive_work_us(tasks), own_and_work_us)
    return EpochCost(own_and_work_us - work_us, work_us, period_us)


def derive_work_us(tasks: Iterable[TaskStats]) -> int:
    """What rows cost: levels wait for each other, tasks of a level run side by side.

    What stands before the first exchange waits for its source, which is reading; behind it, for the level before.
    """
    longest: dict[int, int] = {}
    for task in tasks:
        laps = task.times_us
        work_us = laps.get("process", 0) + laps.get("fire", 0) + (laps.get("wait", 0) if task.level == 0 else 0)
        longest[task.level] = max(work_us, longest.get(task.level, 0))
    return sum(longest.values())


def derive_load(before: Load | None, cost: EpochCost, since_us: int) -> Load:
    """``since_us``: from the beginning of the epoch before to that of this one, in which its rows came."""
    rate = cost.work_us / max(1, since_us)
    if before is None:
        return Load(cost.own_us, rate)
    return Load(
        _smooth(before.own_us, cost.own_us),
        _smooth(before.rate, rate),
        _smooth(before.spread_us, abs(cost.own_us - before.own_us)),
    )


def _smooth(before: float, newest: float) -> float:
    return before + NEWEST_WEIGHT * (newest - before)


def decide_period(policy: Adaptive, load: Load) -> PeriodPlan:
    """How long from the beginning of one epoch to that of the next.

    >>> decide_period(Adaptive(1_000_000, 0.2), Load(100_000, 0.1))
    PeriodPlan(period_us=500000, late=False)
    >>> decide_period(Adaptive(1_000_000, 0.2), Load(300_000, 0.1))
    PeriodPlan(period_us=590909, late=False)
    """
    most_us = (policy.latency_us * HEADROOM - load.own_us - SPREADS * load.spread_us) / (1 + load.rate)
    if load.rate >= 1 or load.own_us / (1 - load.rate) + policy.min_pause_us > most_us:
        # Whatever is done, rows wait longer: then the least is to go on at once.
        return PeriodPlan(0, late=True)
    return PeriodPlan(int(min(load.own_us / policy.spend, most_us)))


def decide_pause_us(policy: Adaptive, plan: PeriodPlan, took_us: int, *, behind: bool) -> int:
    """How long nothing is done behind an epoch that took so long."""
    return max(policy.min_pause_us, 0 if behind else plan.period_us - took_us)


def check_floor(policy: Adaptive, measured: Sequence[EpochCost]) -> None:
    """Refuses a policy that cannot be held even where nothing comes: epochs cost more than it allows."""
    costs = [cost.own_us for cost in measured]
    known = len(costs) >= MEASURED_AT_LEAST
    floor_us = min(costs) if known else ASSUMED_FLOOR_US
    share = floor_us / policy.latency_us
    if share <= policy.spend:
        return
    least_us = -(-int(floor_us / policy.spend) // _ROUND_US) * _ROUND_US
    how = f"as the last {count_of(len(costs), 'epoch')} of this store did" if known else "as is assumed of a small job"
    more = f"at least {format_span(least_us)}" + ("" if share >= 1 else f", or spend={percent_text(share)}")
    raise SettingsError(
        "epochs cost more by themselves than this policy allows",
        where=f"epoch = {policy}",
        expected=f"latency of {more}",
        found=f"an epoch costs {format_span(floor_us // _ROUND_US * _ROUND_US)} by itself, {how}: "
        f"{percent_text(share)} of the latency",
        next_move='allow more latency, or more to be spent; or take a fixed interval, epoch="500ms"',
    )


class Pacer:
    """Follows the epochs of a run. Times are microseconds of a clock that does not go back."""

    def __init__(self, policy: Adaptive | None) -> None:
        """``policy``: None where epochs begin at a fixed interval, and are only measured."""
        self.note = ""
        """What a person should know: that the latency is broken, and by what. Read by other threads."""
        self._policy = policy
        self._load: Load | None = None
        self._began_us: int | None = None
        self._expected_us = 0
        """When the next epoch begins, if there is something to read by then."""
        self._since_us = 0
        self._waited_us = 0
        self._last: EpochCost | None = None
        self._late_epochs = 0
        """Below zero: so many in a row were in time."""

    def begin(self, at_us: int) -> EpochCost | None:
        """An epoch begins: answers what the one before it cost, until now; None for the first."""
        first = self._began_us is None
        self._since_us = 0 if self._began_us is None else max(1, at_us - self._began_us)
        self._began_us = at_us
        # Behind a silence the oldest row of the epoch came only now.
        silent = first or at_us - self._expected_us > _IDLE_US
        self._waited_us = 0 if silent else self._since_us
        last, self._last = self._last, None
        return None if last is None else EpochCost(last.own_us, last.work_us, self._since_us)

    def end(self, at_us: int, manifest: Manifest) -> int:
        """An epoch is released: answers how long to wait before the next is asked for."""
        assert self._began_us is not None
        took_us = max(0, at_us - self._began_us)
        self._last = cost = derive_cost(took_us, manifest.tasks, took_us)
        pause_us = 0 if self._policy is None else self._plan(self._policy, manifest, cost, took_us)
        self._expected_us = at_us + pause_us
        return pause_us

    def _plan(self, policy: Adaptive, manifest: Manifest, cost: EpochCost, took_us: int) -> int:
        self._load = derive_load(self._load, cost, self._since_us or took_us)
        behind = any(each.done is not None and each.left for each in manifest.behind.values())
        self._judge(policy, manifest, cost, behind=behind)
        return decide_pause_us(policy, decide_period(policy, self._load), took_us, behind=behind)

    def _judge(self, policy: Adaptive, manifest: Manifest, cost: EpochCost, *, behind: bool) -> None:
        """Says once when rows wait longer than they may, and once when they do not any more."""
        late = behind or self._waited_us + cost.own_us + cost.work_us > policy.latency_us
        self._late_epochs = max(0, self._late_epochs) + 1 if late else min(0, self._late_epochs) - 1
        if self._late_epochs >= _PATIENCE_EPOCHS:
            note = f"rows wait longer than latency={format_span(policy.latency_us)}: {_reason(manifest, cost, behind)}"
            if not self.note:
                log.warning("%s", note)
            self.note = note
        elif self._late_epochs <= -_PATIENCE_EPOCHS and self.note:
            self.note = ""
            log.warning("rows are out within latency=%s again", format_span(policy.latency_us))


def _reason(manifest: Manifest, cost: EpochCost, behind: bool) -> str:
    """The largest part of what an epoch takes."""
    if behind:
        return "the job is catching up with its input"
    took = f"an epoch takes {_short(cost.own_us + cost.work_us)}"
    # What is known of releases is that of the epoch before.
    slow = max(manifest.released_us, key=lambda output: manifest.released_us[output], default="")
    if slow and manifest.released_us[slow] > max(cost.work_us, cost.own_us // 2):
        return f"{took}, {_short(manifest.released_us[slow])} of it to release the output {slow}"
    if cost.work_us > cost.own_us:
        return f"{took}, {_short(cost.work_us)} of it for its rows: there are more than are handled in that time"
    return f"{took}, {_short(cost.own_us)} of it whatever it reads"


def _short(span_us: int) -> str:
    return format_span(max(_ROUND_US, span_us // _ROUND_US * _ROUND_US))
