"""`verify_program`: does what a program gives depend on more than its rows?

The program runs over a sample in many deliveries (`headrace.testing.deliveries`), and everything is held against one
of them: what each output got, and what each state holds when all rows are read. Most deliveries differ in one factor,
so that what differs is known to depend on it; the others in all of them, and then factors are taken back as long as
the difference stays. What is found is made small: rows are left out, then factors, while the two still differ. The step
to look at is the first one, from the sources on, that gives something else although what comes to it is the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from headrace.dataflow.checks import HeadraceWarning
from headrace.dataflow.graph import KeyedNode, Node, ReadNode, WriteNode, upstream
from headrace.errors import ProgramError
from headrace.model.amounts import count_of
from headrace.testing.deliveries import (
    FACTORS,
    WORDS,
    Delivery,
    DeliveryOutcome,
    SampleRow,
    play,
    take_back,
    usual_delivery,
    vary,
)
from headrace.testing.samples import read_sample
from headrace.testing.suspects import suspect

if TYPE_CHECKING:
    from headrace.dataflow.app import App

AGAIN: Final = "again"
"""The factor of what differs between two equal runs."""
_ALL_IN: Final = 3
"""One delivery in so many differs in all factors …"""
_SMALLER_RUNS: Final = 60
"""Runs that making one example small may take."""
_SMALL_SAMPLES: Final = 3
"""Samples that showed other differences are tried first, the newest so many of them."""
_SHOWN: Final = 4


@dataclass(frozen=True)
class Example:
    """The smallest sample found that shows a difference."""

    rows: tuple[SampleRow, ...]
    deliveries: tuple[str, str]
    """How they came, in words; they go by their numbers, from 1."""
    given: tuple[tuple[str, ...], tuple[str, ...]]
    """What only one of the two gave."""


@dataclass(frozen=True)
class Dependence:
    """An output or a state that depends on more than the rows."""

    what: str
    """``output NAME`` or ``state ADDRESS``, or ``the run`` where it fails in some deliveries only."""
    factors: tuple[str, ...]
    """Those on which it depends: `headrace.testing.deliveries.FACTORS`, or ``again``: two equal runs differ."""
    step: str
    """The step to look at, with the line of the program where it stands."""
    suspects: tuple[str, ...]
    """What in that step may be the reason."""
    example: Example

    def tell(self) -> str:
        """In words, several lines."""
        if self.factors == (AGAIN,):
            on = "differs between two equal runs"
        else:
            on = "depends on " + " and on ".join(WORDS[factor] for factor in self.factors)
        lines = [f"{self.what} {on}", f"  look at {self.step}"]
        lines += [f"    {each}" for each in self.suspects]
        lines.append(f"  it shows with {count_of(len(self.example.rows), 'row')}:")
        lines += [f"    {number}. {row}" for number, row in enumerate(self.example.rows, 1)]
        for delivery, given in zip(self.example.deliveries, self.example.given):
            lines.append(f"  {delivery}")
            lines += [f"    gives {each:.300}" for each in given[:_SHOWN]] or ["    gives nothing more"]
            lines += [f"    and {count_of(len(given) - _SHOWN, 'more row')}"] if len(given) > _SHOWN else []
        return "\n".join(lines)


@dataclass(frozen=True)
class DependenceReport:
    """What `verify_program` came to."""

    tries: int
    rows: int
    targets: tuple[str, ...]
    """The outputs and states that were compared."""
    dependences: tuple[Dependence, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing depends on anything but the rows, as far as was tried."""
        return not self.dependences

    def tell(self) -> str:
        """In words."""
        said = f"{count_of(self.tries, 'run')} over {count_of(self.rows, 'row')}: "
        if self.ok:
            return said + f"{', '.join(self.targets)} came to the same in every one"
        there = {each.what for each in self.dependences}
        same = [target for target in self.targets if target not in there]
        parts = [said + f"{len(there)} of {len(self.targets) or 1} depend on more than the rows"]
        parts += [each.tell() for each in self.dependences]
        return "\n\n".join([*parts, *([f"the same in every run: {', '.join(same)}"] if same else [])])


def verify_program(
    app: App,
    data: str | Path | Mapping[str, Any],
    *,
    tries: int = 200,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> DependenceReport:
    """Runs a program without a JVM over a sample in many ways, and tells what depends on which of them.

    ``data``: a folder of files named after the sources (`headrace.testing.samples`), or source → rows, or source →
    split → rows. ``tries``: how many deliveries; what is found takes some more runs, to be made small.

    >>> import headrace as hr
    >>> class Hit(hr.Record):
    ...     page: str
    ...     n: int = 1
    >>> app = hr.App("hits")
    >>> hits = app.read("hits", hr.source.items([]), Hit)
    >>> hits.key_by(Hit.page).aggregate(n=hr.sum("n")).named("totals").show()
    >>> hr.testing.verify_program(app, {"hits": [Hit("a"), Hit("b"), Hit("a")]}, tries=6).ok
    True
    """
    reads = [node for node in app.nodes if isinstance(node, ReadNode)]
    rows = read_sample(Path(data), reads) if isinstance(data, str | Path) else _rows_of_data(data, reads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadraceWarning)
        return _DependenceSearch(app, rows, seed).run(tries, progress or (lambda done: None))


def _rows_of_data(data: Mapping[str, Any], reads: Sequence[ReadNode]) -> list[SampleRow]:
    known = {read.name for read in reads}
    rows: list[SampleRow] = []
    for source, given in data.items():
        if source not in known:
            raise ProgramError("the program has no such source", where="verify_program",
                               expected=" or ".join(sorted(str(name) for name in known)), found=source)  # fmt: skip
        splits: Mapping[str, Iterable[Any]] = given if isinstance(given, Mapping) else {"": given}
        rows += [SampleRow(source, split, row) for split, mine in splits.items() for row in mine]
    return rows


@dataclass
class _Finding:
    """A difference, before it is made small."""

    factors: set[str]
    delivery: Delivery
    alone: set[str] = field(default_factory=set)


class _DependenceSearch:
    def __init__(self, app: App, rows: list[SampleRow], seed: int) -> None:
        self._app = app
        self._rows = rows
        self._random = Random(seed)
        self._usual = usual_delivery(rows)
        self._sources = sum(isinstance(node, ReadNode) for node in app.nodes)
        self._whole = self._play(self._usual)
        if self._whole.failure:
            raise ProgramError(
                "the program fails over this sample",
                where="verify_program",
                expected="a program that runs over the sample, read in four epochs",
                found=self._whole.failure,
                next_move="mend the program or the sample; a failure that only some deliveries show is found",
            )
        self._outputs = {
            f"output {node.name or node.label}": node.inputs[0] for node in app.nodes if isinstance(node, WriteNode)
        }
        self._found: dict[str, _Finding] = {}
        self._small: list[frozenset[int]] = []
        self._known: dict[str, DeliveryOutcome] = {}

    def run(self, tries: int, progress: Callable[[int], None]) -> DependenceReport:
        self._note(self._play(self._usual), self._usual, (AGAIN,))
        alone = cycle(FACTORS)
        for number in range(1, tries):
            factors = FACTORS if number % _ALL_IN == 0 else (next(alone),)
            delivery = self._vary(factors)
            self._note(self._play(delivery), delivery, tuple(factors))
            progress(number)
        found = [self._describe(what, each) for what, each in self._found.items()]
        targets = (*self._outputs, *(f"state {address}" for address in self._whole.states))
        return DependenceReport(tries, len(self._rows), targets, tuple(found))

    def _vary(self, factors: Sequence[str]) -> Delivery:
        return vary(self._rows, self._usual, factors, self._random, self._sources)

    def _play(self, delivery: Delivery) -> DeliveryOutcome:
        return play(self._app, self._rows, delivery)

    # --- what differs

    def _note(self, played: DeliveryOutcome, delivery: Delivery, factors: tuple[str, ...]) -> None:
        for what in self._differing(self._whole, played):
            known = self._found.get(what)
            if known is not None and (known.factors == {AGAIN} or known.factors & set(factors)):
                continue
            if len(factors) > 1:
                delivery, factors = self._take_back(what, delivery, factors)
            if known is None:
                self._found[what] = _Finding(set(factors), delivery)
            else:
                known.factors.update(factors)

    def _take_back(self, what: str, delivery: Delivery, factors: tuple[str, ...]) -> tuple[Delivery, tuple[str, ...]]:
        """The same delivery in as few factors as still show it."""
        for factor in factors:
            rest = tuple(each for each in factors if each != factor)
            other = take_back(delivery, self._usual, factor)
            if rest and what in self._differing(self._whole, self._play(other)):
                delivery, factors = other, rest
        return delivery, factors

    def _differing(self, one: DeliveryOutcome, other: DeliveryOutcome) -> list[str]:
        if one.failure or other.failure:
            return [] if one.failure == other.failure else ["the run"]
        found = [what for what, node in self._outputs.items() if one.rows[node.id] != other.rows[node.id]]
        addresses = dict.fromkeys([*one.states, *other.states])
        return found + [f"state {each}" for each in addresses if one.states.get(each) != other.states.get(each)]

    # --- making it small

    def _describe(self, what: str, finding: _Finding) -> Dependence:
        factors = tuple(each for each in (AGAIN, *FACTORS) if each in finding.factors)
        rows, one, other = self._make_small(what, finding.delivery)
        usual, varied = self._usual.only(rows), finding.delivery.only(rows)
        node = self._step_of(what, one, other)
        late = {step: (one.late.get(step, 0), other.late.get(step, 0)) for step in {*one.late, *other.late}}
        late = {step: counts for step, counts in late.items() if counts[0] != counts[1]}
        example = Example(
            tuple(self._rows[row] for row in sorted(rows)), (usual.tell(varied), varied.tell(usual)),
            self._only_in_one(what, one, other),
        )  # fmt: skip
        step = "the program" if node is None else f"{node.label} ({node.verb}, {node.site})"
        suspects = () if node is None else tuple(suspect(node, factors, late))
        return Dependence(what, factors, step, suspects, example)

    def _make_small(self, what: str, delivery: Delivery) -> tuple[frozenset[int], DeliveryOutcome, DeliveryOutcome]:
        """As few rows as show the difference, found by leaving out stretches of them, ever smaller ones."""
        for known in self._small[-_SMALL_SAMPLES:]:
            # What shows one difference often shows another.
            pair = self._pair(known, delivery)
            if what in self._differing(*pair):
                return known, *pair
        kept = list(range(len(self._rows)))
        pair = self._pair(frozenset(kept), delivery)
        runs, size = 0, max(len(kept) // 2, 1)
        while runs < _SMALLER_RUNS:
            start = 0
            while start < len(kept) and runs < _SMALLER_RUNS:
                rest = kept[:start] + kept[start + size :]
                one, other = self._pair(frozenset(rest), delivery)
                runs += 2
                if rest and what in self._differing(one, other):
                    kept, pair = rest, (one, other)
                else:
                    start += size
            if size == 1:
                break
            size = max(size // 2, 1)
        small = frozenset(kept)
        if small not in self._small:
            self._small.append(small)
        return small, *pair

    def _pair(self, rows: frozenset[int], delivery: Delivery) -> tuple[DeliveryOutcome, DeliveryOutcome]:
        usual, varied = self._usual.only(rows), delivery.only(rows)
        # Of two equal deliveries each is a run of its own: they are held against each other.
        return self._recall(usual), self._play(varied) if varied == usual else self._recall(varied)

    def _recall(self, delivery: Delivery) -> DeliveryOutcome:
        known = self._known.get(repr(delivery))
        if known is None:
            known = self._known[repr(delivery)] = self._play(delivery)
        return known

    def _only_in_one(
        self, what: str, one: DeliveryOutcome, other: DeliveryOutcome
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if what in self._outputs:
            node = self._outputs[what].id
            left, right = one.rows[node], other.rows[node]
            return tuple((left - right).elements()), tuple((right - left).elements())
        if one.failure or other.failure or what == "the run":
            return ((one.failure,) if one.failure else ()), ((other.failure,) if other.failure else ())
        address = what.removeprefix("state ")
        mine, theirs = (set(each.states.get(address, "").splitlines()) for each in (one, other))
        return tuple(sorted(mine - theirs)), tuple(sorted(theirs - mine))

    # --- the step to look at

    def _step_of(self, what: str, one: DeliveryOutcome, other: DeliveryOutcome) -> Node | None:
        """The first step that gives something else, or keeps it, although what comes to it is the same."""
        if one.failure or other.failure:
            return None
        if what in self._outputs:
            ends = [self._outputs[what]]
        else:
            step = what.removeprefix("state ").partition(".")[0]
            ends = [node for node in self._app.nodes if isinstance(node, KeyedNode) and node.name == step]
        above = sorted(upstream(ends), key=lambda node: node.id)
        for node in above:
            if one.rows.get(node.id) != other.rows.get(node.id) or self._keeps_other(node, one, other):
                return node
        return ends[0] if ends else None

    def _keeps_other(self, node: Node, one: DeliveryOutcome, other: DeliveryOutcome) -> bool:
        if not isinstance(node, KeyedNode):
            return False
        mine = [each for each in one.states if each.partition(".")[0] == node.name]
        return any(one.states[each] != other.states.get(each) for each in mine)
