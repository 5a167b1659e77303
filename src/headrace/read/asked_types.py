"""Values read as the type that a reader asks for, whatever the type they were stored as, as far as rules lead there.

Who asks without a type is answered in the version that a value was written in. Functions of the program are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

from msgspec.structs import replace

from headrace.model.job import DeclaredState, FormerType, derive_version
from headrace.model.key_bytes import as_type
from headrace.model.shapes import field_shapes, is_record_class, split_optional, strip
from headrace.model.type_shape import describe_type
from headrace.model.values import check_storable
from headrace.state.adapters import Adapters

if TYPE_CHECKING:
    from headrace.state.lookup import Layers

RESULTS: Final = ("aggregate", "windows")
"""Kinds of states that are asked for in the type of their results, which is not that of what is stored."""


def adapt_to(layers: Layers, table: str, states: Mapping[str, DeclaredState], value: Any, address: str) -> Layers:
    """The runs of a step, with the values of a table as the type that was asked for."""
    declared = states[table]
    if declared.kind in RESULTS or declared.type is None:
        return layers
    check_storable(value, where=f"state {address}")
    newest = derive_version(states) + 1
    formers = (FormerType(declared.since, declared.type), *declared.formers)
    asked = replace(declared, type=describe_type(value), since=newest, formers=formers)
    adapters = Adapters(address.partition(".")[0], {**states, table: asked}, lenient=True)
    if all(adapters.of(table, ref.version) is None for ref, _ in layers.runs):
        return layers
    return layers.adapted_by(adapters)


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
