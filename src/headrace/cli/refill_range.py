"""``headrace refill --from EPOCH --into TARGET``: what past epochs gave to an output, in a new target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from headrace.cli.exits import Exit

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.replay.filling import FillReport, OutputFilling


def fill_range(
    app: App, settings: Settings, output: str, into: str, *, first: int, last: int | None, write: bool, as_json: bool
) -> None:
    """Fills or compares, and says so. Ends the command with 1 where the target shows other rows than it was given."""
    from headrace.cli.bars import count_bar
    from headrace.cli.replay import say_spark_starts
    from headrace.read.store import open_for_reading
    from headrace.replay.filling import OutputFilling
    from headrace.spark.past_inputs import InputsBySpark

    files = open_for_reading(settings.store)
    with count_bar(f"filling {into}", quiet=as_json or not write) as advance:
        filling = OutputFilling(app, files, output, into, first=first, last=last, advance=advance)
        if write:
            with InputsBySpark(app.name, settings.spark, say_spark_starts) as reads:
                report = filling.run(reads.read)
        else:
            report = filling.verify()
    _say(filling, report, write=write, as_json=as_json)
    if not report.agrees:
        raise typer.Exit(Exit.WRONG)


def _say(filling: OutputFilling, report: FillReport, *, write: bool, as_json: bool) -> None:
    from headrace.cli.show import make_console, print_json

    note = report.note
    if as_json:
        print_json({
            "output": note.output, "target": note.target, "from": note.first, "to": note.epoch, "rows": note.rows,
            "written": write, "epochs_written": report.epochs, "rows_written": report.rows,
            "unchecked_epochs": report.unchecked, "epochs_missing": report.missing, "rows_counted": report.counted,
            "agrees": report.agrees,
        })  # fmt: skip
        return
    console = make_console()
    for line in _lines(report, write=write):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _lines(report: FillReport, *, write: bool) -> list[str]:
    from headrace.model.amounts import count_of

    note = report.note
    lines = []
    if write:
        what = f"{count_of(report.rows, 'row')} of {count_of(report.epochs, 'epoch')} written"
        lines.append(f"{note.output}: {what if report.epochs else 'nothing to write'} to {note.target}")
    else:
        lines.append(f"{note.output}: {note.target}")
    there = f"  epochs {note.first} to {note.epoch} are there: {count_of(note.rows, 'row')}"
    if note.place is None:
        lines.append("  no epoch is there yet")
    elif report.counted is None:
        lines.append(f"{there}, which cannot be counted in this kind of target")
    elif report.counted == note.rows:
        lines.append(f"{there}, and the target shows as many")
    else:
        lines.append(f"{there}, but the target shows {report.counted:,}")
    if report.missing:
        lines.append(f"  {count_of(report.missing, 'epoch')} of the range not written yet: leave out --verify")
    if report.unchecked:
        epochs = ", ".join(map(str, report.unchecked))
        lines.append(f"  not compared with what the job gave out, since it held that back: epoch {epochs}")
    return lines
