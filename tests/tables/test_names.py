"""Names of a query's steps: golden, because a name that changes loses what was kept under it."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError
from tests.tables.playing import TABLES, build

TWO_LEVELS = "SELECT n, COUNT(*) AS cards FROM (SELECT card, COUNT(*) AS n FROM tx GROUP BY card) GROUP BY n"


def step_names(query: str) -> list[str]:
    app, _, _ = build(query, "q")
    return [node.name for node in app.nodes if node.name is not None and node.name not in TABLES]


GOLDEN = {
    "SELECT card, COUNT(*) AS n FROM tx GROUP BY card": ["q"],
    TWO_LEVELS: ["q_groups_95a525", "q"],
    "SELECT DISTINCT card FROM tx": ["q"],
    "SELECT card FROM tx UNION SELECT card FROM refunds": ["q"],
    "SELECT t.card, g.n FROM tx t JOIN (SELECT card, COUNT(*) AS n FROM refunds GROUP BY card) g ON t.card = g.card": [
        "q_groups_4d6fff",
        "q",
    ],
}


@pytest.mark.parametrize("query", GOLDEN)
def test_steps_have_the_names_they_always_had(query: str) -> None:
    assert step_names(query) == GOLDEN[query]


def test_what_a_query_computes_may_change_under_the_names_of_its_steps() -> None:
    changed = TWO_LEVELS.replace("COUNT(*) AS n", "COUNT(*) AS n, MAX(cents) AS m").replace(
        "FROM tx", "FROM tx WHERE cents > 1"
    )
    assert step_names(changed) == step_names(TWO_LEVELS)


def test_the_order_in_which_subqueries_stand_means_nothing_to_their_names() -> None:
    a = "(SELECT card, COUNT(*) AS n FROM tx GROUP BY card) a"
    b = "(SELECT card, COUNT(*) AS n FROM refunds GROUP BY card) b"
    forth, back = (f"SELECT a.n, b.n AS m FROM {one} JOIN {two} ON a.card = b.card" for one, two in ((a, b), (b, a)))
    assert sorted(step_names(forth))[1:] == sorted(step_names(back))[1:]


def test_steps_alike_in_all_but_what_they_compute_have_names_of_their_own() -> None:
    a, b = (
        "(SELECT card, SUM(cents) AS n FROM tx WHERE cents > 9 GROUP BY card) a",
        "(SELECT card, COUNT(*) AS n FROM tx GROUP BY card) b",
    )
    names = step_names(f"SELECT a.n, b.n AS m FROM {a} JOIN {b} ON a.card = b.card")
    assert len(set(names)) == 3


def test_a_query_that_stands_in_another_twice_is_made_once() -> None:
    counts = "(SELECT card, COUNT(*) AS n FROM tx GROUP BY card)"
    names = step_names(f"SELECT a.card, b.card AS other FROM {counts} a JOIN {counts} b ON a.n = b.n")
    assert len(names) == 2


def test_a_query_is_named_later_with_all_its_steps() -> None:
    app = hr.App("shop")
    app.read("tx", hr.source.items([]), TABLES["tx"][0], time="ts")
    result: Any = app.sql(TWO_LEVELS)
    assert [node.name for node in app.nodes if node.stateful] == [None, None]
    result.named("q", was="old")
    assert [(node.name, node.was) for node in app.nodes if node.stateful] == [
        ("q_groups_95a525", "old_groups_95a525"),
        ("q", "old"),
    ]


@pytest.mark.parametrize(
    "query", ["SELECT card, COUNT(*) AS n FROM tx GROUP BY card", "SELECT LAG(cents) OVER (ORDER BY ts) AS n FROM tx"]
)
def test_a_query_that_keeps_state_needs_a_name(query: str) -> None:
    app = hr.App("shop")
    app.read("tx", hr.source.items([]), TABLES["tx"][0], time="ts")
    app.sql(query).show()
    with pytest.raises(ProgramError, match="name"):
        app.explain()
