"""A state as a DataFrame. Records keep the types of their columns, so that times stay times."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp

if TYPE_CHECKING:
    import polars as pl

    from headrace.read.shape import Kind

_TIME = pa.timestamp("us", "UTC")


def to_frame(kind: Kind, pairs: Iterable[tuple[Any, Any]], annotation: Any) -> pl.DataFrame:
    """Keys and values as columns; entries and elements as rows of their own."""
    import polars as pl

    part = _part_type(kind, annotation)
    match kind:
        case "value":
            keys, values = _unzip(pairs, 2)
            columns = {"key": _series(keys), "value": _typed(values, part)}
        case "map":
            keys, names, values = _unzip(((k, name, v) for k, held in pairs for name, v in held.items()), 3)
            columns = {"key": _series(keys), "entry": _series(names), "value": _typed(values, part)}
        case "list":
            keys, places, values = _unzip(((k, i, v) for k, held in pairs for i, v in enumerate(held)), 3)
            columns = {"key": _series(keys), "index": _series(places), "value": _typed(values, part)}
        case "timers":
            keys, times = _unzip(((k, at) for k, held in pairs for at in held), 2)
            columns = {"key": _series(keys), "at": _typed(times, Timestamp)}
    return pl.DataFrame(columns)


def _unzip(rows: Iterable[tuple[Any, ...]], width: int) -> list[list[Any]]:
    columns: list[list[Any]] = [[] for _ in range(width)]
    for row in rows:
        for column, cell in zip(columns, row):
            column.append(cell)
    return columns


def _part_type(kind: Kind, annotation: Any) -> Any:
    if kind == "value":
        return annotation
    parts = typing.get_args(annotation)
    return parts[-1] if parts else None


def _typed(values: list[Any], annotation: Any) -> pl.Series:
    import polars as pl

    if annotation is Timestamp:
        return _from_arrow(pa.array(values, pa.int64()).cast(_TIME))
    if isinstance(annotation, type) and issubclass(annotation, Record):
        codec = codec_of(annotation)
        arrays = codec.to_arrays(values)
        return _from_arrow(pa.StructArray.from_arrays(arrays, fields=list(codec.schema)))
    return _series(values) if values else pl.Series(values=[])


def _series(values: list[Any]) -> pl.Series:
    import polars as pl

    if any(isinstance(value, tuple) for value in values):
        # Parts of a composite key differ in type, which a list column could not hold.
        values = [{f"part_{i}": part for i, part in enumerate(value)} for value in values]
    return pl.Series(values=values, strict=False)


def _from_arrow(array: pa.Array) -> pl.Series:
    import polars as pl

    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series)
    return series
