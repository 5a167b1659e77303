"""Where rows have to be taken back, a step is put in that keeps what was given out: *normalise*.

Rolling steps give the row of a key anew, which is enough for whoever wants the newest. Who has to be told what a row
replaces (`takes_changelog`) reads a changelog instead, and so do the steps without state on the way. All others go on
as they did: who takes no changelog is given versions of it. The step is named after the one whose rows it keeps, so
that its state is found again.

Windows are given the rows that hold when they are over, by a step before them that keeps rows until then; what is late
leaves that step.

A sink that finds rows by another key than theirs is given them by its own: a step before it brings the rows of each key
of the sink together, and keeps them.

The graph that the user said is left as it is; what comes out is another one, whose nodes have the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.dataflow.graph import (
    BatchNode,
    KeyedNode,
    KindNode,
    Node,
    TapNode,
    WriteNode,
    readers,
    relink_loops,
)
from headrace.dataflow.keying import key_of_columns
from headrace.dataflow.update_kinds import (
    can_take_back,
    derive_kind,
    finds_by_other_key,
    gives_changelog,
    hands_on_changelog,
    takes_changelog,
)
from headrace.errors import ProgramError
from headrace.operators.changelogs.spec import NormaliseSpec
from headrace.operators.changelogs.top_spec import SinkRowsSpec
from headrace.windows.settling import SettleSpec
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from typing import Literal

NORMALISED = "_normalised"
"""Behind the name of a step: the name of the one that keeps what it gave out."""


def keep_given_rows(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The graph with all steps that are needed to take rows back. Of a graph that has them, the graph itself."""
    if any(isinstance(node, KeyedNode) and type(node.spec) in _PUT_IN for node in nodes):
        return nodes
    wanting = find_wanting(nodes)
    by_other_keys = any(isinstance(node, WriteNode) and finds_by_other_key(node) for node in nodes)
    return _Rewriting(nodes, wanting).rewritten() if wanting or by_other_keys else nodes


def find_wanting(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that have to be given changelogs."""
    reading = readers(nodes)
    wanting: set[Node] = set()
    for node in reversed(nodes):
        between = hands_on_changelog(node) and (
            node.kind.rows == "changelog" or (node.kind.corrects and any(each in wanting for each in reading[node]))
        )
        if between or takes_changelog(node):
            wanting.add(node)
    return wanting


_PUT_IN = (NormaliseSpec, SinkRowsSpec, SettleSpec)
SETTLED = "_settled"
"""Behind the name of a windowed step: the name of the one that keeps its rows until they have settled."""
SINK_ROWS = "_rows"
"""Behind the name of an output: the name of the step that keeps rows by the key of its sink."""


class _Rewriting:
    """One graph on its way to another."""

    def __init__(self, nodes: tuple[Node, ...], wanting: set[Node]) -> None:
        self._nodes = nodes
        self._wanting = wanting
        self._next_id = max(node.id for node in nodes) + 1
        self._made: list[Node] = []
        self._copies: dict[Node, Node] = {}
        self._others: dict[tuple[int, str], Node] = {}
        """Node and kind → the node that gives its rows as that."""
        self._names = {node.name for node in nodes if not isinstance(node, WriteNode)}

    def rewritten(self) -> tuple[Node, ...]:
        for node in self._nodes:
            copy = self._copies[node] = self._copy(node)
            self._made.append(copy)
        relink_loops(self._copies)
        return tuple(self._made)

    def _copy(self, node: Node) -> Node:
        inputs = tuple(self._input(before, node) for before in node.inputs)
        copy = replace(node, inputs=inputs)
        if isinstance(copy, KeyedNode) and isinstance(copy.spec, WindowSpec) and node in self._wanting:
            copy.spec = copy.spec.over_settled_rows()
        copy.kind = derive_kind(copy)
        if isinstance(copy, BatchNode) and copy.kind.rows == "changelog":
            self._check_unread_errors(node)
        return copy

    def _input(self, before: Node, reader: Node) -> Node:
        given = self._copies[before]
        if isinstance(reader, TapNode):
            settled = self._others.get((before.id, SETTLED))
            return settled if settled is not None and reader.tag == "late" else given
        if isinstance(given, KeyedNode) and takes_changelog(given) and not gives_changelog(given):
            # It says of keys that are gone no more than that.
            given = self._normalised(given)
        if isinstance(reader, WriteNode):
            return self._for_sink(given, reader)
        if reader in self._wanting:
            # Steps with a key know of rows that do not say it that they come.
            if isinstance(reader, KeyedNode) and isinstance(reader.spec, WindowSpec):
                return self._settled(self._as_changelog(given), reader, reader.spec)
            plain = given.kind.rows == "append" and isinstance(reader, KeyedNode)
            return given if plain else self._as_changelog(given)
        return given if given.kind.rows != "changelog" else self._as(given, "upsert")

    def _for_sink(self, given: Node, write: WriteNode) -> Node:
        if write in self._wanting:
            given = self._as_changelog(given)
        if given.kind.rows != "changelog" or can_take_back(write.sink, given.kind):
            return given
        return self._by_key_of(write, given) if write.sink.accepts_changelog else self._as(given, "upsert")

    def _as_changelog(self, given: Node) -> Node:
        match given.kind.rows:
            case "append":
                return self._as(given, "changelog")
            case "upsert":
                return self._normalised(given)
        return given

    def _as(self, given: Node, to: Literal["upsert", "changelog"]) -> Node:
        known = self._others.get((given.id, to))
        if known is None:
            known = KindNode(
                id=self._new_id(), inputs=(given,), codec=given.codec, at=given.at, to=to, placed_by=given.placed_by
            )
            self._add(known, (given.id, to))
        return known

    def _normalised(self, given: Node) -> Node:
        known = self._others.get((given.id, NORMALISED))
        if known is None:
            assert isinstance(given, KeyedNode) and given.kind.key is not None, f"{given.label} was checked before"
            name = f"{given.name}{NORMALISED}"
            self._check_free(name, given)
            known = KeyedNode(
                id=self._new_id(), inputs=(given,), codec=given.codec, at=given.at, op="normalise", name=name,
                was=f"{given.was}{NORMALISED}" if given.was else None, placed_by=given.placed_by,
                key=key_of_columns(given.codec, given.kind.key),
                spec=NormaliseSpec(given.label),
            )  # fmt: skip
            self._add(known, (given.id, NORMALISED))
        return known

    def _settled(self, given: Node, windows: KeyedNode, spec: WindowSpec) -> KeyedNode:
        name = f"{windows.name}{SETTLED}"
        self._check_free(name, given)
        made = KeyedNode(
            id=self._new_id(), inputs=(given,), codec=given.codec, at=windows.at, op="settle", name=name,
            was=f"{windows.was}{SETTLED}" if windows.was else None, placed_by=windows.key.columns, key=windows.key,
            spec=SettleSpec(spec.assigner, windows.label),
        )  # fmt: skip
        self._add(made, (windows.id, SETTLED))
        return made

    def _by_key_of(self, write: WriteNode, given: Node) -> KeyedNode:
        assert write.sink.changelog_key is not None
        name = f"{write.name}{SINK_ROWS}"
        self._check_free(name, given)
        spec = SinkRowsSpec(1, (), signed=True, unique=given.kind.key, newest=True, of=write.label)
        kept = KeyedNode(
            id=self._new_id(), inputs=(given,), codec=given.codec, at=write.at, op="top", name=name,
            was=f"{write.was}{SINK_ROWS}" if write.was else None, placed_by=write.sink.changelog_key,
            key=key_of_columns(given.codec, write.sink.changelog_key), spec=spec,
        )  # fmt: skip
        self._add(kept, (write.id, SINK_ROWS))
        return kept

    def _add(self, node: Node, known_by: tuple[int, str]) -> None:
        node.kind = derive_kind(node)
        self._others[known_by] = node
        self._made.append(node)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _check_free(self, name: str, given: Node) -> None:
        if name in self._names:
            raise ProgramError(
                f"the name {name!r} is taken",
                where=given.site,
                expected=f"it to be free for the step that keeps what {given.label} gave out",
                found=f"another step named {name!r}",
                next_move="give that one another name",
            )

    def _check_unread_errors(self, node: Node) -> None:
        for reader in self._nodes:
            if isinstance(reader, TapNode) and reader.tag == "errors" and reader.inputs == (node,):
                raise ProgramError(
                    "map_batches over rows that are taken back cannot go on behind a batch that failed",
                    where=reader.site,
                    expected="a function that fails for a row whenever it comes, or errors that nobody reads",
                    found=f".errors of {node.label}",
                    next_move="use map or flat_map, which fail row by row; or leave .errors out",
                )
