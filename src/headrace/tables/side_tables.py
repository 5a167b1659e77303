"""What went wrong, as tables: ``t$errors`` are rows that could not be read or whose function raised, ``v$late`` those
that came when the watermark had passed them.

Reading one turns it on: until then an undecodable row stops the job, and late rows are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.dataflow.graph import ExprNode, KeyedNode, Node, ReadNode, TapNode
from headrace.dataflow.keyed import StepStream
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.tables.catalog import Table, time_column

if TYPE_CHECKING:
    from headrace.tables.catalog import Catalog

MARK: Final = "$"
ERRORS: Final = "errors"
LATE: Final = "late"


def side_table(catalog: Catalog, name: str) -> Table | None:
    """The table of a name with a ``$`` in it; None where there is no table before it."""
    base, _, side = name.rpartition(MARK)
    found = catalog.find(base)
    if not isinstance(found, Table):
        return None
    if side.lower() == ERRORS:
        rows: Stream[Any] = Stream[Any](catalog.app, _step(found.stream.node, ReadNode, base, "errors")).errors
        return Table(name, rows)
    if side.lower() == LATE:
        step = _step(found.stream.node, KeyedNode, base, "late rows")
        late: Stream[Any] = StepStream[Any, Any](catalog.app, step).late
        return Table(name, late, time_column(late.node.inputs[0].inputs[0]))
    raise ProgramError(
        f"tables have no {MARK}{side}", expected=f"{base}{MARK}{ERRORS} or {base}{MARK}{LATE}", found=name
    )


def _step(node: Node, kind: type[Node], base: str, what: str) -> Node:
    """The step behind a table of which there are errors or late rows; expressions may stand between."""
    while isinstance(node, ExprNode | TapNode):
        node = node.inputs[0]
    if isinstance(node, kind):
        return node
    raise ProgramError(
        f"{base} has no {what} of its own",
        expected="a table that CREATE TABLE reads, for $errors; for $late a view or query that groups by windows",
        found=f"{base}: {node.verb}",
        next_move="name the step: CREATE MATERIALIZED VIEW, or .named(…) in Python",
    )
