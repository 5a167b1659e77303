"""A pattern bound to its rows: all that an operator needs, ready to be shipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from headrace.operators.failures import function_failed
from headrace.patterns.automaton import START, Automaton, Predicate, build_automaton
from headrace.patterns.checks import check_whole
from headrace.patterns.conditions import Bits, Conditions, MatchTextReader, bind_conditions, takes_match
from headrace.patterns.matcher import AskedCondition, Link, Matcher, MatchRules, newest_rows, rows_by_stage
from headrace.patterns.rows import MatchRows, match_type

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.patterns.declare import EventPattern, Stage
    from headrace.patterns.measures import Measure

_MADE: Final = ("match_type", "match_rows", "is_strict", "optional_stages")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PatternPlan:
    """One pattern over rows of one type."""

    pattern: EventPattern
    conditions: Conditions
    automaton: Automaton
    rules: MatchRules
    codec: RowCodec
    predicates: tuple[Predicate, ...]

    @cached_property
    def match_type(self) -> Any:
        return match_type(self.automaton.names, self.automaton.loops, self.codec.type)

    @cached_property
    def match_rows(self) -> MatchRows:
        return MatchRows(self.automaton, self.match_type)

    def __getstate__(self) -> dict[str, Any]:
        # Types that are made on the fly are made again where they are needed.
        return {name: value for name, value in vars(self).items() if name not in _MADE}

    @cached_property
    def optional_stages(self) -> frozenset[str]:
        """Stages that a match may lack."""
        return frozenset(_optional(self.pattern.stages, inherited=False))

    # --- which rows matter, in columns

    @cached_property
    def is_strict(self) -> bool:
        """Whether a row that fits nothing may still end a match: some stage must follow at once."""
        return any(
            edge.link == "next" or edge.refusals for place in self.automaton.places[START + 1 :] for edge in place.edges
        )

    def may_start(self, bits: Bits) -> Mask:
        """Rows that may begin a match, as far as columns tell."""
        elements = {edge.target for edge in self.automaton.places[START].edges}
        return self._may_fit(bits, [self.automaton.elements[each].predicate for each in elements])

    def may_matter(self, bits: Bits) -> Mask | None:
        """Rows that may change something for a partial match; None: all do."""
        return None if self.is_strict else self._may_fit(bits, self.predicates)

    def _may_fit(self, bits: Bits, predicates: Sequence[Predicate]) -> Mask:
        column_mask = self.conditions.column_mask
        fits = np.zeros(len(bits), np.bool_)
        masks = {mask for each in predicates for mask in each.alternatives}
        masks |= {1 << bit for each in predicates for bit in range(64) if each.ends_on >> bit & 1}
        for mask in masks:
            wanted = np.uint64(mask & column_mask)
            fits |= (bits & wanted) == wanted
        return fits

    # --- at work

    def matcher(self, step: str) -> Matcher:
        """A matcher for one worker."""
        return Matcher(self.automaton, self.rules, self._asked(step))

    def _asked(self, step: str) -> list[AskedCondition]:
        asked = []
        names = self.automaton.names
        for over, bit in self.conditions.texts.items():
            asked.append(AskedCondition(bit, _text_asked(MatchTextReader(over, self.codec), names), by_row=False))
        for function, bit in self.conditions.functions.items():
            of_match = takes_match(function, f"step {step}")
            asked.append(AskedCondition(bit, self._function_asked(function, step, of_match), by_row=not of_match))
        return asked

    def _function_asked(
        self, function: Callable[..., Any], step: str, of_match: bool
    ) -> Callable[[Any, Link | None], bool]:
        names, loops = self.automaton.names, self.automaton.loops

        def holds(row: Any, link: Link | None) -> bool:
            try:
                return bool(function(row, MatchSoFar(link, names, loops)) if of_match else function(row))
            except Exception as error:
                raise function_failed(error, step=step, function=function, row=row) from error

        return holds


def _optional(stages: Sequence[Stage], *, inherited: bool) -> Iterator[str]:
    for stage in stages:
        may_lack = inherited or stage.skippable
        if stage.group is not None:
            yield from _optional(stage.group.stages, inherited=may_lack)
        elif may_lack:
            yield stage.name


class MatchSoFar:
    """What a Python condition sees of a partial match: stages by name, as in the match; None, or an empty list."""

    def __init__(self, link: Link | None, names: Sequence[str], loops: Sequence[bool]) -> None:
        stages = rows_by_stage(link, len(names))
        for name, loop, rows in zip(names, loops, stages):
            setattr(self, name, rows if loop else (rows[-1] if rows else None))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the pattern has no stage {name!r}; there are {', '.join(vars(self))}")


def _text_asked(reader: MatchTextReader, names: Sequence[str]) -> Callable[[Any, Link | None], bool]:
    numbers = {name: (number,) for number, name in enumerate(names)}

    def holds(row: Any, link: Link | None) -> bool:
        def rows_of(measure: Measure) -> list[Any]:
            return newest_rows(link, numbers[measure.stage], measure.most_rows)

        return reader.holds(row, rows_of)

    return holds


def plan_pattern(
    pattern: EventPattern, codec: RowCodec, *, max_partial: int = 10_000, drops_oldest: bool = False,
    shared: Conditions | None = None,
) -> PatternPlan:  # fmt: skip
    """Binds a pattern to rows of a type; refuses what does not fit them, or can never match."""
    check_whole(pattern, codec)
    conditions, predicates = bind_conditions(pattern, codec, shared)
    automaton = build_automaton(pattern, predicates)
    skip_stage = automaton.names.index(pattern.skip_stage) if pattern.skip_stage else -1
    rules = MatchRules(pattern.within_us, pattern.skip, skip_stage, pattern.skip_needs_stage, max_partial, drops_oldest)
    return PatternPlan(pattern, conditions, automaton, rules, codec, tuple(predicates.values()))
