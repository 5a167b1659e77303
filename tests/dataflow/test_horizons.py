"""``aggregate`` with ``over=``, as users write it."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import ProgramError


class Tx(hr.Record):
    card: str
    cents: int
    at: hr.Timestamp


class Features(hr.Record):
    card: str
    sum_1h: int
    n_24h: int
    total: int = 0


def program(*, timed: bool = True) -> tuple[hr.App, hr.Stream[Tx]]:
    app = hr.App("cards")
    return app, app.read("tx", hr.source.items([]), Tx, time=Tx.at if timed else None)


def test_features_of_several_spans_come_out_of_one_step() -> None:
    app, tx = program()
    features = tx.key_by(Tx.card).aggregate(
        Features, sum_1h=hr.sum("cents", over="1h"), n_24h=hr.count(over="24h"), total=hr.sum(Tx.cents)
    ).named("features")  # fmt: skip
    features.show()
    with hr.testing.Harness(app, start="2024-01-01", parallelism=2) as h:
        h.push(tx, Tx("a", 5, h.at("10:00")), Tx("b", 1, h.at("10:05")), Tx("a", 7, h.at("10:59")))
        h.epoch(watermark="10:59")
        assert sorted(h.take(features), key=lambda row: row.card) == [Features("a", 12, 2, 12), Features("b", 1, 1, 1)]
        h.push(tx, Tx("a", 1, h.at("11:30")))
        h.epoch(watermark="11:30")
        assert h.take(features) == [Features("a", 8, 3, 13)]
        assert h.state(features, key="a") == Features("a", 8, 3, 13)


def test_each_row_has_features_as_of_its_own_time() -> None:
    app, tx = program()
    features = (
        tx.key_by(Tx.card)
        .aggregate(n=hr.count(over="1m"), most=hr.max("cents", over="1h"), fire=hr.per_row())
        .named("features")
    )
    features.show()
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(tx, Tx("a", 9, h.at("12:00:30")), Tx("a", 1, h.at("12:00:00")), Tx("a", 2, h.at("12:01:00")))
        h.epoch(watermark="12:01")
        assert [(row.n, row.most) for row in h.take(features)] == [(1, 1), (2, 9), (2, 9)]


@pytest.mark.parametrize("point", ["before_publish", "published"])
def test_horizons_go_on_after_a_crash(point: str) -> None:
    app, tx = program()
    features = tx.key_by(Tx.card).aggregate(n=hr.count(over="1h"), all=hr.collect("cents", over="1h")).named("f")
    features.show()
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(tx, Tx("a", 1, h.at("12:00")))
        h.epoch(watermark="12:00")
        h.take(features)
        h.push(tx, Tx("a", 2, h.at("12:59")))
        h.crash(point, watermark="12:59")
        h.epoch(watermark="12:59")
        h.push(tx, Tx("a", 3, h.at("13:00")))
        h.epoch(watermark="13:00")
        assert h.take(features)[-1].all == [2, 3]


def test_what_is_known_of_a_silent_key_goes_with_its_rows() -> None:
    app, tx = program()
    features = tx.key_by(Tx.card).aggregate(n=hr.count(over="1h")).named("features").queryable()
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(tx, Tx("a", 1, h.at("12:00")))
        h.epoch(watermark="12:30")
        assert h.state(features, key="a").n == 1
        h.push(tx, Tx("b", 1, h.at("13:40")))
        h.epoch(watermark="13:40")
        assert h.state(features, key="a") is None
        assert [key for key, _ in hr.Store(h.store).state("features").scan()] == ["b"]


def test_horizons_need_event_time() -> None:
    _, tx = program(timed=False)
    with pytest.raises(ProgramError, match="n cannot have over=: there is no event time here") as caught:
        tx.key_by(Tx.card).aggregate(n=hr.count(over="1h"))
    assert Path(__file__).name in caught.value.where
    assert "time=Tx.at" in caught.value.next_move


def test_a_horizon_is_a_span_above_zero() -> None:
    for over in ("0s", hr.Duration(-1)):
        with pytest.raises(ProgramError, match="over= of sum must be greater than zero"):
            hr.sum("cents", over=over)
    with pytest.raises(ProgramError, match="cannot read over= of count"):
        hr.count(over="soon")


def test_windows_say_themselves_how_far_they_reach() -> None:
    _, tx = program()
    window = tx.key_by(Tx.card).window(hr.tumbling("1h"))
    with pytest.raises(ProgramError, match="over= is for rolling aggregates") as caught:
        window.aggregate(n=hr.count(over="10m"))
    assert Path(__file__).name in caught.value.where


def test_explain_tells_how_long_rows_are_kept() -> None:
    app, tx = program()
    tx.key_by(Tx.card).aggregate(n=hr.count(over="1h"), total=hr.sum("cents")).named("features").show()
    told = app.explain()
    assert "features: aggregate n, total" in told
    assert "keeps rows for 1h of event time" in told


def test_what_may_be_missing_is_optional() -> None:
    _, tx = program()
    node = tx.key_by(Tx.card).aggregate(least=hr.min("cents", over="1h"), total=hr.sum("cents", over="1h")).node
    assert node.codec.annotations["least"] == int | None
    assert node.codec.annotations["total"] is int
