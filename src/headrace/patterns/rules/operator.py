"""The operators of rules: patterns come as broadcast rows, and rows of keys are followed through all that are in force.

By event time a rule takes effect at its time, before the rows of that time (`headrace.operators.ordered_broadcast`);
one without a time, or whose time has passed, as its epoch begins. Rows wait for the watermark whatever they hold: which
rules will be in force at their time is not known before. By the wall clock rules of an epoch come before its rows.

A new rule costs nothing but itself. For one that changes or goes, all keys with partial matches are gone over: what
stands at a stage that the new pattern still has goes on, all else is forgotten and counted.

The rules in force are a mapping that all shards share and come to alike: what a rule does depends on it and on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import ProgramError
from headrace.operators.broadcast import BroadcastOperator
from headrace.operators.ordered_broadcast import OrderedBroadcastOperator
from headrace.patterns.follower import KeyHandles, moment_behind
from headrace.patterns.operator import Following, FollowingAsTheyCome, FollowingByTime, PatternStates
from headrace.patterns.partial import PARTIAL
from headrace.patterns.rules.book import RuleBook
from headrace.patterns.rules.follower import RuleFollower
from headrace.patterns.rules.rows import RuleEnd, rule_match_rows
from headrace.patterns.rules.rule import PatternRule, bad_rule, decide_change
from headrace.state.cells import ABSENT

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.report import StepReport
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import TaskInfo
    from headrace.operators.order_spec import TimeOrder
    from headrace.patterns.rules.spec import RuleLimits
    from headrace.state.broadcast import BroadcastTable
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState


class RuleStates(PatternStates):
    """Stands where a process function stands: its states are the rules, and the partial matches of a key."""

    def on_broadcast(self, event: PatternRule, context: Any) -> None:
        """The operator puts rules in force itself."""


class _FollowingRules(Following, BroadcastOperator):
    """What both operators share: rules that come and go."""

    follower: RuleFollower
    by_time = False
    """Whether rules come with their times."""

    def open_book(self, codec: RowCodec, limits: RuleLimits) -> None:
        """``codec``: of the rows that are followed."""
        self.book = RuleBook(self.step, codec, limits)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        self._outdated = 0
        super().begin(task, state)

    def _open_follower(self, handles: KeyHandles) -> RuleFollower:
        return RuleFollower(self._rules_in_force(), handles, self._place_failure)

    def _match_rows(self, matches: Sequence[RuleEnd], *, over: bool = False) -> list[Any]:
        return rule_match_rows(self.codec.type, matches, over=over)

    @property
    def _table(self) -> BroadcastTable:
        (table,) = self._tables
        return table

    def _rules_in_force(self) -> dict[str, Any]:
        table = self._table
        try:
            return self.book.in_force(map(table.find, table.keys()))
        except ProgramError as error:
            # The rows have changed since the rule came.
            raise bad_rule(error, self.step) from error

    # --- rules come

    def _handle_broadcast(self, rows: Rows) -> None:
        ats = [self.task.clock_us] * len(rows) if rows.times is None else rows.times.tolist()
        revised: set[str] = set()
        for rule, at in zip(rows.objects, ats):
            if self._take_rule(rule, at):
                revised.add(rule.id)
        self.give_failed()
        self.follower.put_in_force(self._rules_in_force())
        if revised:
            self._revise(revised)

    def _take_rule(self, row: PatternRule, at: int) -> bool:
        """Whether it replaces one that was in force."""
        # A row may have more columns, which are no matter of the rule.
        rule = PatternRule(row.id, row.pattern, row.version, row.at, row.active)
        known = self._table.find(rule.id)
        try:
            change = decide_change(rule, None if known is ABSENT else known, by_time=self.by_time)
            if change is not None and change.rule is not None:
                self.book.check(rule)
        except ProgramError as error:
            if not self.keeps_errors:
                raise bad_rule(error, self.step) from error
            if self._is_first:
                self.keep_failed(error, self.function.on_broadcast, row, at)
            return False
        if change is None:
            self._outdated += self._is_first and known is not ABSENT and 0 < rule.version < known.version
            return False
        self._set_writable(True)
        self._table.put(rule.id, ABSENT if change.rule is None else change.rule)
        self._set_writable(False)
        return change.replaces

    def _revise(self, names: set[str]) -> None:
        """Goes over all keys that hold partial matches: those of these rules have other patterns now, or none."""
        moment_us = moment_behind(int(self.rules_context.watermark)) if self.in_order else self.task.clock_us
        for hashes, keys in self.state.keys_with(self._columns[PARTIAL]):
            slots = self.state.enter(hashes, keys)
            for slot in slots.tolist():
                self.follower.revise(slot, names, moment_us)
            self._give_matches()
            self.state.relieve(len(slots))

    def end(self) -> StepReport:
        report = super().end()
        if self._outdated:
            report.counters["outdated_rules"] = self._outdated
        return report


class RuleOperator(_FollowingRules, FollowingByTime, OrderedBroadcastOperator):
    """Follows rules in the order of event time."""

    def __init__(
        self, limits: RuleLimits, step: str, decls: Sequence[StateDecl], taken: Sequence[RowCodec], codec: RowCodec,
        order: TimeOrder, *, key_type: Any = None, by_time: bool = True,
    ) -> None:  # fmt: skip
        """``by_time``: whether the stream of rules has times."""
        super().__init__(step, RuleStates(), decls, taken, codec, order, key_type=key_type)
        self.by_time = by_time
        self.open_book(taken[0], limits)


class WallRuleOperator(_FollowingRules, FollowingAsTheyCome, BroadcastOperator):
    """Follows rules in the order in which rows come."""

    def __init__(
        self, limits: RuleLimits, step: str, decls: Sequence[StateDecl], taken: Sequence[RowCodec], codec: RowCodec, *,
        key_type: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(step, RuleStates(), decls, codec, key_type=key_type)
        self.open_book(taken[0], limits)
