"""`headrace compare`: what two outputs show, row by row."""

from __future__ import annotations

import random
import sys
import uuid
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.cli.loading import load_app
from headrace.connectors import compared_rows
from headrace.connectors.compared_rows import RowComparison
from tests.cli.calling import call, call_json
from tests.services.redis import Redis

NUMBERS = count()

PROGRAM = """
import headrace as hr


class Sale(hr.Record):
    shop: str
    cents: CENTS
    at: hr.Timestamp = hr.timestamp("2024-01-01T12:00:00.5")
    tags: list[str] = []
    note: str | None = None


app = hr.App("shop")
sales = app.read("sales", hr.source.items([]), Sale)
STREAM.write(SINK, name="out")
"""
NEWEST = 'sales.key_by(Sale.shop).latest().named("newest")'

Row = tuple[str, int, "str | None"]
ROWS: list[Row] = [("a", 1, None), ("b", 2, "x"), ("c, d", 3, 'say "hi"'), ("gone", 4, None)]
OTHER: list[Row] = [("a", 1, None), ("b", 20, "x"), ("c, d", 3, 'say "hi"'), ("new", 5, None)]


def write(folder: Path, sink: str, rows: list[Row], *, stream: str = "sales", cents: str = "int") -> Path:
    """A program that has written these rows."""
    file = folder / f"compared_{next(NUMBERS)}.py"
    file.write_text(PROGRAM.replace("SINK", sink).replace("CENTS", cents).replace("STREAM", stream))
    load_app(str(file))
    module = sys.modules[file.stem]
    with hr.testing.Harness(module.app, sinks=True) as h:
        h.push(module.sales, *(module.Sale(shop, n, note=note, tags=["t"] * (n % 3)) for shop, n, note in rows))
        h.epoch()
    return file


def check(first: Path, second: Path, *arguments: str) -> None:
    told = call_json("compare", first, "out", "--with", second, *arguments, code=1)
    assert (told["first"]["rows"], told["second"]["rows"]) == (4, 4)
    counts = {name: told[name] for name in ("key", "added", "removed", "changed", "same")}
    assert counts == {"key": ["shop"], "added": 1, "removed": 1, "changed": 1, "same": False}
    rows = {row["key"]["shop"]: row for row in told["differences"]}
    assert {shop: row["change"] for shop, row in rows.items()} == {"b": "changed", "gone": "removed", "new": "added"}
    assert (rows["b"]["before"], rows["b"]["after"]) == ({"cents": "2"}, {"cents": "20"})
    assert rows["new"]["after"]["cents"] == "5"


@pytest.mark.parametrize("shape", ["string", "hash"])
def test_keys_of_redis_are_compared_by_their_key(redis_server: Redis, tmp_path: Path, shape: str) -> None:
    mark = uuid.uuid4().hex
    one, two = (
        write(
            tmp_path, f'hr.sink.redis(key="{mark}-{n}:{{shop}}", url="{redis_server.url}", as_="{shape}")', rows,
            stream=NEWEST,
        )
        for n, rows in enumerate((ROWS, OTHER))
    )  # fmt: skip
    check(one, two)


def test_tables_of_postgres_are_compared_by_their_key(postgres: Any, tmp_path: Path) -> None:
    dsn = postgres.database()
    one, two, wide = (
        write(tmp_path, f'hr.sink.postgres("t{n}", dsn="{dsn}", key="shop")', rows, stream=NEWEST, cents=cents)
        for n, (rows, cents) in enumerate([(ROWS, "int"), (OTHER, "int"), (ROWS, "float")])
    )
    check(one, two)
    assert call("compare", one, "out", "--with", wide).exit_code == 0, "the same numbers, in a wider column"


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_folders_of_files_are_compared_by_columns_that_are_said(tmp_path: Path, format: str) -> None:
    one, two = (
        write(
            tmp_path,
            f'hr.sink.files(r"{tmp_path}/{n}", format="{format}", partition_by="note")',
            rows,
            stream='sales.select("shop", "cents", "at", "note")',
        )
        for n, rows in enumerate((ROWS, OTHER))
    )
    check(one, two, "--key", "shop")
    whole = call_json("compare", one, "out", "--with", two, code=1)
    assert (whole["key"], whole["added"], whole["removed"], whole["changed"]) == ([], 2, 2, 0)


def test_tables_of_delta_are_compared(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    one, two = (write(tmp_path, f'hr.sink.delta(r"{tmp_path}/{n}")', rows) for n, rows in enumerate((ROWS, OTHER)))
    check(one, two, "--key", "shop")


def test_the_same_rows_in_another_order_and_other_files_are_the_same(tmp_path: Path) -> None:
    one = write(tmp_path, f'hr.sink.files(r"{tmp_path}/one", format="json")', ROWS)
    write(tmp_path, f'hr.sink.files(r"{tmp_path}/two", format="json")', ROWS[::-1])
    done = call("compare", one, "out", "--target", tmp_path / "two")
    assert done.exit_code == 0, done.stdout
    assert "the same rows" in done.stdout and "4 rows" in done.stdout


def test_what_differs_is_shown_and_all_of_it_goes_to_a_file(tmp_path: Path) -> None:
    one = write(tmp_path, f'hr.sink.files(r"{tmp_path}/one", format="json")', ROWS)
    two = write(tmp_path, f'hr.sink.files(r"{tmp_path}/two", format="json")', OTHER, cents="float")
    file = tmp_path / "differences.parquet"
    done = call("compare", one, "out", "--with", two, "--key", "shop", "--limit", 1, "--parquet", file)
    assert done.exit_code == 1
    assert "1 added, 1 removed, 1 changed" in done.stdout and "and 2 more" in done.stdout
    rows = pq.read_table(file).to_pylist()
    assert Counter(row["change"] for row in rows) == {"changed": 1, "added": 4, "removed": 4}
    [changed] = [row for row in rows if row["change"] == "changed"]
    assert changed == {"key": '{"shop":"b"}', "change": "changed", "column": "cents", "before": "2", "after": "20"}


def test_what_cannot_be_compared_is_refused_in_words(tmp_path: Path) -> None:
    one = write(tmp_path, f'hr.sink.files(r"{tmp_path}/one", format="json")', ROWS)
    called = write(tmp_path, "hr.sink.discard()", ROWS)
    for arguments, words in (
        (("--with", one), "both are the same target"),
        (("--with", called), "outputs of two kinds"),
        (("--target", tmp_path / "two", "--key", "shop, day"), "no column 'day'"),
        ((), "say what it is held against"),
    ):
        done = call("compare", one, "out", *arguments)
        assert done.exit_code != 0 and words in done.stderr.replace("\n", " "), done.stderr
    assert "cannot be read" in call("compare", called, "out", "--with", called, "--key", "shop").stderr


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keyed", [True, False])
def test_two_sides_differ_as_plain_python_says(
    seed: int, keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with equal keys, nulls, and so many that pieces go to files."""
    monkeypatch.setattr(compared_rows, "_HELD_BYTES", 4_000)
    rng = random.Random(seed)

    def rows() -> list[tuple[str | None, int | None]]:
        return [(rng.choice([None, *"abcdefgh"]), rng.choice([None, 1, 2])) for _ in range(400)]

    sides = [rows(), rows()]
    if keyed:
        sides = [list(dict(side).items()) for side in sides]
    comparison = RowComparison(["k", "v"], ["k"] if keyed else [], tmp_path)
    comparison.read(*(_tables(side) for side in sides))
    found = list(comparison.differences())
    counts = comparison.counts
    if keyed:
        first, second = map(dict, sides)
        changed = {key for key in first.keys() & second.keys() if first[key] != second[key]}
        assert (counts.added, counts.removed) == (len(second.keys() - first.keys()), len(first.keys() - second.keys()))
        assert {each.key["k"] for each in found if each.change == "changed"} == changed
    else:
        first, second = map(Counter, sides)
        assert (counts.added, counts.removed) == ((second - first).total(), (first - second).total())
    assert (counts.first, counts.second) == (len(sides[0]), len(sides[1]))
    assert len(found) == counts.added + counts.removed + counts.changed


def _tables(rows: list[tuple[str | None, int | None]]) -> list[pa.Table]:
    cut = [rows[start : start + 37] for start in range(0, len(rows), 37)]
    return [pa.table({"k": [key for key, _ in part], "v": pa.array([v for _, v in part], pa.int64())}) for part in cut]
