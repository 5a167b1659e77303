"""Programs of SQL run in the harness over the rows that their own sources would read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.cli.loading import load_app
from headrace.dataflow.graph import ReadNode, WriteNode, upstream


def script(tmp_path: Path, text: str, name: str = "rooms.sql") -> hr.App:
    """The app of a file of statements."""
    path = tmp_path / name
    path.write_text(text)
    return load_app(str(path))


def source_rows(node: ReadNode) -> list[Any]:
    """All rows of a bounded source."""
    reader = node.source.reader(node.codec)
    reader.available_now()
    start, rows = reader.initial(), []
    while (end := reader.latest(start, None)) != start:
        for split in reader.splits(start, end):
            for batch in reader.read(split):
                assert isinstance(batch, pa.RecordBatch)
                rows += node.codec.to_objects(batch.columns)
        start = end
    return rows


def rows_of(app: hr.App, *streams: hr.Stream[Any]) -> Any:
    """The rows of a stream, or of each of several, after all input."""
    with hr.testing.Harness(app) as h:
        for node in sorted(upstream([stream.node for stream in streams]), key=lambda node: node.id):
            if isinstance(node, ReadNode):
                h.push(hr.Stream(app, node), *source_rows(node))
        h.drain()
        results = [h.take(stream) for stream in streams]
    return results[0] if len(results) == 1 else results


def output(app: hr.App, name: str) -> hr.Stream[Any]:
    """What is written to an output."""
    (node,) = [node for node in app.nodes if isinstance(node, WriteNode) and node.name == name]
    return hr.Stream(app, node.inputs[0])


def fields(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Rows as tuples of their fields."""
    return [tuple(getattr(row, name) for name in row.__struct_fields__) for row in rows]
