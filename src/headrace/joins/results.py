"""What a regular join gives out: the difference between the results before an epoch and after it.

`Effects` computes how often each pair and each lone row held and holds; `JoinResults` makes rows of the differences.
Of one unique key, and so of one join key, what goes stands before what comes; where both are one row, they are a pair
of ``-U`` and ``+U``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.joins.buffered import none_if_untimed
from headrace.joins.candidates import take_times
from headrace.model.batch import Int64s, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.pairs import NONE, PairCodec, PairRows, SideRows
from headrace.model.row_kind import AFTER, Kinds
from headrace.operators.changelogs.net_rows import NetSide
from headrace.operators.changelogs.pairs import arrange_changes
from headrace.operators.matching import PAIRS

if TYPE_CHECKING:
    from headrace.joins.spec import RegularJoin


class Differences(NamedTuple):
    """Results by the positions of their rows, `NONE` where a side has no row, and how many more there are now."""

    left: Int64s
    right: Int64s
    more: Int64s


class Effects:
    """What an epoch does to the pairs of some keys."""

    def __init__(self, left: NetSide, right: NetSide, how: str) -> None:
        self.left, self.right = left, right
        self.how = how
        self.met: tuple[Int64s, Int64s] = (np.zeros(len(left), np.int64), np.zeros(len(right), np.int64))
        """By port: how many partners rows have after the epoch; complete when `settle` was called."""
        self._slots: tuple[Int64s, Int64s] | None = None

    def add(self, lefts: Int64s, rights: Int64s) -> Differences:
        """Takes pairs in; gives how many more of each there are."""
        left, right = self.left, self.right
        # Of a row that is new all partners count, of one that was there those that came and went.
        self._meet(0, lefts, left, right.after[rights] - np.where(left.changed[lefts], 0, right.before[rights]))
        self._meet(1, rights, right, left.after[lefts] - np.where(right.changed[rights], 0, left.before[lefts]))
        return Differences(
            lefts, rights, left.after[lefts] * right.after[rights] - left.before[lefts] * right.before[rights]
        )

    def slots(self, unique: Sequence[Sequence[int] | None]) -> tuple[Int64s, Int64s]:
        """`NetSide.slots` of both sides."""
        if self._slots is None:
            self._slots = self.left.slots(unique[0]), self.right.slots(unique[1])
        return self._slots

    def _meet(self, port: int, rows: Int64s, side: NetSide, more: Int64s) -> None:
        np.add.at(self.met[port], rows, more)

    def settle(self, capped: tuple[bool, bool]) -> None:
        """All pairs are in. ``capped``: of this side it only matters whether rows have a partner: none ever goes."""
        for met, side, cap in zip(self.met, (self.left, self.right), capped, strict=True):
            met += np.where(side.changed, 0, side.met)
            if cap:
                np.minimum(met, 1, out=met)
            met[side.after == 0] = 0

    def lone(self, port: int) -> Differences:
        """How many more rows of a side come out without a partner; of a semi join, those that have one."""
        side, met = (self.left, self.right)[port], self.met[port]
        before, after = side.met == 0, met == 0
        if self.how == "semi":
            before, after = ~before, ~after
        more = np.where(after, side.after, 0) - np.where(before, side.before, 0)
        at = np.flatnonzero(more)
        nobody = np.full(len(at), NONE)
        return Differences(at, nobody, more[at]) if port == 0 else Differences(nobody, at, more[at])


class JoinResults:
    """Makes rows of differences."""

    def __init__(self, codec: PairCodec, spec: RegularJoin) -> None:
        self._codec = codec
        self._single = spec.how in ("semi", "anti")
        self._signed = not spec.appends
        self._grouping = spec.grouping
        self._unique = [
            None if key is None else [side.names.index(name) for name in key]
            for key, side in zip(spec.unique, (codec.left, codec.right), strict=True)
        ]

    def pieces(
        self, effects: Effects, sides: tuple[SideRows, SideRows], chunks: Sequence[Differences]
    ) -> Iterator[Rows]:
        """Rows in order, with their kinds; a pair of what goes and what comes lies in one piece."""
        found = [chunk for chunk in chunks if chunk.more.any()]
        if not found:
            return
        left, right, more = (np.concatenate([getattr(chunk, name) for chunk in found]) for name in Differences._fields)
        some = np.flatnonzero(more)
        left, right, more = left[some], right[some], more[some]
        order, kinds = self._arrange(effects, left, right, more)
        left, right = left[order], right[order]
        nets = effects.left, effects.right
        times = none_if_untimed(
            np.maximum(take_times(nets[0].times(), left, MIN_TIME), take_times(nets[1].times(), right, MIN_TIME))
        )
        lefts, rights = (np.append(net.first, NONE)[at] for net, at in zip(nets, (left, right), strict=True))
        start = 0
        while start < len(order):
            end = start + PAIRS
            end += int(end < len(order) and kinds[end] == AFTER)
            part = slice(start, end)
            at = None if times is None else times[part]
            if self._single:
                yield self._as_said(sides[0].take(lefts[part], at), kinds[part])
            else:
                yield PairRows(self._codec, sides[0], lefts[part], sides[1], rights[part], at, kinds[part])
            start = end

    def lone_rows(self, port: int, side: SideRows, nobody: SideRows, times: Int64s | None, kinds: Kinds) -> Rows:
        """Rows of one side as they come. ``nobody``: the other side, without rows."""
        at = np.arange(side.length)
        if self._single:
            return self._as_said(side.take(at, times), kinds)
        none = np.full(len(at), NONE)
        if port == 0:
            return PairRows(self._codec, side, at, nobody, none, times, kinds)
        return PairRows(self._codec, nobody, none, side, at, times, kinds)

    def _as_said(self, rows: Rows, kinds: Kinds) -> Rows:
        return rows.with_kinds(kinds if self._signed else None)

    def _arrange(self, effects: Effects, left: Int64s, right: Int64s, more: Int64s) -> tuple[Int64s, Kinds]:
        """The order in which results go out, each as often as it is to, and their kinds."""
        codes = np.where(
            left >= 0, np.append(effects.left.codes, NONE)[left], np.append(effects.right.codes, NONE)[right]
        )
        comes = more > 0
        # A lone row goes before its pairs come, and comes behind those that went.
        slots = [
            np.where((at < 0) & comes, len(each), np.append(each, NONE)[at])
            for each, at in zip(effects.slots(self._unique), (left, right), strict=True)
        ]
        groups = {"left": slots[:1], "right": slots[1:], "both": slots}[self._grouping]
        return arrange_changes(more, (codes, *groups), (left, right))
