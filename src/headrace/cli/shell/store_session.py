"""A shell over the state of a store: every state is a table, and a SELECT answers at once, of one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.shell.session import ShellAnswer, ShellColumn
from headrace.errors import StatementFailed
from headrace.model.nearest import did_you_mean
from headrace.read.store import Store
from headrace.snapshots.errors import UNDEFINED_TABLE
from headrace.snapshots.session import Engine
from headrace.snapshots.sources import StoreSnapshots

if TYPE_CHECKING:
    from headrace.snapshots.session import SqlSession

FUNCTIONS = (
    "abs", "avg", "coalesce", "count", "date_trunc", "first", "last", "list", "lower", "max", "median", "min", "now",
    "quantile_cont", "round", "row_number", "sum", "time_bucket", "upper",
)  # fmt: skip


class StoreSession:
    """Statements over one store."""

    def __init__(self, session: SqlSession, title: str) -> None:
        self._session = session
        self._title = title

    @property
    def title(self) -> str:
        return self._title

    def tables(self) -> Sequence[str]:
        return [str(name) for name in self._session.tables()]

    def columns(self, table: str) -> Sequence[ShellColumn]:
        tables = {str(name): found for name, found in self._session.tables().items()}
        if table not in tables:
            raise StatementFailed(
                f"there is no table {table!r}",
                code=UNDEFINED_TABLE,
                expected=" or ".join(tables) or "a state",
                next_move=did_you_mean(table, list(tables), r"\d lists all tables"),
            )
        found = tables[table]
        return [
            ShellColumn(column.name, str(column.type.arrow), "key" if column.name in found.row_key else "")
            for column in found.columns
        ]

    def functions(self) -> Sequence[str]:
        return FUNCTIONS

    def execute(self, text: str) -> ShellAnswer:
        answer = self._session.run(text)
        if answer.done:
            return ShellAnswer(message=answer.done)
        return ShellAnswer(answer.schema, answer.batches)

    def close(self) -> None:
        self._session.close()
        self._session.engine.close()


def open_store_session(store: str, at: str | None = None) -> StoreSession:
    """A session over a store; ``at``: of a moment of its past."""
    opened = Store(store)
    session = Engine().session(StoreSnapshots(opened))
    if at is not None:
        session.use_moment(at)
    session.tables()
    return StoreSession(session, f"{opened.app}> ")
