"""What a join gives: pairs of rows, to be selected from or mapped, and the rows that found no partner.

Text over both sides is SQL with their names in front: ``left.card``, ``right.at``. A pair is made into columns or
objects only as far as somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from headrace.dataflow.graph import CallNode, ExprNode, KeyedNode, Node
from headrace.dataflow.naming import check_name
from headrace.dataflow.outputs import check_callable, output_type
from headrace.dataflow.projection import Projection, columns_sql, into_row, into_type
from headrace.dataflow.sided import sided_sql
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.stream import Column, Stream
from headrace.dataflow.verbs import unknown_of_join
from headrace.errors import ProgramError
from headrace.model.pairs import LEFT, RIGHT, PairCodec
from headrace.model.record import Failed, Row
from headrace.model.rows import codec_of
from headrace.model.values import type_name
from headrace.sql.expr import quote_name

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph

L = TypeVar("L", covariant=True)
R = TypeVar("R", covariant=True)
U = TypeVar("U")
X = TypeVar("X")

_SIDES: Final = (LEFT, RIGHT)


class OfPair:
    """A user's function of two rows, called with a pair."""

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn
        # So that errors and `explain` name the user's function, and know which frames are his.
        self.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.__func__ = fn

    def __call__(self, pair: Any) -> Any:
        return self.fn(pair.left, pair.right)


class JoinedStream(Stream[U]):
    """Rows made of pairs. Naming it names the join, as long as that has no name of its own."""

    def __init__(self, app: AppGraph, node: Node, join: Node) -> None:
        super().__init__(app, node)
        self._join = join

    def named(self, name: str, *, was: str | None = None) -> Self:
        """The same stream; the join it comes from is named, or this step, where the join has a name already."""
        at = call_site()
        target = self._join if self._join.stateful and self._join.name is None else self._node
        self._app._name(target, check_name(name, "a step", str(at)), was, at)
        return self


class Joined(Generic[L, R]):
    """Pairs of rows that belong together; ``select`` or ``map`` makes rows of them. A join needs a name.

    >>> import headrace as hr
    >>> class Tx(hr.Record):
    ...     card: str
    ...     at: hr.Timestamp
    ...     cents: int = 0
    >>> class Refund(hr.Record):
    ...     card: str
    ...     at: hr.Timestamp
    >>> class Refunded(hr.Record):
    ...     card: str
    ...     cents: int
    ...     after: hr.Duration
    >>> app = hr.App("shop")
    >>> tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    >>> refunds = app.read("refunds", hr.source.items([]), Refund, time=Refund.at)
    >>> pairs = tx.key_by(Tx.card).join(refunds.key_by(Refund.card), within=("0s", "1h")).named("refunded")
    >>> out = pairs.map(lambda t, r: Refunded(t.card, t.cents, r.at - t.at), output=Refunded)
    >>> short = pairs.select(card="left.card", at="right.at")
    >>> with hr.testing.Harness(app, start="2024-01-01") as h:
    ...     h.push(tx, Tx("a", h.at("12:00"), 500), Tx("b", h.at("12:00")))
    ...     h.push(refunds, Refund("a", h.at("12:30")))
    ...     h.epoch(watermark="13:00")
    ...     h.take(out)
    [Refunded(card='a', cents=500, after=1800000000)]
    """

    def __init__(self, app: AppGraph, node: Node) -> None:
        assert isinstance(node.codec, PairCodec)
        self._app = app
        self._node = node
        self._pairs = node.codec

    @property
    def app(self) -> AppGraph:
        """The program this join belongs to."""
        return self._app

    @property
    def node(self) -> Node:
        """The step of the graph that joins; for tools and the test kit."""
        return self._node

    def __repr__(self) -> str:
        left, right = type_name(self._pairs.left.type), type_name(self._pairs.right.type)
        return f"<Joined {left} and {right}: {self._node.label}>"

    def named(self, name: str, *, was: str | None = None) -> Self:
        """The same join, named: its name is the identity of what it keeps. ``was``: the name it had before."""
        at = call_site()
        self._app._name(self._node, check_name(name, "a step", str(at)), was, at)
        return self

    # -- rows of pairs ---------------------------------------------------------------------------------------

    @overload
    def select(self, into: type[U], /, **columns: Column) -> Stream[U]: ...
    @overload
    def select(self, /, **columns: Column) -> Stream[Row]: ...
    def select(self, into: Any = None, /, **columns: Any) -> Stream[Any]:
        """Rows by SQL over both sides: ``select(Out, card="left.card", at="right.at")``, or without a type.

        Where a side has no row, its columns are null. Fields of the type that are not given are taken from the side
        that has a column of that name, if only one has.
        """
        at = call_site()
        texts = {name: self._sided(text, at) for name, text in columns_sql(columns, str(at)).items()}
        if into is None:
            made = into_row(self._pairs, (), texts, str(at))
        else:
            texts = {**self._implied(into, texts, at), **texts}
            made = into_type(self._pairs, into, texts, str(at), "select")
            self._check_nulls(made, at)
        node = self._add(ExprNode, at, made.codec, op="select", exprs=made.exprs, placed_by=self._placed(made))
        return JoinedStream(self._app, node, self._node)

    @overload
    def map(self, fn: Callable[[L, R], U], /, *, output: type[U] | None = None) -> Stream[U]: ...
    @overload
    def map(self, fn: Callable[[L, R], Any], /, *, output: UnionType) -> Stream[Any]: ...
    def map(self, fn: Callable[[L, R], Any], /, *, output: Any = None) -> Stream[Any]:
        """One row for each pair, made by a function of both: ``map(lambda tx, refund: …, output=Out)``."""
        at = call_site()
        check_callable(fn, "map", at)
        row_type = output_type(fn, verb="map", given=output, many=False, at=at)
        node = self._add(CallNode, at, codec_of(row_type, where=str(at)), op="map", fn=OfPair(fn))
        return JoinedStream(self._app, node, self._node)

    def _add(self, kind: Any, at: Site, codec: Any, **fields: Any) -> Node:
        return self._app._add(kind, at, codec, inputs=(self._node,), **fields)

    @property
    def errors(self) -> Stream[Failed]:
        """Rows whose lookup failed or was not answered in time. Unread, such a row stops the job."""
        return Stream(self._app, self._node).errors

    # -- rows alone ------------------------------------------------------------------------------------------

    @property
    def unmatched_left(self: Joined[X | None, Any]) -> Stream[X]:
        """Left rows for which no partner can come any more, when that is certain, with the time of the certainty."""
        return self._outlet("unmatched_left", 0)

    @property
    def unmatched_right(self: Joined[Any, X | None]) -> Stream[X]:
        """Right rows for which no partner can come any more, when that is certain."""
        return self._outlet("unmatched_right", 1)

    @property
    def late_left(self: Joined[X | None, Any]) -> Stream[X]:
        """Left rows that came when nothing could become of them any more; unread, they are counted."""
        return self._outlet("late_left", 0)

    @property
    def late_right(self: Joined[Any, X | None]) -> Stream[X]:
        """Right rows that came when nothing could become of them any more; unread, they are counted."""
        return self._outlet("late_right", 1)

    def _outlet(self, tag: str, port: int) -> Stream[Any]:
        at = call_site()
        node = self._node
        offered = getattr(node.spec, "outlets", ()) if isinstance(node, KeyedNode) else ()
        if tag not in offered:
            words = " ".join(reversed(tag.split("_")))
            raise ProgramError(
                f"this join has no {words} rows",
                where=str(at),
                expected=f"one of {', '.join(offered)}" if offered else "pairs only: select(…) or map(…)",
                found=tag,
                next_move="" if offered else 'a join within a stretch of time can tell: within=("0s", "1h")',
            )
        before = node.inputs[port]
        return Stream(self._app, node)._tap(tag, before.codec, at)

    # -- SQL over both sides ---------------------------------------------------------------------------------

    def _sided(self, text: str, at: Site) -> str:
        return sided_sql(text, self._pairs, at)

    def _names(self, side: str) -> list[str]:
        return (self._pairs.left if side == LEFT else self._pairs.right).names

    def _implied(self, into: Any, given: Mapping[str, str], at: Site) -> dict[str, str]:
        """Fields that nobody said and one side has."""
        target = codec_of(into, where=str(at))
        implied: dict[str, str] = {}
        for name in target.names:
            sides = [side for side in _SIDES if name in self._names(side)]
            if name in given or not sides:
                continue
            if len(sides) > 1:
                raise ProgramError(
                    f"both sides have a column {name!r}",
                    where=str(at),
                    expected=f"{name}= in select, for {type_name(into)}.{name}",
                    found=f"given: {', '.join(given) or 'nothing'}",
                    next_move=f'say which: {name}="left.{name}", or {name}="right.{name}"',
                )
            implied[name] = _path(sides[0], name)
        return implied

    def _check_nulls(self, made: Projection, at: Site) -> None:
        """A column of a side that may have no row cannot fill a field that must have a value."""
        how = getattr(getattr(self._node, "spec", None), "how", "left")
        missing = {LEFT: how in ("right", "full"), RIGHT: how in ("left", "full")}
        texts = dict(made.exprs)
        for name in made.codec.required:
            side = next((side for side in _SIDES if texts[name].startswith(f"`{side}`.") and missing[side]), None)
            if side is not None and texts[name] in {_path(side, column) for column in self._names(side)}:
                raise ProgramError(
                    f"{type_name(made.codec.type)}.{name} must have a value, and the {side} side may have no row",
                    where=str(at),
                    expected=f"{name}: … | None, or a value where there is no row",
                    found=f"{name}={texts[name].replace('`', '')!r} of a {how} join",
                    next_move=f'write {name}="coalesce({texts[name].replace("`", "")}, …)", or give the field None',
                )

    def _placed(self, made: Projection) -> tuple[str, ...] | None:
        """The columns by which the rows lie on their shard, where they hold the key of a side that always has a row."""
        node = self._node
        if not isinstance(node, KeyedNode) or not node.other_keys:
            return None
        by_text = {text: name for name, text in reversed(made.exprs)}
        how = getattr(node.spec, "how", "left")
        keys = ((LEFT, node.key, how in ("inner", "left")), (RIGHT, node.other_keys[0], how in ("inner", "right")))
        for side, key, always in keys:
            if always and key is not None and key.columns:
                found = [by_text.get(_path(side, column)) for column in key.columns]
                if None not in found:
                    return tuple(name for name in found if name is not None)
        return None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_of_join(name)


def _path(side: str, name: str) -> str:
    return f"`{side}`.{quote_name(name)}"
