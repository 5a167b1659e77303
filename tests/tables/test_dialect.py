"""How scripts are read: every part of a tree knows its place, and a part written out again means the same."""

from __future__ import annotations

import pytest

from headrace.errors import ExpressionError
from headrace.sql.parse import parse_tree
from headrace.tables.dialect import PARTITIONS, parse_query, parse_script, render

EXPRESSIONS = [
    "a + b * c - d",
    "a || 'it''s' || b",
    "CASE WHEN a > 1 THEN 'x' ELSE \"y\" END",
    "CAST(a AS DECIMAL(10, 2))",
    "TRY_CAST(a AS INT)",
    "TIMESTAMP '2024-01-01 00:00:00'",
    "INTERVAL 1 DAY + INTERVAL '2' HOUR",
    "a IS NOT DISTINCT FROM b",
    "a <=> b",
    "NOT a IN (1, 2, 3) AND b BETWEEN 1 AND 2",
    "array(1, 2)[0]",
    "s.inner.deep",
    "`two words` + 1",
    "substring(a, 1, 2) LIKE 'x\\\\_%' ESCAPE '\\\\'",
    "r'\\d+' RLIKE a",
    "a % 2 = 0 OR a DIV 2 = 1",
    "~a & b | c ^ d",
    "extract(HOUR FROM at)",
    "X'00ff'",
    "''",
    "-a",
    "1.5D + 2L",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_written_out_again_is_read_as_the_same_tree(text: str) -> None:
    tree = parse_query(f"SELECT {text} FROM t").tree.expressions[0]
    assert parse_tree(render(tree)).sql(dialect="spark") == parse_tree(text).sql(dialect="spark")


def test_statements_of_a_script_know_where_they_begin() -> None:
    script = "SELECT a FROM t; -- one; two\n\nSELECT ';' AS b FROM u;"
    first, second = parse_script(script)
    assert (first.text, second.text) == ("SELECT a FROM t", "SELECT ';' AS b FROM u")
    assert second.offset == script.index("SELECT ';'")
    assert (second.line(second.offset), second.column(second.offset)) == (3, 1)
    assert second.tree.expressions[0].this.this == ";"


def test_tables_as_arguments_keep_their_partitions() -> None:
    query = "SELECT * FROM TABLE(SESSION(TABLE bid PARTITION BY (a, b), DESCRIPTOR(at), INTERVAL '1' HOUR))"
    call = parse_query(query).tree.args["from_"].this.this.expressions[0]
    table, partitions, _, _ = call.expressions
    assert call.this == "SESSION" and table.name == "bid"
    assert partitions.this == PARTITIONS and [each.name for each in partitions.expressions] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "reason", "marked"),
    [
        ("SELECT a b c FROM t", "'c' is not expected here", "c FROM"),
        ("SELECT (a FROM t", "'FROM' is not expected here", "FROM t"),
        ("SELECT a,\n  FROM\nWHERE x", "'WHERE' is not expected here", "WHERE x"),
        ("SELECT 'a FROM t", "a quote is open to the end", ""),
    ],
)
def test_a_text_that_is_no_query_is_pointed_at(text: str, reason: str, marked: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_query(text, where="pipe.py:3")
    assert reason in raised.value.what
    line, mark = raised.value.found.split("\n")
    assert line[len(mark) - 1 - len("  found:    ") :].startswith(marked)
    assert raised.value.where.startswith("pipe.py:3")


def test_several_queries_are_not_one() -> None:
    with pytest.raises(ExpressionError, match="not one query"):
        parse_query("SELECT a FROM t; SELECT b FROM t")
