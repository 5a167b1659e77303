"""Every epoch is played, taken back, and played again: the answer is DuckDB's each time, whatever the operator.

Rows are a multiset: there are equal ones, and keys and values that are null.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest

import headrace as hr
from headrace.testing import Harness


class Change(hr.Record):
    id: int
    k: str | None = None
    v: int | None = None
    gone: bool = False


class Row(hr.Record):
    k: str | None
    v: int | None


Stream = hr.Stream[Any]


def twice(row: Row) -> Iterator[Row]:
    yield row
    if row.v is not None and row.v % 2:
        yield Row(row.k, -row.v)


def join(how: Any, on: str | None = None) -> Callable[[Stream, Stream], Stream]:
    def build(a: Stream, b: Stream) -> Stream:
        made = a.key_by("k").join(b.key_by("k"), within=None, how=how, on=on).named(f"{how}_{'on' if on else 'all'}")
        if how in ("semi", "anti"):
            return made.select("k", "v")
        return made.select(k="left.k", v="left.v", k2="right.k", v2="right.v")

    return build


def join_sql(how: str, on: str = "true") -> str:
    if how in ("semi", "anti"):
        return f"SELECT a.* FROM a {how.upper()} JOIN b ON a.k = b.k AND {on}"
    return f"SELECT a.*, b.* FROM a {how.upper()} JOIN b ON a.k = b.k AND {on}"


_ON = "left.v < right.v"
VALUES = hr.count(where="v is not null")
PROGRAMS: dict[str, tuple[Callable[[Stream, Stream], Stream], str]] = {
    **{how: (join(how), join_sql(how)) for how in ("inner", "left", "right", "full", "semi", "anti")},
    **{
        f"{how} with a condition": (join(how, _ON), join_sql(how, "a.v < b.v"))
        for how in ("inner", "left", "right", "full", "semi", "anti")
    },
    "aggregates with names of notes": (
        lambda a, b: a.key_by("k").aggregate(rows=hr.sum("v"), time=hr.max("v")).named("notes"),
        "SELECT k, coalesce(sum(v), 0), max(v) FROM a GROUP BY k",
    ),
    "aggregate": (
        lambda a, b: a.key_by("k").aggregate(
            rows=hr.count(), n=VALUES, sum=hr.sum("v"), avg=hr.avg("v"), min=hr.min("v"), max=hr.max("v"),
            different=hr.count_distinct("v"), some=hr.sum("v", where="v > 1"),
        ).named("groups"),
        "SELECT k, count(*), count(v), coalesce(sum(v), 0), avg(v), min(v), max(v), count(DISTINCT v), "
        "coalesce(sum(v) FILTER (v > 1), 0) FROM a GROUP BY k",
    ),
    "aggregate of an aggregate": (
        lambda a, b: (
            a.key_by("k").aggregate(n=VALUES).named("first").key_by("n").aggregate(keys=hr.count()).named("second")
        ),
        "SELECT n, count(*) FROM (SELECT k, count(v) AS n FROM a GROUP BY k) GROUP BY n",
    ),
    "collect": (
        lambda a, b: a.key_by("k").aggregate(all=hr.collect("v"), most=hr.top("v", 2)).named("lists"),
        "SELECT k, coalesce(list_sort(list(v) FILTER (v IS NOT NULL)), []), "
        "coalesce(list_reverse_sort(list(v) FILTER (v IS NOT NULL))[:2], []) FROM a GROUP BY k",
    ),
    "top with its place": (
        lambda a, b: a.key_by("k").top(2, by=["v desc nulls last"], rank="place").named("best"),
        "SELECT * FROM (SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v DESC NULLS LAST) AS place FROM a) "
        "WHERE place <= 2",
    ),
    "top": (
        lambda a, b: a.key_by("k").top(3, by="v").named("least"),
        "SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v NULLS FIRST) AS n FROM a) "
        "WHERE n <= 3",
    ),
    "reduce": (
        lambda a, b: a.where("v is not null").key_by("k").reduce(
            lambda x, y: x.replace(v=x.v + y.v), inverse=lambda x, y: x.replace(v=x.v - y.v)
        ).named("reduced"),
        "SELECT k, sum(v) FROM a WHERE v IS NOT NULL GROUP BY k",
    ),
    "union": (lambda a, b: a.union(b), "SELECT * FROM a UNION ALL SELECT * FROM b"),
    "expressions": (
        lambda a, b: a.where("v > 1 or k is null").select("k", v="v * 2"),
        "SELECT k, v * 2 FROM a WHERE v > 1 OR k IS NULL",
    ),
    "functions": (
        lambda a, b: a.flat_map(twice, output=Row).filter(lambda row: row.v != 3),
        "SELECT * FROM (SELECT * FROM a UNION ALL SELECT k, -v FROM a WHERE v % 2 != 0) WHERE v IS NULL OR v != 3",
    ),
}  # fmt: skip


def answer(sql: str, held: dict[str, dict[int, Row]]) -> Counter[Any]:
    with duckdb.connect() as connection:
        for name, rows in held.items():
            connection.execute(f"CREATE TABLE {name} (k VARCHAR, v BIGINT)")
            if rows:
                connection.executemany(f"INSERT INTO {name} VALUES (?, ?)", [(row.k, row.v) for row in rows.values()])
        return Counter(map(plain, connection.execute(sql).fetchall()))


def plain(cells: Any) -> Any:
    return tuple(tuple(cell) if isinstance(cell, list) else cell for cell in cells)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_epoch_that_is_played_taken_back_and_played_again_changes_nothing(name: str, seed: int) -> None:
    rng = random.Random(f"{name}-{seed}")
    build, sql = PROGRAMS[name]
    app = hr.App("again")
    sources = {each: app.read(each, hr.source.items([]), Change) for each in "ab"}
    sides = [
        source.key_by("id").upserts(deleted="gone").named(f"rows_{each}").select(Row)
        for each, source in sources.items()
    ]  # fmt: skip
    out = build(*sides)
    held: dict[str, dict[int, Row]] = {"a": {}, "b": {}}
    shown: Counter[Any] = Counter()
    with Harness(app, parallelism=1 + 2 * seed) as h:
        for epoch in range(3):
            came = [
                (rng.choice("ab"), Change(epoch * 10 + i, rng.choice(["x", "y", None]), rng.choice([None, 1, 2, 3])))
                for i in range(rng.randrange(1, 8))
            ]
            # What replaces an earlier row is put back by that.
            old = [(side, id) for side in "ab" for id in held[side] if rng.random() < 0.3]
            came += [(side, Change(id, rng.choice(["x", None]), rng.choice([None, 2, 3]))) for side, id in old]
            before = {side: dict(rows) for side, rows in held.items()}
            back = [
                (
                    side,
                    Change(row.id, *astuple(before[side][row.id]))
                    if row.id in before[side]
                    else Change(row.id, gone=True),
                )
                for side, row in came
            ]
            for rows in (came, back, came):
                for side, row in rows:
                    h.push(sources[side], row)
                    held[side].pop(row.id, None)
                    if not row.gone:
                        held[side][row.id] = Row(row.k, row.v)
                h.epoch()
                for sign, row in h.take_changes(out):
                    shown[plain(getattr(row, field) for field in row.__struct_fields__)] += (
                        -1 if sign.startswith("-") else 1
                    )
                assert all(count >= 0 for count in shown.values())
                assert +shown == answer(sql, held), f"epoch {epoch}"


def astuple(row: Row) -> tuple[Any, Any]:
    return row.k, row.v
