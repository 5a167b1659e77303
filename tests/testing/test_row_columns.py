"""``fire=hr.per_row("id")``: results of rolling aggregates that have columns of the row itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError
from headrace.testing import Harness


class Tx(hr.Record):
    card: str
    id: int
    at: hr.Timestamp
    cents: int = 0
    note: str | None = None


class Scored(hr.Record):
    card: str
    id: float
    total: int
    more: str = "-"


def stream() -> tuple[hr.App, hr.Stream[Tx]]:
    app = hr.App("columns")
    return app, app.read("tx", hr.source.items([]), Tx, time=Tx.at)


def results(build: Callable[[hr.Stream[Tx]], hr.Stream[Any]]) -> list[Any]:
    app, tx = stream()
    step = build(tx)
    step.show()
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(tx, Tx("a", 1, h.at("12:00:00"), 5, "x"), Tx("b", 2, h.at("12:00:01"), 7))
        h.push(tx, Tx("a", 3, h.at("12:00:02"), 2))
        h.epoch()
        h.push(tx, Tx("a", 4, h.at("12:00:03"), 1, "y"))
        h.epoch()
        rows = sorted(h.take(step), key=lambda row: row.id)
    return [tuple(getattr(row, name) for name in row.__struct_fields__) for row in rows]


def test_columns_of_the_row_stand_beside_results() -> None:
    def build(tx: hr.Stream[Tx]) -> hr.Stream[Any]:
        return tx.key_by(Tx.card).aggregate(total=hr.sum("cents"), fire=hr.per_row(Tx.id, "note")).named("totals")

    assert results(build) == [("a", 1, "x", 5), ("b", 2, None, 7), ("a", 3, None, 7), ("a", 4, "y", 8)]


def test_they_stand_beside_results_over_a_horizon_and_beside_a_key_that_a_function_makes() -> None:
    def build(tx: hr.Stream[Tx]) -> hr.Stream[Any]:
        keyed = tx.key_by(lambda row: row.card)
        return keyed.aggregate(total=hr.sum("cents", over="2s"), fire=hr.per_row("id", "card")).named("totals")

    assert results(build) == [("a", 1, "a", 5), ("b", 2, "b", 7), ("a", 3, "a", 2), ("a", 4, "a", 3)]


def test_they_fill_fields_of_the_type_that_results_are_put_into() -> None:
    def build(tx: hr.Stream[Tx]) -> hr.Stream[Any]:
        return tx.key_by(Tx.card).aggregate(Scored, total=hr.sum("cents"), fire=hr.per_row("id")).named("totals")

    assert results(build) == [("a", 1.0, 5, "-"), ("b", 2.0, 7, "-"), ("a", 3.0, 7, "-"), ("a", 4.0, 8, "-")]


def test_what_has_no_row_of_its_own_refuses_them_and_names_are_checked() -> None:
    _, tx = stream()
    keyed = tx.key_by(Tx.card)
    with pytest.raises(ProgramError, match="this is a window"):
        keyed.window(hr.tumbling("1h"), fire=hr.per_row("id")).aggregate(n=hr.count())
    with pytest.raises(ProgramError, match="this is reduce"):
        keyed.reduce(lambda a, b: a, fire=hr.per_row("id"))
    with pytest.raises(ProgramError, match="no column 'idd'"):
        keyed.aggregate(n=hr.count(), fire=hr.per_row("idd"))
    with pytest.raises(ProgramError, match="Scored has no field 'note'"):
        keyed.aggregate(Scored, total=hr.sum("cents"), fire=hr.per_row("id", "note"))
    with pytest.raises(ProgramError, match="has the name of another column"):
        keyed.aggregate(id=hr.count(), fire=hr.per_row("id"))
