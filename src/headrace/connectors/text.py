"""Rows as text in bulk: ISO times, JSON lines and CSV.

Text depends on the value alone, never on its neighbours in a batch, so that the same rows give the same bytes however
they were cut into epochs. Flat columns are written by polars without making an object; what only a record's own codec
can say (nested values, decimals, bytes) goes row by row through the codec.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.rows import VALUE
from headrace.model.shapes import is_record_class
from headrace.model.time import format_time

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = -62_135_596_800_000_000
"""0001-01-01: from here to the end of 9999 a year has four digits."""
_LAST_US: Final = 253_402_300_799_999_999
_WIDTH: Final = 27
"""Characters of ``2024-01-01T12:00:00.000000Z``."""
_POINT: Final = 19
_NEWLINE: Final = 10
_DIGIT_0: Final = ord("0")


def iso_text(times: pa.Array) -> pa.Array:
    """Timestamps as ISO text, each as `format_time` writes it; ten and more times as fast as a call per row."""
    micros = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64())
    if micros.null_count == len(micros):
        return pa.nulls(len(micros), pa.string())
    values = micros.fill_null(0).to_numpy(zero_copy_only=False)
    if values.min() < _FIRST_US or values.max() > _LAST_US:
        return pa.array([None if us is None else format_time(us) for us in micros.to_pylist()], pa.string())
    texts = _format(values)
    if not micros.null_count:
        return texts
    return pc.if_else(micros.is_valid(), texts, pa.scalar(None, pa.string()))


def _format(micros: npt.NDArray[np.int64]) -> pa.Array:
    """One row of bytes per character, because numpy is fast along the long side."""
    count = len(micros)
    chars = np.empty((_WIDTH, count), np.uint8)
    days = micros // _DAY_US
    in_day = micros - days * _DAY_US
    whole = in_day // 1_000_000
    fraction = (in_day - whole * 1_000_000).astype(np.int32)
    seconds = whole.astype(np.int32)
    minutes = seconds // 60
    hours = minutes // 60
    _write_dates(chars, days)
    _write_digits(chars, hours, 11, 2)
    _write_digits(chars, minutes - hours * 60, 14, 2)
    _write_digits(chars, seconds - minutes * 60, 17, 2)
    _write_digits(chars, fraction, _POINT + 1, 6)
    for place, char in ((10, "T"), (13, ":"), (16, ":"), (_POINT, "."), (_WIDTH - 1, "Z")):
        chars[place] = ord(char)
    return _without_trailing_zeros(chars)


def _write_dates(chars: npt.NDArray[np.uint8], days: npt.NDArray[np.int64]) -> None:
    """Rows of a batch share few days, so each day is written once and looked up."""
    distinct, which = np.unique(days, return_inverse=True)
    dates = distinct.astype("M8[D]").astype("S10").view(np.uint8).reshape(-1, 10)
    for place in range(10):
        chars[place] = dates[:, place][which]


def _write_digits(chars: npt.NDArray[np.uint8], values: npt.NDArray[np.int32], place: int, count: int) -> None:
    for at in range(place + count - 1, place - 1, -1):
        rest = values // 10
        chars[at] = values - rest * 10 + _DIGIT_0
        values = rest


def _without_trailing_zeros(chars: npt.NDArray[np.uint8]) -> pa.Array:
    count = chars.shape[1]
    kept = np.ones(chars.shape, np.bool_)
    only_zeros = np.ones(count, np.bool_)
    for place in range(_WIDTH - 2, _POINT, -1):
        only_zeros &= chars[place] == _DIGIT_0
        kept[place] = ~only_zeros
    kept[_POINT] = ~only_zeros
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(kept.sum(axis=0), out=ends[1:])
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(chars.T[kept.T]))


def value_texts(column: pa.Array) -> pa.Array:
    """The text of each value without parts: times in ISO form, numbers as Python writes them; no bytes."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return iso_text(column)
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else f"{v.normalize():f}" for v in column.to_pylist()], pa.string())
    if pa.types.is_floating(kind):
        # Whole numbers keep their point, so that they are read back as what they were.
        return pa.array([None if v is None else repr(v) for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def value_bytes(column: pa.Array) -> pa.Array:
    """The same in UTF-8; bytes as they are."""
    return column if pa.types.is_binary(column.type) else value_texts(column).cast(pa.binary())


def is_flat(schema: pa.Schema) -> bool:
    """Whether every column is one that polars writes as JSON or CSV just as the codec would."""
    return all(_is_plain(field.type) for field in schema)


def _is_plain(kind: pa.DataType) -> bool:
    kinds = pa.types
    return any(
        test(kind) for test in (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_string, kinds.is_date)
    ) or kinds.is_timestamp(kind)


def json_lines(table: pa.Table, codec: RowCodec, without: tuple[str, ...] = ()) -> bytes:
    """One JSON object per row, without the named fields."""
    if not is_flat(codec.schema) or _tag_of(codec) is not None:
        return _json_lines_of_objects(table, codec, without)
    out = io.BytesIO()
    _frame(table, without, codec.encoded_names).write_ndjson(out)
    return out.getvalue()


def json_documents(batch: pa.RecordBatch, codec: RowCodec) -> pa.Array:
    """One document per row, as the codec writes it."""
    if not _is_plain_record(codec):
        return pa.array(list(codec.to_json(codec.to_objects(batch.columns))), pa.binary())
    lines = json_lines(pa.Table.from_batches([batch]), codec)
    # Inside a document a newline is written as two characters, so each byte 10 ends one.
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == _NEWLINE)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(lines.replace(b"\n", b""))]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def _is_plain_record(codec: RowCodec) -> bool:
    """Whether a document of a row is its columns by name, and nothing else: then no object need be made."""
    if not is_record_class(codec.type) or not is_flat(codec.schema):
        return False
    config = getattr(codec.type, "__struct_config__", None)
    return _tag_of(codec) is None and (config is None or not (config.array_like or config.omit_defaults))


def _tag_of(codec: RowCodec) -> Any:
    """What the documents of a row say beside its fields, where its type has a tag."""
    config = getattr(codec.type, "__struct_config__", None)
    return None if config is None else config.tag


def _json_lines_of_objects(table: pa.Table, codec: RowCodec, without: tuple[str, ...]) -> bytes:
    lines = codec.to_json(codec.to_objects([column.combine_chunks() for column in table.columns]))
    if codec.names == [VALUE] and not is_record_class(codec.type):
        lines = (b'{"value":' + line + b"}" for line in lines)
    if without:
        names = [codec.encoded_names[name] for name in without]
        lines = (_without_fields(line, names) for line in lines)
    return b"".join(line + b"\n" for line in lines)


def _without_fields(line: bytes, names: list[str]) -> bytes:
    fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in names})


def csv_lines(table: pa.Table, without: tuple[str, ...] = ()) -> bytes:
    """A header and one line per row. Bytes are base64, as in JSON; an absent value is an empty cell."""
    out = io.BytesIO()
    _frame(table, without, {}).write_csv(out)
    return out.getvalue()


def _frame(table: pa.Table, without: tuple[str, ...], renamed: dict[str, str]) -> Any:
    # polars costs a tenth of a second to import, and only tasks that write text need it.
    import polars as pl

    columns = {
        renamed.get(field.name, field.name): _as_text_where_needed(table.column(field.name), field.type)
        for field in table.schema
        if field.name not in without
    }
    return pl.from_arrow(pa.table(columns))


def _as_text_where_needed(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    kinds = pa.types
    if kinds.is_timestamp(kind) or kinds.is_date(kind) or kinds.is_decimal(kind):
        return pa.chunked_array(map(value_texts, column.chunks), pa.string())
    if kinds.is_binary(kind):
        import base64

        return pa.array([None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()], pa.string())
    return column
