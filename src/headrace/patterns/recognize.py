"""The step of a row pattern of SQL: its plan, how it goes through the rows of many keys, and its operator.

Everything around it is that of patterns (`headrace.patterns.operator`): rows come in the order of their time, the
conditions that rows answer alone are columns, and keys whose rows begin nothing are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from headrace.model.batch import Rows
from headrace.model.ids import MAX_TIME
from headrace.model.record import row_type
from headrace.model.time import Timestamp
from headrace.operators.order_spec import TimeOrder
from headrace.operators.spec import StepInfo, StepSpec, StoredType
from headrace.patterns.checks import MATCH
from headrace.patterns.define import EVERY_ROW, Definitions, RowTextReader
from headrace.patterns.follower import KeyHandles
from headrace.patterns.matcher import Link, links_of
from headrace.patterns.operator import PatternOperator
from headrace.patterns.partial import DEADLINE, PARTIAL, ROWS
from headrace.patterns.recognizer import KeptRow, KeyRows, Recognizer, RecognizerRules, RowMatch, variables_of
from headrace.patterns.row_pattern import RowProgram
from headrace.patterns.rows import MatchFacts
from headrace.state.handles import StateDecl

if TYPE_CHECKING:
    from headrace.model.batch import Int64s, Keys
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator

_MADE: Final = ("match_type",)


class RecognizedRows(msgspec.Struct, frozen=True):
    """What is kept of a key beside its rows: where looking for a match stands."""

    first: int
    """Number of the first row that is kept."""
    start: int
    """Number of the row from which a match is looked for."""
    times: list[Timestamp]
    """Of the rows that are kept."""
    matches: int = 0


@dataclass(frozen=True)
class RowPatternPlan:
    """A row pattern over rows of one type."""

    text: str
    program: RowProgram
    definitions: Definitions
    rules: RecognizerRules
    codec: RowCodec
    every_row: bool = False
    """Whether each row of a match gives a row, with what had matched by then."""
    numbered: bool = False
    """Whether somebody asks for the number of a match, which then has to be kept for ever."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _MADE}

    @cached_property
    def match_type(self) -> Any:
        names = dict.fromkeys((*self.program.variables, EVERY_ROW), list[self.codec.type])  # type: ignore[name-defined]
        return row_type("RowMatch", {**names, MATCH: MatchFacts})

    def may_start(self, bits: Any) -> Any:
        """Rows that may begin a match, as far as columns tell."""
        mask = self.definitions.conditions.column_mask
        fits = np.zeros(len(bits), np.bool_)
        for each in self.program.reached[0]:
            wanted = np.uint64(self.definitions.masks[self.program.instructions[each].variable] & mask)
            fits |= (bits & wanted) == wanted
        return fits


@dataclass(frozen=True)
class RowPatternSpec(StepSpec):
    """``MATCH_RECOGNIZE`` over a keyed stream."""

    plan: RowPatternPlan
    order: TimeOrder

    @property
    def uses_watermark(self) -> bool:
        return True

    @property
    def in_time_order(self) -> bool:
        return True

    def build(self, info: StepInfo) -> Operator:
        return RecognizeOperator(
            self.plan, info.step, info.decls, info.taken, info.codec, self.order, key_type=info.key_type
        )

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return self.order.stored(info.taken)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {**self.order.rules(), "pattern": self.plan.text}

    def tell(self) -> tuple[str, ...]:
        return (f"rows that match {self.plan.text}", *self.order.tell())


def recognizing_states(row: Any) -> tuple[StateDecl, ...]:
    """What a row pattern over rows of this type keeps by key."""
    return (
        StateDecl(PARTIAL, "value", (RecognizedRows,)),
        StateDecl(ROWS, "map", (int, row)),
        StateDecl(DEADLINE, "timer"),
    )


class RowFollower:
    """One row pattern in one task."""

    def __init__(self, plan: RowPatternPlan, handles: KeyHandles, fail: Callable[[Exception, int], Exception]) -> None:
        self.plan = plan
        self.handles = handles
        self.found: list[RowMatch] = []
        self._fail = fail
        definitions, variables = plan.definitions, plan.program.variables
        column_mask = definitions.conditions.column_mask
        self._wanted = [mask & column_mask for mask in definitions.masks]
        self._texts: list[list[RowTextReader]] = [[] for _ in variables]
        for over, (_, variable) in zip(definitions.texts, definitions.owners, strict=True):
            self._texts[variable].append(RowTextReader(over, variable, variables, plan.codec))
        self._recognizer = Recognizer(plan.program, plan.rules, self._holds, by_row=definitions.by_row)

    def _holds(self, variable: int, place: int, link: Link | None, key: KeyRows) -> bool:
        wanted = self._wanted[variable]
        if key.rows[place].bits & wanted != wanted:
            return False
        return all(text.holds(place, link, key) for text in self._texts[variable])

    def follow(self, rows: Rows, at: Int64s, slots: Sequence[int], bounds: Int64s, upto_us: int | None) -> None:
        """As `headrace.patterns.follower.PatternFollower.follow`."""
        plan = self.plan
        bits = plan.definitions.conditions.bits(rows)
        starts = plan.may_start(bits)
        events = rows.objects
        times, some_bits, may_start = at.tolist(), bits.tolist(), starts.tolist()
        cuts = bounds.tolist()
        kept = self._load_all(slots)
        for slot, first, end in zip(slots, cuts, cuts[1:]):
            key = kept.get(slot)
            if key is None and not self.plan.rules.history:
                # Nothing is kept, and nothing begins before the first row that may.
                first = next((place for place in range(first, end) if may_start[place]), end)
                if first == end:
                    continue
            mine = zip(events[first:end], times[first:end], some_bits[first:end], may_start[first:end])
            self._key(slot, key, mine, upto_us)

    def expire(self, slot: int, upto_us: int) -> None:
        """As `headrace.patterns.follower.PatternFollower.expire`."""
        kept = self._load_all([slot])
        if kept:
            self._key(slot, kept[slot], iter(()), upto_us)

    def _key(
        self, slot: int, kept: KeyRows | None, rows: Iterator[tuple[Any, int, int, bool]], upto_us: int | None
    ) -> None:
        self.handles.bind(slot)
        stored = None if kept is None else self.handles.partial.get()
        key = KeyRows() if kept is None else kept
        recognizer, history = self._recognizer, self.plan.rules.history
        deadline = recognizer.deadline(key)
        try:
            for row, at, bits, starts in rows:
                if deadline <= at:
                    self.found += recognizer.expire(key, at)
                if not key.rows:
                    if not starts and not history:
                        continue
                    key.start = key.next_row = 0
                self.found += recognizer.feed(key, row, at, bits)
                deadline = recognizer.deadline(key)
            if upto_us is not None and deadline <= upto_us:
                self.found += recognizer.expire(key, upto_us)
        except Exception as error:
            raise self._fail(error, slot) from error
        self._store(key, stored)

    def _load_all(self, slots: Sequence[int]) -> dict[int, KeyRows]:
        """What is kept of these keys; conditions are asked for the rows of all of them at once."""
        handles, events, found = self.handles, [], []
        for slot in slots:
            handles.bind(slot)
            stored: RecognizedRows | None = handles.partial.get()
            if stored is not None:
                rows = dict(handles.rows.items())
                events += [rows[stored.first + place] for place in range(len(stored.times))]
                found.append((slot, stored))
        bits = iter(self.plan.definitions.conditions.bits(Rows.of_objects(self.plan.codec, events)).tolist())
        remaining = iter(events)
        kept: dict[int, KeyRows] = {}
        for slot, stored in found:
            times: Any = stored.times
            rows_of_key = [
                KeptRow(stored.first + place, time, row, each)
                for place, (time, row, each) in enumerate(zip(times, remaining, bits))
            ]
            key = kept[slot] = KeyRows(rows_of_key, stored.start, stored.first + len(rows_of_key), stored.matches)
            # Threads are made again: what they had decided was decided, so nothing comes out of it twice.
            self._recognizer.resume(key)
        return kept

    def _store(self, key: KeyRows, stored: RecognizedRows | None) -> None:
        handles, numbered = self.handles, self.plan.numbered
        if not key.rows and not (numbered and key.matches):
            if stored is not None:
                handles.partial.clear()
                handles.rows.clear()
                handles.deadline.clear()
            return
        first = key.rows[0].number if key.rows else 0
        made = RecognizedRows(first, key.start if key.rows else 0, [row.at for row in key.rows], key.matches)  # type: ignore[misc]
        if stored == made:
            return
        former = {} if stored is None else dict(handles.rows.items())
        rows = {kept.number: kept.row for kept in key.rows}
        for number in former.keys() - rows.keys():
            del handles.rows[number]
        for number, row in rows.items():
            if former.get(number) is not row:
                handles.rows[number] = row
        handles.partial.set(made)
        deadline = self._recognizer.deadline(key)
        if deadline <= MAX_TIME:
            handles.deadline.set(deadline if deadline == MAX_TIME else deadline - 1)  # type: ignore[arg-type]
        else:
            handles.deadline.clear()


class RecognizeOperator(PatternOperator):
    """Follows a row pattern in the order of event time."""

    plan: Any

    def _begin_following(self) -> None:
        by_name = self.bound.by_name
        handles = KeyHandles(by_name[PARTIAL], by_name[ROWS], by_name[DEADLINE])
        self.follower = RowFollower(self.plan, handles, self._place_failure)

    def hold(self, port: int, rows: Rows, keys: Keys) -> None:
        # Rows follow each other at once, so that every row may end a match.
        self.hold_all(port, rows, keys)

    def _give_matches(self) -> None:
        matches, self.follower.found = self.follower.found, []
        if not matches:
            return
        rows: list[Any] = []
        times: list[int] = []
        for match in matches:
            made = self._rows_of(match)
            rows += made
            times += [match.end_us] * len(made)
        self.emit(Rows.of_objects(self.codec, rows, times))

    def _rows_of(self, match: RowMatch) -> list[Any]:
        links = list(links_of(match.link))[::-1]
        ends = links if self.plan.every_row else links[-1:]
        names, started = self.plan.program.variables, links[0].at
        return [
            self.plan.match_type(
                *variables_of(link, len(names)),
                [each.row for each in links[: position + 1]] if self.plan.every_row else [each.row for each in links],
                MatchFacts(started, link.at, None, names[link.stage], match.number),  # type: ignore[arg-type]
            )
            for position, link in enumerate(ends)
        ]

    def _counts(self) -> dict[str, int]:
        return {}
