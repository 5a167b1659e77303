"""What the arguments of ``top`` mean, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, get_args

import pyarrow as pa

from headrace.dataflow.graph import Node
from headrace.dataflow.projection import columns_sql
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.model.values import type_name
from headrace.operators.changelogs.top_spec import OrderColumn, Ties, TopSpec

_ORDER: Final = re.compile(
    r"(?P<minus>-)?\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>\w+))(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE,
)


def top_spec(node: Node, most: Any, by: Any, rank: str | None, ties: Any, at: Site) -> tuple[TopSpec, RowCodec]:
    """How ``top`` runs, and the rows that it gives."""
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ProgramError(
            "top takes how many rows of each key are wanted",
            where=str(at),
            expected='a whole number from 1: top(3, by="-cents")',
            found=repr(most),
        )
    asked = list(by) if isinstance(by, Sequence) and not isinstance(by, str) else [by]
    order = tuple(_order_column(each, node.codec, at) for each in asked)
    if not order:
        raise ProgramError(
            "top has to know which rows come first", where=str(at), expected='by="-cents", by=["-cents", "at"]',
            found=repr(by),
        )  # fmt: skip
    if ties not in get_args(Ties):
        raise ProgramError(
            "ties= of top says what becomes of rows in one place", where=str(at),
            expected='"broken": one behind the other; "shared" or "dense": all of them', found=repr(ties),
        )  # fmt: skip
    spec = TopSpec(most, order, node.kind.corrects, node.kind.key, rank, ties)
    return spec, node.codec if rank is None else _ranked(node.codec, rank, at)


def _order_column(given: Any, codec: RowCodec, at: Site) -> OrderColumn:
    text = columns_sql({"by": given}, str(at))["by"].strip()
    match = _ORDER.fullmatch(text)
    name = "" if match is None else match["name"] or (match["quoted"] or "").replace("``", "`")
    if match is None or name not in codec.names or (match["minus"] and match["way"]):
        raise ProgramError(
            "top puts rows in order by their columns",
            where=str(at),
            expected=f'names of columns, "-cents" or "cents desc nulls last": {", ".join(codec.names)}',
            found=repr(text),
            next_move=did_you_mean(name or text, codec.names, "add a column before: .with_columns(score=…)"),
        )
    field = codec.schema.field(name)
    if pa.types.is_nested(field.type) or (field.metadata or {}).get(b"headrace"):
        raise ProgramError(
            f"rows cannot be put in order by {name!r}",
            where=str(at),
            expected="a column of plain values",
            found=f"{name}: {type_name(codec.annotations[name])}",
            next_move="put a part of it into a column before: .with_columns(…)",
        )
    descending = bool(match["minus"]) or (match["way"] or "").lower() == "desc"
    nulls_last = descending if match["nulls"] is None else match["nulls"].lower() == "last"
    return OrderColumn(name, descending, nulls_last)


def _ranked(codec: RowCodec, rank: str, at: Site) -> RowCodec:
    if rank in codec.names:
        raise ProgramError(
            f"rows have a column {rank!r} already", where=str(at), expected="a new name for the place of a row",
            found=f"rank={rank!r}", next_move='say another one: rank="place"',
        )  # fmt: skip
    fields = {name: codec.annotations[name] for name in codec.names}
    try:
        return codec_of(row_type("Row", {**fields, rank: int}))
    except ProgramError as error:
        error.where = str(at)
        raise
