"""The reads behind `files`: how Spark turns lines, cells and Parquet columns into fields, and tells bad rows.

- JSON lines are parsed by Spark's own reader, which keeps the text of a line it cannot parse; measured, it is more than
  twice as fast as reading text and parsing it in an expression.
- CSV comes cell by cell as text and is cast here, so that a cell of the wrong type is told by name; the header, where
  there is one, is checked by Spark against the names, file by file.
- Parquet comes typed; a row can only lack a field that must be there.

A field that is absent or null takes its default where it has one, and makes the row bad where it is required.
Timestamps are ISO text in JSON and CSV: a bare number has no unit, so it is refused rather than guessed.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.connectors.reading import FieldReads, text
from headrace.connectors.source_contract import SparkRead
from headrace.errors import ProgramError
from headrace.model.shapes import quoted, spark_type

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

FILE: Final = "__file"
CORRUPT: Final = "__corrupt"

_ABSENT: Final = "\u0001"
"""Stands for an empty cell inside Spark; a character that no cell holds."""


def check_fields(codec: RowCodec, format: str, where: str, names: Collection[str] | None = None) -> None:
    """Refuses a row type that a format cannot say, while the program is built. `names`: the fields to look at."""
    for field in codec.schema:
        if names is not None and field.name not in names:
            continue
        if format != "parquet" and _anywhere(field, _is_packed):
            raise _unreadable(field, format, where, "a type that columns cannot say")
        if format == "csv" and pa.types.is_nested(field.type):
            raise _unreadable(field, format, where, f"{field.type}, which a cell cannot hold")
        if format == "json" and _anywhere(field, _is_odd_map):
            raise _unreadable(field, format, where, "a map whose keys are not text")


def _unreadable(field: pa.Field, format: str, where: str, found: str) -> ProgramError:
    return ProgramError(
        f"field {field.name} cannot be read from {format}",
        where=where,
        expected="text, numbers, booleans, times"
        + ("" if format == "csv" else ", and lists, maps and records of them"),
        found=found,
        next_move='give the field another type, or use format="' + ("json" if format == "csv" else "parquet") + '"',
    )


def _anywhere(field: pa.Field, test: Callable[[pa.Field], bool]) -> bool:
    """Whether the test holds for a field or for anything inside it."""
    kind = field.type
    if test(field):
        return True
    if pa.types.is_map(kind):
        return _anywhere(kind.key_field, test) or _anywhere(kind.item_field, test)
    return pa.types.is_nested(kind) and any(_anywhere(kind.field(i), test) for i in range(kind.num_fields))


def _is_packed(field: pa.Field) -> bool:
    return (field.metadata or {}).get(b"headrace") == b"msgpack"


def _is_odd_map(field: pa.Field) -> bool:
    return pa.types.is_map(field.type) and not pa.types.is_string(field.type.key_type)


def json_read(codec: RowCodec, path: str, options: dict[str, str]) -> SparkRead:
    """Lines of JSON."""
    fields = FieldReads(codec, prepare=(f"_metadata.file_path AS {FILE}",))
    ddl = fields.take_json(codec.schema.names, corrupt=CORRUPT)
    given_names = ", ".join(quoted(name) for name in codec.encoded_names.values())
    options = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    raw_text = f"coalesce({CORRUPT}, to_json(struct({given_names})))"
    return fields.read("json", path, options, ddl, raw=(FILE, raw_text))


def csv_read(
    codec: RowCodec,
    path: str,
    options: dict[str, str],
    *,
    names: Sequence[str],
    header: bool,
    delimiter: str,
    where: str,
) -> SparkRead:
    """Cells as text, in the order of `names`, cast field by field."""
    _check_names(codec, names, where)
    fields = FieldReads(codec, prepare=(f"_metadata.file_path AS {FILE}",))
    fields.reasons[f"{CORRUPT} IS NOT NULL"] = text(f"not {len(names)} cells: {delimiter.join(names)}")
    for field in codec.schema:
        cell = quoted(field.name)
        if field.name not in names:
            fields.take(field, f"CAST(NULL AS {spark_type(field.type)})")
        elif pa.types.is_string(field.type):
            # An empty cell is the empty text where there must be a text.
            fields.take(field, f"coalesce({cell}, '')" if field.name in codec.required else cell)
        elif pa.types.is_binary(field.type):
            fields.cast(field, cell, f"try_to_binary({cell}, 'base64')")
        else:
            fields.cast(field, cell, f"try_cast({cell} AS {spark_type(field.type)})")
    options = {
        **options,
        "header": "true" if header else "false",
        # Names are compared with the header of every file; a file with other columns stops the job.
        "enforceSchema": "false" if header else "true",
        "sep": delimiter,
        "escape": '"',
        # Otherwise Spark takes a quoted empty text for an absent value too.
        "nullValue": _ABSENT,
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        # A row must not become good because the program has no use for some of its cells.
        "columnPruning": "false",
    }
    cells = ", ".join(quoted(name) for name in names)
    schema = ", ".join([*(f"{quoted(name)} STRING" for name in names), f"{CORRUPT} STRING"])
    as_line = f"to_csv(struct({cells}), map('sep', {text(delimiter)}, 'escape', '\"'))"
    return fields.read("csv", path, options, schema, raw=(FILE, f"coalesce({CORRUPT}, {as_line})"))


def _check_names(codec: RowCodec, names: Sequence[str], where: str) -> None:
    absent = [name for name in codec.required if name not in names]
    if absent:
        raise ProgramError(
            f"the CSV files have no column {', '.join(absent)}",
            where=where,
            expected=f"columns {', '.join(codec.required)}",
            found=", ".join(names),
            next_move="correct the header, give names=(…) in the order of the cells, or give the field a default",
        )


def read_csv_header(files: Iterable[Path], delimiter: str) -> tuple[str, ...] | None:
    """The names in the first line of the first file that has one; None when there is no such file yet."""
    for path in files:
        with _open_text(path) as lines:
            first: Any = next(csv.reader(lines, delimiter=delimiter), None)
        if first:
            return tuple(name.strip() for name in first)
    return None


def _open_text(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def parquet_read(codec: RowCodec, path: str, options: dict[str, str]) -> SparkRead:
    """Typed columns; a column that a file does not have is null there."""
    fields = FieldReads(codec, prepare=(f"_metadata.file_path AS {FILE}",))
    for field in codec.schema:
        fields.take_parsed(field, quoted(field.name), json=False)
    cells = ", ".join(quoted(name) for name in codec.schema.names)
    return fields.read("parquet", path, options, codec.spark_ddl, raw=(FILE, f"to_json(struct({cells}))"))
