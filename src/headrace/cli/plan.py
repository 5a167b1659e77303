"""``headrace plan``: what a start of a program would do to a store, before anything starts."""

from __future__ import annotations

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors, tell


def plan(
    file: options.File,
    store: options.StorePath = None,
    start_from: options.StartFrom = None,
    drop: options.Drop = None,
    parallelism: options.Parallelism = None,
    profile: options.Profile = None,
    var: options.Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """What becomes of every step, state, source and output of a store when this program goes on with it.

    Nothing is started and nothing is written. Ends with 0 where nothing is refused, and with 5 where something is.

    Example: headrace plan tweets.py --store ./state

    Example: headrace plan tweets.py --store ./state --drop totals.seen

    Example: headrace plan tweets.py --store ./state --from before-v2 --json
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.loading import load_app, parse_vars
        from headrace.cli.show import print_json, print_plan
        from headrace.starting import plan_start
        from headrace.upgrade.text import plan_data

        variables = parse_vars(var or [])
        app = load_app(file, variables=variables, profile=profile)
        settings = app.settings(
            profile=profile, store=store, parallelism=parallelism, vars=variables or None, start_from=start_from,
            drop=drop or None,
        )  # fmt: skip
        upgrade = plan_start(app, settings)
        if as_json:
            print_json(plan_data(upgrade))
        else:
            print_plan(upgrade)
            for error in upgrade.errors():
                tell(error)
        if upgrade.refused:
            raise typer.Exit(Exit.REFUSED)
