"""Steps that await: what ``map_async`` and ``lookup`` are given, checked.

This module says and checks; `headrace.operators.asynchronous` makes the requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.dataflow.functions import function_types
from headrace.dataflow.graph import AsyncNode, FeedNode, LoopNode, Node, TapNode
from headrace.dataflow.outputs import describe_function, output_type
from headrace.dataflow.site import Site, call_site
from headrace.errors import ProgramError
from headrace.model.requests import CARRIED, AsyncFunction, CachePlan, RequestPlan, Retry
from headrace.model.shapes import split_optional
from headrace.model.time import Span, span_us

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.model.rows import RowCodec


def retry(times: int, wait: Span = "100ms", factor: float = 2.0, *, when: Callable[[Any], bool] | None = None) -> Retry:
    """Makes a request again, up to so many times: ``hr.retry(3, "100ms")`` waits 100, 200 and 400 ms.

    ``when`` is asked about each exception and each result, and says whether to try again; without it every exception
    is tried again and every result is taken. The step's ``timeout`` spans all tries.

    >>> import headrace as hr
    >>> hr.retry(3, "100ms", when=lambda got: isinstance(got, ConnectionError) or got is None).times
    3
    """
    where = str(call_site())
    if not isinstance(times, int) or isinstance(times, bool) or times < 0:
        raise ProgramError("retry needs a number of times", where=where, expected="0, 1, 2, …", found=repr(times))
    if not isinstance(factor, int | float) or factor < 1:
        raise ProgramError(
            "factor= must be 1.0 or more", where=where, expected="factor=1.0 or more", found=repr(factor)
        )
    if when is not None and not callable(when):
        raise ProgramError(
            "when= must be a function",
            where=where,
            expected="a function of an exception or a result",
            found=repr(when),
        )
    return Retry(times, span_us(wait, what="wait", where=where), float(factor), when)


def request_plan(
    verb: str, fn: Any, at: Site, *, capacity: Any, timeout: Any, retry: Any, ordered: bool = True, wait: Any = "epoch"
) -> RequestPlan:
    """Checks what a step that awaits was given. Raises ProgramError."""
    where = str(at)
    _check_function(verb, fn, where)
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise ProgramError(
            f"capacity= of {verb} must be 1 or more", where=where, expected="capacity=1 or more", found=repr(capacity)
        )
    timeout_us = span_us(timeout, what="timeout", where=where)
    if timeout_us <= 0:
        raise ProgramError(
            f"timeout= of {verb} must be greater than zero", where=where, expected='timeout="10s"', found=repr(timeout)
        )
    if retry is not None and not isinstance(retry, Retry):
        raise ProgramError("retry= takes hr.retry", where=where, expected='hr.retry(3, "100ms")', found=repr(retry))
    if wait not in ("epoch", "carry"):
        raise ProgramError("wait= must be epoch or carry", where=where, expected='"epoch" or "carry"', found=repr(wait))
    if wait == "carry" and ordered:
        raise ProgramError(
            "carried requests cannot come out in order",
            where=where,
            expected='ordered=False beside wait="carry"',
            found="ordered=True",
            next_move='say ordered=False, or wait="epoch" to keep the order',
        )
    return RequestPlan(fn, capacity, timeout_us, retry or Retry(), ordered, wait)


def _check_function(verb: str, fn: Any, where: str) -> None:
    if isinstance(fn, type) and issubclass(fn, AsyncFunction):
        raise ProgramError(
            f"{verb} takes an instance of {fn.__name__}",
            where=where,
            expected=f"{verb}({fn.__name__}(…))",
            found=f"the class {fn.__name__}",
            next_move="add the parentheses",
        )
    if isinstance(fn, AsyncFunction):
        if type(fn).call is AsyncFunction.call:
            name = type(fn).__name__
            raise ProgramError(
                f"{name} makes no request",
                where=where,
                expected="async def call(self, row)",
                found="a class without it",
            )
        return
    if not callable(fn):
        raise ProgramError(
            f"{verb} needs a function that awaits",
            where=where,
            expected="an async def, or an instance of a class derived from hr.AsyncFunction[In, Out]",
            found=repr(fn),
        )
    if inspect.isasyncgenfunction(fn):
        raise ProgramError(
            f"{verb} takes one row from each call",
            where=where,
            expected=f"async def {describe_function(fn)}(row) that returns a row",
            found="one that yields",
            next_move="return one row per call, or a list of them and flat_map behind it",
        )
    if inspect.isfunction(fn) and not inspect.iscoroutinefunction(fn) and fn.__name__ != "<lambda>":
        raise ProgramError(
            f"{verb} needs a function that awaits",
            where=where,
            expected=f"async def {describe_function(fn)}(row)",
            found=f"def {describe_function(fn)}",
            next_move="write async before def, or use map",
        )


def add_carrying(app: AppGraph, before: Node, plan: RequestPlan, codec: RowCodec, at: Site) -> AsyncNode:
    """A step that leaves open requests to the next epoch: a loop of its own brings back their rows."""
    loop = app._add(LoopNode, at, before.codec, inputs=())
    assert isinstance(loop, LoopNode)
    node = app._add(AsyncNode, at, codec, inputs=(before, loop), plan=plan, loop=loop)
    assert isinstance(node, AsyncNode)
    carried = app._add(TapNode, at, before.codec, inputs=(node,), tag=CARRIED)
    loop.fed_by = app._add(FeedNode, at, before.codec, inputs=(carried,), loop=loop)  # type: ignore[assignment]
    return node


def cache_plan(cache: Span | None, size: Any, none: bool, at: Site) -> CachePlan | None:
    """Checks how a lookup remembers answers. Raises ProgramError."""
    if cache is None:
        return None
    for_us = span_us(cache, what="cache", where=str(at))
    if for_us <= 0:
        raise ProgramError(
            "cache= must be greater than zero", where=str(at), expected='cache="10m", or None', found=repr(cache)
        )
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ProgramError(
            "cache_size= must be 1 or more", where=str(at), expected="cache_size=1 or more", found=repr(size)
        )  # fmt: skip
    return CachePlan(for_us, size, bool(none))


def answer_type(fn: Any, *, verb: str, given: Any, at: Site, optional: bool = False) -> Any:
    """The type of the rows that requests give: from ``output=``, the class's Out, or the annotation.

    ``optional``: a request may give nothing.
    """
    target = fn.call if isinstance(fn, AsyncFunction) else fn
    if given is None and isinstance(fn, AsyncFunction):
        _, out = function_types(type(fn), AsyncFunction, 2)
        given = fn.output if out is Any else out
    found = output_type(target, verb=verb, given=given, many=False, at=at, optional=optional)
    return split_optional(found)[0] if optional else found
