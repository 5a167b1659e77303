"""The step of a row pattern of SQL: its plan and its operator.

Everything around it is that of patterns (`headrace.patterns.operator`): rows come in the order of their time, the
conditions that rows answer alone are columns, and keys whose rows begin nothing are passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np

from headrace.model.batch import Rows
from headrace.model.record import row_type
from headrace.operators.order_spec import TimeOrder
from headrace.operators.spec import StepInfo, StepSpec, StoredType
from headrace.patterns.checks import MATCH
from headrace.patterns.define import EVERY_ROW, Definitions
from headrace.patterns.follower import KeyHandles
from headrace.patterns.matcher import Link, links_of
from headrace.patterns.operator import PatternOperator
from headrace.patterns.partial import DEADLINE, PARTIAL
from headrace.patterns.recognizer import RecognizerRules, RowMatch, variables_of
from headrace.patterns.row_follower import RecognizedRows, RowFollower
from headrace.patterns.row_pattern import RowProgram
from headrace.patterns.rows import MatchFacts
from headrace.state.handles import StateDecl

if TYPE_CHECKING:
    from headrace.model.batch import Keys
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator

_MADE: Final = ("match_type", "identity")


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
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names for the rows of several variables."""
    previous: tuple[tuple[str, int], ...] = ()
    """Which rows before that of a variable MEASURES ask for, and how far before."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _MADE}

    @cached_property
    def match_type(self) -> Any:
        row = self.codec.type
        names = dict.fromkeys((*self.program.variables, *self.subsets, EVERY_ROW), list[row])  # type: ignore[valid-type]
        previous = dict.fromkeys((previous_name(*each) for each in self.previous), list[row])  # type: ignore[valid-type]
        return row_type("RowMatch", {**names, **previous, MATCH: MatchFacts})

    @cached_property
    def identity(self) -> int:
        """Tells this pattern from others: by what is stored, rows are followed on only under the same one."""
        conditions = self.definitions.conditions
        parts = (self.program, self.definitions.masks, conditions.columns, conditions.texts, self.rules)
        return crc32(repr(parts).encode())

    def numbers_of(self, name: str) -> frozenset[int]:
        """The variables that a name stands for, by number."""
        variables = self.program.variables
        members = variables if name == EVERY_ROW else self.subsets.get(name, (name,))
        return frozenset(variables.index(each) for each in members)

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
        StateDecl(PARTIAL, "value", (RecognizedRows[row],)),
        StateDecl(DEADLINE, "timer"),
    )


class RecognizeOperator(PatternOperator):
    """Follows a row pattern in the order of event time."""

    plan: Any

    def _open_follower(self, handles: KeyHandles) -> Any:
        return RowFollower(self.plan, handles, self._place_failure)

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
        plan, links = self.plan, list(links_of(match.link))[::-1]
        names, started = plan.program.variables, links[0].at
        rows = [each.row for each in links]
        around = [*(kept.row for kept in match.before), *rows]
        made = []
        for end in range(1, len(links) + 1) if plan.every_row else (len(links),):
            link = links[end - 1]
            mine = variables_of(link, len(names))
            subsets = [rows_of_subset(links[:end], names, each) for each in plan.subsets.values()]
            previous = [
                previous_rows(links[:end], around, len(match.before), plan.numbers_of(name), offset)
                for name, offset in plan.previous
            ]
            facts: Any = MatchFacts(started, link.at, None, names[link.stage], match.number)  # type: ignore[arg-type]
            made.append(plan.match_type(*mine, *subsets, rows[:end], *previous, facts))
        return made

    def _counts(self) -> dict[str, int]:
        return {}


def previous_name(variable: str, offset: int) -> str:
    """The field of a match with the row so far before the last one of a variable."""
    return f"previous_{offset}_{variable}"


def rows_of_subset(links: Sequence[Link], names: Sequence[str], members: Sequence[str]) -> list[Any]:
    """The rows of several variables, the oldest first."""
    return [each.row for each in links if names[each.stage] in members]


def previous_rows(
    links: Sequence[Link], around: Sequence[Any], before: int, numbers: Collection[int], offset: int
) -> list[Any]:
    """The row so far before the last one of some variables, in a list; none, where there is no such row.

    ``around``: the rows of the match behind those before it, of which there are ``before``.
    """
    last = next((place for place in range(len(links) - 1, -1, -1) if links[place].stage in numbers), None)
    if last is None or last + before < offset:
        return []
    return [around[last + before - offset]]
