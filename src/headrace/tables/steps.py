"""Names of the steps that a query becomes: identity of what they keep, so they must not change without need.

The outermost step that keeps state has the name of the query. Any other is named by the query, what it does (its role)
and six letters of a digest over what makes it that step: its role, the tables it reads and its key; where a query has
two such steps, over all of the subquery that it stands for. Neither the place of a step in the plan nor the order in
which it was made has a part in it, so a planner that does things in another way still finds the state.

What this module deliberately does not do: say whether state of a changed query still fits; `headrace.upgrade` does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from headrace.dataflow.graph import ExprNode, KeyedNode, MeasureNode, Node
from headrace.dataflow.stream import Stream
from headrace.tables.catalog import catalog_of
from headrace.tables.dialect import render

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.dataflow.site import Site


@dataclass(frozen=True)
class QueryStep:
    """A step that keeps state, on behalf of a part of a query."""

    node: Node
    role: str
    identity: str
    """What makes it this step: its tables and its key."""
    subplan: str
    """The canonical text of all that it computes."""


@dataclass
class QuerySteps:
    """The steps of one query, until they are named."""

    steps: list[QueryStep] = field(default_factory=list)

    def add(self, stream: Any, role: str, tree: Any, key: object = "") -> None:
        """A step that was made for a part of the query; ``key``: what its rows are brought together by."""
        if isinstance(stream.node, KeyedNode):
            stream.node.narrows = True
        identity = f"{role} by {key} of {', '.join(tables_of(tree))}"
        self.steps.append(QueryStep(stream.node, role, identity, render(tree)))

    def names(self, query: str, result: Node) -> dict[Node, str]:
        """The name of each step that nobody named."""
        outermost = _outermost(result)
        inner = [step for step in self.steps if step.node is not outermost and step.node.name is None]
        same = Counter(step.identity for step in inner)
        named: dict[Node, str] = {}
        times: Counter[str] = Counter()
        for step in inner:
            told_by = step.identity if same[step.identity] == 1 else f"{step.identity}: {step.subplan}"
            # The same text over the same tables, twice: by the order in which they stand.
            times[told_by] += 1
            if times[told_by] > 1:
                told_by += f" ({times[told_by]})"
            digest = sha256(told_by.encode()).hexdigest()[:6]
            named[step.node] = f"{query[: 100 - len(step.role) - 8]}_{step.role}_{digest}"
        if any(step.node is outermost for step in self.steps) and outermost.name is None:
            named[outermost] = query
        return named


class QueryStream(Stream[Any]):
    """What a query gives. Its name is the name of the query: all steps of it that keep state are named by it."""

    def __init__(self, app: AppGraph, node: Node, steps: QuerySteps) -> None:
        super().__init__(app, node)
        self.steps = steps
        # What a query keeps follows from its text, and not from who reads its result.
        node.whole = node.whole or bool(steps.steps)

    def named(self, name: str, *, was: str | None = None) -> QueryStream:
        """The same stream; the query is named, and by it every step that it became and that keeps state."""
        from headrace.dataflow.naming import check_name
        from headrace.dataflow.site import call_site

        self.name_steps(check_name(name, "a query", str(call_site())), was, call_site())
        return self

    def name_steps(self, name: str, was: str | None, at: Site) -> None:
        """Names what keeps state, and the result, where it has no name yet."""
        names = self.steps.names(name, self._node)
        former = {} if was is None else self.steps.names(was, self._node)
        for node, text in names.items():
            self._app._name(node, text, former.get(node), at)
        if self._node.name is None and name not in names.values():
            self._app._name(self._node, name, None, at)
        # The name stands at what keeps state; who reads the query wants what is made of that.
        catalog_of(self._app).results[name.lower()] = self._node


def _outermost(result: Node) -> Node:
    """The step behind which nothing is left but expressions."""
    node = result
    while isinstance(node, ExprNode | MeasureNode):
        node = node.inputs[0]
    return node


def tables_of(tree: Any) -> list[str]:
    """The names of the tables that a part of a query reads."""
    from sqlglot import exp

    names = {table.name.lower() for table in tree.find_all(exp.Table)}
    return sorted({name for name in names if name} | {_written_name(values) for values in tree.find_all(exp.Values)})


def _written_name(values: Any) -> str:
    """What stands for rows that are written down in a query: they are another table when they are other rows."""
    return f"values_{sha256(render(values).encode()).hexdigest()[:6]}"
