"""What a query gives to the program around it, and what is said about a query that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from tests.tables.playing import TABLES, Tx


class Total(hr.Record):
    card: str
    total: int
    n: int = 0


@pytest.fixture
def app() -> Any:
    app = hr.App("shop")
    for name, (kind, _) in TABLES.items():
        app.read(name, hr.source.items([]), kind, time="ts")
    return app


def tx(card: str, cents: int) -> Tx:
    return Tx(card, hr.timestamp("2024-01-01T12:00"), cents)


def test_a_type_makes_rows_of_it(app: Any) -> None:
    source = app.read("more", hr.source.items([]), Tx, time="ts")
    totals = app.sql(Total, "SELECT card, SUM(cents) AS total FROM more GROUP BY card", name="totals")
    with hr.testing.Harness(app) as h:
        h.push(source, tx("ann", 5))
        h.epoch()
        assert h.take(totals) == [Total("ann", 5, 0)]


def test_streams_are_given_by_name_and_steps_found_by_theirs(app: Any) -> None:
    source = app.read("more", hr.source.items([]), Tx, time="ts")
    large = source.where("cents > 100")
    app.sql("SELECT card, COUNT(*) AS n FROM large GROUP BY card", large=large, name="counts")
    twice = app.sql("SELECT card, n * 2 AS twice FROM counts")
    with hr.testing.Harness(app) as h:
        h.push(source, tx("ann", 5), tx("bob", 500))
        h.epoch()
        assert [(row.card, row.twice) for row in h.take(twice)] == [("bob", 2)]


MISTAKES = {
    "SELECT carx FROM tx": ("no column 'carx'", "carx FROM", "card"),
    "SELECT card FROM txx": ("no table 'txx'", "txx", "tx"),
    "SELECT t.nope FROM tx t": ("no column 't.nope'", "t.nope", ""),
    "SELECT card FROM tx t JOIN refunds r ON t.card = r.card": ("could be t.card or r.card", "card FROM", "t.card"),
    "SELECT card, cents FROM tx GROUP BY card": ("neither grouped by nor in an aggregate", "cents FROM", "GROUP BY"),
    "SELECT * FROM tx GROUP BY card": ("* cannot stand in a query with groups", "* FROM", ""),
    "SELECT MAX(SUM(cents)) FROM tx": ("needs a query of its own", "SUM(cents)", "FROM (SELECT"),
    "SELECT STDDEV(cents) FROM tx": ("STDDEV cannot be had", "STDDEV", "variance"),
    "SELECT COLLECT_LIST(DISTINCT cents) FROM tx": (
        "COLLECT_LIST(DISTINCT …) cannot be had", "COLLECT_LIST(", "SELECT DISTINCT",
    ),
    "SELECT SUM(card) FROM tx": ("sum needs numbers", "SUM(card)", ""),
    "SELECT upper(card, 1, 2, 3) + FROM tx": ("not expected here", "FROM", ""),
    "SELECT card FROM tx WHERE card": ("true or false", "card", ""),
    "SELECT 1 FROM TABLE(TUMBLE(TABLE tx, DESCRIPTOR(cents), INTERVAL '1' HOUR)) GROUP BY window_start": (
        "cents is not the event time", "cents)", "DESCRIPTOR(ts)",
    ),
    "SELECT 1 FROM TABLE(TUMBLE(TABLE tx, DESCRIPTOR(ts), INTERVAL '1' MONTH)) GROUP BY window_start": (
        "days or less", "'1'", "days",
    ),
    "SELECT 1 FROM TABLE(TUMBLE(TABLE tx, DESCRIPTOR(ts))) GROUP BY window_start": (
        "needs its size", "TUMBLE", "",
    ),
    "SELECT 1 FROM TABLE(SESSION(TABLE tx, DESCRIPTOR(ts), INTERVAL '1' HOUR)) GROUP BY window_start, card": (
        "kept apart by what they are grouped by", "1 FROM", "PARTITION BY",
    ),
    "SELECT card FROM tx UNION ALL SELECT cents FROM tx": ("cents is int", "cents FROM", "CAST"),
    "SELECT card FROM tx UNION SELECT card, cents FROM tx": ("2 columns cannot go under 1", "card, cents FROM", ""),
    "SELECT card FROM tx t JOIN prices p ON p.price > (SELECT MAX(cents) FROM tx)": (
        "cannot stand here", "MAX", "select list",
    ),
    "SELECT card FROM tx WHERE cents > (SELECT price FROM prices)": (
        "nothing says that this query gives one row", "price FROM", "LIMIT 1",
    ),
    "SELECT card FROM tx t WHERE cents > (SELECT MAX(p.price) FROM prices p WHERE p.ts < t.ts)": (
        "by equalities alone", "p.ts", "join",
    ),
    "SELECT (SELECT price, shop FROM prices LIMIT 1) AS x FROM tx": ("gives one column", "price", "MAX(x)"),
    "VALUES (1, 2), (3)": ("this row has 1 values, and the first one 2", "3)", ""),
    "VALUES (1), (ARRAY(2))": ("ARRAY<BIGINT> cannot stand in a column of BIGINT", "ARRAY(2)", "CAST"),
    "SELECT card FROM tx UNION ALL VALUES (cents)": ("read no table", "cents", "UNION ALL"),
    "SELECT card FROM tx t JOIN prices FOR SYSTEM_TIME AS OF t.cents AS p ON t.shop = p.shop": (
        "event time of the left row", "t.cents", "",
    ),
    "WITH RECURSIVE r AS (SELECT card FROM tx) SELECT * FROM r": ("WITH RECURSIVE", "", "loop"),
    "SELECT id, x FROM baskets CROSS JOIN UNNEST(id) AS u(x)": ("only arrays and maps", "id)", ""),
    "SELECT card AS `a b` FROM tx": ("cannot be named 'a b'", "card", "AS a_b"),
}  # fmt: skip


@pytest.mark.parametrize("query", MISTAKES)
def test_a_mistake_is_named_at_its_character(app: Any, query: str) -> None:
    what, marked, advice = MISTAKES[query]
    with pytest.raises(HeadraceError) as raised:
        app.sql(query, name="q")
    error = raised.value
    assert what in error.what
    line, mark = error.found.split("\n")
    assert line[len(mark) - 1 - len("  found:    ") :].startswith(marked)
    assert advice in f"{error.expected} {error.next_move}"
    assert "test_queries.py" in error.where


def test_a_query_of_several_lines_says_the_line(app: Any) -> None:
    with pytest.raises(HeadraceError) as raised:
        app.sql("SELECT card,\n       centz\nFROM tx")
    assert raised.value.where.endswith(", line 2 of the query")
    assert raised.value.found.split("\n")[0] == "       centz"


def test_views_are_queries_under_a_name(app: Any) -> None:
    from headrace.tables.catalog import catalog_of
    from headrace.tables.dialect import parse_query

    catalog = catalog_of(app)
    catalog.add_view("large", parse_query("SELECT * FROM tx WHERE cents > 90"))
    catalog.add_view("counted", parse_query("SELECT card, COUNT(*) AS n FROM large GROUP BY card"))
    assert {"large", "counted", "tx"} <= set(catalog.names())
    result = app.sql("SELECT a.card, b.n FROM counted a JOIN counted b ON a.card = b.card", name="q")
    assert [node.name for node in app.nodes if node.stateful] == ["q_groups_1a8e21", "q"]
    assert result.node.kind.rows == "changelog"
    with pytest.raises(HeadraceError, match="table 'LARGE' already"):
        catalog.add_view("LARGE", parse_query("SELECT * FROM tx"))
    catalog.views["large"] = parse_query("SELECT * FROM counted")
    with pytest.raises(HeadraceError, match="reads itself"):
        app.sql("SELECT * FROM large", name="r")


def test_a_query_reads_what_another_gives_and_not_what_it_keeps(app: Any) -> None:
    source = app.read("more", hr.source.items([]), Tx, time="ts")
    app.sql("SELECT card AS who, COUNT(*) * 10 AS n FROM more GROUP BY card HAVING COUNT(*) < 2", name="rare")
    again = app.sql("SELECT who, n FROM rare")
    assert app.table("rare").node.codec.names == ["who", "n"]
    with hr.testing.Harness(app) as h:
        h.push(source, tx("ann", 5), tx("bob", 500))
        h.epoch()
        h.push(source, tx("ann", 5))
        h.epoch()
        changes = [(op, row.who, row.n) for op, row in h.take_changes(again)]
        assert sorted(changes[:2]) == [("+I", "ann", 10), ("+I", "bob", 10)]
        assert changes[2:] == [("-D", "ann", 10)]
