"""Joins as they are said: names, SQL over both sides, and the mistakes that are found while a program is built."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import ExpressionError
from tests.testing.joined_shop import Payment, Settled, Shop, Untimed, Watch


def test_names_are_the_identity_of_a_join() -> None:
    shop = Shop()
    left, right = shop.keyed()
    pairs = left.join(right, within=("0s", "1h"))
    rows = pairs.select(id="left.id")
    rows.write(hr.sink.collect())
    with pytest.raises(hr.ProgramError, match="this join keeps state and has no name"):
        shop.app.explain()
    rows.named("settled")
    assert pairs.node.name == "settled"
    rows.named("ids")
    assert (pairs.node.name, rows.node.name) == ("settled", "ids")
    assert "settled: join" in shop.app.explain()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda s: s.keyed()[0].join(s.payments, within=None), "join takes a keyed stream"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=("1h", "0s")), "nothing between its bounds"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=("0s", "0s"), bounds="[)"), "nothing between"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within="1h"), "within= says how far apart"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=("0s", "1h"), bounds="["), "there is no bounds"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=None, how="outer"), "there is no how='outer'"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=("0s", "1h"), keep="all"), "keep= cannot be combined with"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=("0s", "1h"), ttl="1h"), "ttl= cannot be combined with"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=None, bounds="()"), "bounds= cannot be combined with"),
        (lambda s: s.keyed()[0].join(_untimed(s), within=("0s", "1h")), "needs event time on both sides"),
        (lambda s: s.keyed()[0].join_asof(_untimed(s)), "join_asof needs event time on both sides"),
        (lambda s: s.keyed()[0].join_asof(s.keyed()[1], tolerance=hr.seconds(-1)), "tolerance cannot be negative"),
        (lambda s: s.keyed()[0].join(s.payments.key_by(Payment.cents), within=None),
         "the keys of the two sides are never equal"),
        (lambda s: s.keyed()[0].connect(s.payments.key_by(Payment.cents)), "the keys of the two sides are never equal"),
        (lambda s: s.keyed()[0].join(s.keyed()[1].latest().named("x").key_by("order"), within=("0s", "1h")),
         "cannot take updates"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=None, keep="latest", on="left.cents > 0"),
         "on= cannot be combined with keep="),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=("0s", "1h"), how="semi"), "how= cannot be combined with"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=None, on="left.cents"), "condition"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=None, on="cents > 0"), "'cents' needs its side"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=None).unmatched_left, "this join has no left unmatched rows"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=hr.rows(3)), "a join within windows needs windows that end"),
        (lambda s: s.keyed()[0].co_group(s.keyed()[1], "1h"), "co_group needs windows that end"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=hr.session(hr.col("cents"))), "sessions with a fixed gap"),
        (lambda s: s.keyed()[0].join(_untimed(s), within=hr.tumbling("1h")), "needs event time on both sides"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=hr.tumbling("1h"), keep="all"), "keep= cannot be combined"),
        (lambda s: s.keyed()[0].join(s.keyed()[1], within=None).where("left.cents > 0"), "a join has no 'where'"),
        (lambda s: s.keyed()[0].connect(s.keyed()[1]).process(Watch), "process takes an instance of Watch"),
        (lambda s: s.keyed()[1].connect(s.keyed()[0]).process(Watch()), "Watch takes rows of another type"),
    ],
)  # fmt: skip
def test_mistakes_are_found_while_a_program_is_built(build: Any, words: str) -> None:
    with pytest.raises(hr.ProgramError, match=words) as error:
        build(Shop())
    assert "test_joins.py" in error.value.where


def _untimed(shop: Shop) -> hr.KeyedStream[Untimed, str]:
    return shop.app.read("untimed", hr.source.items([]), Untimed).key_by(Untimed.order)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": "id"}, "'id' needs its side, left or right"),
        ({"id": "left.ids"}, "left has the fields id, at, cents, not ids"),
        ({"id": "left.id +"}, "expression"),
    ],
)
def test_columns_of_a_join_belong_to_a_side(columns: dict[str, str], words: str) -> None:
    left, right = Shop().keyed()
    pairs = left.join(right, within=("0s", "1h"))
    with pytest.raises(ExpressionError, match=words):
        pairs.select(**columns)


def test_a_field_that_both_sides_have_must_be_said() -> None:
    left, right = Shop().keyed()
    with pytest.raises(hr.ProgramError, match="both sides have a column 'cents'"):
        left.join(right, within=("0s", "1h")).select(Settled, id="left.id")


def test_a_field_that_must_have_a_value_is_not_filled_from_a_side_that_may_have_no_row() -> None:
    left, right = Shop().keyed()
    pairs = left.join(right, within=("0s", "1h"), how="left")
    with pytest.raises(hr.ProgramError, match=r"Settled\.cents must have a value, and the right side may have no row"):
        pairs.select(Settled, id="left.id", cents="right.cents")


def test_a_join_explains_itself() -> None:
    shop = Shop()
    left, right = shop.keyed()
    left.join(right, within=("-5m", "1h"), how="left").named("settled").select(id="left.id").write(hr.sink.collect())
    text = shop.app.explain()
    assert "left join, right from -5m to 1h after left" in text
    assert "keeps left rows for 1h, right rows for 5m of event time" in text
