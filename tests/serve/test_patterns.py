"""Redis' patterns: what they match, and that none takes forever."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.read.patterns import Pattern


@pytest.mark.parametrize(
    ("glob", "text", "matches"),
    [
        ("*", "", True),
        ("*", "anything:at all", True),
        ("hourly:*", "hourly:tweet-42", True),
        ("hourly:*", "daily:tweet-42", False),
        ("h?llo", "hello", True),
        ("h?llo", "hllo", False),
        ("h*llo", "heeeello", True),
        ("h[ae]llo", "hallo", True),
        ("h[ae]llo", "hillo", False),
        ("h[^e]llo", "hallo", True),
        ("h[^e]llo", "hello", False),
        ("h[a-c]llo", "hbllo", True),
        ("h[c-a]llo", "hbllo", True),
        ("h[a-]llo", "h-llo", True),
        (r"h\*llo", "h*llo", True),
        (r"h\*llo", "hello", False),
        (r"h[\]]llo", "h]llo", True),
        ("h[ae", "ha", True),
        ("h[]llo", "hllo", False),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("*tail", "long tail", True),
        ("*tail", "tail end", False),
        ("a**b", "ab", True),
        ("plain", "plain", True),
        ("plain", "plainer", False),
        ("", "", True),
        ("", "x", False),
        ("a.c", "abc", False),
        ("line*end", "line\nend", True),
    ],
)
def test_a_pattern_matches_as_in_redis(glob: str, text: str, matches: bool) -> None:
    assert Pattern(glob).matches(text) is matches


def test_a_pattern_of_many_stars_does_not_explode() -> None:
    pattern, text = Pattern("*a" * 200 + "b"), "a" * 5000
    began = time.process_time()
    assert not pattern.matches(text)
    assert time.process_time() - began < 2


@given(st.text(), st.text())
def test_no_pattern_makes_trouble(glob: str, text: str) -> None:
    Pattern(glob).matches(text)


@given(st.text(alphabet="abc*?", max_size=8), st.text(alphabet="abc", max_size=8))
def test_stars_and_question_marks_match_what_a_plain_search_finds(glob: str, text: str) -> None:
    assert Pattern(glob).matches(text) is _search(glob, text)


def _search(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob[0] == "*":
        return any(_search(glob[1:], text[i:]) for i in range(len(text) + 1))
    return bool(text) and glob[0] in ("?", text[0]) and _search(glob[1:], text[1:])


@given(st.text(alphabet="ab*[]^-\\", max_size=8), st.text(alphabet="ab-", max_size=4))
def test_what_matches_begins_with_the_pattern_s_prefix(glob: str, text: str) -> None:
    pattern = Pattern(glob)
    if pattern.matches(text):
        assert text.startswith(pattern.prefix)
