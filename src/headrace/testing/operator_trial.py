"""One operator tried in every way (`headrace.testing.ways`), and what has to be equal whichever it was.

What is compared: the rows of each epoch and outlet with their times, as multisets; and in order, where order is
defined: for a step without state always, for a keyed one within a key. No one can tell from a row which key made it, so
each of some keys is also fed alone, in every way; and the keys fed alone must together give what all of them give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from headrace.model.keys import encode_key, hash_key
from headrace.operators.contract import Operator
from headrace.testing.rig import Key, OperatorRig, everywhere
from headrace.testing.ways import KEYED_WAYS, REFERENCE, WAYS, Batches, EpochInput, Way

ORDERED_KEYS: Final = 2
"""How many keys, those with most rows, are fed alone in every way; the others are fed alone in one."""
_SHOWN: Final = 3
_ONE_HASH: Final = 7 << 60


class EpochResults(NamedTuple):
    """What one epoch gave."""

    out: dict[str, list[str]]
    """Outlet → its rows with their times, as text, in order."""
    figures: dict[str, int]
    """What the step reports: rows, late rows, timers, counters."""


class OperatorTrial:
    """One operator over the same epochs, in every way."""

    def __init__(
        self, make: Callable[[], Operator], epochs: Sequence[EpochInput], options: dict[str, Any], seed: int
    ) -> None:
        self.make = make
        self.epochs = epochs
        self.options = options
        self.seed = seed
        self.key: Key | tuple[Key, ...] | None = options["key"]

    def run(self) -> None:
        """Raises AssertionError at the first way that gives something else than all rows in one batch."""
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
        together = [_join_results(epochs) for epochs in zip(*alone, strict=True)]
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
        self,
        ways: Sequence[Way],
        epochs: Sequence[EpochInput],
        expected: list[EpochResults],
        more: str,
        *,
        ordered: bool,
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

    def _run(self, way: Way, epochs: Sequence[EpochInput]) -> list[EpochResults]:
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

    def _epoch(self, rig: OperatorRig, way: Way, epoch: EpochInput, random: Random) -> EpochResults:
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
        return EpochResults(out, figures | {f"counter {name}": count for name, count in report.counters.items()})


def _join_results(epochs: Iterable[EpochResults]) -> EpochResults:
    out: dict[str, list[str]] = {}
    figures: Counter[str] = Counter()
    for epoch in epochs:
        figures.update(epoch.figures)
        for tag, rows in epoch.out.items():
            out.setdefault(tag, []).extend(rows)
    return EpochResults(out, dict(figures))


def _compare(expected: list[EpochResults], found: list[EpochResults], what: str, *, ordered: bool) -> None:
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


# --- rows as text, to be compared and shown


FLOAT_DIGITS: Final = 12
"""Sums of floats depend on the order of their parts in the last digits, which no batching can promise."""


def row_text(value: Any) -> str:
    """A row as text that is equal for equal rows; floats without the digits that depend on the order of adding."""
    if isinstance(value, float):
        return f"{value:.{FLOAT_DIGITS}g}"
    if isinstance(value, msgspec.Struct):
        fields = ", ".join(f"{name}={row_text(getattr(value, name))}" for name in value.__struct_fields__)
        return f"{type(value).__name__}({fields})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(row_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{row_text(name)}: {row_text(held)}" for name, held in value.items()) + "}"
    return repr(value)
