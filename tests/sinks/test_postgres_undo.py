"""`sink.postgres(undo=…)`: a table that is taken back to what it was after an earlier epoch, against a real server."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

import headrace as hr
from headrace.errors import Fenced, SinkFailed
from headrace.testing.sinks import SinkTarget, verify_sink
from tests.services.postgres import Postgres
from tests.sinks.postgres_tables import Sale, Written, query

HOW: dict[str, Any] = {"key": ("shop", "id"), "undo": "1h"}


def rows_in(dsn: str) -> list[tuple[Any, ...]]:
    return query(dsn, "SELECT id, shop, cents FROM sales ORDER BY shop, id")


def go_back(sales: Written, epoch: int, last: int, timeline: str = "0", following: str | None = None) -> None:
    ctx = sales.staging.forget(epoch, last, output="sales", timeline=timeline)
    ctx.next_timeline = following or ctx.next_timeline
    sales.sink.check_forget(ctx)
    sales.sink.forget(ctx)


def test_it_keeps_the_promises_of_a_sink_that_forgets(postgres: Postgres, dsn: str) -> None:
    numbers = itertools.count()

    def new_target() -> SinkTarget:
        schema = f"u{next(numbers)}"
        query(dsn, f"CREATE SCHEMA {schema}")
        return SinkTarget(
            lambda: hr.sink.postgres(f"{schema}.sales", dsn=dsn, key=Sale.id, undo="1h"),
            lambda: [Sale(*row) for row in query(dsn, f"SELECT id, shop, cents FROM {schema}.sales")],
        )

    versions = (Sale(1, "a", 1), Sale(1, "a", 2))
    verify_sink(new_target, Sale, [Sale(i, f"s{i}", i) for i in range(7)], versions=versions, staged=("inline",))


def test_keys_of_the_abandoned_timeline_go_and_changed_ones_get_their_former_row(
    written: Callable[..., Written], dsn: str
) -> None:
    sales = written(Sale, **HOW)
    sales.write(0, [Sale(1, "a", 1), Sale(2, "a", 2)])
    sales.write(1, [Sale(2, "a", 3)])
    before = rows_in(dsn)
    sales.write(2, [Sale(1, "a", 10), Sale(3, "b", 1)])
    sales.write(3, [Sale(1, "a", 11), Sale(3, "b", 2), Sale(2, "a", 9)])
    go_back(sales, 1, 3)
    assert rows_in(dsn) == before == [(1, "a", 1), (2, "a", 3)]
    with pytest.raises(Fenced):
        sales.write(4, [Sale(1, "a", 99)])
    sales.write(2, [Sale(1, "a", 20)], timeline="1")
    assert rows_in(dsn) == [(1, "a", 20), (2, "a", 3)]
    go_back(sales, 1, 3)
    assert rows_in(dsn) == [(1, "a", 20), (2, "a", 3)], "forgetting again leaves the new timeline"


def test_a_job_may_go_back_behind_the_beginning_of_its_timeline(written: Callable[..., Written], dsn: str) -> None:
    sales = written(Sale, **HOW)
    for epoch in range(3):
        sales.write(epoch, [Sale(1, "a", epoch)])
    go_back(sales, 1, 2)
    sales.write(2, [Sale(1, "a", 20), Sale(2, "a", 20)], timeline="1")
    go_back(sales, -1, 2, timeline="1", following="2")
    assert rows_in(dsn) == [(1, "a", 1)]
    go_back(sales, 0, 2, timeline="0", following="2")
    assert rows_in(dsn) == [(1, "a", 0)]
    sales.write(1, [Sale(3, "c", 1)], timeline="2")
    assert rows_in(dsn) == [(1, "a", 0), (3, "c", 1)]


def test_any_epochs_can_be_taken_back(written: Callable[..., Written], dsn: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    sales = written(Sale, **HOW)
    seen: dict[int, list[tuple[Any, ...]]] = {-1: []}
    lineage = [(0, -1)]
    """Timelines, and behind which epoch each began."""
    epoch = -1
    for _ in range(40):
        timeline, began = lineage[-1]
        if epoch >= 0 and dice.random() < 0.25:
            to = dice.randrange(-1, epoch + 1)
            while True:
                # All of the newest timelines, and of the one that has the epoch what lies behind it.
                go_back(sales, to if to >= began else -1, 99, timeline=str(lineage[-1][0]), following=str(timeline + 1))
                if to >= began:
                    break
                lineage.pop()
                began = lineage[-1][1]
            lineage.append((timeline + 1, to))
            epoch = to
            assert rows_in(dsn) == seen[epoch]
        else:
            epoch += 1
            rows = [Sale(dice.randrange(5), dice.choice("ab"), dice.randrange(99)) for _ in range(dice.randrange(1, 5))]
            sales.write(epoch, rows, timeline=str(timeline))
            seen[epoch] = rows_in(dsn)


class Everything(hr.Record):
    id: int
    at: hr.Timestamp
    took: hr.Duration
    day: date
    price: Decimal
    uid: UUID
    ratio: float
    data: bytes
    tags: list[str]
    notes: dict[str, int]
    maybe: str | None = None


def test_former_rows_come_back_to_the_last_bit(written: Callable[..., Written], dsn: str) -> None:
    odd = Everything(
        1, hr.Timestamp(1_717_000_000_123_456), hr.Duration(3_723_000_001), date(2024, 2, 29), Decimal("12.340"),
        UUID(int=7), 0.1 + 0.2, b"\x00\xff", ["a,b", 'q"', "{}"], {"x": 1}, None,
    )  # fmt: skip
    far = Everything(
        2, hr.Timestamp(-1), hr.Duration(-5), date(1, 1, 1), Decimal("-0.000000000000000001"), UUID(int=2**127),
        float("-inf"), b"", [], {}, "it's \\ % fine",
    )  # fmt: skip
    table = written(Everything, table="sales", key="id", undo="1h")
    table.write(0, [odd, far])
    before = query(dsn, "SELECT * FROM sales ORDER BY id")
    plain = Everything(1, hr.Timestamp(0), hr.Duration(0), date(2000, 1, 1), Decimal(0), UUID(int=0), 0.0, b"", [], {})
    table.write(1, [plain, Everything(2, *[getattr(plain, name) for name in Everything.__annotations__][1:])])
    assert query(dsn, "SELECT * FROM sales ORDER BY id") != before
    go_back(table, 0, 1)
    assert query(dsn, "SELECT * FROM sales ORDER BY id") == before


def test_a_column_that_was_added_meanwhile_and_one_that_is_computed_do_no_harm(
    written: Callable[..., Written], dsn: str
) -> None:
    query(
        dsn,
        "CREATE TABLE sales (id bigint, shop text, cents bigint NOT NULL, PRIMARY KEY (shop, id), "
        "euros numeric GENERATED ALWAYS AS (cents / 100.0) STORED)",
    )
    sales = written(Sale, **HOW)
    sales.write(0, [Sale(1, "a", 100)])
    sales.write(1, [Sale(1, "a", 250)])
    query(dsn, "ALTER TABLE sales ADD COLUMN note text DEFAULT 'none'")
    go_back(sales, 0, 1)
    assert query(dsn, "SELECT id, cents, euros::float FROM sales") == [(1, 100, 1.0)]


# --- how far back


def test_former_rows_that_are_too_old_go_and_how_far_one_can_go_back_is_known(
    written: Callable[..., Written], dsn: str
) -> None:
    sales = written(Sale, **HOW)
    for epoch in range(4):
        sales.write(epoch, [Sale(1, "a", epoch)])
    query(dsn, "UPDATE headrace_undo SET written_at = now() - interval '2h' WHERE epoch <= 1")
    sales.sink._journal._pruned_s = float("-inf")  # type: ignore[attr-defined]
    sales.write(4, [Sale(1, "a", 4)])
    assert query(dsn, "SELECT count(*) FROM headrace_undo") == [(3,)]
    with pytest.raises(SinkFailed, match="has no earlier values of these rows") as caught:
        go_back(sales, 0, 4)
    assert "those since epoch 1 of timeline 0" in str(caught.value) and "--hold sales" in str(caught.value)
    assert rows_in(dsn) == [(1, "a", 4)]
    go_back(sales, 1, 4)
    assert rows_in(dsn) == [(1, "a", 1)]


def test_epochs_that_were_written_without_it_are_no_ground_to_go_back_on(
    written: Callable[..., Written], dsn: str
) -> None:
    written(Sale, **HOW).write(0, [Sale(1, "a", 0)])
    written(Sale, key=HOW["key"]).write(1, [Sale(1, "a", 1)])
    sales = written(Sale, **HOW)
    with pytest.raises(SinkFailed, match="written without undo="):
        go_back(sales, 0, 1)
    sales.write(2, [Sale(1, "a", 2)])
    with pytest.raises(SinkFailed, match="those since epoch 1") as caught:
        go_back(sales, 0, 2)
    assert "go back less far" in str(caught.value)
    go_back(sales, 1, 2)
    assert rows_in(dsn) == [(1, "a", 1)]


def test_another_stores_former_rows_are_its_own(written: Callable[..., Written], dsn: str) -> None:
    sales = written(Sale, **HOW)
    sales.write(0, [Sale(1, "a", 1)])
    ctx = sales.staging.forget(-1, 5, output="sales")
    ctx.job = "another"
    sales.sink.forget(ctx)
    assert rows_in(dsn) == [(1, "a", 1)]


def test_without_it_a_table_can_only_be_held(written: Callable[..., Written], dsn: str) -> None:
    assert hr.sink.postgres("t", dsn="x", key="id").rewinds == {"hold"}
    assert hr.sink.postgres("t", dsn="x", key="id", undo="1h").rewinds == {"hold", "repeat"}
    sales = written(Sale, key=HOW["key"])
    with pytest.raises(SinkFailed, match="cannot take rows back"):
        go_back(sales, 0, 1)


@pytest.mark.parametrize(
    "how", [{"undo": "1h"}, {"key": "id", "mode": "append", "undo": "1h"},
            {"key": "id", "guarantee": "at_least_once", "undo": "1h"}, {"key": "id", "undo": "0s"}], ids=str,
)  # fmt: skip
def test_former_rows_are_kept_only_of_rows_that_are_replaced(how: dict[str, Any]) -> None:
    with pytest.raises(hr.ProgramError, match="former rows cannot be kept here"):
        hr.sink.postgres("t", dsn="x", **how)


def test_the_span_is_shown_by_explain() -> None:
    assert hr.sink.postgres("t", dsn="x", key="id", undo=timedelta(days=1)).describe().endswith("by id, undo 1d)")
