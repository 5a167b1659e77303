"""Numbers in results as the datetimes and spans that a type has there, for whoever asks for results with a type.

Columns hold a datetime, a timedelta and a count alike, as a number, and so do the rows of results that are read off
columns. Only the type that is asked for tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, get_args

from headrace.model.key_bytes import as_type
from headrace.model.shapes import field_shapes, is_record_class, split_optional, strip

Convert = Callable[[Any], Any]


def spans_and_datetimes_of(annotation: Any, above: tuple[Any, ...] = ()) -> Convert | None:
    """What makes datetimes and timedeltas of the microseconds that columns have for them.

    None where the annotation has none. Whatever is no such number is left as it is, and so is a Record inside
    of itself, which no column holds. ``above``: the Records around it.
    """
    bare = strip(split_optional(annotation)[0])
    if isinstance(bare, type) and issubclass(bare, datetime | timedelta):
        return partial(as_type, annotation=bare)
    if bare in above:
        return None
    if is_record_class(bare):
        inside = {field.encode_name: spans_and_datetimes_of(field.type, (*above, bare)) for field in field_shapes(bare)}
        fields = {name: convert for name, convert in inside.items() if convert is not None}
        return partial(_convert_fields, fields) if fields else None
    parts = [spans_and_datetimes_of(part, above) for part in get_args(bare) if part is not Ellipsis]
    if not any(parts):
        return None
    return partial(_convert_elements, parts)


def _convert_fields(fields: Mapping[str, Convert], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: fields[name](part) if name in fields else part for name, part in value.items()}


def _convert_elements(parts: list[Convert | None], value: Any) -> Any:
    """``parts``: of the elements of a list, of the names and values of a map, or of each place of a tuple."""
    last = parts[-1]
    if isinstance(value, dict):
        name = parts[0]
        return {key if name is None else name(key): each if last is None else last(each) for key, each in value.items()}
    if not isinstance(value, list | tuple):
        return value
    of_each = parts if len(parts) == len(value) else [parts[0]] * len(value)
    return [each if convert is None else convert(each) for convert, each in zip(of_each, value)]
