"""``process(fn, order="time")`` in programs: cuts, splits, shards, crashes, and what people see of waiting rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.edit.erasing.erase import erase_key, find_text
from headrace.errors import ProgramError
from headrace.model.time import parse_time
from headrace.model.watermark_reasons import tell_reason
from headrace.progress import reasons_of
from headrace.state.store import LocalStore
from headrace.testing import Harness

SMALL, LARGE = 100, 50_000
S = 1_000_000
STATES = ["fraud.over", "fraud.small"]


class Tx(hr.Record):
    card: str
    id: int
    at: hr.Timestamp
    cents: int


class Alert(hr.Record):
    card: str
    id: int
    small: int


class Fraud(hr.Process[Tx, Alert, str]):
    """A large payment within a minute after a small one."""

    small: hr.ValueState[int]
    over: hr.Timer

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Alert]:
        small = self.small.get()
        if small is not None and event.cents > LARGE:
            yield Alert(event.card, event.id, small)
        self.small.clear()
        if event.cents < SMALL:
            self.small.set(event.id)
            self.over.set(event.at + hr.minutes(1))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        self.small.clear()


class Spend(hr.Process[Alert, str, int]):
    """Behind the rule: what came is not late there."""

    def on_event(self, event: Alert, ctx: hr.Context[int]) -> Iterator[str]:
        yield f"{event.card} {event.id}"


class Shop:
    def __init__(self, order: Any = "time") -> None:
        self.app = hr.App("shop")
        self.tx = self.app.read("tx", hr.source.items([]), Tx, time=Tx.at, out_of_order="10m")
        self.alerts = self.tx.key_by(Tx.card).process(Fraud(), order=order)
        self.spent = self.alerts.key_by(lambda alert: alert.id % 3).process(Spend(), order=order)
        self.spent.show()

    def payments(self, count: int, random: Random) -> list[Tx]:
        start = parse_time("2024-01-01T12:00:00")
        return [
            Tx(random.choice("abcd"), i, hr.Timestamp(start + random.randrange(600) * S), random.choice([50, 60_000]))
            for i in range(count)
        ]


def alerts_in_true_order(payments: list[Tx]) -> list[Alert]:
    found: list[Alert] = []
    last: dict[str, Tx] = {}
    for tx in sorted(payments, key=lambda tx: (tx.at, tx.id)):
        before = last.get(tx.card)
        if before is not None and before.cents < SMALL and tx.cents > LARGE and tx.at - before.at <= 60_000_000:
            found.append(Alert(tx.card, tx.id, before.id))
        last[tx.card] = tx
    return found


@settings(max_examples=8)
@given(random=st.randoms(use_true_random=False), count=st.integers(20, 80))
def test_a_rule_gives_the_same_alerts_however_the_input_comes(random: Random, count: int) -> None:
    shop = Shop(("time", "id"))
    payments = shop.payments(count, random)
    wanted = alerts_in_true_order(payments)
    random.shuffle(payments)
    with Harness(shop.app, parallelism=random.randint(1, 3), start="2024-01-01T12:00") as h:
        alerts, spent = [], []
        while payments:
            cut = random.randint(1, 25)
            for tx in payments[:cut]:
                h.push(shop.tx, tx, split=random.choice(["p0", "p1"]))
            payments = payments[cut:]
            if random.random() < 0.3:
                h.crash(at=random.choice(["before_publish", "published"]))
            else:
                h.epoch()
            if random.random() < 0.3:
                h.maintain()
            alerts += h.take(shop.alerts)
            spent += h.take(shop.spent)
        h.drain()
        alerts += h.take(shop.alerts)
        spent += h.take(shop.spent)
    assert sorted(alerts, key=lambda alert: alert.id) == sorted(wanted, key=lambda alert: alert.id)
    assert sorted(spent) == sorted(f"{alert.card} {alert.id}" for alert in wanted)
    for card in "abcd":
        assert [a for a in alerts if a.card == card] == [a for a in wanted if a.card == card]


def test_in_the_order_of_arrival_the_alerts_depend_on_the_cuts() -> None:
    def run(cuts: int) -> int:
        shop = Shop("arrival")
        payments = shop.payments(120, Random(1))
        with Harness(shop.app) as h:
            for start in range(cuts):
                h.push(shop.tx, *payments[start::cuts])
                h.epoch()
            h.drain()
            return len(h.take(shop.alerts))

    assert len({run(cuts) for cuts in (1, 4, 7)}) > 1


def test_rows_that_a_silent_split_holds_back_are_counted_beside_its_name() -> None:
    shop = Shop()
    with Harness(shop.app, start="2024-01-01T12:00") as h:
        h.push(shop.tx, Tx("a", 1, h.at("12:00:00"), 50), split="p1")
        h.push(shop.tx, Tx("a", 2, h.at("12:30:00"), 50), Tx("b", 3, h.at("12:31:00"), 50), split="p0")
        h.epoch()
        assert h._coordinator.state is not None
        manifest = h._coordinator.state.manifest
        assert manifest.waiting == {"fraud": 3, "spend": 0}
        [reason] = [each for each in reasons_of(manifest) if "fraud" in each.steps]
        told = tell_reason(reason, manifest.clock_us + 60_000_000)
        assert "held back by tx, split p1, whose newest row is of 2024-01-01T12:00:00Z" in told
        assert "3 rows wait for it; the next thing is due at 2024-01-01T12:00:00Z" in told
        h.push(shop.tx, Tx("a", 4, h.at("12:41:00"), 50), split="p1")
        h.epoch()
        # p0 is the slower one now: two rows of it, and the new one.
        assert h._coordinator.state.manifest.waiting == {"fraud": 3, "spend": 0}


def test_readers_edits_and_erasures_take_rows_that_wait_for_what_they_are(tmp_path: Path) -> None:
    shop = Shop()
    with Harness(shop.app, store=tmp_path, start="2024-01-01T12:00") as h:
        h.push(shop.tx, Tx("a", 1, h.at("12:00:00"), 50), Tx("b", 2, h.at("12:00:30"), 50))
        h.push(shop.tx, Tx("a", 3, h.at("12:00:40"), 60_000), Tx("b", 4, h.at("12:00:50"), 60_000))
        h.epoch()
        assert [f"{info.step}.{info.state}" for info in hr.Store(tmp_path).states()] == STATES
        with pytest.raises(ProgramError, match="cannot be edited: it keeps rows for its step"), h.edit() as edit:
            edit.set("fraud.!waiting", "a", 1)
        # What has not come to its time yet is no state of the function's, but what it edits is there when rows come.
        with h.edit() as edit:
            edit.set("fraud.small", "b", 77)
        h.epoch(watermark="12:05:00")
        assert h.take(shop.alerts) == [Alert("a", 3, 1), Alert("b", 4, 2)]


def test_a_key_that_is_erased_does_not_wait_any_more(tmp_path: Path) -> None:
    shop = Shop()
    payments = [("ann", "12:00:00", 50), ("bob", "12:00:10", 50)]
    payments += [("ann", "12:00:40", 60_000), ("bob", "12:00:50", 60_000)]
    with Harness(shop.app, store=tmp_path, start="2024-01-01T12:00") as h:
        h.push(shop.tx, *(Tx(card, i, h.at(at), cents) for i, (card, at, cents) in enumerate(payments)))
        h.epoch()
    store = LocalStore(tmp_path, durable=False)
    assert find_text(store, "ann")
    erase_key(store, "ann")
    assert find_text(store, "ann") == []
    with Harness(shop.app, store=tmp_path) as h:
        h.epoch(watermark="12:05:00")
        assert h.take(shop.alerts) == [Alert("bob", 3, 1)]
