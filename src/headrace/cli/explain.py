"""``headrace explain``: what a program will do, without running it."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.exits import Json, Trace, report_errors
from headrace.cli.options import File, Profile, Vars


def explain(
    file: File,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="A Mermaid graph, for documents.")] = False,
    profile: Profile = None,
    var: Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Steps, state, exchanges, where expressions run and what outputs promise. No JVM is started.

    Example: headrace explain tweets.py

    Example: headrace explain tweets.py --mermaid > tweets.mmd
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.loading import load_app, parse_vars
        from headrace.cli.show import print_json

        app = load_app(file, variables=parse_vars(var or []), profile=profile)
        if as_json:
            from headrace.plan.explain import outline

            print_json(outline(app))
        else:
            print(app.explain("mermaid" if mermaid else "text"))
