"""Changes that come from outside: which rows are such, and what their key is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.dataflow.graph import EnvelopeNode, KeyedNode, Node
from headrace.dataflow.keying import key_of_columns
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.keyspec import KeySpec
from headrace.model.rows import RowCodec, codec_of
from headrace.model.shapes import split_optional
from headrace.model.values import type_name
from headrace.operators.changelogs.spec import UpsertSpec

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
_SHAPE: Final = "class OrderChange(hr.Record): before: Order | None; after: Order | None; op: str | None"


def add_table(app: AppGraph, changes: Node, into: Any, key: str | Sequence[str], at: Site) -> Node:
    """The steps that make rows of a table of its changes."""
    names = (key,) if isinstance(key, str) else tuple(key or ())
    rows = _row_of_envelope(changes.codec, into, at)
    by = _primary_key(rows, changes.codec, names, at)
    opened = app._add(EnvelopeNode, at, rows, inputs=(changes,), to="changelog", table_key=names)
    return app._add(
        KeyedNode, at, rows, inputs=(opened,), op="normalise", key=by, spec=UpsertSpec("the table"), placed_by=names
    )


def _row_of_envelope(codec: RowCodec, into: Any, at: Site) -> RowCodec:
    """The rows of the table that an envelope tells of: the type of its field ``after``."""
    names = set(codec.names)
    after = split_optional(codec.annotations["after"])[0] if "after" in names else None
    fits = {"before", "after", "op"} <= names and isinstance(into, type) and after is into
    if not fits or split_optional(codec.annotations["op"])[0] is not str:
        raise ProgramError(
            "debezium takes rows with before, after and op",
            where=str(at),
            expected=_SHAPE,
            found=f"debezium({type_name(into)}) of {type_name(codec.type)} with {', '.join(codec.names)}",
            next_move="declare the envelope as a Record, with the row type of the table in it, and read it as JSON",
        )
    return codec_of(into, where=str(at))


def _primary_key(codec: RowCodec, envelope: RowCodec, names: tuple[str, ...], at: Site) -> KeySpec:
    """The key by which rows of the table replace each other; both rows of an envelope have its columns."""
    before = envelope.schema.field("before").type
    if not names:
        raise ProgramError(
            "a table whose changes come has to have a primary key", where=str(at), expected='debezium(Order, key="id")',
            found="no key",
        )  # fmt: skip
    for name in names:
        codec.index(name, where=str(at))
        if before.get_field_index(name) < 0:
            raise ProgramError(
                f"the row before a change has no column {name!r}",
                where=str(at),
                expected=f"before: a Record with {', '.join(names)}",
                found=f"{before}",
                next_move="the row that goes is known by its key: give `before` the columns of the key",
            )
    return key_of_columns(codec, names)


def check_replacing(key: KeySpec, at: Site) -> None:
    """Rows replace each other by columns of theirs."""
    if not key.columns:
        raise ProgramError(
            "upserts has to know which row replaces which", where=str(at), expected='columns: key_by("id")',
            found=f"rows keyed by {key}", next_move="make a column of the key before: with_columns(id=…)",
        )  # fmt: skip
