"""``headrace sql``: statements and queries, from a person, a file or a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.exits import Json, Trace, report_errors
from headrace.cli.options import Profile, Vars
from headrace.errors import SettingsError

if TYPE_CHECKING:
    from headrace.cli.shell.session import ShellSession


def sql(
    execute: Annotated[
        str | None, typer.Option("--execute", "-e", metavar="SQL", help="Run these statements, and end.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Run the statements of a file, and end.")
    ] = None,
    format: Annotated[
        Literal["table", "json", "csv"] | None,
        typer.Option("--format", help="How rows are shown; JSON lines and CSV hold all of them."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="STORE", help="Read the state of a store, which is not changed.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Ask a server: postgresql://USER:TOKEN@HOST:PORT/APP."),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="MOMENT", help="With --store: an epoch, a savepoint or a time.")
    ] = None,
    init: Annotated[
        str | None, typer.Option("--init", "-i", metavar="FILE", help="Run the statements of a file first.")
    ] = None,
    profile: Profile = None,
    var: Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """SQL over streams. On a terminal a shell; a SELECT over streams shows its table while it changes.

    With --store or --to a SELECT reads the state that a job keeps, at once: each state is a table.

    Example: headrace sql

    Example: headrace sql -i tables.sql

    Example: headrace sql --store ./state -e "SELECT tweet, impressions FROM hourly" --format csv

    Example: headrace sql --to postgresql://web@127.0.0.1:5439/tweets

    Example: headrace sql -f tables.sql -e "SELECT room, avg(celsius) AS mean FROM sensors GROUP BY room" --format json
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.loading import parse_vars
        from headrace.cli.shell.commands import Quit, read_script
        from headrace.cli.shell.printing import Printer
        from headrace.cli.shell.shell import Shell
        from headrace.dataflow.variables import using

        with using(parse_vars(var or []), profile):
            session = _open_session(store, to, at)
            try:
                shell = Shell(session, Printer(format or ("json" if as_json else "table")), trace=trace)
                piped = not sys.stdin.isatty()
                for path in (each for each in (init, file) if each is not None):
                    shell.run_text(read_script(path), path)
                if execute is not None:
                    shell.run_text(execute)
                if execute is None and file is None:
                    shell.run_text(sys.stdin.read(), "<stdin>") if piped else shell.interact()
            except Quit:
                pass
            finally:
                session.close()


def _open_session(store: str | None, to: str | None, at: str | None) -> ShellSession:
    """What stands behind the shell."""
    if to is not None:
        if store is not None or at is not None:
            raise SettingsError(
                "--to is a server, which knows its store",
                expected="--to alone",
                found="--store or --at beside it",
                next_move="ask for the past with the database's name: …/APP@41",
            )
        from headrace.cli.shell.remote_session import open_remote_session

        return open_remote_session(to)
    if store is not None:
        from headrace.cli.shell.store_session import open_store_session

        return open_store_session(store, at)
    if at is not None:
        raise SettingsError("--at is of a store", expected="--store STORE beside it", found=f"--at {at}")
    from headrace.cli.shell.streaming_session import StreamingSession

    return StreamingSession()
