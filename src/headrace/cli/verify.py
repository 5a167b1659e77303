"""``headrace verify``: does what a program gives depend on more than its rows?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors


def verify(
    file: options.File,
    data: Annotated[
        Path, typer.Option("--data", metavar="FOLDER", help="Rows: SOURCE.jsonl or .parquet, or SOURCE/SPLIT.jsonl.")
    ],
    tries: Annotated[int, typer.Option("--tries", min=2, help="How many runs to compare.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="The same seed tries the same deliveries.")] = 0,
    profile: options.Profile = None,
    var: options.Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Runs a program over a sample in many ways, without a JVM, and says what depends on which of them.

    Varied are where epochs end, the order across splits and sources, the number of shards, crashes and the wall clock.
    Sinks are not fed. Ends with 0 where every output and state comes to the same each time, and with 1 otherwise.

    Example: headrace verify tweets.py --data sample/

    Example: headrace verify tweets.py --data sample/ --tries 1000 --seed 7 --json
    """
    with report_errors(trace=trace, as_json=as_json):
        from rich.progress import Progress

        import headrace
        from headrace.cli.loading import load_app, parse_vars
        from headrace.cli.show import print_json

        app = load_app(file, variables=parse_vars(var or []), profile=profile)
        with Progress(transient=True, disable=as_json) as bar:
            task = bar.add_task("runs", total=tries)
            found = headrace.testing.verify_program(
                app, data, tries=tries, seed=seed, progress=lambda done: bar.update(task, completed=done)
            )
        if as_json:
            print_json(_data(found))
        else:
            print(found.tell())
        if not found.ok:
            raise typer.Exit(Exit.DIFFERENT)


def _data(found: Any) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "tries": found.tries,
        "rows": found.rows,
        "compared": list(found.targets),
        "dependences": [
            {
                "what": each.what,
                "factors": list(each.factors),
                "step": each.step,
                "suspects": list(each.suspects),
                "rows": [str(row) for row in each.example.rows],
                "deliveries": list(each.example.deliveries),
                "given": [list(given) for given in each.example.given],
            }
            for each in found.dependences
        ],
    }
