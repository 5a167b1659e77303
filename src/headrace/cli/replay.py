"""``headrace replay``: why a key is what it is, by running the epochs again that made it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.dataflow.app import App
    from headrace.replay.replaying import KeyReplay, ReplayPlan, Verdict
    from headrace.replay.tracing import ReplayEvent, StateChange
    from headrace.state.store import StoreFiles


def replay(
    file: options.File,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Text as it is, everything else as JSON.")],
    first: Annotated[
        str,
        typer.Option("--from", metavar="MOMENT", help="State begins as it was: an epoch, a savepoint, a time."),
    ],
    last: Annotated[
        str | None, typer.Option("--to", metavar="MOMENT", help="The last epoch that runs again; else the newest.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="Which step; needed where several keep state.")
    ] = None,
    store: options.StorePath = None,
    break_at: Annotated[
        int | None, typer.Option("--break-at", metavar="N", min=1, help="Stop in pdb where your code gets row N.")
    ] = None,
    profile: options.Profile = None,
    var: options.Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Run past epochs again for one key, and show row by row what came, what changed and what went out.

    Input is read again from the sources, and nothing is written to the store or to an output.

    Ends with 1 where the key ends otherwise than in production.

    Example: headrace replay tweets.py --store ./state --key tweet-42 --from 41 --to 57

    Example: headrace replay tweets.py --key tweet-42 --from before-v2 --step count_views --break-at 3
    """
    if break_at is not None and as_json:
        raise typer.BadParameter("--break-at talks to a person: leave out --json")
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.loading import load_app, parse_vars
        from headrace.read.store import open_for_reading
        from headrace.replay.replaying import KeyReplay, find_places
        from headrace.spark.past_inputs import InputsBySpark
        from headrace.state.moments import parse_address, parse_moment

        variables = parse_vars(var or [])
        app = load_app(file, variables=variables, profile=profile)
        settings = app.settings(profile=profile, store=store, vars=variables or None)
        files = open_for_reading(parse_address(settings.store).url)
        places = find_places(files, parse_moment(first), None if last is None else parse_moment(last))
        wanted, was = _find_step(app, step)
        call = _plainly if break_at is None else _stopping(break_at)
        encoded, shown = _find_key(files, (wanted, was), key, places[-1].epoch)
        reads = InputsBySpark(app.name, settings.spark, say_spark_starts)
        with reads, KeyReplay(app, files, wanted, encoded, places, call=call, read_by_spark=reads.read) as run:
            verdict = _print_data(run, shown) if as_json else _print_run(run, shown)
    if not verdict.same:
        raise typer.Exit(Exit.DIFFERENT)


def say_spark_starts(source: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"starting Spark, which reads {source} again", style="dim")


def _plainly(work: Any, number: int) -> None:
    work()


def _stopping(row: int) -> Any:
    from rich.console import Console

    from headrace.replay.stopping import stop_at

    words = f"no code of yours ran for row {row}: nothing to stop in"
    return stop_at(row, lambda: Console(stderr=True).print(words, style="yellow"))


def _find_step(app: App, step: str | None) -> tuple[str, str]:
    """The step that is replayed, and the name it had before; the one of the program where none is said."""
    from headrace.errors import ProgramError
    from headrace.model.ids import KEY_GROUPS
    from headrace.plan.compile import compile_app

    plans = compile_app(app, parallelism=1, key_groups=KEY_GROUPS).steps
    steps = sorted(plans)
    wanted = step or (steps[0] if len(steps) == 1 else None)
    if wanted is not None:
        return wanted, (plans[wanted].was or wanted) if wanted in plans else wanted
    raise ProgramError(
        "several steps of the program keep state" if steps else "no step of the program keeps state",
        expected=" or ".join(steps) or "a step that keeps state",
        next_move="name one of them with --step" if steps else "replay a program that keeps state",
    )


def _find_key(files: StoreFiles, names: tuple[str, str], text: str, epoch: int) -> tuple[bytes, str]:
    """The key that a person meant, as it is stored and as it is shown: by the states of the step, under either name."""
    from headrace.cli.finding_keys import find_key
    from headrace.errors import StoreError
    from headrace.model.keys import encode_key
    from headrace.read.store import Store, store_over

    kept = store_over(files, Store).at(epoch)
    step = next((name for name in names if name in kept.steps()), names[0])
    views = [kept.state(info.address) for info in (kept.states(step) if step in kept.steps() else ())]
    if not views:
        raise StoreError(
            f"step {step!r} keeps no state that can be read in epoch {epoch}",
            where=files.url,
            expected=" or ".join(kept.steps()) or "a step that keeps state",
            found=step,
            next_move="`headrace state STORE` lists steps and states",
        )
    found = [(view, *find_key(view, text)) for view in views]
    view, key, _ = next((each for each in found if each[2] is not None), found[0])
    encoded = encode_key(key)
    return encoded, view._reader.text(encoded)


# --- for people


def _print_run(run: KeyReplay, key: str) -> Verdict:
    from headrace.cli.show import make_console

    console = make_console()
    _print_plan(console, run.plan, key)
    epoch = -1
    for event in run.run():
        if event.epoch != epoch:
            console.print(f"\nepoch {event.epoch}", style="bold")
            epoch = event.epoch
        _print_event(console, event)
    if epoch < 0:
        console.print("\nno row of this key came, and nothing was due for it", style="yellow")
    verdict = run.verdict()
    _print_verdict(console, verdict)
    return verdict


def _print_plan(console: Console, plan: ReplayPlan, key: str) -> None:
    from headrace.model.amounts import count_of

    epochs = count_of(len(plan.places), "epoch")
    console.print(f"{plan.step}, key {key}: {epochs} again, from the state of epoch {plan.first.epoch}", style="bold",
                  markup=False)  # fmt: skip
    console.print(f"reads {count_of(plan.rows, 'row')} of input again", style="dim")
    if plan.level > 1:
        console.print("the steps above it run for all keys: their rows lead to this one", style="yellow")
    if not plan.same_program:
        console.print("this is not the program that ran: what it comes to may differ for that reason", style="yellow")
    for epoch in plan.edited:
        console.print(f"epoch {epoch} was edited by hand, which is not replayed", style="yellow")


def _print_event(console: Console, event: ReplayEvent) -> None:
    from rich.text import Text

    from headrace.cli.show import value_text
    from headrace.model.time import format_time

    at = "" if event.at_us is None else f"  {_time(event.at_us, format_time)}"
    if event.number:
        console.print(
            Text.assemble((f"  row {event.number}", "cyan"), (at, "dim"), f"  {value_text(_plain(event.row))}")
        )
    else:
        console.print(Text.assemble(("  time goes on", "cyan"), (at, "dim")))
    for change in event.changes:
        _print_change(console, change)
    for outlet, row, _ in event.out:
        name = "out" if outlet == "main" else outlet
        console.print(Text.assemble((f"      {name}  ", "magenta"), value_text(_plain(row))))


def _print_change(console: Console, change: StateChange) -> None:
    from rich.text import Text

    from headrace.cli.change_text import change_text

    head = f"      {change.address}  "
    for number, line in enumerate(change_text(change.kind, change.before, change.after).split("\n")):
        console.print(Text.assemble((head if not number else " " * len(head), "bold"), line))


def _print_verdict(console: Console, verdict: Verdict) -> None:
    if verdict.same:
        console.print(f"\nends as production ended in epoch {verdict.epoch}", style="bold green")
        return
    console.print(f"\nends otherwise than production in epoch {verdict.epoch}: production → replay", style="bold red")
    for change in verdict.differences:
        _print_change(console, change)


# --- for machines


def _print_data(run: KeyReplay, key: str) -> Verdict:
    from headrace.cli.show import print_json

    events = [_event_data(event) for event in run.run()]
    verdict, plan = run.verdict(), run.plan
    print_json({
        "step": plan.step, "key": key, "from": plan.first.epoch, "to": verdict.epoch, "rows_read": plan.rows,
        "same_program": plan.same_program, "edited": plan.edited, "events": events, "same": verdict.same,
        "differences": [_change_data(each, "production", "replay") for each in verdict.differences],
    })  # fmt: skip
    return verdict


def _event_data(event: ReplayEvent) -> dict[str, Any]:
    from headrace.cli.show import json_time

    return {
        "epoch": event.epoch,
        **({"row": event.number, "input": _plain(event.row)} if event.number else {}),
        "at": json_time(event.at_us),
        "changes": [_change_data(change, "before", "after") for change in event.changes],
        "out": [{"outlet": outlet, "row": _plain(row), "at": json_time(at)} for outlet, row, at in event.out],
    }


def _change_data(change: StateChange, before: str, after: str) -> dict[str, Any]:
    return {"state": change.address, before: change.before, after: change.after}


def _plain(row: Any) -> Any:
    """A row as people read it: times as text."""
    import msgspec

    from headrace.model.rows import codec_of

    codec = codec_of(type(row))
    return msgspec.json.decode(next(iter(codec.to_json([row]))))


def _time(at_us: int, write: Any) -> str:
    from headrace.model.ids import MAX_TIME, MIN_TIME

    return "the end" if at_us >= MAX_TIME else "–" if at_us <= MIN_TIME else write(at_us)
