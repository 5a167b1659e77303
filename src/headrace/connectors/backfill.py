"""`backfill`: history first, then the live stream, as one source with one name.

A description only: the two are read one after the other, history to its end, by two queries over the same program and
the same store (`headrace.spark.seam`). So each is read by whoever can read it, Spark or Python, nothing of the live
source is read or held in memory before history has ended, and a step sees one stream in which history comes first.

The cut is a point in event time: rows before it are taken from history, rows at or after it from the live stream, and
everything else that either holds is passed over. Where no cut is given, the two have to be disjoint by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.source_contract import BadInput, Source
from headrace.errors import ProgramError
from headrace.model.time import Timestamp, format_time, parse_time

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


class BackfillSource(Source):
    kind: ClassVar[str] = "backfill"
    python: ClassVar[bool] = False

    def __init__(self, history: Source, live: Source, until: str | Timestamp | None) -> None:
        for name, source in (("history", history), ("live", live)):
            if not isinstance(source, Source) or isinstance(source, BackfillSource):
                raise ProgramError(
                    f"source.backfill cannot read this as its {name}",
                    where="source.backfill",
                    expected="two sources, as in source.backfill(source.files(…), source.kafka(…))",
                    found=type(source).__name__ if not isinstance(source, Source) else "a backfill inside a backfill",
                    next_move="give hr.source.files(…), hr.source.kafka(…) or another of hr.source",
                )
        self.history = history
        self.live = live
        self.until_us = _cut(until)
        self.connector = live.connector or history.connector

    @property
    def bounded(self) -> bool:
        return self.live.bounded

    @property
    def has_splits(self) -> bool:
        return self.history.has_splits or self.live.has_splits

    @property
    def needs_time(self) -> bool:
        return self.until_us is not None

    def bind(self, codec: RowCodec) -> BackfillSource:
        bound = BackfillSource(self.history.bind(codec), self.live.bind(codec), None)
        bound.until_us = self.until_us
        return bound

    def explain_bad(self, codec: RowCodec, raw: str) -> BadInput:
        return self.live.explain_bad(codec, raw)

    def describe(self) -> str:
        cut = "" if self.until_us is None else f" until {format_time(self.until_us)}"
        return f"backfill: {self.history.describe()}{cut}, then {self.live.describe()}"


def _cut(until: str | Timestamp | None) -> int | None:
    if until is None:
        return None
    if not isinstance(until, str):
        return int(until)
    try:
        return parse_time(until)
    except ProgramError as error:
        raise ProgramError(
            "until= is no point in time",
            where="source.backfill",
            expected='ISO text such as "2024-01-01" or "2024-01-01T12:00:00Z", or an hr.Timestamp',
            found=repr(until),
        ) from error
