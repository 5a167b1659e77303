from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.model.job import DeclaredState
from headrace.model.keys import key_group
from headrace.model.report import RunRef
from headrace.state.fold import RunFold, apply_fold, count_rewrites, fold_runs, plan_folds, plan_rewrite, write_fold
from headrace.state.lookup import Layers, open_layers
from headrace.state.run import clear_open_runs, describe_run, open_ref, open_run
from headrace.state.store import LocalStore
from tests.state.rundata import (
    GROUPS,
    Cell,
    due_table,
    entries_table,
    layers_of,
    make_run,
    needles,
    small_batches,
    toy_hash,
    value_table,
)

KEYS = [b"key %d" % i for i in range(20)]
SUBS = [b"", b"x", b"y"]
CELLS = st.one_of(st.just((None, None)), st.tuples(st.binary(max_size=3), st.none() | st.integers(0, 9)))


class Change(NamedTuple):
    values: dict[bytes, Cell]
    maps: dict[bytes, tuple[bool, dict[bytes, Cell]]]
    timers: list[tuple[int, bytes, int]]


class Refold(NamedTuple):
    first: int
    count: int
    lo: int
    width: int
    clock: int


CHANGES = st.builds(
    Change,
    st.dictionaries(st.sampled_from(KEYS), CELLS, max_size=8),
    st.dictionaries(
        st.sampled_from(KEYS), st.tuples(st.booleans(), st.dictionaries(st.sampled_from(SUBS), CELLS)), max_size=5
    ),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(KEYS), st.integers(0, 1)), max_size=4),
)
REFOLDS = st.builds(
    Refold,
    st.integers(0, 5),
    st.integers(1, 5),
    st.integers(0, GROUPS - 1),
    st.integers(1, GROUPS),
    st.integers(0, 6),
)


class Model:
    """A dictionary per table; what the runs must say."""

    def __init__(self) -> None:
        self.values: dict[bytes, Cell] = {}
        self.maps: dict[bytes, dict[bytes, Cell]] = {}
        self.timers: set[tuple[int, bytes, int]] = set()

    def apply(self, change: Change) -> None:
        self.values |= change.values
        for key, (cleared, puts) in change.maps.items():
            entries = {} if cleared else dict(self.maps.get(key, {}))
            self.maps[key] = {sub: cell for sub, cell in {**entries, **puts}.items() if cell[0] is not None}
        self.timers |= set(change.timers)

    def check(self, layers: Layers, now_us: int, lo: int = 0, hi: int = GROUPS) -> None:
        """What a reader sees at a time; expired rows are as good as none."""
        mine = [key for key in KEYS if lo <= key_group(toy_hash(key), GROUPS) < hi]
        values, expires = layers.get_many("v", *needles(KEYS))
        expiry = [None] * len(KEYS) if expires is None else expires.to_pylist()
        seen = {
            key: alive
            for key, cell in zip(KEYS, zip(values.to_pylist(), expiry))
            if (alive := _alive(cell, now_us)) is not None
        }
        wanted = {key: _alive(self.values.get(key, (None, None)), now_us) for key in mine}
        assert seen == {key: cell for key, cell in wanted.items() if cell is not None}
        maps = layers.entries_many("m", *needles(KEYS), limit=10**6)
        for key, found in zip(KEYS, maps):
            entries = self.maps.get(key, {}) if key in mine else {}
            assert found is not None
            assert {sub: cell for sub, cell in found.items() if _alive(cell, now_us)} == {
                sub: cell for sub, cell in entries.items() if _alive(cell, now_us)
            }
            assert list(found) == sorted(found)
        due = {(row["time"], row["key"], row["timer"]) for row in layers.due("!event", now_us, 100).to_pylist()}
        assert due == {timer for timer in self.timers if timer[0] > now_us and timer[1] in mine}


def _alive(cell: Cell, now_us: int) -> Cell | None:
    value, expires = cell
    return None if value is None or (expires is not None and expires <= now_us) else cell


def _delta(change: Change, epoch: int) -> RunRef:
    rows: dict[tuple[bytes, bytes | None], Cell] = {}
    for key, (cleared, puts) in change.maps.items():
        if cleared:
            rows[key, None] = (None, None)
        rows |= {(key, sub): cell for sub, cell in puts.items()}
    return make_run([value_table(change.values), entries_table(rows), due_table(change.timers)], epoch)[0]


@given(steps=st.lists(CHANGES | REFOLDS, max_size=14), batch_rows=st.integers(1, 9), cut=st.integers(1, GROUPS - 1))
def test_folds_of_any_runs_and_ranges_at_any_time_change_nothing_a_reader_sees(
    steps: list[Change | Refold], batch_rows: int, cut: int
) -> None:
    refs: tuple[RunRef, ...] = ()
    model = Model()
    now_us = 0
    with small_batches(batch_rows):
        for epoch, step in enumerate(steps):
            if isinstance(step, Change):
                refs = (_delta(step, epoch), *refs)
                model.apply(step)
            else:
                now_us = max(now_us, step.clock)
                refs = _refold(refs, step, now_us)
            model.check(_layers(refs), now_us)
        model.check(_layers(refs, 0, cut), now_us, 0, cut)
        model.check(_layers(refs, cut, GROUPS), now_us, cut, GROUPS)


def _layers(refs: tuple[RunRef, ...], lo: int = 0, hi: int = GROUPS) -> Layers:
    return layers_of([(ref, open_run(ref.inline)) for ref in refs], lo, hi)


def _refold(refs: tuple[RunRef, ...], step: Refold, now_us: int) -> tuple[RunRef, ...]:
    """Folds some neighbours among the runs of a range."""
    lo, hi = step.lo, min(GROUPS, step.lo + step.width)
    touching = [ref for ref in refs if ref.lo < hi and lo < ref.hi]
    inputs = touching[step.first : step.first + step.count]
    if not inputs:
        return refs
    fold = RunFold(lo, hi, tuple(inputs), level=1, oldest=step.first + step.count >= len(touching))
    folded = fold_runs(
        [(ref, open_run(ref.inline)) for ref in inputs],
        lo=lo,
        hi=hi,
        groups=GROUPS,
        drop_tombstones=fold.oldest,
        clocks={"v": now_us, "m": now_us},
        fired={"!event": now_us},
    )
    data = folded.to_buffer()
    result = describe_run(data, epoch=max(ref.epoch for ref in inputs), level=1)
    assert (result.rows, result.size_bytes, result.crc) == (folded.rows, folded.size_bytes, folded.crc)
    changed = apply_fold(refs, fold, result if folded.rows else None)
    assert changed is not None
    return changed


def test_a_fold_to_the_oldest_run_leaves_no_tombstones() -> None:
    old = make_run([value_table({b"a": (b"1", None)}), entries_table({(b"m", b"x"): (b"1", None)})], 0)
    new = make_run([value_table({b"a": (None, None)}), entries_table({(b"m", None): (None, None)})], 1)
    kept = fold_runs([new], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=False)
    kept.to_buffer()
    gone = fold_runs([new, old], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=True)
    assert open_run(gone.to_buffer()).tables == {}
    assert (kept.rows, gone.rows) == (2, 0)


def test_an_expired_row_hides_an_older_one_until_the_oldest_is_folded_too() -> None:
    middle = make_run([value_table({b"a": (b"2", 5)})], 1)
    oldest = make_run([value_table({b"a": (b"1", None)})], 0)
    data = fold_runs([middle], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=False, clocks={"v": 5}).to_buffer()
    folded = (describe_run(data, epoch=1), open_run(data))
    assert layers_of([folded, oldest]).get("v", toy_hash(b"a"), b"a") == (None, None)


def test_tables_without_a_clock_keep_expired_rows() -> None:
    run = make_run([value_table({b"a": (b"2", 5)})], 1)
    folded = fold_runs([run], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=True, clocks={"other": 99})
    folded.to_buffer()
    assert folded.rows == 1


def test_a_clear_reaches_rows_of_its_key_in_later_slices() -> None:
    rows = {(b"k", b"%03d" % i): (b"old", None) for i in range(200)}
    with small_batches(7):
        old = make_run([entries_table(rows)], 0)
        new = make_run([entries_table({(b"k", None): (None, None), (b"k", b"150"): (b"new", None)})], 1)
        data = fold_runs([new, old], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=True).to_buffer()
    folded = layers_of([(describe_run(data, epoch=1), open_run(data))])
    assert list(folded.entries("m", toy_hash(b"k"), b"k")) == [(b"150", b"new", None)]


def test_a_fold_gives_a_renamed_table_its_present_name() -> None:
    old = make_run([value_table({b"a": (b"1", None)}, "was")], 0)
    new = make_run([value_table({b"a": (None, None), b"b": (b"2", None)}, "now")], 1)
    states = {"now": DeclaredState("value", was=("was",))}
    folded = fold_runs([new, old], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=True, states=states)
    run = open_run(folded.to_buffer())
    assert {name: table.rows for name, table in run.tables.items()} == {"now": 1}


# --- planning


def ref(name: str, rows: int, level: int = 0, lo: int = 0, hi: int = 8, size_bytes: int | None = None) -> RunRef:
    size_bytes = rows if size_bytes is None else size_bytes
    return RunRef(epoch=0, lo=lo, hi=hi, rows=rows, size_bytes=size_bytes, crc=0, file=name, level=level)


def names(fold: RunFold) -> str:
    return "".join(each.file for each in fold.inputs)


def test_fewer_than_four_deltas_wait() -> None:
    assert plan_folds([ref("c", 1), ref("b", 1), ref("a", 1)]) == []
    assert plan_folds([]) == []


def test_the_first_four_deltas_become_the_base() -> None:
    (fold,) = plan_folds([ref(name, 10) for name in "dcba"])
    assert (names(fold), fold.level, fold.oldest) == ("dcba", 1, True)


def test_deltas_far_smaller_than_the_base_leave_it_alone() -> None:
    (fold,) = plan_folds([*(ref(name, 10) for name in "edcb"), ref("A", 1000, level=1)])
    assert (names(fold), fold.level, fold.oldest) == ("edcb", 1, False)


def test_the_base_is_folded_once_the_rest_has_a_quarter_of_its_rows() -> None:
    (fold,) = plan_folds([*(ref(name, 10) for name in "fedc"), ref("B", 210, level=1), ref("A", 1000, level=1)])
    assert (names(fold), fold.oldest) == ("fedcBA", True)


def test_a_base_of_few_heavy_rows_waits_for_a_quarter_of_its_bytes() -> None:
    light = [ref(name, 1, size_bytes=500_000) for name in "edcb"]
    (fold,) = plan_folds([*light, ref("A", 1, level=1, size_bytes=10_000_000)])
    assert (names(fold), fold.oldest) == ("edcb", False)
    (fold,) = plan_folds([*light, ref("A", 1, level=1, size_bytes=8_000_000)])
    assert (names(fold), fold.oldest) == ("edcbA", True)


def test_a_row_that_grows_with_every_epoch_is_rewritten_seldom() -> None:
    refs: tuple[RunRef, ...] = ()
    written = 0
    for epoch in range(1000):
        refs = (ref(str(epoch), 1, size_bytes=100_000), *refs)
        for fold in plan_folds(refs):
            size = sum(each.size_bytes for each in fold.inputs)
            written += size
            refs = apply_fold(refs, fold, ref(f"{epoch} folded", 1, fold.level, size_bytes=size)) or refs
    assert written < 12 * 1000 * 100_000
    assert len(refs) < 20


def test_a_fold_that_completes_the_next_level_takes_it_along() -> None:
    runs = [*(ref(name, 1) for name in "hgfe"), *(ref(name, 4, level=1) for name in "DCB"), ref("A", 10_000, level=2)]
    (fold,) = plan_folds(runs)
    assert (names(fold), fold.level, fold.oldest) == ("hgfeDCB", 2, False)


def test_shards_are_folded_apart() -> None:
    left = [ref(name, 10, lo=0, hi=4) for name in "dcba"]
    right = [ref(name, 10, lo=4, hi=8) for name in "zyx"]
    (fold,) = plan_folds([*left, *right])
    assert (names(fold), fold.lo, fold.hi) == ("dcba", 0, 4)


def test_after_a_split_each_new_shard_takes_its_part_of_the_base() -> None:
    deltas = [ref(name, 10, lo=0, hi=4) for name in "edcb"]
    refs = [*deltas, ref("A", 60, level=1)]
    (fold,) = plan_folds(refs, cuts=[0, 4])
    assert (names(fold), fold.lo, fold.hi, fold.oldest) == ("edcbA", 0, 4, True)
    changed = apply_fold(refs, fold, ref("N", 50, level=1, lo=0, hi=4))
    assert changed is not None
    assert [(each.file, each.lo, each.hi, each.rows) for each in changed] == [("N", 0, 4, 50), ("A", 4, 8, 30)]


def test_after_a_merge_of_shards_their_bases_lie_side_by_side() -> None:
    bases = [ref("B", 1000, level=3, lo=0, hi=4), ref("A", 1000, level=3, lo=4, hi=8)]
    assert plan_folds([*(ref(name, 1) for name in "fed"), *bases], cuts=[0]) == []
    (fold,) = plan_folds([*(ref(name, 200) for name in "fedc"), *bases], cuts=[0])
    assert (names(fold), fold.lo, fold.hi, fold.level, fold.oldest) == ("fedcBA", 0, 8, 3, True)


def test_a_fold_takes_effect_under_deltas_that_came_meanwhile() -> None:
    planned = [ref(name, 1) for name in "dcba"]
    (fold,) = plan_folds(planned)
    changed = apply_fold([ref("f", 1), ref("e", 1), *planned], fold, ref("N", 4, level=1))
    assert changed is not None
    assert "".join(each.file for each in changed) == "feN"
    assert apply_fold([ref("f", 1), *planned], fold, None) == (ref("f", 1),)


def test_a_fold_of_runs_that_are_gone_is_not_applied() -> None:
    (fold,) = plan_folds([ref(name, 1) for name in "dcba"])
    assert apply_fold([ref("d", 1), ref("c", 1)], fold, ref("N", 4)) is None


def test_parts_of_one_file_are_folded_apart_or_together() -> None:
    parts = [ref("A", 20, level=1, lo=0, hi=2), ref("A", 40, level=1, lo=4, hi=8)]
    one = RunFold(0, 8, (parts[0],), 1, oldest=False)
    assert apply_fold(parts, one, ref("N", 20, lo=0, hi=8)) == (ref("N", 20, lo=0, hi=8), parts[1])
    both = RunFold(0, 6, tuple(parts), 1, oldest=True)
    rest = apply_fold(parts, both, None)
    assert rest is not None
    assert [(each.file, each.lo, each.hi, each.rows) for each in rest] == [("A", 6, 8, 20)]


def test_runs_stay_few_and_rows_are_rewritten_seldom() -> None:
    """A thousand epochs of new keys, and a thousand of updates."""
    for key_count in (10**9, 20_000):
        refs: tuple[RunRef, ...] = ()
        most = written = 0
        for epoch in range(1000):
            refs = (ref(f"d{epoch}", 1000), *refs)
            for fold in plan_folds(refs):
                rows = min(key_count, sum(each.rows for each in fold.inputs))
                written += rows
                changed = apply_fold(refs, fold, ref(f"f{epoch}", rows, level=fold.level))
                assert changed is not None
                refs = changed
            most = max(most, len(refs))
        assert most <= 14
        assert written <= 12 * 1000 * 1000


# --- doing it in a store


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    clear_open_runs()
    return LocalStore(tmp_path, durable=False)


def test_runs_of_older_versions_are_rewritten_a_part_at_a_time_until_none_is_left() -> None:
    def of(version: int, name: str, rows: int, **more: int) -> RunRef:
        return replace(ref(name, rows, **more), version=version)

    refs: tuple[RunRef, ...] = (of(2, "d", 5), of(1, "c", 10), of(1, "b", 100, level=1), of(0, "a", 3_500_000, level=2))
    assert plan_rewrite(refs, [0], 0) is None
    folds = 0
    while (fold := plan_rewrite(refs, [0], 2)) is not None:
        assert count_rewrites(refs, [0], 2) <= 4 - folds
        assert fold.oldest and fold.level == 2 and fold.hi - fold.lo <= 2 and names(fold) == "cba"
        rows = round(3_500_110 / 8 * (fold.hi - fold.lo))
        changed = apply_fold(refs, fold, of(2, f"new {folds}", rows, level=2, lo=fold.lo, hi=fold.hi))
        assert changed is not None and changed[0] == refs[0]
        refs, folds = changed, folds + 1
    assert folds == 4 and {each.version for each in refs} == {2}
    assert [(each.lo, each.hi) for each in refs[1:]] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert count_rewrites(refs, [0], 2) == 0


def test_each_shard_is_rewritten_by_itself_and_a_rewritten_delta_is_none_any_more() -> None:
    refs = (replace(ref("b", 1, lo=4), version=1), ref("a", 7, lo=4), ref("c", 7, hi=4))
    first = plan_rewrite(refs, [0, 4], 1)
    assert first is not None and (first.lo, first.hi, first.level) == (0, 4, 1) and names(first) == "c"
    assert count_rewrites(refs, [0, 4], 1) == 2


def test_heavy_rows_are_rewritten_by_their_bytes() -> None:
    refs = (ref("a", 10, level=1, size_bytes=2**30),)
    fold = plan_rewrite(refs, [0], 1)
    assert fold is not None and (fold.lo, fold.hi) == (0, 2) and count_rewrites(refs, [0], 1) == 4


def test_a_planned_fold_is_written_to_the_store(store: LocalStore) -> None:
    refs = tuple(make_run([value_table({b"a": (b"%d" % i, None), b"%d" % i: (b"", None)})], i)[0] for i in range(4))[
        ::-1
    ]
    (fold,) = plan_folds(refs)
    written = write_fold(store, fold, "runs/s/1.run", groups=GROUPS)
    assert written is not None
    assert (written.file, written.epoch, written.level, written.rows) == ("runs/s/1.run", 3, 1, 5)
    changed = apply_fold(refs, fold, written)
    assert changed == (written,)
    layers = open_layers(store, changed, lo=0, hi=GROUPS, groups=GROUPS)
    assert layers.get("v", toy_hash(b"a"), b"a") == (b"3", None)
    assert open_ref(store, written).size_bytes == written.size_bytes


def test_a_small_result_stays_inline(store: LocalStore) -> None:
    (fold,) = plan_folds([make_run([value_table({b"a": (b"%d" % i, None)})], i)[0] for i in range(4)])
    written = write_fold(store, fold, "runs/s/1.run", groups=GROUPS, inline_bytes=10_000)
    assert written is not None
    assert written.file == ""
    assert open_run(written.inline).rows == 1
    assert store.list() == []


def test_a_result_without_rows_is_no_run(store: LocalStore) -> None:
    (fold,) = plan_folds([make_run([value_table({b"a": (None, None)})], i)[0] for i in range(4)])
    assert write_fold(store, fold, "runs/s/1.run", groups=GROUPS) is None
    assert store.list() == []
