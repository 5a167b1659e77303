"""Mistakes in SQL are found while the program is built, with the text, the place in it and the way out."""

from __future__ import annotations

import pytest

import headrace as hr


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1
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
