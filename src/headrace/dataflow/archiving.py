"""What ``queryable(archive=…)`` settles: whether closed windows can be found again, and what their output is called."""

from __future__ import annotations

import os
from typing import Final

import pyarrow as pa

from headrace.dataflow.graph import KeyedNode
from headrace.dataflow.naming import proposal
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.values import type_name
from headrace.windows.settings import WINDOW_END, WINDOW_START
from headrace.windows.spec import WindowSpec

_ARCHIVE: Final = "archive"


def archive_output(path: str) -> str:
    """The output that writes an archive, named by its folder: renaming the step does not change it.

    >>> archive_output("archive/hourly/"), archive_output("s3://bucket/Archive")
    ('hourly_archive', 'archive')
    """
    stem = proposal(path.rstrip("/").rpartition("/")[2])
    return stem if _ARCHIVE in stem else f"{stem}_{_ARCHIVE}".lstrip("_")


def absolute_path(path: str) -> str:
    """Where a server has to look: it runs in another folder than the job."""
    plain = path.removeprefix("file://")
    return plain if "://" in plain else os.path.abspath(plain)


def check_archived(node: KeyedNode, spec: WindowSpec, keys: tuple[str, ...], at: Site) -> None:
    """Refuses windows whose results do not say of which key and window they are."""
    if spec.archive is not None:
        raise ProgramError("these windows have an archive already", where=str(at), found=spec.archive.path)
    if not spec.aggs or spec.function is not None:
        raise ProgramError(
            "only windows of aggregates can be archived",
            where=str(at),
            expected="window(…).aggregate(…): one result for each key and window",
            found=node.label,
            next_move="write the rows themselves: .finals().write(hr.sink.files(…))",
        )
    codec = node.codec
    missing = [name for name in (*keys, WINDOW_START, WINDOW_END) if name not in codec.names]
    if missing:
        raise ProgramError(
            "results that do not say their key and window cannot be found in an archive",
            where=str(at),
            expected=f"{type_name(codec.type)} to have the fields {', '.join((*keys, WINDOW_START, WINDOW_END))}",
            found=f"no {' and no '.join(missing)}",
            next_move="add them to the type (times are hr.Timestamp), or let aggregate make one: .aggregate(total=…)",
        )
    taken = node.input.codec.schema
    for name in keys:
        kind = codec.schema.field(name).type
        told = taken.field(name).type if node.key.columns is not None else kind
        if pa.types.is_nested(kind) or kind != told:
            raise ProgramError(
                "this key cannot be found in an archive",
                where=str(at),
                expected=f"a plain key, with the type in results that it has in rows: {told}",
                found=f"{name} as {kind}",
                next_move="key by columns: key_by(Tx.shop, Tx.card)",
            )
