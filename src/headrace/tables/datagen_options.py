"""TableOptions of made-up rows in DDL: ``fields.<column>.<what>``, as Flink's datagen has them, and a few more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.connectors.program.datagen import START_US, ColumnPlan, DataColumns
from headrace.connectors.source_contract import Source
from headrace.errors import HeadraceError
from headrace.model.time import parse_time, span_us
from headrace.tables.options import TableOptions, opt, read_span, read_value

if TYPE_CHECKING:
    from headrace.tables.declared import DeclaredTable

RATE: Final = 1000.0
DATAGEN: Final = (
    opt("rate", "rows-per-second", kind="number"),
    opt("total", "number-of-rows", kind="int"),
    opt("seed", kind="int"),
    opt("per_epoch", kind="int"),
    opt("partitions", kind="int"),
)
_FIELD_OPTIONS: Final = (
    "kind", "min", "max", "start", "end", "length", "values", "distinct", "null-rate", "max-past", "step",
)  # fmt: skip


def datagen_source(table: DeclaredTable, options: TableOptions, arguments: dict[str, Any]) -> Source:
    from headrace import source

    codec = table.read_codec()
    fields: dict[str, dict[str, str]] = {}
    for name, value in options.starting("fields.").items():
        column, _, what = name.rpartition(".")
        _check(table, f"fields.{name}", column, what)
        fields.setdefault(column, {})[what] = value
    rate = arguments.pop("rate", RATE)
    seed = arguments.pop("seed", 1)
    plans = {each.name: _plan(table, each, fields.get(each.name, {}), rate) for each in codec.schema}
    ends = [_end(fields[name], plans[name]) for name in fields if plans[name].sequence and "end" in fields[name]]
    if ends:
        arguments.setdefault("total", min(ends))
    return source.generator(columns=DataColumns(codec.schema, seed, plans), rate=rate, **arguments)


def _check(table: DeclaredTable, option: str, column: str, what: str) -> None:
    if column not in table.physical:
        raise table.option_error(option, "the table has no such column", column, f"one of {', '.join(table.physical)}")
    if what not in _FIELD_OPTIONS:
        raise table.option_error(option, "there is no such option", what, f"one of {', '.join(_FIELD_OPTIONS)}")


def _plan(table: DeclaredTable, column: pa.Field, said: dict[str, str], rate: float) -> ColumnPlan:
    try:
        return _column_plan(column.type, said, rate)
    except (ValueError, HeadraceError) as error:
        what = next(iter(said), "kind")
        raise table.option_error(f"fields.{column.name}.{what}", "the option cannot be read", str(error)) from error


def _column_plan(kind: pa.DataType, said: dict[str, str], rate: float) -> ColumnPlan:
    timed = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if said.get("kind", "random") not in ("random", "sequence"):
        raise ValueError(f"kind is random or sequence, not {said['kind']}")
    step = span_us(read_span(said["step"])) if "step" in said else 1_000_000 / rate
    return ColumnPlan(
        sequence=said.get("kind") == "sequence",
        low=0 if timed else float(said.get("min", said.get("start", 0))),
        high=100 if timed else float(said.get("max", 100)),
        values=tuple(_typed(kind, each) for each in read_value(said.get("values", ""), "list")),
        length=int(said.get("length", 0)),
        distinct=int(said.get("distinct", 10)),
        nulls=float(said.get("null-rate", 0)),
        start_us=parse_time(said["start"]) if timed and "start" in said else START_US,
        step_us=step,
        late_us=span_us(read_span(said["max-past"])) if "max-past" in said else 0,
    )


def _typed(kind: pa.DataType, text: str) -> Any:
    return pa.array([text]).cast(kind)[0].as_py()


def _end(said: dict[str, str], plan: ColumnPlan) -> int:
    """How many rows a sequence has."""
    return max(1, int(said["end"]) - int(plan.low) + 1)
