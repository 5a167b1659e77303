"""`headrace refill` of windows that ended: kept ones, and all of them where they are archived."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.loading import load_app
from tests.cli.calling import call, call_json
from tests.sinks.postgres_tables import query

NUMBERS = count()

PROGRAM = """
import os

import headrace as hr


class Sale(hr.Record):
    shop: str
    cents: int
    at: hr.Timestamp


class Hourly(hr.Record):
    shop: str
    window_start: hr.Timestamp
    window_end: hr.Timestamp
    cents: int


def table(name):
    return hr.sink.postgres(name, dsn=os.environ["PG_DSN"], key=("shop", "window_start", "window_end"))


app = hr.App("shop")
sales = app.read("sales", hr.source.items([]), Sale, time="at")
by_shop = sales.key_by(Sale.shop)


def hourly(name, window, **options):
    return by_shop.window(window, **options).aggregate(Hourly, cents=hr.sum("cents")).named(name)


archived = hourly("archived", hr.tumbling("1h"), allow_late="10m").queryable(keep="2h", archive=os.environ["ARCHIVE"])
archived.where("cents > 0").write(table("archived"), name="archived")
kept = hourly("kept", hr.sliding("1h", every="30m")).queryable(keep="2h")
kept.write(table("kept"), name="kept")
sessions = hourly("sessions", hr.session("30m")).queryable(archive=os.environ["ARCHIVE"] + "-sessions")
sessions.write(table("sessions"), name="sessions")
hourly("gone", hr.tumbling("1h")).write(table("gone"), name="gone")
hourly("early", hr.tumbling("1h"), fire=hr.per_epoch()).queryable(keep="1h").write(table("early"), name="early")
"""

TABLES = ("archived", "kept", "sessions")


class Shop:
    def __init__(self, folder: Path, dsn: str) -> None:
        name = f"refilled_windows_{next(NUMBERS)}"
        self.file = folder / f"{name}.py"
        self.file.write_text(PROGRAM)
        self.store, self.dsn = folder / "store", dsn
        app = load_app(str(self.file))
        self.module = sys.modules[name]
        self.harness = hr.testing.Harness(app, store=self.store, sinks=True, start="2024-01-01T00:00")

    def sell(self, *rows: tuple[str, str, int], watermark: str) -> None:
        h = self.harness
        h.push(self.module.sales, *(self.module.Sale(shop, cents, h.at(at)) for shop, at, cents in rows))
        h.epoch(watermark=watermark)

    def rows(self, table: str) -> list[Any]:
        return sorted(query(self.dsn, f"SELECT shop, window_start::text, cents FROM {table}"))

    def refill(self, output: str, *words: str) -> Any:
        return call("refill", str(self.file), output, "--store", str(self.store), *words)

    def report(self, output: str, *words: str) -> Any:
        return call_json("refill", str(self.file), output, "--store", str(self.store), *words)


@pytest.fixture
def dsn(postgres: Any) -> str:
    return str(postgres.database())


@pytest.fixture
def shop(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("PG_DSN", dsn)
    monkeypatch.setenv("ARCHIVE", str(tmp_path / "archive"))
    shop = Shop(tmp_path, dsn)
    with shop.harness:
        shop.sell(("a", "00:10", 1), ("b", "00:50", 2), watermark="00:59")
        shop.sell(("a", "00:55", 10), ("a", "01:10", 3), ("c", "01:20", 4), watermark="02:00")
        # Late, and still counted.
        shop.sell(("c", "01:55", 40), ("a", "02:30", 5), watermark="02:05")
        shop.sell(("b", "03:10", 6), watermark="04:00")
        yield shop


def test_what_is_lost_of_closed_windows_comes_back_as_it_was(shop: Shop) -> None:
    before = {table: shop.rows(table) for table in TABLES}
    assert len(before["archived"]) == 6 and ("c", "2024-01-01 01:00:00+00", 44) in before["archived"]
    for table in TABLES:
        assert "the target agrees" in shop.refill(table, "--verify").stdout
        query(shop.dsn, f"DELETE FROM {table} WHERE shop = 'b'")
        query(shop.dsn, f"UPDATE {table} SET cents = 0 WHERE shop = 'a'")
        assert shop.refill(table, "--verify").exit_code == 1
        shop.refill(table)
        report = shop.report(table, "--verify")
        assert (report["missing"], report["different"]) == (0, 0)
    assert [shop.rows(table) for table in ("archived", "sessions")] == [before["archived"], before["sessions"]]
    # Windows that are kept no longer are in no state: their rows are left as they are.
    rows = shop.rows("kept")
    assert {row for row in rows if row[2]} < set(before["kept"])
    assert all(row in rows for row in before["kept"] if row[1] >= "2024-01-01 02:00")


def test_rows_that_no_window_has_are_told_only_where_all_windows_are_known(shop: Shop) -> None:
    for table in ("archived", "kept"):
        query(shop.dsn, f"INSERT INTO {table} VALUES ('x', now(), now(), 1)")
    assert shop.refill("archived").exit_code == 1
    assert shop.report("archived", "--delete-extra")["deleted"] == 1
    told = shop.refill("kept", "--delete-extra")
    assert told.exit_code == 0 and "extra rows were not looked for" in told.stdout
    assert shop.report("kept")["extra"] is None
    assert [row for row in shop.rows("kept") if row[0] == "x"]


def test_windows_that_are_nowhere_or_give_rows_early_are_refused(shop: Shop) -> None:
    gone = shop.refill("gone")
    assert gone.exit_code == 1
    assert "queryable(keep=…) or queryable(archive=…) keeps them" in gone.stderr
    assert "which give rows before they end, too" in shop.refill("early").stderr


def test_while_the_job_goes_on_the_same_rows_are_read_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime import refill

    query(shop.dsn, "DELETE FROM archived")
    real, moved = refill.Refilling._compare, [0]

    def compare(self: Any, rows: Any, *, write: bool) -> Any:
        if moved[0] < 2:
            moved[0] += 1
            shop.sell(("d", f"0{moved[0] + 4}:10", 1), watermark=f"0{moved[0] + 5}:30")
        return real(self, rows, write=write)

    monkeypatch.setattr(refill.Refilling, "_compare", compare)
    assert shop.refill("archived").exit_code == 0
    assert [row[0] for row in shop.rows("archived")].count("d") == 2 and len(shop.rows("archived")) == 8
