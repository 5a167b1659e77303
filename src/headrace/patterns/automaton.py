"""What a pattern means: an automaton whose states are places between rows, and what a row does at each of them.

An *element* is one row that may be taken: a stage, or one of the copies that a stage with a quantifier comes to. An
*edge* leads from the element whose row was taken last to one that may be taken next, and says which rows may be passed
over on the way: none (``next``), those that do not fit (``then``), or any (``then_any``). A partial match is in one of
two kinds of places. Behind an element it is open where it goes: the next row is tried on all edges, and the match
splits into as many as there are answers. *On* an edge it has passed over a row already and waits for that one element.
So a match never takes the same rows twice.

Conditions are bits of an integer. `Automaton.step` is a pure function of place and bits, and is remembered; it never
sees a row. What this module deliberately does not do: times of whole matches, and what happens when one is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.patterns.declare import EventPattern, Link, Stage

START: Final = 0
"""The place of no match: every row may begin one."""
COMPLETE: Final = -1
"""Stands for an element where an edge leads to the end."""
_WEAKER: Final = {"next": 0, "then": 1, "then_any": 2}


class Predicate(NamedTuple):
    """When a row may be taken: one of the alternatives holds, and the end of the loop does not."""

    alternatives: tuple[int, ...]
    """Masks of conditions."""
    ends_on: int = 0

    def holds(self, bits: int) -> bool:
        return not bits & self.ends_on and any(bits & mask == mask for mask in self.alternatives)

    @property
    def mask(self) -> int:
        """All conditions that are asked."""
        mask = self.ends_on
        for each in self.alternatives:
            mask |= each
        return mask


@dataclass(frozen=True)
class Element:
    """One row that may be taken."""

    name: str
    """The stage and which copy of it: ``large``, ``large#2``; part of what is stored."""
    stage: int
    """Position among the names of stages that take rows."""
    predicate: Predicate


@dataclass(frozen=True)
class Edge:
    """The way to an element, from another one or from the start."""

    target: int
    link: Link
    refusals: tuple[Predicate, ...] = ()
    """What the very next row must not fit."""
    stops: tuple[Predicate, ...] = ()
    """What no row on the way may fit: the match ends there."""
    guards: tuple[Predicate, ...] = ()
    """What a greedy loop before would take: such a row is neither taken here nor passed over."""
    ends_on: int = 0
    """Conditions under which rows of a loop are no longer waited for."""
    gap_us: int | None = None

    @property
    def onward(self) -> Edge:
        """The same way behind its first row."""
        if not self.refusals:
            return self
        return replace(self, refusals=())


class _Exit(NamedTuple):
    """Where a part of the pattern may end, and what counts on the way from there."""

    source: int
    """An element, or −1: nothing was taken yet."""
    refusals: tuple[Predicate, ...] = ()
    stops: tuple[Predicate, ...] = ()
    guards: tuple[Predicate, ...] = ()


class Move(NamedTuple):
    """What becomes of a partial match by a row."""

    place: int
    """Where it goes on; `COMPLETE` if nowhere."""
    stage: int
    """The stage that takes the row; −1: the row is passed over."""
    completes: bool


@dataclass
class PatternPlace:
    """A state of a partial match."""

    name: str
    edges: tuple[Edge, ...]
    asks: int = 0
    """Mask of the conditions that a row is asked here."""
    completes_in_time: bool = False
    """Whether a match whose time is over here is complete: what must not come has not come."""
    waiting_for: tuple[str, ...] = ()
    """Stages that may come next, for people …"""
    waiting_words: str = ""
    """… and in words."""
    gaps: tuple[int | None, ...] = ()
    longest_gap_us: int | None = None
    """After which no edge is open any more; None: never."""


@dataclass
class Automaton:
    """The automaton of one pattern."""

    names: tuple[str, ...]
    """Stages that take rows."""
    loops: tuple[bool, ...]
    """Which of them may take several."""
    elements: list[Element]
    places: list[PatternPlace]
    by_name: dict[str, int]
    _memo: dict[tuple[int, int, int], tuple[Move, ...]] = field(default_factory=dict)
    _waits: dict[Edge, int] = field(default_factory=dict)
    _behind: dict[int, int] = field(default_factory=dict)
    final: frozenset[int] = frozenset()
    """Elements behind which a match is complete."""

    def step(self, place: int, bits: int, closed: int = 0) -> tuple[Move, ...]:
        """What a row does at a place. ``closed``: mask of the edges whose time is over."""
        key = (place, bits & self.places[place].asks, closed)
        moves = self._memo.get(key)
        if moves is None:
            moves = self._memo[key] = tuple(self._moves(self.places[place], key[1], closed))
        return moves

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The position of each stage among those that take rows."""
        return {name: number for number, name in enumerate(self.names)}

    def _moves(self, place: PatternPlace, bits: int, closed: int) -> list[Move]:
        if any(stop.holds(bits) for edge in place.edges for stop in edge.stops):
            return []
        moves: list[Move] = []
        for number, edge in enumerate(place.edges):
            if closed >> number & 1 or any(each.holds(bits) for each in (*edge.refusals, *edge.guards)):
                continue
            if edge.target == COMPLETE:
                waits = edge.link == "then_any"
                moves.append(Move(self._waits[edge.onward], -1, False) if waits else Move(COMPLETE, -1, True))
                continue
            element = self.elements[edge.target]
            takes = element.predicate.holds(bits)
            if takes:
                behind = self._behind.get(edge.target, COMPLETE)
                moves.append(Move(behind, element.stage, edge.target in self.final))
            passes = edge.link == "then_any" or (edge.link == "then" and not takes)
            if passes and place is not self.places[START] and not bits & edge.ends_on:
                moves.append(Move(self._waits[edge.onward], -1, False))
        return moves


class _Builder:
    """Puts the elements and edges of a pattern together, stage by stage."""

    def __init__(self, predicates: dict[str, Predicate], step_within_us: int | None) -> None:
        """``predicates``: of each stage, by its name."""
        self.predicates = predicates
        self.step_within_us = step_within_us
        self.names: list[str] = []
        self.loops: list[bool] = []
        self.elements: list[Element] = []
        self.numbers: dict[tuple[object, ...], int] = {}
        self.edges: dict[int, list[Edge]] = {-1: []}

    def sequence(
        self, stages: tuple[Stage, ...], exits: list[_Exit], path: tuple[object, ...], link: Link, gap_us: int | None,
        loops: bool,
    ) -> list[_Exit]:  # fmt: skip
        """Stages one behind the other; the first is reached by ``link``. Said twice, it adds what is new."""
        for position, stage in enumerate(stages):
            if stage.absent:
                exits = self._absent(stage, exits)
                continue
            way, gap = (link, gap_us) if position == 0 else (stage.link, stage.gap_us)
            exits = self._stage(stage, exits, (*path, position), way, gap, loops)
        return exits

    def _absent(self, stage: Stage, exits: list[_Exit]) -> list[_Exit]:
        predicate = self.predicates[stage.name]
        if stage.link == "next":
            return [each._replace(refusals=(*each.refusals, predicate)) for each in exits]
        return [each._replace(stops=(*each.stops, predicate)) for each in exits]

    def _stage(
        self, stage: Stage, exits: list[_Exit], path: tuple[object, ...], link: Link, gap_us: int | None, loops: bool
    ) -> list[_Exit]:
        copies = stage.low if stage.high is None else stage.high
        loops = loops or stage.is_loop
        before, ends = exits, []
        copy_exits: list[_Exit] = []
        for copy in range(copies):
            way, gap = (link, gap_us) if copy == 0 else (stage.inner, stage.inner_gap_us)
            copy_exits = self._copy(stage, before, (*path, copy), way, gap, loops, inside=copy > 0)
            more = copy + 1 < copies or stage.high is None
            if copy + 1 >= stage.low:
                ends += [self._guarded(each, stage, more) for each in copy_exits]
            before = copy_exits
        if stage.high is None:
            again = self._copy(
                stage, copy_exits, (*path, copies - 1), stage.inner, stage.inner_gap_us, loops, inside=True
            )
            ends += [self._guarded(each, stage, True) for each in again]
        if stage.skippable:
            ends += [self._guarded(each, stage, True) for each in exits]
        return list(dict.fromkeys(ends))

    def _guarded(self, end: _Exit, stage: Stage, more: bool) -> _Exit:
        if not (stage.is_greedy and more):
            return end
        return end._replace(guards=(*end.guards, self._predicate(stage)))

    def _predicate(self, stage: Stage) -> Predicate:
        return self.predicates[stage.name]

    def _copy(
        self, stage: Stage, exits: list[_Exit], path: tuple[object, ...], link: Link, gap_us: int | None, loops: bool,
        *, inside: bool,
    ) -> list[_Exit]:  # fmt: skip
        if stage.group is not None:
            return self.sequence(stage.group.stages, exits, path, link, gap_us, loops)
        if path not in self.numbers:
            self._add_element(stage, path, loops)
        target = self.numbers[path]
        ends_on = self._predicate(stage).ends_on if inside else 0
        for each in exits:
            self._connect(each, target, link, gap_us, ends_on)
        return [_Exit(target)]

    def _add_element(self, stage: Stage, path: tuple[object, ...], loops: bool) -> None:
        if stage.name not in self.names:
            self.names.append(stage.name)
            self.loops.append(loops)
        number = self.names.index(stage.name)
        copy = sum(each.stage == number for each in self.elements)
        name = stage.name if not copy else f"{stage.name}#{copy + 1}"
        self.numbers[path] = len(self.elements)
        self.edges[len(self.elements)] = []
        self.elements.append(Element(name, number, self._predicate(stage)))

    def _connect(self, end: _Exit, target: int, link: Link, gap_us: int | None, ends_on: int) -> None:
        gaps = [gap for gap in (gap_us, self.step_within_us) if gap is not None]
        edge = Edge(target, link, end.refusals, end.stops, end.guards, ends_on, min(gaps, default=None))
        edges = self.edges[end.source]
        for i, other in enumerate(edges):
            # Two ways to one element would give every match twice: the one that passes over more is both.
            if _alike(other, edge):
                edges[i] = max(other, edge, key=lambda each: _WEAKER[each.link])
                return
        edges.append(edge)


def _alike(one: Edge, two: Edge) -> bool:
    return replace(one, link=two.link) == two


def build_automaton(pattern: EventPattern, predicates: dict[str, Predicate]) -> Automaton:
    """The automaton of a pattern. ``predicates``: of each stage, absent ones too, by its name."""
    builder = _Builder(predicates, pattern.step_within_us)
    exits = builder.sequence(pattern.stages, [_Exit(-1)], (), "then_any", None, False)
    final: set[int] = set()
    for each in exits:
        if each.source < 0:
            continue
        if not each.refusals and not each.stops:
            final.add(each.source)
        else:
            # What must not come next is known with the next row; what must not come at all, when time is over.
            link: Link = "then_any" if each.stops else "next"
            builder.edges[each.source].append(
                Edge(COMPLETE, link, each.refusals, each.stops, each.guards, 0, pattern.step_within_us)
            )
    _spread_stops(builder)
    return _assemble(builder, frozenset(final))


def _spread_stops(builder: _Builder) -> None:
    """What ends a match behind an element ends it while a loop around that element goes on, too."""
    for source, edges in builder.edges.items():
        stops = tuple(dict.fromkeys(stop for edge in edges for stop in edge.stops))
        if stops and source >= 0:
            builder.edges[source] = [replace(edge, stops=stops) for edge in edges]


def _assemble(builder: _Builder, final: frozenset[int]) -> Automaton:
    elements = builder.elements
    made = Automaton(tuple(builder.names), tuple(builder.loops), elements, [], {}, final=final)
    _add_place(made, "", tuple(builder.edges[-1]))
    for source, edges in builder.edges.items():
        if source >= 0 and edges:
            made._behind[source] = _add_place(made, elements[source].name, tuple(edges))
    for source, edges in builder.edges.items():
        for edge in edges if source >= 0 else ():
            onward = edge.onward
            if edge.link != "next" and onward not in made._waits:
                target = elements[edge.target].name if edge.target != COMPLETE else "end"
                made._waits[onward] = _add_place(made, f"{elements[source].name}>{target}", (onward,))
    return made


def _add_place(automaton: Automaton, name: str, edges: tuple[Edge, ...]) -> int:
    number = len(automaton.places)
    while name in automaton.by_name:
        name += "'"
    place = PatternPlace(name, edges)
    for edge in edges:
        place.asks |= edge.ends_on
        for each in (*edge.refusals, *edge.stops, *edge.guards):
            place.asks |= each.mask
        if edge.target == COMPLETE:
            place.completes_in_time |= edge.link == "then_any"
        else:
            place.asks |= automaton.elements[edge.target].predicate.mask
    targets = [automaton.elements[edge.target].stage for edge in edges if edge.target != COMPLETE]
    place.waiting_for = tuple(dict.fromkeys(automaton.names[stage] for stage in targets))
    place.waiting_words = " or ".join(place.waiting_for)
    place.gaps = tuple(edge.gap_us for edge in edges)
    if edges and None not in place.gaps:
        place.longest_gap_us = max(gap for gap in place.gaps if gap is not None)
    automaton.by_name[name] = number
    automaton.places.append(place)
    return number
