"""The ways in which one input may come to a program, and what the program then comes to.

A delivery says which rows an epoch brings, in which order, on how many shards, when by the wall clock, and where the
job dies. Whatever a source cannot change stays: the order of the rows of each split. Everything else is the engine's
business, so two deliveries of the same rows should come to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headrace.dataflow.graph import Node
from headrace.errors import HeadraceError, ProgramError
from headrace.model.time import parse_time
from headrace.read.store import Store
from headrace.testing.harness import Harness

if TYPE_CHECKING:
    from headrace.dataflow.app import App

START: Final = "2024-01-01T00:00:00"
CUTS, ORDER, PARALLELISM, CRASHES, CLOCK = "cuts", "order", "parallelism", "crashes", "clock"
FACTORS: Final = (CUTS, ORDER, PARALLELISM, CRASHES, CLOCK)
"""What is varied."""
WORDS: Final = {
    CUTS: "where epochs end",
    ORDER: "the order across splits and sources",
    PARALLELISM: "the number of shards",
    CRASHES: "crashes",
    CLOCK: "the wall clock",
}
_USUAL_EPOCHS: Final = 4
_USUAL_US: Final = 1_000_000
_LENGTHS_US: Final = (1_000, 1_000_000, 3_600_000_000, 40 * 86_400_000_000)
_POINTS: Final = ("before_publish", "published", "outputs_staged")


class SampleRow(NamedTuple):
    """One row of a sample."""

    source: str
    split: str
    row: Any

    def __str__(self) -> str:
        return f"{self.source}{f'[{self.split}]' if self.split else ''} {self.row!r}"


@dataclass(frozen=True)
class Delivery:
    """One way in which rows come; rows go by their numbers."""

    epochs: tuple[tuple[int, ...], ...]
    lasts_us: tuple[int, ...]
    """How long each epoch lasts by the wall clock."""
    parallelism: int = 1
    crashes: Mapping[int, str] = field(default_factory=dict)
    """Epoch → where it dies first."""
    chains: tuple[int, ...] = ()
    """The order in which the rows of an epoch's sources arrive; empty: as the program names them."""

    def only(self, rows: frozenset[int]) -> Delivery:
        """The same of some rows."""
        return replace(self, epochs=tuple(tuple(row for row in epoch if row in rows) for epoch in self.epochs))

    def tell(self, other: Delivery) -> str:
        """In words, what is not as in another delivery."""
        numbers = {row: i for i, row in enumerate(sorted({row for epoch in self.epochs for row in epoch}), 1)}
        told = " | ".join(" ".join(str(numbers[row]) for row in epoch) or "–" for epoch in self.epochs)
        words = [f"rows {told}"]
        if self.parallelism != other.parallelism:
            words.append(f"on {self.parallelism} shard{'s' if self.parallelism > 1 else ''}")
        if self.chains != other.chains and self.chains:
            words.append("sources in another order")
        words += [f"epoch {epoch + 1} dies at {point}" for epoch, point in sorted(self.crashes.items())]
        if self.lasts_us != other.lasts_us:
            words.append("epochs of " + ", ".join(f"{us / 1e6:g} s" for us in self.lasts_us))
        return "; ".join(words)


class DeliveryOutcome(NamedTuple):
    """What a program came to."""

    rows: Mapping[int, Counter[str]]
    """Node → the rows that it gave; of updates, the last of each key."""
    states: Mapping[str, str]
    late: Mapping[str, int]
    failure: str


def usual_delivery(rows: Sequence[SampleRow]) -> Delivery:
    """What others are held against: every split in turn, a few epochs of a second each, one shard."""
    order = _interleaved(rows, None)
    return Delivery(_cut(order, _even(len(order))), (_USUAL_US,) * _USUAL_EPOCHS)


def vary(rows: Sequence[SampleRow], usual: Delivery, factors: Sequence[str], random: Random, sources: int) -> Delivery:
    """Another delivery: other than the usual one in some of its factors."""
    order = [row for epoch in usual.epochs for row in epoch]
    sizes = [len(epoch) for epoch in usual.epochs]
    made = usual
    if ORDER in factors:
        order = _interleaved(rows, random)
        made = replace(made, chains=tuple(random.sample(range(sources), sources)))
    if CUTS in factors:
        sizes = _random_sizes(len(order), random)
        made = replace(made, lasts_us=(_USUAL_US,) * len(sizes))
    made = replace(made, epochs=_cut(order, sizes))
    if PARALLELISM in factors:
        made = replace(made, parallelism=random.randint(2, 5))
    if CRASHES in factors:
        struck = random.sample(range(len(sizes)), random.randint(1, min(3, len(sizes))))
        made = replace(made, crashes={epoch: random.choice(_POINTS) for epoch in struck})
    if CLOCK in factors:
        made = replace(made, lasts_us=tuple(random.choice(_LENGTHS_US) for _ in sizes))
    return made


def take_back(made: Delivery, usual: Delivery, factor: str) -> Delivery:
    """The same delivery, as usual in one factor."""
    sizes = [len(epoch) for epoch in made.epochs]
    match factor:
        case "parallelism":
            return replace(made, parallelism=usual.parallelism)
        case "crashes":
            return replace(made, crashes={})
        case "clock":
            return replace(made, lasts_us=(_USUAL_US,) * len(sizes))
        case "order":
            order = [row for epoch in usual.epochs for row in epoch]
            return replace(made, epochs=_cut(order, sizes), chains=())
    order = [row for epoch in made.epochs for row in epoch]
    lasts_us = tuple(made.lasts_us[i % len(sizes)] for i in range(_USUAL_EPOCHS))
    crashes = {epoch: point for epoch, point in made.crashes.items() if epoch < _USUAL_EPOCHS}
    return replace(made, epochs=_cut(order, _even(len(order))), lasts_us=lasts_us, crashes=crashes)


def _interleaved(rows: Sequence[SampleRow], random: Random | None) -> list[int]:
    """Rows of all splits mixed, each split in its order; without chance, one of each in turn."""
    queues: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        queues.setdefault((row.source, row.split), []).append(number)
    waiting = [list(reversed(queue)) for queue in queues.values()]
    order: list[int] = []
    turn = 0
    while waiting:
        place = turn % len(waiting) if random is None else random.randrange(len(waiting))
        order.append(waiting[place].pop())
        turn += 1
        if not waiting[place]:
            del waiting[place]
            turn = place
    return order


def _even(count: int) -> list[int]:
    return [count * (i + 1) // _USUAL_EPOCHS - count * i // _USUAL_EPOCHS for i in range(_USUAL_EPOCHS)]


def _random_sizes(count: int, random: Random) -> list[int]:
    cuts = sorted(random.randint(0, count) for _ in range(random.choice([0, 1, 3, 6, 10])))
    return [end - start for start, end in zip([0, *cuts], [*cuts, count])]


def _cut(order: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    epochs = []
    start = 0
    for size in sizes:
        epochs.append(tuple(order[start : start + size]))
        start += size
    return tuple(epochs)


def play(app: App, rows: Sequence[SampleRow], delivery: Delivery) -> DeliveryOutcome:
    """Runs the program over a delivery, from nothing to the end of its input."""
    clock_us = parse_time(START)
    with Harness(app, parallelism=delivery.parallelism, start=START) as h:
        try:
            for number, epoch in enumerate(delivery.epochs):
                for row in epoch:
                    h._pushed.add(rows[row].source, [rows[row].row], rows[row].split)
                clock_us += delivery.lasts_us[number]
                _run_epoch(h, clock_us, delivery.chains, delivery.crashes.get(number))
            states = _states(h)
            h.drain()
        except HeadraceError as error:
            return DeliveryOutcome({}, {}, {}, f"{type(error).__name__}: {error}".splitlines()[0])
        manifest = None if h._coordinator.state is None else h._coordinator.state.manifest
        late = {} if manifest is None else {step: counts.get("late", 0) for step, counts in manifest.counters.items()}
        given = {node.id: _rows_of_node(node, h._taken[node.id].rows) for node in app.nodes if node.id in h._taken}
        return DeliveryOutcome(given, states, late, "")


def _run_epoch(h: Harness, clock_us: int, chains: tuple[int, ...], dies_at: str | None) -> None:
    before = h.published
    h._played.chain_order = chains
    if dies_at is not None:
        try:
            h.crash(at=dies_at, clock=clock_us)
        except ProgramError:
            # It never came to that point, and went by.
            return
    if h.published == before:
        h._played.chain_order = chains
        h.epoch(clock=clock_us)


def _rows_of_node(node: Node, rows: Sequence[Any]) -> Counter[str]:
    if not node.kind.corrects:
        return Counter(map(text_of, rows))
    key = update_key(node)
    return Counter(text_of(row) for row in ({tuple(getattr(row, name) for name in key): row for row in rows}.values()))


def update_key(node: Node) -> tuple[str, ...]:
    """The columns by which later rows replace earlier ones, as far as the graph knows them."""
    if node.kind.key is not None:
        return node.kind.key
    windows = tuple(name for name in ("window_start", "window_end") if name in node.codec.names)
    return (*(node.placed_by or ()), *windows)


def _states(h: Harness) -> dict[str, str]:
    store = Store(h.store)
    views = {info.address: store.state(info.address) for info in store.states()}
    return {address: "\n".join(sorted(text_of(entry) for entry in view.scan())) for address, view in views.items()}


def text_of(value: Any) -> str:
    """A value as two runs are compared by: floats to twelve digits, because sums may differ in the last."""
    return repr(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, msgspec.Struct):
        return (type(value).__name__, *(_plain(getattr(value, name)) for name in value.__struct_fields__))
    if isinstance(value, dict):
        return [(_plain(key), _plain(each)) for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return sorted((_plain(each) for each in value), key=repr)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
