"""Draws the pictures of the documentation from the code that draws a real screen: docs/assets/demo.svg and epochs.svg.

    .venv/bin/python tools/picture.py            # writes them anew; the same code gives the same bytes

The rows are those of ``headrace demo``, run by the test kit without Spark; how long an epoch takes is the only thing
made up, because the test kit has no Spark to wait for. No font is fetched from anywhere: readers' own are used.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group, RenderableType
from rich.text import Text

import headrace as hr
from headrace.demo import RATE, Board, Impression, make_demo, make_impression
from headrace.progress import RunProgress, status_line
from headrace.read.store import manifest_of
from headrace.screens import EpochTable
from headrace.state.manifest import Manifest

ASSETS: Final = Path(__file__).resolve().parents[1] / "docs" / "assets"
EPOCHS: Final = 60
EPOCH_S: Final = 0.5
OUTPUT: Final = "board"
SVG_FORMAT: Final = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Clock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play(board: Board) -> Iterator[Manifest]:
    """The demo, epoch by epoch, as it is published."""
    app = make_demo(board)
    (impressions,) = [hr.Stream[Impression](app, node) for node in app.nodes if node.name == "impressions"]
    chance = random.Random(7)
    row = 0
    with hr.testing.Harness(app, start="2024-05-01T12:00", parallelism=2, sinks=True) as h:
        for _ in range(EPOCHS):
            count = round(RATE * EPOCH_S) + chance.randrange(-60, 60)
            h.push(impressions, *(make_impression(i, random.Random(i)) for i in range(row, row + count)))
            row += count
            h.epoch()
            yield _as_on_spark(manifest_of(hr.Store(h.store)), tasks_us=92_000 + chance.randrange(24_000))


def _as_on_spark(manifest: Manifest, tasks_us: int) -> Manifest:
    """The manifest with a time that tasks took, and without the outputs that the test kit adds for itself."""
    tasks = [replace(task, staged={OUTPUT: task.staged.get(OUTPUT, 0)}) for task in manifest.tasks]
    return replace(manifest, tasks=tasks, took_us={"order": 3_000, "tasks": tasks_us})


def draw_demo(board: Board, manifests: list[Manifest], clock: Clock) -> RenderableType:
    count = RunProgress(clock)
    for manifest in manifests:
        clock.now_s += EPOCH_S
        count(manifest)
    return Group(
        Text("$ make demo", "bold"),
        board.draw(),
        Text(status_line(manifests[-1]), "cyan"),
        Text(count.summary(), "dim"),
    )


def draw_epochs(manifests: list[Manifest], clock: Clock) -> RenderableType:
    # A console that is no screen: the table is asked for once, not drawn again and again.
    watch = EpochTable("tweets", Console(file=io.StringIO(), force_terminal=True), clock=clock)
    for manifest in manifests:
        clock.now_s += EPOCH_S
        watch(manifest)
    return Group(Text("$ headrace run tweets.py --store ./state", "bold"), Text(), watch._table())


def write_svg(name: str, title: str, picture: RenderableType, width: int) -> None:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(picture)
    svg = console.export_svg(title=title, code_format=SVG_FORMAT, unique_id=name)
    ASSETS.mkdir(parents=True, exist_ok=True)
    (ASSETS / f"{name}.svg").write_text(svg + "\n", encoding="utf-8")


def main() -> None:
    board = Board()
    manifests = list(play(board))
    write_svg("demo", "headrace demo", draw_demo(board, manifests, Clock()), 100)
    write_svg("epochs", "headrace run", draw_epochs(manifests, Clock()), 104)


if __name__ == "__main__":
    main()
