"""Joins that give every pair once: new rows are joined with each other and with what is kept of earlier epochs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from headrace.model.batch import Int64s
from headrace.operators.joins.buffered import JoinOperator, none_if_untimed
from headrace.operators.joins.fresh import Fresh
from headrace.operators.joins.matching import Line, Mask, Stretches
from headrace.state.rows import joined
from headrace.state.rows_find import Gathered


class Met(NamedTuple):
    """Which rows of one side have a partner now: of earlier epochs, as far as they were looked at, and new ones."""

    old: Gathered
    old_met: Mask
    new_met: Mask


class PairingOperator(JoinOperator):
    """Base: a pair comes out in the epoch that brings the later of its rows."""

    @abstractmethod
    def reach(self, port: int, at: Int64s) -> tuple[Int64s, Int64s]:
        """From when to when partners of rows of one side may be, both included."""

    @abstractmethod
    def settle(self, port: int, fresh: Fresh, met: Met) -> None:
        """Keeps what is worth keeping of one side, and gives out what has no partner."""

    def kept(self, port: int, fresh: Fresh) -> Gathered:
        """Rows of one side from earlier epochs that new rows of the other may belong to."""
        wanted = fresh.wanted(1 - port, *self.reach(1 - port, fresh.sides[1 - port].at))
        return self.tables[port].find(wanted).recoded(fresh.present(1 - port))

    def join(self, fresh: Fresh) -> Iterator[None]:
        old_left, old_right = self.kept(0, fresh), self.kept(1, fresh)
        new_left, new_right = (side.gathered(codec) for side, codec in zip(fresh.sides, self.codecs, strict=True))
        left, right = joined([old_left, new_left], self.codecs[0]), joined([old_right, new_right], self.codecs[1])
        keys = len(fresh.hashes)
        all_right = Line(right.codes, right.at, keys)
        only_new = Line(new_right.codes, new_right.at, keys)
        # Kept rows ask in the order of the line, however they lie in runs: results must not depend on that.
        order = Line(old_left.codes, old_left.at, keys).rows(np.arange(len(old_left)))
        by_new = self._partners(all_right, new_left.codes, new_left.at)
        by_old = self._partners(only_new, old_left.codes[order], old_left.at[order])
        # Every new left row with all right rows, then the kept left rows with the new right rows: every pair once.
        sides = self.side(0, left), self.side(1, right)
        for lefts, rights in _positions(by_new, by_old, all_right, only_new, order, len(old_right)):
            times = none_if_untimed(np.maximum(left.at[lefts], right.at[rights]))
            self.give_pairs(sides[0], lefts, sides[1], rights, times)
            yield
        old_left_met = np.zeros(len(old_left), np.bool_)
        old_left_met[order] = by_old.counts > 0
        right_met = all_right.mask(by_new.covered(len(right)))
        new_right_met = right_met[len(old_right) :] | only_new.mask(by_old.covered(len(new_right)))
        self.settle(0, fresh, Met(old_left, old_left_met, by_new.counts > 0))
        self.settle(1, fresh, Met(old_right, right_met[: len(old_right)], new_right_met))
        yield

    def _partners(self, line: Line, codes: Int64s, at: Int64s) -> Stretches:
        return line.between(codes, *self.reach(0, at))


def _positions(
    by_new: Stretches, by_old: Stretches, all_right: Line, only_new: Line, order: Int64s, kept_right: int
) -> Iterator[tuple[Int64s, Int64s]]:
    """Positions of all pairs, some at a time; on each side kept rows stand before new ones."""
    for asks, places in by_new.pairs():
        yield asks + len(order), all_right.rows(places)
    for asks, places in by_old.pairs():
        yield order[asks], only_new.rows(places) + kept_right
