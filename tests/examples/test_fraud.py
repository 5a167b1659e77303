from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.read.store import manifest_of
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("fraud", tmp_path)


def test_a_large_payment_within_a_minute_of_a_small_one_is_an_alert(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.payments, program.Payment("c", "baker", h.at("12:00:00"), 50))
        h.push(program.payments, program.Payment("c", "bank", h.at("12:00:30"), 90_000))
        h.epoch()
        assert h.take(program.alerts) == [program.Alert("c", h.at("12:00:30"), 90_000, h.at("12:00:00"))]
        assert h.counters(program.alerts)["alerts"] == 1


def test_after_a_minute_the_small_payment_is_forgotten(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.payments, program.Payment("c", "baker", h.at("12:00:00"), 50))
        h.epoch(watermark="12:02:00")
        assert h.state(program.alerts, program.Fraud.tried, key="c") is None
        h.push(program.payments, program.Payment("c", "bank", h.at("12:02:30"), 90_000))
        h.epoch()
        assert h.take(program.alerts) == []


def test_a_trial_survives_a_crash(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.payments, program.Payment("c", "baker", h.at("12:00:00"), 50))
        h.epoch()
        h.push(program.payments, program.Payment("c", "bank", h.at("12:00:30"), 90_000))
        h.crash(at="before_publish")
        assert h.take(program.alerts) == []
        h.epoch()
        assert [alert.cents for alert in h.take(program.alerts)] == [90_000]


def test_payments_of_a_card_in_many_shops_go_to_the_side(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        busy = program.alerts.side(program.Fraud.busy)
        rows = [program.Payment("c", f"shop-{i}", h.at(f"12:00:0{i}"), 500) for i in range(6)]
        h.push(program.payments, *rows)
        h.epoch()
        assert h.take(busy) == rows[4:]
        assert h.state(program.alerts, program.Fraud.shops, key="c") == {f"shop-{i}": 1 for i in range(6)}


def test_the_pattern_finds_what_the_function_finds(tmp_path: Path) -> None:
    payments = load_maker("fraud").make_payments(400)
    found = []
    for file in ("app.py", "pattern.py"):
        program = load_program("fraud", tmp_path, file=file)
        with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
            for row in payments:
                at = h.at(str(row["at"]))
                h.push(program.payments, program.Payment(row["card"], row["shop"], at, row["cents"], row["kind"]))
            h.drain()
            found.append(sorted((alert.card, alert.at, alert.tried_at) for alert in h.take(program.alerts)))
    assert found[0] == found[1]
    assert len(found[0]) == 8 and all(card.startswith("stolen") for card, _, _ in found[0])


def test_the_harness_tells_why_an_owner_is_no_thief(tmp_path: Path) -> None:
    program = load_program("fraud", tmp_path, file="pattern.py")
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.payments, program.Payment("c", "baker", h.at("12:00:00"), 50))
        h.push(program.payments, program.Payment("c", "bank", h.at("12:00:10"), 0, "pin"))
        h.push(program.payments, program.Payment("c", "bank", h.at("12:00:30"), 90_000))
        h.drain()
        assert h.take(program.alerts) == []
        _, pin, _ = h.why(program.trials, "c")
        assert "pin must not come before it: kind = 'pin' is true" in pin.reasons[0].reason


@pytest.mark.spark
def test_on_spark_every_fraud_of_the_sample_data_is_found_once(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("fraud")
    payments = maker.make_payments(600)
    maker.write_files(payments, tmp_path / "payments")
    program = load_program("fraud", tmp_path)
    program.app.run(until="drained", spark=spark, store=tmp_path / "store", parallelism=2)
    expected = sorted(str(row["card"]) for row in payments if int(str(row["cents"])) >= 60_000)
    assert len(expected) == 12
    assert sorted(row["card"] for row in read_lines(tmp_path / "alerts")) == expected
    store = hr.Store(tmp_path / "store")
    assert manifest_of(store).final
    assert manifest_of(store).counters["fraud"]["alerts"] == 12
