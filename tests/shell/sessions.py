"""A session over tables in memory, for the shell to be driven with: it answers ``TABLE name`` and ``LIVE name``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.cli.shell.session import Changes, LiveAnswer, ShellAnswer, ShellColumn
from headrace.errors import ProgramError


class LiveRows:
    """An answer whose changes are given beforehand; the last look may be an interrupt, as by Ctrl-C."""

    def __init__(
        self,
        looks: Sequence[Changes | type[KeyboardInterrupt]],
        schema: pa.Schema,
        key: Sequence[str] | None = None,
        as_changelog: bool = False,
    ) -> None:
        self.schema = schema
        self.key = key
        self.as_changelog = as_changelog
        self.stopped = 0
        self._looks = looks

    def changes(self) -> Iterator[Changes]:
        for look in self._looks:
            if isinstance(look, Changes):
                yield look
            else:
                raise look

    def status(self) -> str:
        return "7 rows/s"

    def stop(self) -> None:
        self.stopped += 1


class MemorySession:
    """Tables by their names."""

    title = "memory"

    def __init__(self, tables: dict[str, pa.Table], live: dict[str, LiveRows] | None = None) -> None:
        self._tables = tables
        self._live = live or {}
        self.statements: list[str] = []

    def tables(self) -> list[str]:
        return list(self._tables)

    def columns(self, table: str) -> list[ShellColumn]:
        if table not in self._tables:
            raise ProgramError(f"there is no table {table!r}", next_move=f"one of {', '.join(self._tables)}")
        return [ShellColumn(field.name, str(field.type)) for field in self._tables[table].schema]

    def functions(self) -> list[str]:
        return ["upper", "usd"]

    def execute(self, text: str) -> ShellAnswer | LiveAnswer:
        self.statements.append(text)
        verb, _, name = text.partition(" ")
        if verb == "SAY":
            return ShellAnswer(message=name)
        if verb == "LIVE":
            return self._live[name]
        self.columns(name)
        return ShellAnswer(self._tables[name].schema, self._tables[name].to_batches())

    def close(self) -> None:
        pass


SALES = pa.table(
    {
        "shop": ["a", "b"],
        "cents": pa.array([5, None], pa.int64()),
        "at": pa.array([1_700_000_000_000_000, 0], pa.timestamp("us", "UTC")),
    }
)


def changes(rows: list[tuple[str, int]], signs: Sequence[str] | None = None) -> Changes:
    """Rows of shop and number."""
    return Changes(pa.Table.from_pylist([{"shop": shop, "n": n} for shop, n in rows], schema=COUNTS), signs)


COUNTS = pa.schema([("shop", pa.string()), ("n", pa.int64())])
