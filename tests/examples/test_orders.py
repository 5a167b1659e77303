from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.examples.programs import load_maker, load_program, read_lines


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("orders", tmp_path)


def test_an_order_is_settled_or_cancelled_when_its_time_is_over(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(
            program.orders, program.Order("a", "ann", h.at("12:00"), 500), program.Order("b", "bob", h.at("12:01"), 300)
        )
        h.push(program.payments, program.Payment("a", h.at("12:15"), 450))
        h.epoch(watermark="12:15")
        assert h.take(program.settled) == [program.Settled("a", "ann", 50, h.at("12:15"))]
        assert h.take(program.cancelled) == []
        h.epoch(watermark="12:16")
        assert [order.id for order in h.take(program.cancelled)] == ["b"]


def test_a_payment_after_the_quarter_of_an_hour_is_paid_back(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.orders, program.Order("a", "ann", h.at("12:00"), 500))
        h.push(program.payments, program.Payment("a", h.at("12:15:01"), 500))
        h.epoch(watermark="12:16")
        assert h.take(program.settled) == []
        assert [order.id for order in h.take(program.cancelled)] == ["a"]
        assert [payment.order for payment in h.take(program.refunds)] == ["a"]


def test_rows_out_of_order_are_settled_as_those_in_order(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.payments, program.Payment("a", h.at("12:10"), 500), program.Payment("b", h.at("12:02"), 300))
        h.epoch(watermark="11:59")
        h.push(program.orders, program.Order("b", "bob", h.at("12:01"), 300))
        h.push(program.orders, program.Order("a", "ann", h.at("12:00"), 500))
        h.epoch(watermark="12:30")
        assert sorted(row.id for row in h.take(program.settled)) == ["a", "b"]
        assert h.take(program.cancelled) == h.take(program.refunds) == []


@pytest.mark.parametrize("point", ["before_publish", "outputs_staged", "published"])
def test_a_timeout_survives_a_crash_and_is_told_once(program: Any, tmp_path: Path, point: str) -> None:
    store = tmp_path / "store"
    with hr.testing.Harness(program.app, start="2024-01-01T12:00", store=store) as h:
        h.push(program.orders, program.Order("a", "ann", h.at("12:00"), 500))
        h.epoch(watermark="12:14")
    with hr.testing.Harness(program.app, start="2024-01-01T13:00", store=store, parallelism=3) as h:
        h.crash(at=point, watermark="12:15")
        if point != "published":
            h.epoch(watermark="12:15")
        assert [order.id for order in h.take(program.cancelled)] == ["a"]
        h.push(program.payments, program.Payment("a", h.at("12:15"), 500))
        h.drain()
        assert h.take(program.cancelled) == h.take(program.settled) == []


def test_customers_are_reminded_once_of_what_they_owe(program: Any) -> None:
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.payments, program.Payment("a", h.at("12:00:01"), 200))
        h.epoch(watermark="11:59")
        h.push(
            program.orders, program.Order("a", "ann", h.at("12:00"), 500), program.Order("b", "bob", h.at("12:00"), 300)
        )
        h.push(program.payments, program.Payment("b", h.at("12:05"), 300))
        h.crash(at="before_publish", watermark="12:09")
        h.epoch(watermark="12:10")
        assert h.take(program.reminders) == [program.Reminder("a", "ann", 300)]
        h.drain()
        assert h.take(program.reminders) == []


def test_both_steps_share_their_exchanges(program: Any) -> None:
    assert program.app.explain().count("⇄ exchange") == 2


def test_of_ten_sample_orders_one_is_cancelled_for_good_and_one_paid_too_late(program: Any, tmp_path: Path) -> None:
    maker = load_maker("orders")
    asked, paid = maker.make_rows(100)
    maker.write_file(asked, tmp_path / "orders")
    assert len((tmp_path / "orders" / "rows.json").read_text().splitlines()) == 100
    orders, payments = program.orders.node.codec, program.payments.node.codec
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        h.push(program.orders, *(orders.from_json(json.dumps(row).encode()) for row in asked))
        h.push(program.payments, *(payments.from_json(json.dumps(row).encode()) for row in paid))
        h.epoch()
        h.drain()
        cancelled = {order.id for order in h.take(program.cancelled)}
        assert cancelled == {f"order-{i}" for i in range(100) if i % 10 in (8, 9)}
        assert sum(row.missing > 0 for row in h.take(program.settled)) == 10
        assert {payment.order for payment in h.take(program.refunds)} == {f"order-{i}" for i in range(8, 100, 10)}


@pytest.mark.spark
def test_on_spark_every_sample_order_is_settled_or_cancelled(tmp_path: Path, spark: Any) -> None:
    maker = load_maker("orders")
    asked, paid = maker.make_rows(200)
    maker.write_file(asked, tmp_path / "orders")
    maker.write_file(paid, tmp_path / "payments")
    program = load_program("orders", tmp_path)
    program.app.run(until="drained", spark=spark, store=tmp_path / "store", parallelism=2)
    settled = {row["id"] for row in read_lines(tmp_path / "settled")}
    cancelled = {row["id"] for row in read_lines(tmp_path / "cancelled")}
    assert cancelled == {row["id"] for i, row in enumerate(asked) if i % 10 in (8, 9)}
    assert settled == {row["id"] for row in asked} - cancelled
    assert len(read_lines(tmp_path / "refunds")) == 20
