"""What a live table holds, and what stands out in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.shell.live import LiveTable
from tests.shell.sessions import COUNTS, changes


def rows_of(table: LiveTable) -> list[tuple[object, ...]]:
    return [cells for _, cells in table.newest(1000)]


def test_append_rows_pile_up_and_only_the_newest_stand_out() -> None:
    table = LiveTable(COUNTS, None)
    table.apply(changes([("a", 1)]))
    table.apply(changes([("a", 1), ("b", 2)]))
    assert table.newest(1000) == [("", ("a", 1)), ("+", ("a", 1)), ("+", ("b", 2))]


def test_rows_without_a_key_are_taken_back_one_by_one() -> None:
    table = LiveTable(COUNTS, None)
    table.apply(changes([("a", 1), ("a", 1), ("b", 2)], ["+I", "+I", "+I"]))
    table.apply(changes([("a", 1), ("b", 2)], ["-D", "-D"]))
    assert rows_of(table) == [("a", 1)]


def test_where_the_screen_is_short_changed_rows_are_shown() -> None:
    table = LiveTable(COUNTS, ["shop"])
    table.apply(changes([(f"s{i}", i) for i in range(9)]))
    table.apply(changes([("s0", 100)], ["+U"]))
    assert ("~", ("s0", 100)) in table.newest(3)
    assert len(table.newest(3)) == 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=30))
def test_a_keyed_table_is_what_a_dictionary_would_hold(steps: list[tuple[str, int, bool]]) -> None:
    table, held = LiveTable(COUNTS, ["shop"]), dict[str, int]()
    for shop, n, goes in steps:
        table.apply(changes([(shop, n)], ["-D" if goes else "+U"]))
        held.pop(shop, None) if goes else held.update({shop: n})
    assert sorted(rows_of(table)) == sorted(held.items())
