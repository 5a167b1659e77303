"""Columns of partial aggregates that were stored under names that the program has since changed.

A column is called after its aggregate, ``total.sum``, and so are the columns that its rule names (``of``, ``ties``) and
those that results are made of (`headrace.state.panes.about.About.results`). Columns that no aggregate has
(``!seen.max``) keep their names.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from headrace.aggregates.rules import with_columns
from headrace.state.panes.about import parse_about
from headrace.state.panes.table import PANE_COLUMNS, read_about, with_about


def present_schema(stored: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """The columns of a stored table as they are called now. ``names``: of an aggregate then → now.

    Columns of aggregates that are not named are gone: they were taken out, and what has their name now is another one.
    """
    columns = _present_columns(stored, names)
    fields = [with_columns(stored.field(was), columns) for was in columns]
    about = parse_about(read_about(stored))
    results = {
        names[name]: [kind, *(columns.get(part, part) for part in parts)]
        for name, (kind, *parts) in about.results.items()
        if name in names
    }
    text = msgspec.json.encode(msgspec.structs.replace(about, results=results)).decode()
    return with_about(pa.schema(fields, metadata=stored.metadata), text)


def present_rows(rows: pa.RecordBatch, names: Mapping[str, str], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of such a table. ``schema``: what `present_schema` made of its columns."""
    return pa.RecordBatch.from_arrays([rows.column(was) for was in _present_columns(rows.schema, names)], schema=schema)


def _present_columns(stored: pa.Schema, names: Mapping[str, str]) -> dict[str, str]:
    """Stored column → its present name, in the order in which they are stored."""
    columns = {}
    for column in stored.names:
        aggregate, _, part = column.rpartition(".")
        if column in PANE_COLUMNS or column.startswith("!"):
            columns[column] = column
        elif aggregate in names:
            columns[column] = f"{names[aggregate]}.{part}"
    return columns
