"""Texts of several statements, cut."""

from __future__ import annotations

import pytest

from headrace.sql.script import cut_statements, is_whole, place_of, show_place


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("-- only; a comment\n", []),
        ("/* a; b */ SELECT 1 /* c; */;", ["SELECT 1 /* c; */"]),
        ("SELECT `a;b`, \"c;\", 'd\\';e';", ["SELECT `a;b`, \"c;\", 'd\\';e'"]),
        (";;\n;", []),
    ],
)
def test_semicolons_end_statements_except_in_literals_names_and_comments(text: str, statements: list[str]) -> None:
    assert [each.text for each in cut_statements(text)] == statements


def test_each_statement_says_where_it_begins() -> None:
    text = "SELECT 1;\n -- two\n SELECT 2"
    assert [text[each.offset :][:8] for each in cut_statements(text)] == ["SELECT 1", "SELECT 2"]
    assert [each.ended for each in cut_statements(text)] == [True, False]


@pytest.mark.parametrize(("text", "whole"), [("SELECT 'a;", False), ("/* ;", False), ("SELECT 1;", True), ("", True)])
def test_an_open_literal_or_comment_is_not_whole(text: str, whole: bool) -> None:
    assert is_whole(text) is whole


def test_a_place_is_shown_with_its_line_and_a_mark() -> None:
    text = "SELECT a\nFROM b"
    assert str(place_of(text, 14)) == "2:6"
    assert show_place(text, 14, indent=0) == "FROM b\n     ^"


def test_a_long_line_is_shown_around_the_place() -> None:
    shown = show_place("x" * 300 + "!" + "x" * 300, 300, indent=0).split("\n")
    assert shown[0][len(shown[1]) - 1] == "!"
