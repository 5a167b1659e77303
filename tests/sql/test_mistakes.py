"""Mistakes in SQL are found while the program is built, with the text, the place in it and the way out."""

from __future__ import annotations

from copy import copy

import pytest

import headrace as hr
from headrace.sql.expr import check
from tests.sql import expression_cases as cases


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1
    ok: bool = False
    price: float = 0.0
    tags: list[str] = []


def hits() -> hr.Stream[Hit]:
    return hr.App("hits").read("hits", hr.source.items([]), Hit)


def mistake(text: str) -> hr.ProgramError:
    with pytest.raises(hr.ProgramError) as raised:
        hits().where(text)
    assert raised.value.where.startswith("tests/sql/test_mistakes.py:")
    assert "sqlglot" not in str(raised.value)
    return raised.value


def place(error: hr.ProgramError) -> int:
    """The column that the mark stands under."""
    _, mark = error.found.split("\n")
    return mark.index("^") - len("  found:    ")


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("n >", "it ends too early", 3),
        ("page = 'a b' and", "it ends too early", 16),
        ("(n > 0", "a ) is missing", 6),
        ("n > 0)", "there is a ) too many", 5),
        ("page = 'it''s' && n > 0", "'&&' is not expected here", 15),
        ("n = = 3", "'=' is not expected here", 4),
    ],
)
def test_text_that_does_not_parse_is_shown_with_the_place(text: str, what: str, at: int) -> None:
    error = mistake(text)
    assert error.what == f"this is not a SQL expression: {what}"
    assert place(error) == at


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("page.startswith('a')", "startswith(page, 'a') or page LIKE 'a%'"),
        ("page.endswith('a')", "endswith(page, 'a') or page LIKE '%a'"),
        ("n > 0 and page.lower() = 'x'", "lower(page)"),
        ("page.strip() = 'x'", "trim(page)"),
    ],
)
def test_a_method_of_a_column_is_answered_with_the_function(text: str, sql: str) -> None:
    error = mistake(text)
    assert "columns have no methods in SQL" in error.what
    assert error.next_move == f"write {sql}; filter(…) takes a Python function"


def test_a_function_that_spark_does_not_have_is_refused_with_a_near_name() -> None:
    assert mistake("n > 0 or uper(page) = 'A'").next_move.startswith("did you mean upper()")
    assert place(mistake("n > 0 or uper(page) = 'A'")) == 9
    assert "did you mean" not in mistake("frobnicate(n) = 1").next_move


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("page > 3", "page > 3 compares text with a number"),
        ("3 = page", "3 = page compares text with a number"),
        ("page BETWEEN 1 AND 2", "page BETWEEN 1 AND 2 compares text with a number"),
        ("n IN (1, 'a')", "n IN (1, 'a') compares a number with text that is none"),
        ("page + 1 > 2", "page + 1 combines text with a number"),
        ("page + 'x' = 'ax'", "page + 'x' adds text to text"),
        ("at > 5", "at > 5 compares TIMESTAMP with INT"),
        ("n AND true", "n AND TRUE has BIGINT where it needs a condition"),
        ("NOT price", "NOT price has DOUBLE where it needs a condition"),
        ("year(n) = 2024", "a function is given a value of another type than it takes"),
    ],
)
def test_types_that_do_not_fit_are_refused(text: str, what: str) -> None:
    assert mistake(text).what == what


@pytest.mark.parametrize(
    ("text", "what", "at", "next_move"),
    [
        ("ok = 'x'", "ok = 'x' compares BOOLEAN with text that is none", 0, "'x' is not true or false"),
        ("n > 0 and at > '2024-13-01'", "at > '2024-13-01' has a text that is no TIMESTAMP", 10, "TIMESTAMP '2024-"),
        ("date '2024-02-30' < at", "CAST('2024-02-30' AS DATE) has a text that is no DATE", 0, "DATE '2024-01-31'"),
        ("if(n, 1, 2) = 1", "n is BIGINT, not a condition", 3, "n <> 0"),
        ("case when n then 1 end = 1", "n is BIGINT, not a condition", 10, "n <> 0"),
        ("substring(page) = 'a'", "substring() is given 1 argument", 0, "expressions.md"),
        ("n > 0 and upper(page, page) = 'A'", "upper() is given 2 arguments", 10, "expressions.md"),
        ("round(price, n) > 1", "round() takes a fixed number of places", 13, "write the number of places"),
        ("page[0] = 'a'", "page[…] takes a part of a text by its place", 4, "write substring(page, 1, 1)"),
        ("page[-1] = 'a'", "page[…] takes a part of a text by its place", 4, "write substring(page, -1, 1)"),
        ("page[1:3] = 'a'", "page[…] takes a slice, as in Python", 4, "write substring(page, 2, 2)"),
        ("page[2:] = 'a'", "page[…] takes a slice, as in Python", 4, "write substring(page, 3)"),
        ("size(tags[:2]) = 2", "tags[…] takes a slice, as in Python", 9, "write slice(tags, 1, 2)"),
        ("page in ['a', 'b']", "a list of values stands in round brackets", 8, "write IN ('a', 'b')"),
        ("'a' in page", "IN needs a list of values", 4, "write contains(page, 'a')"),
        ("'a' in tags", "IN needs a list of values", 4, "write array_contains(tags, 'a')"),
        ("page is 'x'", "IS compares with NULL, TRUE and FALSE only", 5, "write page = 'x'"),
        ("page is not 'x'", "IS compares with NULL, TRUE and FALSE only", 5, "write page <> 'x'"),
        ("pgae.lower() = 'x'", "there is no column 'pgae'", 0, "did you mean page? Columns have no methods in SQL: "),
        ("customer.lower() = 'x'", "there is no column 'customer'", 0, "name a column of the stream"),
    ],
)
def test_a_mistake_is_found_before_spark_starts_with_its_place(text: str, what: str, at: int, next_move: str) -> None:
    error = mistake(text)
    assert error.what == what
    assert place(error) == at
    assert next_move in error.next_move


@pytest.mark.parametrize(
    "text",
    [
        "ok = 'true'", "at > '2024-01-31'", "at > '2024'", "timestamp 'now' < at", "page = 's in [x] is y[0]'",
        "to_date(page, 'yyyy') > at", "ceil(price, 1) > 2", "session.f(n) = 1", "tags[0] = 'a'", "ok is true",
        "page is distinct from 'x'", "page in ('a')", "case page when 'x' then true end", "nullif(page, '') is null",
    ],
)  # fmt: skip
def test_what_spark_takes_is_not_refused(text: str) -> None:
    hits().where(text)


@pytest.mark.parametrize("group", [*cases.GROUPS, "beyond"])
def test_no_expression_that_spark_evaluates_is_taken_for_a_mistake(group: str) -> None:
    # Text beside a number is refused on purpose: Spark casts it row by row.
    on_purpose = ("text with a number", "this text cannot be used as an expression")
    refused: list[str] = []
    for text in cases.lines(cases.BEYOND) if group == "beyond" else cases.expressions(group):
        try:
            check(text, cases.SCHEMA)
        except hr.ProgramError as error:
            refused.append(error.what)
    assert [what for what in refused if not what.endswith(on_purpose)] == []


@pytest.mark.parametrize(
    ("text", "mark", "next_move"),
    [("left.page.upper()", 10, "write UPPER(left.page)"), ("right.n + left.page.strip()", 20, "trim(left.page)")],
)
def test_a_method_in_the_select_of_a_join_is_answered_with_the_function(text: str, mark: int, next_move: str) -> None:
    app = hr.App("pairs")
    one, two = (app.read(name, hr.source.items([]), Hit, time=Hit.at).key_by("page") for name in ("one", "two"))
    with pytest.raises(hr.ProgramError) as raised:
        one.join(two, within=("0s", "1h")).select(x=text)
    assert "columns have no methods in SQL" in raised.value.what
    assert raised.value.found.partition("\n")[0] == text
    assert place(raised.value) == mark
    assert next_move.lower() in raised.value.next_move.lower()


def test_the_way_out_of_text_beside_a_number_is_a_cast() -> None:
    assert mistake("page > 3").next_move == (
        "if page holds numbers, say so: CAST(page AS BIGINT), or compare it with text: '3'"
    )
    hits().where("CAST(page AS BIGINT) > 3").where("page > '3'").where("n > '3'").where("n = 1.5")


def test_select_and_times_are_checked_too() -> None:
    with pytest.raises(hr.ProgramError, match="combines text with a number"):
        hits().select(x="page * 2")
    with pytest.raises(hr.ProgramError, match="no function to_timestmp"):
        hr.App("times").read("hits", hr.source.items([]), Hit, time="to_timestmp(page)")


@pytest.mark.parametrize(
    "text",
    [
        "soundex(page) = 'A' AND n > 0",
        "levenshtein(page, 'a') > 3",
        "size(filter(tags, t -> t = 'a')) > 0",
        "default.mine(n) > 0",
        "sha2(page, 256) > 'a'",
        "page LIKE 5",
        "page RLIKE 5",
    ],
)
def test_what_only_spark_knows_passes(text: str) -> None:
    stream = hits().where(text)
    assert stream.node.label


def test_explain_names_the_functions_that_could_not_be_checked() -> None:
    app = hr.App("spark")
    app.read("hits", hr.source.files("in/"), Hit).where("soundex(page) = 'A'").write(hr.sink.discard())
    assert "not checked before it runs: soundex()" in app.explain()


def test_where_with_a_function_says_that_filter_takes_it() -> None:
    with pytest.raises(hr.ProgramError) as raised:
        hits().where(lambda hit: hit.n > 0)  # type: ignore[arg-type, unused-ignore]
    assert "filter(…)" in raised.value.next_move


def test_a_name_far_from_every_column_gets_no_guess() -> None:
    assert mistake("pgae > 3").next_move == "did you mean page?"
    assert "did you mean" not in mistake("customer > 3").next_move
    assert mistake("page IS None").next_move == "SQL's word is NULL: write IS NULL, or IS NOT NULL"


def test_a_method_of_python_on_a_column_is_answered_with_its_sql() -> None:
    with pytest.raises(hr.ProgramError, match="columns have no method 'startswith'") as raised:
        hits().where(hr.col("page").startswith("a"))  # type: ignore[attr-defined]
    assert "write SQL as text: startswith(page, …)" in raised.value.next_move
    assert raised.value.where.startswith("tests/sql/test_mistakes.py:")
    assert not hasattr(hr.col("page"), "strip"), "whoever asks for a method gets an AttributeError"
    assert copy(hr.col("page")).sql == "page"
