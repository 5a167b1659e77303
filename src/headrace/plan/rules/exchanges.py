"""The JVM writes an exchange itself where no Python is needed between a source and the exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.model.keys import key_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.dataflow.graph import Node
    from headrace.plan.physical import Program, SourcePlan


def write_exchange_in_jvm(program: Program, nodes: Mapping[int, Node]) -> Program:
    sources = (replace(source, direct=_direct_edge(program, source)) for source in program.sources)
    return replace(program, sources=tuple(sources))


def _direct_edge(program: Program, source: SourcePlan) -> int | None:
    """The edge that the JVM can write: the only thing behind the source, and keyed by columns."""
    fragment = source.fragment
    if fragment.ops or fragment.errors or len(fragment.entry) != 1 or fragment.entry[0].kind != "edge":
        return None
    edge = program.edges[fragment.entry[0].place]
    if source.mark is not None or source.generator is not None or edge.looped:
        return None
    if source.time is not None and (program.marks or source.source.has_splits or edge.sources != (source.name,)):
        return None
    columns = None if edge.key is None else edge.key.columns
    if columns is None or key_sql([(name, edge.codec.schema.field(name).type) for name in columns]) is None:
        return None
    return edge.index
