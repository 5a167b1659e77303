"""The command line: one module per command, loaded when the command is called.

`main` is what the console script ``headrace`` starts. Nothing imports this room. Every command has an example in its
help and ``--json`` for machines; errors are told in their four parts, with the exit codes of `headrace.cli.exits`.
"""

from __future__ import annotations

import io
import sys

import typer

from headrace.cli import (
    bootstrap,
    compare,
    connectors,
    demo,
    diff,
    doctor,
    edit,
    epochs,
    erase,
    explain,
    export,
    ingest,
    new,
    plan,
    refill,
    replay,
    rewrite,
    run,
    savepoint,
    savepoints,
    serve,
    sql,
    state,
    stop,
    verify,
)

__all__ = ["main"]

app = typer.Typer(
    name="headrace",
    help="Stateful stream processing for Python, on Spark.",
    epilog="Try: headrace demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("headrace")
        except PackageNotFoundError:
            number = "(not installed, run from its sources)"
        print(f"headrace {number}")
        raise typer.Exit


@app.callback()
def _headrace(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command("new", no_args_is_help=True)(new.new)
app.command("run", no_args_is_help=True, cls=run.RunCommand)(run.run)
app.command("demo")(demo.demo)
app.command("plan", no_args_is_help=True)(plan.plan)
app.command("explain", no_args_is_help=True)(explain.explain)
app.command("verify", no_args_is_help=True)(verify.verify)
app.command("epochs", no_args_is_help=True)(epochs.epochs)
app.command("state", no_args_is_help=True)(state.state)
app.command("sql")(sql.sql)
app.command("stop", no_args_is_help=True)(stop.stop)
app.command("edit", no_args_is_help=True)(edit.edit)
app.command("erase", no_args_is_help=True)(erase.erase)
app.command("diff", no_args_is_help=True)(diff.diff)
app.command("compare", no_args_is_help=True)(compare.compare)
app.command("replay", no_args_is_help=True)(replay.replay)
app.command("savepoint", no_args_is_help=True)(savepoint.savepoint)
app.command("savepoints", no_args_is_help=True)(savepoints.savepoints)
app.command("refill", no_args_is_help=True)(refill.refill)
app.command("bootstrap", no_args_is_help=True)(bootstrap.bootstrap)
app.command("rewrite", no_args_is_help=True)(rewrite.rewrite)
app.command("export", no_args_is_help=True)(export.export)
app.command("serve", no_args_is_help=True)(serve.serve)
app.command("token", no_args_is_help=True)(serve.token)
app.command("ingest", no_args_is_help=True)(ingest.ingest)
app.command("doctor")(doctor.doctor)
app.add_typer(connectors.app, name="connectors")


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Where a terminal or a log has no letter for an arrow or a dash, it is spelled out instead of failing.
            stream.reconfigure(errors="backslashreplace")
    app()
