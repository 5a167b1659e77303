"""Where rows go: ``hr.sink.console``, ``collect``, ``files``, ``call``, ``spark`` and ``discard``.

Each function describes a sink; ``stream.write(sink)`` writes to it. Rows are staged in the store first and released
when their epoch is published. Writing one of your own: derive from `headrace.sinks.contract.Sink`, and let
`headrace.testing.sinks.verify_sink` try to break it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from headrace.sinks.batch_writer import BatchWriterSink
from headrace.sinks.console import ConsoleSink
from headrace.sinks.contract import Sink
from headrace.sinks.driver import CallSink, CollectSink, DiscardSink
from headrace.sinks.files import FilesSink, Format

__all__ = ["call", "collect", "console", "discard", "files", "spark"]


def files(path: str | os.PathLike[str], *, format: Format = "json", partition_by: Iterable[Any] = ()) -> Sink:
    """A folder of JSON lines, CSV or Parquet files. **Exactly once.**

    Readers of the folder see whole files of published epochs and nothing else; after a crash no row is missing and none
    is there twice. `partition_by` puts rows into folders by the values of columns (``day=2024-01-01/``). `path` may be
    a URL that fsspec knows (``s3://…``).

    >>> files("out/", format="parquet", partition_by=("day",)).describe()
    'files out/ (parquet, by day)'
    """
    return FilesSink(path, format, partition_by)


def console(rows: int = 20) -> Sink:
    """The newest rows on the screen: a live table on a terminal, plain lines elsewhere. **At least once.**"""
    return ConsoleSink(rows)


def collect() -> CollectSink:
    """Keeps all rows in the driver, as ``sink.rows``: for bounded runs, notebooks and tests. **Exactly once** per
    process.

    >>> seen = collect()
    >>> seen.rows
    []
    """
    return CollectSink()


def call(fn: Callable[[Any, int], object], *, batch: bool = True) -> Sink:
    """Calls ``fn(rows, epoch)`` in the driver, once per epoch that has rows. **At least once.**

    `rows` is a list of objects; with ``batch=False`` the function gets one row at a time. After a crash the last epoch
    may come again, with the same number and the same rows: remember `epoch` where the rows go to tell.
    """
    return CallSink(fn, batch)


def spark(format: str, *, path: str | None = None, mode: str = "append", **options: Any) -> Sink:
    """Any batch writer of Spark (``jdbc``, ``delta``, ``avro``, …), once per epoch that has rows. **At least once.**

    >>> spark("jdbc", url="jdbc:postgresql://localhost/shop", dbtable="sales").describe()
    'spark jdbc'
    """
    return BatchWriterSink(format, path, mode, options)


def discard() -> DiscardSink:
    """Counts rows (``sink.count``) and drops them: for benchmarks."""
    return DiscardSink()
