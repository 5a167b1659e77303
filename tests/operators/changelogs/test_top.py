"""The first rows of each key against sorting all rows that hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import EpochFailed
from headrace.model.record import row_type
from headrace.model.row_kind import AFTER, BEFORE, DELETE, INSERT
from headrace.model.rows import codec_of
from headrace.operators.changelogs.top import TopOperator
from headrace.operators.changelogs.top_spec import OrderColumn, TopSpec
from headrace.operators.spec import StepInfo
from headrace.testing.operators import EpochInput, verify_operator
from headrace.testing.rig import OperatorRig, RowOfKind, values
from tests.operators.combined import CombinedStep


class Bid(hr.Record):
    item: str
    at: hr.Timestamp
    cents: int | None
    tags: list[int]


RANKED: Any = row_type("Row", {"item": str, "at": hr.Timestamp, "cents": int | None, "tags": list[int], "rn": int})


def bid(item: str, at: int, cents: int | None = 0, tags: tuple[int, ...] = ()) -> Bid:
    return Bid(item, hr.Timestamp(at), cents, list(tags))


def top(
    most: int, *order: OrderColumn, rank: bool = False, signed: bool = True, unique: Any = None, ties: Any = "broken"
) -> TopOperator:
    spec = TopSpec(most, order or (OrderColumn("cents"),), signed, unique, "rn" if rank else None, ties)
    return TopOperator("top", codec_of(Bid), codec_of(RANKED if rank else Bid), spec)


ORDERS: dict[str, tuple[tuple[OrderColumn, ...], Callable[[Bid], Any]]] = {
    "rising, null first": ((OrderColumn("cents"),), lambda row: (row.cents is not None, row.cents or 0)),
    "falling, null last": (
        (OrderColumn("cents", True, True),), lambda row: (row.cents is None, -(row.cents or 0)),
    ),
    "rising, null last": ((OrderColumn("cents", False, True),), lambda row: (row.cents is None, row.cents or 0)),
    "by two columns": (
        (OrderColumn("at", True, True), OrderColumn("cents", True, False)),
        lambda row: (-row.at, row.cents is not None, -(row.cents or 0)),
    ),
}  # fmt: skip


def naive(held: Counter[Any], most: int, by: Callable[[Bid], Any], ties: str) -> Counter[Any]:
    """The rows that hold with their places; those of one place in the order of their columns, or all of them."""
    found: Counter[Any] = Counter()
    for item in {each[0] for each in held}:
        rows = [bid(*each) for each in held.elements() if each[0] == item]
        rows.sort(key=lambda row: (by(row), row.at, row.cents is not None, row.cents or 0))
        orders = [by(row) for row in rows]
        for number, (row, order) in enumerate(zip(rows, orders, strict=True), 1):
            shared, dense = orders.index(order) + 1, len({each for each in orders if each <= order})
            place = {"broken": number, "shared": shared, "dense": dense}[ties]
            if place <= most:
                found[row.item, row.at, row.cents, place] += 1
    return found


BIDS = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.none() | st.integers(-1, 2) | st.just(2**40))


@st.composite
def changing(draw: st.DrawFn, *, goes: bool) -> list[list[RowOfKind]]:
    held: list[Any] = []
    epochs = []
    for _ in range(draw(st.integers(1, 4))):
        made = []
        for row in draw(st.lists(BIDS, max_size=5)):
            held.append(row)
            made.append(RowOfKind(bid(*row), INSERT))
        for place in draw(st.lists(st.integers(0, 9), max_size=4)) if goes else ():
            if place < len(held):
                made.append(RowOfKind(bid(*held.pop(place)), DELETE))
        epochs.append(draw(st.permutations(made)))
    return epochs


@given(
    st.booleans().flatmap(lambda goes: st.tuples(st.just(goes), changing(goes=goes))), st.sampled_from(list(ORDERS)),
    st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from([1, 1 << 40]), st.sampled_from([1, 3]),
    st.sampled_from(["broken", "shared", "dense"]),
)  # fmt: skip
def test_any_changes_come_to_the_first_of_the_rows_that_hold(
    made: tuple[bool, list[list[RowOfKind]]],
    order: str,
    most: int,
    rank: bool,
    folds: bool,
    limit: int,
    shards: int,
    ties: str,
) -> None:
    signed, epochs = made
    columns, by = ORDERS[order]
    operator = top(most, *columns, rank=rank, signed=signed, ties=ties)
    rig = OperatorRig(operator, Bid, lambda row: row.item, overlay_limit_bytes=limit, parallelism=shards)
    held, found = Counter[Any](), Counter[Any]()
    for epoch in epochs:
        emitted = rig.epoch(epoch)
        for each in epoch:
            row = each.value
            held[row.item, int(row.at), row.cents] += -1 if each.kind == DELETE else 1
        for out in emitted:
            row = out.value
            shown = (row.item, row.at, row.cents, row.rn) if rank else (row.item, row.at, row.cents)
            found[shown] += -1 if out.kind in (BEFORE, DELETE) else 1
            assert found[shown] >= 0, "what goes had come"
        wanted = naive(+held, most, by, ties)
        if not rank:
            wanted = sum((Counter({key[:3]: count}) for key, count in wanted.items()), Counter())
        assert +found == wanted
        if folds:
            rig.fold(2)


@pytest.mark.parametrize("ties", ["broken", "shared", "dense"])
def test_numbers_that_lie_far_apart_leave_the_rows_of_a_key_together(ties: str) -> None:
    rig = OperatorRig(top(2, OrderColumn("cents", True, True), rank=True, ties=ties), Bid, lambda row: row.item)
    some = [bid(item, 1, cents) for cents in (1, 2**40, 2) for item in "abc"]
    said = sorted((row.item, row.rn, row.cents) for row in values(rig.epoch(some)))
    assert said == [(item, place, cents) for item in "abc" for place, cents in ((1, 2**40), (2, 2))]


def test_the_place_of_a_row_is_a_unique_key_and_what_stood_there_is_replaced() -> None:
    rig = OperatorRig(top(2, OrderColumn("cents", True, True), rank=True), Bid, lambda row: row.item)
    rig.epoch([RowOfKind(bid("a", 1, 10), INSERT), RowOfKind(bid("a", 1, 20), INSERT)])
    said = [(row.kind, row.value.cents, row.value.rn) for row in rig.epoch([RowOfKind(bid("a", 2, 30), INSERT)])]
    assert said == [(BEFORE, 20, 1), (AFTER, 30, 1), (BEFORE, 10, 2), (AFTER, 20, 2)]
    said = [(row.kind, row.value.cents, row.value.rn) for row in rig.epoch([RowOfKind(bid("a", 2, 30), DELETE)])]
    assert said == [(BEFORE, 30, 1), (AFTER, 20, 1), (BEFORE, 20, 2), (AFTER, 10, 2)]


def test_where_rows_only_come_no_more_are_kept_than_are_given_out() -> None:
    rig = OperatorRig(top(2, OrderColumn("cents", True, True), signed=False), Bid, lambda row: row.item)
    for number in range(30):
        rig.epoch([bid("a", 1, number), bid("b", 1, 5)])
        rig.fold()
    assert sum(table.rows for _, opened in rig.runs for table in opened.tables.values()) <= 4


def test_columns_without_an_order_do_not_make_two_rows_one() -> None:
    rig = OperatorRig(top(2), Bid, lambda row: row.item)
    out = rig.epoch([RowOfKind(bid("a", 1, 1, (tag,)), INSERT) for tag in (1, 2, 3)])
    assert len({tuple(row.value.tags) for row in out}) == 2


def test_a_row_that_goes_without_having_come_stops_the_epoch() -> None:
    rig = OperatorRig(top(2), Bid, lambda row: row.item)
    with pytest.raises(EpochFailed, match="more rows were taken out of the step 'top' than had come"):
        rig.epoch([RowOfKind(bid("a", 1, 1), DELETE)])


@pytest.mark.parametrize("rank", [True, False])
def test_the_engine_may_run_it_as_it_likes(rank: bool) -> None:
    epochs = [
        EpochInput([bid("a", 1, 5), bid("b", 2, 1), bid("a", 3, 9)], watermark=2),
        EpochInput([bid("a", 4, 7), bid("b", 4, None), bid("c", 4, 1)], watermark=5),
        EpochInput([], watermark=9),
    ]
    verify_operator(lambda: top(2, rank=rank, signed=False), epochs, row_type=Bid, key=lambda row: row.item)


@given(
    st.lists(st.lists(BIDS, max_size=6), min_size=1, max_size=4), st.sampled_from(list(ORDERS)), st.integers(1, 2),
    st.booleans(), st.sampled_from([1, 3]),
)  # fmt: skip
def test_rows_that_are_left_out_before_the_exchange_are_not_missed(
    epochs: list[list[Any]], order: str, most: int, rank: bool, shards: int
) -> None:
    def rig_of(operator: Any) -> OperatorRig:
        return OperatorRig(operator, Bid, lambda row: row.item, parallelism=shards)

    operator = top(most, *ORDERS[order][0], rank=rank, signed=False)
    plain, combined = rig_of(operator), rig_of(combined_top(most, *ORDERS[order][0], rank=rank))
    for rows in epochs:
        given_out = []
        for rig in (plain, combined):
            out = rig.epoch([bid(*row) for row in rows[:3]], [bid(*row) for row in rows[3:]])
            given_out.append(sorted((repr(row.value), row.at, row.kind) for row in out))
        assert given_out[0] == given_out[1]
        assert plain.report.rows_in == combined.report.rows_in == len(rows)


def test_only_rows_that_may_be_among_the_first_cross_the_exchange() -> None:
    step = combined_top(2, OrderColumn("cents", True, True))
    rig = OperatorRig(step, Bid, lambda row: row.item)
    out = rig.epoch([bid("ab"[i % 2], i, i % 100) for i in range(1_000)])
    # Of a hundred prices every row of the two highest is left of each item, because they are alike.
    assert step.sent == 20
    assert {row.value.cents for row in out} == {98, 99}
    # Rows of which all are left are not looked at for a while: they pass, and the answer is the same.
    assert not rig.epoch([bid("ab"[i % 2], i, 1) for i in range(1_000)])
    assert step.sent == 1_020


def combined_top(most: int, *order: OrderColumn, rank: bool = False) -> CombinedStep:
    operator = top(most, *order, rank=rank, signed=False)
    info = StepInfo("top", (operator.taken,), operator.codec, str, ("item",))
    before = operator.spec.combined(info)
    assert before is not None
    return CombinedStep(operator, before.build())
