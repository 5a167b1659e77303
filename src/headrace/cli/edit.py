"""``headrace edit``: changes keys of a job's state by hand, with a reason."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options
from headrace.cli.completing import complete_addresses
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.edit.edits import Edit
    from headrace.edit.offline import EditedEpoch
    from headrace.edit.plan import Change

SHOWN: Final = 20
"""So many changes are listed for people; ``--json`` has all."""
VALUE_CHARS: Final = 200


def edit(
    store: options.Store,
    address: Annotated[
        str | None, typer.Argument(metavar="STEP[.STATE]", help="Which state.", autocompletion=complete_addresses)
    ] = None,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Text as it is, everything else as JSON.")] = None,
    new: Annotated[str | None, typer.Option("--set", metavar="JSON", help="The new value.")] = None,
    patch: Annotated[
        str | None, typer.Option("--patch", metavar="JSON", help="Fields, entries or results; the others stay.")
    ] = None,
    append: Annotated[
        str | None, typer.Option("--append", metavar="JSON", help="One more element of a list, or timer.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Take the key away, or the entry.")] = False,
    entry: Annotated[
        str | None, typer.Option("--entry", help="Of a map a key, of a list a number from 0, of timers a time.")
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Where values expire: a time, a span (7d), or never.")
    ] = "",
    from_file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Several edits, a JSON object on each line; -: standard input."),
    ] = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; it is kept in the manifest.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:  # fmt: skip
    """Change state by hand: all edits become true in one epoch, or none.

    Example: headrace edit ./state fraud.total c1 --set 5 --why "ticket 4711"

    Example: headrace edit ./state fraud.shops c1 --entry tea --delete --why "ticket 4711"

    Example: headrace edit ./state totals shop-7 --patch '{"n": 100}' --dry-run

    Example: headrace edit ./state --from edits.jsonl --why "refunds of May"
    """
    with report_errors(trace=trace, as_json=as_json):
        if not dry_run and not why.strip():
            raise typer.BadParameter('--why says the reason, which is kept: --why "ticket 4711" (or look: --dry-run)')
        options.check_newest(store)
        said = _one(address, key, new, patch, append, delete, entry, expires)
        edits = _read(from_file, said)
        if dry_run:
            _preview(store, edits, as_json)
        else:
            _make(store, edits, why, as_json)


def _one(
    address: str | None, key: str | None, new: str | None, patch: str | None, append: str | None, delete: bool,
    entry: str | None, expires: str,
) -> dict[str, Any] | None:  # fmt: skip
    """The one edit that the options say, as a line of a file would."""
    given = {
        name: _json(text) for name, text in (("set", new), ("patch", patch), ("append", append)) if text is not None
    }
    if address is None and key is None:
        if given or delete or entry or expires:
            raise typer.BadParameter("say which key: headrace edit STORE STEP.STATE KEY …")
        return None
    if address is None or key is None:
        raise typer.BadParameter("an edit is of one key: headrace edit STORE STEP.STATE KEY …")
    more = {"entry": entry} if entry is not None else {}
    return {"state": address, "key": key, "delete": delete, "expires": expires, **given, **more}


def _json(text: str) -> Any:
    """JSON, or text as it is where it is none: a time, a name."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read(path: str | None, said: dict[str, Any] | None) -> list[Edit]:
    from headrace.edit.edits import Edit, check_edit, read_edits
    from headrace.errors import ProgramError

    if (path is None) == (said is None):
        raise typer.BadParameter("say one key (STEP.STATE KEY --set …), or a file of edits (--from FILE)")
    if said is not None:
        return [check_edit(Edit(**said), "headrace edit")]
    assert path is not None
    try:
        if path == "-":
            edits = list(read_edits(sys.stdin, "standard input"))
        else:
            with open(path, encoding="utf-8") as lines:
                edits = list(read_edits(lines, path))
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(
            "the file of edits cannot be read", where=path, found=f"{type(error).__name__}: {error}",
            expected="JSON lines in UTF-8", next_move="give the path of the file, or - for standard input",
        ) from error  # fmt: skip
    if not edits:
        raise ProgramError("there is no edit in the file", where=path, next_move="write a JSON object on each line")
    return edits


def _preview(store: str, edits: Sequence[Edit], as_json: bool) -> None:
    from headrace.cli.bars import count_bar
    from headrace.edit.plan import plan_edits
    from headrace.read.store import open_for_reading
    from headrace.state.manifest import read_state
    from headrace.state.moments import find_moment

    files = open_for_reading(store)
    state = read_state(files, *find_moment(files, None))
    with count_bar("reading", quiet=as_json) as advance:
        plan = plan_edits(files, state, edits, epoch=state.epoch + 1, progress=advance)
    _say_changes(plan.changes, as_json, epoch=None)
    if not as_json:
        print(f"nothing was changed: this is what it would come to at epoch {state.epoch}")


def _make(store: str, edits: Sequence[Edit], why: str, as_json: bool) -> None:
    from headrace.checkpoint.commands import is_driven
    from headrace.cli.bars import count_bar, waiting_line
    from headrace.cli.exits import tell_interrupted
    from headrace.edit.making import make_edits
    from headrace.read.store import open_for_reading

    files = open_for_reading(store)
    driven = is_driven(files)
    try:
        with (
            count_bar("editing", quiet=as_json or driven) as advance,
            waiting_line("waiting for an epoch", quiet=as_json or not driven) as say,
        ):
            done = make_edits(
                files, edits, why=why, progress=advance,
                tell=lambda driver: say(lambda: f"waiting for an epoch of process {driver.pid} on {driver.host}"),
            )  # fmt: skip
    except KeyboardInterrupt:
        tell_interrupted(f"a running job may make the edits all the same: headrace epochs {store} tells")
        raise typer.Exit(Exit.INTERRUPTED) from None
    _say_changes(done.plan.changes, as_json, epoch=done.epoch)
    if not as_json:
        _say_done(store, done)


def _say_changes(changes: Sequence[Change], as_json: bool, *, epoch: int | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from headrace.cli.show import print_json

    if as_json:
        rows = [
            {"state": change.edit.state, "key": change.key, "entry": change.edit.entry_text,
             "before": change.values.before, "after": change.values.after}
            for change in changes
        ]  # fmt: skip
        print_json({"epoch": epoch, "changes": rows})
        return
    console = Console(highlight=False, soft_wrap=True)
    for change in changes[:SHOWN]:
        entry = "" if change.edit.entry_text is None else f" [{change.edit.entry_text}]"
        console.print(Text(f"{change.edit.state}  {change.key}{entry}", "bold"))
        console.print(Text(f"  before  {_shown(change.values.before)}"))
        console.print(Text(f"  after   {_shown(change.values.after)}"))
    if len(changes) > SHOWN:
        console.print(f"… {len(changes) - SHOWN:,} more changes; --json lists all", style="dim")


def _shown(value: Any) -> str:
    from headrace.cli.show import value_text

    if value is None:
        return "nothing"
    text = value_text(value)
    return text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]}…"


def _say_done(store: str, done: EditedEpoch) -> None:
    from headrace.model.amounts import count_of

    keys = ", ".join(f"{count_of(count, 'key')} of {state}" for state, count in done.plan.changed.items())
    print(f"true from epoch {done.epoch} on: {keys}")
    print(f"  undo  headrace run APP.PY --store {store} --from {done.before}")
    went = "it goes on" if done.live else "it was stopped, and the next run goes on behind this epoch"
    print(f"  job   {went}")
