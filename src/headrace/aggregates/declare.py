"""Aggregates as the user declares them: ``hr.sum("n", where="n > 0")``, or an own `Aggregator`.

A declaration is data; how it is computed, batch by batch, is in `headrace.aggregates.columns`. Aggregates leave out
rows whose value is null and rows that their ``where`` does not hold for. With ``over="1h"`` a rolling aggregate is of
the rows of an hour up to the time of each result. With nothing left, ``count``, ``count_distinct`` and ``sum`` are 0,
``collect`` and ``top`` are empty, and all others are None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args, get_origin

from typing_extensions import TypeVar

from headrace.aggregates.comparing import why_unhashable, why_unordered
from headrace.errors import ProgramError
from headrace.model.hints import function_hints
from headrace.model.shapes import annotation_of, split_optional, strip
from headrace.model.time import Duration, Span, span_us
from headrace.model.user_line import user_line
from headrace.model.values import type_name
from headrace.sql.expr import Expr, as_sql, check, check_supported, infer

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")
Column = str | Expr
AggKind = Literal[
    "count", "sum", "avg", "min", "max", "first", "last", "count_distinct", "sum_distinct", "avg_distinct", "collect",
    "top", "quantile", "own",
]  # fmt: skip


class Agg(Generic[T]):
    """An aggregate of the rows of a key; made by `sum`, `count` and the like, or an `Aggregator` of one's own."""

    kind: AggKind

    def result_type(self, codec: RowCodec) -> Any:
        """The type of the result over rows of this codec."""
        raise NotImplementedError

    def check(self, codec: RowCodec, where: str) -> None:
        """Refuses, with a ProgramError, what cannot be computed over rows of this codec."""
        raise NotImplementedError


@dataclass(frozen=True)
class Declared(Agg[T]):
    """One of the aggregates that come with Headrace."""

    kind: AggKind
    column: str | None = None
    """SQL text of the value; None for ``count``."""
    where: str | None = None
    by: str | None = None
    """SQL text of what rows are compared by, where that is not the value itself."""
    n: int = 0
    q: float = 0.0
    over_us: int | None = None
    """How far back from the time of a result its rows lie; None: all rows."""

    def result_type(self, codec: RowCodec) -> Any:
        if self.kind in ("count", "count_distinct") or self.column is None:
            return int
        found, optional = column_annotation(codec, self.column)
        if self.kind in ("sum", "sum_distinct"):
            return found
        if self.kind in ("collect", "top"):
            return list[found]  # type: ignore[valid-type]
        averages = self.kind in ("avg", "avg_distinct")
        result = float if self.kind == "quantile" or (averages and found is not Decimal) else found
        maybe_none = optional or self.where is not None or self.by is not None or self.over_us is not None
        return result | None if maybe_none else result

    def check(self, codec: RowCodec, where: str) -> None:
        for text in (self.column, self.where, self.by):
            if text is not None:
                check(text, codec.schema, where)
                check_supported(text, codec.schema, where)
        if self.kind in ("sum", "avg", "sum_distinct", "avg_distinct", "quantile") and self.column is not None:
            self._check_number(codec, where)
        if self.kind in ("min", "max", "top"):
            self._check_comparable(codec, self.by or self.column or "", why_unordered, where)
        if self.kind == "count_distinct":
            self._check_comparable(codec, self.column or "", why_unhashable, where)

    def _check_comparable(self, codec: RowCodec, text: str, why_not: Callable[[Any], str], where: str) -> None:
        found, _ = column_annotation(codec, text)
        if reason := why_not(found):
            raise ProgramError(
                f"{self.kind} cannot compare these values",
                where=where,
                expected="numbers, text, times, or tuples of such",
                found=f"{text}, which is {type_name(found)}: {reason}",
                next_move=f"compute a column that can be compared, before: with_columns(x=…), {self.kind}(…"
                + (", by=…)" if self.kind != "count_distinct" else ")"),
            )

    def _check_number(self, codec: RowCodec, where: str) -> None:
        found, _ = column_annotation(codec, self.column or "")
        if found not in (int, float, Decimal, Duration):
            raise ProgramError(
                f"{self.kind} needs numbers",
                where=where,
                expected="a column of int, float, Decimal or Duration",
                found=f"{self.column}, which is {type_name(found)}",
                next_move="use count, min, max, first, last or collect for other types",
            )


class Aggregator(Agg[Out], Generic[In, Acc, Out]):
    """An aggregate of one's own: rows of type ``In`` are added to an ``Acc``, which gives an ``Out``.

    An accumulator is state, so ``Acc`` is a type that can be stored. ``add`` and ``merge`` return the new accumulator.

    >>> class Mean(Aggregator[int, tuple[int, int], float]):
    ...     def zero(self) -> tuple[int, int]:
    ...         return (0, 0)
    ...     def add(self, acc: tuple[int, int], x: int) -> tuple[int, int]:
    ...         return (acc[0] + x, acc[1] + 1)
    ...     def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    ...         return (a[0] + b[0], a[1] + b[1])
    ...     def result(self, acc: tuple[int, int]) -> float:
    ...         return acc[0] / acc[1]
    >>> Mean().accumulator_type()
    tuple[int, int]
    """

    kind: AggKind = "own"

    def zero(self) -> Acc:
        """An accumulator that nothing was added to."""
        raise NotImplementedError

    def add(self, acc: Acc, x: In) -> Acc:
        """The accumulator with one row more."""
        raise NotImplementedError

    def merge(self, a: Acc, b: Acc) -> Acc:
        """The accumulator of the rows of both; ``a`` holds the older ones."""
        raise NotImplementedError

    def result(self, acc: Acc) -> Out:
        """What an accumulator amounts to."""
        raise NotImplementedError

    def accumulator_type(self) -> Any:
        """The type ``Acc`` of the class, as its base or its ``zero`` says it."""
        return self._declared_type(1, self.zero)

    def result_type(self, codec: RowCodec) -> Any:
        return self._declared_type(2, self.result)

    def check(self, codec: RowCodec, where: str) -> None:
        from headrace.model.values import check_storable

        check_storable(self.accumulator_type(), what=f"the accumulator of {type(self).__name__}", where=where)

    def _declared_type(self, position: int, method: Callable[..., Any]) -> Any:
        for cls in type(self).__mro__:
            for base in cls.__dict__.get("__orig_bases__", ()):
                args = get_args(base)
                if get_origin(base) is Aggregator and len(args) == 3 and not isinstance(args[position], TypeVar | str):
                    return args[position]
        returned = function_hints(method).get("return", inspect.Signature.empty)
        if returned is inspect.Signature.empty or isinstance(returned, TypeVar):
            name = type(self).__name__
            raise ProgramError(
                f"the types of {name} are not known",
                where=name,
                expected=f"class {name}(hr.Aggregator[In, Acc, Out])",
                found=f"class {name} without them",
                next_move="name the types of the rows, of the accumulator and of the result",
            )
        return returned


def count(*, where: Column | None = None, over: Span | None = None) -> Agg[int]:
    """How many rows; with ``over="24h"`` in a rolling aggregate, of a day up to the time of each result.

    >>> count(where="n > 0")
    Declared(kind='count', column=None, where='n > 0', by=None, n=0, q=0.0, over_us=None)
    """
    return _declare("count", None, where=where, over=over)


def sum(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The sum of a column: ``hr.sum("n")``; 0 where there is nothing to add.

    Exact for whole numbers and decimals. A sum beyond 64 bits, or beyond 38 digits of a Decimal, stops the job.
    """
    return _declare("sum", x, where=where, over=over)


def avg(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The mean of a column: a float, or of Decimal a Decimal, rounded half up to 18 digits behind the point.

    Whole numbers beyond 2**53 are rounded to the nearest float as they are added, as in Spark.
    """
    return _declare("avg", x, where=where, over=over)


def min(x: object, *, by: object = None, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The least value of a column, or with ``by`` the value in the row where that is least.

    Of equal ones the first that came counts; with ``over`` the earliest.
    """
    return _declare("min", x, by=by, where=where, over=over)


def max(x: object, *, by: object = None, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The greatest value of a column, or with ``by`` the value in the row where that is greatest.

    Of equal ones the first that came counts, as for ``min`` and ``top``; with ``over`` the earliest.
    """
    return _declare("max", x, by=by, where=where, over=over)


def first(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The value in the earliest row: by event time, and where there is none or it is equal, as rows came."""
    return _declare("first", x, where=where, over=over)


def last(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The value in the latest row: by event time, and where there is none or it is equal, as rows came."""
    return _declare("last", x, where=where, over=over)


def count_distinct(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[int]:
    """How many different values; exact, so all of them are kept. Not-a-number is one value."""
    return _declare("count_distinct", x, where=where, over=over)


def sum_distinct(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The sum of the different values of a column, each added once; all of them are kept."""
    return _declare("sum_distinct", x, where=where, over=over)


def avg_distinct(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The mean of the different values of a column, each counted once; all of them are kept."""
    return _declare("avg_distinct", x, where=where, over=over)


def collect(x: object, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """All values as a list, in the order in which they came, or with ``over`` in that of time."""
    return _declare("collect", x, where=where, over=over)


def top(x: object, n: int, *, by: object = None, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The ``n`` greatest values, or the values in the rows where ``by`` is greatest; the greatest first."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ProgramError(
            "n of top must be a whole number, 1 or more",
            where=user_line(),
            expected='hr.top("n", 3)',
            found=repr(n),
            next_move="say how many values to keep",
        )
    return _declare("top", x, by=by, where=where, over=over, n=n)


def quantile(x: object, q: float, *, where: Column | None = None, over: Span | None = None) -> Agg[Any]:
    """The value below which a share ``q`` of the values lies, to within one percent of it.

    Not-a-number is left out; where there is nothing else, the result is not-a-number.
    """
    if not isinstance(q, int | float) or isinstance(q, bool) or not 0 <= q <= 1:
        raise ProgramError(
            "q of quantile must be a number from 0 to 1",
            where=user_line(),
            expected='hr.quantile("n", 0.99)',
            found=repr(q),
            next_move="the 99th percentile is 0.99",
        )
    return _declare("quantile", x, where=where, over=over, q=q)


def _declare(
    kind: AggKind,
    x: object,
    *,
    where: Column | None,
    over: Span | None,
    by: object = None,
    n: int = 0,
    q: float = 0.0,
) -> Agg[Any]:
    over_us = None if over is None else span_us(over, what=f"over= of {kind}", where=user_line())
    if over_us is not None and over_us <= 0:
        raise ProgramError(
            f"over= of {kind} must be greater than zero",
            where=user_line(),
            expected='over="1h"',
            found=f"over={over!r}",
            next_move="leave over= out for all rows so far",
        )
    column = None if kind == "count" else as_sql(x)
    condition = None if where is None else as_sql(where)
    return Declared(kind, column, condition, None if by is None else as_sql(by), n, q, over_us)


def column_annotation(codec: RowCodec, text: str) -> tuple[Any, bool]:
    """The type of a column or expression without None, and whether it may be None."""
    name = text.removeprefix("`").removesuffix("`")
    if name in codec.names:
        for field in getattr(codec, "fields", ()):
            if field.name == name:
                found, optional = split_optional(field.type)
                return strip(found), optional
        return split_optional(annotation_of(codec.schema.field(name).type))
    arrow = infer(text, codec.schema)
    if arrow is None:
        raise ProgramError(
            f"the type of {text!r} is not known",
            where="aggregate",
            found=text,
            next_move="compute it as a column before: with_columns(x=…), with a Record type that declares it",
        )
    return split_optional(annotation_of(arrow))
