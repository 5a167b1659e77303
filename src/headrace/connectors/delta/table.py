"""The table of Delta that rows go to: made from their type, or compared with it.

A table that is there is not altered, but for columns that it lacks and may get (``schema_mode="merge"``). What does not
fit is told as one list before the first epoch. Types are told, and compared, as Spark spells them: ``BIGINT``,
``ARRAY<STRING>``. A column may be narrower than ours where a value that does not fit is refused aloud.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from headrace.connectors.delta.errors import DeltaTarget, deltalake_module
from headrace.durable import sync_path
from headrace.errors import SinkFailed
from headrace.model.shapes import quoted, spark_type, split_optional

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_SPARK: Final = {
    "long": "BIGINT",
    "integer": "INT",
    "short": "SMALLINT",
    "byte": "TINYINT",
}
"""Delta's words that are not Spark's; all others are the same, in capitals."""
_WHOLE: Final = ("BIGINT", "INT", "SMALLINT", "TINYINT")
_COMPUTED: Final = ("delta.generationExpression", "delta.identity.start")
_PATIENCE: Final = {"max_retries": "3", "retry_timeout": "20s"}
"""How often the client asks an object store by itself: whoever releases asks again, for longer and aloud."""
_ENDPOINTS: Final = ("FSSPEC_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables that our stores and the files sink read too; the first that is set counts."""


class _DeltaColumn(NamedTuple):
    """A column of a table that is there."""

    name: str
    type: str
    nullable: bool
    computed: bool


def target_of(path: str, options: Mapping[str, str] | None, environment: Mapping[str, str] = os.environ) -> DeltaTarget:
    """A folder of this machine, or a URL with what is needed to get there.

    >>> target_of("s3://lake/sales", {}, {"AWS_ENDPOINT_URL": "http://localhost:9000"}).options["allow_http"]
    'true'
    """
    where = f'sink.delta("{path}")'
    local = path.removeprefix("file://")
    if "://" not in local:
        return DeltaTarget(os.path.abspath(local), dict(options or {}), where)
    given = {**_PATIENCE, **(options or {})}
    named = {name.lower().removeprefix("aws_") for name in given}
    if path.startswith(("s3://", "s3a://")):
        endpoint = next((environment[name] for name in _ENDPOINTS if environment.get(name)), "")
        if endpoint and not named & {"endpoint", "endpoint_url"}:
            given["aws_endpoint_url"] = endpoint
        endpoints = [value for name, value in given.items() if name.lower().endswith(("endpoint", "endpoint_url"))]
        if "allow_http" not in named and any(value.startswith("http://") for value in endpoints):
            given["allow_http"] = "true"
    return DeltaTarget(path, given, where)


def open_table(target: DeltaTarget) -> Any:
    """The table as it is now, or None."""
    deltalake = deltalake_module()
    try:
        # DeltaTable.is_deltatable would keep all threads of Python waiting for as long as a server takes to answer.
        return deltalake.DeltaTable(target.path, storage_options=target.access)
    except deltalake.exceptions.TableNotFoundError:
        return None


def prepare_table(target: DeltaTarget, codec: RowCodec, partition_by: tuple[str, ...], *, merge: bool) -> None:
    """Makes the table where it is missing, and compares it where it is there. Raises SinkFailed."""
    table = open_table(target) or _make(target, codec, partition_by)
    found = _delta_columns(table)
    lacking = [name for name in codec.names if name not in found] if merge else []
    differences = [each for name in codec.names if name not in lacking for each in _differences(codec, name, found)]
    differences += [
        f"{quoted(each.name)} {each.type} "
        + ("is computed by the table, which this writer cannot do" if each.computed else "is NOT NULL")
        + ", and rows have no such field"
        for each in found.values()
        if each.name not in codec.names and (each.computed or not each.nullable)
    ]
    parted = tuple(table.metadata().partition_columns)
    if partition_by and parted != partition_by:
        differences.append(
            f"it is partitioned by ({_column_list(parted)}), partition_by= says ({_column_list(partition_by)})"
        )
    if differences:
        raise SinkFailed(
            "the table does not fit the rows",
            where=target.where,
            expected=f"a table of ({codec.spark_ddl})",
            found="\n".join(f"- {each}" for each in differences),
            next_move='alter the table, let columns be added by schema_mode="merge", select other columns before '
            "writing, or name a table that is not there yet",
        )
    if lacking:
        fields = deltalake_module().Schema.from_arrow(_plain(codec)).fields
        table.alter.add_columns([field for field in fields if field.name in lacking])


def table_schema(table: Any) -> pa.Schema:
    """The columns of a table as rows have to bring them."""
    return pa.schema(table.schema().to_arrow())


def settle(target: DeltaTarget, table: Any) -> None:
    """Lets the newest version survive a crash of the machine, where it lies on a disk of it.

    An object store answers when an object is durable; the writer of files asks the disk for nothing.
    """
    if target.remote:
        return
    log = os.path.join(target.path, "_delta_log")
    commit = os.path.join(log, f"{table.version():020}.json")
    with open(commit, encoding="utf-8") as lines:
        added = [action["add"]["path"] for action in map(json.loads, lines) if "add" in action]
    files = [os.path.join(target.path, unquote(path)) for path in added]
    for path in [*files, *sorted({os.path.dirname(file) for file in files}), commit, log]:
        with suppress(FileNotFoundError):  # somebody may have compacted the table since
            sync_path(path)


# --- the parts of preparing


def _make(target: DeltaTarget, codec: RowCodec, partition_by: tuple[str, ...]) -> Any:
    deltalake = deltalake_module()
    try:
        deltalake.DeltaTable.create(
            target.path,
            schema=_plain(codec),
            mode="error",
            partition_by=list(partition_by),
            storage_options=target.access,
            # Another job may make it at this moment; with retries ours would become its second version.
            commit_properties=deltalake.CommitProperties(max_commit_retries=0),
        )
    except deltalake.exceptions.DeltaError:
        if open_table(target) is None:
            raise
    return open_table(target)


def _plain(codec: RowCodec) -> pa.Schema:
    """Our columns without what we note about them; all may be null, so that a type may change to have None."""
    return pa.schema([pa.field(field.name, field.type) for field in codec.schema])


def _delta_columns(table: Any) -> dict[str, _DeltaColumn]:
    fields = json.loads(table.schema().to_json())["fields"]
    return {
        field["name"]: _DeltaColumn(
            field["name"],
            _spelled(field["type"]),
            field.get("nullable", True),
            not set(_COMPUTED).isdisjoint(field.get("metadata") or {}),
        )
        for field in fields
    }


def _spelled(type: Any) -> str:
    """A type of Delta's JSON in Spark's words."""
    if isinstance(type, str):
        return _SPARK.get(type, type.upper())
    if type["type"] == "array":
        return f"ARRAY<{_spelled(type['elementType'])}>"
    if type["type"] == "map":
        return f"MAP<{_spelled(type['keyType'])}, {_spelled(type['valueType'])}>"
    parts = [f"{quoted(field['name'])}: {_spelled(field['type'])}" for field in type["fields"]]
    return f"STRUCT<{', '.join(parts)}>"


def _differences(codec: RowCodec, name: str, found: Mapping[str, _DeltaColumn]) -> list[str]:
    ours = spark_type(codec.columns[name].arrow)
    if name not in found:
        return [f"{quoted(name)} {ours} is missing"]
    column = found[name]
    told = []
    if not _fits(ours, column.type):
        told.append(f"{quoted(name)} is {column.type}, rows have {ours}")
    if not column.nullable and split_optional(codec.annotations[name])[1]:
        told.append(f"{quoted(name)} is NOT NULL, rows may have none")
    return told


def _fits(ours: str, theirs: str) -> bool:
    decimals = ours.startswith("DECIMAL") and theirs.startswith("DECIMAL")
    return ours == theirs or decimals or (ours == _WHOLE[0] and theirs in _WHOLE)


def _column_list(names: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, names))
