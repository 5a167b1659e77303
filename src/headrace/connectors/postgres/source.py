"""`table`: the rows of a Postgres table, or of a query, as a bounded input or as what a lookup asks.

As an input it is a snapshot: the table is copied once, when a job first starts (`table_copy`), and the job reads the
copy (`table_spool`), so that what is read again after a crash is what was read before. What changes in the table
afterwards is not seen. As the other side of a lookup it is asked live (`table_lookup`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.connectors.postgres.copy import copy_table
from headrace.connectors.postgres.lookup import TableLookup
from headrace.connectors.postgres.select import Selection, from_clause, translate_select_error
from headrace.connectors.postgres.server import psycopg_module
from headrace.connectors.postgres.spool import Spool
from headrace.connectors.reading import check_positive, position, slice_range
from headrace.connectors.source_contract import BadRows, Offset, Source, Split, SplitReader
from headrace.errors import EnvironmentMissing, ProgramError
from headrace.model.field_names import field_name
from headrace.model.rows import codec_of

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

COPY: str = "copy"
"""The field of a position that names the copy it belongs to."""


class TableSource(Source):
    kind: ClassVar[str] = "table"
    python: ClassVar[bool] = True

    def __init__(
        self,
        query_or_table: str,
        dsn: str,
        split_by: Any,
        partitions: int,
        per_epoch: int | None,
        spool: str | os.PathLike[str] | None,
    ) -> None:
        self.text = query_or_table
        self.where = f"source.table({_short(query_or_table)!r})"
        from_clause(query_or_table, self.where)
        self.dsn = dsn
        self.split_by = None if split_by is None else field_name(split_by, "split_by", self.where)
        self.partitions = check_positive("partitions", partitions, self.where) or 1
        self.per_epoch = check_positive("per_epoch", per_epoch, self.where)
        self.spool = None if spool is None else os.fspath(spool)
        self._store_folder: str | None = None

    @property
    def bounded(self) -> bool:
        return True

    def bind(self, codec: RowCodec) -> TableSource:
        if self.split_by is not None:
            codec.index(self.split_by, where=self.where)
        return self

    def placed_in(self, folder: str) -> TableSource:
        placed = TableSource(self.text, self.dsn, self.split_by, self.partitions, self.per_epoch, self.spool)
        placed._store_folder = folder
        return placed

    def reader(self, codec: RowCodec) -> TableReader:
        folder = self.spool or self._store_folder
        if folder is None:
            raise EnvironmentMissing(
                "there is no store to keep the copy of the table in",
                where=self.where,
                next_move="read the source in a program, or give it a folder: spool=…",
            )
        spool = Spool(folder)
        known = spool.copies()
        chosen = known[0] if known else self._copy(spool, codec)
        self._check_same(spool, chosen, codec)
        return TableReader(spool, chosen, self.per_epoch, self.partitions)

    def _copy(self, spool: Spool, codec: RowCodec) -> str:
        selection = Selection(self.text, codec, self.where)
        psycopg = psycopg_module()
        try:
            return copy_table(spool, self.dsn, selection, self.text, self.split_by, self.partitions).id
        except psycopg.Error as error:
            raise translate_select_error(error, self.where, self.dsn) from error

    def _check_same(self, spool: Spool, id: str, codec: RowCodec) -> None:
        copy = spool.describe(id)
        if (copy.taken_from, copy.schema) != (self.text, str(codec.schema)):
            raise ProgramError(
                "this job reads a copy that was made for another table or other rows",
                where=self.where,
                expected=f"{_short(copy.taken_from)!r} with the columns {_listed(copy.schema)}",
                found=f"{_short(self.text)!r} with the columns {_listed(str(codec.schema))}",
                next_move="read it under another name, or begin anew: headrace run --fresh",
            )

    def lookup(self, output: Any, *, key: Any) -> TableLookup:
        """What ``stream.lookup`` asks: the row of type `output` whose column `key` has the value looked for.

        The table is asked live, for many values by one query; see ``docs/guides/postgres.md``.
        """
        name = field_name(key, "key", self.where)
        return TableLookup(self.text, self.dsn, codec_of(output, where=self.where), name, self.where)

    def describe(self) -> str:
        return f"table {_short(self.text)}"


class TableReader(SplitReader):
    def __init__(self, spool: Spool, chosen: str, per_epoch: int | None, partitions: int) -> None:
        self.spool = spool
        self.chosen = chosen
        self.per_epoch = per_epoch
        self.partitions = partitions

    def initial(self) -> Offset:
        return {"i": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        at, id = position(start), start.get(COPY, self.chosen)
        steps = [step for step in (self.per_epoch, limit) if step is not None]
        stop = min([self.spool.describe(id).rows, *(at + step for step in steps)])
        return start if stop <= at else {"i": stop, COPY: id}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        cut = slice_range(position(start), position(end), self.partitions)
        return [Split(each.id, each.start, {**each.end, COPY: end[COPY]}) for each in cut]

    def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
        yield from self.spool.read(split.end[COPY], position(split.start), position(split.end))

    def remaining(self, start: Offset) -> int:
        return max(0, self.spool.describe(start.get(COPY, self.chosen)).rows - position(start))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _listed(schema: str) -> str:
    return ", ".join(line for line in schema.splitlines() if not line.startswith(("-", " ")))
