"""Columns out of columns: what ``select`` and ``with_columns`` give, checked against what comes in.

The result names one expression per column of its row type, in order. Where the type of an expression is not exactly the
declared one, a CAST is written around it, so that the JVM and the worker deliver the same columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.dataflow.naming import check_name
from headrace.dataflow.site import Site
from headrace.errors import ExpressionError, ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.model.shapes import annotation_of, spark_type
from headrace.model.values import type_name
from headrace.sql.expr import as_sql, check, check_result, infer, literal_sql, quote_name, resolve_name

_BARE = re.compile(r"`((?:[^`]|``)+)`|([A-Za-z_]\w*)")


class Projection(NamedTuple):
    """The columns of a stream made from another's."""

    codec: RowCodec
    exprs: tuple[tuple[str, str], ...]

    def keeps(self, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The same columns if every one of them passes through unchanged, else None."""
        same = {name for name, text in self.exprs if bare_column(text, list(self.codec.names)) == name}
        return columns if columns is not None and set(columns) <= same else None


def with_kind(codec: RowCodec, name: str, at: Site) -> RowCodec:
    """Rows with one more column, last, for their kind."""
    if name in codec.names:
        raise ProgramError(
            f"rows have a column {name!r} already",
            where=str(at),
            expected=f"another name than {', '.join(codec.names)}",
            found=f"changes(kind={name!r})",
            next_move='name the kind otherwise: changes(kind="change")',
        )
    check_name(name, "a column", str(at))
    return codec_of(row_type("Row", {**codec.annotations, name: str}), where=str(at))


def bare_column(text: str, names: list[str]) -> str | None:
    """The column, if the text is nothing but one column's name."""
    match = _BARE.fullmatch(text.strip())
    if match is None:
        return None
    name = match[1].replace("``", "`") if match[1] else match[2]
    same = [each for each in names if each.lower() == name.lower()]
    return name if name in names else same[0] if len(same) == 1 else None


def columns_sql(columns: Mapping[str, object], where: str) -> dict[str, str]:
    """The texts of columns that a user gave by keyword."""
    try:
        return {name: as_sql(column) for name, column in columns.items()}
    except ProgramError as error:
        error.where = where
        raise


def into_type(codec: RowCodec, into: Any, columns: Mapping[str, object], where: str, verb: str) -> Projection:
    """Columns of a declared type: those given, and for the others the column of the same name, or the default."""
    target = codec_of(into, where=where)
    given = columns_sql(columns, where)
    for name in given:
        if name not in target.names:
            raise ProgramError(
                f"{type_name(into)} has no field {name!r}",
                where=where,
                expected=f"one of {', '.join(target.names)}",
                found=f"{verb}({type_name(into)}, {name}=…)",
                next_move=did_you_mean(name, target.names, f"add {name} to {type_name(into)}"),
            )
    exprs = tuple((name, _into_field(codec, target, name, given, where, verb)) for name in target.names)
    return Projection(target, exprs)


def _into_field(codec: RowCodec, target: RowCodec, name: str, given: Mapping[str, str], where: str, verb: str) -> str:
    field = target.schema.field(name)
    if name in given:
        return _fitted(given[name], codec, field, where)
    if name in codec.names:
        return _fitted(quote_name(name), codec, field, where)
    if name in target.required:
        raise ProgramError(
            f"{verb} does not say what {name!r} of {type_name(target.type)} is",
            where=where,
            expected=f"a value for each field without a default: {', '.join(target.required)}",
            found=f"given: {', '.join(given) or 'nothing'}; columns: {', '.join(codec.names)}",
            next_move=f'add {name}="…", or give the field a default',
        )
    return _default_sql(target.defaults[name], spark_type(field.type))


def _default_sql(default: Any, kind: str) -> str:
    try:
        return f"CAST({literal_sql(default)} AS {kind})"
    except ExpressionError:
        # A default that SQL has no literal for is filled in when the row becomes an object.
        return f"CAST(NULL AS {kind})"


def _fitted(text: str, codec: RowCodec, field: Any, where: str) -> str:
    """An expression whose result has the field's type, or an error that says why it cannot have."""
    check_result(text, codec.schema, field, where)
    name = bare_column(text, codec.names)
    found = codec.schema.field(name).type if name is not None else infer(text, codec.schema)
    if found == field.type or (field.metadata or {}).get(b"headrace"):
        return text
    return f"CAST({text} AS {spark_type(field.type)})"


def into_row(codec: RowCodec, names: Sequence[object], columns: Mapping[str, object], where: str) -> Projection:
    """Columns of a row type made for them: names keep their types, expressions get theirs from what they compute."""
    texts: dict[str, str] = {}
    for each in names:
        text = columns_sql({"": each}, where)[""]
        name = bare_column(text, codec.names)
        if name is None:
            check(text, codec.schema, where)
            raise ProgramError(
                "an expression needs a name",
                where=where,
                expected='names of columns, and name="expression"',
                found=repr(text),
                next_move=f'write select(…, total="{text}")',
            )
        texts[name] = quote_name(name)
    texts.update(columns_sql(columns, where))
    if not texts:
        raise ProgramError("select without columns", where=where, next_move="name at least one column")
    fields = {name: column_annotation(codec, text, where) for name, text in texts.items()}
    return Projection(codec_of(_named_row(fields, where)), tuple(texts.items()))


def with_more(codec: RowCodec, columns: Mapping[str, object], where: str) -> Projection:
    """All columns there are, with some added or replaced."""
    texts = {name: quote_name(name) for name in codec.names}
    texts.update(columns_sql(columns, where))
    fields = {name: column_annotation(codec, text, where) for name, text in texts.items()}
    return Projection(codec_of(_named_row(fields, where)), tuple(texts.items()))


def _named_row(fields: Mapping[str, Any], where: str) -> Any:
    try:
        return row_type("Row", fields)
    except ProgramError as error:
        error.where = where
        raise


def column_annotation(codec: RowCodec, text: str, where: str) -> Any:
    """The annotation of what an expression over a stream's columns gives."""
    check(text, codec.schema, where)
    name = bare_column(text, codec.names)
    if name is not None:
        return codec.annotations[name]
    found = infer(text, codec.schema)
    if found is None:
        raise ExpressionError(
            "the type of this expression is not known",
            where=where,
            expected="an expression of the documented subset, or a row type that says it",
            found=repr(text),
            next_move="give a type: select(Out, …), or write CAST(… AS …) around it",
        )
    return annotation_of(found)


def known_column(codec: RowCodec, column: object, where: str) -> str:
    """The name of a column that a user gave by name or by field; unknown ones are errors with the nearest names."""
    text = columns_sql({"": column}, where)[""]
    name = bare_column(text, codec.names)
    if name is not None:
        return name
    match = _BARE.fullmatch(text)
    if match is not None:
        return resolve_name(match[1] or match[2], codec.names, where, text)
    raise ProgramError(
        "this is not the name of a column",
        where=where,
        expected=f"one of {', '.join(codec.names)}",
        found=repr(text),
        next_move="give a column, or a function of the row: key_by(lambda row: …)",
    )
