"""Where rows come from: ``hr.source.items``, ``generator``, ``files`` and ``spark``.

Each function describes a source; ``app.read(name, source, Type)`` reads it. Writing one of your own: derive from
`headrace.sources.contract.Source`, and let `headrace.testing.sources.verify_source` try to break it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.sources.contract import Source
from headrace.sources.files import FilesSource, Format
from headrace.sources.generator import ColumnFunction, GeneratorSource
from headrace.sources.items import ItemsSource
from headrace.sources.making import RowFunction
from headrace.sources.structured import StructuredSource

__all__ = ["files", "generator", "items", "spark"]


def items(rows: Iterable[Any], *, per_epoch: int | None = None, partitions: int = 1) -> Source:
    """Rows given in the program: for tests, notebooks and small reference data. Bounded.

    `per_epoch` spreads them over several epochs; `partitions` lets several tasks read them.

    >>> from headrace.model.record import Record
    >>> class Click(Record):
    ...     user: str
    >>> items([Click("ann"), Click("bob")]).describe()
    'items (2 rows)'
    """
    return ItemsSource(rows, per_epoch, partitions)


def generator(
    fn: RowFunction | None = None,
    *,
    columns: ColumnFunction | None = None,
    rate: float | None = 1000,
    total: int | None = None,
    seed: int = 1,
    partitions: int = 1,
    per_epoch: int | None = None,
) -> Source:
    """Rows made on the spot: ``fn(i, rng)`` returns row number `i`, using nothing but `i` and `rng`.

    `rate` is rows per second (None: as fast as possible), `total` bounds the whole, `per_epoch` an epoch. The same
    seed gives the same rows, also after a restart. For volume give ``columns=fn`` instead: ``fn(start, stop)`` returns
    the rows from `start` up to `stop` as an Arrow RecordBatch or a dict of numpy arrays.

    >>> from headrace.model.record import Record
    >>> class Click(Record):
    ...     user: str
    >>> generator(lambda i, rng: Click(f"user-{rng.randrange(10)}"), rate=50, total=100).bounded
    True
    """
    return GeneratorSource(fn, columns, rate=rate, total=total, seed=seed, partitions=partitions, per_epoch=per_epoch)


def files(
    path: str | os.PathLike[str],
    *,
    format: Format = "json",
    glob: str | None = None,
    recursive: bool = False,
    max_files_per_epoch: int | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Source:
    """A folder whose files are read as they appear: JSON lines, CSV or Parquet, also compressed.

    Each file is read once, whole; put it in place complete (write elsewhere, then rename). `glob` picks file names
    (``"*.json"``), `recursive` looks into folders below, `max_files_per_epoch` bounds an epoch. For CSV, `header` says
    whether the first line names the columns, and `names` gives their order where it does not or no file is there yet.
    A row that cannot be decoded stops the job with file and line, or goes to ``stream.errors`` where that is used.

    >>> files("events/", format="csv", glob="*.csv").describe()
    'files events/ (csv)'
    """
    return FilesSource(
        path,
        format,
        glob=glob,
        recursive=recursive,
        max_files_per_epoch=max_files_per_epoch,
        header=header,
        names=names,
        delimiter=delimiter,
    )


def spark(
    format: str,
    *,
    path: str | None = None,
    schema: str | None = None,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    **options: Any,
) -> Source:
    """Any Structured Streaming source. `columns` maps fields to SQL over the source's columns; others go by name.

    `schema` is Spark DDL where the source needs one; `split` is SQL for what orders its rows (a partition number), so
    that the watermark waits for the slowest. Everything else is an option of the source.

    >>> spark("rate", columns={"n": "value", "at": "timestamp"}, rowsPerSecond=10).describe()
    'spark rate'
    """
    return StructuredSource(format, path=path, schema=schema, columns=columns or {}, split=split, options=options)
