"""Many rules at once, and what is said of their matches."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError
from headrace.patterns import predicates
from headrace.patterns.rules.rule import PatternRule
from tests.patterns.rule_programs import FRAUD, Tx, harness, program

# --- many rules


def count_evaluations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Which text was evaluated for which batch, from now on."""
    evaluated: list[tuple[int, str]] = []
    made = predicates.predicate

    def counting(text: str, schema: Any) -> Any:
        def evaluate(batch: Any) -> Any:
            evaluated.append((batch.num_rows, text))
            return made(text, schema)(batch)

        return evaluate

    monkeypatch.setattr(predicates, "predicate", counting)
    return evaluated


def test_rules_that_share_conditions_evaluate_each_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = [f"cents > {i * 10}" for i in range(10)]
    p = program()
    with harness(p, parallelism=1) as h:
        h.push(p.rules, *(PatternRule(f"r{i}", f"a [{conditions[i % 10]}], then b [ {conditions[i * 7 % 10]} ], "
                                              f"within {i + 1}s") for i in range(300)))  # fmt: skip
        h.epoch(watermark="12:00")
        evaluated = count_evaluations(monkeypatch)
        h.push(p.tx, *(Tx(f"c{i % 50}", h.at("12:00:01"), i % 100) for i in range(500)))
        h.epoch(watermark="12:01")
    assert sorted(text for _, text in evaluated) == sorted(conditions)
    assert {rows for rows, _ in evaluated} == {500}


def test_patterns_in_code_over_one_exchange_share_conditions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    pattern = hr.pattern("a", "cents > 10").then("b", "cents>20").within("1m")
    for name in ("one", "two"):
        tx.key_by(Tx.card).match(pattern).named(name).select(n="b.cents").write(hr.sink.collect())
    evaluated = count_evaluations(monkeypatch)
    with hr.testing.Harness(app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00:01"), 15), Tx("b", h.at("12:00:01"), 25))
        h.epoch(watermark="12:00")
    assert sorted(text for _, text in evaluated) == ["cents > 10", "cents>20"]


# --- what is said of matches


def test_stages_are_mappings_and_rows_are_in_order() -> None:
    p = program()
    seen = p.step.map(
        lambda m: f"{m.rule} {m.match.start} {list(m.stages)} {[r.cents for r in m.stages['up']]} {len(m.rows)}",
        output=str,
    )
    each = p.step.process(lambda m: [row.cents for row in m.rows], output=int)
    counts = p.step.select(n="count(rows)", ups="count(up)", nobody="count(other)", low="min(rows.cents)",
                           none="other.cents")  # fmt: skip
    with harness(p) as h:
        h.push(p.rules, PatternRule("r", "low [cents = 1], next up [cents > 1]{2} consecutive, next end [cents = 7]?"))
        start = h.at("12:00:00")
        for second, cents in enumerate([1, 2, 3, 9]):
            h.push(p.tx, Tx("a", h.at(f"12:00:0{second}"), cents))
        h.epoch(watermark="12:01")
        assert h.take(seen) == [f"r {start} ['low', 'up', 'end'] [2, 3] 3"]
        assert h.take(each) == [1, 2, 3]
        (row,) = h.take(counts)
        assert (row.n, row.ups, row.nobody, row.low, row.none) == (3, 2, 0, 1, None)


class Sure(hr.Record):
    cents: int


def test_what_a_rule_may_not_have_cannot_fill_a_field_that_must_have_a_value() -> None:
    p = program()
    with pytest.raises(ProgramError, match="must have a value, and 'large' may have no row"):
        p.step.select(Sure, cents="large.cents")
    p.step.select(Sure, cents="last(rows.cents)")
    with pytest.raises(ProgramError, match="a match has no 'rul'") as caught:
        p.step.select(rule="match.rul")
    assert "match.rule (the id of the rule)" in caught.value.expected
    with pytest.raises(ProgramError, match="rules have no diagram"):
        _ = p.step.diagram


def test_match_takes_rules_of_the_right_type_only() -> None:
    p = program()
    with pytest.raises(ProgramError, match="these rows are no rules"):
        p.tx.key_by(Tx.card).match(p.tx.broadcast())  # type: ignore[call-overload]
    with pytest.raises(ProgramError, match="match takes a pattern") as caught:
        p.tx.key_by(Tx.card).match(FRAUD)  # type: ignore[call-overload]
    assert "EventPattern.parse" in caught.value.next_move
    p.alarms.write(hr.sink.collect())
    assert "patterns: rules that come as rows" in p.app.explain()


class OwnedRule(PatternRule):
    owner: str = ""


class Definition(hr.Record):
    name: str
    text: str


def test_rules_may_have_more_columns_or_be_made_of_other_rows() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    owned = app.read("owned", hr.source.items([]), OwnedRule)
    others = app.read("others", hr.source.items([]), Definition)
    made = others.select(PatternRule, id="name", pattern="text")
    counts = [
        tx.key_by(Tx.card).match(rules.broadcast()).named(name).select(rule="match.rule", n="count(rows)")
        for name, rules in (("one", owned), ("two", made))
    ]
    with hr.testing.Harness(app, start="2024-01-01") as h:
        h.push(owned, OwnedRule("r1", "a [cents > 1]", owner="ann"))
        h.push(others, Definition("r2", "a [cents > 2]"))
        h.push(tx, Tx("a", h.at("12:00"), 7))
        h.epoch(watermark="12:01")
        assert [[(row.rule, row.n) for row in h.take(each)] for each in counts] == [[("r1", 1)], [("r2", 1)]]
