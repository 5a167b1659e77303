"""Types as columns: which Arrow type an annotation has, and how its values get there and back.

Every converter takes a whole column at a time and lets None through, because a column may be null even where the
annotation has no None (an absent field, another member of a union). What columnar types cannot say (mixed unions, Any,
recursive types) travels as MessagePack in a binary column, marked so in the field's metadata. All columns are nullable
in the schema; `RowCodec.required` says which of them may not be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.values import value_codec

PACKED: Final = {"headrace": "msgpack"}
"""Metadata of a field whose binary column holds MessagePack."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
DECIMAL: Final = pa.decimal128(38, 18)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_FIRST_DAY = date(1, 1, 1).toordinal() - _EPOCH_DAY
_LAST_DAY = date(9999, 12, 31).toordinal() - _EPOCH_DAY
_WIDE = Context(prec=38)


class Column:
    """A column of plain values: Arrow and Python agree on them without help."""

    packed = False

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow

    def decode(self, array: pa.Array) -> list[Any]:
        """The values of a column, None where it is null."""
        return array.to_pylist()  # type: ignore[no-any-return]

    def encode(self, values: Sequence[Any]) -> pa.Array:
        """A column of these values, null where they are None."""
        return pa.array(values, type=self.arrow)

    def field(self, name: str) -> pa.Field:
        return pa.field(name, self.arrow, metadata=PACKED if self.packed else None)


class IntColumn(Column):
    """Whole numbers. Arrow would cut off what is behind the point of a float, without a word."""

    def __init__(self) -> None:
        super().__init__(pa.int64())

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(check_whole(values), type=self.arrow)


def check_whole(values: Sequence[Any]) -> Sequence[Any]:
    """The values, if none of them has something behind the point."""
    # Asked of all types at once, and of single values only where one is a float.
    if float in set(map(type, values)):
        for value in values:
            if type(value) is float and not value.is_integer():
                raise TypeError(f"{value!r} is not a whole number")
    return values


class TimeColumn(Column):
    """Microseconds as a TIMESTAMP: Arrow keeps the same 64 bits, so only the view changes."""

    def __init__(self) -> None:
        super().__init__(TIMESTAMP)

    def decode(self, array: pa.Array) -> list[Any]:
        return as_int64(array).to_pylist()  # type: ignore[no-any-return]

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(check_whole(values), type=pa.int64()).view(TIMESTAMP)


def as_int64(array: pa.Array) -> pa.Array:
    """A column of times as microseconds, whatever zone Spark wrote on it."""
    if pa.types.is_timestamp(array.type) and array.type.unit != "us":
        array = array.cast(TIMESTAMP)
    return array if array.type == pa.int64() else array.view(pa.int64())


def within_years(array: pa.Array) -> bool:
    """Whether all of these times or days are of the years 1 to 9999. What lies beyond, libraries count in many ways."""
    is_days = pa.types.is_date(array.type)
    low, high = pc.min_max(array.cast(pa.int32()) if is_days else as_int64(array)).as_py().values()
    unit = 1 if is_days else _DAY_US
    return low is None or (_FIRST_DAY * unit <= low and high < _LAST_DAY * unit)


class MappedColumn(Column):
    """Values that become plain values by a function, and come back by another."""

    def __init__(self, inner: Column, into: Callable[[Any], Any], back: Callable[[Any], Any]) -> None:
        super().__init__(inner.arrow)
        self.inner, self.into, self.back = inner, into, back

    def decode(self, array: pa.Array) -> list[Any]:
        back = self.back
        return [None if value is None else back(value) for value in self.inner.decode(array)]

    def encode(self, values: Sequence[Any]) -> pa.Array:
        into = self.into
        return self.inner.encode([None if value is None else into(value) for value in values])


class PackedColumn(MappedColumn):
    """Anything at all, as MessagePack."""

    packed = True

    def __init__(self, annotation: Any) -> None:
        codec = value_codec(annotation)
        super().__init__(Column(pa.binary()), codec.encode, codec.decode)


class ListColumn(Column):
    """Lists, sets and tuples: one flat column of items, and where each list ends."""

    def __init__(self, item: Column, build: Callable[[list[Any]], Any] | None) -> None:
        super().__init__(pa.list_(pa.field("element", item.arrow, metadata=PACKED if item.packed else None)))
        self.item, self.build = item, build

    def decode(self, array: pa.Array) -> list[Any]:
        bounds, present = _bounds(array)
        items = self.item.decode(array.values[bounds[0] : bounds[-1]]) if len(array) else []
        first, build = bounds[0] if bounds else 0, self.build
        out: list[Any] = []
        for i, here in enumerate(present):
            part = items[bounds[i] - first : bounds[i + 1] - first] if here else None
            out.append(part if build is None or part is None else build(part))
        return out

    def encode(self, values: Sequence[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        flat = list(chain.from_iterable(value for value in values if value is not None))
        return pa.ListArray.from_arrays(offsets, self.item.encode(flat), type=self.arrow, mask=mask)


class MapColumn(Column):
    """Dictionaries: a flat column of keys, one of values, and where each dictionary ends."""

    def __init__(self, key: Column, value: Column) -> None:
        item = pa.field("value", value.arrow, metadata=PACKED if value.packed else None)
        super().__init__(pa.map_(pa.field("key", key.arrow, nullable=False), item))
        self.key, self.value = key, value

    def decode(self, array: pa.Array) -> list[Any]:
        bounds, present = _bounds(array)
        if not len(array):
            return []
        first, last = bounds[0], bounds[-1]
        keys = self.key.decode(array.keys[first:last])
        values = self.value.decode(array.items[first:last])
        cuts = [bound - first for bound in bounds]
        return [
            dict(zip(keys[cuts[i] : cuts[i + 1]], values[cuts[i] : cuts[i + 1]])) if here else None
            for i, here in enumerate(present)
        ]

    def encode(self, values: Sequence[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        there = [value for value in values if value is not None]
        keys = self.key.encode(list(chain.from_iterable(there)))
        items = self.value.encode(list(chain.from_iterable(value.values() for value in there)))
        return pa.MapArray.from_arrays(offsets, keys, items, type=self.arrow, mask=mask)


class StructColumn(Column):
    """Nested records and dataclasses: a column per field."""

    def __init__(self, build: Callable[..., Any], parts: dict[str, Column]) -> None:
        super().__init__(pa.struct([part.field(name) for name, part in parts.items()]))
        self.build, self.parts = build, parts
        self.getters = {name: getter(name) for name in parts}

    def decode(self, array: pa.Array) -> list[Any]:
        lists = [part.decode(column) for part, column in zip(self.parts.values(), array.flatten())]
        if not array.null_count:
            return list(map(self.build, *lists))
        build, present = self.build, array.is_valid().to_pylist()
        return [build(*row) if here else None for here, row in zip(present, zip(*lists))]

    def encode(self, values: Sequence[Any]) -> pa.Array:
        missing = [value is None for value in values]
        if not any(missing):
            columns = [part.encode(self.getters[name](values)) for name, part in self.parts.items()]
            return pa.StructArray.from_arrays(columns, fields=list(self.arrow))
        columns = [
            part.encode([None if value is None else getattr(value, name) for value in values])
            for name, part in self.parts.items()
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=pa.array(missing))


def getter(name: str) -> Callable[[Sequence[Any]], list[Any]]:
    """One attribute of many objects: a comprehension with the name inlined is half the cost of attrgetter."""
    return eval(f"lambda objects: [o.{name} for o in objects]")  # type: ignore[no-any-return]


def _bounds(array: pa.Array) -> tuple[list[int], list[bool]]:
    """Where each list of a column starts and ends in its flat values, and which of them are there."""
    if not len(array):
        return [], []
    return array.offsets.to_pylist(), array.is_valid().to_pylist()


def _offsets(values: Sequence[Any]) -> tuple[pa.Array, pa.Array | None]:
    lengths = [0 if value is None else len(value) for value in values]
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    missing = [value is None for value in values]
    return pa.array(offsets), pa.array(missing) if any(missing) else None


def datetime_column() -> Column:
    """Datetimes; without a zone they are UTC, and they come back with it."""

    def into(value: datetime) -> int:
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND

    return MappedColumn(TimeColumn(), into, lambda us: _EPOCH + timedelta(microseconds=us))


class DateColumn(Column):
    """Dates, as days since 1970."""

    def __init__(self) -> None:
        super().__init__(pa.date32())

    def decode(self, array: pa.Array) -> list[Any]:
        ordinal = date.fromordinal
        return [None if day is None else ordinal(_EPOCH_DAY + day) for day in array.view(pa.int32()).to_pylist()]


def timedelta_column() -> Column:
    """Timedeltas, as whole microseconds."""
    return MappedColumn(Column(pa.int64()), lambda span: span // _MICROSECOND, lambda us: timedelta(microseconds=us))


def shortest_decimal(value: Decimal) -> Decimal:
    """The same number without zeros behind it, and never with an exponent."""
    short = value.normalize(_WIDE)
    exponent = short.as_tuple().exponent
    return short.quantize(Decimal(1), context=_WIDE) if isinstance(exponent, int) and exponent > 0 else short


def decimal_column() -> Column:
    """Decimals as DECIMAL(38, 18); the zeros that fill up the scale do not come back."""
    return MappedColumn(Column(DECIMAL), lambda value: value, shortest_decimal)
