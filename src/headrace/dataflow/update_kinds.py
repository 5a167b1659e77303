"""The kind of every stream, and what may be done with streams that correct themselves: decided here and nowhere else.

`derive_kind` says what a step gives, by what it takes. `refuse_updates` and its neighbours say what cannot be right on
its input, at the line where a user wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.dataflow.aggregation import key_columns
from headrace.dataflow.clocks import has_event_time
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
    Node,
    RetimeNode,
    TapNode,
    UnionNode,
    WriteNode,
)
from headrace.dataflow.projection import bare_column
from headrace.dataflow.result_kinds import first_rows_kind, joined_kind, newest_pairs_kind
from headrace.errors import ProgramError
from headrace.joins.spec import AsOfJoin, RegularJoin, UnboundedJoin
from headrace.model.pairs import LEFT, RIGHT, PairCodec, side_path
from headrace.model.row_kind import APPEND, StreamKind
from headrace.operators.changelogs.top_spec import TopSpec
from headrace.windows.kinds import Cumulating, Session, Sliding, Tumbling
from headrace.windows.settings import WINDOW_END, WINDOW_START
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import Sink
    from headrace.dataflow.site import Site
    from headrace.model.rows import RowCodec

_FACTS_ONLY: Final = ("process", "connect", "broadcast")
"""Keyed steps that take each row for something that has happened."""
_ROLLING: Final = ("aggregate", "reduce", "latest")


def derive_kind(node: Node) -> StreamKind:
    """The kind of the rows that a step gives."""
    match node:
        case ExprNode():
            return _after_expressions(node)
        case CallNode(op="filter" | "only") | RetimeNode():
            return node.inputs[0].kind
        case CallNode() | BatchNode():
            return _without_key(node.inputs[0].kind)
        case UnionNode():
            kind = _all_of(node.inputs)
            return StreamKind("changelog") if node.withdraws and kind.corrects else kind
        case TapNode():
            return _tapped(node)
        case KindNode():
            return StreamKind(node.to, node.inputs[0].kind.key)
        case KeyedNode():
            return _keyed(node)
    # Sources and loops bring rows that stand for themselves; `changes` makes such, and what asks or runs a function
    # with state takes no others; writes and feeds give none.
    return APPEND


def _without_key(kind: StreamKind) -> StreamKind:
    return replace(kind, key=None) if kind.corrects else APPEND


def _all_of(inputs: Sequence[Node]) -> StreamKind:
    """Of several inputs; whose rows may share a key."""
    rows = {node.kind.rows for node in inputs}
    for each in ("changelog", "upsert"):
        if each in rows:
            return StreamKind(each)
    return APPEND


def _after_expressions(node: ExprNode) -> StreamKind:
    before = node.inputs[0].kind
    if node.withdraws and before.rows == "upsert" and (node.op == "where" or not _keeps_key(node)):
        return StreamKind("changelog", before.key if node.op == "where" else None)
    if node.op == "where" or before.key is None:
        return before
    kept = {column: name for name, text in node.exprs if (column := _column_of(text, node.inputs[0].codec)) is not None}
    if not set(before.key) <= set(kept):
        return _without_key(before)
    return replace(before, key=tuple(kept[column] for column in before.key))


def _column_of(text: str, codec: RowCodec) -> str | None:
    """The column, if the text is nothing but one column's name; those of pairs have their side in front."""
    if not isinstance(codec, PairCodec):
        return bare_column(text, list(codec.names))
    plain = text.replace("`", "")
    sides = ((LEFT, codec.left), (RIGHT, codec.right))
    return plain if plain in {side_path(side, name) for side, rows in sides for name in rows.names} else None


def _keeps_key(node: ExprNode) -> bool:
    kept = {_column_of(text, node.inputs[0].codec) for _, text in node.exprs}
    return node.inputs[0].kind.key is not None and set(node.inputs[0].kind.key) <= kept


def let_withdraw(node: Node, at: Site) -> None:
    """Makes a step take back rows that it lets through no more, or whose key it loses, as a query means it."""
    if isinstance(node, ExprNode | UnionNode) and not node.withdraws:
        node.withdraws = True
        node.kind = derive_kind(node)
        for before in node.inputs if node.kind.rows == "changelog" else ():
            _check_way(before, node.verb, at)


_FROM_SIDE: Final = {"late": 0, "late_left": 0, "late_right": 1, "unmatched_left": 0, "unmatched_right": 1}
"""What leaves a step as it came in → through which input."""


def _tapped(node: TapNode) -> StreamKind:
    before = node.inputs[0]
    if node.tag in _FROM_SIDE:
        return before.inputs[_FROM_SIDE[node.tag]].kind
    # Failed rows, final results and side outputs stand for themselves.
    return APPEND


def _keyed(node: KeyedNode) -> StreamKind:
    spec = node.spec
    if node.op == "normalise":
        return StreamKind("changelog", node.key.columns)
    if node.op in _ROLLING:
        # Where rows are taken out again, so are whole keys.
        return StreamKind("changelog" if takes_changelog(node) else "upsert", _key_in(node))
    if isinstance(spec, WindowSpec) and spec.repeats and not spec.discard:
        # A window that fires again without being emptied gives its result anew.
        return StreamKind("upsert", _key_of_windows(node, spec))
    if isinstance(spec, UnboundedJoin) and spec.updates:
        return newest_pairs_kind(node, spec)
    if isinstance(spec, TopSpec):
        return first_rows_kind(node, spec)
    return joined_kind(node, spec) if isinstance(spec, RegularJoin) else APPEND


def _key_in(node: KeyedNode) -> tuple[str, ...] | None:
    """The columns of a step's results that hold its key."""
    if node.op in ("reduce", "latest"):
        names = node.key.columns
    else:
        names = tuple(key_columns(node.input.codec, node.key))
    if names is None or not set(names) <= set(node.codec.names):
        return None
    # A column that holds values of any type holds bytes that are no key.
    packed = any((node.codec.schema.field(name).metadata or {}).get(b"headrace") for name in names)
    return None if packed else names


def _key_of_windows(node: KeyedNode, spec: WindowSpec) -> tuple[str, ...] | None:
    """None where results do not say of which window they are; sessions are other windows when they have grown."""
    if not spec.aggs or not spec.assigner.timed or isinstance(spec.assigner, Session):
        return None
    names = (*key_columns(node.input.codec, node.key), WINDOW_START, WINDOW_END)
    return names if set(names) <= set(node.codec.names) else None


# -- who takes what ------------------------------------------------------------------------------------------------


def takes_changelog(node: Node) -> bool:
    """Whether a step has to be told what its rows replace, and what goes."""
    match node:
        case KeyedNode(op="aggregate" | "window" | "reduce"):
            return node.input.kind.corrects
        case KeyedNode(spec=spec) if spec is not None and spec.takes_back:
            return any(before.kind.corrects for before in node.inputs)
        case KeyedNode(op="latest"):
            return node.input.kind.rows == "changelog"
        case ChangesNode():
            return bool(node.column) and node.inputs[0].kind.corrects
        case WriteNode(sink=sink):
            before = node.inputs[0]
            if before.kind.rows != "upsert" or sink.changelog_key is None or not _can_be_undone(before):
                return before.kind.rows == "upsert" and sink.asks_changelog
            # By its own key a sink finds what is replaced, and needs to be told only what was left out on the way; by
            # another one a row may leave the key that it had.
            return sink.asks_changelog or not can_take_back(sink, before.kind) or _leaves_out(before)
    return False


def can_take_back(sink: Sink, kind: StreamKind) -> bool:
    """Whether a sink can take back rows of a stream: where it finds them by a key, by that of the stream."""
    if sink.changelog_key is None:
        return sink.accepts_changelog
    return kind.key is not None and not kind.scattered and set(kind.key) == set(sink.changelog_key)


def finds_by_key(sink: Sink, kind: StreamKind) -> bool:
    """Whether a sink finds the row of a key, by the unique key of a stream, and can take it away."""
    return kind.corrects and sink.changelog_key is not None and can_take_back(sink, kind)


def finds_by_other_key(write: WriteNode) -> bool:
    """Whether a sink finds rows that go by another key than theirs: they have to be brought together by its own."""
    before = write.inputs[0].kind
    return before.rows == "changelog" and write.sink.accepts_changelog and not can_take_back(write.sink, before)


def _leaves_out(node: Node) -> bool:
    """Whether a step between these rows and those that gave them may leave some out."""
    drops = isinstance(node, ExprNode) and node.op == "where"
    drops = drops or (isinstance(node, CallNode) and node.op in ("filter", "only"))
    return drops or (hands_on_changelog(node) and any(map(_leaves_out, node.inputs)))


def _can_be_undone(node: Node) -> bool:
    """Whether these rows come from steps of which the planner can keep what they gave out."""
    if hands_on_changelog(node):
        return all(map(_can_be_undone, node.inputs))
    if not node.kind.corrects or gives_changelog(node):
        return True
    return isinstance(node, KeyedNode) and node.op in _ROLLING and node.kind.key is not None


def gives_changelog(node: Node) -> bool:
    """Whether a step gives a whole changelog by itself, with what each row takes back."""
    takes_back = isinstance(node, KeyedNode) and node.spec is not None and node.spec.takes_back
    return isinstance(node, EnvelopeNode) or (takes_back and node.kind.rows == "changelog")


def hands_on_changelog(node: Node) -> bool:
    """Whether a step without state gives a changelog where it takes one."""
    return isinstance(node, ExprNode | CallNode | BatchNode | UnionNode | RetimeNode)


def check_kinds(node: Node, at: Site) -> None:
    """What a step that is being added can be right about, of all that it takes; its own kind is known."""
    if isinstance(node, KeyedNode) and node.op in _ROLLING and takes_changelog(node) and node.kind.key is None:
        raise _no_key(node, f"whoever reads {node.verb}", at)
    for before in node.inputs:
        if _takes_facts(node):
            as_of = isinstance(node, KeyedNode) and isinstance(node.spec, AsOfJoin)
            refuse_updates(before, "join_asof" if as_of else node.verb, at, does="take", as_what=" for a fact")
        if takes_changelog(node):
            _check_way(before, node.verb, at)
        taken = takes_changelog(node) or hands_on_changelog(node)
        if before.kind.rows == "changelog" and not taken and not isinstance(node, ChangesNode | TapNode | WriteNode):
            raise ProgramError(
                f"{node.verb} cannot take rows that are taken back",
                where=str(at),
                expected="rows that each stand for themselves",
                found=f"rows of {updating_step(before).label}, which withdraws rows, too",
                next_move=f"say what is meant before {node.verb}: .changes() for every version, or "
                '.changes(kind="op") for all that comes and goes',
            )


def _takes_facts(node: Node) -> bool:
    """Whether a step takes each row for something that has happened: it answers once, and takes no answer back."""
    if isinstance(node, KeyedNode):
        return node.op in _FACTS_ONLY or isinstance(node.spec, AsOfJoin)
    return isinstance(node, AsyncNode | LookupNode)


def check_retracting(node: Node, fires: str, at: Site, *, verb: str = "aggregate") -> None:
    """A rolling step over rows that correct each other gives one result per epoch and key."""
    _check_way(node, verb, at)
    if fires == "per_row":
        raise ProgramError(
            "fire=hr.per_row() cannot be had over rows that are taken back",
            where=str(at),
            expected="fire=hr.per_epoch(), which is the default",
            found=f"rows of {updating_step(node).label}: a result between what goes and what comes would be of neither",
            next_move="leave fire= out; or .changes() before key_by, if every version is meant",
        )


def _check_way(node: Node, verb: str, at: Site) -> None:
    """Follows rows back to the steps that give them; refuses what is between them and cannot be undone."""
    if not node.kind.corrects:
        return
    if hands_on_changelog(node):
        for before in node.inputs:
            _check_way(before, verb, at)
        return
    rolling = isinstance(node, KeyedNode) and node.op in _ROLLING
    if (rolling and node.kind.key is not None) or gives_changelog(node):
        return
    if isinstance(node, KeyedNode) and rolling:
        raise _no_key(node, verb, at)
    refuse_updates(node, verb, at)


def _no_key(node: KeyedNode, verb: str, at: Site) -> ProgramError:
    return ProgramError(
        f"{verb} has to know which row replaces which",
        where=str(at),
        expected="a step whose rows have their key as columns",
        found=f"{node.label}, keyed by {node.key}",
        next_move="key it by columns: key_by(Tx.card); with_columns or map can make one before",
    )


def check_written(node: Node, sink: Sink, at: Site) -> None:
    """Whoever writes what rows replace has to be told it."""
    if sink.asks_changelog:
        _check_way(node, "write", at)
    elif node.kind.rows == "upsert" and sink.changelog_key is not None and not can_take_back(sink, node.kind):
        # Rows of one unique key never leave the key that a part of its columns makes.
        stays = node.kind.key is not None and set(sink.changelog_key) <= set(node.kind.key)
        if not stays:
            _check_way(node, f"write by {', '.join(sink.changelog_key)}", at)


def check_newest(node: Node, at: Site) -> None:
    """Which of the rows that are left is the newest, only their time can say."""
    if not has_event_time(node):
        raise ProgramError(
            "which row is the newest is not known where rows are taken back",
            where=str(at),
            expected="event time, which says it",
            found=f"rows of {updating_step(node).label}, none of whose sources has time=",
            next_move="say it where the source is read: app.read(…, time=Tx.at); or use aggregate with hr.max, which "
            "takes by=",
        )


def check_settling(node: Node, spec: WindowSpec, at: Site) -> None:
    """Windows over rows that may go see those that hold when they are over, and nothing before."""
    if not node.kind.corrects:
        return
    _check_way(node, "window", at)
    kind, said = spec.assigner, ""
    fixed = isinstance(kind, Tumbling | Sliding | Cumulating)
    if not fixed and not (isinstance(kind, Session) and kind.gap_us is not None):
        said = "windows that have neither fixed bounds nor one gap"
    elif kind.clock != "event":
        said = "windows of the wall clock"
    elif spec.fire is not None or spec.allow_late_us or spec.evict is not None:
        said = "fire=, allow_late= or evict="
    if said:
        raise ProgramError(
            f"{said} cannot be had over rows that may go",
            where=str(at),
            expected='hr.tumbling("1h"), hr.sliding(…), hr.cumulating(…) or hr.session("30m") in event time, '
            "which give their results once, at the end",
            found=f"rows of {updating_step(node).label}, each of which counts as long as it holds",
            next_move="if every version is meant, say so: .changes() before window; or aggregate without windows",
        )


# -- what is refused --------------------------------------------------------------------------------------------------


def refuse_updates(
    node: Node, verb: str, at: Site, *, does: str = "count", as_what: str = "", way_out: str = ""
) -> None:
    """Aggregates and windows count rows, and would count every version of a row that is replaced; loops keep no mark.

    How many versions there are depends on where epochs are cut, so the results would, too.
    """
    if not node.kind.corrects:
        return
    source = updating_step(node)
    spec = getattr(source, "spec", None)
    ends = getattr(getattr(spec, "assigner", None), "timed", False)
    once = "use each window's last result: .finals()" if ends else way_out
    raise ProgramError(
        f"{verb} would {does} every version of a row{as_what}: these are updates",
        where=str(at),
        expected="rows that each stand for themselves",
        found=f"rows of {source.label}, which gives the row of a key anew whenever it changes",
        next_move=f"{once}; " * bool(once) + f"if every version is meant, say so: .changes() before {verb}",
    )


def refuse_updates_joined(what: str, nodes: Sequence[Node], at: Site) -> None:
    """Joins whose rows are facts, each with a time of its own."""
    for side, node in zip(("left", "right"), nodes, strict=True):
        if node.kind.corrects:
            raise ProgramError(
                f"{what} cannot take updates",
                where=str(at),
                expected="streams whose rows do not replace earlier ones",
                found=f"the {side} side, {node.label}, gives the row of a key anew whenever it changes",
                next_move="join every version: stream.changes(); or what held at a time: join_asof",
            )


def updating_step(node: Node) -> Node:
    """The step that makes updates of these rows."""
    while not isinstance(node, KeyedNode):
        # Late rows are those that came into their step; all others come out of what is before.
        left = node.inputs[0] if isinstance(node, TapNode) else node
        before = [each for each in left.inputs if each.kind.corrects]
        if not before:
            break
        node = before[0]
    return node
