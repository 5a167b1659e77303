"""What a query can read: the tables and views of an app.

Every named source, every named stream and every step that keeps state under a name is a table of its app; further ones
are added by name. Names are found without regard to case. A catalog belongs to one app and goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.dataflow.graph import CallNode, ChangesNode, ExprNode, KeyedNode, LoopNode, Node, ReadNode, UnionNode
from headrace.dataflow.projection import bare_column
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.model.nearest import nearest
from headrace.model.pairs import PairCodec
from headrace.model.window import WINDOW_END, WINDOW_START
from headrace.windows.kinds import Sliding, Tumbling
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.tables.dialect import ParsedStatement

INSTANT_US: Final = 1
"""The size of windows that hold rows of one time: results of closed windows that are grouped by their window again."""


@dataclass(frozen=True)
class Table:
    """A stream under the name that queries know it by."""

    name: str
    stream: Stream[Any]
    time: str | None = None
    """The column that holds the event time of its rows; None: no column does."""
    primary_key: tuple[str, ...] = ()
    """What the user says is unique, where the stream does not say it itself."""
    clocks: tuple[str, ...] = ()
    """Names that stand for the wall clock: columns AS PROCTIME()."""


@dataclass
class Catalog:
    """The tables and views of one app.

    >>> import headrace as hr
    >>> class Tx(hr.Record):
    ...     card: str
    ...     at: hr.Timestamp
    >>> app = hr.App("shop")
    >>> tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    >>> catalog_of(app).names()
    ['tx']
    >>> catalog_of(app).find("TX").time
    'at'
    """

    app: AppGraph
    tables: dict[str, Table] = field(default_factory=dict)
    views: dict[str, ParsedStatement] = field(default_factory=dict)
    declared: dict[str, Callable[[], Table]] = field(default_factory=dict)
    """Tables that become steps when a query first reads them."""
    results: dict[str, Node] = field(default_factory=dict)
    """What named queries give, by their names in small letters, where that is not the step that has the name."""
    functions: dict[str, Any] = field(default_factory=dict)
    """Functions of Python that queries call (`headrace.tables.python_functions`), by their names in small letters."""
    lookups: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """Makes tables that are asked for single rows (`headrace.tables.lookup_joins`), by their names in small letters."""
    state_ttl: str | None = None
    """For how long joins without a limit keep rows, by the wall clock; None: for ever."""
    emits: dict[str, str] = field(default_factory=dict)
    """When windows give results beside the one at their end: ``early`` every so often, ``allow_late`` for so long."""
    program: Any = None
    """The statements of the app (`headrace.tables.program`), once there are some."""

    def add(self, table: Table, where: str = "") -> None:
        """Make a stream known under a name; a name that is there already is refused."""
        self._refuse_taken(table.name, where)
        self.tables[table.name.lower()] = table

    def add_view(self, name: str, query: ParsedStatement, where: str = "") -> None:
        """Make a query known under a name; it becomes steps where a query reads it."""
        self._refuse_taken(name, where)
        self.views[name.lower()] = query

    def names(self) -> list[str]:
        """All names that a query can read, in the order of the alphabet."""
        own = [table.name for table in self.tables.values()]
        return sorted({*own, *self.views, *self.declared, *(node.name or "" for node in self._named())})

    def declare(self, name: str, read: Callable[[], Table], where: str = "") -> None:
        """Make a table known that becomes steps only when a query reads it."""
        self._refuse_taken(name, where)
        self.declared[name.lower()] = read

    def find(self, name: str) -> Table | ParsedStatement | None:
        """The table or view of a name, or None."""
        low = name.lower()
        if low in self.tables:
            return self.tables[low]
        if low in self.views:
            return self.views[low]
        if low in self.declared:
            self.tables[low] = self.declared[low]()
            return self.tables[low]
        for node in self._named():
            if (node.name or "").lower() == low:
                result = self.results.get(low, node)
                return Table(node.name or "", Stream(self.app, result), time_column(result))
        if "$" in low:
            from headrace.tables.side_tables import side_table

            return side_table(self, name)
        return None

    def missing(self, name: str, others: Mapping[str, Any]) -> ProgramError:
        """What to say about a name that is no table; ``others``: what the query itself has names for."""
        known = sorted({*self.names(), *others})
        close = nearest(name, known)
        return ProgramError(
            f"there is no table {name!r}",
            expected=f"one of {', '.join(known)}" if known else "a source or a named step of this app",
            found=name,
            next_move=f"did you mean {' or '.join(close)}?"
            if close
            else f'give the stream: app.sql("…", {name}=stream), or name its step: .named("{name}")',
        )

    def _named(self) -> list[Node]:
        pairs = (node for node in self.app.nodes if not isinstance(node.codec, PairCodec))
        return [node for node in pairs if node.name is not None and "." not in node.name and _gives_rows(node)]

    def _refuse_taken(self, name: str, where: str) -> None:
        if name.lower() in {known.lower() for known in self.names()}:
            raise ProgramError(
                f"there is a table {name!r} already",
                where=where,
                expected="a name of its own for each table, view, source and step",
                found=name,
                next_move=f"choose another name than {', '.join(self.names())}",
            )


def catalog_of(app: AppGraph) -> Catalog:
    """The catalog of an app; the same one each time."""
    if app.catalog is None:
        app.catalog = Catalog(app)
    found: Catalog = app.catalog
    return found


def _gives_rows(node: Node) -> bool:
    return isinstance(node, ReadNode | LoopNode | KeyedNode | ExprNode | CallNode | UnionNode | ChangesNode)


def time_column(node: Node) -> str | None:
    """The column of a stream that holds the event time of its rows, where one does."""
    match node:
        case ReadNode():
            return None if node.time is None else bare_column(node.time, list(node.codec.names))
        case ExprNode():
            before = time_column(node.inputs[0])
            if before is None or node.op == "where":
                return before
            names = list(node.inputs[0].codec.names)
            return next((name for name, text in node.exprs if bare_column(text, names) == before), None)
        case CallNode(op="filter") | ChangesNode():
            return time_column(node.inputs[0])
        case UnionNode():
            found = {time_column(each) for each in node.inputs}
            return found.pop() if len(found) == 1 else None
    return None


def closed_windows(node: Node) -> tuple[str, str] | None:
    """The columns with start and end of the window that a row is the only result of, where it is one.

    The time of such a row is the last instant of its window.
    """
    match node:
        case ExprNode():
            before = closed_windows(node.inputs[0])
            if before is None or node.op == "where":
                return before
            names = list(node.inputs[0].codec.names)
            kept = {bare_column(text, names): name for name, text in reversed(node.exprs)}
            return (kept[before[0]], kept[before[1]]) if set(before) <= set(kept) else None
        case CallNode(op="filter"):
            return closed_windows(node.inputs[0])
        case KeyedNode(spec=WindowSpec() as spec):
            once = spec.aggs and spec.assigner.timed and spec.assigner.clock == "event" and not spec.repeats
            both = {WINDOW_START, WINDOW_END} <= set(node.codec.names)
            return (WINDOW_START, WINDOW_END) if once and both and spec.function is None else None
    return None


def window_span_us(node: Node) -> int | None:
    """How long the windows of `closed_windows` are, where all are equally long."""
    match node:
        case ExprNode() | CallNode(op="filter"):
            return window_span_us(node.inputs[0])
        case KeyedNode(spec=WindowSpec(assigner=Tumbling() | Sliding() as assigner)) if assigner.size_us > INSTANT_US:
            return assigner.size_us
    return None
