"""Functions of Python in queries: what a call gives, how often it is made, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from tests.tables.running import fields, output, rows_of, script

MODULE = """
from typing import Annotated

import headrace as hr
import pyarrow as pa
import pyarrow.compute as pc

calls = []

def usd(cents: int | None, rate: float = 0.5) -> float | None:
    calls.append(cents)
    return None if cents is None else cents * rate / 100

def shout(text: str) -> str:
    return text.upper() + "!"

def doubled(n: pa.Array) -> Annotated[pa.Array, int]:
    return pc.multiply(n, 2)

def untyped(n):
    return n

class Longest(hr.Aggregator[str, str, str]):
    pass

number = 5
"""

TABLE = """
CREATE TABLE tx (shop STRING NOT NULL, cents BIGINT, at TIMESTAMP(3), WATERMARK FOR at AS at)
WITH ('connector' = 'items', 'rows' = '[{"shop": "a", "cents": 100, "at": "2024-01-01T00:00:01Z"},
  {"shop": "b", "cents": 300, "at": "2024-01-01T00:00:02Z"}, {"shop": "a", "at": "2024-01-01T00:00:03Z"}]');
CREATE TABLE out (a STRING, b DOUBLE) WITH ('connector' = 'collect');
"""
FUNCTIONS = """
CREATE FUNCTION usd AS 'shop_functions:usd'; CREATE FUNCTION shout AS 'shop_functions:shout';
CREATE TEMPORARY FUNCTION doubled AS 'shop_functions:doubled' LANGUAGE PYTHON;
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop_functions", raising=False)


def result(tmp_path: Path, query: str) -> list[Any]:
    app = script(tmp_path, f"{TABLE}{FUNCTIONS}INSERT INTO out {query};", "shop.sql")
    return sorted(fields(rows_of(app, output(app, "out"))), key=str)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT shout(shop), usd(cents, 1.0D) FROM tx", [("A!", 1.0), ("A!", None), ("B!", 3.0)]),
        ("SELECT shop, usd(doubled(cents)) AS usd FROM tx WHERE usd(cents) > 1", [("b", 3.0)]),
        ("SELECT shout(concat(shop, 'x')), 1.0D FROM tx WHERE shop = 'b'", [("BX!", 1.0)]),
        ("SELECT shout(shop), sum(usd(cents)) FROM tx GROUP BY shout(shop)", [("A!", 0.5), ("B!", 1.5)]),
        ("SELECT a, b FROM (SELECT shout(shop) AS a, usd(cents) AS b FROM tx) WHERE b IS NULL", [("A!", None)]),
        (
            "SELECT shop, max(usd(cents)) FROM TABLE(TUMBLE(TABLE tx, DESCRIPTOR(at), INTERVAL '1' MINUTE)) "
            "GROUP BY shop, window_start, window_end",
            [("a", 0.5), ("b", 1.5)],
        ),
    ],
)
def test_calls_stand_wherever_an_expression_does(tmp_path: Path, query: str, rows: list[Any]) -> None:
    got = result(tmp_path, query)
    assert (got[-len(rows) :] if "GROUP BY shout" in query else got) == rows


def test_a_star_does_not_show_what_calls_became(tmp_path: Path) -> None:
    app = script(tmp_path, TABLE + FUNCTIONS + "CREATE VIEW v AS SELECT * FROM tx WHERE usd(cents) > 0;", "shop.sql")
    assert app.table("v").node.codec.names == ["shop", "cents", "at"]


def test_rows_that_where_leaves_out_are_not_given_to_functions_of_the_select_list(tmp_path: Path) -> None:
    result(tmp_path, "SELECT shop, usd(cents) FROM tx WHERE shop = 'b'")
    import shop_functions  # type: ignore[import-not-found]

    assert 100 not in shop_functions.calls


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        ("CREATE FUNCTION f AS 'shop_functions:usdd'", ["has no 'usdd'", "did you mean usd?"]),
        ("CREATE FUNCTION f AS 'shop_functionz:usd'", ["cannot be imported"]),
        ("CREATE FUNCTION f AS 'usd'", ["names no object", "module:function"]),
        ("CREATE FUNCTION f AS 'shop_functions:untyped'", ["type that f gives is not known"]),
        ("CREATE FUNCTION f AS 'shop_functions:number'", ["f is no function"]),
        ("CREATE FUNCTION f AS 'shop_functions:Longest'", ["aggregate in Python"]),
        ("CREATE FUNCTION upper AS 'shop_functions:shout'", ["a function of SQL already"]),
        ("CREATE FUNCTION usd AS 'shop_functions:usd'; SELECT usd() FROM tx", ["called with 0 arguments", "usd(cents"]),
        ("DROP FUNCTION f", ["there is no function 'f'"]),
    ],
)
def test_what_cannot_be_called_is_refused_at_its_statement(tmp_path: Path, statement: str, parts: list[str]) -> None:
    with pytest.raises(HeadraceError) as caught:
        script(tmp_path, TABLE + statement, "shop.sql")
    assert "shop.sql:6" in caught.value.where
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.spark
def test_on_spark_functions_are_shipped_with_the_program(tmp_path: Path, spark: Any) -> None:
    app = script(tmp_path, TABLE + FUNCTIONS + "INSERT INTO out SELECT shout(shop), usd(cents) FROM tx;", "shop.sql")
    sink = next(node.sink for node in app.nodes if hasattr(node, "sink"))
    app.run(until="drained", spark=spark, store=tmp_path / "store", parallelism=1)
    assert sorted(fields(sink.rows), key=str) == [("A!", 0.5), ("A!", None), ("B!", 1.5)]
    assert isinstance(sink, hr.Sink)
