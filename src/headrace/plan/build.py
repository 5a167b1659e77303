"""From a node to the operator that runs it: the one place that knows both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.aggregates.accumulate import describe_results
from headrace.aggregates.meaning import describe_meanings
from headrace.dataflow.aggregation import key_columns
from headrace.dataflow.graph import (
    AsyncNode,
    BatchNode,
    CallNode,
    ChangesNode,
    EnvelopeNode,
    ExprNode,
    KeyedNode,
    KindNode,
    LookupNode,
    MeasureNode,
    Node,
    ReadNode,
    RetimeNode,
    upstream,
)
from headrace.errors import ProgramError
from headrace.model.job import ROW, VALUE_TABLE, DeclaredState
from headrace.model.pairs import PairCodec
from headrace.operators.asynchronous import AsyncOperator
from headrace.operators.changelogs.changes import InsertsOperator, SignedOperator, VersionsOperator
from headrace.operators.changelogs.upserts import EnvelopeOperator
from headrace.operators.key_partials import combine_by_key
from headrace.operators.lookups import LookupOperator
from headrace.operators.process import ProcessOperator
from headrace.operators.retiming import RetimeOperator
from headrace.operators.rolling import AggregateOperator, LatestOperator, ReduceOperator
from headrace.operators.spec import CombinedRows, OperatorChoice, StepInfo
from headrace.operators.stateless import BatchOperator, call_operator, expression_operator
from headrace.patterns.measuring import MeasureOperator

if TYPE_CHECKING:
    from headrace.operators.contract import Operator


def operator_builder(node: Node, info: StepInfo | None = None) -> Callable[[], Operator]:
    """A function that makes the node's operator, once per worker. It travels, so it holds no operator itself.

    ``info``: of a keyed step, where it is at hand.
    """
    match node:
        case KeyedNode():
            return _keyed(node, info or step_info(node))
        case CallNode():
            return partial(call_operator, node.op, node.label, node.fn, node.codec)
        case MeasureNode():
            return partial(MeasureOperator, node.label, node.measures, node.taken, node.codec, by_rule=node.by_rule)
        case AsyncNode():
            return partial(AsyncOperator, node.label, node.plan, node.inputs[0].codec, node.codec)
        case LookupNode():
            assert isinstance(node.codec, PairCodec)
            return partial(LookupOperator, node.label, node.plan, node.by, node.cache, node.codec)
        case BatchNode():
            return partial(BatchOperator, node.label, node.fn, node.form, node.codec, time_column=_time_column(node))
        case EnvelopeNode():
            return partial(EnvelopeOperator, node.label, node.codec, node.table_key)
        case KindNode(to="changelog"):
            return partial(InsertsOperator, node.label)
        case ChangesNode(column="") | KindNode():
            return partial(VersionsOperator, node.label)
        case ChangesNode():
            return partial(SignedOperator, node.label, node.codec)
        case RetimeNode():
            return partial(RetimeOperator, node.label, node.text, node.codec)
        case ExprNode():
            return partial(expression_operator, node.op, node.label, node.exprs, node.inputs[0].codec, node.codec)
    raise ProgramError(f"nothing runs a {node.verb}", where=node.site)


def changes_rows(node: ChangesNode) -> bool:
    """Whether ``changes`` has something to do: rows that are versions are as they have to be."""
    return bool(node.column) or node.inputs[0].kind.rows == "changelog"


def _time_column(node: Node) -> str | None:
    """The column of the result that tells event time: the one the source was read by, where it is still there."""
    times = {read.time for read in upstream([node]) if isinstance(read, ReadNode) and read.time is not None}
    time = times.pop() if len(times) == 1 else None
    return time if time in node.codec.names and time in node.inputs[0].codec.names else None


def _keyed(node: KeyedNode, info: StepInfo) -> Callable[[], Operator]:
    step, key_type, per_row = node.name or "", node.key.type, node.fire == "per_row"
    if node.spec is not None:
        return partial(node.spec.build, info)
    match node.op:
        case "process":
            return partial(ProcessOperator, step, node.fn, node.decls, node.codec, key_type=key_type)
        case "reduce":
            return partial(
                ReduceOperator, step, node.fn, node.codec, key_type=key_type, per_row=per_row,
                key_columns=node.key.columns,
            )  # fmt: skip
        case "latest":
            return partial(LatestOperator, step, node.codec, key_type=key_type)
        case "aggregate":
            taken = node.input.codec
            key_fields = tuple(key_columns(taken, node.key))
            return partial(
                AggregateOperator, step, node.aggs, taken, node.codec, key_fields=key_fields, key_type=key_type,
                per_row=per_row, carried=node.carried, peers=node.peers,
            )  # fmt: skip

    raise ProgramError(f"nothing runs a {node.verb}", where=node.site)


def combined_rows(node: KeyedNode, info: StepInfo) -> CombinedRows | None:
    """How the rows of a step are combined before its exchange; None: they travel as they are."""
    if node.spec is not None:
        return node.spec.combined(info)
    if node.op == "aggregate" and node.fire != "per_row":
        return combine_by_key(info.step, node.aggs, node.input.codec)
    return None


def step_info(node: KeyedNode, choice: OperatorChoice | None = None) -> StepInfo:
    """What the spec of a node is told. ``choice``: of an operator, where it was made before."""
    taken = tuple(before.codec for before in node.inputs)
    key_fields = tuple(key_columns(taken[0], node.key))
    info = StepInfo(node.name or "", taken, node.codec, node.key.type, key_fields, node.decls)
    return info if node.spec is None else replace(info, choice=choice or node.spec.choose(info))


def declared_states(node: KeyedNode, info: StepInfo | None = None) -> dict[str, DeclaredState]:
    """States of a step that a reader without the program must know more of than their kind."""
    if node.spec is not None:
        return dict(node.spec.declared(info or step_info(node)))
    taken = node.input.codec
    if node.op in ("latest", "reduce"):
        return {VALUE_TABLE: DeclaredState(ROW, key=tuple(key_columns(taken, node.key)))}
    if node.op != "aggregate":
        return {}
    key = tuple(key_columns(taken, node.key))
    results, meanings = describe_results(node.aggs, taken), describe_meanings(node.aggs, taken, node.codec)
    return {VALUE_TABLE: DeclaredState("aggregate", results=results, key=key, meanings=meanings)}


def step_rules(node: KeyedNode, info: StepInfo) -> dict[str, str]:
    """What a step does with what it keeps, for the programs that come after this one."""
    rules = {"key": str(node.key), "rows": node.op}
    return rules if node.spec is None else {**rules, **node.spec.rules(info)}


def uses_watermark(node: KeyedNode) -> bool:
    """Whether a step must know the watermark of its own epoch: only what fires on event time does."""
    if node.spec is not None and node.spec.uses_watermark:
        return True
    return any(decl.kind in ("timer", "timers") for decl in node.decls)
