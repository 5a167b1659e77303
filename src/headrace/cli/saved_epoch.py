"""One savepoint, or another epoch that is kept, as the command line shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from headrace.cli.savepoint import size_text
from headrace.cli.show import make_table, print_table
from headrace.model.amounts import count_of, human_bytes
from headrace.progress import time_text

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.read.savepoints import SavedEpoch

OFFSET_CHARS: Final = 160
"""How much of an offset is shown; ``--json`` has all of it."""


def print_saved_epoch(console: Console, described: SavedEpoch) -> None:
    _print_head(console, described)
    _print_states(console, described)
    _print_sources(console, described)


def _print_head(console: Console, described: SavedEpoch) -> None:
    manifest, point, origin = described.manifest, described.savepoint, described.copied_from
    parent = described.forked_from
    name = f"epoch {manifest.epoch}" if point is None else f"savepoint {point.name}"
    lines = {
        "epoch": f"{manifest.epoch}, published {time_text(manifest.published_us)}" + ", the last" * manifest.final,
        "taken": "" if point is None else time_text(point.taken_us),
        "note": "" if point is None else point.note,
        "timeline": str(manifest.timeline) if manifest.timeline else "",
        "program": manifest.program,
        "shards": f"{manifest.parallelism}, at most {manifest.key_groups}",
        "size": size_text(described.size),
        "copied": "" if origin is None else f"{time_text(origin.copied_us)} from {origin.url}@{origin.savepoint}",
        "forked": "" if parent is None else f"{time_text(parent.forked_us)} from {parent.url}@{parent.savepoint}",
        "in loops": ", ".join(f"{count_of(rows, 'row')} in {loop}" for loop, rows in described.loops.items()),
    }
    if point is None:
        lines["kept"] = "as long as the setting `retain` says; a savepoint keeps it until it is deleted"
    console.print(Text(f"{manifest.app}: {name}", "bold"))
    width = max(len(label) for label, text in lines.items() if text)
    for label, text in lines.items():
        if text:
            console.print(Text.assemble((f"  {label:<{width}}  ", "cyan"), text), soft_wrap=True)


def _print_states(console: Console, described: SavedEpoch) -> None:
    table = make_table("state", "kind", "stored rows", "size", "watermark", left=("state", "kind", "watermark"))
    steps = described.manifest.time.steps
    for info in described.states:
        about = "about " if info.about else ""
        reached = time_text(steps[info.step]) if info.step in steps else "–"
        table.add_row(info.address, info.kind, f"{about}{info.rows:,}", human_bytes(info.size_bytes), reached)
    if table.row_count:
        console.print()
        print_table(console, "state", table)


def _print_sources(console: Console, described: SavedEpoch) -> None:
    table = make_table("source", "offset", "watermark", left=("source", "offset", "watermark"))
    times = described.manifest.time.sources
    for source, offset in described.offsets.items():
        shown = offset if len(offset) <= OFFSET_CHARS else f"{offset[:OFFSET_CHARS]}…"
        table.add_row(source, shown, time_text(times[source].watermark) if source in times else "–")
    if table.row_count:
        console.print()
        print_table(console, "sources", table)
