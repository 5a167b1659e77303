"""``process(fn, order="time")``: the rows of an epoch by key and event time, whatever way they came."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.model.batch import Keys, Rows
from headrace.model.rows import codec_of
from headrace.operators import holding
from headrace.operators.holding import HeldRows
from headrace.operators.ordered import OrderedProcessOperator
from headrace.testing import EpochInput, verify_step
from tests.operators.rig import Rig, Row, values


class Tap(hr.Record):
    user: str
    n: int
    at: hr.Timestamp


class Seen(hr.Record):
    user: str
    what: str


TAPS = codec_of(Tap)


def tap(user: str, at: int, n: int = 0) -> Tap:
    return Tap(user, n, hr.Timestamp(at))


class Trail(hr.Process[Tap, Seen, str]):
    """Says what it sees, and 10 µs after the newest row that there is quiet."""

    count: hr.ValueState[int]
    quiet: hr.Timer

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Seen]:
        self.count.set(self.count.get(0) + 1)
        self.quiet.set(event.at + hr.Duration(10))
        yield Seen(ctx.key, f"{self.count.get()}: {event.at} {event.n}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
        yield Seen(ctx.key, f"quiet at {ctx.timestamp} after {self.count.get()}")


def operator(function: Any = None) -> OrderedProcessOperator:
    function = function or Trail()
    return OrderedProcessOperator("step", function, declarations(type(function)), codec_of(Seen), key_type=str)


def rig(function: Any = None, **options: Any) -> Rig:
    return Rig(operator(function), TAPS, lambda row: row.user, **options)


def said(rows: Sequence[Row], user: str) -> list[str]:
    return [row.what for row in values(rows) if row.user == user]


def test_rows_of_a_key_come_in_the_order_of_their_times_however_they_came() -> None:
    r = rig()
    out = r.epoch([tap("a", 5), tap("b", 9), tap("a", 7)], [tap("a", 1), tap("b", 2)], [], [tap("a", 6)])
    assert said(out, "a") == ["1: 1 0", "2: 5 0", "3: 6 0", "4: 7 0"]
    assert said(out, "b") == ["1: 2 0", "2: 9 0"]
    assert [row.at for row in out if row.value.user == "a"] == [1, 5, 6, 7]


def test_rows_of_one_time_stay_as_they_came() -> None:
    out = rig().epoch([tap("a", 5, n) for n in (3, 1)], [tap("a", 5, 2)], [tap("a", 4, 9)])
    assert said(out, "a") == ["1: 4 9", "2: 5 3", "3: 5 1", "4: 5 2"]


def test_epochs_are_not_mixed_and_late_rows_are_sorted_among_the_others() -> None:
    r = rig()
    r.epoch([tap("a", 50)], watermark=20)
    assert said(r.epoch([tap("a", 30), tap("a", 10)]), "a") == ["2: 10 0", "3: 30 0"]
    assert r.report.late == 1


def test_late_rows_that_somebody_reads_are_not_held() -> None:
    r = rig(outlets=["late"])
    r.epoch([tap("a", 50)], watermark=20)
    assert said(r.epoch([tap("a", 30), tap("a", 10)]), "a") == ["2: 30 0"]
    assert r.out["late"] == [Row(tap("a", 10), 10)]


def test_timers_fire_after_the_rows_of_the_epoch() -> None:
    assert said(rig().epoch([tap("a", 9)], [tap("a", 1)], watermark=30), "a") == [
        "1: 1 0",
        "2: 9 0",
        "quiet at 19 after 2",
    ]


def test_the_watermark_and_the_time_that_a_function_sees_are_those_of_its_row() -> None:
    seen: list[tuple[int, int]] = []

    class Look(hr.Process[Tap, Seen, str]):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            seen.append((int(ctx.timestamp), int(ctx.watermark)))

    r = rig(Look())
    r.epoch([], watermark=3)
    r.epoch([tap("a", 8), tap("a", 7)], watermark=100)
    assert seen == [(7, 3), (8, 3)]


def test_an_epoch_that_was_given_up_leaves_no_rows_behind() -> None:
    r = rig()
    r.attempt([tap("a", 1), tap("a", 2)], finish=False)
    assert said(r.epoch([tap("a", 5)]), "a") == ["1: 5 0"]


def test_rows_without_time_belong_to_its_beginning() -> None:
    held = HeldRows()
    held.add(*keyed([tap("a", 5)]))
    rows, keys = keyed([tap("a", 0, 1)])
    held.add(Rows.of_columns(TAPS, rows.columns), keys)
    assert [row.n for row in drained(held)] == [1, 0]


def test_a_failing_row_goes_to_errors_and_is_undone() -> None:
    class Picky(Trail):
        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Seen]:
            yield from super().on_event(event, ctx)
            if event.n == 13:
                raise ValueError("thirteen")

    r = rig(Picky(), outlets=["errors"])
    assert said(r.epoch([tap("a", 5), tap("a", 3, 13), tap("a", 1)]), "a") == ["1: 1 0", "2: 5 0"]
    assert [(row.value.key, row.at) for row in r.out["errors"]] == [("a", 3)]


def test_the_contract_of_operators_is_kept() -> None:
    taps = hr.App("taps").read("taps", hr.source.items([]), Tap, time=Tap.at)
    step = taps.key_by(Tap.user).process(Trail(), order="time")
    random = Random(5)
    epochs = [
        EpochInput([tap(random.choice("abc"), start + random.randrange(20), n) for n in range(12)], watermark=start + 8)
        for start in (0, 15, 30)
    ]
    verify_step(step, [*epochs, EpochInput(watermark=100)])


# --- rows that do not fit into memory


def keyed(rows: Sequence[Tap], hash_of: Any = None) -> tuple[Rows, Keys]:
    times = np.array([int(row.at) for row in rows], dtype=np.int64)
    hashes = np.array([(hash_of or (lambda user: ord(user[0])))(row.user) for row in rows], dtype=np.uint64)
    keys = pa.array([row.user.encode() for row in rows], pa.binary())
    return Rows.of_columns(TAPS, TAPS.to_arrays(rows), times), Keys(hashes, keys)


def drained(held: HeldRows) -> list[Tap]:
    return [row for rows, _ in held.drain() for row in rows.objects]


def test_what_does_not_fit_lies_in_files_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = HeldRows(limit_bytes=200)
    for i in range(20):
        held.add(*keyed([tap("ab"[i % 2], 100 - i, i)]))
    assert held.files > 2
    assert list(tmp_path.iterdir()) == []
    assert [row.n for row in drained(held)] == [*range(18, -1, -2), *range(19, 0, -2)]
    assert held.files == 0 and drained(held) == []


@given(
    batches=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=9), max_size=9),
    limit=st.sampled_from([1, 150, 600, 1 << 30]),
    chunk=st.sampled_from([1, 2, 3, 1000]),
    one_hash=st.booleans(),
)
def test_rows_come_back_sorted_and_stable_through_any_number_of_files(
    batches: list[list[tuple[str, int]]], limit: int, chunk: int, one_hash: bool
) -> None:
    before, holding._CHUNK_ROWS = holding._CHUNK_ROWS, chunk  # type: ignore[misc]
    try:
        held = HeldRows(limit)
        rows: list[Tap] = []
        for batch in batches:
            fresh = [tap(user, at, len(rows) + i) for i, (user, at) in enumerate(batch)]
            rows += fresh
            held.add(*keyed(fresh, (lambda user: 7) if one_hash else None))
        found = drained(held)
    finally:
        holding._CHUNK_ROWS = before  # type: ignore[misc]
    assert len(found) == len(rows)
    for user in "abc":
        mine = [row for row in rows if row.user == user]
        assert [row.n for row in found if row.user == user] == [row.n for row in sorted(mine, key=lambda row: row.at)]
    if not one_hash:
        assert [row.user for row in found] == sorted(row.user for row in found)


def test_a_key_with_more_rows_than_fit_into_memory_is_sorted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "HELD_BYTES", 20_000)
    random = Random(3)
    rows = [tap("hot" if i % 3 else f"u{i % 50}", random.randrange(1000), i) for i in range(3000)]
    batches = [rows[start : start + 100] for start in range(0, len(rows), 100)]
    r = rig()
    out = r.epoch(*batches)
    wanted = sorted((row for row in rows if row.user == "hot"), key=lambda row: row.at)
    assert said(out, "hot") == [f"{i}: {row.at} {row.n}" for i, row in enumerate(wanted, 1)]
