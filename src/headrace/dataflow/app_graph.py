"""The graph of an app while it grows: nodes are added, named, and in a notebook replaced.

In a notebook a cell that is run again replaces what it said before: a step, source or output takes the place of the one
with the same name from an earlier cell, and what hung on the old one goes with it. In a program that runs from a file,
using a name twice is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace.dataflow import site
from headrace.dataflow.graph import AsyncNode, Node, WriteNode, downstream
from headrace.dataflow.naming import check_name
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.update_kinds import check_kinds, derive_kind
from headrace.dataflow.writing import output_name, output_stem
from headrace.errors import ProgramError
from headrace.model.requests import CARRIED

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import Sink
    from headrace.model.rows import RowCodec


class AppGraph:
    """What streams know of their app: its name and its nodes."""

    def __init__(self, name: str) -> None:
        self.name = check_name(name, "an app", str(call_site()))
        self._nodes: list[Node] = []
        self._next_id = 0
        self.own_settings: dict[str, Any] = {}
        """What the text of a program says of its runs, by SET; what is said at the start counts more."""
        self.catalog: Any = None
        """What SQL can read (`headrace.tables.catalog`), made when it is first asked for."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Everything that was said, in the order it was said; for tools. What will run is `checks.reachable`."""
        return tuple(self._nodes)

    def _add(self, kind: Any, at: Site, codec: RowCodec, **fields: Any) -> Node:
        node: Node = kind(id=self._next_id, at=at, cell=site.current_cell(), codec=codec, **fields)
        node.kind = derive_kind(node)
        check_kinds(node, at)
        self._next_id += 1
        self._nodes.append(node)
        return node

    def _name(self, node: Node, name: str, was: str | None, at: Site) -> None:
        if was is not None:
            check_name(was, "a former step", str(at))
            if was == name:
                raise ProgramError(
                    "was= names the step itself",
                    where=str(at),
                    expected="the name that the step had in an earlier version of the program",
                    found=f"named({name!r}, was={was!r})",
                    next_move="leave was= out: the step still has its name",
                )
        node.name, node.was = name, was
        self._claim(node, name, at)

    def _claim(self, node: Node, name: str, at: Site) -> None:
        """Let a node have a name; in a notebook the one that has it from an earlier cell goes away."""
        for other in [each for each in self._nodes if each.name == name and _share_names(each, node)]:
            replaces = node.cell is not None and other.cell != node.cell
            gone = downstream(self._nodes, other) if replaces else set()
            if not replaces or node in gone:
                node.name = None
                raise ProgramError(
                    f"two steps are named {name!r}",
                    where=str(at),
                    expected="a name of its own for each source and step",
                    found=f"{name!r} at {other.site} too",
                    next_move='give one of them another name: .named("…")',
                )
            self._nodes = [each for each in self._nodes if each not in gone]

    def _forget(self, node: Node) -> None:
        """Take back what an earlier cell of a notebook said."""
        self._nodes = [each for each in self._nodes if each is not node]

    def _settle_names(self) -> None:
        """Give steps that are named by their class their name, once it is clear that nobody named them otherwise."""
        for node in self.nodes:
            name = node.default_name
            if node.name is None and name is not None and node in self._nodes:
                check_name(name, "a step", node.site)
                node.name = name
                self._claim(node, name, node.at)
            if isinstance(node, AsyncNode) and node.loop is not None and node.name is not None:
                # A dot keeps the loop's name apart from names that people give.
                node.loop.name = f"{node.name}.{CARRIED}"
                node.loop.was = None if node.was is None else f"{node.was}.{CARRIED}"

    def _output_name(self, node: Node, sink: Sink, given: str | None, at: Site) -> tuple[str, str]:
        """The name of a new output, and its stem."""
        cell = site.current_cell()
        stem = output_stem(node, sink, given)
        outputs = [each for each in self._nodes if isinstance(each, WriteNode)]
        if cell is not None:
            # What an earlier cell wrote from here by the same kind of sink is written anew by this one.
            old = [each for each in outputs if each.cell != cell and each.stem == stem]
            self._nodes = [each for each in self._nodes if each not in old]
            outputs = [each for each in outputs if each not in old]
        return output_name(node, sink, given, outputs, at), stem

    def _console(self, rows: int) -> Sink:
        from headrace.connectors.console.sink import ConsoleSink

        return ConsoleSink(rows)

    def _archive(self, path: str, key: tuple[str, ...]) -> Sink:
        from headrace.connectors.files.archive import ArchiveSink

        return ArchiveSink(path, key)


class OnGraph(Protocol):
    """A stream, as checks see it."""

    @property
    def app(self) -> AppGraph: ...
    @property
    def node(self) -> Node: ...


def _share_names(a: Node, b: Node) -> bool:
    """Whether two nodes cannot have one name: outputs have names of their own, sources and steps share theirs."""
    return a is not b and isinstance(a, WriteNode) == isinstance(b, WriteNode)
