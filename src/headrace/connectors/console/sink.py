"""`console`: the newest rows, as a live table on a terminal and as plain lines elsewhere.

It is for looking, not for keeping: it shows at most `limit` rows of an epoch. After a restart the last epoch may be
shown again. A page that draws its own screen (the command line) takes the table over by setting `show`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.connectors.sink_contract import Forget, Guarantee, Release, Rewind, Sink, StageTask, StageWriter
from headrace.connectors.staged import ARROW, arrow_writer, read_batches, signs_of
from headrace.connectors.text import iso_text
from headrace.model.amounts import count_of
from headrace.model.report import StagedPart
from headrace.model.wire import ROW_KIND

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

    from headrace.model.rows import RowCodec


class ConsoleSink(Sink):
    kind: ClassVar[str] = "console"
    guarantee: Guarantee = "at least once"
    accepts_updates: ClassVar[bool] = True
    accepts_changelog: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("console", "show", "_live", "_newest", "_seen")
    rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})

    def __init__(self, limit: int, console: Console | None = None) -> None:
        self.limit = limit
        self.console = console
        #: Set by whoever draws the screen; called in the driver with the new table after each epoch.
        self.show: Callable[[RenderableType], None] | None = None
        self._live: Live | None = None
        self._newest: deque[list[str]] = deque(maxlen=limit)
        self._seen = 0
        self._signed = False
        """Whether rows say what they are; seen from what comes."""

    def start(self) -> None:
        from rich.console import Console

        self._newest = deque(maxlen=self.limit)
        self._seen = 0
        if self.console is None:
            self.console = Console()
        if self.show is None and self.console.is_terminal:
            self._live = _start_live(self.console)

    def forget(self, ctx: Forget) -> None:
        """What was shown was shown; rows are shown again."""

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if self.console is None:
            self.start()
        rows = self._last_rows(parts, ctx)
        count = sum(part.rows for part in parts)
        self._seen += count
        signs = signs_of(rows)
        self._signed = signs is not None
        fields = rows if signs is None else rows.drop_columns([ROW_KIND])
        texts = _texts(fields)
        self._newest.extend(texts if signs is None else [[sign, *text] for sign, text in zip(signs, texts)])
        if self.show is not None:
            self.show(self.screen(ctx.epoch))
        elif self._live is not None:
            self._live.update(self.screen(ctx.epoch), refresh=True)
        else:
            self._print_lines(fields, signs, count, ctx)

    def _last_rows(self, parts: Sequence[StagedPart], ctx: Release) -> pa.Table:
        """Only the parts that the newest rows lie in are read."""
        wanted, found = [], 0
        for part in reversed(parts):
            wanted.append(part)
            found += part.rows
            if found >= self.limit:
                break
        table = pa.Table.from_batches(read_batches(wanted[::-1], ctx))
        return table.slice(max(0, table.num_rows - self.limit))

    def screen(self, epoch: int) -> RenderableType:
        """The newest rows, whole however narrow the screen is; where columns stand in bands, fewer of them."""
        from headrace.connectors.console.bands import BandedTable

        return BandedTable(self.table(epoch), most_lines=self.limit)

    def table(self, epoch: int) -> Table:
        """The newest rows as a rich table."""
        from rich.table import Table

        assert self.codec is not None
        shown = Table(title=f"{self.output}: {count_of(self._seen, 'row')}, epoch {epoch}", title_justify="left")
        if self._signed:
            shown.add_column("")
        for field in self.codec.schema:
            numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
            shown.add_column(field.name, justify="right" if numeric else "left", overflow="ellipsis", no_wrap=True)
        for row in self._newest:
            shown.add_row(*row)
        return shown

    def _print_lines(self, rows: pa.Table, signs: list[str] | None, count: int, ctx: Release) -> None:
        assert self.codec is not None and self.console is not None
        objects = self.codec.to_objects([column.combine_chunks() for column in rows.columns])
        marks = [""] * len(objects) if signs is None else [f"{sign} " for sign in signs]
        texts = self.codec.to_json(objects)
        lines = [f"{ctx.output} {ctx.epoch}: {mark}{line.decode()}" for mark, line in zip(marks, texts)]
        if count > len(lines):
            lines.insert(0, f"{ctx.output} {ctx.epoch}: … {count_of(count - len(lines), 'more row')} before these")
        # Written as they are: rich would wrap long lines and colour what looks like markup.
        self.console.file.write("\n".join(lines) + "\n")
        self.console.file.flush()

    def takes(self, part: StagedPart) -> bool:
        return part.format == ARROW

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def describe(self) -> str:
        return f"console ({count_of(self.limit, 'row')})"


def _start_live(console: Console) -> Live | None:
    """None where another live display has the screen already; then rows are printed as lines."""
    from rich.errors import LiveError
    from rich.live import Live

    live = Live(console=console, auto_refresh=False)
    try:
        live.start()
    except LiveError:
        return None
    return live


def _texts(rows: pa.Table) -> list[list[str]]:
    """The cells of each row as short text."""
    columns: list[list[Any]] = []
    for column in rows.columns:
        values = column.combine_chunks()
        columns.append((iso_text(values) if pa.types.is_timestamp(values.type) else values).to_pylist())
    return [["" if value is None else str(value) for value in row] for row in zip(*columns, strict=True)]
