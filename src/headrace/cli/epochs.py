"""``headrace epochs``: what was published, where an epoch's time and bytes went, and what holds event time back."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options
from headrace.cli.epoch_reasons import notes_data, print_notes, print_reasons, print_waits, reason_data
from headrace.cli.exits import Json, Trace, report_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from headrace.model.pace import EpochCost
    from headrace.model.report import StagedPart
    from headrace.model.sink_waits import SinkWait
    from headrace.progress import Figures
    from headrace.read.store import Store
    from headrace.state.manifest import JobState, Manifest, TaskStats

LAPS: Final = ("open", "wait", "process", "fire", "write", "stage")
"""Where a task's time goes, in the order it goes there; others that a report names come behind."""


def epochs(
    store: options.Moment,
    epoch: options.Epoch = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many of the newest epochs; 0: all.")] = 20,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Published epochs of a job, stopped or running, and why event time stands where it stands.

    Example: headrace epochs ./.headrace/demo

    Example: headrace epochs ./.headrace/demo 41
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.read.store import Store, is_pinned

        opened = Store(store)
        if epoch is not None or is_pinned(opened):
            _detail(opened if epoch is None else opened.at(epoch), as_json)
        else:
            _list(opened, limit, as_json)


# --- the list


def _list(store: Store, limit: int, as_json: bool) -> None:
    from headrace.cli.show import make_console, print_json
    from headrace.read.store import newest_manifests

    manifests, waits = newest_manifests(store, limit), store.waits()
    if as_json:
        figures = _figures(manifests)
        pairs = zip(_with_next(manifests), figures, strict=True)
        print_json([summary(manifest, after, waits, each) for (manifest, after), each in pairs])
        return
    console = make_console()
    if not manifests:
        console.print(f"{store.app}: no epoch has been published yet")
    else:
        _print_list(console, store, manifests)
    print_waits(console, waits)


def _print_list(console: Console, store: Store, manifests: list[Manifest]) -> None:
    from headrace.cli.show import make_table, ms_text, print_table
    from headrace.model.amounts import human_bytes
    from headrace.progress import (
        behind_text,
        delta_bytes,
        late_rows,
        rows_in,
        rows_out,
        time_text,
        took_us,
        wall_clock_us,
        watermark_of,
    )

    released = any(manifest.released_us for manifest in manifests)
    behind = any(manifest.behind for manifest in manifests)
    paced = any(manifest.paced is not None for manifest in manifests)
    table = make_table(
        "epoch", "time", "rows in", "rows out", "late",
        "took ms", *(["own cost"] if paced else []), "delta", "watermark",
        *(["release ms", "slowest sink"] if released else []), *(["behind"] if behind else []),
        left=("time", "watermark", "slowest sink"),
    )  # fmt: skip
    for manifest, after in _with_next(manifests):
        table.add_row(
            f"{manifest.epoch}{' final' if manifest.final else ''}",
            time_text(manifest.published_us),
            f"{rows_in(manifest):,}",
            f"{rows_out(manifest):,}",
            f"{late_rows(manifest):,}",
            ms_text(took_us(manifest)),
            *([_share_text(cost_of(manifest, after))] if paced else []),
            human_bytes(delta_bytes(manifest)),
            time_text(watermark_of(manifest)),
            *(_slowest(released_us(manifest, after)) if released else ()),
            *([behind_text(manifest.behind)] if behind else []),
        )
    print_table(console, f"{store.app}: epochs", table)
    print_notes(console, manifests)
    print_reasons(console, manifests[-1], wall_clock_us())


def _figures(manifests: list[Manifest]) -> list[Mapping[str, Figures]]:
    """How far each source was at each epoch: rates from those that are listed before it."""
    from headrace.progress import CatchingUp, took_us

    now_us = 0
    catching_up, figures = CatchingUp(lambda: now_us / 1e6), []
    for manifest in manifests:
        now_us = manifest.clock_us + took_us(manifest)
        catching_up(manifest)
        figures.append(catching_up.figures)
    return figures


def _with_next(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest | None]]:
    """Each epoch with the one after it, which tells how its release went."""
    return zip_longest(manifests, manifests[1:])


def released_us(manifest: Manifest, after: Manifest | None) -> dict[str, int] | None:
    """Output → how long its release took, as the manifest of the next epoch tells; None where there is none yet."""
    return after.released_us if after is not None and after.parent == manifest.nonce else None


def cost_of(manifest: Manifest, after: Manifest | None) -> EpochCost | None:
    """Where the time of an epoch went, as the manifest of the next one tells."""
    return after.paced if after is not None and after.parent == manifest.nonce else None


def _share_text(cost: EpochCost | None) -> str:
    return "–" if cost is None else f"{cost.share:.0%}"


def _slowest(released: dict[str, int] | None) -> tuple[str, str]:
    from headrace.cli.show import ms_text

    if not released:
        return "–", ""
    output = max(released, key=lambda name: released[name])
    return ms_text(released[output]), output


def summary(
    manifest: Manifest,
    after: Manifest | None = None,
    waits: tuple[SinkWait, ...] = (),
    figures: Mapping[str, Figures] | None = None,
) -> dict[str, Any]:
    """One epoch for machines; also what ``headrace run --json`` says as each is published.

    ``after``: the manifest of the next epoch, which tells how long this one's release took. ``figures``: how fast its
    sources catch up, as far as epochs before it are known.
    """
    from headrace.cli.show import json_time
    from headrace.progress import (
        behind_data,
        delta_bytes,
        late_rows,
        reasons_of,
        rows_in,
        rows_out,
        took_us,
        watermark_of,
    )

    released, cost = released_us(manifest, after), cost_of(manifest, after)
    return {
        "epoch": manifest.epoch,
        "time": json_time(manifest.published_us),
        "rows_in": rows_in(manifest),
        "rows_out": rows_out(manifest),
        "late": late_rows(manifest),
        "took_ms": took_us(manifest) / 1000,
        "cost": None if cost is None else {
            "own_ms": cost.own_us / 1000, "work_ms": cost.work_us / 1000, "period_ms": cost.period_us / 1000,
            "share": round(cost.share, 4),
        },
        "delta_bytes": delta_bytes(manifest),
        "watermark": json_time(watermark_of(manifest)),
        "held_back": [
            reason_data(reason, manifest.clock_us) for reason in reasons_of(manifest) if reason.kind != "no_time"
        ],
        "behind": behind_data(manifest.behind, figures or {}),
        "released_ms": None if released is None else {output: took / 1000 for output, took in released.items()},
        "waiting_for": [
            {"output": wait.output, "sink": wait.sink, "reason": wait.reason, "tries": wait.tries,
             "since": json_time(wait.since_us), "until": json_time(wait.until_us)}
            for wait in waits if wait.epoch == manifest.epoch
        ],
        "final": manifest.final,
        **notes_data(manifest),
    }  # fmt: skip


# --- one epoch


def _detail(store: Store, as_json: bool) -> None:
    from headrace.cli.show import make_console, print_json
    from headrace.read.store import job_state_of, manifest_of

    state = job_state_of(store)
    epoch, present = state.epoch, state.manifest.timeline == store.timeline
    after = manifest_of(store, epoch + 1) if present and epoch + 1 in store.epochs() else None
    waits = tuple(wait for wait in store.waits() if present and wait.epoch == epoch)
    if as_json:
        print_json(detail(state, after, waits))
        return
    console = make_console()
    _print_head(console, state.manifest, cost_of(state.manifest, after))
    print_waits(console, waits)
    print_notes(console, [state.manifest])
    console.print()
    print_reasons(console, state.manifest, state.manifest.clock_us)
    _print_splits(console, state.manifest)
    if state.manifest.tasks:
        _print_tasks(console, state.manifest)
    _print_steps(console, state)
    _print_parts(console, "output", state.manifest.outputs, released_us(state.manifest, after))
    _print_parts(console, "loop", state.manifest.loops)


def detail(state: JobState, after: Manifest | None = None, waits: tuple[SinkWait, ...] = ()) -> dict[str, Any]:
    """One epoch with everything that is known of it, for machines."""
    from headrace.cli.show import json_time
    from headrace.progress import reasons_of

    manifest = state.manifest
    return {
        **summary(manifest, after, waits),
        "held_back": [reason_data(reason, manifest.clock_us) for reason in reasons_of(manifest)],
        "app": manifest.app,
        "parallelism": manifest.parallelism,
        "fence": manifest.fence,
        "took_us": manifest.took_us,
        "watermarks": {
            "sources": {name: json_time(each.watermark) for name, each in manifest.time.sources.items()},
            "steps": {name: json_time(each) for name, each in manifest.time.steps.items()},
            "splits": {
                name: {
                    split: {"at": json_time(time.max_us), "seen": json_time(time.seen_us)}
                    for split, time in each.splits.items()
                }
                for name, each in manifest.time.sources.items()
            },
        },
        "next_due": json_time(manifest.next_due_us),
        "tasks": [
            {
                "level": task.level,
                "shard": task.shard,
                "rows_in": task.rows_in,
                "bytes_in": task.bytes_in,
                "times_us": task.times_us,
                "steps": task.steps,
                "outputs": task.staged,
            }
            for task in manifest.tasks
        ],
        "state": {step: {"runs": len(runs), "bytes": _size(runs)} for step, runs in sorted(state.runs.items())},
        "loops": {name: sum(part.rows for part in parts) for name, parts in manifest.loops.items()},
        "outputs": {
            name: {"rows": sum(part.rows for part in parts), "bytes": _size(parts), "parts": len(parts)}
            for name, parts in manifest.outputs.items()
        },
        "counters": manifest.counters,
    }


def _size(files: Any) -> int:
    return sum(file.size_bytes for file in files)


def _print_head(console: Console, manifest: Manifest, cost: EpochCost | None) -> None:
    from rich.text import Text

    from headrace.cli.show import ms_text
    from headrace.progress import time_text, took_us

    title = f"{manifest.app}: epoch {manifest.epoch}" + (", the last: its input was drained" if manifest.final else "")
    console.print(Text(title, "bold"))
    waited = manifest.took_us.get("between")
    parts = ", ".join(f"{name} {ms_text(each)}" for name, each in manifest.took_us.items() if name != "between")
    lines = [
        ("time", time_text(manifest.published_us)),
        ("took", f"{ms_text(took_us(manifest))} ms ({parts})" if parts else "–"),
        ("own cost", _cost_text(cost) if cost is not None else ""),
        ("since the last", f"{ms_text(waited)} ms" if waited is not None else ""),
        ("shards", str(manifest.parallelism)),
        *((f"watermark {name}", time_text(each.watermark)) for name, each in manifest.time.sources.items()),
        ("next due", time_text(manifest.next_due_us) if manifest.next_due_us is not None else ""),
    ]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        if text:
            console.print(Text.assemble((f"  {name:<{width}}  ", "cyan"), text))


def _cost_text(cost: EpochCost) -> str:
    from headrace.cli.show import ms_text

    period = f"{ms_text(cost.period_us)} ms until the next one"
    return f"{_share_text(cost)}: {ms_text(cost.own_us)} of {period}; its rows cost {ms_text(cost.work_us)} ms"


def _print_splits(console: Console, manifest: Manifest) -> None:
    """Where each part of a source stands; a source that is one whole has been told of already."""
    from headrace.cli.show import make_table, print_table
    from headrace.progress import time_text

    table = make_table("source", "split", "event time", "last row", left=("source", "split", "event time", "last row"))
    for name, source in manifest.time.sources.items():
        if len(source.splits) > 1:
            for split, time in sorted(source.splits.items(), key=lambda item: item[1].max_us):
                table.add_row(name, split, time_text(time.max_us), time_text(time.seen_us))
    if table.row_count:
        console.print()
        print_table(console, "splits, the slowest first", table, names=2)


def _laps(tasks: list[TaskStats]) -> list[str]:
    met = {name for task in tasks for name in task.times_us}
    return [*(name for name in LAPS if name in met), *sorted(met - set(LAPS))]


def _print_tasks(console: Console, manifest: Manifest) -> None:
    from headrace.cli.show import make_table, ms_text, print_table
    from headrace.model.amounts import human_bytes

    laps = _laps(manifest.tasks)
    table = make_table("level", "shard", "rows in", "bytes in", *(f"{name} ms" for name in laps))
    for task in manifest.tasks:
        times = [ms_text(task.times_us.get(name)) for name in laps]
        table.add_row(str(task.level), str(task.shard), f"{task.rows_in:,}", human_bytes(task.bytes_in), *times)
    console.print()
    print_table(console, "tasks, one per level and shard", table, names=2)


def _print_steps(console: Console, state: JobState) -> None:
    from headrace.cli.show import make_table, print_table
    from headrace.model.amounts import human_bytes

    table = make_table(
        "step", "shard", "rows in", "rows out", "late", "fired", "delta rows", "delta", "runs", "state",
        left=("step",),
    )  # fmt: skip
    numbers = ("rows_in", "rows_out", "late", "fired", "delta_rows")
    for task in state.manifest.tasks:
        for step, counts in task.steps.items():
            mine = _runs_of_shard(state, step, task.shard)
            cells = [f"{counts.get(name, 0):,}" for name in numbers]
            kept = [human_bytes(counts.get("delta_bytes", 0)), str(len(mine)), human_bytes(_size(mine))]
            table.add_row(step, str(task.shard), *cells, *kept)
    if table.row_count:
        console.print()
        print_table(console, "steps and what they keep", table, names=2)


def _runs_of_shard(state: JobState, step: str, shard: int) -> list[Any]:
    from headrace.model.keys import group_range

    groups = group_range(shard, state.manifest.parallelism, state.manifest.key_groups)
    return [run for run in state.runs.get(step, ()) if run.lo < groups.stop and groups.start < run.hi]


def _print_parts(
    console: Console, what: str, staged: dict[str, list[StagedPart]], released: dict[str, int] | None = None
) -> None:
    """Rows that the epoch wrote to outputs, or left in loops for the next one."""
    from headrace.cli.show import make_table, ms_text, print_table
    from headrace.model.amounts import human_bytes

    if not staged:
        return
    table = make_table(what, "rows", "bytes", "parts", *(["release ms"] if released else []), left=(what,))
    for name, parts in staged.items():
        rows = sum(part.rows for part in parts)
        took = [ms_text(released.get(name))] if released else []
        table.add_row(name, f"{rows:,}", human_bytes(_size(parts)), str(len(parts)), *took)
    console.print()
    print_table(console, f"{what}s", table)
