"""``headrace connectors``: the jars that Spark lacks for some sources; what is there, and fetching it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.exits import Exit, Json, Trace, report_errors

app = typer.Typer(
    help="Jars that Spark lacks for some sources.",
    epilog="Example: headrace connectors install kafka",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list")
def list_connectors(as_json: Json = False, trace: Trace = False) -> None:
    """Which connectors there are, and where their jars are on this machine.

    Example: headrace connectors list
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.show import make_console, make_table, print_json, print_table
        from headrace.spark.connectors import CONNECTORS, find_connector, find_spark

        spark = find_spark()
        rows = [_row(name, find_connector(name, spark)) for name in CONNECTORS]
        if as_json:
            print_json({"spark": spark.version, "connectors": rows})
            return
        table = make_table("connector", "found", "jars", left=("connector", "found", "jars"))
        for row in rows:
            table.add_row(row["name"], row["where"] or "not here", ", ".join(map(os.path.basename, row["jars"])) or "–")
        console = make_console()
        print_table(console, f"connectors for Spark {spark.version}", table)
        for row in rows:
            if row["where"] is None:
                console.print(f"  headrace connectors install {row['name']}", style="green")


@app.command("install", no_args_is_help=True)
def install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The connector: kafka.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder of connectors; HEADRACE_CONNECTORS_DIR for every run.")
    ] = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Fetch the jars of a connector, with Maven where it is installed. Jars that were fetched before are replaced.

    Example: headrace connectors install kafka
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.show import make_console, print_json
        from headrace.spark.connectors import CONNECTORS, FOLDER, find_spark, install_connector

        if name not in CONNECTORS:
            console = make_console()
            console.print(f"there is no connector {name}; there is {', '.join(CONNECTORS)}", style="red")
            raise typer.Exit(Exit.USAGE)
        if to is not None:
            os.environ[FOLDER] = str(to.absolute())
        say = (lambda text: None) if as_json else make_console().print
        found = install_connector(name, find_spark(), say, replace=True)
        if as_json:
            print_json(_row(name, found))
            return
        for jar in found.jars:
            make_console().print(f"  {os.path.basename(jar)}")


def _row(name: str, found: Any) -> dict[str, Any]:
    return {
        "name": name,
        "where": None if found is None else found.where,
        "jars": [] if found is None else list(found.jars),
    }
