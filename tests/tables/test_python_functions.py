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
from collections.abc import Iterator
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
    def zero(self):
        return ""

    def add(self, acc, x):
        return max(acc, x, key=len)

    def merge(self, a, b):
        return max(a, b, key=len)

    def result(self, acc):
        return acc

class Sold(hr.Record):
    price: float
    n: int

class MeanPrice(hr.Aggregator[Sold, tuple[float, int], float]):
    def zero(self):
        return (0.0, 0)

    def add(self, acc, x):
        return (acc[0] + x.price * x.n, acc[1] + x.n)

    def merge(self, a, b):
        return (a[0] + b[0], a[1] + b[1])

    def result(self, acc):
        return acc[0] / acc[1] if acc[1] else 0.0

class Scaled(Longest):
    def __init__(self, factor):
        self.factor = factor

class Letter(hr.Record):
    letter: str
    place: int

def letters(text: str) -> Iterator[Letter]:
    for place, letter in enumerate(text):
        yield Letter(letter, place)

def halves(n: int | None) -> Iterator[int]:
    return iter([] if n is None else [n // 2, n - n // 2])

def unsaid(n):
    yield n

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
CREATE FUNCTION longest AS 'shop_functions:Longest'; CREATE FUNCTION mean_price AS 'shop_functions:MeanPrice';
CREATE FUNCTION letters AS 'shop_functions:letters'; CREATE FUNCTION halves AS 'shop_functions:halves';
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


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            "SELECT shop, mean_price(cents / 10, 2) FROM tx GROUP BY shop, TUMBLE(at, INTERVAL '1' MINUTE)",
            [("a", 10.0), ("b", 30.0)],
        ),
        (
            "SELECT longest(concat(shop, CAST(cents AS STRING))), mean_price(cents, 1) FILTER (WHERE cents > 100) "
            "FROM tx GROUP BY TUMBLE(at, INTERVAL '1' MINUTE)",
            [("a100", 300.0)],
        ),
        (
            "SELECT shout(longest(shop)), usd(SUM(cents), 1.0D) FROM tx GROUP BY TUMBLE(at, INTERVAL '1' MINUTE) "
            "HAVING usd(SUM(cents)) > 1",
            [("A!", 4.0)],
        ),
    ],
)
def test_aggregates_of_python_stand_in_groups(tmp_path: Path, query: str, rows: list[Any]) -> None:
    assert result(tmp_path, query) == rows


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            "SELECT l.letter, CAST(l.place AS DOUBLE) FROM tx, LATERAL TABLE(letters(shout(shop))) AS l "
            "WHERE cents = 100",
            [("!", 1.0), ("A", 0.0)],
        ),
        ("SELECT shop, CAST(x AS DOUBLE) FROM tx CROSS JOIN LATERAL TABLE(halves(cents)) AS h(x) WHERE x > 50",
         [("b", 150.0), ("b", 150.0)]),
        ("SELECT shop, CAST(x AS DOUBLE) FROM tx LEFT JOIN LATERAL TABLE(halves(cents)) AS h(x) ON TRUE "
         "WHERE shop = 'a'", [("a", 50.0), ("a", 50.0), ("a", None)]),
        (
            "SELECT letter, CAST(COUNT(*) AS DOUBLE) FROM (SELECT MAX(shop) AS shop FROM tx GROUP BY cents) AS g, "
            "LATERAL TABLE(letters(g.shop)) AS l GROUP BY letter HAVING COUNT(*) = 2",
            [("a", 2.0)],
        ),
    ],
)  # fmt: skip
def test_functions_that_yield_stand_in_from(tmp_path: Path, query: str, rows: list[Any]) -> None:
    assert result(tmp_path, query) == rows


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
        ("CREATE FUNCTION f AS 'shop_functions:Scaled'", ["cannot be made without arguments"]),
        ("CREATE FUNCTION f AS 'shop_functions:unsaid'", ["what f yields is not known", "Iterator[Word]"]),
        (
            "CREATE FUNCTION f AS 'shop_functions:MeanPrice'; SELECT f(cents) FROM tx GROUP BY shop",
            ["cannot be called so", "f(price, n)"],
        ),
        (
            "CREATE FUNCTION f AS 'shop_functions:Longest'; SELECT f(shop) OVER (ORDER BY at) FROM tx",
            ["has no window functions"],
        ),
        (
            "CREATE FUNCTION f AS 'shop_functions:letters'; SELECT x FROM tx, LATERAL TABLE(f()) AS l(x)",
            ["called with 0 arguments"],
        ),
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
