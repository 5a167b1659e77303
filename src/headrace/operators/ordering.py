"""The order of rows of one key: by time, then by input, then by columns of the user's, then by their canonical bytes.

So two rows that differ never tie, and the order does not depend on the way by which rows came. Rows of different keys
are told apart by codes. Only rows of one time and input are compared any further: their columns are looked at in bulk,
and bytes are made only of those that are still alike.

A value that is missing stands last among those of its column, and not-a-number before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Int64s, Rows
from headrace.state.broadcast import canonical

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.order_spec import TimeOrder
    from headrace.state.rows.find import GatheredRows


@dataclass(frozen=True)
class OrderedRows:
    """Rows of some keys, as they are to be handled. Objects are made when somebody asks for them."""

    codes: Int64s
    """Of the keys; never falls."""
    times: Int64s
    port_numbers: Int64s
    inputs: Sequence[Rows]
    places: Int64s
    """Of the rows, among those of all inputs one behind the other."""

    @cached_property
    def at(self) -> list[int]:
        times: list[int] = self.times.tolist()
        return times

    @cached_property
    def ports(self) -> list[int]:
        ports: list[int] = self.port_numbers.tolist()
        return ports

    @cached_property
    def events(self) -> list[Any]:
        events = _objects(self.inputs)
        return [events[i] for i in self.places.tolist()]

    @property
    def only(self) -> Rows:
        """The rows of a step with one input, with their times."""
        (rows,) = self.inputs
        return rows.take(self.places).with_times(self.times)


def in_order(inputs: Sequence[GatheredRows], codecs: Sequence[RowCodec], order: TimeOrder) -> OrderedRows:
    """Rows of all inputs of a step, an input being known by its position."""
    rows = [
        Rows.of_columns(codec, [found.column(i) for i in range(len(codec.schema))])
        for found, codec in zip(inputs, codecs, strict=True)
    ]
    codes = np.concatenate([found.codes for found in inputs])
    at = np.concatenate([found.at for found in inputs])
    ports = np.repeat(np.arange(len(inputs)), [len(found) for found in inputs])
    alone = len(inputs) == 1
    places = np.lexsort((at, codes) if alone else (ports, at, codes))
    same = _same_as_before(codes[places], at[places], *(() if alone else (ports[places],)))
    if same.any():
        columns = [[each.columns[i] for i in order.places(codec)] for each, codec in zip(rows, codecs)]
        tied = _with_neighbours(same)
        groups = np.cumsum(~same, dtype=np.int64)[tied]
        ranks = _column_ranks(columns, ports, places[tied])
        places[tied] = _ranked(places[tied], groups, ranks, lambda: _objects(rows))
    return OrderedRows(codes[places], at[places], ports[places], rows, places)


def order_alike(rows: Rows, order: TimeOrder) -> Int64s:
    """The order of rows that have a time, and no key."""
    assert rows.times is not None
    places = np.argsort(rows.times, kind="stable")
    same = _same_as_before(rows.times[places])
    if same.any():
        tied = _with_neighbours(same)
        columns = [[rows.columns[i] for i in order.places(rows.codec)]]
        ranks = _column_ranks(columns, np.zeros(len(rows), np.int64), places[tied])
        places[tied] = _ranked(places[tied], np.cumsum(~same, dtype=np.int64)[tied], ranks, lambda: rows.objects)
    return places


def _same_as_before(*arrays: Int64s) -> npt.NDArray[np.bool_]:
    """Which places have the same in all arrays as the place before; never the first."""
    same = np.ones(len(arrays[0]), np.bool_)
    same[:1] = False
    for array in arrays:
        same[1:] &= array[1:] == array[:-1]
    return same


def _with_neighbours(same: npt.NDArray[np.bool_]) -> Int64s:
    """The places of all that tie: those like the one before, and what stands before them."""
    tied = same.copy()
    tied[:-1] |= same[1:]
    return np.flatnonzero(tied)


def _objects(inputs: Sequence[Rows]) -> list[Any]:
    """The rows of all inputs, one behind the other."""
    return [event for rows in inputs if len(rows) for event in rows.objects]


def _ranked(rows: Int64s, groups: Int64s, ranks: Sequence[Int64s], objects: Callable[[], Sequence[Any]]) -> Int64s:
    """Rows in the order of their ranks inside their groups, then of their bytes. Groups never fall."""
    order = np.lexsort((*reversed(ranks), groups)) if ranks else np.arange(len(rows))
    same = _same_as_before(groups[order], *(rank[order] for rank in ranks))
    if same.any():
        alike = _with_neighbours(same)
        some, events = order[alike], objects()
        content = pa.array([canonical(events[i]) for i in rows[some].tolist()], pa.binary())
        order[alike] = some[np.lexsort((_rank(content), np.cumsum(~same, dtype=np.int64)[alike]))]
    return rows[order]


def _column_ranks(columns: Sequence[Sequence[pa.Array]], ports: Int64s, places: Int64s) -> list[Int64s]:
    """Of rows at some places of all inputs together, the rank of each value among those of its column and input."""
    ranks: list[Int64s] = []
    start = 0
    for port, mine in enumerate(columns):
        here = np.flatnonzero(ports[places] == port)
        for number, column in enumerate(mine):
            if number == len(ranks):
                ranks.append(np.zeros(len(places), np.int64))
            ranks[number][here] = _rank(column.take(pa.array(places[here] - start)))
        start += int(np.count_nonzero(ports == port))
    return ranks


def _rank(values: pa.Array) -> Int64s:
    ranks: Any = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks.to_numpy(), dtype=np.int64)
