"""Patterns that come as rows: what is in force when, what becomes of partial matches, and rules that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import BadRow
from headrace.patterns.rules.rule import PatternRule, decide_change
from tests.patterns.rule_programs import FRAUD, Alarm, Tx, harness, program

# --- what is in force when


def test_each_match_says_which_rule_it_is_of() -> None:
    p = program()
    with harness(p) as h:
        dear = PatternRule("r2", "cheap [cents < 60], then dear [cents > 60]", version=7)
        h.push(p.rules, PatternRule("r1", FRAUD), dear)
        h.push(p.tx, Tx("a", h.at("12:00:00"), 50), Tx("a", h.at("12:00:20"), 60_000), Tx("b", h.at("12:00:20"), 5))
        h.epoch(watermark="12:01")
        assert h.take(p.alarms) == [Alarm("r1", 1, "a", 60_000), Alarm("r2", 7, "a", None)]


def test_a_rule_takes_effect_at_its_time_before_the_rows_of_that_time() -> None:
    p = program()
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", "large [cents > 5]", at=h.at("12:00:10")))
        h.push(p.rules, PatternRule("r1", active=False, at=h.at("12:00:20")))
        for second in (9, 10, 19, 20):
            h.push(p.tx, Tx("a", h.at(f"12:00:{second:02}"), second))
        h.epoch(watermark="12:00:15")
        h.epoch(watermark="12:01")
        assert [alarm.cents for alarm in h.take(p.alarms)] == [10, 19]
        assert h.state(p.step, p.step.rules) == {}


def test_a_rule_without_a_time_takes_effect_as_its_epoch_begins() -> None:
    p = program(timed=False)
    with harness(p) as h:
        h.push(p.tx, Tx("a", h.at("12:00:00"), 7))
        h.epoch(watermark="12:00:05")
        h.push(p.tx, Tx("a", h.at("12:00:10"), 8))
        h.push(p.rules, PatternRule("r1", "large [cents > 5]"))
        h.epoch(watermark="12:01")
        assert [alarm.cents for alarm in h.take(p.alarms)] == [8]


def test_by_the_wall_clock_rules_come_before_the_rows_of_their_epoch() -> None:
    p = program(timed=False, clock="wall")
    over = p.step.timed_out.select(rule="match.rule", card="small.card")
    with harness(p) as h:
        h.push(p.tx, Tx("a", h.at("12:00"), 50))
        h.push(p.rules, PatternRule("r1", FRAUD))
        h.epoch(clock="12:00:10")
        h.push(p.tx, Tx("a", h.at("10:00"), 60_000), Tx("b", h.at("12:00"), 5))
        h.epoch(clock="12:00:20")
        assert h.take(p.alarms) == [Alarm("r1", 1, "a", 60_000)]
        h.epoch(clock="12:02")
        assert [(row.rule, row.card) for row in h.take(over)] == [("r1", "b")]


def test_late_rows_meet_no_rule() -> None:
    p = program()
    late = p.step.late
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", "large [cents > 5]"))
        h.epoch(watermark="12:01")
        h.push(p.tx, Tx("a", h.at("12:00"), 50))
        h.epoch(watermark="12:02")
        assert (h.take(p.alarms), h.take(late)) == ([], [Tx("a", h.at("12:00"), 50)])


# --- what becomes of partial matches


def test_other_rules_change_nothing_for_a_rule_that_stays() -> None:
    p = program()
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", FRAUD), PatternRule("r2", FRAUD), PatternRule("r3", FRAUD))
        h.push(p.tx, Tx("a", h.at("12:00:00"), 50), Tx("b", h.at("12:00:00"), 50))
        h.epoch(watermark="12:00:10")
        h.push(p.rules, PatternRule("r2", active=False), PatternRule("r3", "b [cents = 50], then large [cents > 7]"))
        h.epoch(watermark="12:00:11")
        partial = h.state(p.step, p.step.partial, "a")
        assert list(partial) == ["r1"]
        assert (partial["r1"].matches[0].waiting_for, partial["r1"].matches[0].until) == ("large", h.at("12:01:00"))
        assert h.counters(p.step)["forgotten_partial"] == 4  # type: ignore[arg-type]
        h.push(p.tx, Tx("a", h.at("12:00:20"), 60_000))
        h.epoch(watermark="12:01")
        assert h.take(p.alarms) == [Alarm("r1", 1, "a", 60_000)]
        assert h.state(p.step, p.step.partial, "a") is None


def test_partial_matches_of_a_changed_rule_go_on_where_their_stage_is_still_there() -> None:
    p = program()
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", FRAUD))
        h.push(p.tx, Tx("a", h.at("12:00:00"), 50))
        h.epoch(watermark="12:00:10")
        longer = "small [cents < 10], then mid [cents = 200], then large [cents > 50000], within 2m"
        h.push(p.rules, PatternRule("r1", longer, at=h.at("12:00:15")))
        h.push(p.tx, Tx("a", h.at("12:00:12"), 200), Tx("a", h.at("12:00:20"), 200), Tx("a", h.at("12:01:30"), 60_000))
        h.epoch(watermark="12:00:25")
        partial = h.state(p.step, p.step.partial, "a")["r1"].matches[0]
        assert (partial.waiting_for, partial.until) == ("large", h.at("12:02:00"))
        h.epoch(watermark="12:02")
        assert h.take(p.alarms) == [Alarm("r1", 2, "a", 60_000)]


def test_a_rule_that_is_given_less_time_ends_what_is_older_at_the_change() -> None:
    p = program()
    over = p.step.timed_out.select(rule="match.rule", version="match.version", card="small.card", end="match.end")
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", FRAUD), PatternRule("r1", FRAUD.replace("1m", "5s"), at=h.at("12:00:20")))
        h.push(p.tx, Tx("a", h.at("12:00:10"), 50), Tx("b", h.at("12:00:18"), 50))
        h.epoch(watermark="12:00:30")
        ends = [(row.version, row.card, row.end) for row in h.take(over)]
        assert sorted(ends) == [(2, "a", h.at("12:00:20")), (2, "b", h.at("12:00:23"))]


def test_a_rule_that_comes_again_does_not_find_what_was_forgotten() -> None:
    p = program()
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", FRAUD), PatternRule("r1", active=False, at=h.at("12:00:05")))
        h.push(p.rules, PatternRule("r1", FRAUD, at=h.at("12:00:06")))
        h.push(p.tx, Tx("a", h.at("12:00:00"), 50), Tx("a", h.at("12:00:20"), 60_000))
        h.epoch(watermark="12:02")
        assert h.take(p.alarms) == []
        assert h.counters(p.step)["forgotten_partial"] == 1  # type: ignore[arg-type]


def test_too_many_partial_matches_name_the_rule_and_the_key() -> None:
    p = program(max_partial=2)
    with harness(p) as h:
        h.push(p.rules, PatternRule("wide", "one [cents > 0], then any two [cents > 5]"))
        for second in range(4):
            h.push(p.tx, Tx("a", h.at(f"12:00:0{second}"), 1))
        with pytest.raises(hr.HeadraceError, match="a key has 3 partial matches") as caught:
            h.epoch(watermark="12:05")
        assert "key a" in caught.value.where and "rule 'wide'" in caught.value.where


def test_the_oldest_partial_match_of_a_rule_goes_where_that_is_chosen() -> None:
    p = program(max_partial=2, on_overflow="drop_oldest")
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", "one [cents < 5], then large [cents > 5]"))
        for second, cents in enumerate([1, 2, 3, 9]):
            h.push(p.tx, Tx("a", h.at(f"12:00:0{second}"), cents))
        h.epoch(watermark="12:05")
        assert len(h.take(p.alarms)) == 2
        assert h.counters(p.step)["dropped_partial"] == 1  # type: ignore[arg-type]


# --- crashes, restarts, other programs


def test_rules_and_partial_matches_survive_a_crash_and_another_parallelism(tmp_path: Path) -> None:
    p = program()
    with harness(p, store=tmp_path) as h:
        h.push(p.rules, PatternRule("r1", FRAUD), PatternRule("r2", FRAUD, at=h.at("12:00:10")))
        h.push(p.tx, *(Tx(f"c{i}", h.at("12:00:00"), 50) for i in range(20)))
        h.epoch(watermark="12:00:05")
        h.push(p.tx, *(Tx(f"c{i}", h.at("12:00:12"), 50) for i in range(10)))
        h.crash(at="before_publish", watermark="12:00:15")
        h.crash(at="published", watermark="12:00:16")
    p = program()
    with harness(p, store=tmp_path, parallelism=3) as h:
        h.push(p.tx, *(Tx(f"c{i}", h.at("12:00:20"), 60_000) for i in range(20)))
        h.epoch(watermark="12:02")
        found = sorted((alarm.rule, str(alarm.card)) for alarm in h.take(p.alarms))
    assert found == sorted([("r1", f"c{i}") for i in range(20)] + [("r1", f"c{i}") for i in range(10)]
                           + [("r2", f"c{i}") for i in range(10)])  # fmt: skip


class WiderTx(Tx):
    note: str = ""


class OtherTx(hr.Record):
    card: str
    at: hr.Timestamp
    amount: int = 0


def test_rules_go_on_over_rows_with_more_columns_and_not_over_rows_that_lack_one(tmp_path: Path) -> None:
    p = program()
    with harness(p, store=tmp_path) as h:
        h.push(p.rules, PatternRule("r1", "small [cents < 100], then large [cents > 50000], within 1m"))
        h.push(p.tx, Tx("a", h.at("12:00:00"), 50))
        h.epoch(watermark="12:00:05")
    p = program(row=WiderTx)
    with harness(p, store=tmp_path) as h:
        h.push(p.tx, WiderTx("a", h.at("12:00:20"), 60_000, note="big"))
        h.epoch(watermark="12:02")
        assert h.take(p.alarms) == [Alarm("r1", 1, "a", 60_000)]
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), OtherTx, time=OtherTx.at)
    rules = app.read("rules", hr.source.items([]), PatternRule, time=PatternRule.at)
    found = tx.key_by(OtherTx.card).match(rules.broadcast()).named("fraud").select(rule="match.rule")
    found.write(hr.sink.collect())
    with (
        pytest.raises(hr.HeadraceError, match="a rule cannot be followed: there is no column 'cents'") as caught,
        hr.testing.Harness(app, start="2024-01-01", store=tmp_path) as h,
    ):
        h.epoch(watermark="12:03")
    assert "rule 'r1'" in caught.value.where


def test_the_store_shows_rules_and_the_partial_matches_of_a_key_by_rule(tmp_path: Path) -> None:
    p = program()
    with harness(p, store=tmp_path) as h:
        h.push(p.rules, PatternRule("r1", FRAUD), PatternRule("r2", "a [cents = 50], next b [cents = 1]", version=3))
        h.push(p.tx, Tx("a", h.at("12:00:00"), 50))
        h.epoch(watermark="12:00:05")
    store = hr.Store(str(tmp_path))
    assert store.state("fraud.rules")["r2"]["version"] == 3
    partial = store.state("fraud.partial")["a"]
    assert {rule: each["matches"][0]["waiting_for"] for rule, each in partial.items()} == {"r1": "large", "r2": "b"}


# --- rules that are none


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (PatternRule("bad", "small [cents <"), "character 7: a condition has no end"),
        (PatternRule("bad", "small [cent < 5]"), "there is no column 'cent'"),
        (PatternRule("bad", "small, then large [sum(smal.cents) > 5]"), "over the rows of one stage"),
        (PatternRule("bad", "small [cents]"), "not a condition"),
        (PatternRule("bad", "rows [cents > 1]"), "cannot be called 'rows'"),
        (PatternRule("bad", '{"stages": [{"stage": "a", "were": "cents > 1"}]}'), "unknown field `were`"),
        (PatternRule("bad", "(a{100}, then b){90}"), "the pattern of a rule is too large"),
        (PatternRule("bad", "(" * 5000), "nested too deeply"),
        (PatternRule("bad", "a [" + "(" * 9000 + "cents > 1" + ")" * 9000 + "]"), "bad"),
        (PatternRule("bad"), "an active rule needs a pattern"),
        (PatternRule("", FRAUD), "a rule needs an id"),
        (PatternRule("bad", FRAUD, version=-1), "versions of rules go up"),
        (PatternRule("r1", "small [cents < 7]", version=2), "version 2 is in force already, with another pattern"),
    ],
)
def test_a_rule_that_cannot_be_followed_goes_to_errors_or_stops_the_job(rule: PatternRule, words: str) -> None:
    p = program()
    errors = p.step.errors
    with harness(p) as h:
        h.push(p.rules, PatternRule("r1", FRAUD, version=2))
        h.epoch(watermark="12:00:00")
        h.push(p.rules, rule)
        h.push(p.tx, Tx("a", h.at("12:00:01"), 50), Tx("a", h.at("12:00:20"), 60_000))
        h.epoch(watermark="12:01")
        (failed,) = h.take(errors)
        assert words in failed.error and (rule.id in failed.error) and failed.step == "fraud"
        assert h.take(p.alarms) == [Alarm("r1", 2, "a", 60_000)]
        assert list(h.state(p.step, p.step.rules)) == ["r1"]
    p = program()
    with harness(p) as h, pytest.raises(BadRow, match="a rule cannot be followed") as caught:
        h.push(p.rules, PatternRule("r1", FRAUD, version=2))
        h.epoch(watermark="12:00:00")
        h.push(p.rules, rule)
        h.epoch(watermark="12:01")
    assert "step fraud" in caught.value.where and caught.value.expected and ".errors" in caught.value.next_move


def test_a_time_that_nothing_goes_by_is_refused() -> None:
    p = program(timed=False)
    with harness(p) as h, pytest.raises(BadRow, match="a rule has a time, and nothing here goes by it"):
        h.push(p.rules, PatternRule("r1", FRAUD, at=h.at("12:00")))
        h.epoch(watermark="12:01")


def test_versions_go_up_and_older_ones_are_left_alone() -> None:
    one, two = "a [cents > 1]", "a [cents > 2]"
    known = PatternRule("r", one, version=3)

    def after(rule: PatternRule, before: PatternRule | None = known) -> Any:
        change = decide_change(rule, before, by_time=False)
        return change and ((change.rule and change.rule.version), change.replaces)

    assert after(PatternRule("r", one), None) == (1, False)
    assert after(PatternRule("r", one, version=9), None) == (9, False)
    assert after(PatternRule("r", " a  [cents > 1] ")) is None
    assert after(PatternRule("r", two)) == (4, True)
    assert after(PatternRule("r", two, version=2)) is None
    assert after(PatternRule("r", one, version=3)) is None
    assert after(PatternRule("r", one, version=5)) == (5, False)
    assert after(PatternRule("r", two, version=5)) == (5, True)
    assert after(PatternRule("r", active=False)) == (None, True)
    assert after(PatternRule("r", active=False, version=2)) is None
    assert after(PatternRule("r", active=False), None) is None


def test_rules_that_are_older_than_those_in_force_are_counted() -> None:
    p = program()
    with harness(p, parallelism=2) as h:
        h.push(p.rules, PatternRule("r1", FRAUD, version=2))
        h.epoch(watermark="12:00")
        h.push(p.rules, PatternRule("r1", "large [cents > 1]", version=1))
        h.epoch(watermark="12:01")
        assert h.counters(p.step)["outdated_rules"] == 1  # type: ignore[arg-type]
