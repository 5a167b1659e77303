"""Many rules followed through the rows of many keys at once.

For a batch of rows in key order every distinct condition is evaluated once, and each rule says in columns which rows
may begin a match of it, or matter for one that it has. Only these pairs of row and rule are handled one by one, row
after row, the rules of a row in the order of their ids. What a key keeps of a rule is an entry of its own, so a row
rewrites the rules that it moves, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import EpochFailed
from headrace.patterns.chains import read_runs, stored_runs
from headrace.patterns.follower import KeyHandles, moment_behind, same_runs, timer_at
from headrace.patterns.matcher import NEVER, KeyMatches, MatchEnd, PartialRun
from headrace.patterns.rules.rows import RuleEnd
from headrace.patterns.rules.rule import rule_name

if TYPE_CHECKING:
    from headrace.model.batch import Int64s, Rows
    from headrace.patterns.partial import PartialMatches
    from headrace.patterns.rules.book import RuleAtWork


class _Pick(NamedTuple):
    """A row that a rule has to be told of."""

    place: int
    rule: int
    """The rule, by its position."""
    bits: int
    starts: bool
    row: Any
    at: int


@dataclass
class _Key:
    """What is held for one key while it is handled."""

    by_rule: dict[str, KeyMatches] = field(default_factory=dict)
    former: dict[str, tuple[list[PartialRun], list[PartialRun]]] = field(default_factory=dict)
    """What was stored of each rule."""
    lost: set[str] = field(default_factory=set)
    """Rules of which something was stored that is no more."""
    deadline_us: int = NEVER

    def earliest(self, rules: Mapping[str, RuleAtWork]) -> int:
        """When the first partial match runs out of time."""
        ends = (rules[name].matcher.deadline(run) for name, mine in self.by_rule.items() for run in mine.runs)
        return min(ends, default=NEVER)

    def changed(self) -> Iterator[str]:
        """Rules whose partial matches are others than those that are stored."""
        for name, mine in self.by_rule.items():
            runs, complete = self.former.get(name, ([], []))
            if not (same_runs(runs, mine.runs) and same_runs(complete, mine.complete)):
                yield name


class RuleFollower:
    """The rules in force in one task."""

    def __init__(
        self, rules: Mapping[str, RuleAtWork], handles: KeyHandles, fail: Callable[[Exception, int], Exception]
    ) -> None:
        """``rules``: by id. ``fail`` makes of an error, and the slot of a key, the one that stops the task."""
        self.handles = handles
        self.matches: list[RuleEnd] = []
        self.timed_out: list[RuleEnd] = []
        self.dropped = 0
        """Partial matches that went because a key had too many."""
        self.forgotten = 0
        """Partial matches of rules that are out of force, and those that stood at a stage that is no more."""
        self._fail = fail
        self.put_in_force(rules)

    def put_in_force(self, rules: Mapping[str, RuleAtWork]) -> None:
        """From here on these rules count."""
        self._by_id = rules
        self._rules = list(rules.values())
        self._order = {name: number for number, name in enumerate(rules)}

    # --- rows

    def follow(self, rows: Rows, at: Int64s | int, slots: Sequence[int], bounds: Int64s, upto_us: int | None) -> None:
        """Rows in the order of their keys. ``bounds``: where those of each slot begin, and the end of the last.

        ``at``: the time of each row, or of all. ``upto_us``: how far time has come behind them; None: it does not tell.
        """
        held = [self._matches_of(slot) for slot in slots]
        picks = self._picks(rows, at, held, bounds)
        cuts = np.searchsorted(np.array([each.place for each in picks], np.int64), bounds).tolist()
        for slot, mine, first, end in zip(slots, held, cuts, cuts[1:]):
            if mine or first < end:
                self._key(slot, picks[first:end], upto_us, mine)

    def expire(self, slot: int, upto_us: int) -> None:
        """Time has come so far for a key, and it has no rows before that."""
        if held := self._matches_of(slot):
            self._key(slot, (), upto_us, held)

    def revise(self, slot: int, names: Set[str], moment_us: int) -> None:
        """These rules are others from a moment on, or out of force: what a key holds of them goes with them."""
        held = self._matches_of(slot)
        if not names.isdisjoint(held):
            self._key(slot, (), moment_us - 1, held, revised=names, not_before_us=moment_us)

    def _matches_of(self, slot: int) -> dict[str, PartialMatches[Any]]:
        partial: Any = self.handles.partial
        partial._slot = slot
        return dict(partial.items())

    def _picks(self, rows: Rows, at: Int64s | int, held: Sequence[Mapping[str, Any]], bounds: Int64s) -> list[_Pick]:
        """Which row which rule has to be told of, in the order in which they are handled."""
        owners = np.repeat(np.arange(len(held)), np.diff(bounds))
        holding: dict[str, list[int]] = {}
        for position, mine in enumerate(held):
            for name in mine:
                holding.setdefault(name, []).append(position)
        parts = []
        for number, (rule, plan, _) in enumerate(self._rules if len(rows) else ()):
            bits = plan.conditions.bits(rows)
            starts = plan.may_start(bits)
            live = np.zeros(len(held), np.bool_)
            live[owners[starts]] = True
            live[holding.get(rule.id, [])] = True
            if not live.any():
                continue
            relevant = plan.may_matter(bits)
            places = np.flatnonzero(live[owners] if relevant is None else live[owners] & relevant)
            parts.append((places, np.full(len(places), number), bits[places], starts[places]))
        if not parts:
            return []
        places, numbers, bits, starts = (np.concatenate(each) for each in zip(*parts))
        order = np.lexsort((numbers, places))
        distinct, codes = np.unique(places, return_inverse=True)
        events = rows.take(distinct).objects
        times = [at] * len(distinct) if isinstance(at, int) else at[distinct].tolist()
        picked = (each[order].tolist() for each in (places, numbers, bits, starts, codes))
        return [_Pick(place, number, bit, start, events[code], times[code])
                for place, number, bit, start, code in zip(*picked)]  # fmt: skip

    # --- one key

    def _key(
        self, slot: int, picks: Sequence[_Pick], upto_us: int | None, held: Mapping[str, PartialMatches[Any]],
        *, revised: Set[str] = frozenset(), not_before_us: int | None = None,
    ) -> None:  # fmt: skip
        self.handles.bind(slot)
        key = self._load(held)
        rule = None
        try:
            for pick in picks:
                if key.deadline_us <= pick.at:
                    self._expire(key, pick.at)
                rule = self._rules[pick.rule]
                mine = key.by_rule.get(rule.rule.id)
                if mine is None or not mine.runs:
                    if not pick.starts:
                        continue
                    if mine is None:
                        mine = key.by_rule[rule.rule.id] = KeyMatches()
                self._feed(key, rule, mine, pick)
            rule = None
            if upto_us is not None and key.deadline_us <= (behind_us := moment_behind(upto_us)):
                self._expire(key, behind_us, not_before_us)
        except Exception as error:
            raise self._failure(error, slot, rule) from error
        changed = {*key.changed(), *key.lost, *(revised & held.keys())}
        if changed:
            untils = [each.until for partial in held.values() for each in partial.matches if each.until is not None]
            fires_at = timer_at(min((int(each) for each in untils), default=NEVER))
            self._store(key, changed, held)
            self.handles.move(fires_at, timer_at(key.earliest(self._by_id)))

    def _feed(self, key: _Key, rule: RuleAtWork, mine: KeyMatches, pick: _Pick) -> None:
        dropped = rule.matcher.dropped
        ends = rule.matcher.feed(mine, pick.row, pick.at, pick.bits)
        self.dropped += rule.matcher.dropped - dropped
        self.matches += [RuleEnd(rule, each) for each in ends]
        key.deadline_us = min(key.deadline_us, mine.deadline_us)

    def _expire(self, key: _Key, upto_us: int, not_before_us: int | None = None) -> None:
        matches: list[RuleEnd] = []
        over: list[RuleEnd] = []
        for name in sorted(key.by_rule, key=self._order.__getitem__):
            rule, mine = self._by_id[name], key.by_rule[name]
            for ends, found in zip((matches, over), rule.matcher.expire(mine, upto_us)):
                ends += [RuleEnd(rule, _not_before(each, not_before_us)) for each in found]
        for ends, given in ((matches, self.matches), (over, self.timed_out)):
            ends.sort(key=lambda each: each.end_us)
            given += ends
        key.deadline_us = min((mine.deadline_us for mine in key.by_rule.values()), default=NEVER)

    def _failure(self, error: Exception, slot: int, rule: RuleAtWork | None) -> Exception:
        placed = self._fail(error, slot)
        if rule is not None and isinstance(placed, EpochFailed) and "rule " not in placed.where:
            placed.where = f"{placed.where}, {rule_name(rule.rule)}"
        return placed

    # --- what is stored

    def _load(self, held: Mapping[str, PartialMatches[Any]]) -> _Key:
        key = _Key()
        for name, partial in held.items():
            rule = self._by_id.get(name)
            if rule is None:
                self.forgotten += len(partial.matches)
                key.lost.add(name)
                continue
            mine, lost = read_runs(partial, rule.matcher)
            key.by_rule[name], key.former[name] = mine, (mine.runs, list(mine.complete))
            key.deadline_us = min(key.deadline_us, mine.deadline_us)
            if lost:
                self.forgotten += lost
                key.lost.add(name)
        return key

    def _store(self, key: _Key, changed: Set[str], held: Mapping[str, Any]) -> None:
        partial: Any = self.handles.partial
        for name in sorted(changed):
            mine = key.by_rule.get(name, KeyMatches())
            if mine.runs or mine.complete:
                partial[name] = stored_runs(mine, self._by_id[name].matcher)
            elif name in held:
                del partial[name]


def _not_before(end: MatchEnd, moment_us: int | None) -> MatchEnd:
    """What a changed rule ends does not end before the change."""
    return end if moment_us is None or end.end_us >= moment_us else end._replace(end_us=moment_us)
