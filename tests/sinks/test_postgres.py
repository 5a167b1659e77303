"""The Postgres sink, against a real server."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import headrace as hr
from headrace.errors import Fenced, SinkFailed, SinkUnavailable
from headrace.model.rows import codec_of
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import stage_rows
from tests.services.postgres import Postgres
from tests.services.proxy import Proxy
from tests.sinks.postgres_tables import Sale, Written, query


class Odd(hr.Record):
    counts: dict[str, int]
    maybe: str | None


# --- the contract


@pytest.mark.parametrize("how", [{}, {"key": Sale.id}, {"guarantee": "at_least_once"}], ids=str)
def test_it_keeps_the_promises_of_a_sink(postgres: Postgres, dsn: str, how: dict[str, Any]) -> None:
    proxy = Proxy(postgres.port)
    through = make_conninfo(dsn, port=proxy.port)
    numbers = itertools.count()

    def new_target() -> SinkTarget:
        schema = f"s{next(numbers)}"
        query(dsn, f"CREATE SCHEMA {schema}")
        return SinkTarget(
            lambda: hr.sink.postgres(f"{schema}.sales", dsn=through, **how),
            lambda: [Sale(*row) for row in query(dsn, f"SELECT id, shop, cents FROM {schema}.sales")],
            stop=postgres.stop,
            start=postgres.start,
            failing=proxy.failing,
        )

    versions = (Sale(1, "a", 1), Sale(1, "a", 2)) if "key" in how else None
    rows = [Sale(i, f"shop {i}", i) for i in range(7)]
    try:
        verify_sink(new_target, Sale, rows, versions=versions, staged=("local",))
    finally:
        proxy.close()


def test_a_server_that_stops_in_the_middle_of_a_release_gets_all_of_it_later(
    postgres: Postgres, written: Callable[..., Written], dsn: str
) -> None:
    sales = written(Sale)
    parts = stage_rows(sales.sink, sales.codec, sales.staging, 0, [[Sale(1, "a")], [Sale(2, "b")]])
    release = sales.staging.release(0)
    release.meanwhile, release.meanwhile_at = lambda: postgres.stop(hard=True), 1
    try:
        with pytest.raises(SinkUnavailable, match="could not write epoch 0 just now"):
            sales.sink.release(parts, release)
    finally:
        postgres.stop()
        postgres.start()
    assert query(dsn, "SELECT * FROM sales") == []
    sales.sink.release(parts, sales.staging.release(0))
    sales.sink.release(parts, sales.staging.release(0))
    assert query(dsn, "SELECT id, shop FROM sales ORDER BY id") == [(1, "a"), (2, "b")]


def test_the_table_of_epochs_says_what_is_in_the_table(written: Callable[..., Written], dsn: str) -> None:
    written(Sale).write(7, [Sale(1, "a")])
    assert query(dsn, "SELECT job, output, timeline, epoch FROM headrace_epochs") == [("staging", "sales", 0, 7)]


def test_an_older_timeline_is_fenced_off(written: Callable[..., Written], dsn: str) -> None:
    sales = written(Sale)
    sales.write(3, [Sale(1, "new")], timeline="10")
    with pytest.raises(Fenced, match="a newer run of this job"):
        sales.write(4, [Sale(2, "old")], timeline="9")
    assert query(dsn, "SELECT shop FROM sales") == [("new",)]


def test_another_store_begins_with_its_own_epochs(written: Callable[..., Written], dsn: str) -> None:
    sales = written(Sale)
    sales.write(3, [Sale(1, "a")])
    parts = stage_rows(sales.sink, sales.codec, sales.staging, 0, [[Sale(2, "b")]])
    other = sales.staging.release(0)
    other.job = "another"
    sales.sink.release(parts, other)
    assert query(dsn, "SELECT id FROM sales ORDER BY id") == [(1,), (2,)]


# --- keys


def test_the_last_row_of_a_key_wins_within_a_task_between_tasks_and_between_epochs(
    written: Callable[..., Written], dsn: str
) -> None:
    sales = written(Sale, key=("shop", Sale.id))
    sales.write(0, [Sale(1, "a", 1), Sale(1, "a", 2), Sale(2, "a", 1)], [Sale(1, "a", 3), Sale(1, "b", 9)])
    assert query(dsn, "SELECT id, shop, cents FROM sales ORDER BY shop, id") == [(1, "a", 3), (2, "a", 1), (1, "b", 9)]
    sales.write(1, [Sale(1, "a", 5), Sale(3, "c", 0), Sale(1, "a", 4)])
    expected = [(1, "a", 4), (2, "a", 1), (1, "b", 9), (3, "c", 0)]
    assert query(dsn, "SELECT id, shop, cents FROM sales ORDER BY shop, id") == expected


def test_rows_that_are_all_key_are_there_once(written: Callable[..., Written], dsn: str) -> None:
    seen = written(Sale, key=(Sale.id, Sale.shop, Sale.cents))
    seen.write(0, [Sale(1, "a")])
    seen.write(1, [Sale(1, "a"), Sale(2, "a")])
    assert query(dsn, "SELECT id FROM sales ORDER BY id") == [(1,), (2,)]


def test_only_with_a_key_it_takes_a_stream_that_corrects_itself() -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale)
    totals = sales.key_by(Sale.shop).aggregate(total=hr.sum("cents"))
    totals.write(hr.sink.postgres("totals", dsn="postgresql://nowhere", key="shop"))
    with pytest.raises(hr.ProgramError, match="postgres can only append rows"):
        totals.write(hr.sink.postgres("totals2", dsn="postgresql://nowhere"))
    with pytest.raises(hr.ProgramError, match="postgres can only append rows"):
        totals.write(hr.sink.postgres("totals3", dsn="postgresql://nowhere", key="shop", mode="append"))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mode": "upsert"}, "only by a key"),
        ({"mode": "replace"}, "no mode 'replace'"),
        ({"key": "nope"}, "no column 'nope'"),
        ({"key": "maybe"}, "maybe cannot be part of the key"),
        ({"key": "counts"}, "counts cannot be part of the key"),
        ({"key": 7}, "key takes columns"),
        ({"guarantee": "perhaps"}, "no guarantee 'perhaps'"),
        ({"table": "a.b.c"}, "invalid table name"),
        ({"table": '"a'}, "invalid table name"),
    ],
)
def test_a_mistake_is_told_while_the_program_is_built(how: dict[str, Any], said: str) -> None:
    with pytest.raises(hr.ProgramError, match=said):
        hr.sink.postgres(how.pop("table", "t"), dsn="", **how).bind(codec_of(Odd), "out")


# --- the table


def test_a_table_that_is_there_is_used_where_it_fits(written: Callable[..., Written], dsn: str) -> None:
    query(
        dsn,
        "CREATE TYPE shops AS ENUM ('a', 'b'); CREATE DOMAIN cents AS integer CHECK (VALUE >= 0);"
        "CREATE TABLE sales (cents cents, at timestamptz DEFAULT now(), serial bigserial, shop shops, "
        "doubled int GENERATED ALWAYS AS (id * 2) STORED, id int PRIMARY KEY)",
    )
    sales = written(Sale, key="id", create=False, guarantee="at_least_once")
    sales.write(0, [Sale(1, "a", 7)])
    assert query(dsn, "SELECT id, shop, cents, doubled, serial FROM sales") == [(1, "a", 7, 2, 1)]


def test_a_table_that_does_not_fit_is_told_in_one_list(written: Callable[..., Written], dsn: str) -> None:
    class Visit(hr.Record):
        id: int
        shop: str
        x: float
        days: list[date]
        doubled: int
        at: hr.Timestamp | None = None

    query(
        dsn,
        "CREATE TABLE visits (id int NOT NULL, shop int, x real, at timestamptz NOT NULL, "
        "doubled int GENERATED ALWAYS AS (id * 2) STORED, region text NOT NULL, note text)",
    )
    with pytest.raises(SinkFailed, match="the table visits does not fit the rows") as raised:
        written(Visit, table="visits", key="id")
    assert raised.value.found.splitlines() == [
        '- "shop" is integer, rows have text',
        '- "x" is real, rows have double precision',
        '- "days" date[] is missing',
        '- "doubled" is computed by the table and takes no value',
        '- "at" is NOT NULL, rows may have none',
        '- "region" text is NOT NULL and has no default, and rows have no such field',
        '- no unique index on ("id"), which is what key= needs',
    ]
    assert 'PRIMARY KEY ("id")' in raised.value.expected
    assert query(dsn, "SELECT count(*) FROM pg_class WHERE relname = 'headrace_epochs'") == [(0,)]


def test_a_view_is_no_table_to_write_to(written: Callable[..., Written], dsn: str) -> None:
    query(dsn, "CREATE VIEW sales AS SELECT 1::bigint AS id, 'a'::text AS shop, 1::bigint AS cents")
    with pytest.raises(SinkFailed, match="it is no table"):
        written(Sale)


def test_without_create_a_missing_table_is_told_with_the_statement_that_makes_it(
    written: Callable[..., Written], dsn: str
) -> None:
    with pytest.raises(SinkFailed, match="there is no table sales") as raised:
        written(Sale, create=False)
    assert 'CREATE TABLE "sales" (\n    "id" bigint NOT NULL,' in raised.value.next_move
    query(dsn, raised.value.next_move.partition("\n")[2])
    with pytest.raises(SinkFailed, match="there is no table headrace_epochs") as raised:
        written(Sale, create=False)
    query(dsn, raised.value.next_move.partition("\n")[2])
    written(Sale, create=False).write(0, [Sale(1, "a")])
    assert query(dsn, "SELECT id FROM sales") == [(1,)]


# --- what the server refuses


@pytest.mark.parametrize("how", [{}, {"key": "id"}], ids=["append", "upsert"])
@pytest.mark.parametrize(
    ("column", "row", "column_said", "row_said", "move"),
    [
        ("cents int", Sale(1, "a\nb", 2**31), "column cents", "shop='a\\nb', cents='2147483648'", "widen the column"),
        ("shop varchar(3)", Sale(1, "four"), "column shop", "shop='four'", "TYPE text"),
        ("shop text CHECK (shop <> 'bad')", Sale(1, "bad"), "", "bad", "the check"),
    ],
)
def test_a_value_that_is_refused_is_told_with_its_column_and_row(
    written: Callable[..., Written],
    dsn: str,
    how: Any,
    column: str,
    row: Sale,
    column_said: str,
    row_said: str,
    move: str,
) -> None:
    rest = {"shop": "shop text", "cents": "cents bigint"} | {column.split()[0]: column}
    query(dsn, f"CREATE TABLE sales (id bigint PRIMARY KEY, {', '.join(rest.values())})")
    sales = written(Sale, **how)
    sales.write(0, [Sale(8, "x")])
    with pytest.raises(SinkFailed) as raised:
        sales.write(1, [Sale(9, "\n\n")], [Sale(7, "x"), row])
    told = str(raised.value)
    assert not isinstance(raised.value, SinkUnavailable)
    assert "sink.postgres('sales')" in told and column_said in told and row_said in told and move in told, told
    assert query(dsn, "SELECT id FROM sales") == [(8,)]


def test_a_row_that_is_there_already_is_refused_without_a_key(written: Callable[..., Written], dsn: str) -> None:
    sales = written(Sale, key="id", mode="append")
    sales.write(0, [Sale(1, "a")])
    with pytest.raises(SinkFailed, match=r"Key \(id\)=\(1\) already exists") as raised:
        sales.write(1, [Sale(1, "b")])
    assert "write with key=" in raised.value.next_move


# --- the way to the server


def test_a_server_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(SinkUnavailable, match="could not prepare the table just now"):
        Written("postgresql://u:hidden@127.0.0.1:1/x", tmp_path, Sale)


def test_a_database_that_is_not_there_is_not_tried_again(postgres: Postgres, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="does not exist") as raised:
        Written(make_conninfo(postgres.dsn, dbname="nope"), tmp_path, Sale)
    assert not isinstance(raised.value, SinkUnavailable)


def test_the_dsn_is_never_shown(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in ("sesame", "postgresql://u:sesame@127.0.0.1:1/x", "host=127.0.0.1 port=1 password=sesame"):
        monkeypatch.setenv("PG_DSN", broken)
        sink = hr.sink.postgres("sales", dsn=hr.secret("PG_DSN")).bind(codec_of(Sale), "out")
        with pytest.raises(SinkFailed) as raised:
            sink.start()
        assert "sesame" not in f"{raised.value} {sink.describe()} {sink.__getstate__()}"
    assert conninfo_to_dict(postgres.dsn)


def test_a_row_that_somebody_else_locks_is_waited_for_and_then_told(
    written: Callable[..., Written], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = written(Sale)
    sales.write(0, [Sale(1, "a")])
    sales.sink._connection.execute("SET lock_timeout = '50ms'")  # type: ignore[attr-defined]
    with psycopg.connect(dsn) as other:
        other.execute("SELECT * FROM headrace_epochs FOR UPDATE")
        with pytest.raises(SinkUnavailable, match="lock timeout"):
            sales.write(1, [Sale(2, "b")])
    sales.write(1, [Sale(2, "b")])
    assert query(dsn, "SELECT id FROM sales ORDER BY id") == [(1,), (2,)]
