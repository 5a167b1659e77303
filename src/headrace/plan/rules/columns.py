"""Columns that nobody asks for are left out as early as they can be: of exchanges, and of what sources decode.

What is needed is derived backwards through the graph, from outputs to sources. Then projections are put in: before an
exchange whose step reads some of the columns only, and behind a source with several readers. Those right behind a
source become part of its prefix like any other (`headrace.plan.rules.expressions`), so `read_needed_columns` finds in
the prefix which columns a source has to decode.

A step that keeps rows keeps them whole, because a program may ask for other columns tomorrow. Joins and first rows of a
query keep what the query asks for (`KeyedNode.narrows`); so what they keep depends on the text of the query alone, and
never on who reads its result. Functions of the user are given whole rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.dataflow.graph import (
    ChangesNode,
    EnvelopeNode,
    ExprNode,
    KeyedNode,
    KindNode,
    Node,
    ReadNode,
    TapNode,
    UnionNode,
    readers,
    relink_loops,
)
from headrace.dataflow.update_kinds import derive_kind
from headrace.model.amounts import count_of
from headrace.model.fields import former_names
from headrace.model.pairs import PairCodec
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.model.shapes import is_record_class, strip
from headrace.operators.asked import NO_COLUMNS, columns_of, columns_of_aggregates, with_columns
from headrace.operators.changelogs.top_spec import TopSpec
from headrace.plan.build import step_info
from headrace.sql.expr import quote_name, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.operators.asked import Columns
    from headrace.plan.physical import Program, SourcePlan


def keep_needed_columns(nodes: tuple[Node, ...], *, whole_rows: bool = False) -> tuple[Node, ...]:
    """The graph with a projection wherever fewer columns are needed than there are; the graph itself where nowhere.

    ``whole_rows``: only before steps that keep what passes, for somebody who watches the rows of all others.
    """
    return _Narrowing(nodes, whole_rows).narrowed()


# -- what is needed ------------------------------------------------------------------------------------------------


def derive_needs(nodes: tuple[Node, ...]) -> dict[Node, Columns]:
    """Which columns of each node's rows anybody asks for."""
    reading = readers(nodes)
    needs: dict[Node, Columns] = {node: None if node.queryable or node.whole else NO_COLUMNS for node in nodes}
    for node in reversed(nodes):
        if node.kind.corrects:
            # Rows that may go are found by their key.
            needs[node] = with_columns(needs[node], node.kind.key or ())
        tapped = any(isinstance(reader, TapNode) for reader in reading[node])
        if not _is_plain(node.codec):
            needs[node] = None
        for before, needed in zip(node.inputs, derive_input_needs(node, needs[node], tapped=tapped), strict=True):
            needs[before] = None if needed is None else with_columns(needs[before], needed)
    return needs


def _is_plain(codec: RowCodec) -> bool:
    """Whether rows are just their columns. What a step keeps may still have a former name of a field."""
    kind = strip(codec.type)
    return is_record_class(kind) and not former_names(kind)


def derive_input_needs(node: Node, needed: Columns, *, tapped: bool) -> tuple[Columns, ...]:
    """Which columns of each input a node reads, where ``needed`` is asked of it.

    ``tapped``: whether somebody reads what leaves it beside its rows. Rows that failed or came late are told whole.
    """
    everything: tuple[Columns, ...] = (None,) * len(node.inputs)
    if tapped:
        return everything
    match node:
        case ExprNode(op="where"):
            return (with_columns(needed, columns_of([node.exprs[0][1]], node.inputs[0].codec)),)
        case ExprNode():
            pairs = _needed_pairs(node, needed)
            return (columns_of((text for _, text in pairs), node.inputs[0].codec),)
        case EnvelopeNode():
            return everything
        case KindNode() | ChangesNode(column="") | UnionNode():
            return tuple(needed for _ in node.inputs)
        case KeyedNode():
            return _keyed_needs(node, needed)
    return everything


def _keyed_needs(node: KeyedNode, needed: Columns) -> tuple[Columns, ...]:
    """By port. A key that a function makes wants rows as they are."""
    asked: tuple[Columns, ...] = (None,) * len(node.inputs)
    if node.spec is not None:
        asked = node.spec.asked(step_info(node), needed, narrows=node.narrows)
    elif node.op == "aggregate":
        beside = (*node.carried, *(node.peers or ()))
        asked = (with_columns(columns_of_aggregates(node.aggs, node.input.codec), beside),)
    return tuple(
        None if key is None or key.columns is None else with_columns(each, key.columns)
        for each, (_, key) in zip(asked, node.keyed_inputs, strict=True)
    )


def _needed_pairs(node: ExprNode, needed: Columns) -> tuple[tuple[str, str], ...]:
    """The columns that a projection has to compute. Rows without any would not be there."""
    kept = tuple(pair for pair in node.exprs if needed is None or pair[0] in needed)
    return kept or node.exprs[:1]


# -- the other graph -----------------------------------------------------------------------------------------------


class _Narrowing:
    """One graph on its way to another."""

    def __init__(self, nodes: tuple[Node, ...], whole_rows: bool) -> None:
        self._nodes = nodes
        self._whole_rows = whole_rows
        self._needs = derive_needs(nodes)
        self._reading = readers(nodes)
        self._next_id = max((node.id for node in nodes), default=0) + 1
        self._made: list[Node] = []
        self._copies: dict[Node, Node] = {}
        self._only: dict[tuple[int, frozenset[str]], Node] = {}
        self._said = {node.id for node in nodes}
        self._changed = False

    def narrowed(self) -> tuple[Node, ...]:
        for node in self._nodes:
            copy = self._copy(node)
            self._made.append(copy)
            if isinstance(node, ReadNode) and self._needs_projection(node):
                copy = self._narrow(copy, self._needs[node], node)
            self._copies[node] = copy
        relink_loops(self._copies)
        return tuple(self._made) if self._changed else self._nodes

    def _copy(self, node: Node) -> Node:
        needed = self._needs[node]
        inputs = tuple(self._input(before, node) for before in node.inputs)
        codec = node.codec
        exprs: dict[str, Any] = {}
        match node:
            case ExprNode(op="where") | KindNode() | ChangesNode(column="") if not isinstance(node, EnvelopeNode):
                codec = inputs[0].codec
            case ExprNode():
                pairs = _needed_pairs(node, needed)
                codec = self._narrow_codec(node.codec, frozenset(name for name, _ in pairs))
                exprs["exprs"] = pairs
            case UnionNode() if needed is not None:
                codec = self._narrow_codec(node.codec, needed)
            case KeyedNode(codec=PairCodec()) if not _same_codecs(node, inputs):
                codec = PairCodec(inputs[0].codec, inputs[1].codec)
            case KeyedNode(narrows=True) if node.codec is node.input.codec:
                codec = inputs[0].codec
            case KeyedNode(narrows=True, spec=TopSpec(rank=str(rank))):
                codec = self._narrow_codec(node.codec, frozenset((*inputs[0].codec.names, rank)))
        copy = replace(node, inputs=inputs, codec=codec, **exprs)
        if set(copy.placed_by or ()).intersection(node.codec.names).difference(codec.names):
            copy.placed_by = None
        copy.kind = derive_kind(copy)
        return copy

    def _input(self, before: Node, reader: Node) -> Node:
        if isinstance(reader, TapNode):
            return self._whole(before)
        given = self._copies[before]
        if isinstance(reader, UnionNode):
            return self._narrow(given, self._needs[reader], reader)
        if isinstance(reader, KeyedNode) and reader.needs_exchange and (reader.narrows or not self._whole_rows):
            return self._narrow(given, self._for_exchange(before, reader), reader)
        return given

    def _whole(self, before: Node) -> Node:
        """The node itself, and no projection behind it: whoever taps it wants what leaves it beside its rows."""
        copy = self._copies[before]
        return copy.inputs[0] if copy.id not in self._said else copy

    def _for_exchange(self, before: Node, reader: KeyedNode) -> Columns:
        """What a step asks of an exchange. Those that keep no rows share one, with what any of them asks for."""
        sharing = [reader]
        if not reader.narrows:
            sharing = [each for each in self._reading[before] if isinstance(each, KeyedNode) and not each.narrows]
        asked: Columns = frozenset(before.kind.key or () if before.kind.corrects else ())
        for each in sharing:
            ports = [port for port, (node, _) in enumerate(each.keyed_inputs) if node is before]
            mine = [port for port in ports if _same_key(each, port, reader, before)]
            tapped = any(isinstance(tap, TapNode) for tap in self._reading[each])
            needs = derive_input_needs(each, self._needs[each], tapped=tapped)
            for port in mine:
                needed = needs[port]
                asked = None if needed is None else with_columns(asked, needed)
                if asked is None:
                    return None
        return asked

    def _needs_projection(self, read: ReadNode) -> bool:
        """Whether rows of a source come to no projection that the source could begin with.

        They may go several ways before, or there is a filter that has to stand behind the marks of splits.
        """
        node: Node = read
        by_row = read.source.has_splits or read.marking.mark is not None
        while True:
            reading = [each for each in self._reading[node] if not isinstance(each, TapNode)]
            if len(reading) != 1:
                return len(reading) > 1
            if not (isinstance(reading[0], ExprNode) and reading[0].op == "where"):
                return False
            if by_row:
                return True
            node = reading[0]

    def _narrow(self, given: Node, needed: Columns, reader: Node) -> Node:
        """These columns alone, in their order."""
        names = given.codec.names
        if needed is None or not _is_plain(given.codec):
            return given
        kept = needed.intersection(names) or frozenset(names[:1])
        if len(kept) == len(names):
            return given
        known = self._only.get((given.id, kept))
        if known is None:
            codec = self._narrow_codec(given.codec, kept)
            placed = given.placed_by if given.placed_by is not None and kept.issuperset(given.placed_by) else None
            known = ExprNode(
                id=self._next_id, inputs=(given,), codec=codec, at=reader.at, placed_by=placed, op="select",
                exprs=tuple((name, quote_name(name)) for name in codec.names),
            )  # fmt: skip
            known.kind = derive_kind(known)
            self._next_id += 1
            self._only[given.id, kept] = known
            self._made.append(known)
            self._changed = True
        return known

    def _narrow_codec(self, codec: RowCodec, names: frozenset[str]) -> RowCodec:
        if len(names.intersection(codec.names)) == len(codec.names):
            return codec
        self._changed = True
        fields = {name: codec.annotations[name] for name in codec.names if name in names}
        return codec_of(row_type("Row", fields))


def _same_codecs(node: Node, inputs: tuple[Node, ...]) -> bool:
    return all(one.codec is two.codec for one, two in zip(node.inputs, inputs, strict=True))


def _same_key(each: KeyedNode, port: int, reader: KeyedNode, before: Node) -> bool:
    keys = [key for node, key in reader.keyed_inputs if node is before]
    return each.keyed_inputs[port][1] in keys


# -- what sources decode -------------------------------------------------------------------------------------------


def read_needed_columns(program: Program, nodes: Mapping[int, Node]) -> Program:
    """The program in which each source says the columns that its time, its marks and its prefix ask for."""
    return replace(program, sources=tuple(replace(source, reads=_reads(source)) for source in program.sources))


def _reads(source: SourcePlan) -> tuple[str, ...] | None:
    if not source.prefix or source.generator is not None:
        return None
    schema = source.codec.schema
    schemas = [schema, *(step.out for step in source.prefix)]
    needed = set(schemas[-1].names)
    for step, before in zip(reversed(source.prefix), reversed(schemas[:-1]), strict=True):
        texts = [text for name, text in step.pairs if step.verb == "where" or name in needed]
        read = {name for text in texts for name in resolve(text, before).columns}
        needed = needed | read if step.verb == "where" else read
    for text in (source.time, source.mark, source.source.split_of_row(source.codec)):
        if text is not None:
            needed.update((text,) if text in schema.names else resolve(text, schema).columns)
    return tuple(name for name in schema.names if name in needed) if len(needed) < len(schema) else None


def describe_reads(program: Program) -> dict[int, list[str]]:
    """Node of a source → which of its columns are read, in words, where it is not asked for all."""
    return {
        source.node: [f"reads {', '.join(source.reads)} of {count_of(len(source.codec.names), 'column')}"]
        for source in program.sources
        if source.reads is not None
    }
