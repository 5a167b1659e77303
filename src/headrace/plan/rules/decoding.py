"""Workers decode a source's files themselves where they can.

The JVM hands rows to Python one by one, which costs more than reading them. So where Python can compute everything of
the rows that the JVM would (time, splits, the prefix), Spark hands out pieces of files and the worker decodes them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.sql.expr import parse, supported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.dataflow.graph import Node
    from headrace.plan.physical import Program, SourcePlan


def decode_in_workers(program: Program, nodes: Mapping[int, Node]) -> Program:
    return plan_decoding(program)


def plan_decoding(program: Program, left_to_spark: Collection[str] = ()) -> Program:
    """The program with every source decoded by the workers that can be, but for those with these names.

    A run asks again when it knows more: which side of a backfill it reads, and of which source a worker met a file that
    only Spark decodes.
    """
    sources = (
        replace(source, decoded=source.name not in left_to_spark and _is_decodable(source))
        for source in program.sources
    )
    return replace(program, sources=tuple(sources))


def _is_decodable(source: SourcePlan) -> bool:
    rows = source.source.decoder(source.codec)
    return rows is not None and worker_evaluates(source, tells_splits=rows.tells_splits)


def worker_evaluates(source: SourcePlan, *, tells_splits: bool = False) -> bool:
    """Whether the worker can compute everything of a source that the JVM would: its time, splits and prefix.

    ``tells_splits``: the split of each row comes with it.
    """
    fields = source.codec.schema
    if source.source.has_splits and not tells_splits and not _names_split(source):
        return False
    times = [text for text in (source.time, source.mark) if text is not None and text not in fields.names]
    if any(supported(text, fields) is not None for text in times):
        return False
    for step in source.prefix:
        if any(supported(text, fields) is not None for _, text in step.pairs):
            return False
        fields = step.out
    return True


def _names_split(source: SourcePlan) -> bool:
    """Whether a row names its split to everybody alike: Spark asks a file before defaults are filled in."""
    text = source.source.split_of_row(source.codec)
    defaults = {name for name, value in source.codec.defaults.items() if value is not None}
    return text is not None and not defaults.intersection(parse(text).columns)
