"""A target of one row per key in memory, outside of any process: for tests of what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, ClassVar

from headrace.connectors.sink_contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.connectors.staged import ARROW, arrow_writer, read_changes
from headrace.errors import Fenced
from headrace.model.crash import reach
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec


class KeyedTable(Sink):
    """Rows by some fields. It lives as long as the test: every program that is given it writes to the same rows."""

    kind: ClassVar[str] = "table"
    guarantee: Guarantee = "exactly once"
    accepts_updates: ClassVar[bool] = True
    accepts_changelog: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("key_of", "rows", "numbers", "releases")

    def __init__(self, *key: str) -> None:
        self.changelog_key = key
        self.key_of = attrgetter(*key)
        self.rows: dict[Any, Any] = {}
        self.numbers: dict[str, tuple[int, int]] = {}
        self.releases: list[tuple[str, int, int]] = []
        """Timeline, epoch and number of rows of each that changed something."""

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert self.codec is not None
        number, newest = (int(ctx.timeline), ctx.epoch), self.numbers.get(ctx.output, (-1, -1))
        if newest[0] > number[0]:
            raise Fenced("a newer timeline has written", where=self.kind)
        if number <= newest:
            return
        count = 0
        changed = dict(self.rows)
        for rows, signs in read_changes(parts, ctx, self.codec):
            for row, sign in zip(rows, signs or ["+I"] * len(rows), strict=True):
                key = self.key_of(row)
                count += sign != "-U"
                if not sign.startswith("-"):
                    changed[key] = row
                elif sign == "-D":
                    changed.pop(key, None)
        reach("between_files", ctx.epoch)
        self.rows.clear()
        self.rows.update(changed)
        self.numbers[ctx.output] = number
        self.releases.append((*map(int, number), count))  # type: ignore[arg-type]

    def takes(self, part: StagedPart) -> bool:
        return part.format == ARROW
