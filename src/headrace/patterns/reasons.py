"""Why a row did not advance a match: a pattern followed through the rows of one key once more, and asked at each row.

For tests and people; what runs in production does not come here. Each partial match before a row is tried on its ways
on, as `headrace.patterns.automaton` says them, and of each way that the row does not take it is told what stood against
it: a condition with its values, contiguity, or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.model.batch import Rows
from headrace.model.time import Timestamp, format_span, format_time
from headrace.patterns.automaton import COMPLETE, START, Edge, Predicate
from headrace.patterns.conditions import MatchTextReader, TextOverMatch
from headrace.patterns.matcher import KeyMatches, PartialRun, newest_rows
from headrace.sql.parse import column_path, parse_tree

if TYPE_CHECKING:
    from headrace.patterns.plan import PatternPlan


@dataclass(frozen=True)
class StageReason:
    """Why a row was not one for a stage."""

    stage: str
    since: Timestamp | None
    """When the partial match began that waited for the stage; None: the row would have begun one."""
    reason: str

    def __str__(self) -> str:
        waiting = "" if self.since is None else f" of the match since {format_time(int(self.since))}"
        return f"{self.stage}{waiting}: {self.reason}"


@dataclass(frozen=True)
class RowReasons:
    """What a row was to a pattern."""

    row: Any
    at: Timestamp
    took: tuple[str, ...]
    """The stages that took it."""
    reasons: tuple[StageReason, ...]
    """Why others did not."""

    def __str__(self) -> str:
        taken = f", taken for {', '.join(self.took)}" if self.took else ""
        return "\n".join(
            [f"{format_time(int(self.at))}  {self.row!r}{taken}", *(f"    {each}" for each in self.reasons)]
        )


class RowTracer:
    """Follows one key through a pattern, and tells of each row why it did not advance a match."""

    def __init__(self, plan: PatternPlan, step: str) -> None:
        self.plan = plan
        self.automaton = plan.automaton
        self.matcher = plan.matcher(step)
        self.key = KeyMatches()
        self._stages = [stage for stage in _named(plan.pattern.stages) if not stage.absent]
        self._texts = _condition_texts(plan)

    def rows(self, events: Sequence[Any], times: Sequence[int]) -> Iterator[RowReasons]:
        """The rows of a key in their order."""
        rows = Rows.of_objects(self.plan.codec, list(events), np.array(times, np.int64))
        for event, at, bits in zip(events, times, self.plan.conditions.bits(rows).tolist()):
            yield self._row(event, at, bits)

    def _row(self, row: Any, at: int, bits: int) -> RowReasons:
        key, matcher = self.key, self.matcher
        reasons = list(self._out_of_time(at))
        before = list(key.runs)
        number = key.next_row
        took: dict[str, None] = {}
        gone: list[PartialRun] = []
        for run in [*before, None]:
            place = START if run is None else run.place
            mine, closed = matcher.answers(run, row, at, bits)
            moves = self.automaton.step(place, mine, closed)
            took |= {self.automaton.names[move.stage]: None for move in moves if move.stage >= 0}
            reasons += self._ways(run, row, at, mine, closed, ended=not moves)
            if run is not None and moves:
                gone.append(run)
        matcher.feed(key, row, at, bits)
        left = {id(link) for run in key.runs for link in _links(run)}
        for run in gone:
            if matcher.rules.skip != "none" and id(run.link) not in left and key.next_row == number + 1:
                reasons += self._skipped(run, took)
        return RowReasons(row, at, tuple(took), tuple(dict.fromkeys(reasons)))  # type: ignore[arg-type]

    # --- time

    def _out_of_time(self, at: int) -> Iterator[StageReason]:
        for run in self.key.runs:
            deadline = self.matcher.deadline(run)
            if deadline <= at and not self.automaton.places[run.place].completes_in_time:
                yield self._reason(
                    run, f"its time was over at {format_time(deadline)}: {self._time_words(run, deadline)}"
                )
        self.matcher.expire(self.key, at)

    def _time_words(self, run: PartialRun, deadline: int) -> str:
        within = self.plan.rules.within_us
        if within is not None and deadline == run.started_us + within:
            return f"within {format_span(within)}"
        gap = self.automaton.places[run.place].longest_gap_us
        return "" if gap is None else f"within {format_span(gap)} of the row before"

    # --- one partial match and one row

    def _ways(
        self, run: PartialRun | None, row: Any, at: int, bits: int, closed: int, *, ended: bool
    ) -> Iterator[StageReason]:
        place = self.automaton.places[START if run is None else run.place]
        for number, edge in enumerate(place.edges):
            if edge.target == COMPLETE:
                stage = "the end"
            else:
                element = self.automaton.elements[edge.target]
                stage = self.automaton.names[element.stage]
                if self._takes(edge, bits, closed >> number & 1):
                    continue
            reason = self._against(edge, run, row, at, bits, closed >> number & 1)
            if reason:
                end = " — so the match ended" if ended and run is not None else ""
                since: Any = None if run is None else run.started_us
                yield StageReason(stage, since, f"{reason}{end}")

    def _takes(self, edge: Edge, bits: int, closed: int) -> bool:
        blocked = any(each.holds(bits) for each in (*edge.stops, *edge.refusals, *edge.guards))
        return not closed and not blocked and self.automaton.elements[edge.target].predicate.holds(bits)

    def _against(self, edge: Edge, run: PartialRun | None, row: Any, at: int, bits: int, closed: int) -> str:
        if closed and run is not None and edge.gap_us is not None:
            behind = format_span(at - run.link.at)
            return f"it came {behind} behind the row before, within {format_span(edge.gap_us)} is wanted"
        for predicates, words in (
            (edge.stops, "must not come before it"), (edge.refusals, "must not come next"),
            (edge.guards, "belongs to the greedy loop before it"),
        ):  # fmt: skip
            for each in predicates:
                if each.holds(bits):
                    return f"{self._name_of(each)} {words}: {self._holding(each, run, row, bits)}"
        if edge.target == COMPLETE:
            return ""
        predicate = self.automaton.elements[edge.target].predicate
        reason = self._false(predicate, run, row, bits)
        if edge.link == "next" and run is not None:
            return f"{reason}; it has to follow at once (next)"
        return reason

    def _false(self, predicate: Predicate, run: PartialRun | None, row: Any, bits: int) -> str:
        if bits & predicate.ends_on:
            return f"the loop ends here: {self._of_bits(predicate.ends_on & bits, run, row)}"
        missing = [self._of_bits(mask & ~bits, run, row, "is not true") for mask in predicate.alternatives]
        return ", and ".join(dict.fromkeys(missing))

    def _holding(self, predicate: Predicate, run: PartialRun | None, row: Any, bits: int) -> str:
        mask = next((mask for mask in predicate.alternatives if bits & mask == mask), 0)
        return self._of_bits(mask, run, row) if mask else "any row does"

    def _of_bits(self, mask: int, run: PartialRun | None, row: Any, words: str = "is true") -> str:
        told = []
        for bit, (text, values) in self._texts.items():
            if mask >> bit & 1:
                shown = values(row, run)
                told.append(f"{text} {words}{f' ({shown})' if shown else ''}")
        return ", and ".join(told)

    # --- words

    def _name_of(self, predicate: Predicate) -> str:
        names = [stage.name for stage in _named(self.plan.pattern.stages)]
        return next((name for name, each in zip(names, self.plan.predicates) if each == predicate), "a row")

    def _reason(self, run: PartialRun, reason: str) -> StageReason:
        since: Any = run.started_us
        return StageReason(self.plan.automaton.places[run.place].waiting_words or "the end", since, reason)

    def _skipped(self, run: PartialRun, took: Any) -> Iterator[StageReason]:
        skip = f"after_match({self.plan.rules.skip!r})"
        if not took:
            yield self._reason(run, f"it went with a match that was complete, as {skip} says")


def _named(stages: Sequence[Any]) -> list[Any]:
    return [each for stage in stages for each in ([stage] if stage.group is None else _named(stage.group.stages))]


def _links(run: PartialRun) -> Iterator[Any]:
    link: Any = run.link
    while link is not None:
        yield link
        link = link.before


Values = Callable[[Any, PartialRun | None], str]


def _condition_texts(plan: PatternPlan) -> dict[int, tuple[str, Values]]:
    """Bit of a condition → its text, and what its columns and measures are for a row."""
    conditions, names = plan.conditions, plan.automaton.names
    made: dict[int, tuple[str, Values]] = {}
    for text, bit in conditions.columns.items():
        made[bit] = (text, _column_values(text))
    for over, bit in conditions.texts.items():
        made[bit] = (over.text, _match_values(over, MatchTextReader(over, plan.codec), names))
    for function, bit in conditions.functions.items():
        made[bit] = (f"{getattr(function, '__qualname__', function)}(row)", lambda row, run: "")
    return made


def _columns_of(text: str) -> list[tuple[str, ...]]:
    tree = parse_tree(text, aggregates=True)
    paths = [column_path(node) for node in tree.walk() if type(node).__name__ == "Column"]
    return list(dict.fromkeys(paths))


def _column_values(text: str) -> Values:
    paths = _columns_of(text)

    def values(row: Any, run: PartialRun | None) -> str:
        shown = []
        for path in paths:
            value = row
            for name in path:
                value = getattr(value, name, None)
            shown.append(f"{'.'.join(path)} = {value!r}")
        return ", ".join(shown)

    return values


def _match_values(over: TextOverMatch, reader: MatchTextReader, names: Sequence[str]) -> Values:
    measures = dict(over.measures)
    plain = [path[0] for path in _columns_of(over.sql) if path[0] not in measures]

    def values(row: Any, run: PartialRun | None) -> str:
        def rows_of(measure: Any) -> list[Any]:
            return newest_rows(None if run is None else run.link, (names.index(measure.stage),), measure.most_rows)

        read = reader.reading(row, rows_of)
        shown = [f"{name} = {read(name)!r}" for name in plain]
        return ", ".join([*shown, *(f"{measure} = {read(name)!r}" for name, measure in measures.items())])

    return values
