"""``reduce`` with an inverse over rows that are taken back: random programs come to what the rows that hold say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import EpochFailed, FunctionFailed, ProgramError
from headrace.testing import Harness


class Tx(hr.Record):
    card: str
    region: str
    n: int
    at: hr.Timestamp = hr.Timestamp(0)


def plus(a: Tx, b: Tx) -> Tx:
    return a.replace(n=a.n + b.n, card="*")


def minus(a: Tx, b: Tx) -> Tx:
    return a.replace(n=a.n - b.n)


def regions(**options: Any) -> tuple[hr.App, hr.Stream[Tx], hr.Stream[Tx]]:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    newest = tx.key_by("card").latest().named("newest").where("n > 0").map(lambda row: row.replace(card="*"), output=Tx)
    return app, tx, newest.key_by("region").reduce(options.pop("fn", plus), **options).named("regions")


EPOCHS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.integers(-1, 9)), max_size=5),
        st.sampled_from(["", "", "", "before_publish"]),
    ),
    max_size=5,
)


@settings(max_examples=25, deadline=None)
@given(epochs=EPOCHS, shards=st.sampled_from([1, 3]))
def test_what_goes_is_taken_out_again(epochs: Any, shards: int) -> None:
    app, tx, out = regions(inverse=minus)
    held: dict[str, tuple[str, int]] = {}
    shown: dict[str, Tx] = {}
    number = 0
    with Harness(app, parallelism=shards) as h:
        for rows, point in epochs:
            for card, region, n in rows:
                number += 1
                h.push(tx, Tx(card, region, n, hr.Timestamp(number)))
                held[card] = region, n
            if point:
                h.crash(at=point)
            h.epoch()
            for sign, row in h.take_changes(out):
                if sign in ("-U", "-D"):
                    assert shown.pop(row.region) == row, "byte for byte what was given out"
                else:
                    assert row.region not in shown
                    shown[row.region] = row
            wanted: dict[str, int] = {}
            for region, n in held.values():
                if n > 0:
                    wanted[region] = wanted.get(region, 0) + n
            assert {region: row.n for region, row in shown.items()} == wanted


def test_a_key_whose_rows_came_and_went_with_one_epoch_says_nothing() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    changes = tx.key_by("card").upserts(deleted="n < 0").named("changes")
    out = changes.key_by("region").reduce(plus, inverse=minus).named("regions")
    assert str(out.node.kind) == "changelog by region"
    out.show()
    with Harness(app) as h:
        h.push(tx, Tx("a", "x", 5))
        h.epoch()
        h.push(tx, Tx("b", "y", 2), Tx("b", "y", -1), Tx("a", "x", -1))
        h.epoch()
        h.push(tx, Tx("c", "x", 3))
        h.epoch()
        assert [(op, row.region, row.n) for op, row in h.take_changes(out)] == [
            ("+I", "x", 5), ("-D", "x", 5), ("+I", "x", 3)
        ]  # fmt: skip


def test_what_cannot_be_had_is_refused_with_the_way_out() -> None:
    with pytest.raises(ProgramError, match="every version") as refused:
        regions()
    assert "inverse=" in refused.value.next_move and ".changes()" in refused.value.next_move
    with pytest.raises(ProgramError, match=r"fire=hr\.per_row\(\)"):
        regions(inverse=minus, fire=hr.per_row())
    with pytest.raises(ProgramError, match="inverse= of reduce"):
        regions(inverse="minus")


def test_an_inverse_that_fails_or_changes_the_key_stops_the_epoch_and_says_of_which_step() -> None:
    def wrong(a: Tx, b: Tx) -> Tx:
        return a.replace(region="z")

    app, tx, out = regions(inverse=wrong)
    out.show()
    with Harness(app) as h:
        h.push(tx, Tx("a", "x", 1, hr.Timestamp(1)), Tx("b", "x", 1, hr.Timestamp(2)))
        h.epoch()
        h.push(tx, Tx("a", "y", 1, hr.Timestamp(3)))
        with pytest.raises((EpochFailed, FunctionFailed), match="regions") as failed:
            h.epoch()
        assert "region" in str(failed.value)
