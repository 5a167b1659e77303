"""``headrace refill``: what a step holds is written to an output's target again, or compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import Sink
    from headrace.dataflow.app import App
    from headrace.plan.physical import Program
    from headrace.plan.refilling import RefillPlan
    from headrace.runtime.refill import RefillReport
    from headrace.state.store import StoreFiles


def refill(
    file: options.File,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Which output; explain lists them.")],
    store: options.StorePath = None,
    verify: Annotated[bool, typer.Option("--verify", help="Only compare; nothing is written.")] = False,
    delete_extra: Annotated[
        bool, typer.Option("--delete-extra", help="Delete rows whose keys the state does not have.")
    ] = False,
    first: Annotated[
        int | None, typer.Option("--from", metavar="EPOCH", min=0, help="The first epoch that runs again.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", metavar="EPOCH", min=0, help="The last one; else the newest.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="TARGET", help="A new folder, table or topic for what these epochs gave out."),
    ] = None,
    profile: options.Profile = None,
    var: options.Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Write what a step's state holds to an output's target again, while the job runs or not.

    Rows that are missing or differ are written; newer ones are never overwritten.

    Rows that are appended are in no state: with --from and --into past epochs run again, and give their rows to a new
    target. Repeated, or with a later --to, it goes on behind what the target has.

    Ends with 1 where --verify finds a difference, or where rows are left that the state does not have.

    Example: headrace refill shop.py totals --verify

    Example: headrace refill shop.py totals --store ./state

    Example: headrace refill shop.py totals --delete-extra

    Example: headrace refill shop.py sales --from 41 --to 57 --into ./sales-again
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.loading import load_app, parse_vars

        if verify and delete_extra:
            raise typer.BadParameter("--verify changes nothing: leave it out, or --delete-extra")
        if (first is None) != (into is None) or (last is not None and first is None):
            raise typer.BadParameter("a range of epochs goes to a new target: --from EPOCH --into TARGET")
        if into is not None and delete_extra:
            raise typer.BadParameter("--delete-extra is for targets of one row per key: leave out --from and --into")
        variables = parse_vars(var or [])
        app = load_app(file, variables=variables, profile=profile)
        settings = app.settings(profile=profile, store=store, vars=variables or None)
        if first is not None and into is not None:
            from headrace.cli.refill_range import fill_range

            fill_range(app, settings, output, into, first=first, last=last, write=not verify, as_json=as_json)
            return
        report = _refill(app, settings.store, output, write=not verify, delete_extra=delete_extra, quiet=as_json)
        _say(report, output, write=not verify, as_json=as_json)
        left = report.comparison.extra - report.deleted
        if left or not report.complete or (verify and not report.comparison.agrees):
            raise typer.Exit(Exit.WRONG)


def _refill(app: App, url: str, output: str, *, write: bool, delete_extra: bool, quiet: bool) -> RefillReport:
    from headrace.cli.bars import count_bar
    from headrace.plan.compile import compile_app
    from headrace.plan.refilling import derive_refill
    from headrace.read.store import open_for_reading
    from headrace.replay.closed_windows import state_rows_of
    from headrace.runtime.refill import Refilling
    from headrace.state.moments import find_moment
    from headrace.state.record import no_store, read_record

    files = open_for_reading(url)
    record = read_record(files)
    if record is None:
        raise no_store(url)
    program = compile_app(app, parallelism=1, key_groups=record.key_groups)
    plan = derive_refill(program, output)
    _check_state(files, program, plan)
    sink = plan.output.sink
    target = _open_target(sink, record.store_id, output)
    rows = state_rows_of(files, program, plan)
    try:
        with count_bar(f"{'filling' if write else 'comparing'} {output}", quiet=quiet) as advance:
            refilling = Refilling(files, lambda: find_moment(files, None), rows, sink, target, advance)
            return refilling.run(write=write, delete_extra=delete_extra)
    finally:
        rows.close()
        target.close()


def _open_target(sink: Sink, job: str, output: str) -> Any:
    from headrace.errors import ProgramError

    target = sink.keyed(job)
    if target is None:
        raise ProgramError(
            f"the output {output} cannot be written again from state",
            where=f"output {output}",
            expected="a target of one row per key, exactly once: hr.sink.postgres(…, key=…), hr.sink.redis of strings "
            "or hashes",
            found=sink.describe(),
            next_move="write what past epochs gave out to a new target: --from EPOCH --into TARGET. Or run the program "
            "from a savepoint into a store of its own (headrace run APP.PY --from SAVEPOINT --store NEW)",
        )
    sink.start()
    return target


def _check_state(files: StoreFiles, program: Program, plan: RefillPlan) -> None:
    """The step has to be one that the job has run, in the form in which the program knows it."""
    from headrace.errors import Refused
    from headrace.state.moments import read_moment

    manifest = read_moment(files, None)
    step = program.steps[plan.step]
    held = manifest.states.get(step.step) or manifest.states.get(step.was or "")
    found = f"the steps {', '.join(sorted(manifest.states))}" if manifest.states else "a job without steps"
    if held is not None:
        changed = [name for name, mine in step.described.items() if name in held and mine.read_as != held[name].read_as]
        if not changed:
            return
        found = f"{', '.join(f'{step.step}.{name}' for name in changed)} with another meaning"
    raise Refused(
        f"the job has not run the step {step.step} as this program has it",
        where=files.url,
        expected=f"a store in which {step.step} is kept as the program says",
        found=found,
        next_move="give the program that the job runs; or run this one first, and refill then",
    )


def _say(report: RefillReport, output: str, *, write: bool, as_json: bool) -> None:
    from headrace.cli.show import make_console, print_json

    found = report.comparison
    if as_json:
        print_json({
            "output": output, "epoch": report.epoch, "rows": found.rows, "missing": found.missing,
            "different": found.different, "extra": None if report.no_extra or not report.complete else found.extra,
            "written": write,
            "deleted": report.deleted, "examples": [each._asdict() for each in found.examples],
        })  # fmt: skip
        return
    console = make_console()
    console.print(f"{output}: {_words(report, write=write)}", highlight=False, markup=False, soft_wrap=True)
    for each in found.examples:
        sides = [f"target {each.target}"] * bool(each.target) + [f"state {each.state}"] * bool(each.state)
        console.print(
            f"  {each.kind:<9} {each.key}   {'   '.join(sides)}", highlight=False, markup=False, soft_wrap=True
        )


def _words(report: RefillReport, *, write: bool) -> str:
    from headrace.model.amounts import count_of

    found = report.comparison
    rows = f"{count_of(found.rows, 'row')} of epoch {report.epoch}"
    told = [
        f"{number:,} {word}" for number, word in ((found.missing, "missing"), (found.different, "different")) if number
    ]
    if told and write:
        words = f"{rows}; {' and '.join(told)} in the target, now written"
    elif told:
        words = f"{rows}; {' and '.join(told)} in the target"
    else:
        words = f"{rows}, and the target agrees" if not found.extra else f"{rows} agree"
    if report.deleted:
        words += f"; {report.deleted:,} extra deleted"
    elif found.extra:
        words += f"; {found.extra:,} in the target that the state does not have"
    elif report.no_extra:
        words += f"; {report.no_extra}"
    elif not report.complete:
        words += "; the job moved on all the while, so extra rows were not looked for: try again while it is quiet"
    return words
