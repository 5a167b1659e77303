"""What the arguments of ``join``, ``join_asof`` and ``co_group`` mean, and which are refused."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from headrace.dataflow.checks import check_condition
from headrace.dataflow.clocks import has_event_time
from headrace.dataflow.graph import Node
from headrace.dataflow.projection import columns_sql
from headrace.dataflow.sided import sided_sql
from headrace.dataflow.site import Site
from headrace.dataflow.update_kinds import refuse_updates_joined
from headrace.errors import ProgramError
from headrace.joins.spec import AnyHow, AsOfJoin, IntervalJoin, Keep, RegularJoin, UnboundedJoin, WindowJoin
from headrace.model.keyspec import KeySpec
from headrace.model.pairs import PairCodec
from headrace.model.rows import RowCodec
from headrace.model.shapes import column_of, split_optional
from headrace.model.time import Span, format_span, span_us
from headrace.model.values import type_name
from headrace.state.handles import TTL, as_ttl
from headrace.windows.kinds import Assigner, Session

Bounds = Literal["[]", "[)", "(]", "()"]
Within = tuple[Span, Span] | Assigner


class JoinInputs(NamedTuple):
    """Both sides of a join, and what they are keyed by."""

    nodes: tuple[Node, Node]
    keys: tuple[KeySpec, KeySpec]


def join_spec(
    inputs: JoinInputs, within: Any, how: Any, bounds: Any, keep: Any, ttl: Any, on: Any, at: Site
) -> UnboundedJoin | RegularJoin | WindowJoin | IntervalJoin:
    """The join that the arguments of ``join`` describe; refuses those that do not go together."""
    nodes = inputs.nodes
    _check_choice(how, AnyHow, "how", at)
    if within is None:
        _check_unused("within=None", at, bounds=None if bounds == "[]" else bounds)
        return _lasting_join(inputs, how, keep, _ttl_of(ttl, nodes, at), on, at)
    single = how if how in ("semi", "anti") else None
    if isinstance(within, Assigner):
        _check_unused("a window", at, how=single, on=on, keep=keep, ttl=ttl, bounds=None if bounds == "[]" else bounds)
        check_windows("a join within windows", within, nodes, at)
        return WindowJoin(within, how)
    _check_unused("within=(…)", at, how=single, on=on, keep=keep, ttl=ttl)
    _check_timed("a join within a stretch of time", nodes, at)
    refuse_updates_joined("a join within a stretch of time", nodes, at)
    return IntervalJoin(*_bounds(within, bounds, at), how)


def _lasting_join(
    inputs: JoinInputs, how: Any, keep: Any, ttl: TTL | None, on: Any, at: Site
) -> UnboundedJoin | RegularJoin:
    nodes, keys = inputs
    if keep is not None:
        _check_choice(keep, Keep, "keep", at)
    if keep == "latest":
        _check_unused('keep="latest"', at, on=on, how=how if how in ("semi", "anti") else None)
        _check_newest(inputs, at)
        return UnboundedJoin(how, keep, ttl)
    text = None if on is None else _condition(on, nodes, at)
    signed = (nodes[0].kind.corrects, nodes[1].kind.corrects)
    if how == "inner" and not any(signed):
        return UnboundedJoin(how, "all", ttl, text)
    unique = (nodes[0].kind.key, nodes[1].kind.key)
    single = (_has_one_row(unique[0], keys[0]), _has_one_row(unique[1], keys[1]))
    return RegularJoin(how, signed, unique, single, text, ttl)


def _check_newest(inputs: JoinInputs, at: Site) -> None:
    """The newest row of a key of the join is one that holds only if no row leaves for another key."""
    for side, node, key in zip(("left", "right"), *inputs, strict=True):
        if node.kind.rows == "upsert" and (
            node.kind.key is None or key.columns is None or set(node.kind.key) != {*key.columns}
        ):
            raise ProgramError(
                'keep="latest" would go on joining rows that have moved to another key',
                where=str(at),
                expected="rows that stand for themselves, or replace each other by the key of the join",
                found=f"the {side} side, {node.label}: {node.kind}, joined by {key}",
                next_move="leave keep= out: within=None joins the rows that hold; or join every version: .changes()",
            )


def _has_one_row(unique: tuple[str, ...] | None, key: KeySpec) -> bool:
    return unique is not None and key.columns is not None and set(unique) <= set(key.columns)


def _condition(on: Any, nodes: tuple[Node, Node], at: Site) -> str:
    pairs = PairCodec(nodes[0].codec, nodes[1].codec)
    text = sided_sql(columns_sql({"on": on}, str(at))["on"], pairs, at, what="a condition of a join")
    check_condition(text, pairs, at)
    return text


def as_of_spec(nodes: tuple[Node, Node], tolerance: Span | None, at: Site) -> AsOfJoin:
    """The join that ``join_asof`` describes."""
    _check_timed("join_asof", nodes, at)
    limit = None if tolerance is None else _positive(span_us(tolerance, what="tolerance", where=str(at)), at)
    return AsOfJoin(limit)


def _suggest_bounds(within: Any) -> str:
    """What somebody most likely meant who gave one span."""
    if not isinstance(within, str):
        return "say from when to when, seen from the left row, the right one may come"
    return f'within=("0s", "{within}"): up to so much later; within=("-{within}", "{within}"): or earlier, too'


def _bounds(within: Any, bounds: Any, at: Site) -> tuple[int, int]:
    """Both bounds in microseconds, included."""
    if not isinstance(within, tuple) or len(within) != 2:
        raise ProgramError(
            "within= says how far apart the rows may be",
            where=str(at),
            expected='two spans, right − left: within=("0s", "1h"), within=("-5m", "5m"); a window; or None',
            found=repr(within),
            next_move=_suggest_bounds(within),
        )
    _check_choice(bounds, Bounds, "bounds", at)
    low, high = (_signed_us(span, at) for span in within)
    inside = low + (bounds[0] == "("), high - (bounds[1] == ")")
    if inside[0] > inside[1]:
        raise ProgramError(
            "within= has nothing between its bounds",
            where=str(at),
            expected="the lower bound first: right − left is at least the one and at most the other",
            found=f"within=({format_span(low)!r}, {format_span(high)!r}), bounds={bounds!r}",
            next_move=f"write within=({format_span(high)!r}, {format_span(low)!r})" if low > high else "",
        )
    return inside


def _signed_us(span: Any, at: Site) -> int:
    if isinstance(span, str) and span.strip().startswith("-"):
        return -span_us(span.strip()[1:], what="a bound of within", where=str(at))
    return span_us(span, what="a bound of within", where=str(at))


def _positive(span: int, at: Site) -> int:
    if span < 0:
        raise ProgramError(
            "tolerance cannot be negative",
            where=str(at),
            expected='a span of time, such as "1h"',
            found=format_span(span),
            next_move=f"write {format_span(-span)!r}",
        )
    return span


def _ttl_of(ttl: Any, nodes: tuple[Node, Node], at: Site) -> TTL | None:
    given = as_ttl(ttl)
    if given is None:
        return None
    if given.refresh != "write" or given.expired != "hide":
        raise ProgramError(
            "the rows of a join cannot have this TTL",
            where=str(at),
            expected='a span, or hr.ttl("7d", clock="event")',
            found=f"refresh={given.refresh!r}, expired={given.expired!r}",
        )
    if given.clock == "event":
        _check_timed('a time to live with clock="event"', nodes, at)
    return given


# -- what is refused --------------------------------------------------------------------------------------------------


def _check_choice(given: Any, choices: Any, name: str, at: Site) -> None:
    if given not in get_args(choices):
        listed = ", ".join(repr(choice) for choice in get_args(choices))
        raise ProgramError(
            f"there is no {name}={given!r}", where=str(at), expected=f"one of {listed}", found=repr(given)
        )


def _check_unused(beside: str, at: Site, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ProgramError(
                f"{name}= cannot be combined with {beside}",
                where=str(at),
                expected="bounds= with within=(…); keep=, ttl=, on=, semi and anti with within=None",
                found=f"{name}={value!r}",
                next_move=f"leave {name}= out",
            )


def _check_timed(what: str, nodes: tuple[Node, Node], at: Site) -> None:
    for side, node in zip(("left", "right"), nodes, strict=True):
        if not has_event_time(node):
            raise ProgramError(
                f"{what} needs event time on both sides",
                where=str(at),
                expected=f"a source of {node.label} with time=",
                found=f"the {side} side has none",
                next_move="say it where the source is read: app.read(…, time=Tx.at); or join without a limit",
            )


def check_windows(what: str, window: Any, nodes: tuple[Node, Node], at: Site) -> None:
    if not isinstance(window, Assigner) or not window.timed:
        raise ProgramError(
            f"{what} needs windows that end",
            where=str(at),
            expected='hr.tumbling("1h"), hr.sliding("1h", every="5m"), hr.cumulating(…) or hr.session("30m")',
            found=repr(window),
        )
    if isinstance(window, Session) and window.gap_us is None:
        raise ProgramError(
            f"{what} needs sessions with a fixed gap",
            where=str(at),
            expected='hr.session("30m")',
            found=f"the gap {window.gap_sql}, a column of one side",
            next_move='say one gap for all rows: hr.session("30m")',
        )
    if window.clock == "event":
        _check_timed(what, nodes, at)
    refuse_updates_joined(what, nodes, at)


def check_keys(left: RowCodec, left_key: KeySpec, right: RowCodec, right_key: KeySpec, at: Site) -> None:
    """Keys of different types are never equal; where the types are known, that is a mistake."""
    mine, others = _key_columns(left, left_key), _key_columns(right, right_key)
    if mine is None or others is None or mine == others:
        return
    raise ProgramError(
        "the keys of the two sides are never equal",
        where=str(at),
        expected=f"a key like the left one: {left_key}, which is {type_name(left_key.type)}",
        found=f"{right_key}, which is {type_name(right_key.type)}",
        next_move="key both sides by columns of one type; select or map can convert one before key_by",
    )


def _key_columns(codec: RowCodec, key: KeySpec) -> list[Any] | None:
    """The column type of each part of a key; None where a function's type is not known."""
    if key.columns is not None:
        return [_plain(codec.schema.field(name).type) for name in key.columns]
    bare, _ = split_optional(key.type)
    if bare is Any or bare is None:
        return None
    parts = get_args(bare) if getattr(bare, "__origin__", None) is tuple else (bare,)
    if any(part is Any or part is ... for part in parts):
        return None
    return [_plain(column_of(part).arrow) for part in parts]


def _plain(kind: Any) -> str:
    """Column types whose keys have the same bytes have one name."""
    text = str(kind)
    return "int64" if text.startswith(("timestamp", "int", "uint", "duration")) else text
