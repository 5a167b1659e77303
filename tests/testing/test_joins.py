"""Joins and connected streams as programs: what comes out, under which name, through crashes and other parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.testing.operators import EpochInput, verify_step
from tests.testing.joined_shop import Order, Payment, Settled, Shop, Untimed, Watch, at


def test_pairs_are_selected_by_sql_over_both_sides() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h")).named("paid")
    typed = pairs.select(Settled, id="left.id", cents="right.cents - left.cents", paid="right.paid")
    loose = pairs.select(
        who="upper(left.id)", late="right.paid > left.at + INTERVAL '30' MINUTE", both="left.cents * 2"
    )
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 100), Order("b", at("10:00"), 50))
        h.push(shop.payments, Payment("a", at("10:40"), 120), Payment("b", at("11:30"), 50))
        h.epoch()
        assert h.take(typed) == [Settled("a", 20, at("10:40"), "-")]
        assert [(row.who, row.late, row.both) for row in h.take(loose)] == [("A", True, 200)]


def test_fields_that_one_side_has_need_not_be_said() -> None:
    shop = Shop()
    left, right = shop.keyed()
    settled = left.join(right, within=("0s", "1h")).select(Settled, cents="left.cents").named("settled")
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 100))
        h.push(shop.payments, Payment("a", at("10:40"), 120, "thanks"))
        h.epoch()
        assert h.take(settled) == [Settled("a", 100, at("10:40"), "thanks")]


def test_an_outer_join_has_nulls_where_a_side_has_no_row() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h"), how="left").named("settled")
    rows = pairs.select(Settled, id="left.id", cents="coalesce(right.cents, -1)", note="right.note", paid="right.paid")
    texts = pairs.map(lambda order, payment: f"{order.id}: {payment and payment.cents}", output=str)
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00")), Order("b", at("10:10")))
        h.push(shop.payments, Payment("a", at("10:40"), 7, "x"))
        h.epoch(watermark="11:05")
        assert h.take(rows) == [Settled("a", 7, at("10:40"), "x")]
        h.epoch(watermark="11:10")
        assert h.take(rows) == [Settled("b", -1, None, None)]
        assert h.take(texts) == ["a: 7", "b: None"]


def test_rows_without_a_partner_have_streams_of_their_own() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h")).named("settled")
    unpaid, unasked = pairs.unmatched_left, pairs.unmatched_right
    late = pairs.late_left
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00")), Order("b", at("10:00")))
        h.push(shop.payments, Payment("a", at("10:30")), Payment("c", at("10:30")))
        h.epoch(watermark="10:59")
        assert (h.take(unpaid), h.take(unasked)) == ([], [Payment("c", at("10:30"))])
        h.epoch(watermark="11:00")
        assert h.take(unpaid) == [Order("b", at("10:00"))]
        h.push(shop.orders, Order("d", at("09:59")))
        h.epoch()
        assert h.take(late) == [Order("d", at("09:59"))]
        assert h.counters(pairs)["late"] == 1


@pytest.mark.parametrize(
    "join",
    [
        lambda left, right: left.join(right, within=("0s", "30m"), how="left"),
        lambda left, right: left.join(right, within=hr.tumbling("1h"), how="left"),
        lambda left, right: left.join_asof(right),
    ],
    ids=["within a stretch of time", "within windows", "as of a time"],
)
@pytest.mark.parametrize("slow", ["orders", "payments"])
def test_the_time_of_a_join_is_that_of_its_slower_side(join: Any, slow: str) -> None:
    shop = Shop()
    told = join(*shop.keyed()).named("settled").map(lambda order, payment: order.id, output=str)
    told.show()
    orders, payments = [Order("x", at("11:00"))], [Payment("y", at("11:00"))]
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:10")))
        h.push(shop.payments, Payment("z", at("10:05")))
        h.epoch()
        h.push(shop.orders, *(orders if slow == "payments" else []))
        h.push(shop.payments, *(payments if slow == "orders" else []))
        h.epoch()
        assert h.take(told) == []
        h.push(shop.orders, *(orders if slow == "orders" else []))
        h.push(shop.payments, *(payments if slow == "payments" else []))
        h.epoch()
        assert h.take(told) == ["a"]


def test_results_of_a_join_are_in_time_for_the_steps_behind_it() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h"), how="left").named("settled")
    rows = pairs.select(Settled, id="left.id", cents="left.cents", note="right.note", paid="right.paid")
    counted = rows.key_by("id").aggregate(n=hr.count()).named("counted")
    late = counted.late
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00")), Order("b", at("10:00")))
        h.epoch(watermark="10:50")
        h.push(shop.payments, Payment("a", at("10:55")))
        h.epoch(watermark="10:58")
        h.epoch(watermark="12:00")
        assert [(row.id, row.n) for row in h.take(counted)] == [("a", 1), ("b", 1)]
        assert h.take(late) == []


def test_a_select_that_keeps_the_key_needs_no_further_exchange() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h")).named("settled")
    kept = pairs.select(Settled, id="left.id", cents="left.cents", note="right.note", paid="right.paid")
    kept.key_by(Settled.id).latest().named("newest").queryable()
    other = pairs.select(Settled, id="upper(left.id)", cents="left.cents", note="right.note", paid="right.paid")
    other.key_by(Settled.id).latest().named("others").queryable()
    text = shop.app.explain()
    assert "no exchange: the rows already lie by id" in text
    assert text.count("⇄ exchange") == 3


def test_a_stream_joins_itself() -> None:
    shop = Shop()
    pairs = shop.orders.key_by(Order.id).join(shop.orders.key_by(Order.id), within=("1s", "1h")).named("again")
    gaps = pairs.map(lambda a, b: f"{a.cents} then {b.cents}", output=str)
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 1), Order("a", at("10:30"), 2))
        h.epoch()
        h.push(shop.orders, Order("a", at("10:45"), 3), Order("b", at("10:45"), 4))
        h.epoch()
        assert sorted(h.take(gaps)) == ["1 then 2", "1 then 3", "2 then 3"]


def test_one_side_may_stand_behind_another_keyed_step() -> None:
    shop = Shop()
    payments = shop.payments.key_by(Payment.order).reduce(lambda a, b: b.replace(cents=a.cents + b.cents)).named("sums")
    left = shop.orders.key_by(Order.id)
    pairs = left.join(payments.changes().key_by(Payment.order), within=("0s", "1h")).named("settled")
    sums = pairs.map(lambda order, payment: payment.cents, output=int)
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00")))
        h.push(shop.payments, Payment("a", at("10:10"), 1), Payment("a", at("10:20"), 2))
        h.epoch()
        h.push(shop.payments, Payment("a", at("10:30"), 3))
        h.epoch()
        assert h.take(sums) == [1, 3, 6]


def test_keys_may_be_several_columns_or_functions() -> None:
    shop = Shop()
    left = shop.orders.key_by(Order.id, Order.cents)
    pairs = left.join(shop.payments.key_by("order", "cents"), within=("0s", "1h")).named("exact")
    exact = pairs.select(id="left.id")
    loose_left = shop.orders.key_by(lambda order: (order.id or "").lower())
    loose_right = shop.payments.key_by(lambda payment: (payment.order or "").lower())
    loose = loose_left.join(loose_right, within=("0s", "1h")).named("loose").select(id="right.order")
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 1), Order("b", at("10:00"), 2), Order(None, at("10:00"), 3))
        h.push(shop.payments, Payment("a", at("10:10"), 1), Payment("B", at("10:20"), 2), Payment(None, at("10:20"), 3))
        h.epoch()
        assert [row.id for row in h.take(exact)] == ["a"]
        assert sorted(str(row.id) for row in h.take(loose)) == ["B", "None", "a"]


class Click(hr.Record, tag=True):
    user: str
    at: hr.Timestamp


class Scroll(hr.Record, tag=True):
    user: str
    at: hr.Timestamp
    lines: int = 0


def test_sides_may_be_unions_or_plain_values() -> None:
    shop = Shop()
    events = shop.app.read("events", hr.source.items([]), Click | Scroll, time="at")
    names = shop.orders.map(lambda order: order.id or "", output=str)
    pairs = events.key_by("user").join(names.key_by(lambda name: name), within=("0s", "1h"), how="left").named("named")
    kinds = pairs.map(lambda event, name: f"{type(event).__name__} {name}", output=str)
    columns = pairs.select(user="left.user", lines="left.lines", name="right.value")
    with hr.testing.Harness(shop.app) as h:
        h.push(events, Click("a", at("10:00")), Scroll("a", at("10:01"), 3), Scroll("b", at("10:01"), 4))
        h.epoch(watermark="10:05")
        h.push(shop.orders, Order("a", at("10:30")))
        h.epoch(watermark="12:00")
        assert sorted(h.take(kinds)) == ["Click a", "Scroll None", "Scroll a"]
        found = sorted(((row.user, row.lines, row.name) for row in h.take(columns)), key=repr)
        assert found == [("a", 3, "a"), ("a", None, "a"), ("b", 4, None)]


@pytest.mark.parametrize("point", ["state_opening", "before_publish", "published", "outputs_staged"])
def test_a_crash_changes_nothing(point: str) -> None:
    def play(crash: bool) -> tuple[list[Settled], list[Order]]:
        shop = Shop()
        left, right = shop.keyed()
        pairs = left.join(right, within=("0s", "1h"), how="full").named("settled")
        rows = pairs.select(
            Settled, id="coalesce(left.id, right.order)", cents="coalesce(right.cents, -1)", note="right.note",
            paid="right.paid",
        )  # fmt: skip
        unpaid = pairs.unmatched_left
        with hr.testing.Harness(shop.app) as h:
            for hour in range(8, 12):
                for n in range(4):
                    h.push(shop.orders, Order(f"o{n}", at(f"{hour:02}:{n}0")))
                    h.push(shop.payments, Payment(f"o{n + 2}", at(f"{hour:02}:{n}5"), n))
                if crash:
                    h.crash(at=point, watermark=f"{hour:02}:50")
                if h.published < hour - 8:
                    h.epoch(watermark=f"{hour:02}:50")
            h.drain()
            return sorted(h.take(rows), key=repr), sorted(h.take(unpaid), key=repr)

    assert play(crash=True) == play(crash=False)


def test_state_moves_with_the_number_of_shards(tmp_path: Path) -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h"), how="left").named("settled")
    rows = pairs.map(lambda order, payment: f"{order.id}: {payment and payment.cents}", output=str)
    with hr.testing.Harness(shop.app, store=tmp_path, parallelism=1) as h:
        h.push(shop.orders, *(Order(f"o{n}", at("10:00")) for n in range(20)))
        h.epoch(watermark="10:00")
    with hr.testing.Harness(shop.app, store=tmp_path, parallelism=3) as h:
        h.push(shop.payments, *(Payment(f"o{n}", at("10:30"), n) for n in range(0, 20, 2)))
        h.epoch(watermark="10:30")
        assert len(h.take(rows)) == 10
    with hr.testing.Harness(shop.app, store=tmp_path, parallelism=2) as h:
        h.drain()
        assert sorted(h.take(rows)) == sorted(f"o{n}: None" for n in range(1, 20, 2))


def test_fields_may_be_added_while_rows_wait(tmp_path: Path) -> None:
    class Wide(hr.Record):
        id: str | None
        at: hr.Timestamp
        cents: int = 0
        colour: str = "blue"

    def program(kind: Any) -> tuple[Shop, Any, Any]:
        shop = Shop()
        orders = shop.app.read("wide", hr.source.items([]), kind, time="at")
        pairs = orders.key_by("id").join(shop.payments.key_by(Payment.order), within=("0s", "1h")).named("settled")
        columns = {"id": "left.id", **({"colour": "left.colour"} if kind is Wide else {})}
        return shop, orders, pairs.select(**columns)

    shop, orders, rows = program(Order)
    with hr.testing.Harness(shop.app, store=tmp_path) as h:
        h.push(orders, Order("a", at("10:00")))
        h.epoch()
    shop, orders, rows = program(Wide)
    with hr.testing.Harness(shop.app, store=tmp_path) as h:
        h.push(orders, Wide("a", at("10:01"), colour="red"))
        h.push(shop.payments, Payment("a", at("10:30")))
        h.epoch()
        assert sorted(row.colour for row in h.take(rows)) == ["blue", "red"]


def test_what_held_at_the_time_of_a_row() -> None:
    shop = Shop()
    prices = shop.app.read("prices", hr.source.items([]), Payment, time=Payment.paid)
    held = shop.orders.key_by(Order.id).join_asof(prices.key_by(Payment.order), tolerance="1h").named("priced")
    rows = held.map(lambda order, price: f"{order.id} {order.cents}: {price and price.cents}", output=str)
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 1), Order("a", at("10:20"), 2), Order("a", at("12:00"), 3))
        h.push(prices, Payment("a", at("09:50"), 100), Payment("a", at("10:10"), 200))
        h.epoch(watermark="10:05")
        assert h.take(rows) == ["a 1: 100"]
        h.push(prices, Payment("a", at("10:15"), 300))
        h.epoch(watermark="13:00")
        assert h.take(rows) == ["a 2: 300", "a 3: None"]


def test_an_aggregate_can_be_asked_for_as_of_a_time() -> None:
    shop = Shop()
    sums = shop.payments.key_by(Payment.order).aggregate(total=hr.sum("cents")).named("sums")
    held = shop.orders.key_by(Order.id).join_asof(sums.changes().key_by("order")).named("held")
    rows = held.select(id="left.id", total="right.total")
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.payments, Payment("a", at("10:00"), 5))
        h.epoch(watermark="10:00")
        h.push(shop.payments, Payment("a", at("11:00"), 6))
        h.push(shop.orders, Order("a", at("10:30")), Order("a", at("11:00")))
        h.epoch(watermark="12:00")
        assert [row.total for row in h.take(rows)] == [5, 11]


def test_rows_of_one_window_are_joined_at_its_end() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=hr.tumbling("1h"), how="left").named("hourly")
    rows = pairs.select(id="left.id", paid="right.cents")
    unpaid = pairs.unmatched_left
    counted = rows.key_by("id").window(hr.tumbling("1h")).aggregate(n=hr.count()).named("counted")
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:10")), Order("b", at("10:10")), Order("a", at("11:10")))
        h.push(shop.payments, Payment("a", at("10:50"), 1), Payment("a", at("11:00"), 2))
        h.crash(at="before_publish", watermark="11:05")
        h.epoch(watermark="11:05")
        assert sorted((row.id, row.paid) for row in h.take(rows)) == [("a", 1), ("b", None)]
        assert h.take(unpaid) == [Order("b", at("10:10"))]
        h.drain()
        assert [(row.id, row.paid) for row in h.take(rows)] == [("a", 2)]
        # Results have the last instant of their window, so windows of one size can be stacked.
        assert sorted((row.id, row.window_start, row.n) for row in h.take(counted)) == [
            ("a", at("10:00"), 1), ("a", at("11:00"), 1), ("b", at("10:00"), 1),
        ]  # fmt: skip


def test_open_windows_of_a_join_can_be_looked_at(tmp_path: Path) -> None:
    shop = Shop()
    left, right = shop.keyed()
    left.join(right, within=hr.tumbling("1h")).named("settled").select(id="left.id").show()
    with hr.testing.Harness(shop.app, store=str(tmp_path)) as h:
        h.push(shop.orders, Order("a", at("10:10")), Order("a", at("11:10")))
        h.push(shop.payments, Payment("a", at("10:20")))
        h.epoch(watermark="10:00")
        view: Any = hr.Store(str(tmp_path)).state("settled")
        assert [(row["window_start"], row["rows"]) for row in view.windows("a").values()] == [
            (at("10:00"), 2),
            (at("11:00"), 1),
        ]


def test_windows_of_a_join_may_follow_the_wall_clock() -> None:
    shop = Shop()
    others = shop.app.read("others", hr.source.items([]), Untimed)
    pairs = shop.orders.key_by(Order.id).join(others.key_by(Untimed.order), within=hr.tumbling("1m", clock="wall"))
    rows = pairs.named("soon").map(lambda order, other: other.n, output=int)
    with hr.testing.Harness(shop.app, start="2024-01-01T12:00:10") as h:
        h.push(shop.orders, Order("a", at("03:00")))
        h.push(others, Untimed("a", 7))
        h.epoch()
        h.epoch(clock="12:00:59")
        assert h.take(rows) == []
        h.epoch(clock="12:01:00")
        assert h.take(rows) == [7]


def test_a_co_group_gives_one_row_for_each_key_and_window() -> None:
    shop = Shop()
    left, right = shop.keyed()

    def balance(orders: list[Order], payments: list[Payment]) -> int:
        return sum(order.cents for order in orders) - sum(payment.cents for payment in payments)

    rows = left.co_group(right, hr.session("30m")).map(balance).named("balances")
    late = rows.late_left
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 10), Order("a", at("10:45"), 20))
        h.push(shop.payments, Payment("a", at("10:20"), 4), Payment("b", at("10:20"), 5))
        h.epoch(watermark="11:20")
        assert sorted(h.take(rows)) == [-5, 26]
        h.push(shop.orders, Order("a", at("09:00"), 10))
        h.epoch()
        assert h.take(late) == [Order("a", at("09:00"), 10)]


def test_without_a_limit_every_pair_comes_once() -> None:
    shop = Shop()
    left, right = shop.keyed()
    rows = left.join(right, within=None).named("pairs").map(lambda o, p: o.cents * 10 + p.cents, output=int)
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 1))
        h.epoch(watermark="20:00")
        h.push(shop.payments, Payment("a", at("01:00"), 2), Payment("a", at("23:00"), 3))
        h.epoch()
        assert sorted(h.take(rows)) == [12, 13]


def test_two_rolling_results_are_joined_by_their_newest_rows() -> None:
    shop = Shop()
    orders = shop.orders.key_by(Order.id).aggregate(asked=hr.sum("cents")).named("asked")
    payments = shop.payments.key_by(Payment.order).aggregate(paid=hr.sum("cents")).named("paid")
    pairs = orders.key_by("id").join(payments.key_by("order"), within=None, how="left").named("open")
    rows = pairs.select(id="left.id", missing="left.asked - coalesce(right.paid, 0)")
    with pytest.raises(hr.ProgramError, match="can only append rows"):
        rows.write(hr.sink.files("open/"))
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 10), Order("b", at("10:00"), 5))
        h.epoch()
        h.push(shop.payments, Payment("a", at("11:00"), 4))
        h.push(shop.orders, Order("a", at("11:00"), 1))
        h.epoch()
        assert [(row.id, row.missing) for row in h.take(rows)] in (
            [("a", 10), ("b", 5), ("a", 7)],
            [("b", 5), ("a", 10), ("a", 7)],
        )


def test_a_failing_function_of_pairs_is_told_like_any_other() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h")).named("settled")

    def divide(order: Order, payment: Payment) -> float:
        return payment.cents / order.cents

    shares = pairs.map(divide)
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 0))
        h.push(shop.payments, Payment("a", at("10:30"), 5))
        with pytest.raises(FunctionFailed, match="divide raised ZeroDivisionError") as failed:
            h.epoch()
    assert "test_joins.py" in str(failed.value)
    errors = shares.errors
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 0))
        h.push(shop.payments, Payment("a", at("10:30"), 5))
        h.epoch()
        assert [b'"right"' in failed.row for failed in h.take(errors)] == [True]


def test_connected_streams_share_state_and_timers() -> None:
    shop = Shop()
    left, right = shop.keyed()
    watched = left.connect(right).process(Watch())
    early, late = watched.side(Watch.early), watched.late_right
    with hr.testing.Harness(shop.app) as h:
        h.push(shop.orders, Order("a", at("10:00"), 5), Order("b", at("10:00"), 6))
        h.epoch(watermark="10:10")
        h.push(shop.payments, Payment("a", at("10:30"), 4), Payment("c", at("10:30")), Payment("b", at("10:05")))
        h.crash(at="before_publish", watermark="10:50")
        h.epoch(watermark="10:50")
        assert h.take(watched) == ["a paid 4 of 5"]
        assert h.take(early) == [Payment("c", at("10:30"))]
        assert h.take(late) == [Payment("b", at("10:05"))]
        h.epoch(watermark="11:00")
        assert h.take(watched) == ["b not paid"]
        assert h.state(watched, Watch.asked, key="b") == 6
    assert watched.node.name == "watch"


def test_a_connected_step_passes_the_test_of_operators() -> None:
    shop = Shop()
    left, right = shop.keyed()
    watched = left.connect(right).process(Watch())
    verify_step(watched, [
        EpochInput([(0, [Order("a", at("10:00"), 5), Order("b", at("10:00"), 6)]), (1, [Payment("c", at("10:01"))])],
                   watermark="2024-01-01T10:10"),
        EpochInput([(1, [Payment("a", at("10:30"), 4)]), (0, [Order("c", at("10:40"))])], watermark="2024-01-01T11:00"),
        EpochInput([], watermark="2024-01-01T12:00"),
    ])  # fmt: skip


def test_a_join_passes_the_test_of_operators() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("-30m", "1h"), how="full").named("settled")
    pairs.unmatched_left.write(hr.sink.discard())
    verify_step(pairs, [
        EpochInput([(0, [Order("a", at("10:00"), 5), Order("b", at("10:00"), 6)]), (1, [Payment("c", at("10:01"))])],
                   watermark="2024-01-01T10:10"),
        EpochInput([(1, [Payment("a", at("10:30"), 4)]), (0, [Order("c", at("10:40"))])], watermark="2024-01-01T11:00"),
        EpochInput([], watermark="2024-01-01T13:00"),
    ])  # fmt: skip
