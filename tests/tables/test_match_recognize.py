"""MATCH_RECOGNIZE: SQL's meaning of row patterns, over streams."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError


class Tick(hr.Record):
    symbol: str
    at: hr.Timestamp
    price: int
    kind: str = "a"


def recognized(query: str, prices: list[Any], *, watermark: str | None = "13:00", symbol: str = "x") -> list[Any]:
    """What a query gives for rows of one symbol, a second apart."""
    app = hr.App("market")
    ticks = app.read("ticks", hr.source.items([]), Tick, time=Tick.at)
    found = app.sql(query).named("found")
    with hr.testing.Harness(app, start="2024-01-01") as h:
        for second, price in enumerate(prices):
            number, kind = price if isinstance(price, tuple) else (price, "a")
            h.push(ticks, Tick(symbol, h.at(f"12:00:{second:02}"), number, kind))
        if watermark is None:
            h.drain()
        else:
            h.epoch(watermark=watermark)
        return [tuple(getattr(row, name) for name in row.__struct_fields__) for row in h.take(found)]


V_SHAPE = """SELECT * FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY at
    MEASURES FIRST(START_.price) AS top, LAST(DOWN.price) AS bottom, LAST(UP.price) AS back, COUNT(*) AS n,
             MATCH_NUMBER() AS number, CLASSIFIER() AS last_one
    {mode}
    PATTERN (START_ DOWN+ UP+) {within}
    DEFINE DOWN AS DOWN.price < PREV(DOWN.price), UP AS UP.price > PREV(UP.price)
) AS v"""


def v_shape(mode: str = "ONE ROW PER MATCH", within: str = "") -> str:
    return V_SHAPE.format(mode=mode, within=within)


def test_a_greedy_variable_at_the_end_ends_on_the_first_row_that_does_not_match() -> None:
    rows = recognized(v_shape(), [10, 8, 6, 7, 9, 9, 5, 6, 6])
    assert rows == [("x", 10, 6, 9, 5, 1, "UP"), ("x", 9, 5, 6, 3, 2, "UP")]


def test_it_waits_as_long_as_more_rows_may_belong_to_it() -> None:
    assert recognized(v_shape(), [10, 8, 9]) == []
    assert recognized(v_shape(), [10, 8, 9], watermark=None) == [("x", 10, 8, 9, 3, 1, "UP")]
    within = v_shape(within="WITHIN INTERVAL '1' MINUTE")
    assert recognized(within, [10, 8, 9]) == [("x", 10, 8, 9, 3, 1, "UP")]


def test_a_match_takes_less_time_than_within() -> None:
    within = v_shape(within="WITHIN INTERVAL '3' SECOND")
    assert [row[:5] for row in recognized(within, [10, 8, 7, 6, 7, 7, 7])] == [("x", 7, 6, 7, 3)]


def test_all_rows_per_match_tell_what_had_matched_by_then() -> None:
    query = """SELECT price, c, total FROM ticks MATCH_RECOGNIZE (
        PARTITION BY symbol ORDER BY at MEASURES CLASSIFIER() AS c, SUM(price) AS total ALL ROWS PER MATCH
        AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+) DEFINE A AS price < 5, B AS price >= 5) AS m"""
    assert recognized(query, [1, 6, 7, 2]) == [(1, "A", 1), (6, "B", 7), (7, "B", 14)]


@pytest.mark.parametrize(
    ("after", "starts"),
    [
        ("AFTER MATCH SKIP PAST LAST ROW", [1]),
        ("AFTER MATCH SKIP TO NEXT ROW", [1, 2]),
        ("AFTER MATCH SKIP TO LAST A", [1]),
        ("AFTER MATCH SKIP TO FIRST B", [1]),
        ("", [1]),
    ],
)
def test_after_a_match_looking_goes_on_where_the_query_says(after: str, starts: list[int]) -> None:
    query = f"""SELECT f FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES FIRST(A.price) AS f
        ONE ROW PER MATCH {after} PATTERN (A{{2,}} B) DEFINE A AS A.price < 5, B AS B.price >= 5) AS m"""
    assert [row[0] for row in recognized(query, [1, 2, 3, 9])] == starts


def test_alternatives_and_reluctant_quantifiers_are_tried_in_their_order() -> None:
    query = """SELECT c, n FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at
        MEASURES CLASSIFIER() AS c, COUNT(A.price) AS n PATTERN (A+? (C | B))
        DEFINE B AS price > 4, C AS kind = 'c') AS m"""
    assert recognized(query, [1, 1, 5, (1, "c")]) == [("B", 2)]
    assert recognized(query, [1, (9, "c")]) == [("C", 1)]


def test_definitions_ask_other_variables_and_aggregates() -> None:
    query = """SELECT low, high FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at
        MEASURES MIN(A.price) AS low, B.price AS high PATTERN (A{2,} B)
        DEFINE A AS AVG(A.price) < 5, B AS B.price > 2 * LAST(A.price) AND B.price > FIRST(A.price, 1)) AS m
        WHERE high > 3"""
    assert recognized(query, [1, 4, 5, 20]) == [(1, 20)]
    assert recognized(query, [1, 4, 5, 9]) == []


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        ("PREV(A.price)", [9, 6]),
        ("PREV(price)", [4, 2]),
        ("PREV(B.price, 2)", [1, 6]),
        ("PREV(B.price, 9)", [None, None]),
        ("B.price - PREV(B.price)", [2, 1]),
        ("PREV(U.price, 0)", [6, 3]),
        ("COUNT(U.price)", [3, 2]),
        ("SUM(U.price)", [11, 5]),
        ("FIRST(U.price)", [1, 2]),
        ("LAST(U.price, 1)", [4, 2]),
    ],
)
def test_measures_ask_for_rows_before_a_match_and_for_several_variables(measure: str, values: list[Any]) -> None:
    query = f"""SELECT m FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES {measure} AS m
        ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+ C?) WITHIN INTERVAL '1' HOUR
        SUBSET U = (A, B) DEFINE A AS price < 3, B AS price > LAST(U.price, 1), C AS price > 100) AS m"""
    rows = recognized(query, [9, 1, 4, 6, 2, 3, 3], watermark=None)
    assert [row[0] for row in rows] == values


def test_rows_before_each_row_of_a_match_are_those_of_its_key() -> None:
    query = """SELECT price, p FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES PREV(B.price) AS p
        ALL ROWS PER MATCH PATTERN (A B B) DEFINE A AS price < 3, B AS price > 3) AS m"""
    assert recognized(query, [9, 1, 4, 6]) == [(1, None), (4, 1), (6, 4)]


def test_variables_without_definitions_need_no_define() -> None:
    query = """SELECT a, b FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at
        MEASURES A.price AS a, MATCH_ROWTIME() AS b PATTERN (A B) WITHIN INTERVAL '5' SECOND) AS m"""
    assert [row[0] for row in recognized(query, [1, 2, 3, 4, 5])] == [1, 3]


def test_looking_goes_on_at_a_row_of_several_variables() -> None:
    query = """SELECT f FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES FIRST(price) AS f
        AFTER MATCH SKIP TO LAST U PATTERN (A B C) SUBSET U = (B, C)) AS m"""
    assert [row[0] for row in recognized(query, [1, 2, 3, 4, 5])] == [1, 3]


def test_partial_matches_survive_crashes_and_do_not_depend_on_cuts() -> None:
    app = hr.App("market")
    rows = [Tick(f"s{i % 2}", i * 1_000_000, (i * 5) % 7) for i in range(40)]  # type: ignore[arg-type]
    app.read("ticks", hr.source.items(rows), Tick, time=Tick.at, out_of_order="4s")
    app.sql(v_shape(within="WITHIN INTERVAL '9' SECOND")).named("v").write(hr.sink.collect())
    report = hr.testing.verify_program(app, {"ticks": rows}, tries=20)
    assert report.ok, report.dependences


def test_open_rows_are_matched_anew_under_another_pattern(tmp_path: Any) -> None:
    given: list[Any] = []
    for bound in (5, 3):
        app = hr.App("market")
        ticks = app.read("ticks", hr.source.items([]), Tick, time=Tick.at)
        query = f"""SELECT n, last_price FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at
            MEASURES COUNT(*) AS n, LAST(price) AS last_price PATTERN (A B+ C)
            DEFINE A AS price = 1, B AS price < {bound}, C AS price >= {bound}) AS m"""
        found = app.sql(query).named("found")
        with hr.testing.Harness(app, start="2024-01-01", store=tmp_path) as h:
            if bound == 5:
                h.push(ticks, *(Tick("x", h.at(f"12:00:0{i}"), price) for i, price in enumerate([1, 2, 4])))
                h.epoch(watermark="12:00:03")
            else:
                h.push(ticks, Tick("x", h.at("12:00:05"), 2))
                h.epoch(watermark="12:00:06")
            given += [(row.n, row.last_price) for row in h.take(found)]
    assert given == [(3, 4)]


@pytest.mark.parametrize(
    ("clause", "words"),
    [
        ("ORDER BY price PATTERN (A) DEFINE A AS price > 1", "order of their event time"),
        ("ORDER BY at DESC PATTERN (A) DEFINE A AS price > 1", "order of their event time"),
        ("ORDER BY at PATTERN (A*) DEFINE A AS price > 1", "without any row"),
        ("ORDER BY at PATTERN (A B", "not streaming SQL|not a row pattern"),
        ("ORDER BY at PATTERN (A) DEFINE B AS price > 1", "no variable B"),
        ("ORDER BY at PATTERN (A) DEFINE A AS prize > 1", "no column 'prize'"),
        ("ORDER BY at AFTER MATCH SKIP TO FIRST C PATTERN (A) DEFINE A AS price > 1", "no way to go on"),
        ("ORDER BY at MEASURES NEXT(A.price) AS p PATTERN (A) DEFINE A AS price > 1", "rows that have not come yet"),
        ("ORDER BY at PATTERN (A B) DEFINE A AS NEXT(price) > 1", "rows that have not come yet"),
        ("ORDER BY at PATTERN (A B) SUBSET U = (A, C) DEFINE A AS price > 1", "no variable C"),
        ("ORDER BY at PATTERN (A B) SUBSET A = (B) DEFINE A AS price > 1", "A is a variable"),
        ("ORDER BY at PATTERN (A B) SUBSET U (A, B) DEFINE A AS price > 1", "'\\(' is not expected here"),
        ("ORDER BY at MEASURES PREV(A.price, -1) AS p PATTERN (A)", "PREV takes one column"),
        ("ORDER BY at MEASURES PREV(LAST(A.price), 2) AS p PATTERN (A)", "cannot be used as an expression"),
        ("ORDER BY at MEASURES LAST(C.price) AS p PATTERN (A B)", "no column 'C'"),
        ("ORDER BY at MEASURES SUM(A.price + B.price) AS p PATTERN (A B)", "over the rows of one variable"),
        ("ORDER BY at MEASURES FINAL LAST(price) AS p ALL ROWS PER MATCH PATTERN (A B)", "FINAL cannot be had"),
        ("ORDER BY at ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (A B)", "not part of the matches"),
        ("ORDER BY at PATTERN (A {- B -} C)", "no quantifier"),
        ("ORDER BY at PATTERN (PERMUTE(A, B))", "not a row pattern"),
    ],
)
def test_mistakes_point_at_their_place_in_the_query(clause: str, words: str) -> None:
    app = hr.App("market")
    app.read("ticks", hr.source.items([]), Tick, time=Tick.at)
    with pytest.raises(ProgramError, match=words) as caught:
        app.sql(f"SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol {clause}) AS m")
    assert caught.value.where
