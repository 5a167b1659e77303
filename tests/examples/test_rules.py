from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("rules", tmp_path)


def push(h: hr.testing.Harness, program: Any, *payments: str) -> None:
    """Payments told as ``12:00:05 a 50 NZ``."""
    for payment in payments:
        at, card, cents, country = payment.split()
        h.push(program.payments, program.Payment(card, h.at(at), int(cents), country))


def raised(rows: list[Any]) -> list[tuple[str, int, str, int]]:
    return sorted((row.rule, row.version, row.card, row.cents) for row in rows)


def test_a_rule_that_is_edited_while_it_runs_raises_alerts_from_then_on(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01") as h:
        h.push(program.rules, hr.PatternRule("big", "large [cents > 50000]"))
        push(h, program, "12:00:00 a 60000 NZ", "12:00:01 b 20000 NZ")
        h.epoch(watermark="12:00:10")
        h.push(program.rules, hr.PatternRule("big", "large [cents > 10000]", at=h.at("12:00:30")))
        push(h, program, "12:00:20 b 20000 NZ", "12:00:30 b 20000 NZ")
        h.epoch(watermark="12:01")
        h.push(program.rules, hr.PatternRule("big", active=False))
        push(h, program, "12:01:30 b 20000 NZ")
        h.epoch(watermark="12:02")
        assert raised(h.take(program.alerts)) == [("big", 1, "a", 60_000), ("big", 2, "b", 20_000)]


def test_a_bad_rule_is_put_aside_and_the_one_in_force_goes_on(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01") as h:
        h.push(program.rules, hr.PatternRule("big", "small [cents < 100], then large [cents > 50000], within 1m"))
        push(h, program, "12:00:00 a 50 NZ")
        h.epoch(watermark="12:00:05")
        h.push(program.rules, hr.PatternRule("big", "small [cents < 100], then large [cent > 50000], within 1m"))
        push(h, program, "12:00:10 a 60000 NZ", "12:00:20 b 50 NZ")
        h.epoch(watermark="12:02")
        assert raised(h.take(program.alerts)) == [("big", 1, "a", 60_050)]
        (bad,) = h.take(program.watch.errors)
        assert "did you mean cents?" in bad.error and "character 22" in bad.error
        assert h.take(program.hung) == [program.Hung("big", "b", "large")]


def test_alerts_of_the_sample_rules_are_those_of_the_same_patterns_in_code(program: Any, tmp_path: Path) -> None:
    maker = load_maker("rules")
    payments = [{**row, "at": hr.timestamp(row["at"])} for row in maker.make_payments(400)]
    with hr.testing.Harness(program.app, start="2024-01-01", parallelism=3) as h:
        h.push(program.rules, *(hr.PatternRule(**rule) for rule in maker.RULES))
        for start in range(0, len(payments), 90):
            h.push(program.payments, *(program.Payment(**row) for row in payments[start : start + 90]))
            h.epoch(watermark=int(payments[start]["at"]))
        h.drain()
        found = raised(h.take(program.alerts))
    app = hr.App("code")
    stream = app.read("payments", hr.source.items([]), program.Payment, time=program.Payment.at)
    wanted = []
    steps = {
        rule["id"]: stream.key_by("card").match(hr.EventPattern.parse(rule["pattern"])).named(f"rule{i}")
        for i, rule in enumerate(maker.RULES)
    }
    sums = {
        "test-then-spend": steps["test-then-spend"].select(card="small.card", cents="small.cents + large.cents"),
        "burst": steps["burst"].select(card="hit.card", cents="sum(hit.cents)"),
    }
    with hr.testing.Harness(app, start="2024-01-01") as h:
        h.push(stream, *(program.Payment(**row) for row in payments))
        h.drain()
        for name, rows in sums.items():
            wanted += [(name, 1, row.card, row.cents) for row in h.take(rows)]
    assert found == sorted(wanted)
    assert {rule for rule, *_ in found} == {"test-then-spend", "burst"}


@pytest.mark.spark
def test_on_spark_rules_go_on_over_a_restart(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("rules")
    maker.write_rules(maker.RULES, tmp_path / "rules")
    maker.write_file(maker.make_payments(300), tmp_path / "payments", "payments-1")
    program = load_program("rules", tmp_path)
    program.app.run(until="caught_up", spark=spark, store=tmp_path / "store", parallelism=2)
    assert set(hr.Store(tmp_path / "store").state("watch.rules", hr.PatternRule)) == {"test-then-spend", "burst"}
    maker.write_rules(
        [{"id": "burst", "active": False}, {"id": "abroad", "pattern": "away [country = 'FR']", "version": 4},
         {"id": "bad", "pattern": "away [nowhere = 'FR']"}], tmp_path / "rules"
    )  # fmt: skip
    later = maker.make_payments(300, seed=2)
    maker.write_file(later, tmp_path / "payments", "payments-2")
    program = load_program("rules", tmp_path)
    program.app.run(until="drained", spark=spark, store=tmp_path / "store", parallelism=3)
    alerts = read_lines(tmp_path / "alerts")
    away = [row for row in alerts if row["rule"] == "abroad"]
    first = maker.make_payments(300)[-1]["at"]
    assert sum(row["at"] > first for row in away) == sum(row["country"] == "FR" for row in later)
    assert {row["version"] for row in away} == {4}
    assert not [row for row in alerts if row["rule"] == "burst" and row["since"] > first]
    (bad,) = read_lines(tmp_path / "bad-rules")
    assert "there is no column 'nowhere'" in bad["error"]
