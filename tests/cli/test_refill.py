"""`headrace refill`: what a step holds is in the target again, and what is not is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.loading import load_app
from headrace.connectors.keyed_target import Comparison, Difference
from headrace.model.crash import Crash, planned
from headrace.runtime import refill, state_rows
from tests.cli.calling import call, call_json
from tests.services.redis import Redis
from tests.sinks.postgres_tables import query

NUMBERS = count()

PROGRAM = """
import os

import headrace as hr


class Sale(hr.Record):
    shop: str
    cents: int


class Total(hr.Record):
    shop: str
    euros: float


app = hr.App("shop")
sales = app.read("sales", hr.source.items([]), Sale)
totals = sales.key_by(Sale.shop).aggregate(cents=hr.sum("cents")).named("totals")
totals.write(hr.sink.postgres("totals", dsn=os.environ["PG_DSN"], key="shop"), name="totals")


def rounded(total: Total) -> Total:
    return total.replace(euros=round(total.euros, 2))


totals.where("cents > 0").select(Total, shop="shop", euros="cents / 100.0").map(rounded).write(
    hr.sink.postgres("euros", dsn=os.environ["PG_DSN"], key="shop", undo="1h"), name="euros"
)
newest = sales.key_by(Sale.shop).latest().named("newest")
newest.write(hr.sink.postgres("newest", dsn=os.environ["PG_DSN"], key="shop"), name="newest")
sums = sales.key_by(Sale.shop).reduce(lambda a, b: a.replace(cents=a.cents + b.cents)).named("sums")
sums.write(hr.sink.postgres("sums", dsn=os.environ["PG_DSN"], key="shop"), name="sums")
sales.write(hr.sink.postgres("raw", dsn=os.environ["PG_DSN"], key="shop"), name="raw")
totals.union(totals.where("cents > 5")).write(hr.sink.postgres("two", dsn=os.environ["PG_DSN"], key="shop"), name="two")
hashes = hr.sink.redis(url=os.environ["REDIS_URL"], key=os.environ["PG_DSN"] + ":{shop}", as_="hash")
totals.write(hashes, name="hashes")
sums.write(hr.sink.call(lambda rows, epoch: None), name="called")
"""


class Shop:
    """The program above in a file, its job in a harness, and its tables."""

    def __init__(self, folder: Path, dsn: str) -> None:
        name = f"refilled_shop_{next(NUMBERS)}"
        self.file = folder / f"{name}.py"
        self.file.write_text(PROGRAM)
        self.store = folder / "store"
        self.dsn = dsn
        self.app = load_app(str(self.file))
        self.module = sys.modules[name]
        self.harness = hr.testing.Harness(self.app, store=self.store, sinks=True)

    def sell(self, *cents: int, shops: int = 3) -> None:
        rows = [self.module.Sale(f"shop {i % shops}", each) for i, each in enumerate(cents)]
        self.harness.push(self.module.sales, *rows)
        self.harness.epoch()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return query(self.dsn, f"SELECT * FROM {table} ORDER BY shop")

    def refill(self, *arguments: object) -> Any:
        return call("refill", self.file, *arguments, "--store", self.store)


@pytest.fixture
def shop(tmp_path: Path, dsn: str, redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("PG_DSN", dsn)
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    made = Shop(tmp_path, dsn)
    made.sell(1, 2, 3, 4, 5, 6)
    yield made
    with suppress(Exception):
        made.harness.__exit__(None, None, None)


@pytest.fixture
def dsn(postgres: Any) -> str:
    return str(postgres.database())


@pytest.mark.parametrize("output", ["totals", "euros", "newest", "sums", "two"])
def test_a_table_that_agrees_is_told_to(shop: Shop, output: str) -> None:
    done = shop.refill(output, "--verify")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{output}: 3 rows of epoch 0, and the target agrees\n"


@pytest.mark.parametrize("output", ["totals", "euros", "newest", "sums", "two"])
def test_rows_that_are_missing_or_differ_are_written_again(shop: Shop, output: str) -> None:
    before = shop.rows(output)
    query(shop.dsn, f"DELETE FROM {output} WHERE shop = 'shop 0'")
    column = "euros" if output == "euros" else "cents"
    query(shop.dsn, f"UPDATE {output} SET {column} = -1 WHERE shop = 'shop 1'")
    found = shop.refill(output, "--verify")
    assert found.exit_code == 1
    assert "1 missing and 1 different in the target\n" in found.stdout
    assert "missing   shop 0" in found.stdout and "different shop 1   target" in found.stdout
    assert shop.rows(output) != before
    done = shop.refill(output)
    assert done.exit_code == 0, done.stderr
    assert "now written" in done.stdout
    assert shop.rows(output) == before
    assert shop.refill(output, "--verify").exit_code == 0


def test_rows_of_other_keys_are_told_and_deleted_only_when_asked(shop: Shop) -> None:
    before = shop.rows("totals")
    query(shop.dsn, "INSERT INTO totals VALUES ('ghost', 5)")
    done = shop.refill("totals")
    assert done.exit_code == 1
    assert "3 rows of epoch 0 agree; 1 in the target that the state does not have" in done.stdout
    assert "extra     ghost   target" in done.stdout
    assert len(shop.rows("totals")) == 4
    done = shop.refill("totals", "--delete-extra")
    assert done.exit_code == 0 and "1 extra deleted" in done.stdout
    assert shop.rows("totals") == before


def test_machines_are_told_the_same(shop: Shop) -> None:
    query(shop.dsn, "UPDATE totals SET cents = 0 WHERE shop = 'shop 2'")
    done = shop.refill("totals", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    examples = told.pop("examples")
    assert told == {
        "output": "totals", "epoch": 0, "rows": 3, "missing": 0, "different": 1, "extra": 0, "written": True,
        "deleted": 0,
    }  # fmt: skip
    assert [(each["kind"], each["key"]) for each in examples] == [("different", "shop 2")]
    assert call_json("refill", shop.file, "totals", "--store", shop.store, "--verify")["different"] == 0


# --- while the job runs


def test_a_job_that_goes_on_meanwhile_is_never_overwritten(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two pieces the job publishes and releases an epoch that changes keys before and behind."""
    monkeypatch.setattr(state_rows, "KEYS_AT_ONCE", 4)
    shop.sell(*range(40), shops=20)
    query(shop.dsn, "UPDATE totals SET cents = -1")
    epochs = 0

    def go_on(point: str, epoch: int) -> None:
        nonlocal epochs
        if point == "refilling" and epochs < 6:
            epochs += 1
            shop.sell(*range(100, 110 + epochs), shops=20 + epochs)

    with planned(go_on):
        done = shop.refill("totals", "--json")
    told = json.loads(done.stdout)
    assert epochs == 6 and told["epoch"] == 7 and told["extra"] == 0, done.stderr
    state = hr.Store(str(shop.store)).state("totals")
    assert shop.rows("totals") == sorted((key, row["cents"]) for key, row in state.scan())
    assert shop.refill("totals", "--verify").exit_code == 0


def test_keys_of_redis_are_filled_beside_the_job_too(
    shop: Shop, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_rows, "KEYS_AT_ONCE", 4)
    shop.sell(*range(40), shops=20)
    with redis_server.client() as client:
        keys = sorted(client.keys(f"{shop.dsn}:*"))
        client.delete(*keys[::2])
        client.hset(f"{shop.dsn}:ghost", "shop", "ghost")
        epochs = 0

        def go_on(point: str, epoch: int) -> None:
            nonlocal epochs
            if point == "refilling" and epochs < 4:
                epochs += 1
                shop.sell(*range(100, 110 + epochs), shops=20 + epochs)

        with planned(go_on):
            done = shop.refill("hashes", "--delete-extra", "--json")
        told = json.loads(done.stdout)
        # The job has written some of them itself meanwhile.
        assert 0 < told["missing"] <= len(keys[::2])
        assert (epochs, told["deleted"], done.exit_code) == (4, 1, 0), done.stderr
        state = hr.Store(str(shop.store)).state("totals")
        there = {key: client.hgetall(key)[b"cents"] for key in client.keys(f"{shop.dsn}:*")}
        assert there == {f"{shop.dsn}:{key}".encode(): str(row["cents"]).encode() for key, row in state.scan()}
    assert shop.refill("hashes", "--verify").exit_code == 0


def test_an_epoch_between_reading_and_writing_is_noticed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    query(shop.dsn, "UPDATE totals SET cents = -1")
    parts_of, went_on = refill.parts_of, False

    def late(sink: Any, rows: Any) -> Any:
        nonlocal went_on
        parts = parts_of(sink, rows)
        if not went_on:
            went_on = True
            shop.sell(1000, shops=1)
        return parts

    monkeypatch.setattr(refill, "parts_of", late)
    assert shop.refill("totals").exit_code == 0
    assert shop.rows("totals") == [("shop 0", 1005), ("shop 1", 7), ("shop 2", 9)]


def test_an_epoch_that_is_published_and_not_released_is_not_run_ahead_of(shop: Shop) -> None:
    with suppress(Crash):
        shop.harness.push(shop.module.sales, shop.module.Sale("shop 0", 50))
        shop.harness.crash("published")
    query(shop.dsn, "DELETE FROM totals")
    done = shop.refill("totals", "--json")
    assert done.exit_code == 0, done.stderr


def test_a_refill_that_died_is_completed_by_the_next(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_rows, "KEYS_AT_ONCE", 4)
    shop.sell(*range(40), shops=20)
    before = shop.rows("totals")
    query(shop.dsn, "DELETE FROM totals")
    left = 3

    def die(point: str, epoch: int) -> None:
        nonlocal left
        left -= point == "refilling"
        if not left:
            raise Crash("in the middle of a refill")

    with planned(die), pytest.raises(Crash):
        call("refill", shop.file, "totals", "--store", shop.store, catch_exceptions=False)
    assert 0 < len(shop.rows("totals")) < len(before)
    assert shop.refill("totals").exit_code == 0
    assert shop.rows("totals") == before


# --- behind a rewind


def go_back(shop: Shop, **how: Any) -> None:
    shop.harness.__exit__(None, None, None)
    shop.harness = hr.testing.Harness(shop.app, store=shop.store, sinks=True, start_from="0", **how)


OTHERS = ("hashes", "totals", "newest", "sums", "raw", "two")


def test_a_rewind_takes_rows_back_and_a_refill_agrees_with_it(shop: Shop) -> None:
    """The tables of Postgres, by real epochs, rewinds and releases."""
    before = shop.rows("euros")
    shop.sell(10, 20, 30, 40, shops=4)
    assert shop.rows("euros") != before
    go_back(shop, repeat=("euros", "called"), hold=OTHERS)
    assert shop.rows("euros") == before
    assert shop.refill("euros", "--verify").stdout == "euros: 3 rows of epoch 0, and the target agrees\n"
    query(shop.dsn, "DELETE FROM euros")
    assert shop.refill("euros").exit_code == 0 and shop.rows("euros") == before
    shop.sell(10, 20, 30, 40, shops=4)
    shop.sell(1)
    assert shop.rows("euros")[0] == ("shop 0", 0.16)
    assert shop.refill("euros", "--verify").exit_code == 0


# --- refusals


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("raw", "rows of a source"),
        ("called", "one row per key"),
        ("total", "did you mean totals?"),
    ],
)
def test_what_is_in_no_state_is_refused_with_the_way_out(shop: Shop, output: str, words: str) -> None:
    done = shop.refill(output)
    assert done.exit_code == 1
    assert words in done.stderr
    assert "--from SAVEPOINT" in done.stderr or output == "total"


def test_another_programs_store_is_refused(shop: Shop, tmp_path: Path) -> None:
    other = tmp_path / f"refilled_other_{next(NUMBERS)}.py"
    other.write_text(PROGRAM.replace('hr.sum("cents")', 'hr.max("cents")'))
    done = call("refill", other, "totals", "--store", shop.store)
    assert done.exit_code == 4 and "totals.value with another meaning" in done.stderr
    other.write_text(PROGRAM.replace('.named("totals")', '.named("sums_of")'))
    done = call("refill", other, "totals", "--store", shop.store)
    assert done.exit_code == 4 and "has not run the step sums_of" in done.stderr
    done = call("refill", shop.file, "totals", "--store", tmp_path / "nothing")
    assert done.exit_code == 4 and "there is no store here" in done.stderr
    assert shop.refill("totals", "--verify", "--delete-extra").exit_code == 2


def test_few_examples_of_each_kind_are_shown() -> None:
    total = Comparison()
    for i in range(20):
        kind: Any = "missing" if i % 2 else "extra"
        total = total.plus(Comparison(1, 1, 0, 0, (Difference(kind, str(i)),)))
    assert total.rows == 20 and len(total.examples) == 10


@pytest.mark.parametrize("output", ["totals", "hashes"])
def test_behind_a_rewind_a_target_agrees_before_and_after_the_first_epoch(shop: Shop, output: str) -> None:
    shop.sell(7, 8, 9, 10, shops=4)
    shop.harness.rewind(0, repeat="all", hold="all")
    assert shop.rows("totals") == [("shop 0", 5), ("shop 1", 7), ("shop 2", 9)]
    for rows, epoch in ((3, 0), (4, 1)):
        done = shop.refill(output, "--verify")
        assert done.exit_code == 0, done.stderr
        assert done.stdout == f"{output}: {rows} rows of epoch {epoch}, and the target agrees\n"
        shop.harness.epoch()


RETRACTING = """
import os

import headrace as hr


class Sale(hr.Record):
    shop: str
    region: str
    cents: int


class Total(hr.Record):
    shop: str
    region: str
    cents: int


app = hr.App("shop")
sales = app.read("sales", hr.source.items([]), Sale)
totals = sales.key_by("shop").aggregate(Total, cents=hr.sum("cents"), region=hr.last("region")).named("totals")
regions = totals.key_by("region").aggregate(shops=hr.count(), cents=hr.sum("cents")).named("regions")
mark, url = os.environ["MARK"], os.environ["REDIS_URL"]
regions.write(hr.sink.redis(url=url, key=mark + "-region:{region}", as_="hash"), name="regions")
totals.where("cents >= 10").write(hr.sink.redis(url=url, key=mark + "-rich:{shop}"), name="rich")
"""


@pytest.mark.parametrize(("output", "keys"), [("regions", {"x", "y"}), ("rich", {"a", "c"})])
def test_what_is_kept_to_take_rows_back_fills_a_target_too(
    output: str, keys: set[str], redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"taken-back-{output}"
    monkeypatch.setenv("MARK", mark)
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    file = tmp_path / f"retracting_{output}.py"
    file.write_text(RETRACTING)
    app = load_app(str(file))
    module = sys.modules[file.stem]
    with hr.testing.Harness(app, store=tmp_path / "store", sinks=True) as h:
        for cents in (5, 6):
            h.push(module.sales, *(module.Sale(*each, cents) for each in (("a", "x"), ("b", "x"), ("c", "y"))))
            h.push(module.sales, module.Sale("b", "z", -4))
            h.epoch()
        h.push(module.sales, module.Sale("b", "x", 0))
        h.epoch()
    prefix = f"{mark}-{output.removesuffix('s')}:"
    with redis_server.client() as client:
        held = {key: client.dump(key) for key in client.keys(f"{prefix}*")}
        assert {key.decode().removeprefix(prefix) for key in held} == keys, "group z, and shop b, have gone"
        client.delete(*held)
        client.set(f"{prefix}stranger", "1") if output == "rich" else client.hset(f"{prefix}stranger", "n", "1")
        found = call("refill", file, output, "--store", tmp_path / "store", "--verify")
        assert found.exit_code == 1 and "2 missing in the target; 1 in the target that the state does" in found.stdout
        done = call("refill", file, output, "--store", tmp_path / "store", "--delete-extra")
        assert done.exit_code == 0, done.stderr
        assert {key: client.dump(key) for key in client.keys(f"{prefix}*")} == held
