"""Cases of streaming SQL as data, and how they are played.

A case is a query over the tables below. It is run in one epoch and row by row; what comes out, folded, has to be the
answer: the one the case gives, or that of DuckDB to the same query (or to ``oracle``, where the texts differ).
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import duckdb

import headrace as hr
from headrace.model.row_kind import StreamKind
from headrace.testing import Harness


class Tx(hr.Record):
    card: str
    ts: hr.Timestamp
    cents: int
    shop: str | None = None
    rate: float | None = None


class Refund(hr.Record):
    card: str | None
    ts: hr.Timestamp
    cents: int
    why: str | None = None


class Price(hr.Record):
    shop: str | None
    ts: hr.Timestamp
    price: int


class Basket(hr.Record):
    id: int
    ts: hr.Timestamp
    items: list[str]
    sizes: list[int] | None = None


DAY = "2024-01-01"
TABLES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "tx": (
        Tx,
        [
            ("ann", "12:00", 100, "north", 0.5),
            ("bob", "12:05", 250, None, None),
            ("ann", "12:10", 50, "south", 2.0),
            ("cid", "12:40", 250, "north", None),
            ("ann", "13:05", 75, "north", 1.5),
            ("bob", "13:20", 0, "south", 0.25),
            ("ann", "13:21", 100, None, 4.0),
            ("dan", "14:30", 10, "south", None),
            ("bob", "14:31", 250, "north", 1.0),
        ],
    ),
    "refunds": (
        Refund,
        [
            ("ann", "12:15", 50, "broken"),
            (None, "12:20", 5, None),
            ("ann", "13:30", 75, None),
            ("eve", "13:40", 9, "late"),
            ("bob", "14:00", 250, "broken"),
        ],
    ),
    "prices": (
        Price,
        [
            ("north", "11:00", 1),
            ("south", "11:30", 5),
            ("north", "13:00", 2),
            (None, "13:10", 7),
            ("south", "14:00", 6),
        ],
    ),
    "baskets": (
        Basket,
        [
            (1, "12:00", ["tea", "milk"], [1, 2]),
            (2, "12:30", [], None),
            (3, "13:10", ["tea", "tea", "jam"], [7]),
        ],
    ),
}


class Case(NamedTuple):
    name: str
    query: str
    answer: list[list[Any]] | None
    oracle: str
    kind: str
    """The kind that the result has to have, if the case says so."""
    arrival: bool
    """Whether the answer depends on the order in which rows come."""


def load_cases(folder: Path) -> list[Case]:
    cases = []
    for path in sorted(folder.glob("*.toml")):
        for each in tomllib.loads(path.read_text())["case"]:
            name = f"{path.stem}: {each['name']}"
            oracle, kind = each.get("oracle", each["query"]), each.get("kind", "")
            cases.append(Case(name, each["query"], each.get("answer"), oracle, kind, each.get("arrival", False)))
    return cases


def micros(text: str) -> int:
    return int(datetime.fromisoformat(f"{DAY}T{text}").replace(tzinfo=UTC).timestamp() * 1_000_000)


def typed_rows(table: str) -> list[Any]:
    kind, rows = TABLES[table]
    position = kind.__struct_fields__.index("ts")
    return [kind(*(micros(v) if i == position else v for i, v in enumerate(row))) for row in rows]


def build(query: str, name: str = "q") -> tuple[Any, dict[str, Any], Any]:
    app = hr.App("cases")
    sources: dict[str, Any] = {}
    for table, (kind, _) in TABLES.items():
        sources[table] = app.read(table, hr.source.items([]), kind, time="ts")
    return app, sources, app.sql(query, name=name)


class Play:
    """A case that is being played, and what its results come to so far."""

    def __init__(self, case: Case) -> None:
        app, self.sources, self.result = build(case.query)
        self.kind: StreamKind = self.result.node.kind
        if case.kind:
            assert str(self.kind) == case.kind
        names = list(self.result.node.codec.names)
        self._places = [names.index(name) for name in self.kind.key or ()]
        self._folded: Counter[tuple[Any, ...]] = Counter()
        self._by_key: dict[Any, tuple[Any, ...]] = {}
        self.harness = Harness(app, start=f"{DAY}T00:00")
        used = [name for name in self.sources if name in case.query.lower()]
        self.rows = sorted(((row.ts, name, row) for name in used for row in typed_rows(name)), key=lambda row: row[:2])

    def push(self, rows: list[tuple[int, str, Any]], split: str = "") -> None:
        for _, name, row in rows:
            self.harness.push(self.sources[name], row, split=split)

    def take(self) -> None:
        take_into(self.harness, self.result, self.kind, self._folded, self._by_key, self._places)

    def drained(self) -> Counter[tuple[Any, ...]]:
        self.harness.drain()
        self.take()
        self.harness.close()
        return Counter(self._by_key.values()) if self.kind.rows == "upsert" else self._folded


def play(case: Case, *, row_by_row: bool) -> Counter[tuple[Any, ...]]:
    """What the query comes to at the end of all input, which comes in the order of its time."""
    play = Play(case)
    for part in [[row] for row in play.rows] if row_by_row else [play.rows]:
        play.push(part)
        play.harness.epoch()
        play.take()
    return play.drained()


def play_shuffled(case: Case, seed: int) -> Counter[tuple[Any, ...]]:
    """The same where rows come in any order, in any epochs, from several splits, with crashes and restarts."""
    chance = Random(seed)
    play = Play(case)
    rows = list(play.rows)
    chance.shuffle(rows)
    while rows:
        some = chance.randint(1, 6)
        for row in rows[:some]:
            play.push([row], split=f"split{chance.randint(0, 2)}")
        rows = rows[some:]
        if chance.random() < 0.15:
            play.harness.crash(watermark="00:00")
        play.harness.epoch(watermark="00:00")
        play.take()
        if chance.random() < 0.15:
            play.harness.restart()
    return play.drained()


def take_into(h: Any, result: Any, kind: StreamKind, folded: Any, by_key: Any, places: list[int]) -> None:
    if kind.rows == "changelog":
        before: Any = None
        for op, row in h.take_changes(result):
            values = plain_row(row)
            assert not (op == "+U" and before == ("-U", values)), f"an equal pair left its task: {values}"
            before = (op, values)
            folded[values] += 1 if op in ("+I", "+U") else -1
            if not folded[values]:
                del folded[values]
        assert all(n > 0 for n in folded.values()), f"taken back and never given: {-folded}"
        return
    for row in h.take(result):
        values = plain_row(row)
        if kind.rows == "upsert":
            assert kind.key is not None, "nobody could say which row replaces which"
            by_key[tuple(values[i] for i in places)] = values
        else:
            folded[values] += 1


def plain_row(row: Any) -> tuple[Any, ...]:
    return tuple(plain(getattr(row, name)) for name in row.__struct_fields__)


def plain(value: Any) -> Any:
    """Values of Headrace, of DuckDB and of a file, as ones that compare."""
    match value:
        case bool() | None | str():
            return value
        case float() | Decimal():
            return int(value) if float(value).is_integer() else round(float(value), 9)
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        case date():
            return value.isoformat()
        case list() | tuple():
            return tuple(plain(each) for each in value)
    return value


def expected(case: Case, connection: duckdb.DuckDBPyConnection) -> Counter[tuple[Any, ...]]:
    rows: Iterable[Any]
    if case.answer is not None:
        rows = [[read_value(value) for value in row] for row in case.answer]
    else:
        rows = connection.sql(case.oracle).fetchall()
    return Counter(tuple(plain(value) for value in row) for row in rows)


def read_value(value: Any) -> Any:
    """A value of a case: ``"null"`` is null, and ``"@12:00"`` a time of the day of all rows."""
    if value == "null":
        return None
    if isinstance(value, str) and value.startswith("@"):
        return micros(value[1:])
    return value


def open_oracle() -> duckdb.DuckDBPyConnection:
    """DuckDB with the same tables; its clock is UTC."""
    connection = duckdb.connect()
    types = {
        "tx": "card VARCHAR, ts TIMESTAMP, cents BIGINT, shop VARCHAR, rate DOUBLE",
        "refunds": "card VARCHAR, ts TIMESTAMP, cents BIGINT, why VARCHAR",
        "prices": "shop VARCHAR, ts TIMESTAMP, price BIGINT",
        "baskets": "id BIGINT, ts TIMESTAMP, items VARCHAR[], sizes BIGINT[]",
    }
    for table, columns in types.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
        for row in TABLES[table][1]:
            values = [f"{DAY} {v}:00" if i == 1 else v for i, v in enumerate(row)]
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
    return connection
