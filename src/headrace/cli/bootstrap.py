"""``headrace bootstrap``: a new store whose first epoch holds state from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.transfer.bootstrap import BootstrapReport


def bootstrap(
    file: options.File,
    store: Annotated[str, typer.Option("--store", help="Folder or URL of the new store.")],
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STEP[.STATE]=FILES", help="Rows of a state, as exported; repeatable."),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option("--rows", metavar="STEP=FILES", help="Rows as they come into a step; repeatable."),
    ] = None,
    export: Annotated[
        str | None, typer.Option("--from", metavar="EXPORT", help="Folder of an exact export: all it holds.")
    ] = None,
    watermark: Annotated[
        str | None, typer.Option("--watermark", metavar="TIME", help="How far event time has come in the history.")
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offsets", metavar="SOURCE=JSON", help="Where a source begins; else where the program says."),
    ] = None,
    parallelism: options.Parallelism = None,
    profile: options.Profile = None,
    var: options.Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Make the first epoch of a new job from batch history: values, maps, lists, timers, aggregates and windows.

    FILES are Parquet or JSON lines: a file, a folder or a URL. The job started on the store goes on from there.

    Example: headrace bootstrap app.py --store ./new --state totals=history.parquet --state fraud.shops=shops/

    Example: headrace bootstrap app.py --store ./new --rows hourly=clicks/ --watermark 2024-05-01T12:00

    Example: headrace bootstrap app.py --store ./new --from moved/ --offsets 'clicks={"clicks": {"0": 12345}}'
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.bars import count_bar
        from headrace.cli.exits import tell_interrupted
        from headrace.cli.loading import load_app, parse_vars
        from headrace.transfer.bootstrap import bootstrap as make

        variables = parse_vars(var or [])
        app = load_app(file, variables=variables, profile=profile)
        try:
            with count_bar("reading rows", quiet=as_json) as advance:
                report = make(
                    app, store, _pairs(state, "--state"), rows=_pairs(rows, "--rows"), export=export,
                    watermark=watermark, offsets=_pairs(offsets, "--offsets"), progress=advance,
                    parallelism=parallelism, profile=profile, vars=variables or None,
                )  # fmt: skip
        except KeyboardInterrupt:
            tell_interrupted(f"{store} is no store yet; the same command begins again")
            raise typer.Exit(Exit.INTERRUPTED) from None
        _say(report, file, as_json)


def _pairs(words: list[str] | None, option: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for word in words or []:
        name, equals, rest = word.partition("=")
        if not (name and equals and rest):
            raise typer.BadParameter(f"{word!r} is no pair", param_hint=option)
        if name in pairs:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        pairs[name] = rest
    return pairs


def _say(report: BootstrapReport, file: str, as_json: bool) -> None:
    from headrace.cli.show import make_console, make_table, print_json, print_table
    from headrace.model.amounts import human_bytes

    if as_json:
        print_json(report._asdict())
        return
    table = make_table("state", "rows", left=("state",))
    for name, count in report.rows.items():
        table.add_row(name, f"{count:,}")
    console = make_console()
    print_table(
        console, f"{report.app}: epoch {report.epoch} in {report.store}, {human_bytes(report.size_bytes)}", table
    )
    console.print(f"go on with  headrace run {file} --store {report.store}", markup=False)
