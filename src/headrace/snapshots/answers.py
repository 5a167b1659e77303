"""The answer to a statement: columns with types, and rows in pieces; or only that it was done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.model.amounts import count_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@dataclass
class StatementAnswer:
    """Rows of one epoch. They are taken once."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    epoch: int
    """The epoch that the rows are of; −1: of none."""
    done: str = ""
    """What was done, where there are no rows to give: ``BEGIN``, ``SET``."""

    def table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches, self.schema)


class SqlAnswer:
    """What ``hr.Store(…).sql(…)`` gives: the rows of a SELECT, all of one epoch.

    >>> answer = hr.Store("./state").sql("SELECT tweet, impressions FROM hourly LIMIT 2")    # doctest: +SKIP
    >>> answer.epoch, answer.rows()                                                          # doctest: +SKIP
    (41, [{'tweet': 'tweet-42', 'impressions': 17}, {'tweet': 'tweet-7', 'impressions': 3}])
    """

    def __init__(self, table: pa.Table, epoch: int) -> None:
        self._table = table
        self.epoch = epoch
        """The epoch that the rows are of."""

    def __repr__(self) -> str:
        return f"SqlAnswer({count_of(len(self), 'row')}, epoch {self.epoch})"

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.schema.names)

    def rows(self) -> list[dict[str, Any]]:
        """Each row as a dict."""
        return list(self._table.to_pylist())

    def to_arrow(self) -> pa.Table:
        """The rows as a table of Arrow."""
        return self._table

    def to_polars(self) -> pl.DataFrame:
        """The same as a DataFrame of polars."""
        from headrace.read.columns import polars_frame

        return polars_frame(self._table)

    def to_pandas(self) -> pd.DataFrame:
        """The same as a DataFrame of pandas."""
        return self._table.to_pandas()
