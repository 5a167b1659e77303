"""Windows recomputed in the plainest way: row after row, a list for each window, every window looked at each time.

Nothing here is shared with the operator: what it says follows from the definitions alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Bounds = tuple[int, int]
NEVER = -(10**9)


class Kind(NamedTuple):
    """A kind of window: ``tumbling size``, ``sliding size every``, ``cumulating size every``, ``session gap``, …"""

    name: str
    size: int = 0
    every: int = 0
    offset: int = 0

    def bounds(self, time: int) -> list[Bounds]:
        if self.name == "unbounded":
            return [(NEVER, -NEVER)]
        if self.name == "session":
            return [(time, time + self.size)]
        step = self.size if self.name in ("tumbling", "cumulating") else self.every
        found = []
        start = (time - self.offset) // step * step + self.offset
        if self.name == "cumulating":
            return [(start, end) for end in range(start + self.every, start + self.size + 1, self.every) if time < end]
        while start + self.size > time:
            found.append((start, start + self.size))
            start -= step
        return sorted(found)


class Rule(NamedTuple):
    """When a window fires: ``end``, ``early wall``, ``early event``, ``per_epoch``, ``per_row``, ``every_rows``."""

    name: str
    n: int = 0

    @property
    def ends(self) -> bool:
        return self.name in ("end", "early wall", "early event")


@dataclass
class Open:
    rows: list[tuple[int, int]] = field(default_factory=list)
    """When each row came among all, and its value."""
    changed: bool = False
    late: bool = False
    count: int = 0
    early: int | None = None


@dataclass
class Model:
    kind: Kind
    rule: Rule
    discard: bool = False
    allow_late: int = 0
    keep: int = 0
    """Rows that an evictor keeps; 0: there is none."""
    watermark: int = NEVER
    clock: int = NEVER
    came: int = 0
    windows: dict[tuple[str, Bounds], Open] = field(default_factory=dict)
    out: list[str] = field(default_factory=list)
    finals: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    def epoch(self, rows: list[Any], watermark: int, clock: int) -> None:
        self.out, self.finals, self.late = [], [], []
        self.clock = clock if self.clock == NEVER else self.clock
        for row in rows:
            self._take(row.key, row.n, int(row.at))
        reached = max(watermark, self.watermark)
        for (key, bounds), held in sorted(self.windows.items(), key=lambda item: item[0]):
            self._look(key, bounds, held, reached, clock)
        self.watermark, self.clock = reached, clock

    def _take(self, key: str, n: int, time: int) -> None:
        taken = False
        self.came += 1
        for bounds in self.kind.bounds(time):
            if self.kind.name == "session":
                bounds, held = self._merged(key, bounds)
            else:
                held = self.windows.get((key, bounds)) or Open()
            if self._is_gone(bounds, self.watermark):
                continue
            taken = True
            self.windows[key, bounds] = held
            held.rows.append((self.came, n))
            held.changed = True
            held.count += 1
            self._early(bounds, held)
            if self.rule.name == "per_row" or (self.rule.name == "every_rows" and held.count >= self.rule.n):
                held.count = 0
                self._fire(key, bounds, held, "late" if bounds[1] - 1 <= self.watermark else "early")
        if not taken and time + self.allow_late <= self.watermark and self.kind.name != "unbounded":
            self.late.append(f"{key}{n}@{time}")

    def _merged(self, key: str, bounds: Bounds) -> tuple[Bounds, Open]:
        met = [other for other in self._of(key) if other[0] <= bounds[1] and other[1] >= bounds[0]]
        parts = [self.windows[key, other] for other in sorted(met)]
        whole = (min([bounds[0], *(each[0] for each in met)]), max([bounds[1], *(each[1] for each in met)]))
        if self._is_gone(whole, self.watermark):
            return whole, Open()
        for other in met:
            del self.windows[key, other]
        earlies = [part.early for part in parts if part.early is not None]
        return whole, Open(
            sorted(row for part in parts for row in part.rows), any(part.changed for part in parts),
            any(part.late for part in parts), sum(part.count for part in parts),
            min(earlies, default=None),
        )  # fmt: skip

    def _of(self, key: str) -> list[Bounds]:
        return [bounds for other, bounds in self.windows if other == key]

    def _is_gone(self, bounds: Bounds, watermark: int) -> bool:
        return self.kind.name != "unbounded" and bounds[1] - 1 + self.allow_late <= watermark

    def _early(self, bounds: Bounds, held: Open) -> None:
        if not self.rule.name.startswith("early") or bounds[1] - 1 <= self.watermark:
            return
        base = self.clock if self.rule.name == "early wall" else self.watermark
        at = base // self.rule.n * self.rule.n + self.rule.n
        if self.rule.name == "early event" and at >= bounds[1] - 1:
            return
        held.early = at if held.early is None else min(at, held.early)

    def _look(self, key: str, bounds: Bounds, held: Open, reached: int, clock: int) -> None:
        end = bounds[1] - 1
        over = end <= reached and self.kind.name != "unbounded"
        gone = self._is_gone(bounds, reached)
        pane = "early" if not over else "late" if end <= self.watermark else "on_time"
        due = held.early is not None and held.early <= (clock if self.rule.name == "early wall" else reached)
        if due:
            held.early = None
        fires = held.changed and (self.rule.name == "per_epoch" or (due and not over))
        if self.rule.ends and over and (pane == "on_time" or held.changed):
            fires = True
        if fires:
            self._fire(key, bounds, held, pane, final=gone)
        elif gone and held.rows:
            self._evict(held)
            self._tell(self.finals, key, bounds, held, "late" if held.late else "on_time")
        if gone:
            del self.windows[key, bounds]

    def _fire(self, key: str, bounds: Bounds, held: Open, pane: str, *, final: bool = False) -> None:
        held.changed = False
        if not held.rows:
            return
        self._evict(held)
        held.late = held.late or pane == "late"
        self._tell(self.out, key, bounds, held, pane)
        if final:
            self._tell(self.finals, key, bounds, held, pane)
        if self.discard:
            held.rows = []

    def _evict(self, held: Open) -> None:
        if self.keep:
            held.rows = held.rows[-self.keep :]

    def _tell(self, where: list[str], key: str, bounds: Bounds, held: Open, pane: str) -> None:
        shown = "" if self.kind.name == "unbounded" else f"[{bounds[0]},{bounds[1]})"
        told = "" if pane == "on_time" or self.kind.name == "unbounded" else f"/{pane}"
        where.append(f"{key}{shown}={','.join(map(str, sorted(n for _, n in held.rows)))}{told}")
