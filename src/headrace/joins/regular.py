"""Regular joins: what all rows of both sides that hold come to, whatever has come and gone.

Each side is kept as a multiset: rows with their number and, where the join has to know who is alone, the number of
their partners (`headrace.state.rows.netting`). An epoch's rows are put together first, those that come and those that
go, and joined with what was there: a pair holds as often as the product of the numbers of its rows says, a lone row
while it has no partner. What is given out is the difference between before and after. So neither the order in which
rows come nor the cut between epochs matters.

What is kept is written without being read, but for rows that may go or be alone: those are looked up by their hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.joins.buffered import times_of
from headrace.joins.candidates import candidate_pairs, key_slices
from headrace.joins.condition import Condition
from headrace.joins.fresh import Fresh, null_keys
from headrace.joins.results import Effects, JoinResults
from headrace.joins.unbounded import LastingJoin
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.keys import decode_key
from headrace.model.pairs import PairRows, SideRows
from headrace.model.row_kind import INSERT
from headrace.operators.changelogs.errors import below_zero
from headrace.operators.changelogs.net_rows import OWN_FIELDS, ChangedRows, NetSide, add_rows
from headrace.operators.changelogs.pairs import mend_kinds
from headrace.operators.matching import Mask
from headrace.state.rows.find import GatheredRows, KeyTimes
from headrace.state.rows.table import joined

if TYPE_CHECKING:
    from headrace.joins.spec import RegularJoin
    from headrace.model.rows import RowCodec

_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
UNKNOWN: Final = "unknown_withdrawals"
"""Counter of rows that go and had expired before; they are not applied."""


class RegularJoinOperator(LastingJoin):
    """The net effect of each epoch on the pairs and the lone rows of each key."""

    keeps = "net"
    own_fields = OWN_FIELDS

    def __init__(self, step: str, left: RowCodec, right: RowCodec, spec: RegularJoin, key_type: Any = None) -> None:
        super().__init__(step, left, right, spec.how, spec.ttl)
        self.how = spec.how
        self.key_type = key_type
        self.signed = spec.signed
        """By port: whether rows may go."""
        self.single = spec.how in ("semi", "anti")
        """Whether left rows come out alone, and pairs never."""
        self.tracked = (self.outer[0] or self.single, self.outer[1])
        """By port: whether the number of partners is kept."""
        self.results = JoinResults(self.codec, spec)
        self._condition = None if spec.on is None else Condition(step, spec.on, self.codec)

    # --- rows come

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        self.state.check_owned(keys.hashes)
        nulls = null_keys(keys.encoded)
        if len(nulls):
            self._give_nulls(port, rows.take(nulls))
            rest = np.delete(np.arange(len(rows)), nulls)
            rows, keys = rows.take(rest), keys.take(rest)
        if len(rows):
            self._add(port, rows, keys)
        self.state.relieve(len(rows))

    def _add(self, port: int, rows: Rows, keys: Keys) -> None:
        add_rows(self.tables[port], self.codecs[port], rows, keys, self.expires(port, times_of(rows)))

    def _give_nulls(self, port: int, rows: Rows) -> None:
        """Rows whose key is null equal nothing: they are alone for ever, and need not be kept."""
        alone = self.how == "anti" and port == 0
        if not alone and not self.outer[port]:
            return
        kinds = np.full(len(rows), INSERT, np.int8) if rows.kinds is None else mend_kinds(rows.kinds)
        side = SideRows(self.codecs[port], len(rows), lambda index: rows.columns[index])
        self.emit(self.results.lone_rows(port, side, self.nobody(1 - port), rows.times, kinds))

    # --- the epoch ends

    def join(self, fresh: Fresh) -> Iterator[None]:
        whole = self._net(0, fresh), self._net(1, fresh)
        sides = self.side(0, whole[0].rows), self.side(1, whole[1].rows)
        for left, right in key_slices(*whole):
            effects = Effects(left, right, self.how)
            chunks = []
            for lefts, rights in self._matching(candidate_pairs(left, right), effects, sides):
                changes = effects.add(lefts, rights)
                if not self.single:
                    chunks.append(changes)
            effects.settle(capped=(not self.signed[1], not self.signed[0]))
            chunks += [effects.lone(port) for port in (0, 1) if self.tracked[port]]
            for rows in self.results.pieces(effects, sides, chunks):
                self.emit(rows)
                yield
            for port, side in enumerate((left, right)):
                self._keep(port, fresh, side, effects.met[port])
        yield

    def _matching(
        self, pairs: Iterator[tuple[Int64s, Int64s]], effects: Effects, sides: tuple[SideRows, SideRows]
    ) -> Iterator[tuple[Int64s, Int64s]]:
        """The pairs for which the further condition holds, too."""
        for lefts, rights in pairs:
            if self._condition is None:
                yield lefts, rights
                continue
            firsts = effects.left.first[lefts], effects.right.first[rights]
            holds = self._condition.holds(PairRows(self.codec, sides[0], firsts[0], sides[1], firsts[1], None))
            yield lefts[holds], rights[holds]

    # --- what was there

    def _net(self, port: int, fresh: Fresh) -> NetSide:
        mine = fresh.sides[port]
        asked = fresh.present(1 - port)
        old = [self._find(port, fresh, asked, np.full(len(asked), _LEAST), np.full(len(asked), _GREATEST))]
        if self.signed[port] or self.tracked[port]:
            # Rows of keys that only this side has: what they were, and nothing else of their keys.
            codes, at = mine.codes, mine.at
            own = np.flatnonzero(~np.isin(codes, asked) & _first_of(codes, at))
            old.append(self._find(port, fresh, codes[own], at[own], at[own]))
        before = self.living(joined(old, self.codecs[port]))
        side = NetSide(joined([before, mine.gathered(self.codecs[port])], self.codecs[port]), len(before))
        self._check(fresh, side)
        return side

    def _find(self, port: int, fresh: Fresh, codes: Int64s, low: Int64s, high: Int64s) -> GatheredRows:
        wanted = KeyTimes(fresh.hashes[codes], fresh.keys.take(pa.array(codes)), low, high)
        return self.tables[port].find(wanted).recoded(codes)

    def _check(self, fresh: Fresh, side: NetSide) -> None:
        """No row goes that was not there; where rows expire, such a one is counted, and not applied."""
        wrong = np.flatnonzero(side.after < 0)
        if not len(wrong):
            return
        missing = int(-side.after[wrong].sum())
        if self.ttl is None:
            key = fresh.keys[int(side.codes[wrong[0]])].as_py()
            raise below_zero(self.step, missing, decode_key(key, None if self.key_type is Any else self.key_type))
        self.report.counters[UNKNOWN] = self.report.counters.get(UNKNOWN, 0) + missing
        side.after[wrong] = 0

    # --- what is there now

    def _keep(self, port: int, fresh: Fresh, side: NetSide, met: Int64s) -> None:
        """Writes by how much numbers have changed; rows of this epoch that were spilled are written already."""
        counts, partners = side.after - side.before, met - side.met
        if self.spilled:
            counts = counts - side.delta
        changed = ChangedRows(side, np.flatnonzero((counts != 0) | (partners != 0)))
        table, keys = self.tables[port], (fresh.hashes, fresh.keys)
        if self.ttl is None:
            changed.write(table, *keys, counts, partners)
            return
        # A row that comes again begins to live anew, and all that is known of it with it.
        old, new = side.expires(), self.expires(port, side.times())
        assert new is not None
        again = (side.before > 0) & (counts > 0) & (not self.spilled)
        changed.only(~again).write(table, *keys, counts, partners, np.where(side.before > 0, old, new))
        changed.only(again).write(table, *keys, -side.before, -side.met, old)
        changed.only(again).write(table, *keys, side.after, met, new)


def _first_of(codes: Int64s, at: Int64s) -> Mask:
    """Which rows are the first of their key and hash; they lie in the order of both."""
    first: Mask = np.ones(len(codes), np.bool_)
    first[1:] = (codes[1:] != codes[:-1]) | (at[1:] != at[:-1])
    return first
