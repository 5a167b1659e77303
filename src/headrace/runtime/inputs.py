"""The input of a task, as whoever sends it gives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


class InputLost(Exception):
    """Whoever sends the task its input has gone: not an error of the store, so it is not reported as one."""


def read_input(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that somebody sends a task."""
    source = iter(batches)
    while True:
        try:
            batch = next(source)
        except StopIteration:
            return
        except OSError as error:
            raise InputLost(str(error)) from error
        yield batch
