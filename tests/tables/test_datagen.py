"""Made-up rows: what options ask for, and the same rows however they are cut."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.connectors.program.datagen import ColumnPlan, DataColumns
from headrace.dataflow.graph import ReadNode
from tests.tables.running import rows_of

SCHEMA = pa.schema(
    [
        ("room", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC")),
        ("on", pa.bool_()), ("raw", pa.binary()), ("day", pa.date32()), ("price", pa.decimal128(38, 18)),
    ]
)  # fmt: skip


def table(source: DataColumns, start: int, stop: int) -> pa.Table:
    return pa.table(source(start, stop), schema=source.schema)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 3))
def test_a_row_depends_on_its_number_and_the_seed_alone(start: int, more: int, seed: int) -> None:
    source = DataColumns(SCHEMA, seed, {"room": ColumnPlan(nulls=0.3), "at": ColumnPlan(step_us=10, late_us=500)})
    whole = table(source, 0, start + more)
    assert table(source, start, start + more).equals(whole.slice(start).combine_chunks())


def test_values_stay_within_what_was_asked_and_use_all_of_it() -> None:
    plans = {
        "n": ColumnPlan(low=3, high=5), "x": ColumnPlan(low=-1, high=1), "room": ColumnPlan(distinct=4),
        "on": ColumnPlan(), "price": ColumnPlan(values=(Decimal("1.50"),)),
    }  # fmt: skip
    rows = table(DataColumns(SCHEMA, 1, plans), 0, 2000)
    assert set(rows["n"].to_pylist()) == {3, 4, 5}
    assert set(rows["room"].to_pylist()) == {f"room-{i}" for i in range(4)}
    assert set(rows["on"].to_pylist()) == {True, False}
    spread = rows["x"].to_pylist()
    assert -1 <= min(spread) < -0.9
    assert 0.9 < max(spread) <= 1


def test_columns_do_not_follow_each_other() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    rows = table(DataColumns(schema, 1, {}), 0, 1000)
    assert sum(a == b for a, b in zip(rows["a"].to_pylist(), rows["b"].to_pylist(), strict=True)) < 50


def test_options_of_ddl_are_read() -> None:
    app = hr.App("gen")
    app.sql("""CREATE TABLE g (id BIGINT, name STRING, kind STRING, at TIMESTAMP(3)) WITH ('connector' = 'datagen',
      'rows-per-second' = '10', 'fields.id.kind' = 'sequence', 'fields.id.start' = '5', 'fields.id.end' = '9',
      'fields.name.length' = '8', 'fields.kind.values' = 'a, b', 'fields.at.start' = '2024-05-01T00:00:00Z')""")
    rows = app.table("g")
    (node,) = [node for node in app.nodes if isinstance(node, ReadNode)]
    assert node.source.bounded
    made = rows_of(app, rows)
    assert [row.id for row in made] == [5, 6, 7, 8, 9]
    assert {len(row.name) for row in made} == {8}
    assert {row.kind for row in made} <= {"a", "b"}
    assert made[1].at - made[0].at == hr.milliseconds(100)
