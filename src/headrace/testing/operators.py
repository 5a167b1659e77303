"""Tries to break an operator: `verify_operator`, and `verify_step` for a step of a program.

The contract of `headrace.operators.contract`, made executable. How rows are cut into batches, how much memory there is,
which worker runs a task, how often a task is given up, how state lies in runs and which keys share a hash or a shard
are the engine's business: whatever it does, each epoch must give the same rows. Each way is a line of ``WAYS``.

What is compared: the rows of each epoch and outlet with their times, as multisets; and in order, where order is
defined: for a step without state always, for a keyed one within a key. No one can tell from a row which key made it, so
each of some keys is also fed alone, in every way; and the keys fed alone must together give what all of them give.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.dataflow.checks import HeadraceWarning
from headrace.dataflow.graph import (
    AsyncNode,
    BatchNode,
    CallNode,
    ExprNode,
    KeyedNode,
    LookupNode,
    Node,
    ReadNode,
    TapNode,
    reachable,
)
from headrace.dataflow.graph import upstream as nodes_above
from headrace.errors import ProgramError
from headrace.model.keys import encode_key, hash_key
from headrace.model.keyspec import ANYWHERE, KeySpec
from headrace.model.time import parse_time
from headrace.operators.contract import SIDE, Operator
from headrace.plan.build import operator_builder
from headrace.plan.ship import dump_program, load_program
from headrace.testing.rig import NO_LIMIT, OperatorRig, everywhere
from headrace.testing.row_text import row_text

if TYPE_CHECKING:
    from headrace.dataflow.joined import Joined
    from headrace.dataflow.stream import Stream

ORDERED_KEYS: Final = 2
"""How many keys, those with most rows, are fed alone in every way; the others are fed alone in one."""
_SHOWN: Final = 3
_ONE_HASH: Final = 7 << 60

Batches = list[Sequence[Any]]
Key = Callable[[Any], Any]


@dataclass(frozen=True)
class EpochInput:
    """The rows of one epoch and the clocks at its end: µs since 1970, or text; None leaves a clock where it is.

    Of a step with several inputs the rows are a sequence of (port, rows), in the order in which they come.
    """

    rows: Sequence[Any] = ()
    watermark: int | str | None = None
    clock: int | str | None = None
    final: bool = False


class Way(NamedTuple):
    """One way in which an engine may run epochs."""

    name: str
    cut: Callable[[Sequence[Any], Random], Batches]
    overlay_limit_bytes: int = NO_LIMIT
    as_objects: bool = False
    new_workers: bool = False
    """Each epoch is run by an operator that has seen none before."""
    given_up: bool = False
    """Each epoch is begun twice and given up before it is done for real."""
    folds: bool = False
    shards: tuple[int, ...] = (1,)
    """How many shards there are, epoch by epoch, from the beginning again when there are more epochs."""
    one_hash: bool = False


def whole(rows: Sequence[Any], random: Random) -> Batches:
    return [rows]


def row_by_row(rows: Sequence[Any], random: Random) -> Batches:
    return [[row] for row in rows]


def random_batches(rows: Sequence[Any], random: Random) -> Batches:
    cuts = sorted({0, len(rows), *(random.randrange(len(rows) + 1) for _ in range(min(4, len(rows))))})
    return [rows[start:end] for start, end in pairwise(cuts)]


def with_empty_batches(rows: Sequence[Any], random: Random) -> Batches:
    batches: Batches = [[]]
    for batch in random_batches(rows, random):
        batches += [batch, []]
    return batches


REFERENCE: Final = Way("in one batch", whole)
WAYS: Final = (
    Way("in one batch, again", whole),
    Way("row by row", row_by_row),
    Way("in random batches", random_batches),
    Way("in random batches of objects", random_batches, as_objects=True),
    Way("with empty batches in between", with_empty_batches),
    Way("by another worker each epoch", random_batches, new_workers=True),
    Way("after two attempts that were given up", random_batches, given_up=True),
)
KEYED_WAYS: Final = (
    Way("with state written and read back after every row", row_by_row, overlay_limit_bytes=1),
    Way("with state written and read back after every batch", with_empty_batches, overlay_limit_bytes=1),
    Way("with folds between epochs", random_batches, folds=True),
    Way("with folds and state read back", random_batches, overlay_limit_bytes=1, folds=True, new_workers=True),
    Way("with a changing number of shards", random_batches, shards=(1, 3, 2), given_up=True),
    Way("with all keys on one hash", random_batches, one_hash=True),
)


def verify_operator(
    make: Callable[[], Operator],
    epochs: Sequence[EpochInput | Sequence[Any]],
    *,
    row_type: Any,
    key: Key | tuple[Key, ...] | None = None,
    time: Callable[[Any], int] | tuple[Callable[[Any], int] | None, ...] | None = None,
    outlets: Sequence[str] = (),
    ttl: Mapping[str, str] | None = None,
    seed: int = 0,
) -> None:
    """Runs an operator over the same epochs in every way and raises AssertionError where one gives other rows.

    ``make`` returns a new operator each time, as each worker makes one. ``epochs``: rows, or an `EpochInput` where the
    clocks move. ``row_type``: type or codec of the rows that go in; ``key`` and ``time`` of such a row, None for a
    step without state and for a stream without event time; a step with several inputs has a tuple of each, and epochs
    of (port, rows). ``outlets``: those that somebody reads beside ``main``
    (``errors`` and ``late`` change what a step does). ``ttl``: state → ``event`` or ``wall``, so that folds purge.
    """
    inputs = [epoch if isinstance(epoch, EpochInput) else EpochInput(epoch) for epoch in epochs]
    options = {"taken": row_type, "key": key, "time": time, "outlets": outlets, "ttl": ttl}
    _Suite(make, [_timed(epoch) for epoch in inputs], options, seed).run()


def verify_step(
    step: Stream[Any] | Joined[Any, Any],
    epochs: Sequence[EpochInput | Sequence[Any]],
    *,
    time: Callable[[Any], int] | None = None,
    seed: int = 0,
) -> None:
    """`verify_operator` for one step of a program: its function, its key and its outlets are those of the program.

    ``epochs`` hold rows as they come *into* the step. Their time is the column that the source declares, where the rows
    still have it; otherwise ``time`` says it.
    """
    node = step.node
    if not isinstance(node, CallNode | AsyncNode | LookupNode | BatchNode | ExprNode | KeyedNode):
        raise ProgramError(
            "this stream has no operator of its own",
            where=f"verify_step of {node.label}",
            expected="what map, flat_map, map_async, lookup, map_batches, an expression or a keyed step gave",
            found=node.verb,
        )
    with warnings.catch_warnings():
        # That nobody reads other steps is not the question here.
        warnings.simplefilter("ignore", HeadraceWarning)
        reachable(step.app, [node])
    keyed = node if isinstance(node, KeyedNode) else None
    decls = () if keyed is None else keyed.decls
    sides = [SIDE + decl.name for decl in decls if decl.kind == "side"]
    taps = [tap.tag for tap in step.app.nodes if isinstance(tap, TapNode) and tap.inputs == (node,)]
    shipped = dump_program(operator_builder(node))

    def make() -> Operator:
        # Unpacked each time, as each worker does: a function that keeps something in itself has its own copy.
        made: Operator = load_program(shipped)()
        return made

    verify_operator(
        make,
        epochs,
        row_type=_single(tuple(before.codec for before in node.inputs)),
        key=None if keyed is None else _single(tuple(_key_of(keyed, key) for _, key in keyed.keyed_inputs)),
        time=time or _single(tuple(_time_above(node, before) for before in node.inputs)),
        outlets=sorted({*sides, *taps}),
        # What has expired may be purged at any time only if nobody is ever shown it.
        ttl={decl.name: decl.ttl.clock for decl in decls if decl.ttl is not None and decl.ttl.expired == "hide"},
        seed=seed,
    )


def _single(per_input: tuple[Any, ...]) -> Any:
    return per_input[0] if len(per_input) == 1 else per_input


def _key_of(node: KeyedNode, key: KeySpec | None) -> Key:
    if key is None:
        return everywhere
    if key == ANYWHERE:
        return lambda row: None
    columns, fn = key.columns, key.fn
    if columns is None:
        assert fn is not None
        return fn
    if not columns:
        return lambda row: None
    if len(columns) == 1:
        return lambda row: getattr(row, columns[0])
    return lambda row: tuple(getattr(row, column) for column in columns)


def _time_above(node: Node, before: Node) -> Callable[[Any], int] | None:
    reads = [read for read in nodes_above([before]) if isinstance(read, ReadNode)]
    times = {read.time for read in reads}
    if times == {None}:
        return None
    named = [time.strip("`") for time in times if time is not None]
    if len(named) != 1 or named[0] not in before.codec.names:
        raise ProgramError(
            "the time of these rows is not known",
            where=f"verify_step of {node.label}",
            expected="a column of the rows that the source names as its time",
            found=", ".join(named),
            next_move="say it: verify_step(step, epochs, time=lambda row: row.at)",
        )
    return lambda row: int(getattr(row, named[0]))


def _timed(epoch: EpochInput) -> EpochInput:
    return replace(epoch, watermark=_us(epoch.watermark), clock=_us(epoch.clock))


def _us(time: int | str | None) -> int | None:
    return parse_time(time) if isinstance(time, str) else time


class _Seen(NamedTuple):
    """What one epoch gave."""

    out: dict[str, list[str]]
    """Outlet → its rows with their times, as text, in order."""
    figures: dict[str, int]
    """What the step reports: rows, late rows, timers, counters."""


class _Suite:
    def __init__(
        self, make: Callable[[], Operator], epochs: Sequence[EpochInput], options: dict[str, Any], seed: int
    ) -> None:
        self.make = make
        self.epochs = epochs
        self.options = options
        self.seed = seed
        self.key: Key | tuple[Key, ...] | None = options["key"]

    def run(self) -> None:
        expected = self._run(REFERENCE, self.epochs)
        assert any(any(epoch.out.values()) for epoch in expected), (
            "no epoch gave a row, so nothing would be proved: give rows that make the step say something"
        )
        if self.key is None:
            self._try_ways(WAYS, self.epochs, expected, "", ordered=True)
            return
        ways = (*WAYS, *KEYED_WAYS)
        self._try_ways(ways, self.epochs, expected, "", ordered=False)
        alone = []
        for number, key in enumerate(self._keys()):
            mine = [replace(epoch, rows=self._only(epoch.rows, key)) for epoch in self.epochs]
            alone.append(self._run(REFERENCE, mine))
            if number < ORDERED_KEYS:
                self._try_ways(ways, mine, alone[-1], f", the rows of one key alone ({key!r})", ordered=True)
        if self._has_broadcast:
            # What broadcast rows themselves give is given once, however many keys there are.
            return
        together = [_joined(epochs) for epochs in zip(*alone, strict=True)]
        _compare(expected, together, "each key alone", ordered=False)

    def _keys(self) -> list[bytes]:
        """Each key once, those with most rows first."""
        counts: Counter[bytes] = Counter()
        for epoch in self.epochs:
            for port, rows in self._parts(epoch.rows):
                if not self._is_broadcast(port):
                    counts.update(self._encoded(port, row) for row in rows)
        return [each for each, _ in counts.most_common()]

    def _parts(self, rows: Sequence[Any]) -> Sequence[tuple[int, Sequence[Any]]]:
        return rows if isinstance(self.key, tuple) else [(0, rows)]

    @property
    def _has_broadcast(self) -> bool:
        return isinstance(self.key, tuple) and everywhere in self.key

    def _is_broadcast(self, port: int) -> bool:
        return isinstance(self.key, tuple) and self.key[port] is everywhere

    def _encoded(self, port: int, row: Any) -> bytes:
        key = self.key[port] if isinstance(self.key, tuple) else self.key
        assert key is not None
        return encode_key(key(row))

    def _only(self, rows: Sequence[Any], wanted: bytes) -> list[Any]:
        mine = [
            (port, [row for row in part if self._is_broadcast(port) or self._encoded(port, row) == wanted])
            for port, part in self._parts(rows)
        ]
        return mine if isinstance(self.key, tuple) else mine[0][1]

    def _batches(self, way: Way, rows: Sequence[Any], random: Random) -> Batches:
        if not isinstance(self.key, tuple):
            return way.cut(rows, random)
        return [(port, batch) for port, part in rows for batch in way.cut(part, random)]

    def _try_ways(
        self, ways: Sequence[Way], epochs: Sequence[EpochInput], expected: list[_Seen], more: str, *, ordered: bool
    ) -> None:
        for way in ways:
            what = way.name + more
            try:
                found = self._run(way, epochs)
            except Exception as error:
                raise AssertionError(f"{what}: it raised {type(error).__name__}: {error}") from error
            # What broadcast rows give comes out of one shard, and what they do to a key out of another.
            in_order = ordered and not (self._has_broadcast and max(way.shards) > 1)
            _compare(expected, found, what, ordered=in_order)

    def _run(self, way: Way, epochs: Sequence[EpochInput]) -> list[_Seen]:
        rig = OperatorRig(
            self.make(),
            overlay_limit_bytes=way.overlay_limit_bytes,
            as_objects=way.as_objects,
            hash_of=(lambda key: _ONE_HASH) if way.one_hash else hash_key,
            **self.options,
        )
        random = Random(f"{self.seed} {way.name}")
        seen = []
        for number, epoch in enumerate(epochs):
            rig.parallelism = way.shards[number % len(way.shards)]
            if way.new_workers and number:
                rig.operator.close()
                rig.take_over(self.make())
            seen.append(self._epoch(rig, way, epoch, random))
            if way.folds:
                # Now and then only the newest, so that something older stays below.
                rig.fold(newest=2 if number % 3 else None)
        rig.operator.close()
        return seen

    def _epoch(self, rig: OperatorRig, way: Way, epoch: EpochInput, random: Random) -> _Seen:
        clocks: Any = {"watermark": epoch.watermark, "clock": epoch.clock, "final": epoch.final}
        batches = self._batches(way, epoch.rows, random)
        if way.given_up:
            # The one that stops in the middle comes last: what it left behind has nothing but begin to clear it away.
            rig.attempt(*batches[: random.randrange(len(batches) + 1)], **clocks)
            rig.attempt(*batches, **clocks, finish=False)
        rig.epoch(*batches, **clocks)
        out = {tag: [f"{row_text(row.value)} at {row.at}" for row in rows] for tag, rows in rig.out.items()}
        report = rig.report
        figures = {"rows in": report.rows_in, "rows out": report.rows_out, "late": report.late, "fired": report.fired}
        return _Seen(out, figures | {f"counter {name}": count for name, count in report.counters.items()})


def _joined(epochs: Iterable[_Seen]) -> _Seen:
    out: dict[str, list[str]] = {}
    figures: Counter[str] = Counter()
    for epoch in epochs:
        figures.update(epoch.figures)
        for tag, rows in epoch.out.items():
            out.setdefault(tag, []).extend(rows)
    return _Seen(out, dict(figures))


def _compare(expected: list[_Seen], found: list[_Seen], what: str, *, ordered: bool) -> None:
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        for tag in sorted({*wanted.out, *got.out}):
            _compare_rows(
                wanted.out.get(tag, []), got.out.get(tag, []), f"{what}: epoch {number}, outlet {tag}", ordered
            )
        for name in sorted({*wanted.figures, *got.figures}):
            before, now = wanted.figures.get(name, 0), got.figures.get(name, 0)
            assert before == now, f"{what}: epoch {number} reports {name} {now}, {REFERENCE.name} {before}"


def _compare_rows(wanted: list[str], got: list[str], where: str, ordered: bool) -> None:
    missing, more = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
    if missing or more:
        lines = [f"{where}: other rows than {REFERENCE.name}"]
        for name, rows in (("missing", missing), ("more", more)):
            shown = [f"{count} × {row}" for row, count in list(rows.items())[:_SHOWN]]
            lines += [f"  {name} ({sum(rows.values())}): {'; '.join(shown)}"] if rows else []
        raise AssertionError("\n".join(lines))
    if ordered and wanted != got:
        at = next(i for i, (a, b) in enumerate(zip(wanted, got)) if a != b)
        raise AssertionError(
            f"{where}: the same rows as {REFERENCE.name}, in another order\n"
            f"  row {at} was {wanted[at]}\n  and now is {got[at]}"
        )
