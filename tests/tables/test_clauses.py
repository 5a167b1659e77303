"""A clause that the parser knows and nothing lowers is refused at its character; none is left out without a word."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from tests.tables.playing import build

REFUSED = {
    "SELECT card FROM tx TABLESAMPLE (10 PERCENT)": ("TABLESAMPLE cannot", "10 PERCENT"),
    "SELECT card FROM (SELECT card FROM tx) TABLESAMPLE (2 ROWS)": ("TABLESAMPLE cannot", "2 ROWS"),
    "SELECT card FROM tx ORDER BY cents FETCH FIRST 2 ROWS WITH TIES": ("WITH TIES cannot", "2 ROWS WITH"),
    "SELECT card FROM tx LIMIT 10 PERCENT": ("a percentage of rows cannot", "10 PERCENT"),
    "SELECT card FROM tx LIMIT 2 BY card": ("LIMIT … BY cannot", "card"),
    "SELECT DISTINCT ON (card) card, cents FROM tx": ("DISTINCT ON cannot", "card) card"),
    "SELECT card FROM tx SORT BY cents": ("SORT BY cannot", "cents"),
    "SELECT card FROM tx CLUSTER BY cents": ("CLUSTER BY cannot", "cents"),
    "SELECT card FROM tx DISTRIBUTE BY cents": ("DISTRIBUTE BY cannot", "cents"),
    "SELECT card FROM tx FOR UPDATE": ("FOR UPDATE cannot", "card FROM"),
    "SELECT card INTO x FROM tx": ("INTO cannot", "x FROM"),
    "SELECT AS STRUCT card FROM tx": ("AS STRUCT cannot", "card FROM"),
    "SELECT card FROM tx CONNECT BY PRIOR card = card": ("CONNECT BY cannot", "card = card"),
    "SELECT /*+ BROADCAST(tx) */ card FROM tx": ("no such hint", "tx) */"),
    "SELECT card FROM tx /*+ OPTIONS('a'='b') */": ("a hint stands right behind SELECT", "/*+"),
    "SELECT /*+ STATE_TTL('zz' = '1d') */ t.card FROM tx t JOIN prices p ON t.shop = p.shop": (
        "no join here has a table 'zz'", "'zz'",
    ),
    "SELECT /*+ STATE_TTL('t' = '1d', 'p' = '2d') */ t.card FROM tx t JOIN prices p ON t.shop = p.shop": (
        "for one span of time", "'p'",
    ),
    "SELECT /*+ STATE_TTL('p' = '1d') */ t.card FROM tx t JOIN prices FOR SYSTEM_TIME AS OF t.ts AS p "
    "ON t.shop = p.shop": ("until time has passed them", "'p'"),
    "SELECT /*+ STATE_TTL('t' = 'long') */ t.card FROM tx t JOIN prices p ON t.shop = p.shop": (
        "no span of time", "'long'",
    ),
    "SELECT /*+ EARLY('1s') */ card FROM tx": ("no results of windows that could come early", "EARLY"),
    "SELECT card, COUNT(*) AS n FROM tx GROUP BY ALL": ("ALL cannot", "card, COUNT"),
    "SELECT card, COUNT(*) AS n FROM tx GROUP BY DISTINCT card": ("ALL cannot", "card"),
    "SELECT card, COUNT(*) AS n FROM tx GROUP BY card WITH TOTALS": ("WITH TOTALS cannot", "card"),
    "SELECT card FROM tx HAVING cents > 1": ("neither grouped by", "cents > 1"),
    "SELECT card FROM tx QUALIFY cents > 1": ("QUALIFY chooses by a window", "cents > 1"),
    "SELECT card FROM tx UNION BY NAME SELECT card FROM refunds": ("UNION BY NAME cannot", "card FROM tx"),
    "SELECT t.card FROM tx t ASOF JOIN prices p ON t.shop = p.shop": ("ASOF JOIN is not", "prices"),
    "SELECT t.card FROM tx t STRAIGHT_JOIN prices p ON t.shop = p.shop": ("STRAIGHT_JOIN JOIN is not", "prices"),
    "SELECT t.card FROM tx t RIGHT SEMI JOIN prices p ON t.shop = p.shop": ("RIGHT SEMI JOIN is not", "prices"),
    "SELECT t.card FROM tx t CROSS JOIN prices p ON t.shop = p.shop": ("CROSS JOIN takes no", "t.shop"),
    "SELECT t.card FROM tx t NATURAL JOIN prices p ON t.shop = p.shop": ("NATURAL JOIN takes no", "t.shop"),
    "SELECT card FROM (tx JOIN prices p ON tx.shop = p.shop)": ("a join in brackets cannot", "prices"),
    "SELECT * FROM tx PIVOT (SUM(cents) FOR shop IN ('north', 'south'))": ("PIVOT cannot", "SUM"),
    "SELECT card FROM tx FOR SYSTEM_TIME AS OF TIMESTAMP '2024-01-01 13:00:00'": ("stands in a join only", "tx FOR"),
    "SELECT card FROM tx VERSION AS OF 3": ("stands in a join only", "tx VERSION"),
    "SELECT card FROM tx WITH (NOLOCK)": ("a hint behind a table cannot", "tx WITH"),
    "SELECT card FROM db.tx": ("a database in front", "db.tx"),
    "SELECT a FROM tx AS t (a, b, c, d, e, f)": ("t has 5 columns, and 6 names", "f)"),
    "WITH a (x, y) AS (SELECT card FROM tx) SELECT x FROM a": ("a has 1 columns, and 2 names", "y)"),
    "WITH a AS (SELECT card FROM tx), a AS (SELECT ts FROM tx) SELECT * FROM a": ("names 'a' twice", "a AS (SELECT ts"),
    "SELECT SUM(cents) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) AS s FROM tx": (
        "EXCLUDE in a frame cannot", "",
    ),
    "SELECT SUM(cents) OVER (ORDER BY ts GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM tx": (
        "a frame of groups cannot", "1 PRECEDING",
    ),
    "SELECT SUM(cents) OVER (w PARTITION BY shop) AS s FROM tx WINDOW w AS (ORDER BY ts)": ("w says that", "SUM"),
    "SELECT LAG(cents, 1, 0, 5) OVER (ORDER BY ts) AS s FROM tx": ("LAG takes one to three", "LAG"),
    "SELECT ROW_NUMBER(3) OVER (ORDER BY ts) AS s FROM tx": ("takes no arguments", "ROW_NUMBER"),
    "SELECT n FROM (SELECT ROW_NUMBER() OVER (PARTITION BY shop ORDER BY cents) AS n FROM tx LIMIT 4) WHERE n = 1": (
        "numbers of all rows by an order other than time", "ROW_NUMBER",
    ),
    "SELECT a FROM (SELECT ROW_NUMBER() OVER (ORDER BY cents) AS a, ROW_NUMBER() OVER (ORDER BY shop) AS b FROM tx) "
    "WHERE a < 3 AND b < 3": ("numbered by one order at a time", "ROW_NUMBER() OVER (ORDER BY shop"),
    "SELECT x FROM (SELECT cents AS x, ROW_NUMBER() OVER (ORDER BY cents) AS rn FROM tx) AS t(rn, x) WHERE rn <= 2": (
        "numbers of all rows by an order other than time", "ROW_NUMBER",
    ),
    "SELECT SUM(*) AS s FROM tx": ("SUM takes one argument", "SUM"),
    "SELECT COUNT_IF(DISTINCT cents > 60) AS s FROM tx": ("COUNT_IF(DISTINCT …) cannot", "COUNT_IF"),
    "SELECT card, cents FROM tx ORDER BY 5 LIMIT 3": ("no column 5 in the select list", "5 LIMIT"),
    "SELECT card FROM tx ORDER BY ts WITH FILL": ("WITH FILL cannot", "ts WITH"),
    "SELECT card FROM tx WHERE card BETWEEN SYMMETRIC 'z' AND 'a'": ("BETWEEN SYMMETRIC cannot", "card BETWEEN"),
    "SELECT card FROM tx WHERE EXISTS (SELECT COUNT(*) FROM refunds r WHERE r.card = tx.card)": (
        "EXISTS takes a plain query", "COUNT",
    ),
    "SELECT * REPLACE (cents + 1 AS cents) FROM tx": ("REPLACE cannot", "cents + 1"),
    "SELECT * EXCEPT (nope) FROM tx": ("no column 'nope' to leave out", "nope"),
    "SELECT * ILIKE 'c%' FROM tx": ("ILIKE cannot", "'c%'"),
    "SELECT CAST(cents AS STRING FORMAT 'x') AS c FROM tx": ("FORMAT cannot", "'x'"),
    "SELECT id, x FROM baskets JOIN UNNEST(items) AS u(x) ON x = 'tea'": ("elements of a row are joined", "x = "),
    "SELECT id, x FROM baskets RIGHT JOIN UNNEST(items) AS u(x) ON TRUE": ("elements of a row are joined", "items"),
    "SELECT card FROM tx AS t WITH ORDINALITY": ("WITH ORDINALITY cannot", "tx AS"),
}  # fmt: skip


@pytest.mark.parametrize("query", REFUSED)
def test_a_clause_that_nothing_lowers_is_refused_at_its_character(query: str) -> None:
    what, marked = REFUSED[query]
    with pytest.raises(HeadraceError) as raised:
        build(query)
    error = raised.value
    assert what in error.what
    line, mark = error.found.split("\n")
    assert line[len(mark) - 1 - len("  found:    ") :].startswith(marked)


def test_a_view_is_looked_at_as_a_query_is() -> None:
    app: Any = hr.App("shop")
    app.sql("CREATE TABLE t (a BIGINT) WITH ('connector' = 'items', 'rows' = '[]')")
    with pytest.raises(HeadraceError, match="SORT BY cannot"):
        app.sql("CREATE VIEW v AS SELECT a FROM t SORT BY a; SELECT a FROM v")
