"""What statements say, and where a mistake in one is."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ExpressionError
from headrace.model.time import Timestamp
from headrace.tables.dialect import parse_script
from headrace.tables.grammar import statement_reader
from headrace.tables.statements import (
    CreateFunction,
    CreateTable,
    CreateView,
    DropObject,
    Explain,
    InsertInto,
    SecretOption,
    SetOption,
    ShowObjects,
    StatementSet,
    VariableOption,
)


def read(text: str) -> Any:
    """What the one statement of a text says."""
    (statement,) = parse_script(text, origin="shop.sql", statements=[statement_reader("shop.sql")])
    return statement.tree


ORDERS = """
CREATE TABLE IF NOT EXISTS orders (
  id BIGINT NOT NULL COMMENT 'one; of many',
  `the_shop` STRING,
  lines ARRAY<ROW<sku STRING, n INT NOT NULL>>,
  prices MAP<STRING, ARRAY<DOUBLE>>,
  sent TIMESTAMP(3) METADATA FROM 'timestamp' VIRTUAL,
  cents AS id * 100 + length(concat('a', ')')),
  at AS to_timestamp(the_shop),
  WATERMARK FOR at AS at - INTERVAL '5' SECOND,
  CONSTRAINT pk PRIMARY KEY (id) NOT ENFORCED
) COMMENT 'orders' PARTITIONED BY (the_shop)
WITH ('connector' = 'kafka', 'topic' = 'o', 'properties.sasl.password' = SECRET('PW'), 'x' = VAR('brokers', 'b:1'))
"""


def test_a_table_says_columns_watermark_key_and_options() -> None:
    table = read(ORDERS)
    assert isinstance(table, CreateTable)
    assert [column.name for column in table.columns] == ["id", "the_shop", "lines", "prices", "sent", "cents", "at"]
    kinds = {column.name: column.annotation for column in table.columns}
    assert kinds["id"] is int
    assert kinds["the_shop"] == str | None
    assert kinds["prices"] == dict[str, list[float | None] | None] | None
    assert kinds["sent"] == Timestamp | None
    assert kinds["lines"].__args__[0].__args__[0].__args__[0].__struct_fields__ == ("sku", "n")
    assert table.columns[4].metadata == "timestamp"
    assert table.columns[4].virtual
    assert table.columns[5].computed == "id * 100 + length(concat('a', ')'))"
    assert table.watermark is not None
    assert (table.watermark.column, table.watermark.expression) == ("at", "at - INTERVAL '5' SECOND")
    assert (table.primary_key, table.partitioned_by, table.if_not_exists) == (("id",), ("the_shop",), True)
    values = {name: option.value for name, option in table.options.items()}
    assert values["properties.sasl.password"] == SecretOption("PW")
    assert values["x"] == VariableOption("brokers", "b:1")


@pytest.mark.parametrize(
    ("written", "annotation"),
    [
        ("TINYINT", int), ("INTEGER", int), ("FLOAT", float), ("DOUBLE PRECISION", float), ("VARCHAR(20)", str),
        ("BYTES", bytes), ("TIMESTAMP_LTZ(3)", Timestamp), ("TIMESTAMP(6) WITHOUT TIME ZONE", Timestamp),
        ("BOOLEAN", bool),
    ],
)  # fmt: skip
def test_types_of_sql_are_types_of_fields(written: str, annotation: Any) -> None:
    column = read(f"CREATE TABLE t (a {written}) WITH ('connector' = 'print')").columns[0]
    assert column.annotation == annotation | None
    column = read(f"CREATE TABLE t (a {written} NOT NULL) WITH ('connector' = 'print')").columns[0]
    assert column.annotation == annotation


def test_queries_inside_statements_know_where_they_stand() -> None:
    insert = read("INSERT INTO t (a, b)\n  SELECT 'x;' AS a, b FROM orders WHERE x = 'it''s'")
    assert isinstance(insert, InsertInto)
    assert (insert.target, insert.columns) == ("t", ("a", "b"))
    assert insert.query.text == "SELECT 'x;' AS a, b FROM orders WHERE x = 'it''s'"
    assert insert.query.line(insert.query.offset) == 2


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("SET 'epoch' = '1 min'", SetOption("epoch", "1 min", at=4)),
        ("SET epoch = 1s", SetOption("epoch", "1s", at=4)),
        ("RESET", SetOption(reset=True)),
        ("BEGIN STATEMENT SET", StatementSet(opens=True)),
        ("END", StatementSet(opens=False)),
        ("DROP VIEW IF EXISTS v", DropObject("view", "v", True, 20)),
        ("SHOW MATERIALIZED VIEWS", ShowObjects("views")),
        ("SHOW CREATE TABLE t", ShowObjects("create", "t", 18)),
        ("DESC t", ShowObjects("columns", "t", 5)),
        ("CREATE TEMPORARY SYSTEM FUNCTION f AS 'shop:f' LANGUAGE PYTHON", CreateFunction("f", "shop:f")),
    ],
)
def test_short_statements_are_read(text: str, statement: Any) -> None:
    assert read(text) == statement


def test_a_view_says_its_columns_key_and_query() -> None:
    view = read("CREATE MATERIALIZED VIEW v (PRIMARY KEY (a) NOT ENFORCED) AS SELECT a FROM t")
    assert isinstance(view, CreateView)
    assert (view.materialized, view.primary_key, view.query.text) == (True, ("a",), "SELECT a FROM t")
    assert read("CREATE OR REPLACE VIEW v (x, y) AS SELECT 1, 2 FROM t").columns == ("x", "y")
    assert isinstance(read("EXPLAIN INSERT INTO t SELECT 1").inner.tree, InsertInto)
    assert isinstance(read("EXPLAIN PLAN FOR SELECT 1"), Explain)


@pytest.mark.parametrize(
    ("text", "place", "parts"),
    [
        ("CREATE TABEL t", "1:8", ["'TABEL' is not expected here", "TABLE, VIEW"]),
        ("CREATE TABLE t (a STRNG) WITH ('a' = 'b')", "1:19", ["there is no type STRNG", "did you mean STRING?"]),
        ("CREATE TABLE t (a INT) WITH ('a' = b)", "1:36", ["'b' is not expected", "SECRET('NAME')"]),
        ("CREATE TABLE t (a INT) WITH ('a' = 'b', 'a' = 'c')", "1:41", ["said twice"]),
        ("CREATE TABLE t (a INT)", "1:23", ["ends too early", "'connector'"]),
        ("CREATE TABLE t (a INT) LIKE x", "1:24", ["no LIKE", "write the columns out"]),
        ("CREATE VIEW v PRIMARY KEY (a) AS SELECT 1", "1:31", ["MATERIALIZED"]),
        ("INSERT OVERWRITE t SELECT 1", "1:8", ["never ends"]),
        ("INSERT INTO t\n  SELCT 1", "2:3", ["'SELCT' is not expected", "a query"]),
        ("SELCT 1", "1:1", ["did you mean SELECT?"]),
        ("UPDATE t SET a = 1", "1:1", ["headrace edit"]),
        ("INSERT INTO c.d.t SELECT 1", "1:14", ["names have one part"]),
        ("CREATE TABLE t (a MULTISET<INT>) WITH ('a' = 'b')", "1:19", ["ARRAY holds the same values"]),
    ],
)
def test_a_mistake_is_told_at_its_character(text: str, place: str, parts: list[str]) -> None:
    with pytest.raises(ExpressionError) as caught:
        read(text)
    assert caught.value.where == f"shop.sql:{place}"
    for part in parts:
        assert part in str(caught.value)
