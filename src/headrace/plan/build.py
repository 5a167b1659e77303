"""From a node to the operator that runs it: the one place that knows both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.dataflow.graph import BatchNode, CallNode, ExprNode, KeyedNode, Node
from headrace.errors import ExpressionError, ProgramError
from headrace.model.expr import supported

if TYPE_CHECKING:
    from headrace.operators.contract import Operator


def operator_builder(node: Node) -> Callable[[], Operator]:
    """A function that makes the node's operator, once per worker. It travels, so it holds no operator itself."""
    match node:
        case KeyedNode():
            return _keyed(node)
        case CallNode():
            from headrace.operators.stateless import call_operator

            return partial(call_operator, node.op, node.label, node.fn, node.codec)
        case BatchNode():
            from headrace.operators.stateless import BatchOperator

            return partial(BatchOperator, node.label, node.fn, node.form, node.codec)
        case ExprNode():
            from headrace.operators.stateless import expression_operator

            return partial(expression_operator, node.op, node.label, node.exprs, node.inputs[0].codec, node.codec)
    raise ProgramError(f"nothing runs a {node.verb}", where=node.site)


def _keyed(node: KeyedNode) -> Callable[[], Operator]:
    step = node.name or ""
    if node.op == "process":
        from headrace.operators.process import ProcessOperator

        return partial(ProcessOperator, step, node.fn, node.decls, node.codec, key_type=node.key.type)
    raise ProgramError(f"nothing runs a {node.verb}", where=node.site)


def uses_watermark(node: KeyedNode) -> bool:
    """Whether a step must know the watermark of its own epoch: only what fires on event time does."""
    return any(decl.kind in ("timer", "timers") for decl in node.decls)


def check_expressions(node: Node) -> None:
    """An expression behind the first Python step runs in the worker, which knows a part of SQL."""
    if not isinstance(node, ExprNode):
        return
    for name, text in node.exprs:
        reason = supported(text, node.inputs[0].codec.schema)
        if reason is not None:
            raise ExpressionError(
                f"{node.verb} cannot evaluate {text!r} in the worker: {reason}",
                where=node.site,
                expected="an expression of the documented subset: this step stands behind a Python step or a fork",
                found=f"{name} = {text}" if name else text,
                next_move="put it right behind read, where any Spark SQL works, or use .map with a Python function",
            )
