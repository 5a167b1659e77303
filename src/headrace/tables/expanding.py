"""Rows made of rows, in columns: one for each window that a row lies in, for each element of an array, or for each time
that a row is meant.

The functions here are given to ``map_batches``; they say for each row which one it is made of, so that it keeps that
one's event time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.expansion import ROW_TIME, SOURCE_ROW
from headrace.model.record import row_type
from headrace.model.time import Timestamp
from headrace.model.window import WINDOW_END, WINDOW_START
from headrace.sql.expr import quote_name
from headrace.tables.context import QueryContext, free_name
from headrace.tables.scope import (
    WINDOW_TIME,
    AtTree,
    QueryPlace,
    Relation,
    ScopeColumn,
    bare_field,
    expression_sql,
    window_time_sql,
)
from headrace.windows.kinds import Assigner, Session

_TIMES = pa.timestamp("us", "UTC")


class RowsInWindows:
    """Each row once for each window that it lies in, with the bounds; its time is then the end of the window."""

    def __init__(self, assigner: Assigner, time: str, start: str, end: str) -> None:
        self.assigner, self.time, self.start, self.end = assigner, time, start, end

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        known = batch.column(self.time).is_valid()
        places = np.flatnonzero(known.to_numpy(zero_copy_only=False))
        times = batch.column(self.time).filter(known).cast(pa.int64()).to_numpy(zero_copy_only=False)
        rows, starts, ends = self.assigner.assign(times)
        positions = places if rows is None else places[rows]
        table = pa.Table.from_batches([batch]).take(pa.array(positions))
        for name, values in ((self.start, starts), (self.end, ends)):
            table = table.append_column(name, pa.array(values, pa.int64()).cast(_TIMES))
        return table.append_column(ROW_TIME, pa.array(ends - 1, pa.int64()))


class RowsOfElements:
    """Each row once for each element of an array; of a map, for each key with its value."""

    def __init__(self, column: str, names: tuple[str, ...], position: str, first: int, outer: bool) -> None:
        self.column, self.names, self.outer = column, names, outer
        self.position, self.first = position, first

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        lists = batch.column(self.column)
        lengths = pc.list_value_length(_as_list(lists)).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        times = np.maximum(lengths, 1) if self.outer else lengths
        rows = np.repeat(np.arange(batch.num_rows), times)
        first = np.cumsum(times) - times
        within = np.arange(len(rows)) - first[rows]
        there = within < lengths[rows]
        # Elements of one row lie side by side, but for rows that have none and are there all the same.
        at = np.where(there, np.cumsum(there) - 1, -1)
        taken = pa.array(at, mask=at < 0)
        table = pa.Table.from_batches([batch]).take(pa.array(rows))
        for name, values in zip(self.names, _elements(lists), strict=True):
            table = table.append_column(name, values.take(taken))
        if self.position:
            table = table.append_column(self.position, pa.array(within + self.first, mask=~there))
        return table.append_column(SOURCE_ROW, pa.array(rows))


class RepeatedRows:
    """Each row as often as a column says."""

    def __init__(self, column: str) -> None:
        self.column = column

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        times = np.maximum(batch.column(self.column).to_numpy(zero_copy_only=False), 0)
        rows = np.repeat(np.arange(batch.num_rows), times)
        return pa.Table.from_batches([batch]).take(pa.array(rows)).append_column(SOURCE_ROW, pa.array(rows))


def _as_list(array: pa.Array) -> pa.Array:
    if not pa.types.is_map(array.type):
        return array
    pairs = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    return pc.cast(array, pa.list_(pairs))


def _elements(array: pa.Array) -> list[pa.Array]:
    flat = _as_list(array).flatten()
    return [flat.field(0), flat.field(1)] if pa.types.is_map(array.type) else [flat]


# --- relations


def in_windows(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    """The rows in their windows, the bounds as columns, if they are to be put in some."""
    assigner = relation.assigner
    if assigner is None:
        return relation
    if isinstance(assigner, Session):
        raise ctx.place.error(
            tree, "sessions have to be grouped by", expected="GROUP BY window_start, window_end and the keys",
            next_move="which session a row lies in is known only when the session is over",
        )  # fmt: skip
    if relation.stream.node.kind.corrects:
        raise ctx.place.error(
            tree, "rows that are taken back cannot be put in windows", expected="rows that each stand for themselves"
        )
    codec = relation.stream.node.codec
    fields = {quote_name(name): name for name in codec.names}
    stream, time = relation.stream, fields.get(relation.time or "")
    with AtTree(ctx.place, tree):
        if time is None:
            time = free_name("row_time", codec.names)
            assert relation.time is not None, "a window function was given the time of its rows"
            stream = stream.with_columns(**{time: relation.time})
        names = stream.node.codec.names
        start, end = free_name(WINDOW_START, names), free_name(WINDOW_END, [*names, WINDOW_START])
        into = row_type("Row", {**stream.node.codec.annotations, start: Timestamp, end: Timestamp})
        stream = stream.map_batches(RowsInWindows(assigner, time, start, end), into, form="arrow")
    texts = {WINDOW_START: quote_name(start), WINDOW_END: quote_name(end)}
    last = texts[WINDOW_TIME] = window_time_sql(quote_name(end))
    columns = tuple(replace(c, text=texts[c.role], role="") if c.role and not c.text else c for c in relation.columns)
    return Relation(stream, columns, last, closed=(texts[WINDOW_START], texts[WINDOW_END]))


def unnested(
    ctx: QueryContext, relation: Relation, array: Any, alias: Any, tree: Any, *, outer: bool, position: int | None
) -> Relation:
    """Each row beside each element of one of its arrays. ``alias``: what the columns are called.

    ``position``: what the first element is counted as. From 1 it stands behind the element, as by WITH ORDINALITY; from
    0 in front, as by POSEXPLODE.
    """
    place = ctx.place
    stream = relation.stream
    column = bare_field(relation, array, place)
    if column is None:
        column = free_name("elements", relation.fields)
        with AtTree(place, array):
            stream = stream.with_columns(**{column: expression_sql(relation, array, place)})
    kind = stream.node.codec.schema.field(column).type
    types = _element_types(kind, array, place)
    names = [each.name for each in (alias.columns if alias is not None else ())]
    table = alias.name if alias is not None else ""
    if not names and table and len(types) == 1 and position is None:
        names = [table]
    elements = ["key", "value"] if len(types) == 2 else ["col"]
    defaults = elements if position is None else [*elements, "pos"] if position else ["pos", *elements]
    wanted = len(defaults)
    if len(names) > wanted:
        raise place.error(tree, f"this gives {wanted} columns", expected=", ".join(defaults))
    names += defaults[len(names) :]
    fields: list[str] = []
    for name in names:
        fields.append(free_name(name, [*stream.node.codec.names, *fields]))
    counted = "" if position is None else fields[-1] if position else fields[0]
    values = tuple(name for name in fields if name != counted)
    added = dict(zip(values, types, strict=True)) | ({counted: int} if counted else {})
    into = row_type("Row", {**stream.node.codec.annotations, **{name: kind | None for name, kind in added.items()}})
    rows = RowsOfElements(column, values, counted, position or 0, outer)
    with AtTree(place, tree):
        stream = stream.map_batches(rows, into, form="arrow")
    columns = [ScopeColumn(table, name, quote_name(each)) for name, each in zip(names, fields, strict=True)]
    return replace(relation, stream=stream, columns=(*relation.columns, *columns))


def _element_types(kind: pa.DataType, tree: Any, place: QueryPlace) -> list[Any]:
    from headrace.model.shapes import annotation_of

    if pa.types.is_map(kind):
        return [annotation_of(kind.key_type), annotation_of(kind.item_type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [annotation_of(kind.value_type)]
    raise place.error(tree, "only arrays and maps have elements", expected="UNNEST(an array), EXPLODE(an array)")
