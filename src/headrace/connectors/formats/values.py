"""Values that both formats say in ways of their own, as columns of a row type: text, times, days, decimals.

What does not fit marks its message as bad and becomes null, or empty; the others stay as they are.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.formats.cursor import Bytes, Cursor, Ints
from headrace.connectors.formats.fields import TreeField
from headrace.model.columns import TIMESTAMP

_MICROS: Final = 1_000_000
_DAY_S: Final = 86_400
_FIRST_DAY: Final = (datetime.date.min - datetime.date(1970, 1, 1)).days
_LAST_DAY: Final = (datetime.date.max - datetime.date(1970, 1, 1)).days
_INT64: Final = np.iinfo(np.int64)
_DECIMAL_BYTES: Final = 16


def check_text(values: pa.Array, cursor: Cursor, what: str) -> pa.Array:
    """Bytes as text. `what` is said of a message whose bytes are no UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        contents = values.to_pylist()
        wrong = np.array([not _is_text(each) for each in contents], np.bool_)
        cursor.fail(wrong & ~cursor.lost, f"{what} is not UTF-8 text")
        # The keys of a map may not be null, not even those of a message that is bad.
        return pa.array([b"" if bad else each for bad, each in zip(wrong, contents)], pa.binary()).cast(pa.string())


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or isinstance(value.decode(), str)
    except UnicodeDecodeError:
        return False


def time_column(cursor: Cursor, values: Ints, per_second: int, field: TreeField) -> pa.Array:
    """Times since 1970 in units of which a second has so many. What is finer than a microsecond is cut off."""
    if per_second < _MICROS:
        factor = _MICROS // per_second
        cursor.fail(np.abs(values) > _INT64.max // factor, "a time in it lies beyond all years")
        values = np.where(cursor.lost, 0, values) * factor
    elif per_second > _MICROS:
        values = values // (per_second // _MICROS)
    if field.annotation is datetime.datetime:
        day_us = _DAY_S * _MICROS
        values = _within(cursor, values, _FIRST_DAY * day_us, (_LAST_DAY + 1) * day_us - 1)
    return pa.array(values).view(TIMESTAMP)


def date_column(cursor: Cursor, days: Ints) -> pa.Array:
    return pa.array(_within(cursor, days, _FIRST_DAY, _LAST_DAY).astype(np.int32)).view(pa.date32())


def _within(cursor: Cursor, values: Ints, first: int, last: int) -> Ints:
    """Times or days that Python's own types can hold, those of the years 1 to 9999; others make their messages bad."""
    cursor.fail((values < first) | (values > last), "a time in it lies beyond all years")
    return np.where(cursor.lost, 0, values)


def time_of_day_column(cursor: Cursor, values: Ints, per_second: int) -> pa.Array:
    """Times of day as ISO text."""
    cursor.fail((values < 0) | (values >= _DAY_S * per_second), "a time of day in it is not within a day")
    micros = np.where(cursor.lost, 0, values) * (_MICROS // per_second)
    begin = datetime.datetime(1970, 1, 1)
    # Few programs keep times of day, and only Python writes them as Python reads them.
    return pa.array([(begin + datetime.timedelta(microseconds=us)).time().isoformat() for us in micros.tolist()])


def decimal_column(values: pa.Array, scale: int, field: TreeField, cursor: Cursor) -> pa.Array:
    """Numbers of any length, the highest byte first, as decimals of the field's own scale."""
    sizes = np.diff(np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1])
    cursor.fail((sizes > _DECIMAL_BYTES) & ~cursor.lost, f"{field.path} has more than 38 digits")
    starts = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values)]
    data = values.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    # The lowest byte first, as Arrow has them.
    low = np.zeros((len(values), _DECIMAL_BYTES), np.uint8)
    for place in range(min(int(sizes.max(initial=0)), _DECIMAL_BYTES)):
        has = sizes > place
        low[has, place] = content[(starts + sizes - 1 - place)[has]]
    _extend_sign(low, sizes)
    buffers = [None, pa.py_buffer(low.tobytes())]
    exact = pa.Array.from_buffers(pa.decimal128(38, scale), len(values), buffers)
    return _cast(exact, field, cursor)


def _extend_sign(low: Bytes, sizes: npt.NDArray[Any]) -> None:
    top = np.clip(sizes - 1, 0, _DECIMAL_BYTES - 1)
    negative = (sizes > 0) & (low[np.arange(len(low)), top] >= 0x80)
    if negative.any():
        fill = negative[:, None] & (np.arange(_DECIMAL_BYTES) >= sizes[:, None])
        low[fill] = 0xFF


def parsed_column(texts: pa.Array, field: TreeField, cursor: Cursor) -> pa.Array:
    """Text as what the field holds: itself, a day, a decimal; and as one of the values that an Enum or UUID has."""
    test = _text_test(field.annotation)
    if test is not None:
        valid = {each: test(each) for each in texts.unique().to_pylist() if each is not None}
        if not all(valid.values()):
            wrong = np.array([each is not None and not valid[each] for each in texts.to_pylist()], np.bool_)
            cursor.fail(wrong & ~cursor.lost, f"{field.path} is no {field.says}: {_sample(valid)!r}")
    return texts if texts.type == field.kind else _cast(texts, field, cursor)


def _sample(valid: dict[str, bool]) -> str:
    return next(text for text, good in valid.items() if not good)[:80]


def _text_test(annotation: Any) -> Callable[[str], bool] | None:
    """Whether a text is a value of a type whose values are kept as text; None: every text is."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        known = {each.value for each in annotation}
        return known.__contains__
    if annotation is UUID:
        return _succeeds(UUID)
    if annotation is datetime.time:
        return _succeeds(datetime.time.fromisoformat)
    return None


def _succeeds(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def test(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return test


def _cast(values: pa.Array, field: TreeField, cursor: Cursor) -> pa.Array:
    """To the type of the field; where one value has no place there, value by value."""
    try:
        return values.cast(field.kind)
    except pa.ArrowInvalid:
        fitting = [_fitting(each, field.kind) for each in values.to_pylist()]
        wrong = np.array([each is None for each in fitting], np.bool_)
        cursor.fail(wrong & np.asarray(values.is_valid()) & ~cursor.lost, f"{field.path} does not fit {field.says}")
        return pa.array(fitting, field.kind)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    try:
        made = Decimal(value) if pa.types.is_decimal(kind) and isinstance(value, str) else value
        if pa.types.is_date(kind):
            made = datetime.date.fromisoformat(value)
        return pa.array([made], kind)[0].as_py()
    except (pa.ArrowException, ValueError, TypeError, InvalidOperation):
        return None
