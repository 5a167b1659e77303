"""An epoch of a table with one row per key: one commit that replaces, adds and deletes.

Of each key an epoch says one thing: the last row that came for it, or that it goes. Null is a value of a key like all
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.connectors.sink_contract import Release
from headrace.connectors.staged import GONE, read_batches
from headrace.model.report import StagedPart

_GONE: Final = "__headrace_gone"
_PLACE: Final = "__headrace_place"


def read_changes_of_keys(
    parts: Sequence[StagedPart],
    ctx: Release,
    key: tuple[str, ...],
    schema: pa.Schema,
    fit_columns: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> pa.Table:
    """One row for each key of the epoch, and whether it goes. ``fit_columns``: a batch as columns of the table."""
    batches = [
        fit_columns(batch).append_column(_GONE, pa.array(np.full(batch.num_rows, GONE in part.extra)))
        for part in parts
        for batch in read_batches([part], ctx)
    ]
    rows = pa.Table.from_batches(batches, schema.append(pa.field(_GONE, pa.bool_())))
    placed = rows.select(list(key)).append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
    last = placed.group_by(list(key)).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max").to_numpy()
    return rows if len(last) == rows.num_rows else rows.take(pa.array(np.sort(last)))


def merge_rows(table: Any, rows: pa.Table, key: tuple[str, ...], columns: Iterable[str], commit: Any) -> None:
    """Brings the table to what these rows say."""
    same = " AND ".join(f"t.{_quoted(name)} IS NOT DISTINCT FROM s.{_quoted(name)}" for name in key)
    values = {_quoted(name): f"s.{_quoted(name)}" for name in columns}
    merger = table.merge(rows, predicate=same, source_alias="s", target_alias="t", commit_properties=commit)
    merger.when_matched_delete(f"s.{_GONE}").when_matched_update(values, f"NOT s.{_GONE}").when_not_matched_insert(
        values, f"NOT s.{_GONE}"
    ).execute()


def _quoted(name: str) -> str:
    return f"`{name}`" if "`" not in name else '"' + name.replace('"', '""') + '"'
