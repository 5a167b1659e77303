"""Rows that are taken back: random programs over random input, however it is cut, come to what plain Python says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace as hr
from headrace.errors import HeadraceError, ProgramError
from headrace.testing import Harness


class Tx(hr.Record):
    card: str
    region: str
    cents: int


class Big(hr.Record):
    region: str
    card: str
    total: int


Changes = Sequence[tuple[str, Any]]


# -- what a changelog comes to ----------------------------------------------------------------------------------------


def fold(changes: Changes) -> Counter[Any]:
    """The rows that hold after all that."""
    held: Counter[Any] = Counter()
    for sign, row in changes:
        held[row] += -1 if sign.startswith("-") else 1
        assert held[row] >= 0, f"{sign} {row} takes back a row that does not hold"
    return +held


def check_pairs(changes: Changes, key: Callable[[Any], Any]) -> None:
    """Each −U and −D is the last row that its key gave, and each −U is followed by another one."""
    last: dict[Any, Any] = {}
    for place, (sign, row) in enumerate(changes):
        of = key(row)
        if sign in ("-U", "-D"):
            assert last.pop(of) == row, f"{sign} {row} is not what {of} gave last"
        else:
            assert of not in last, f"{sign} {row} comes while {last.get(of)} holds"
            last[of] = row
        if sign == "-U":
            follows, after = changes[place + 1]
            assert follows == "+U", "what is replaced is followed by what stands in its place"
            assert after != row, "an equal pair leaves no task"


# -- programs ---------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step without state in a program, and the same in plain Python."""

    apply: Callable[[hr.Stream[Any]], hr.Stream[Any]]
    plainly: Callable[[Iterable[Any]], Iterable[Any]]


def doubled(row: Big) -> Big:
    return row.replace(total=row.total * 2)


def halves(row: Big) -> Iterable[Big]:
    for part in range(abs(row.total) % 3):
        yield row.replace(total=row.total // 2 + part)


STEPS: dict[str, Step] = {
    "where": Step(lambda rows: rows.where("total > 10"), lambda rows: (row for row in rows if row.total > 10)),
    "filter": Step(lambda rows: rows.filter(is_even), lambda rows: filter(is_even, rows)),
    "select": Step(
        lambda rows: rows.select(Big, total="total % 7"),
        lambda rows: (row.replace(total=remainder(row.total)) for row in rows),
    ),
    "map": Step(lambda rows: rows.map(doubled, output=Big), lambda rows: map(doubled, rows)),
    "flat_map": Step(
        lambda rows: rows.flat_map(halves, output=Big), lambda rows: (part for row in rows for part in halves(row))
    ),
    "map_batches": Step(lambda rows: rows.map_batches(lambda batch: batch.slice(0), Big), lambda rows: rows),
    "map_batches that drops": Step(
        lambda rows: rows.map_batches(without_odd, Big, form="polars"), lambda rows: filter(is_even, rows)
    ),
    "union": Step(
        lambda rows: rows.where("total > 3").union(rows),
        lambda rows: (row for row in rows for _ in range(1 + (row.total > 3))),
    ),
}


def is_even(row: Big) -> bool:
    return row.total % 2 == 0


def without_odd(batch: Any) -> Any:
    return batch.filter(batch["total"] % 2 == 0)


def remainder(number: int) -> int:
    """As SQL has it: with the sign of the number."""
    return abs(number) % 7 * (-1 if number < 0 else 1)


class Program(NamedTuple):
    app: hr.App
    tx: hr.Stream[Tx]
    totals: hr.Stream[Any]
    between: hr.Stream[Any]
    regions: hr.Stream[Any]
    changes: hr.Stream[Any]


def build(steps: Sequence[str], *, first: str = "aggregate") -> Program:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    by_card = tx.key_by("card")
    if first == "aggregate":
        totals: hr.Stream[Any] = by_card.aggregate(Big, total=hr.sum("cents"), region=hr.last("region")).named("totals")
    else:
        big = tx.map(lambda row: Big(row.region, row.card, row.cents), output=Big).key_by("card")
        add = lambda a, b: b.replace(total=a.total + b.total)  # noqa: E731
        totals = (big.latest() if first == "latest" else big.reduce(add)).named("totals")
    between: hr.Stream[Any] = totals
    for name in steps:
        between = STEPS[name].apply(between)
    regions = between.key_by("region").aggregate(
        cards=hr.count(), total=hr.sum("total"), least=hr.min("total"), most=hr.max("total"), mean=hr.avg("total"),
        names=hr.collect("card"), kinds=hr.count_distinct("card"), two=hr.top("total", 2),
    ).named("regions")  # fmt: skip
    changes = regions.changes(kind="op")
    changes.write(hr.sink.discard())
    regions.write(hr.sink.discard())
    return Program(app, tx, totals, between, regions, changes)


def answer(rows: Iterable[Tx], steps: Sequence[str], *, first: str = "aggregate") -> dict[str, tuple[Any, ...]]:
    """What the program comes to, computed from all rows at once."""
    totals: dict[str, Big] = {}
    for row in rows:
        before = totals.get(row.card)
        total = row.cents + (0 if before is None or first == "latest" else before.total)
        totals[row.card] = Big(row.region, row.card, total)
    between: Iterable[Big] = list(totals.values())
    for name in steps:
        between = list(STEPS[name].plainly(between))
    groups: dict[str, list[Big]] = {}
    for big in between:
        groups.setdefault(big.region, []).append(big)
    return {region: described(members) for region, members in groups.items()}


def described(rows: Sequence[Big]) -> tuple[Any, ...]:
    numbers = [row.total for row in rows]
    names = sorted(row.card for row in rows)
    return (
        len(rows), sum(numbers), min(numbers), max(numbers), sum(numbers) / len(numbers), tuple(names), len(set(names)),
        tuple(sorted(numbers)[::-1][:2]),
    )  # fmt: skip


def held_of(changes: Changes) -> dict[str, tuple[Any, ...]]:
    check_pairs(changes, lambda row: row.region)
    held = {}
    last = {row.region: (sign, row) for sign, row in changes}
    for region, (sign, row) in last.items():
        if sign != "-D":
            held[region] = (
                row.cards, row.total, row.least, row.most, row.mean, tuple(row.names), row.kinds, tuple(row.two),
            )  # fmt: skip
    return held


def random_rows(chance: random.Random, count: int) -> list[Tx]:
    return [Tx(chance.choice("abcd"), chance.choice("xyz"), chance.randint(-8, 12)) for _ in range(count)]


def random_cuts(chance: random.Random, rows: Sequence[Any]) -> list[Sequence[Any]]:
    cuts = sorted(chance.sample(range(len(rows) + 1), min(len(rows), chance.randint(0, 6))))
    return [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)])]


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_come_to_what_all_rows_at_once_come_to(seed: int) -> None:
    chance = random.Random(seed)
    steps = chance.choices(list(STEPS), k=chance.randint(0, 3))
    first = chance.choice(["aggregate", "reduce", "latest"])
    rows = random_rows(chance, chance.randint(0, 25))
    program = build(steps, first=first)
    given: list[tuple[str, Any]] = []
    with Harness(program.app, parallelism=chance.randint(1, 3)) as h:
        for part in random_cuts(chance, rows):
            h.push(program.tx, *part)
            if chance.random() < 0.3:
                h.crash(at=chance.choice(["before_publish", "outputs_staged", "published"]))
                h.epoch()
            else:
                h.epoch()
            given += h.take_changes(program.regions)
            if chance.random() < 0.3:
                h.maintain()
    assert held_of(given) == answer(rows, steps, first=first), f"seed {seed}: {first}, {steps}"


@pytest.mark.parametrize("seed", range(12))
def test_an_epoch_that_is_played_taken_back_and_played_again_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    steps = chance.choices(list(STEPS), k=chance.randint(0, 3))
    rows = random_rows(chance, 12)
    program = build(steps)
    given: list[tuple[str, Any]] = []
    with Harness(program.app, parallelism=2) as h:
        h.push(program.tx, *rows)
        h.epoch()
        given += h.take_changes(program.regions)
        before = held_of(given)
        more = random_rows(chance, 6)
        # Taken back: the opposite amount, and each card where it was.
        where = {row.card: row.region for row in rows}
        back = [Tx(row.card, where.get(row.card, row.region), -row.cents) for row in more if row.card in where]
        for part in (
            [row for row in more if row.card in where],
            back,
            [row for row in more if row.card in where],
            back,
        ):
            h.push(program.tx, *part)
            h.epoch()
            given += h.take_changes(program.regions)
        assert held_of(given) == before, f"seed {seed}: {steps}"


# -- single claims ----------------------------------------------------------------------------------------------------


def test_a_row_that_a_condition_stops_to_hold_for_is_gone() -> None:
    program = build(["where"])
    with Harness(program.app) as h:
        for cents in (20, 3, -20, -1, 30):
            h.push(program.tx, Tx("a", "x", cents))
            h.epoch()
        row = lambda total: Big("x", "a", total)  # noqa: E731
        assert h.take_changes(program.between) == [
            ("+I", row(20)), ("-U", row(20)), ("+U", row(23)), ("-D", row(23)), ("+I", row(32)),
        ]  # fmt: skip
        assert h.take(program.totals) == [row(20), row(23), row(3), row(2), row(32)], "versions, as ever"


def test_a_pair_whose_halves_are_the_same_leaves_no_task() -> None:
    program = build(["select"])
    with Harness(program.app) as h:
        for cents in (1, 7, 7, 1):
            h.push(program.tx, Tx("a", "x", cents))
            h.epoch()
        assert [sign for sign, _ in h.take_changes(program.between)] == ["+I", "-U", "+U"]


def test_a_group_without_rows_is_gone_and_so_is_its_state() -> None:
    program = build([])
    with Harness(program.app) as h:
        h.push(program.tx, Tx("a", "x", 1), Tx("b", "x", 2))
        h.epoch()
        h.push(program.tx, Tx("a", "y", 1), Tx("b", "y", 2))
        h.epoch()
        given = [(sign, row.region) for sign, row in h.take_changes(program.regions)]
        assert sorted(given) == [("+I", "x"), ("+I", "y"), ("-D", "x")]
        assert h.state(program.regions, key="x") is None
        assert h.state(program.regions, key="y").cards == 2


def test_what_is_kept_of_the_rows_given_out_is_a_state_like_any_other() -> None:
    program = build([])
    with Harness(program.app) as h:
        h.push(program.tx, Tx("a", "x", 1))
        h.epoch()
        store = hr.Store(h.store)
        assert store.state("totals_normalised")["a"] == {"region": "x", "card": "a", "total": 1}
        assert store.state("regions")["x"]["total"] == 1


def test_a_changelog_that_aggregates_of_nothing_else_leaves_is_folded_from_its_rows() -> None:
    program = build(["flat_map", "map"])
    with Harness(program.app, parallelism=3) as h:
        rows = random_rows(random.Random(5), 40)
        for start in range(0, 40, 8):
            h.push(program.tx, *rows[start : start + 8])
            h.epoch()
        totals: dict[str, Big] = {}
        for row in rows:
            held = totals.get(row.card)
            totals[row.card] = Big(row.region, row.card, row.cents + (0 if held is None else held.total))
        expected = Counter(doubled(part) for big in totals.values() for part in halves(big))
        assert fold(h.take_changes(program.between)) == expected


def test_append_rows_in_a_union_with_rows_that_are_taken_back_all_come_in() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    fixed = app.read("fixed", hr.source.items([]), Big)
    totals = tx.key_by("card").aggregate(Big, total=hr.sum("cents"), region=hr.last("region")).named("totals")
    counts = totals.union(fixed).key_by("region").aggregate(n=hr.count(), total=hr.sum("total")).named("counts")
    counts.write(hr.sink.discard())
    with Harness(app) as h:
        h.push(fixed, Big("x", "f", 100))
        h.push(tx, Tx("a", "x", 1))
        h.epoch()
        h.push(tx, Tx("a", "x", 1))
        h.epoch()
        assert [(sign, row.n, row.total) for sign, row in h.take_changes(counts)] == [
            ("+I", 2, 101), ("-U", 2, 101), ("+U", 2, 102),
        ]  # fmt: skip


def test_changes_with_their_kind_are_rows_of_their_own() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(n=hr.count()).named("totals")
    changes = totals.changes(kind="op")
    plain = tx.changes(kind="op")
    changes.write(hr.sink.discard())
    plain.write(hr.sink.discard())
    with Harness(app) as h:
        h.push(tx, Tx("a", "x", 1))
        h.epoch()
        h.push(tx, Tx("a", "x", 1))
        h.epoch()
        assert [(row.op, row.n) for row in h.take(changes)] == [("+I", 1), ("-U", 1), ("+U", 2)]
        assert [row.op for row in h.take(plain)] == ["+I", "+I"]
        with pytest.raises(ProgramError, match="do not say what they are"):
            h.take_changes(totals)


@pytest.mark.parametrize("text", ["rand() > 0.5", "uuid() = 'x'", "current_timestamp() > timestamp'2024-01-01'"])
def test_expressions_that_say_other_things_each_time_are_refused(text: str) -> None:
    program = build([])
    program.totals.where(text).changes(kind="op").write(hr.sink.discard())
    with pytest.raises(ProgramError, match="gives another value when an epoch is replayed"):
        program.app.explain()


def test_a_function_that_says_different_things_of_equal_rows_is_found_out() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(Big, total=hr.sum("cents"), region=hr.last("region")).named("totals")
    calls: list[int] = []

    def fickle(row: Big) -> Big:
        calls.append(1)
        return row.replace(region=f"r{len(calls)}")

    totals.map(fickle, output=Big).key_by("region").aggregate(n=hr.count()).named("counts").write(hr.sink.discard())
    with Harness(app) as h:
        h.push(tx, Tx("a", "x", 1))
        h.epoch()
        h.push(tx, Tx("a", "x", 1))
        with pytest.raises(HeadraceError, match="more rows were taken out of the step 'counts' than had come"):
            h.epoch()


def test_rows_of_a_row_whose_function_failed_are_reported_once_and_never_taken_out() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = tx.key_by("card").aggregate(Big, total=hr.sum("cents"), region=hr.last("region")).named("totals")

    def picky(row: Big) -> Big:
        if row.total == 2:
            raise ValueError("two")
        return row

    mapped = totals.map(picky, output=Big)
    mapped.errors.write(hr.sink.discard())
    counts = mapped.key_by("region").aggregate(n=hr.count(), total=hr.sum("total")).named("counts")
    counts.write(hr.sink.discard())
    with Harness(app) as h:
        for _ in range(3):
            h.push(tx, Tx("a", "x", 1))
            h.epoch()
        assert len(h.take(mapped.errors)) == 1
        assert [(sign, row.total) for sign, row in h.take_changes(counts)] == [("+I", 1), ("-D", 1), ("+I", 3)]


def test_not_a_number_and_infinity_go_as_they_came() -> None:
    class Real(hr.Record):
        card: str
        real: float

    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Real)
    newest = tx.key_by("card").latest().named("newest")
    sums = newest.select(real="real", all="1").key_by("all").aggregate(total=hr.sum("real"), n=hr.count()).named("sums")
    sums.write(hr.sink.discard())
    with Harness(app) as h:
        for card, real in (("a", 1.5), ("b", float("nan")), ("b", float("inf")), ("b", 2.0), ("a", -0.0)):
            h.push(tx, Real(card, real))
            h.epoch()
        totals = [str(row.total) for sign, row in h.take_changes(sums) if not sign.startswith("-")]
        assert totals == ["1.5", "nan", "inf", "3.5", "2.0"]


class Seen(hr.Record):
    card: str
    region: str
    at: hr.Timestamp
    cents: int = 0


@pytest.mark.parametrize("seed", range(15))
def test_the_newest_of_rows_that_may_go_is_the_newest_of_those_that_are_left(seed: int) -> None:
    chance = random.Random(seed)
    app = hr.App("shop")
    seen = app.read("seen", hr.source.items([]), Seen, time=Seen.at, out_of_order="1h")
    cards = seen.key_by("card").aggregate(region=hr.last("region"), cents=hr.sum("cents"), at=hr.max("at"))
    rich = cards.named("cards").where("cents > 0")
    counts = rich.key_by("region").aggregate(cards=hr.count(), newest=hr.last("card")).named("counts")
    newest = counts.key_by("cards").latest().named("newest")
    newest.write(hr.sink.discard())
    times = range(1_700_000_000_000_000, 1_700_000_000_000_030)
    rows = [Seen(chance.choice("abcd"), chance.choice("xyz"), hr.Timestamp(at), chance.randint(-5, 9)) for at in times]
    given: list[tuple[str, Any]] = []
    with Harness(app, parallelism=chance.randint(1, 3)) as h:
        for part in random_cuts(chance, rows):
            h.push(seen, *part)
            h.epoch()
            given += h.take_changes(newest)
            if chance.random() < 0.3:
                h.restart()
    check_pairs(given, lambda row: row.cards)
    last = {row.cards: (sign, row) for sign, row in given}
    held = {cards: row for cards, (sign, row) in last.items() if sign != "-D"}
    regions = regions_plainly(rows)
    assert {row.cards for row in held.values()} == set(map(len, regions.values())), f"seed {seed}"
    for count, row in held.items():
        assert len(regions[row.region]) == count
        assert row.newest == max(regions[row.region])[1], "the card of the region that was seen last"


def regions_plainly(rows: Sequence[Seen]) -> dict[str, list[tuple[int, str]]]:
    """Region → its cards that have something, with the time when each was seen last."""
    cards: dict[str, tuple[str, int, int]] = {}
    for row in rows:
        cards[row.card] = row.region, cards.get(row.card, ("", 0, 0))[1] + row.cents, int(row.at)
    regions: dict[str, list[tuple[int, str]]] = {}
    for card, (region, cents, at) in cards.items():
        if cents > 0:
            regions.setdefault(region, []).append((at, card))
    return regions


# -- what is kept, seen from outside ----------------------------------------------------------------------------------


def test_what_is_kept_for_taking_back_cannot_be_edited_and_says_why() -> None:
    program = build([])
    with Harness(program.app) as h:
        h.push(program.tx, Tx("a", "x", 1))
        h.epoch()
        for address, key, words in (
            ("totals_normalised", "a", "what its step gave out last"),
            ("regions", "x", "what rows that can be taken back came to"),
        ):
            with pytest.raises(ProgramError, match=words), h.edit() as edit:
                edit.delete(address, key)


def test_steps_that_take_rows_back_go_on_after_a_restart_and_refuse_another_meaning(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = build([])
    with Harness(first.app, store=store) as h:
        h.push(first.tx, Tx("a", "x", 1), Tx("b", "x", 2))
        h.epoch()
    again = build([])
    with Harness(again.app, store=store) as h:
        h.push(again.tx, Tx("a", "y", 1))
        h.epoch()
        signs = [(sign, row.region, row.total) for sign, row in h.take_changes(again.regions)]
        assert sorted(signs) == [("+I", "y", 2), ("+U", "x", 2), ("-U", "x", 3)]
    other = hr.App("shop")
    tx = other.read("tx", hr.source.items([]), Tx)
    counts = tx.key_by("region").aggregate(cards=hr.count(), total=hr.sum("cents")).named("regions")
    counts.write(hr.sink.discard())
    with pytest.raises(HeadraceError, match="the step 'regions' was something else"):
        Harness(other, store=store, drop=["totals", "totals_normalised", "regions_normalised"])
