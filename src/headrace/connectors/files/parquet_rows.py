"""Rows out of Parquet files, decoded by Arrow in the worker.

Spark lists the files, keeps the offsets, cuts them into splits and schedules those. Its scan reads no column: every
`PIECE_ROWS`-th row of a file, which is in exactly one split, comes to the worker as the name of a piece, and stands for
itself and the rows up to the next. So each row is read once however Spark cuts a file, and several tasks share a large
one. Measured, Arrow decodes a column about eight times as fast as the JVM hands it over (docs/decisions/0010).

It reads what Spark's reader reads in just the same way, and nothing else: a file on this machine, flat columns, and
types that are the declared ones or become them without loss. Whatever else it meets is left to Spark's reader
(`LeftToSpark`), which then reads it, or says in its own words why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.files.errors import local_file
from headrace.connectors.source_contract import BadRows, LeftToSpark, WorkerRows
from headrace.model.amounts import count_of
from headrace.model.columns import within_years

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from headrace.model.rows import RowCodec
    from headrace.model.shapes import FieldShape

PIECE_ROWS: Final = 65_536

_BUFFER_BYTES: Final = 1 << 20
"""A column of a row group is read through a buffer of this size: row groups may be larger than memory."""
_OLD_CALENDAR: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK: Final = b"org.apache.spark.version"

_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError)
"""What reading a damaged file may raise, or one with names and texts that are no UTF-8."""

_Convert = Callable[[pa.Array], pa.Array]


def parquet_rows(codec: RowCodec) -> ParquetRows | None:
    """What decodes rows of this type; None where Spark's reader alone knows what a file says of them."""
    shapes: Iterable[FieldShape] = getattr(codec, "fields", ())
    if any(pa.types.is_nested(field.type) for field in codec.schema) or any(shape.factory for shape in shapes):
        # What a factory makes is made once, in the driver, and is part of the SQL.
        return None
    try:
        return ParquetRows(codec)
    except (*_UNREADABLE, TypeError, AttributeError):
        # A default that is not of the field's type, or not exactly: SQL casts it.
        return None


class ParquetRows(WorkerRows):
    pieces = ("_metadata.file_path AS file", "_metadata.row_index AS row")
    keep = f"row % {PIECE_ROWS} = 0"

    def __init__(self, codec: RowCodec, columns: Sequence[str] | None = None) -> None:
        """``columns``: those that are asked for; None: all."""
        self._codec = codec
        self._asked = codec.schema if columns is None else pa.schema([codec.schema.field(name) for name in columns])
        filled = {name: value for name, value in codec.defaults.items() if value is not None}
        self._defaults = {name: codec.columns[name].encode([value])[0] for name, value in filled.items()}

    def only(self, columns: Sequence[str]) -> ParquetRows:
        return ParquetRows(self._codec, columns)

    def read_whole(self, uri: str) -> Iterator[pa.RecordBatch | BadRows]:
        """All rows of a file."""
        import pyarrow.parquet as pq

        path = local_file(uri)
        count = 0 if path is None else pq.read_metadata(path).num_rows
        firsts = range(0, count, PIECE_ROWS)
        yield from self.read(pa.RecordBatch.from_pydict({"file": [uri] * len(firsts), "row": list(firsts)}))

    def read(self, pieces: pa.RecordBatch) -> Iterator[pa.RecordBatch | BadRows]:
        for uri, first, stop in _ranges(pieces):
            path = local_file(uri)
            if path is None:
                raise LeftToSpark("it is not on a disk of the worker's machine", where=uri)
            try:
                for batch in self._columns(path, first, stop):
                    yield from self._complete(uri, batch)
            except _UNREADABLE as error:
                raise LeftToSpark(f"Arrow cannot read it: {error}", where=str(path)) from error

    def _columns(self, path: Path, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The columns that are asked for, for these rows of a file; all where a row may lack what it must have."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            _check_writer(file, path)
            found = _FileColumns(file, path)
            # Also of columns that nobody asks for: whether Spark reads a file must not depend on the program.
            names = {field.name: found.column(field.name) for field in self._codec.schema}
            converts = {field.name: found.conversion(names[field.name], field) for field in self._codec.schema}
            schema = self._asked
            if not found.has_all(names[name] for name in self._codec.required if name not in schema.names):
                schema = self._codec.schema
            read = [name for field in schema if (name := names[field.name]) is not None]
            for batch in _rows(file, read, first, stop):
                columns = [
                    pa.nulls(batch.num_rows, field.type)
                    if (name := names[field.name]) is None
                    else converts[field.name](batch.column(name))
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _complete(self, uri: str, given: pa.RecordBatch) -> Iterator[pa.RecordBatch | BadRows]:
        """Rows with their defaults; those that lack what must be there, apart."""
        schema, columns = given.schema, given.columns
        for index, field in enumerate(schema):
            if field.name in self._defaults and columns[index].null_count:
                columns[index] = columns[index].fill_null(self._defaults[field.name])
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        must = [name for name in self._codec.required if name in schema.names]
        lacking = [name for name in must if batch.column(name).null_count]
        batch_asked = batch if schema is self._asked else batch.select(self._asked.names)
        if not lacking:
            yield batch_asked
            return
        bad = pc.is_null(batch.column(lacking[0]))
        for name in lacking[1:]:
            bad = pc.or_(bad, pc.is_null(batch.column(name)))
        yield BadRows([_bad_text(uri, row, lacking) for row in _with_readable_times(given.filter(bad)).to_pylist()])
        yield batch_asked.filter(pc.invert(bad))


def _ranges(pieces: pa.RecordBatch) -> Iterator[tuple[str, int, int]]:
    """Pieces that follow each other as one range of rows: file, first, one past the last."""
    uri, first, stop = "", 0, 0
    for file, row in zip(pieces.column(0).to_pylist(), pieces.column(1).to_pylist(), strict=True):
        if (file, row) != (uri, stop):
            if stop:
                yield uri, first, stop
            uri, first = file, row
        stop = row + PIECE_ROWS
    if stop:
        yield uri, first, stop


def _rows(file: pq.ParquetFile, names: list[str], first: int, stop: int) -> Iterator[pa.RecordBatch]:
    """These columns of the rows from `first` to before `stop`, or to the end of the file."""
    groups: list[int] = []
    at = begin = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if at < stop and at + rows > first:
            begin = begin if groups else at
            groups.append(group)
        at += rows
    stop = min(stop, at)
    if not names:
        yield from _without_columns(stop - first)
        return
    for batch in file.iter_batches(PIECE_ROWS, row_groups=groups, columns=names, use_threads=False):
        end = begin + batch.num_rows
        if end > first:
            yield batch.slice(max(0, first - begin), min(end, stop) - max(begin, first))
        begin = end
        if begin >= stop:
            return
    if begin < stop:
        # Arrow ends without a word where a column has no page that it knows.
        raise ValueError(f"it has {count_of(begin, 'row')} instead of {stop:,}")


def _without_columns(count: int) -> Iterator[pa.RecordBatch]:
    """Of a file that has none of the fields there is only the number of its rows."""
    while count > 0:
        some = min(count, PIECE_ROWS)
        yield pa.RecordBatch.from_arrays([pa.nulls(some)], names=[""])
        count -= some


def _check_writer(file: pq.ParquetFile, path: Path) -> None:
    """Old writers meant other days by the same numbers; Spark knows which."""
    said = file.metadata.metadata or {}
    version = said.get(_SPARK, b"4").split(b".")[0]
    if any(sign in said for sign in _OLD_CALENDAR) or not version.isdigit() or int(version) < 3:
        raise LeftToSpark("an old Spark wrote it, whose calendar was another", where=str(path))


class _FileColumns:
    """What a file has for the fields of a row type; `LeftToSpark` where Spark might take something else for them."""

    def __init__(self, file: pq.ParquetFile, path: Path) -> None:
        self._where = str(path)
        self._folders = [part.lower() for part in path.parent.parts]
        self._schema = file.schema_arrow
        self._by_folded: dict[str, list[str]] = {}
        for name in self._schema.names:
            self._by_folded.setdefault(name.lower(), []).append(name)
        leaves = [file.schema.column(i) for i in range(len(file.schema))]
        self._leaves = {leaf.path: place for place, leaf in enumerate(leaves)}
        self._metadata = file.metadata
        self._wide_times = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}

    def column(self, field: str) -> str | None:
        """The column for a field, whatever the case of its letters; None: the file has none."""
        if any(folder.startswith(f"{field.lower()}=") for folder in self._folders):
            raise LeftToSpark(f"{field} is told by the name of a folder", where=self._where)
        names = self._by_folded.get(field.lower(), [])
        if len(names) > 1:
            raise LeftToSpark(f"it has several columns {field}", where=self._where)
        if not names:
            return None
        if names[0] in self._wide_times:
            raise LeftToSpark(f"{field} is a time of 96 bits", where=self._where)
        return names[0]

    def has_all(self, names: Iterable[str | None]) -> bool:
        """Whether every row of the file has a value in these columns, as far as the file tells without their rows."""
        return all(name is not None and self._is_full(name) for name in names)

    def _is_full(self, name: str) -> bool:
        groups = (self._metadata.row_group(number) for number in range(self._metadata.num_row_groups))
        chunks = [group.column(self._leaves[name]) for group in groups]
        return all(
            chunk.is_stats_set and chunk.statistics.has_null_count and not chunk.statistics.null_count
            for chunk in chunks
        )

    def conversion(self, name: str | None, field: pa.Field) -> _Convert:
        """From the type of a column to the declared one, where Spark would do the same."""
        found = field.type if name is None else self._schema.field(name).type
        if found != field.type and not _becomes(found, field.type):
            raise LeftToSpark(f"{field.name} is {found} there, not {field.type}", where=self._where)
        return _text if pa.types.is_string(field.type) else partial(_cast, kind=field.type)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _text(array: pa.Array) -> pa.Array:
    """A text that is none would end whoever computes with it."""
    array = _cast(array, pa.string())
    array.validate(full=True)
    return array


_INTS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32())
_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
_BYTES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())


def _becomes(found: Any, wanted: Any) -> bool:
    """Whether Spark reads this type as the declared one without a change of any value; proved by a test against it."""
    types: Any = pa.types
    if types.is_dictionary(found):
        found = found.value_type
    if types.is_string(wanted):
        return found in _TEXTS
    if types.is_binary(wanted):
        return found in (*_TEXTS, *_BYTES)
    if types.is_int64(wanted):
        return found in (*_INTS, wanted)
    if types.is_float64(wanted):
        return found in (*_INTS[:3], pa.float32(), wanted)
    if types.is_timestamp(wanted):
        # Without a time zone it is UTC, that of the session.
        return bool(types.is_timestamp(found) and found.unit in ("ms", "us"))
    if types.is_decimal128(wanted) and types.is_decimal128(found):
        finer = wanted.scale - found.scale
        return bool(0 <= finer <= wanted.precision - found.precision)
    return bool(found == wanted)


def _with_readable_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With times as text, or as numbers where one is not of the years that people write."""
    columns = [_dates_as_text(column) if pa.types.is_temporal(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _dates_as_text(column: pa.Array) -> pa.Array:
    bare = pa.int32() if pa.types.is_date(column.type) else pa.int64()
    return column.cast(pa.string() if within_years(column) else bare)


def _bad_text(uri: str, row: dict[str, Any], lacking: list[str]) -> str:
    """A row as `explain_bad_row` wants it told."""
    name = next(name for name in lacking if row[name] is None)
    given = {key: value for key, value in row.items() if value is not None}
    said = {"file": uri, "text": msgspec.json.encode(given).decode(), "reason": f"{name} is missing"}
    return msgspec.json.encode(said).decode()
