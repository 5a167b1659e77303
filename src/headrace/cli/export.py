"""``headrace export``: states of a job as files, for other programs or for a new job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli import options
from headrace.cli.completing import complete_addresses
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.transfer.record import ExportRecord


def export(
    store: options.Moment,
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="An empty folder, or a URL.")],
    states: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STEP[.STATE]]...", help="Which states.", autocompletion=complete_addresses),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All states.")] = False,
    format: Annotated[
        Literal["parquet", "jsonl"], typer.Option("--format", help="Typed columns, or JSON lines.")
    ] = "parquet",
    exact: Annotated[
        bool, typer.Option("--exact", help="Every table as it is stored, for headrace bootstrap --from.")
    ] = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Write state into files: keys and values, maps, lists, timers, windows with their results, and when they expire.

    The job may run or not: all files are of one epoch.

    Example: headrace export ./state totals fraud.shops --to history/

    Example: headrace export ./state@before-v2 --all --to s3://lake/tweets --format jsonl

    Example: headrace export ./state --all --exact --to moved/
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.bars import count_bar
        from headrace.cli.exits import tell_interrupted
        from headrace.read.store import Store

        chosen = states or []
        if every == bool(chosen):
            raise typer.BadParameter("name the states, or give --all", param_hint="STEP[.STATE]")
        opened = Store(store)
        try:
            with count_bar("exporting rows", quiet=as_json) as advance:
                record = opened.export(to, *chosen, format=format, exact=exact, progress=advance)
        except KeyboardInterrupt:
            tell_interrupted(f"{to} holds a part only; the same command begins again")
            raise typer.Exit(Exit.INTERRUPTED) from None
        _say(record, to, as_json)


def _say(record: ExportRecord, folder: str, as_json: bool) -> None:
    from headrace.cli.show import make_console, make_table, print_json, print_table
    from headrace.model.amounts import count_of

    if as_json:
        print_json({**export_data(record), "folder": folder})
        return
    table = make_table("state", "kind", "rows", "files", left=("state", "kind"))
    for each in record.tables:
        table.add_row(each.state, each.kind, f"{each.rows:,}", f"{len(each.files):,}")
    print_table(
        make_console(), f"{record.app}: epoch {record.epoch}, {count_of(record.rows, 'row')} to {folder}", table
    )


def export_data(record: ExportRecord) -> dict[str, Any]:
    """An export for machines."""
    states = [
        {"state": each.state, "kind": each.kind, "rows": each.rows, "files": each.files} for each in record.tables
    ]
    return {"app": record.app, "epoch": record.epoch, "form": record.form, "rows": record.rows, "states": states}
