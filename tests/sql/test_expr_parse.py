"""SQL text is read as Spark reads it: literals, precedence, patterns."""

from __future__ import annotations

import pytest

from headrace.sql.functions_text import java_pattern, java_replacement, like_pattern
from headrace.sql.nodes import Unsupported, number
from headrace.sql.parse import parse_tree, quote_text, unescape
from headrace.sql.types import BIGINT, DOUBLE, INT, SqlType, decimal


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\tb\n\\d'", "a\tb\n\\d"),
        (r"'\d\q'", "dq"),
        (r"'50\%'", r"50\%"),
        (r"'\u00fc\101\U0001F600'", "üA😀"),
        ('"a ""b"" \'c\'"', "a \"b\" 'c'"),
        ("''", ""),
    ],
)
def test_literals_are_unescaped_by_sparks_rules(literal: str, text: str) -> None:
    assert unescape(literal) == text
    assert parse_tree(literal).this == text


@pytest.mark.parametrize(
    "text", ["", "plain", "it's", "back\\slash", "new\nline", 'quo"te', "nul\0", "%_", "😀", "\\'"]
)
def test_quoted_text_reads_back_as_it_was(text: str) -> None:
    assert unescape(quote_text(text)) == text


def test_raw_literals_keep_their_backslashes() -> None:
    assert parse_tree(r"r'a\d'").this == r"a\d"
    assert parse_tree('R"x\\"').this == "x\\"


def test_quotes_inside_names_and_comments_are_no_literals() -> None:
    assert parse_tree("`it's` + 1 /* don't */").sql() == "\"it's\" + 1 /* don't */"


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a || b + c", "(a || b) + c"),
        ("a - b || c", "(a - b) || c"),
        ("a | b ^ c & d", "a | (b ^ (c & d))"),
        ("a & b | c", "(a & b) | c"),
        ("a || b || c", "(a || b) || c"),
    ],
)
def test_operators_bind_as_in_spark(text: str, grouped: str) -> None:
    def shape(tree: object) -> object:
        inner = tree.this if type(tree).__name__ == "Paren" else tree  # type: ignore[attr-defined]
        if "expression" not in inner.args:  # type: ignore[attr-defined]
            return inner.sql()  # type: ignore[attr-defined]
        return type(inner).__name__, shape(inner.this), shape(inner.expression)  # type: ignore[attr-defined]

    assert shape(parse_tree(text)) == shape(parse_tree(grouped))


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", INT, 5),
        ("-2147483648", INT, -(2**31)),
        ("2147483648", BIGINT, 2**31),
        ("9223372036854775808", decimal(19, 0), 2**63),
        ("1.5", decimal(2, 1), 15),
        ("0.05", decimal(2, 2), 5),
        ("100.0", decimal(4, 1), 1000),
        (".5", decimal(1, 1), 5),
        ("1e3", DOUBLE, 1000.0),
    ],
)
def test_numbers_have_the_types_spark_gives_them(text: str, kind: SqlType, value: object) -> None:
    node = number(text)
    assert (node.type, node.value) == (kind, value)


def test_like_patterns_match_any_text_and_any_character() -> None:
    assert like_pattern("a%c_").fullmatch("a\nxc😀")
    assert not like_pattern("a%").fullmatch("ba")
    assert like_pattern(r"50\%").fullmatch("50%")
    assert like_pattern("a/_b", "/").fullmatch("a_b")
    with pytest.raises(Unsupported):
        like_pattern(r"a\b")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^\d+$", "12\n", "1２"),
        (r"a.c", "abc", "a\rc"),
        (r"\p{Alpha}+\.", "ab.", "1."),
        (r"[\w-]{3}", "a-b", "a b"),
        (r"(a|b)\1", "bb", "ab"),
        (r"a++b", "aab", "b"),
        (r"(?<=x)y", "xy", "ay"),
        (r"\x41\u00fc", "Aü", "A"),
        (r"end\z", "the end", "end\n"),
    ],
)
def test_java_patterns_keep_their_meaning(pattern: str, matching: str, other: str) -> None:
    assert java_pattern(pattern).search(matching)
    assert not java_pattern(pattern).search(other)


@pytest.mark.parametrize("pattern", ["(", "(?i)a", r"\p{IsLatin}", "[a&&b]", "[a[b]]", "(?<name>a)", r"\Qa\E", "a\\"])
def test_patterns_without_a_certain_counterpart_are_refused(pattern: str) -> None:
    with pytest.raises(Unsupported):
        java_pattern(pattern)


def test_replacements_name_groups_as_java_does() -> None:
    pattern = java_pattern("(a)(b)")
    assert pattern.sub(java_replacement(r"$2-$1\$\\", 2), "ab") == "b-a$\\"
    assert pattern.sub(java_replacement("$10", 2), "ab") == "a0"
    with pytest.raises(Unsupported):
        java_replacement("$3", 2)
