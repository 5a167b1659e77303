"""Regular joins over rows that come and go, against naive joins of all rows that hold; and what they keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import EpochFailed
from headrace.joins import candidates, results
from headrace.joins.regular import UNKNOWN, RegularJoinOperator
from headrace.joins.spec import RegularJoin
from headrace.model.row_kind import AFTER, BEFORE, DELETE, INSERT
from headrace.model.rows import codec_of
from headrace.state.ttl import ttl
from headrace.testing.rig import EmittedRow, OperatorRig, RowOfKind
from tests.joins.streams import KEYS, Left, Pair, Right, join_rig, left, right

HOWS = ("inner", "left", "right", "full", "semi", "anti")


def join(how: str = "inner", on: str | None = None, unique: Any = (None, None), **more: Any) -> RegularJoinOperator:
    spec = RegularJoin(how, (True, True), unique, on=on, **more)  # type: ignore[arg-type]
    return RegularJoinOperator("join", codec_of(Left), codec_of(Right), spec)


# -- the join by definition -------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """The rows of both sides that hold."""

    lefts: Counter[Left]
    rights: Counter[Right]


def matches(mine: Left, other: Right, on: str | None) -> bool:
    return mine.key is not None and mine.key == other.name and (on is None or mine.n < len(other.text))


def naive(held: Held, how: str, on: str | None) -> Counter[Any]:
    """What the join of all rows that hold has, each as often as it has it, with its time."""
    found: Counter[Any] = Counter()
    met_left, met_right = Counter[Left](), Counter[Right]()
    for mine, count in held.lefts.items():
        for other, number in held.rights.items():
            if matches(mine, other, on):
                met_left[mine] += number
                met_right[other] += count
                if how not in ("semi", "anti"):
                    found[Pair(mine, other), max(mine.at, other.at)] += count * number
    for mine, count in held.lefts.items():
        if how in ("left", "full") and not met_left[mine]:
            found[Pair(mine, None), mine.at] += count
        if how in ("semi", "anti") and bool(met_left[mine]) is (how == "semi"):
            found[mine, mine.at] += count
    for other, count in held.rights.items():
        if how in ("right", "full") and not met_right[other]:
            found[Pair(None, other), other.at] += count
    return found


def fold(held: Counter[Any], emitted: Sequence[EmittedRow]) -> None:
    """Rows whose key is null go through as they come, in any order; all others never hold less than not at all."""
    for row in emitted:
        held[row.value, row.at] += -1 if row.kind in (BEFORE, DELETE) else 1
        assert held[row.value, row.at] >= 0 or is_null(row.value), f"{row} takes back a row that does not hold"
    assert all(count >= 0 for count in held.values())


def is_null(value: Any) -> bool:
    rows = [value] if isinstance(value, Left) else [value.left, value.right]
    return any(key(row) is None for key, row in zip(KEYS, rows) if row is not None)


def check_kinds(emitted: Sequence[EmittedRow]) -> None:
    for row, after in pairwise([*emitted, EmittedRow(None, None)]):
        assert (row.kind == BEFORE) is (after.kind == AFTER), "halves of pairs lie side by side"
        assert row.kind != BEFORE or row[:2] != after[:2], "a pair has no equal halves"


# -- epochs that come and go ------------------------------------------------------------------------------------------

LEFTS = st.builds(left, st.sampled_from(["a", "b", None]), st.integers(0, 2), st.integers(0, 2))
RIGHTS = st.builds(right, st.sampled_from(["a", "b", None]), st.integers(0, 2), st.sampled_from(["", "x", "yy"]))


@st.composite
def changing(draw: st.DrawFn) -> list[tuple[list[RowOfKind], list[RowOfKind]]]:
    """Some epochs; what goes in one of them had come before it, or comes with it."""
    held: tuple[list[Any], list[Any]] = ([], [])
    epochs = []
    for _ in range(draw(st.integers(1, 4))):
        made: tuple[list[RowOfKind], list[RowOfKind]] = ([], [])
        for port, rows in enumerate((LEFTS, RIGHTS)):
            for row in draw(st.lists(rows, max_size=4)):
                held[port].append(row)
                made[port].append(RowOfKind(row, INSERT))
            for place in draw(st.lists(st.integers(0, 9), max_size=3)):
                if place < len(held[port]):
                    made[port].append(RowOfKind(held[port].pop(place), DELETE))
        epochs.append((draw(st.permutations(made[0])), draw(st.permutations(made[1]))))
    return epochs


def played(rig: OperatorRig, epochs: Any, *, folds: bool, one_by_one: bool) -> Iterator[list[EmittedRow]]:
    for lefts, rights in epochs:
        if one_by_one:
            yield rig.epoch(*[(0, [row]) for row in lefts], *[(1, [row]) for row in rights])
        else:
            yield rig.epoch((1, rights), (0, lefts))
        if folds:
            rig.fold(2)


UNIQUE = st.sampled_from([(None, None), (("n",), ("text",)), (("key", "n"), None)])


@given(
    changing(), st.sampled_from(HOWS), st.sampled_from([None, "`left`.n < length(`right`.text)"]), UNIQUE,
    st.booleans(), st.booleans(), st.sampled_from([1, 1 << 40]), st.sampled_from([1, 3]),
)  # fmt: skip
def test_any_changes_come_to_what_a_join_of_the_rows_that_hold_comes_to(
    epochs: Any, how: str, on: str | None, unique: Any, folds: bool, one_by_one: bool, limit: int, parallelism: int
) -> None:
    rig = join_rig(join(how, on, unique), outlets=(), overlay_limit_bytes=limit, parallelism=parallelism)
    held, found = Held(Counter(), Counter()), Counter[Any]()
    for number, ((lefts, rights), emitted) in enumerate(
        zip(epochs, played(rig, epochs, folds=folds, one_by_one=one_by_one), strict=True)
    ):
        for rows, side in ((lefts, held.lefts), (rights, held.rights)):
            for row in rows:
                side[row.value] += -1 if row.kind == DELETE else 1
        fold(found, emitted)
        check_kinds(emitted)
        assert +found == naive(held, how, on), f"epoch {number}"


@given(changing(), st.sampled_from(HOWS))
def test_what_comes_and_goes_with_an_epoch_leaves_nothing(epochs: Any, how: str) -> None:
    rig = join_rig(join(how), outlets=())
    undone = [
        tuple([row._replace(kind=DELETE if row.kind == INSERT else INSERT) for row in side] for side in epoch)
        for epoch in reversed(epochs)
    ]
    found = Counter[Any]()
    for emitted in played(rig, [*epochs, *undone], folds=False, one_by_one=False):
        fold(found, emitted)
    assert not +found
    rig.fold()
    assert not rig.runs, "a row that is gone leaves nothing in the store"


# -- single cases -----------------------------------------------------------------------------------------------------


def told(emitted: Sequence[EmittedRow]) -> list[str]:
    signs = ("+I", "-U", "+U", "-D")
    return [
        f"{signs[row.kind or 0]} {'_' if row.value.left is None else row.value.left.n}"
        f"+{'_' if row.value.right is None else row.value.right.text}"
        for row in emitted
    ]


def came(*rows: Any) -> list[RowOfKind]:
    return [RowOfKind(row, INSERT) for row in rows]


def gone(*rows: Any) -> list[RowOfKind]:
    return [RowOfKind(row, DELETE) for row in rows]


def test_a_lone_row_is_withdrawn_when_its_first_partner_comes_and_given_back_when_the_last_goes() -> None:
    rig = join_rig(join("left"), outlets=())
    x, y = right("a", 2, "x"), right("a", 3, "y")
    assert told(rig.epoch((0, came(left("a", 1, 1))))) == ["+I 1+_"]
    assert told(rig.epoch((1, came(x)))) == ["-D 1+_", "+I 1+x"]
    assert told(rig.epoch((1, came(y)))) == ["+I 1+y"]
    assert told(rig.epoch((1, gone(x)))) == ["-D 1+x"]
    assert told(rig.epoch((1, gone(y)))) == ["-D 1+y", "+I 1+_"]


def test_a_row_that_is_replaced_gives_pairs_of_what_goes_and_what_comes() -> None:
    rig = join_rig(join("left", unique=(("key", "n"), ("name",)), single=(False, True)), outlets=())
    old, new = right("a", 1, "old"), right("a", 2, "new")
    rig.epoch((0, came(left("a", 1, 1), left("a", 1, 2))), (1, came(old)))
    assert told(rig.epoch((1, [*gone(old), *came(new)]))) == ["-U 1+old", "+U 1+new", "-U 2+old", "+U 2+new"]
    assert told(rig.epoch((1, gone(new)))) == ["-U 1+new", "+U 1+_", "-U 2+new", "+U 2+_"]


def test_equal_rows_count() -> None:
    rig = join_rig(join("full"), outlets=())
    one, other = left("a", 1, 1), right("a", 1, "x")
    assert told(rig.epoch((0, came(one, one)), (1, came(other)))) == ["+I 1+x"] * 2
    assert told(rig.epoch((1, came(other)))) == ["+I 1+x"] * 2
    assert told(rig.epoch((0, gone(one)))) == ["-D 1+x"] * 2
    assert told(rig.epoch((0, gone(one)))) == ["-D 1+x"] * 2 + ["+I _+x"] * 2


def test_more_pairs_than_are_given_out_at_once_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PAIRS", 10)
    monkeypatch.setattr(candidates, "HELD_PAIRS", 20)
    rig = join_rig(join("full", unique=(("key", "n"), ("name",)), single=(False, True)), outlets=())
    lefts = [left(key, 0, n) for key in "abc" for n in range(9)]
    old, new = [right(key, 0, "old") for key in "abc"], [right(key, 1, "new") for key in "abc"]
    rig.epoch((0, came(*lefts)))
    found = told(rig.epoch((1, came(*old))))
    assert Counter(each[:2] for each in found) == {"-D": 27, "+I": 27}
    replaced = rig.epoch((1, [*gone(*old), *came(*new)]))
    check_kinds(replaced)
    assert Counter(row.kind for row in replaced) == {BEFORE: 27, AFTER: 27}, "both halves of a pair lie in one piece"


def test_a_row_that_goes_without_having_come_stops_the_epoch_and_is_named_by_step_and_key() -> None:
    rig = join_rig(join(), outlets=())
    with pytest.raises(EpochFailed, match="more rows were taken out of the step 'join' than had come") as caught:
        rig.epoch((0, gone(left("a", 1, 1))))
    assert caught.value.found == "1 row less than none for key a"


def test_a_row_that_goes_when_it_has_expired_is_counted_and_not_applied() -> None:
    rig = join_rig(join("left", ttl=ttl("10us")), outlets=())
    rig.epoch((0, came(left("a", 1, 1))), clock=0)
    assert told(rig.epoch((0, gone(left("a", 1, 1))), clock=50)) == []
    assert rig.report.counters == {UNKNOWN: 1}
    rig.epoch(clock=99)
    rig.fold()
    assert not rig.runs


def test_a_row_that_comes_again_begins_to_live_anew() -> None:
    rig = join_rig(join("left", ttl=ttl("10us")), outlets=())
    rig.epoch((0, came(left("a", 1, 1))), clock=0)
    rig.epoch((0, came(left("a", 1, 1))), clock=8)
    rig.fold()
    assert told(rig.epoch((1, came(right("a", 1, "x"))), clock=15)) == ["-D 1+_"] * 2 + ["+I 1+x"] * 2


def test_keys_of_one_hash_are_joined_apart() -> None:
    rig = OperatorRig(join("full"), (Left, Right), KEYS, hash_of=lambda key: 7)
    rig.epoch((0, came(left("a", 1, 1), left("b", 1, 2))), (1, came(right("a", 1, "x"))))
    assert sorted(told(rig.epoch((1, came(right("b", 1, "y")))))) == ["+I 2+y", "-D 2+_"]
    rig.fold()
    assert told(rig.epoch((1, gone(right("a", 1, "x"))))) == ["-D 1+x", "+I 1+_"]
