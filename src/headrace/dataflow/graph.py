"""The program as the user said it: a graph of nodes, in the order they were said.

Nodes are plain data for the planner. A node's inputs are always older than itself, so the order of creation is a
topological one. `checks.reachable` gives what will run: everything that an output or a queryable step leads back to.
``key_by`` is no node: it is the `KeySpec` of the keyed steps behind it, and steps that hang on the same node with equal
specs share one exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace.dataflow.naming import snake_case
from headrace.dataflow.site import Site
from headrace.dataflow.watermarking import Alignment, Marking
from headrace.model.keyspec import KeySpec
from headrace.model.requests import AsyncFunction
from headrace.model.row_kind import APPEND, StreamKind

if TYPE_CHECKING:
    from headrace.aggregates.declare import Agg
    from headrace.connectors.sink_contract import Sink
    from headrace.connectors.source_contract import Source
    from headrace.model.requests import CachePlan, RequestPlan
    from headrace.model.rows import RowCodec
    from headrace.operators.spec import StepSpec
    from headrace.patterns.measures import Measure
    from headrace.state.handles import StateDecl

ExprOp = Literal["where", "select", "with_columns"]
CallOp = Literal["map", "flat_map", "filter", "only"]
KeyedOp = Literal[
    "process", "reduce", "latest", "aggregate", "top", "window", "join", "connect", "broadcast", "normalise", "settle",
    "match",
]  # fmt: skip
BatchForm = Literal["arrow", "polars", "pandas"]
Fire = Literal["per_row", "per_epoch"]

FUNCTION_OPS = ("process", "connect", "broadcast", "window")
"""Keyed steps that may run a user's function, which names them and may have side outputs."""


@dataclass(eq=False, kw_only=True)
class Node:
    """One thing the user said. Compared by identity."""

    id: int
    inputs: tuple[Node, ...]
    codec: RowCodec
    """Type of the rows that come out; for a write, of those that go in."""
    at: Site
    cell: int | None = None
    name: str | None = None
    was: str | None = None
    placed_by: tuple[str, ...] | None = None
    """Columns by whose values the rows already lie on their shard, in key order; None: unknown or before any key."""
    queryable: bool = False
    whole: bool = False
    """Whether all its columns count as asked for, whoever reads them: so with what a query gives."""
    inner: bool = False
    """Whether it is part of a query, and nobody can name it."""
    kind: StreamKind = APPEND
    """What its rows are to each other: decided by `headrace.dataflow.update_kinds` when the node is added."""

    @property
    def site(self) -> str:
        """The user's line, as text."""
        return str(self.at)

    @property
    def verb(self) -> str:
        """What the user called to make this node."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name, or for a nameless step its verb and place."""
        return self.name or f"{self.verb} at {self.site}"

    @property
    def default_name(self) -> str | None:
        """The name of a step that nobody named: the class of its function, in snake case."""
        return None

    @property
    def stateful(self) -> bool:
        return False


@dataclass(eq=False, kw_only=True)
class ReadNode(Node):
    """A source; its name is the source's name."""

    source: Source
    time: str | None
    """SQL text of the event time over the columns as read."""
    marking: Marking = field(default_factory=Marking)
    """How its rows tell how far time has come."""
    idle_us: int | None = None
    alignment: Alignment = field(default_factory=Alignment)
    definition: Any = None
    """What makes two reads of one name the same one in a notebook."""

    @property
    def out_of_order_us(self) -> int:
        return self.marking.out_of_order_us

    @property
    def verb(self) -> str:
        return "read"


@dataclass(eq=False, kw_only=True)
class LoopNode(Node):
    """Rows that a later step feeds back, an epoch later; its name is the loop's name."""

    fed_by: FeedNode | None = field(default=None, repr=False)

    @property
    def verb(self) -> str:
        return "loop"


@dataclass(eq=False, kw_only=True)
class FeedNode(Node):
    """The end of a stream that goes back into a loop."""

    loop: LoopNode

    @property
    def verb(self) -> str:
        return "feed"


@dataclass(eq=False, kw_only=True)
class ExprNode(Node):
    """Expressions over columns: ``where`` has one pair with an empty name, the others one per column of the output."""

    op: ExprOp
    exprs: tuple[tuple[str, str], ...]
    withdraws: bool = False
    """Whether rows of a key are taken back once they are left out here, or lose their key: what a query means."""

    @property
    def verb(self) -> str:
        return self.op


@dataclass(eq=False, kw_only=True)
class RetimeNode(Node):
    """Rows with another event time, which is not before the one they had."""

    text: str
    """SQL text of it."""

    @property
    def verb(self) -> str:
        return "timed_by"

    @property
    def words(self) -> str:
        return f"timed by {self.text}"


@dataclass(eq=False, kw_only=True)
class CallNode(Node):
    """A Python function per row; for ``only`` the function is the type (or union) to keep."""

    op: CallOp
    fn: Any

    @property
    def verb(self) -> str:
        return self.op


@dataclass(eq=False, kw_only=True)
class MeasureNode(Node):
    """What expressions want to know of the rows of matches, as columns: put between a pattern and a ``select``."""

    measures: tuple[tuple[str, Measure], ...]
    taken: RowCodec
    """Type of the rows that stages take."""
    by_rule: bool = False
    """Whether matches are those of rules, whose stages differ."""

    @property
    def verb(self) -> str:
        return "measure"


@dataclass(eq=False, kw_only=True)
class AsyncNode(Node):
    """A function per row that awaits."""

    plan: RequestPlan
    loop: LoopNode | None = None
    """Brings back the rows whose requests an epoch left open; it is this node's second input."""

    @property
    def verb(self) -> str:
        return "map_async"

    @property
    def default_name(self) -> str | None:
        named = self.loop is not None and isinstance(self.plan.fn, AsyncFunction)
        return snake_case(type(self.plan.fn).__name__) if named else None


@dataclass(eq=False, kw_only=True)
class LookupNode(Node):
    """Each row beside what a function that awaits finds for its key."""

    plan: RequestPlan
    by: KeySpec
    cache: CachePlan | None = None

    @property
    def verb(self) -> str:
        return "lookup"


@dataclass(eq=False, kw_only=True)
class BatchNode(Node):
    """A Python function per batch of columns."""

    fn: Callable[[Any], Any]
    form: BatchForm

    @property
    def verb(self) -> str:
        return "map_batches"


@dataclass(eq=False, kw_only=True)
class UnionNode(Node):
    """All rows of its inputs, which have one type."""

    withdraws: bool = False
    """Whether rows that replace others are taken back, as a query means it: several inputs have no common key."""

    @property
    def verb(self) -> str:
        return "union"


@dataclass(eq=False, kw_only=True)
class ChangesNode(Node):
    """The rows of its input, each to stand for itself: they are no updates any more."""

    column: str = ""
    """The field in which rows have their kind; empty: the rows that came, as they are, for which nothing runs unless
    the input is a changelog."""

    @property
    def verb(self) -> str:
        return "changes"


@dataclass(eq=False, kw_only=True)
class KindNode(Node):
    """Rows as a stream of another kind, put in by the planner: see `headrace.plan.rules.changelogs`."""

    to: Literal["upsert", "changelog"]

    @property
    def verb(self) -> str:
        return f"as {self.to}"

    @property
    def words(self) -> str:
        """What it gives, for people."""
        return "every version" if self.to == "upsert" else "rows that come in"


@dataclass(eq=False, kw_only=True)
class EnvelopeNode(KindNode):
    """What became of the rows of a table, as Debezium tells it: its input has ``before``, ``after`` and ``op``."""

    table_key: tuple[str, ...]
    """The primary key of the table."""

    @property
    def verb(self) -> str:
        return "debezium"

    @property
    def words(self) -> str:
        return "rows of a table, by their changes"


@dataclass(eq=False, kw_only=True)
class KeyedNode(Node):
    """A stateful step. Its first input is the stream that was keyed; further ones bring their own keys."""

    op: KeyedOp
    key: KeySpec
    other_keys: tuple[KeySpec | None, ...] = ()
    """Of the inputs behind the first, one each; None: its rows go to every shard."""
    spec: StepSpec | None = None
    """What kind of step it is, where the kinds of this class do not say it all."""
    fn: Any = None
    """The Process instance, or the function of ``reduce``."""
    aggs: dict[str, Agg[Any]] = field(default_factory=dict)
    decls: tuple[StateDecl, ...] = ()
    fire: Fire = "per_epoch"
    """When ``reduce`` and ``aggregate`` give out results: for each row, or for each changed key once per epoch."""
    carried: tuple[str, ...] = ()
    """Columns of each row that its result has, too."""
    peers: tuple[str, ...] | None = None
    """With a result for each row: rows of one time that are equal in these columns have the one of the last of them."""
    narrows: bool = False
    """Whether it keeps of its rows what is asked of it, and no more, as a query means it."""

    @property
    def verb(self) -> str:
        return self.op

    @property
    def default_name(self) -> str | None:
        named = self.op in FUNCTION_OPS and self.fn is not None and not getattr(self.fn, "nameless", False)
        return snake_case(type(self.fn).__name__) if named else None

    @property
    def stateful(self) -> bool:
        return True

    @property
    def input(self) -> Node:
        return self.inputs[0]

    @property
    def keyed_inputs(self) -> tuple[tuple[Node, KeySpec | None], ...]:
        """Inputs with their keys; the position is the port of the operator."""
        return tuple(zip(self.inputs, (self.key, *self.other_keys), strict=True))

    @property
    def needs_exchange(self) -> bool:
        """False where the rows of the only input already lie on the shard that owns this key."""
        return bool(self.other_keys) or self.key.columns is None or self.key.columns != self.input.placed_by


@dataclass(eq=False, kw_only=True)
class TapNode(Node):
    """What leaves a step beside its main output: ``errors``, ``late`` or ``side:<name>``."""

    tag: str

    @property
    def verb(self) -> str:
        return self.tag.removeprefix("side:") if self.tag.startswith("side:") else self.tag


@dataclass(eq=False, kw_only=True)
class WriteNode(Node):
    """An output. Its name is its identity in the store."""

    sink: Sink
    stem: str = ""
    """What a later cell of a notebook replaces it by: an output of this step and kind, or of this given name."""

    @property
    def verb(self) -> str:
        return "write"


def upstream(ends: Iterable[Node]) -> set[Node]:
    """These nodes and everything they are made from; what is fed into a loop is among it."""
    found: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.inputs)
            if isinstance(node, LoopNode) and node.fed_by is not None:
                waiting.append(node.fed_by)
    return found


def downstream(nodes: Iterable[Node], start: Node) -> set[Node]:
    """A node and everything among `nodes` that is made from it."""
    found = {start}
    for node in nodes:
        if any(before in found for before in node.inputs):
            found.add(node)
    return found


def carrying_nodes(nodes: Iterable[Node]) -> set[Node]:
    """What brings back rows for steps that carry requests: part of those steps, and nothing that a user said."""
    loops = [node.loop for node in nodes if isinstance(node, AsyncNode) and node.loop is not None]
    feeds = [loop.fed_by for loop in loops if loop.fed_by is not None]
    return {*loops, *feeds, *(before for feed in feeds for before in feed.inputs)}


def readers(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Who reads each node, in the order they were said."""
    reading: dict[Node, list[Node]] = {}
    for node in nodes:
        reading.setdefault(node, [])
        for before in node.inputs:
            reading.setdefault(before, []).append(node)
    return reading


def relink_loops(copies: Mapping[Node, Node]) -> None:
    """In a graph that is a copy of another, what leads back leads to the copy, too."""
    for node, copy in copies.items():
        if isinstance(copy, LoopNode) and isinstance(node, LoopNode) and node.fed_by is not None:
            copy.fed_by = copies.get(node.fed_by, node.fed_by)  # type: ignore[assignment]
        if isinstance(copy, FeedNode | AsyncNode) and copy.loop is not None:
            copy.loop = copies.get(copy.loop, copy.loop)  # type: ignore[assignment]
