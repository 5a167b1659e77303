"""Windows over rows that may go: random programs come to what the rows that hold at the end of each window say."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

import headrace as hr
from headrace.errors import EpochFailed, ProgramError
from headrace.model.row_kind import DELETE, INSERT
from headrace.model.rows import codec_of
from headrace.testing import Harness
from headrace.testing.rig import OperatorRig, RowOfKind
from headrace.windows.kinds import Assigner, Session, Tumbling
from headrace.windows.settling import SettleOperator


class Move(hr.Record):
    card: str
    at: hr.Timestamp
    shop: str


def move(card: str, at: int, shop: str = "x") -> Move:
    return Move(card, hr.Timestamp(at), shop)


def rig_of(assigner: Assigner, **options: Any) -> OperatorRig:
    return OperatorRig(SettleOperator("settle", codec_of(Move), assigner), Move, lambda row: row.card, **options)


def came(*rows: Move) -> list[RowOfKind]:
    return [RowOfKind(row, INSERT) for row in rows]


def gone(*rows: Move) -> list[RowOfKind]:
    return [RowOfKind(row, DELETE) for row in rows]


def test_rows_that_hold_at_the_end_of_their_window_come_out_once() -> None:
    rig = rig_of(Tumbling(10))
    assert rig.epoch(came(move("a", 1), move("a", 2), move("a", 12)), watermark=5) == []
    rig.fold()
    assert rig.epoch(gone(move("a", 1)), watermark=8) == []
    out = rig.epoch(came(move("b", 3)), watermark=9)
    assert sorted((row.value.card, row.at, row.kind) for row in out) == [("a", 2, None), ("b", 3, None)]
    rig.fold()
    assert [row.at for row in rig.epoch(watermark=25)] == [12]
    rig.fold()
    assert not rig.runs


def test_what_is_late_leaves_with_its_kind_and_reopens_no_window() -> None:
    rig = rig_of(Tumbling(10), outlets=("late",))
    rig.epoch(came(move("a", 1), move("a", 2)), watermark=9)
    assert rig.epoch([*gone(move("a", 1)), *came(move("a", 12))], watermark=9) == []
    assert [(row.value.at, row.kind) for row in rig.out["late"]] == [(1, DELETE)]
    assert rig.report.late == 1


def test_a_row_that_goes_parts_a_session() -> None:
    rig = rig_of(Session(6))
    rig.epoch(came(move("a", 0), move("a", 5), move("a", 10)), watermark=4)
    assert rig.epoch(watermark=9) == [], "the session lasts until 15"
    out = rig.epoch(gone(move("a", 5)), watermark=9)
    assert [row.at for row in out] == [0], "what is left of it was over at 5"
    rig.fold()
    assert [row.at for row in rig.epoch(watermark=20)] == [10]
    rig.fold()
    assert not [opened.tables["!held"].rows for _, opened in rig.runs if "!held" in opened.tables]


def test_a_row_that_goes_without_having_come_stops_the_epoch_when_its_window_is_over() -> None:
    rig = rig_of(Tumbling(10))
    with pytest.raises(EpochFailed, match="more rows were taken out of the step 'settle' than had come"):
        rig.epoch(gone(move("a", 1)), watermark=20)


@pytest.mark.parametrize("limit", [1, 1 << 40])
@pytest.mark.parametrize("seed", range(6))
def test_however_rows_come_and_go_those_that_hold_come_out(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    gap = rng.choice([None, 4])
    rig = rig_of(
        Tumbling(10) if gap is None else Session(gap), overlay_limit_bytes=limit, parallelism=rng.choice([1, 3])
    )
    held: Counter[tuple[str, int]] = Counter()
    out: Counter[tuple[str, int]] = Counter()
    watermark = 0
    for _ in range(12):
        rows = []
        for _ in range(rng.randrange(6)):
            key = rng.choice("ab"), rng.randrange(watermark + 1, watermark + 25)
            held[key] += 1
            rows += came(move(*key))
        going = [key for key in +held if held[key] and key[1] > watermark and rng.random() < 0.3]
        for key in going:
            held[key] -= 1
            rows += gone(move(*key))
        rng.shuffle(rows)
        watermark += rng.randrange(8)
        out.update((row.value.card, row.at) for row in rig.epoch(rows, watermark=watermark) if row.at is not None)
        if rng.random() < 0.4:
            rig.fold(2)
    out.update((row.value.card, row.at) for row in rig.epoch(watermark=10**6))
    assert out == +held


# -- programs ---------------------------------------------------------------------------------------------------------


class Sale(hr.Record):
    id: int
    at: hr.Timestamp
    shop: str
    cents: int


MINUTE = 60_000_000


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_windows_see_each_row_as_long_as_it_holds(seed: int, kind: str) -> None:
    rng = random.Random(f"{kind}-{seed}")
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at, out_of_order="30m")
    newest = sales.key_by("id").latest().named("newest")
    window = hr.tumbling("10m") if kind == "tumbling" else hr.session("5m")
    sums = newest.where("cents > 0").key_by("shop").window(window)
    out = sums.aggregate(n=hr.count(), cents=hr.sum("cents"), middle=hr.quantile("cents", 0.5)).named("sums")
    assert str(out.node.kind) == "append"
    held: dict[int, Sale] = {}
    with Harness(app, parallelism=1 + 2 * (seed % 2)) as h:
        for _ in range(6):
            for _ in range(rng.randrange(6)):
                id, minute = rng.randrange(8), rng.randrange(30)
                if id in held and held[id].at > minute * MINUTE:
                    continue
                held[id] = Sale(id, hr.Timestamp(minute * MINUTE), rng.choice("xy"), rng.randrange(-5, 20))
                h.push(sales, held[id])
            if rng.random() < 0.3:
                h.crash(at="before_publish")
            h.epoch()
        h.epoch(watermark=hr.Timestamp(10**12))
        found = sorted((row.shop, row.window_start, row.window_end, row.n, row.cents) for row in h.take(out))
    by_shop: dict[str, list[Sale]] = defaultdict(list)
    for sale in sorted(held.values(), key=lambda sale: sale.at):
        if sale.cents > 0:
            by_shop[sale.shop].append(sale)
    wanted = []
    for shop, rows in by_shop.items():
        for group in windows_of(rows, kind):
            start = group[0].at // (10 * MINUTE) * 10 * MINUTE if kind == "tumbling" else group[0].at
            end = start + 10 * MINUTE if kind == "tumbling" else group[-1].at + 5 * MINUTE
            wanted.append((shop, start, end, len(group), sum(row.cents for row in group)))
    assert found == sorted(wanted)


def windows_of(rows: list[Sale], kind: str) -> list[list[Sale]]:
    groups: list[list[Sale]] = []
    for row in rows:
        last = groups[-1][-1] if groups else None
        same = last is not None and (
            row.at // (10 * MINUTE) == last.at // (10 * MINUTE) if kind == "tumbling" else row.at - last.at < 5 * MINUTE
        )
        if same:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def test_late_halves_of_pairs_can_be_read() -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    newest = sales.key_by("id").latest().named("newest")
    counts = newest.key_by("shop").window(hr.tumbling("10m")).aggregate(n=hr.count()).named("counts")
    late = counts.late
    counts.show()
    with Harness(app) as h:
        h.push(sales, Sale(1, hr.Timestamp(MINUTE), "x", 5))
        h.epoch(watermark=hr.Timestamp(11 * MINUTE))
        assert [row.n for row in h.take(counts)] == [1]
        h.push(sales, Sale(1, hr.Timestamp(12 * MINUTE), "x", 6))
        h.epoch(watermark=hr.Timestamp(30 * MINUTE))
        assert [row.n for row in h.take(counts)] == [1]
        assert [(sign[0], row.at) for sign, row in h.take_changes(late)] == [("-", MINUTE)]
        assert "counts_settled" in app.explain()


OVERLAPPING = {
    "sliding": (hr.sliding("10m", every="3m"), lambda end: (end - 10, end)),
    "with gaps": (hr.sliding("3m", every="5m"), lambda end: (end - 3, end)),
    "cumulating": (hr.cumulating("12m", every="3m"), lambda end: ((end - 1) // 12 * 12, end)),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", OVERLAPPING)
def test_each_of_several_windows_has_the_rows_that_hold_when_it_is_over(seed: int, kind: str) -> None:
    rng = random.Random(f"{kind}-{seed}")
    window, bounds = OVERLAPPING[kind]
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    newest = sales.key_by("id").latest().named("newest")
    out = newest.where("cents > 0").key_by("shop").window(window).aggregate(
        n=hr.count(), cents=hr.sum("cents"), first=hr.first("id"), last=hr.last("id"), ids=hr.collect("id")
    ).named("sums")  # fmt: skip
    held: dict[int, Sale] = {}
    wanted, watermark = [], 0
    with Harness(app, parallelism=1 + 2 * (seed % 2)) as h:
        for epoch in range(9):
            for _ in range(rng.randrange(7)):
                # The ids of rows of one time rise with their place in the order of that time.
                minute = rng.randrange(watermark + 1, watermark + 14)
                id = minute * 10 + rng.randrange(2)
                held[id] = Sale(id, hr.Timestamp(minute * MINUTE), rng.choice("xy"), rng.randrange(-5, 20))
                h.push(sales, held[id])
            if rng.random() < 0.3:
                h.crash(at="before_publish")
            reached = watermark + rng.randrange(6) if epoch < 8 else 10**4
            h.epoch(watermark=hr.Timestamp(reached * MINUTE))
            for start, end in {bounds(end) for end in range(watermark + 1, min(reached, 300) + 1)}:
                if not closes(kind, end):
                    continue
                for shop in "xy":
                    inside = [sale for sale in held.values() if sale.shop == shop and sale.cents > 0]
                    rows = sorted((s for s in inside if start <= s.at // MINUTE < end), key=lambda s: s.id)
                    if rows:
                        ids = [sale.id for sale in rows]
                        cents = sum(sale.cents for sale in rows)
                        wanted.append((shop, start, end, len(rows), cents, ids[0] // 10, ids[-1] // 10, ids))
            watermark = reached
        found = [
            (row.shop, row.window_start // MINUTE, row.window_end // MINUTE, row.n, row.cents, row.first // 10,
             row.last // 10, sorted(row.ids))
            for row in h.take(out)
        ]  # fmt: skip
    assert sorted(found) == sorted(wanted)


def closes(kind: str, end: int) -> bool:
    """Whether a window ends at this minute."""
    return {"sliding": (end - 10) % 3, "with gaps": (end - 3) % 5, "cumulating": end % 3}[kind] == 0


def test_functions_are_given_the_rows_of_each_window_and_what_went_in_between_is_in_the_first_alone() -> None:
    class Ids(hr.Record):
        text: str

    class Listing(hr.WindowProcess[Sale, Ids, str]):
        def on_window(self, rows: Any, ctx: hr.WindowContext[str]) -> Any:
            yield Ids(f"{ctx.window.start // MINUTE}: {[row.id for row in rows]}")

    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    newest = sales.key_by("id").latest().named("newest").where("cents > 0")
    lists = newest.key_by("shop").window(hr.sliding("10m", every="5m")).process(Listing())
    late = lists.late
    late.show()
    lists.show()
    with Harness(app) as h:
        h.push(sales, *(Sale(id, hr.Timestamp(id * MINUTE), "x", 1) for id in (6, 8)))
        h.epoch(watermark=hr.Timestamp(10 * MINUTE))
        h.push(sales, Sale(8, hr.Timestamp(8 * MINUTE), "x", 0), Sale(12, hr.Timestamp(12 * MINUTE), "x", 1))
        h.epoch(watermark=hr.Timestamp(40 * MINUTE))
        assert [row.text for row in h.take(lists)] == ["0: [6, 8]", "5: [6, 12]", "10: [12]"]
        assert not h.take_changes(late)
        h.push(sales, Sale(6, hr.Timestamp(6 * MINUTE), "x", 0))
        h.epoch()
        assert [(sign[0], row.id) for sign, row in h.take_changes(late)] == [("-", 6)]


def test_windows_that_overlap_are_kept_row_by_row_so_they_cannot_be_kept_when_they_are_over() -> None:
    app = hr.App("shop")
    newest = app.read("sales", hr.source.items([]), Sale, time=Sale.at).key_by("id").latest().named("newest")
    sums = newest.key_by("shop").window(hr.sliding("10m", every="3m")).aggregate(n=hr.count()).named("sums")
    with pytest.raises(ProgramError, match="keep= is not supported") as refused:
        sums.queryable(keep="1h")
    assert "given anew for each window" in refused.value.found
    sums.queryable()
    assert "sums_settled" in app.explain()
