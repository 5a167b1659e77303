"""Random queries over small random tables, as text that Headrace and DuckDB both take.

Every query has one answer: orders go by all columns, and say where nulls stand. An aggregate over all rows asks for at
least one, because here it gives no row before the first one came.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

import headrace as hr

KEYS: Final = ("a", "b", "c", None)
NUMBERS: Final = (0, 1, 2, -3, None)


class Left(hr.Record):
    ts: hr.Timestamp
    k: str | None
    v: int | None
    w: int


class Right(hr.Record):
    ts: hr.Timestamp
    k: str | None
    v: int | None
    x: str


COLUMNS: Final = {"l": {"k": "text", "v": "int", "w": "int"}, "r": {"k": "text", "v": "int", "x": "text"}}
KINDS: Final = {"l": Left, "r": Right}


class Part(NamedTuple):
    """A query, and the types of its columns."""

    text: str
    columns: dict[str, str]


class RandomQuery:
    """Makes one query; each name in it is used once."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.names = 0

    def query(self, depth: int) -> Part:
        kinds = [self.plain, self.joined, self.grouped]
        if depth > 1:
            kinds += [self.joined, self.grouped, self.distinct, self.of_sets, self.first, self.ranked, self.member]
            kinds += [self.twice, self.scalar]
        return self.chance.choice(kinds)(depth)

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def table(self, depth: int) -> tuple[str, str, dict[str, str]]:
        """What stands in FROM, its alias, and its columns."""
        alias = self.name("t")
        if self.chance.random() < 0.08:
            rows = [f"({self.literal(KEYS, 'VARCHAR')}, {self.literal(NUMBERS, 'BIGINT')})" for _ in range(3)]
            one, two = self.name("c"), self.name("c")
            return f"(VALUES {', '.join(rows)}) AS {alias}({one}, {two})", alias, {one: "text", two: "int"}
        if depth <= 1 or self.chance.random() < 0.4:
            name = self.chance.choice(list(COLUMNS))
            return f"{name} AS {alias}", alias, dict(COLUMNS[name])
        inner = self.query(depth - 1)
        return f"({inner.text}) AS {alias}", alias, inner.columns

    def literal(self, values: Sequence[object], kind: str) -> str:
        value = self.chance.choice(values)
        return f"CAST({'NULL' if value is None else repr(value)} AS {kind})"

    # --- expressions

    def column(self, scope: dict[str, str], kind: str) -> str | None:
        names = [name for name, each in scope.items() if each == kind]
        return self.chance.choice(names) if names else None

    def value(self, scope: dict[str, str], kind: str) -> str:
        name = self.column(scope, kind)
        if kind == "text":
            return self.chance.choice([name or "'b'", name or "'c'", f"COALESCE({name or 'NULL'}, 'n')", "'a'"])
        if name is None:
            return str(self.chance.randint(-2, 3))
        more = [f"{name} + 1", f"COALESCE({name}, 7)", f"CASE WHEN {name} > 0 THEN {name} ELSE 5 END", f"-{name}"]
        return self.chance.choice([name, name, name, *more])

    def condition(self, scope: dict[str, str]) -> str:
        kind = self.chance.choice(["int", "text"])
        one, two = self.value(scope, kind), self.value(scope, kind)
        sign = self.chance.choice(["=", "<>", "<", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
        simple = self.chance.choice(
            [f"{one} {sign} {two}", f"{one} IS NULL", f"{one} IS NOT NULL", f"{one} {sign} {two}"]
        )
        match self.chance.randint(0, 5):
            case 0:
                return f"NOT ({simple})"
            case 1:
                return f"({simple} OR {self.value(scope, 'int')} > 0)"
            case 2:
                return f"{simple} AND {self.value(scope, 'int')} < 3"
        return simple

    def where(self, scope: dict[str, str], chance: float = 0.5) -> str:
        return f" WHERE {self.condition(scope)}" if self.chance.random() < chance else ""

    def selected(self, scope: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        kinds = [self.chance.choice(["int", "text"]) for _ in range(self.chance.randint(1, 3))]
        columns = {self.name("c"): kind for kind in kinds}
        return [f"{self.value(scope, kind)} AS {name}" for name, kind in columns.items()], columns

    # --- queries

    def plain(self, depth: int) -> Part:
        source, alias, columns = self.table(depth)
        scope = {f"{alias}.{name}": kind for name, kind in columns.items()}
        items, columns = self.selected(scope)
        return Part(f"SELECT {', '.join(items)} FROM {source}{self.where(scope)}", columns)

    def joined(self, depth: int) -> Part:
        (one, left, mine), (two, right, theirs) = self.table(depth), self.table(depth)
        ours = {f"{left}.{name}": kind for name, kind in mine.items()}
        others = {f"{right}.{name}": kind for name, kind in theirs.items()}
        both = ours | others
        kinds = sorted({*ours.values()} & {*others.values()})
        conditions = []
        if kinds and self.chance.random() < 0.9:
            kind = self.chance.choice(kinds)
            sign = "IS NOT DISTINCT FROM" if self.chance.random() < 0.15 else "="
            conditions.append(f"{self.column(ours, kind)} {sign} {self.column(others, kind)}")
        if not conditions or self.chance.random() < 0.4:
            conditions.append(self.condition(self.chance.choice([ours, others, both])))
        how = self.chance.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"])
        if how == "FULL JOIN":
            conditions = conditions[:1]
        scope = ours if how in ("SEMI JOIN", "ANTI JOIN") else both
        items, columns = self.selected(scope)
        on = " AND ".join(conditions)
        return Part(f"SELECT {', '.join(items)} FROM {one} {how} {two} ON {on}{self.where(scope, 0.3)}", columns)

    def grouped(self, depth: int) -> Part:
        source, alias, columns = self.table(depth)
        scope = {f"{alias}.{name}": kind for name, kind in columns.items()}
        keys = self.chance.sample(sorted(scope), min(len(scope), self.chance.randint(0, 2)))
        named = {key: self.name("c") for key in keys}
        columns = {named[key]: scope[key] for key in keys}
        items = [f"{key} AS {name}" for key, name in named.items() if self.chance.random() < 0.85]
        columns = {name: kind for name, kind in columns.items() if any(item.endswith(f" {name}") for item in items)}
        for _ in range(self.chance.randint(1, 2)):
            name = self.name("c")
            items.append(f"{self.aggregate(scope)} AS {name}")
            columns[name] = "int"
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = "" if keys else " HAVING COUNT(*) > 0"
        if keys and self.chance.random() < 0.4:
            having = (
                f" HAVING {self.aggregate(scope)} {self.chance.choice(['>', '<=', '='])} {self.chance.randint(0, 2)}"
            )
        return Part(f"SELECT {', '.join(items)} FROM {source}{self.where(scope, 0.3)}{group}{having}", columns)

    def aggregate(self, scope: dict[str, str]) -> str:
        kind = self.chance.choice(["int", "text"])
        value, number = self.value(scope, kind), self.value(scope, "int")
        call = self.chance.choice(
            [
                "COUNT(*)",
                f"COUNT({value})",
                f"SUM({number})",
                f"MIN({number})",
                f"MAX({number})",
                f"COUNT(DISTINCT {value})",
                f"SUM(DISTINCT {number})",
            ]
        )
        return call if self.chance.random() < 0.75 else f"{call} FILTER (WHERE {self.condition(scope)})"

    def distinct(self, depth: int) -> Part:
        inner = self.plain(depth)
        return Part(inner.text.replace("SELECT", "SELECT DISTINCT", 1), inner.columns)

    def of_sets(self, depth: int) -> Part:
        one = self.query(depth - 1)
        source, alias, columns = self.table(depth - 1)
        scope = {f"{alias}.{name}": kind for name, kind in columns.items()}
        items = [f"{self.value(scope, kind)} AS {self.name('c')}" for kind in one.columns.values()]
        sign = self.chance.choice(["UNION", "INTERSECT", "EXCEPT"]) + self.chance.choice(["", " ALL", " ALL"])
        return Part(f"({one.text}) {sign} (SELECT {', '.join(items)} FROM {source})", one.columns)

    def order(self, columns: list[str]) -> str:
        names = self.chance.sample(columns, len(columns))
        ways = ("ASC NULLS FIRST", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST")
        return ", ".join(f"{name} {self.chance.choice(ways)}" for name in names)

    def first(self, depth: int) -> Part:
        inner, alias = self.query(depth - 1), self.name("t")
        names = list(inner.columns)
        limit = self.chance.randint(1, 4)
        return Part(
            f"SELECT {', '.join(names)} FROM ({inner.text}) AS {alias} ORDER BY {self.order(names)} LIMIT {limit}",
            inner.columns,
        )

    def ranked(self, depth: int) -> Part:
        inner, alias, outer, rank = self.query(depth - 1), self.name("t"), self.name("t"), self.name("rn")
        names = list(inner.columns)
        number = self.chance.choice(["ROW_NUMBER", "RANK", "DENSE_RANK"])
        # Only of places that are shared the order may leave open which row comes first.
        by = names if number == "ROW_NUMBER" else self.chance.sample(names, 1)
        over = f"PARTITION BY {self.chance.choice(names)} ORDER BY {self.order(by)}"
        numbered = f"SELECT *, {number}() OVER ({over}) AS {rank} FROM ({inner.text}) AS {alias}"
        columns = dict(inner.columns)
        if self.chance.random() < 0.5:
            columns[rank] = "int"
        most = self.chance.randint(1, 3)
        return Part(f"SELECT {', '.join(columns)} FROM ({numbered}) AS {outer} WHERE {rank} <= {most}", columns)

    def member(self, depth: int) -> Part:
        source, alias, columns = self.table(depth)
        scope = {f"{alias}.{name}": kind for name, kind in columns.items()}
        inner_source, inner_alias, inner_columns = self.table(depth - 1)
        inner = {f"{inner_alias}.{name}": kind for name, kind in inner_columns.items()}
        kind = self.chance.choice(list(inner_columns.values()))
        no = self.chance.choice(["", "NOT "])
        mine, theirs = self.value(scope, kind), self.column(inner, kind)
        if self.chance.random() < 0.5:
            condition = f"{mine} {no}IN (SELECT {theirs} FROM {inner_source}{self.where(inner, 0.3)})"
        else:
            more = f" AND {self.condition(inner)}" if self.chance.random() < 0.3 else ""
            condition = f"{no}EXISTS (SELECT 1 FROM {inner_source} WHERE {theirs} = {mine}{more})"
        items, columns = self.selected(scope)
        more = f" AND ({self.condition(scope)})" if self.chance.random() < 0.3 else ""
        return Part(f"SELECT {', '.join(items)} FROM {source} WHERE {condition}{more}", columns)

    def scalar(self, depth: int) -> Part:
        """A value of another query, alone or by a column of the row, in the select list or in WHERE."""
        source, alias, columns = self.table(depth)
        scope = {f"{alias}.{name}": kind for name, kind in columns.items()}
        inner_source, inner_alias, inner_columns = self.table(depth - 1)
        inner = {f"{inner_alias}.{name}": kind for name, kind in inner_columns.items()}
        kinds = sorted({*scope.values()} & {*inner.values()})
        conditions = [self.condition(inner)] if self.chance.random() < 0.3 else []
        if kinds and self.chance.random() < 0.7:
            kind = self.chance.choice(kinds)
            conditions.append(f"{self.column(inner, kind)} = {self.value(scope, kind)}")
        where = f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""
        number = self.chance.choice(["", " + 1"])
        value = f"(SELECT {self.aggregate(inner)}{number} FROM {inner_source}{where})"
        items, columns = self.selected(scope)
        if self.chance.random() < 0.4:
            sign = self.chance.choice(["<", ">=", "="])
            return Part(
                f"SELECT {', '.join(items)} FROM {source} WHERE {self.value(scope, 'int')} {sign} {value}", columns
            )
        name = self.name("c")
        return Part(f"SELECT {', '.join(items)}, {value} AS {name} FROM {source}", columns | {name: "int"})

    def twice(self, depth: int) -> Part:
        """A query that is read twice."""
        inner, name = self.query(depth - 1), self.name("q")
        one, two = self.name("t"), self.name("t")
        key = self.chance.choice(list(inner.columns))
        scope = {f"{alias}.{each}": kind for alias in (one, two) for each, kind in inner.columns.items()}
        items, columns = self.selected(scope)
        how = self.chance.choice(["JOIN", "LEFT JOIN"])
        joined = f"FROM {name} AS {one} {how} {name} AS {two} ON {one}.{key} = {two}.{key}"
        return Part(f"WITH {name} AS ({inner.text}) SELECT {', '.join(items)} {joined}", columns)


def random_rows(chance: Random) -> list[tuple[str, tuple[object, ...]]]:
    """Rows of both tables, in the order in which they come; each row twice at times."""
    rows: list[tuple[str, tuple[object, ...]]] = []
    for _ in range(chance.randint(0, 14)):
        table = chance.choice("lr")
        last = chance.randint(0, 2) if table == "l" else chance.choice("ax")
        rows.append((table, (chance.choice(KEYS), chance.choice(NUMBERS), last)))
        if chance.random() < 0.2:
            rows.append(rows[-1])
    return rows
