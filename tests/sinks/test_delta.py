"""The Delta sink, on real tables of this machine and of an object store."""

from __future__ import annotations

import itertools
import sys
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import EnvironmentMissing, Fenced, SettingsError, SinkFailed, SinkUnavailable
from headrace.model.rows import codec_of
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows
from tests.services.proxy import Proxy
from tests.sinks.delta_rows import rows_at, rows_of

if TYPE_CHECKING:
    from tests.objects import ObjectServer


class Sale(hr.Record):
    id: int
    shop: str
    at: hr.Timestamp
    cents: int = 0


SALES = [Sale(i, f"shop {i % 3}", hr.Timestamp(i * 1_000_001), i) for i in range(7)]


class Line(hr.Record):
    article: str
    price: Decimal


class Order(hr.Record):
    id: int
    day: date
    at: hr.Timestamp
    seen: datetime
    total: Decimal
    weight: float
    paid: bool
    proof: bytes
    tags: list[str]
    lines: list[Line]
    counts: dict[str, int]
    best: Line | None
    note: str | None = None


def read(path: Path, type: Any) -> list[Any]:
    return objects(rows_of(deltalake.DeltaTable(path)), type)


def objects(table: pa.Table, type: Any) -> list[Any]:
    codec = codec_of(type)
    batches = table.select(codec.names).cast(codec.schema).to_batches()
    return [row for batch in batches for row in codec.to_objects(batch.columns)]


class Written:
    """A sink that was started, with a staging area of its own."""

    def __init__(self, folder: Path, type: Any = Sale, path: Any = None, **how: Any) -> None:
        self.path = path or folder / "table"
        self.codec = codec_of(type)
        self.staging = Staging(folder)
        self.sink = hr.sink.delta(self.path, **how).bind(self.codec, "sales")
        self.sink.start()

    def write(self, epoch: int, *tasks: list[Any], timeline: str = "0") -> None:
        parts = stage_rows(self.sink, self.codec, self.staging, epoch, tasks)
        self.sink.release(parts, self.staging.release(epoch, "sales", timeline))


def versions(path: Any) -> int:
    return deltalake.DeltaTable(str(path)).version()


# --- the contract


@pytest.mark.parametrize("how", [{}, {"partition_by": Sale.shop}, {"guarantee": "at_least_once"}], ids=str)
def test_it_keeps_the_promises_of_a_sink(tmp_path: Path, how: dict[str, Any]) -> None:
    numbers = itertools.count()

    def new_target() -> SinkTarget:
        path = tmp_path / f"table{next(numbers)}"
        return SinkTarget(lambda: hr.sink.delta(path, **how), lambda: read(path, Sale))

    verify_sink(new_target, Sale, SALES, staged=("local",) if how else ("local", "inline"))


def test_it_keeps_them_in_an_object_store_that_goes_away(
    object_server: ObjectServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(int(object_server.url.rpartition(":")[2]))
    reading = {"aws_endpoint_url": object_server.url, "aws_allow_http": "true"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    numbers = itertools.count()
    away = ExitStack()

    def new_target() -> SinkTarget:
        path = f"s3://{bucket}/table{next(numbers)}"

        def make() -> Any:
            options = {"max_retries": "0", "aws_secret_access_key": hr.secret("AWS_SECRET_ACCESS_KEY")}
            made = hr.sink.delta(path, storage_options=options)
            # Going back keeps all threads of Python waiting, the proxy too: test_delta_rewind has no proxy.
            made.rewinds = frozenset({"hold"})
            return made

        return SinkTarget(
            make,
            lambda: objects(rows_at(path, storage_options=reading), Sale),
            stop=lambda: away.enter_context(proxy.failing(0)),
            start=away.close,
            failing=proxy.failing,
        )

    try:
        verify_sink(new_target, Sale, SALES, staged=("remote",))
    finally:
        away.close()
        proxy.close()


def test_an_epoch_is_one_version_of_the_table_and_says_its_number(tmp_path: Path) -> None:
    sales = Written(tmp_path)
    assert versions(sales.path) == 0, "the table is made at the start"
    sales.write(3, SALES[:2], SALES[2:4])
    sales.write(4, SALES[4:])
    table = deltalake.DeltaTable(sales.path)
    assert table.version() == 2
    assert table.transaction_version("headrace-staging-sales") == 4
    assert len(table.file_uris()) == 2, "rows of several tasks share a file"


def test_an_older_timeline_is_fenced_off(tmp_path: Path) -> None:
    sales = Written(tmp_path)
    sales.write(3, SALES[:1], timeline="10")
    with pytest.raises(Fenced, match="a newer run of this job"):
        sales.write(4, SALES[1:], timeline="9")
    assert read(sales.path, Sale) == SALES[:1]


def test_a_driver_that_is_overtaken_in_the_middle_of_its_commit_adds_nothing(tmp_path: Path) -> None:
    old, new = Written(tmp_path), Written(tmp_path)
    parts = stage_rows(old.sink, old.codec, old.staging, 0, [SALES[:2], SALES[2:4]])
    later = stage_rows(old.sink, old.codec, old.staging, 1, [SALES[4:]])

    def overtake() -> None:
        new.sink.release(parts, new.staging.release(0, "sales"))
        new.sink.release(later, new.staging.release(1, "sales"))
        seen.append(versions(new.path))

    seen: list[int] = []

    def meanwhile() -> None:
        other = Thread(target=overtake)
        other.start()
        other.join(30)
        assert seen == [2], "the other one has written while this one is in the middle"

    paused = old.staging.release(0, "sales")
    paused.meanwhile, paused.meanwhile_at = meanwhile, 1
    old.sink.release(parts, paused)
    assert versions(old.path) == 2
    assert sorted(read(old.path, Sale), key=lambda sale: sale.id) == SALES


def test_two_jobs_and_a_person_share_a_table(tmp_path: Path) -> None:
    sales = Written(tmp_path)
    sales.write(0, SALES[:2])
    parts = stage_rows(sales.sink, sales.codec, sales.staging, 0, [SALES[2:4]])
    other = sales.staging.release(0, "sales")
    other.job = "another"
    sales.sink.release(parts, other)
    deltalake.DeltaTable(sales.path).optimize.compact()
    sales.write(0, SALES[:2])
    sales.write(1, SALES[4:])
    assert sorted(read(sales.path, Sale), key=lambda sale: sale.id) == SALES


def test_a_column_that_is_added_while_a_job_runs_stays_empty(tmp_path: Path) -> None:
    sales = Written(tmp_path)
    sales.write(0, SALES[:2])
    added = deltalake.Field("buyer", "string")
    deltalake.DeltaTable(sales.path).alter.add_columns(added)
    sales.write(1, SALES[2:])
    table = rows_of(deltalake.DeltaTable(sales.path))
    assert table.column("buyer").null_count == table.num_rows == len(SALES)


def test_a_table_outlives_the_checkpoints_of_its_log(tmp_path: Path) -> None:
    deltalake.DeltaTable.create(
        tmp_path / "table", codec_of(Sale).schema, configuration={"delta.checkpointInterval": "3"}
    )
    sales = Written(tmp_path)
    for epoch in range(7):
        sales.write(epoch, [SALES[epoch]])
    assert list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet"))
    Written(tmp_path).write(6, [SALES[6]])
    assert sorted(read(sales.path, Sale), key=lambda sale: sale.id) == SALES


# --- types and partitions


ORDERS = [
    Order(
        i, date(2024, 1, 1 + i), hr.Timestamp(1_700_000_000_123_456 + i), datetime(2024, 1, 1, 12, i, tzinfo=UTC),
        Decimal("12345678.0000001"), i / 3, i % 2 == 0, bytes([i]), ["a", "ä"][:i], [Line("x", Decimal(i))] * i,
        {"n": i}, Line("b", Decimal("0.1")) if i else None, None if i else "first",
    )
    for i in range(3)
]  # fmt: skip


@pytest.mark.parametrize("by", [(), ("day", Order.paid), ("at", "weight"), ("total",)], ids=str)
def test_values_of_every_type_come_back(tmp_path: Path, by: Any) -> None:
    Written(tmp_path, Order, partition_by=by).write(0, ORDERS)
    assert sorted(read(tmp_path / "table", Order), key=lambda order: order.id) == ORDERS


def test_partitions_are_folders_by_value(tmp_path: Path) -> None:
    odd = [Sale(1, "a/b=c", hr.Timestamp(0)), Sale(2, "ä 1%", hr.Timestamp(0))]
    Written(tmp_path, partition_by=Sale.shop).write(0, SALES, odd)
    table = deltalake.DeltaTable(tmp_path / "table")
    assert table.metadata().partition_columns == ["shop"]
    assert len(table.file_uris()) == 5, "one file per partition"
    assert sorted(read(tmp_path / "table", Sale), key=lambda sale: (sale.at, sale.id)) == sorted(
        [*SALES, *odd], key=lambda sale: (sale.at, sale.id)
    )


# --- tables that are there


class Wider(hr.Record):
    id: int
    shop: str
    at: hr.Timestamp
    cents: int = 0
    buyer: str | None = None


def test_a_table_that_does_not_fit_is_told_column_by_column(tmp_path: Path) -> None:
    fields = [
        pa.field("id", pa.string()),
        pa.field("shop", pa.string()),
        pa.field("at", pa.list_(pa.int32())),
        pa.field("who", pa.string(), nullable=False),
    ]
    deltalake.DeltaTable.create(tmp_path / "table", pa.schema(fields), partition_by=["who"])
    with pytest.raises(SinkFailed, match="does not fit") as failed:
        Written(tmp_path, partition_by="shop")
    assert failed.value.found.splitlines() == [
        "- `id` is STRING, rows have BIGINT",
        "- `at` is ARRAY<INT>, rows have TIMESTAMP",
        "- `cents` BIGINT is missing",
        "- `who` STRING is NOT NULL, and rows have no such field",
        "- it is partitioned by (`who`), partition_by= says (`shop`)",
    ]
    assert "`id` BIGINT, `shop` STRING" in failed.value.expected


def test_a_column_that_is_new_is_refused_or_added(tmp_path: Path) -> None:
    Written(tmp_path).write(0, SALES[:3])
    with pytest.raises(SinkFailed, match=r"schema_mode=.merge") as failed:
        Written(tmp_path, Wider)
    assert failed.value.found == "- `buyer` STRING is missing"
    wider = Written(tmp_path, Wider, schema_mode="merge")
    wider.write(1, [Wider(9, "x", hr.Timestamp(0), 1, "me")])
    rows = read(wider.path, Wider)
    assert sorted(row.buyer or "" for row in rows) == ["", "", "", "me"]


def test_rows_that_an_earlier_program_staged_are_released_by_a_later_one(tmp_path: Path) -> None:
    sales = Written(tmp_path)
    parts = stage_rows(sales.sink, sales.codec, sales.staging, 0, [SALES])
    later = Written(tmp_path, Wider, schema_mode="merge")
    later.sink.release(parts, later.staging.release(0, "sales"))
    assert [row.buyer for row in read(later.path, Wider)] == [None] * len(SALES)


def test_a_narrower_column_takes_what_fits_and_refuses_the_rest_aloud(tmp_path: Path) -> None:
    class Priced(hr.Record):
        id: int
        price: Decimal

    narrow = pa.schema([("id", pa.int16()), ("price", pa.decimal128(8, 2))])
    deltalake.DeltaTable.create(tmp_path / "table", narrow)
    priced = Written(tmp_path, Priced)
    priced.write(0, [Priced(7, Decimal("1.25"))])
    for row, column in ((Priced(2**20, Decimal(1)), "id"), (Priced(1, Decimal("0.125")), "price")):
        with pytest.raises(SinkFailed, match=f"does not fit the column {column}"):
            priced.write(1, [row])
    assert read(priced.path, Priced) == [Priced(7, Decimal("1.25"))]


def test_constraints_of_the_table_hold(tmp_path: Path) -> None:
    sales = Written(tmp_path)
    deltalake.DeltaTable(sales.path).alter.add_constraint({"cheap": "cents < 5"})
    sales.write(0, SALES[:5])
    with pytest.raises(SinkFailed, match="failed validation") as failed:
        sales.write(1, SALES[5:])
    assert "change or drop the constraint" in failed.value.next_move
    assert len(read(sales.path, Sale)) == 5


def test_a_table_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    sales = Written(tmp_path)
    sales.write(0, SALES[:1])
    (tmp_path / "table" / "_delta_log").rename(tmp_path / "elsewhere")
    for said in ("taken away or replaced", "bring it back"):
        with pytest.raises(SinkFailed, match=said):
            sales.write(1, SALES[1:])
    (tmp_path / "elsewhere").rename(tmp_path / "table" / "_delta_log")
    sales.write(1, SALES[1:])
    assert len(read(sales.path, Sale)) == len(SALES)


# --- what is refused


def test_a_path_that_cannot_be_a_table_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("no folder")
    with pytest.raises(SinkFailed, match="could not prepare the table"):
        Written(tmp_path)


def test_a_bucket_that_is_missing_is_told_and_not_waited_for(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed) as failed:
        Written(tmp_path, path=f"s3://{bucket}-not/table")
    assert not isinstance(failed.value, SinkUnavailable)
    assert "create the bucket" in failed.value.next_move


def test_a_secret_that_is_not_set_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="NO_SUCH_KEY"):
        Written(tmp_path, path="s3://lake/table", storage_options={"aws_secret_access_key": hr.secret("NO_SUCH_KEY")})


class Odd(hr.Record):
    name: str
    counts: dict[str, int]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"partition_by": "nope"}, "no column 'nope'"),
        ({"partition_by": "counts"}, "cannot partition by counts"),
        ({"partition_by": 7}, "partition_by takes columns"),
        ({"schema_mode": "overwrite"}, "no schema_mode 'overwrite'"),
        ({"guarantee": "perhaps"}, "no guarantee 'perhaps'"),
    ],
)
def test_a_mistake_is_told_while_the_program_is_built(how: dict[str, Any], said: str) -> None:
    with pytest.raises(hr.ProgramError, match=said):
        hr.sink.delta("table", **how).bind(codec_of(Odd), "out")


def test_a_stream_that_corrects_itself_is_refused() -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale)
    with pytest.raises(hr.ProgramError, match="delta can only append rows"):
        sales.key_by(Sale.shop).aggregate(total=hr.sum("cents")).write(hr.sink.delta("totals"))


def test_without_the_package_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(EnvironmentMissing, match="deltalake is not installed") as missing:
        Written(tmp_path)
    assert missing.value.next_move.startswith('pip install "headrace[delta]"')
