"""What rows were before an epoch replaced them: kept beside the table, so that a job can go back.

Every epoch writes, in its own transaction, the former row of each key that it touches into ``headrace_undo``; a key
that was new has none. Taking back is one transaction too: of each key the oldest former row behind the epoch is put in
place again, and keys that were new go. What is put back leaves the journal, so repeating it changes nothing.

``headrace_undo_spans`` says, for each output of each store, from which epoch to which the journal is without a gap: an
epoch that was written by a program that kept none ends the span, and so does age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headrace.connectors.postgres.copying import RowCopy, on_conflict
from headrace.connectors.postgres.server import listed, quoted
from headrace.connectors.postgres.table import PostgresTarget, writable_columns

if TYPE_CHECKING:
    import psycopg

UNDO_TABLE: Final = "headrace_undo"
SPANS_TABLE: Final = "headrace_undo_spans"
_PRUNE_EVERY_S: Final = 60.0

Place = tuple[int, int]
"""Timeline and epoch."""


class OutputEpoch(Protocol):
    """Whose epoch it is: a `Release` tells it."""

    timeline: str
    epoch: int
    output: str
    job: str


class UndoSpan(NamedTuple):
    """One can go back to any epoch from the first to the last."""

    first: Place
    last: Place


def undo_statements(target: PostgresTarget) -> list[tuple[PostgresTarget, str]]:
    """The tables of the journal, as this sink would make them."""
    undo, spans = target.beside(UNDO_TABLE), target.beside(SPANS_TABLE)
    return [
        (
            undo,
            f"CREATE TABLE {undo.sql} (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1000), job text NOT NULL, "
            "output text NOT NULL, timeline bigint NOT NULL, epoch bigint NOT NULL, key jsonb NOT NULL, before jsonb, "
            "written_at timestamptz NOT NULL, PRIMARY KEY (job, output, timeline, epoch, id))",
        ),
        (
            spans,
            f"CREATE TABLE {spans.sql} (job text, output text, first_timeline bigint NOT NULL, "
            "first_epoch bigint NOT NULL, last_timeline bigint NOT NULL, last_epoch bigint NOT NULL, "
            "PRIMARY KEY (job, output))",
        ),
    ]


class UndoJournal:
    """The journal of one table. Every method is called inside of the transaction that it belongs to."""

    def __init__(
        self, target: PostgresTarget, key: Sequence[str], keep_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._key = key
        self._keep_s = keep_s
        self._clock = clock
        self._pruned_s = float("-inf")

    @property
    def _undo(self) -> str:
        return self._target.beside(UNDO_TABLE).sql

    @property
    def _spans(self) -> str:
        return self._target.beside(SPANS_TABLE).sql

    # --- while epochs are written

    def begin(self, connection: psycopg.Connection[Any], ctx: OutputEpoch, recorded: Place) -> None:
        """Before an epoch's rows come: ``recorded`` is the newest that the table has."""
        span = self.span(connection, ctx.job, ctx.output)
        epoch = (int(ctx.timeline), ctx.epoch)
        if span is None or span.last != recorded:
            connection.execute(f"DELETE FROM {self._undo} WHERE job = %s AND output = %s", (ctx.job, ctx.output))
            span = UndoSpan(recorded, recorded)
        now_s = self._clock()
        if now_s - self._pruned_s >= _PRUNE_EVERY_S:
            self._pruned_s = now_s
            span = UndoSpan(self._prune(connection, ctx) or span.first, span.last)
        self._note(connection, ctx.job, ctx.output, UndoSpan(span.first, epoch))

    def keep_former(
        self, connection: psycopg.Connection[Any], rows: RowCopy, columns: Sequence[str], ctx: OutputEpoch
    ) -> None:
        """The former rows of what lies in the temporary table, before it is merged."""
        keys = ", ".join(f"'{name.replace(chr(39), chr(39) * 2)}', r.{quoted(name)}" for name in self._key)
        same = " AND ".join(f"t.{quoted(name)} = r.{quoted(name)}" for name in self._key)
        first = quoted(self._key[0])
        connection.execute(
            f"INSERT INTO {self._undo} (job, output, timeline, epoch, key, before, written_at) "
            f"SELECT %s, %s, %s, %s, jsonb_build_object({keys.replace('%', '%%')}), "
            f"CASE WHEN t.{first} IS NOT NULL THEN to_jsonb(t) END, now() "
            f"FROM ({rows.newest_rows(columns)}) r LEFT JOIN {self._target.sql} t ON {same}",
            (ctx.job, ctx.output, int(ctx.timeline), ctx.epoch),
        )

    def _prune(self, connection: psycopg.Connection[Any], ctx: OutputEpoch) -> Place | None:
        """Takes epochs away that are too old; gives back the newest of them: the oldest one can still go back to."""
        found = connection.execute(
            f"WITH gone AS (DELETE FROM {self._undo} WHERE job = %s AND output = %s "
            "AND written_at < now() - make_interval(secs => %s) RETURNING timeline, epoch) "
            "SELECT timeline, epoch FROM gone ORDER BY 1 DESC, 2 DESC LIMIT 1",
            (ctx.job, ctx.output, self._keep_s),
        ).fetchone()
        return None if found is None else (found[0], found[1])

    # --- when the job goes back

    def span(self, connection: psycopg.Connection[Any], job: str, output: str) -> UndoSpan | None:
        found = connection.execute(
            f"SELECT first_timeline, first_epoch, last_timeline, last_epoch FROM {self._spans} "
            "WHERE job = %s AND output = %s",
            (job, output),
        ).fetchone()
        return None if found is None else UndoSpan((found[0], found[1]), (found[2], found[3]))

    def take_back(self, connection: psycopg.Connection[Any], job: str, output: str, timeline: int, epoch: int) -> None:
        """The rows that the table had after an epoch, of all keys that later epochs of the timeline touched."""
        behind = (job, output, timeline, epoch)
        oldest = (
            f"SELECT DISTINCT ON (key) key, before FROM {self._undo} "
            "WHERE job = %s AND output = %s AND timeline = %s AND epoch > %s ORDER BY key, epoch, id"
        )
        same = " AND ".join(f"t.{quoted(name)} = (u.key_row).{quoted(name)}" for name in self._key)
        row = f"NULL::{self._target.sql}"
        connection.execute(
            f"DELETE FROM {self._target.sql} t USING (SELECT jsonb_populate_record({row}, key) AS key_row "
            f"FROM ({oldest}) o WHERE before IS NULL) u WHERE {same}",
            behind,
        )
        columns = writable_columns(connection, self._target)
        values = ", ".join(f"(u.former).{quoted(name)}" for name in columns)
        connection.execute(
            f"INSERT INTO {self._target.sql} ({listed(columns)}) SELECT {values} FROM "
            f"(SELECT jsonb_populate_record({row}, before) AS former FROM ({oldest}) o WHERE before IS NOT NULL) u "
            f"{on_conflict(self._key, columns)}",
            behind,
        )
        connection.execute(
            f"DELETE FROM {self._undo} WHERE job = %s AND output = %s AND timeline = %s AND epoch > %s", behind
        )

    def go_on(self, connection: psycopg.Connection[Any], job: str, output: str, recorded: Place) -> None:
        """After rows were taken back: the table has another newest epoch now, and the journal knows."""
        span = self.span(connection, job, output)
        if span is not None:
            self._note(connection, job, output, UndoSpan(span.first, recorded))

    def _note(self, connection: psycopg.Connection[Any], job: str, output: str, span: UndoSpan) -> None:
        connection.execute(
            f"INSERT INTO {self._spans} VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (job, output) DO UPDATE SET "
            "first_timeline = excluded.first_timeline, first_epoch = excluded.first_epoch, "
            "last_timeline = excluded.last_timeline, last_epoch = excluded.last_epoch",
            (job, output, *span.first, *span.last),
        )
