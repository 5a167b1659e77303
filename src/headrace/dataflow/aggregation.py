"""The rows of an aggregate: the key's columns and the aggregates, in a type of the user's or one made for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.aggregates.declare import Agg
from headrace.dataflow.projection import known_column
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.keyspec import KeySpec
from headrace.model.nearest import did_you_mean
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.model.shapes import split_optional
from headrace.model.values import type_name
from headrace.windows.triggers import PerRow

KEY: Final = "key"
"""Name of the key's column where the key is a function of the row."""


def key_columns(codec: RowCodec, key: KeySpec) -> dict[str, Any]:
    """The columns that tell the key of an aggregate's row, with their types."""
    if key.columns is None:
        return {KEY: key.type}
    return {name: codec.annotations[name] for name in key.columns}


def aggregate_codec(
    codec: RowCodec,
    key: KeySpec,
    into: Any,
    aggs: Mapping[str, Agg[Any]],
    at: Site,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    by_name: Mapping[str, Any] | None = None,
) -> RowCodec:
    """The type of the rows that an aggregate over rows of `codec` gives.

    ``before`` and ``after``: further columns that stand around the aggregates, where the user gave no type;
    ``by_name``: those that fill a field of the user's type if it has one of that name.
    """
    where = str(at)
    if not aggs:
        raise ProgramError(
            "aggregate without aggregates", where=where, expected='aggregate(total=hr.sum("n"))', found="nothing"
        )
    _check_key(codec, key, where)
    keys = key_columns(codec, key)
    taken = {**keys, **(by_name or {})}
    for name, agg in aggs.items():
        _check_agg(codec, name, agg, taken, where)
    results = {name: agg.result_type(codec) for name, agg in aggs.items()}
    if into is None:
        made = {**keys, **(before or {}), **results, **(after or {})}
        return codec_of(row_type("Row", made), where=where)
    target = codec_of(into, where=where)
    _check_into(target, {**taken, **keys}, results, where)
    return target


def row_columns(fire: Any, codec: RowCodec, key: KeySpec, at: Site) -> dict[str, Any]:
    """The columns of each row that ``fire=hr.per_row(…)`` asks for beside the results, with their types."""
    if not isinstance(fire, PerRow):
        return {}
    names = [known_column(codec, column, str(at)) for column in fire.columns]
    return {name: codec.annotations[name] for name in names if name not in key_columns(codec, key)}


def refuse_row_columns(fire: Any, what: str, at: Site) -> None:
    """``hr.per_row("id")`` where results have no row of their own."""
    if isinstance(fire, PerRow) and fire.columns:
        raise ProgramError(
            f"per_row(…) with columns is for rolling aggregates, and this is {what}",
            where=str(at),
            expected="fire=hr.per_row()",
            found=f"columns: {', '.join(map(repr, fire.columns))}",
            next_move="leave the columns out; or take key_by(…).aggregate(fire=hr.per_row(…), …)",
        )


def _check_key(codec: RowCodec, key: KeySpec, where: str) -> None:
    """A field that holds values of several types is packed into bytes, which a row of results cannot give back."""
    for name in key.columns or ():
        if (codec.schema.field(name).metadata or {}).get(b"headrace"):
            raise ProgramError(
                f"the results of an aggregate cannot have {name!r} as a column of their key",
                where=where,
                expected="a field of one type: text, a number, a time, …",
                found=f"{name}: {type_name(codec.annotations[name])}",
                next_move=f"declare one type for {name}, or key by a function: key_by(lambda row: row.{name})",
            )


def _check_agg(codec: RowCodec, name: str, agg: Any, keys: Mapping[str, Any], where: str) -> None:
    if not isinstance(agg, Agg):
        raise ProgramError(
            f"{name}= is no aggregate",
            where=where,
            expected=f'{name}=hr.sum("…"), hr.count() or the like',
            found=repr(agg),
            next_move="use one of hr.count sum avg min max first last, or an hr.Aggregator",
        )
    if name in keys:
        raise ProgramError(
            f"the aggregate {name!r} has the name of another column",
            where=where,
            expected=f"a name other than {', '.join(keys)}",
            found=name,
            next_move="give the aggregate another name",
        )
    try:
        agg.check(codec, where)
    except ProgramError as error:
        error.where = where
        raise


def check_asked(target: RowCodec, asked: Mapping[str, Any], at: Site) -> None:
    """Refuses columns that were asked for by name where the type of the results has no field for one."""
    missing = [name for name in asked if name not in target.names]
    if missing:
        raise ProgramError(
            f"{type_name(target.type)} has no field {missing[0]!r}",
            where=str(at),
            expected=f"one of {', '.join(target.names)}",
            found=", ".join(asked),
            next_move=f"add {missing[0]} to {type_name(target.type)}, or do not ask for it",
        )


def _check_into(target: RowCodec, keys: Mapping[str, Any], results: Mapping[str, Any], where: str) -> None:
    for name in results:
        if name not in target.names:
            raise ProgramError(
                f"{type_name(target.type)} has no field {name!r}",
                where=where,
                expected=f"one of {', '.join(target.names)}",
                found=f"{name}=…",
                next_move=did_you_mean(name, target.names, f"add {name} to {type_name(target.type)}"),
            )
    there = {**keys, **results}
    missing = [name for name in target.required if name not in there]
    if missing:
        raise ProgramError(
            f"aggregate does not say what {', '.join(missing)} of {type_name(target.type)} is",
            where=where,
            expected=f"each field is a column of the key ({', '.join(keys)}), an aggregate, or has a default",
            found=f"aggregates: {', '.join(results)}",
            next_move=f'add {missing[0]}=hr.last("{missing[0]}") or another aggregate, or give it a default',
        )
    for name, found in there.items():
        if name in target.names:
            _check_fits(target, name, found, where)


def _check_fits(target: RowCodec, name: str, found: Any, where: str) -> None:
    declared = target.annotations[name]
    bare_found, bare_declared = split_optional(found)[0], split_optional(declared)[0]
    numbers = bare_declared is float and bare_found is int
    if bare_found == bare_declared or numbers or Any in (bare_found, bare_declared):
        return
    if codec_of(bare_found).schema.types == codec_of(bare_declared).schema.types and not _records(target, name):
        return  # Another name for the same column: an enum and its text, a NewType and what it stands for.
    raise ProgramError(
        f"{type_name(target.type)}.{name} has another type than the aggregate",
        where=where,
        expected=type_name(declared),
        found=type_name(found),
        next_move=f"declare {name}: {type_name(found)}, or aggregate a column of that type",
    )


def _records(target: RowCodec, name: str) -> bool:
    from headrace.model.shapes import is_record_class

    return is_record_class(split_optional(target.annotations[name])[0])
