"""What tests of the Postgres sink share: a row, a query, and a sink that is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

import headrace as hr
from headrace.model.rows import codec_of
from headrace.testing.staging import Staging, stage_rows


class Sale(hr.Record):
    id: int
    shop: str
    cents: int = 1


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(text)
        return found.fetchall() if found.description else []


class Written:
    """A sink that is started, and what it stages into."""

    def __init__(self, dsn: str, folder: Path, type: Any, table: str = "sales", **how: Any) -> None:
        self.codec = codec_of(type)
        self.sink = hr.sink.postgres(table, dsn=dsn, **how).bind(self.codec, table)
        self.sink.start()
        self.staging = Staging(folder)

    def write(self, epoch: int, *tasks: list[Any], timeline: str = "0") -> None:
        parts = stage_rows(self.sink, self.codec, self.staging, epoch, tasks)
        self.sink.release(parts, self.staging.release(epoch, self.sink.output, timeline))
