"""Patterns as text and as JSON: what is written is read back, and mistakes are shown where they stand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import ProgramError
from tests.patterns.test_meaning import patterns

CONDITIONS = st.sampled_from(
    ["kind = 'a'", "kind = ']'", "kind = 'it''s ['", "n[0] > 1 AND m[n[1]] < 2", 'kind = "a, then b"', "`odd ]` = 1",
     "first(s0.kind) = 'ü'", "r'\\]' = kind", "CASE WHEN n > 1 THEN true END", "n > 1\n  AND n < 3"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(patterns(), CONDITIONS, CONDITIONS, st.booleans())
def test_any_pattern_is_read_back_as_it_was(pattern: hr.EventPattern, one: str, two: str, alternative: bool) -> None:
    pattern = pattern.next("then", one).where(two)
    pattern = pattern.or_where(two).where(one) if alternative else pattern
    assert hr.EventPattern.parse(pattern.to_text()) == pattern
    assert hr.EventPattern.parse(pattern.to_json()) == pattern


def test_people_may_write_over_several_lines_and_with_short_counts() -> None:
    text = """
        small [cents < 100]
        not then pin [kind = 'pin']
        then (up [n > 1]*, next down?)+ , then large [cents > 50000] or [vip] [n = 1] {,3} greedy within 10s,
        next end
        within 1m
        after match to_first "large"
    """
    group = hr.pattern("up", "n > 1").at_least(0).next("down").optional()
    wanted = (
        hr.pattern("small", "cents < 100")
        .not_then("pin", "kind = 'pin'")
        .then(group).one_or_more()
        .then("large", "cents > 50000", within="10s").or_where("vip")
    )  # fmt: skip
    parsed = hr.EventPattern.parse(text)
    large = parsed.stages[-2]
    assert parsed.stages[:-2] == wanted.stages[:-1]
    assert large.alternatives == (("cents > 50000",), ("vip", "n = 1"))
    assert (large.low, large.high, large.skippable, large.is_greedy, large.gap_us) == (1, 3, True, True, 10_000_000)
    assert (parsed.within_us, parsed.skip, parsed.skip_stage) == (60_000_000, "to_first", "large")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "character 1", "a stage is missing"),
        ("small [cents < 100] large", "character 21", "does not belong to a stage"),
        ("small [n > 1", "character 7", "has no end"),
        ("a\nthen b\n  then ?", "line 3, character 8", "a stage is missing"),
        ("a, then then", "character 9", "a stage is missing"),
        ("a, then b greedy", "character 4", "greedy is for loops"),
        ("a, not then b", "character 4", "without a condition"),
        ("not then a [n > 1]", "character 1", "the first stage"),
        ("a, then a", "character 4", "two stages are called 'a'"),
        ("a; b", "character 2", "belongs to no pattern"),
        ("a, within", "character 10", "a time is missing"),
        ("a, within 5 parsecs", "character 13", "are parted"),
        ("a, within 5parsecs", "", "cannot read within"),
        ("a, within 1m, after match last", "character 27", "no such way to go on"),
        ("a, then (b, then c", "character 19", "a group has no end"),
        ("a{2,1}", "character 1", "how often a stage comes"),
        ("a{}", "character 2", "how often"),
        ("a within 5s", "character 1", "no row before it"),
        ("Big", "character 1", "cannot be the name of a stage"),
        ('{"stages": [{"stage": "a"}, {"stage": "b", "where": 5}]}', "", "expected `str | array`, got `int`"),
        ('{"stages": [{"stage": "a", "wher": "n"}]}', "", "unknown field `wher`"),
        ('{"stages": [{"stage": "a"}, {"group": [{"stage": "x", "greedy": true}]}]}', "stages[1].group[0]", "greedy"),
        ('{"stages": [{"stage": "a", "where": [""]}]}', "stages[0]", "a condition is empty"),
        ('{"stages": []}', "", "needs a stage"),
        ('{"stages": [', "", "no JSON"),
    ],
)
def test_mistakes_are_shown_where_they_stand(text: str, place: str, words: str) -> None:
    with pytest.raises(ProgramError) as caught:
        hr.EventPattern.parse(text, source="rule 'r1'")
    error = caught.value
    assert error.where == ("rule 'r1'" + (f", {place}" if place else ""))
    assert words in f"{error.what} {error.found}" and error.expected


def test_python_functions_cannot_be_written() -> None:
    with pytest.raises(ProgramError, match="a Python function cannot be written into a rule") as caught:
        hr.pattern("a", "n > 1").then("b", lambda row: row.n > 2).to_text()
    assert "test_notation.py" in caught.value.where and "'b'" in caught.value.found
