"""``headrace erase``: takes a key out of a store for good, out of its past as well, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.edit.erasing.erase import Erasure

SHOWN_FILES: Final = 10


def erase(
    store: options.Store,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Text as it is, everything else as JSON.")],
    step: Annotated[list[str] | None, typer.Option("--step", help="Only in this step; repeatable.")] = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Also keys of several parts, of which it is one: [KEY, …].")
    ] = False,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Kept in the manifest; do not name the key.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Take a key out of a stopped job's store: out of its state, all kept epochs, savepoints, loops and staged rows.

    There is no way back. That it was done is noted, not which key it was.

    Example: headrace erase ./state --key ann

    Example: headrace erase ./state --key ann --parts --step fraud --why "request of 3 May" --yes
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.bars import count_bar
        from headrace.cli.exits import tell_interrupted
        from headrace.edit.erasing.erase import erase_key
        from headrace.read.store import open_for_reading

        files = open_for_reading(options.check_newest(store))
        if not yes and not as_json:
            typer.confirm(f"erase the key {key!r} from all epochs of {files.url}? There is no way back", abort=True)
        try:
            with count_bar("erasing", quiet=as_json) as advance:
                done = erase_key(files, key, steps=step or (), parts=parts, why=why, progress=advance)
        except KeyboardInterrupt:
            tell_interrupted("the store is whole, and the key may still be in it: give the same command again")
            raise typer.Exit(Exit.INTERRUPTED) from None
        _say(done, files.url, as_json)


def _say(done: Erasure, url: str, as_json: bool) -> None:
    from headrace.cli.show import print_json
    from headrace.model.amounts import count_of

    if as_json:
        print_json({
            "store": url, "epoch": done.epoch, "rows": dict(done.rows), "loop_rows": done.looped,
            "windows_in_archives": done.archived,
            "manifests": done.manifests, "deleted_files": done.files, "rows_read_afterwards": done.read,
            "mentions": list(done.mentions),
        })  # fmt: skip
        return
    for name, rows in done.rows.items():
        print(f"{name}: {count_of(rows, 'row')} erased, over all epochs")
    if done.looped:
        print(f"loops: {count_of(done.looped, 'row')} erased")
    if done.archived:
        print(f"archive: {count_of(done.archived, 'window')} erased")
    if not done.rows and not done.looped and not done.archived:
        print("no row of the key was in the store")
    print(f"  replaced  {count_of(done.manifests, 'manifest')}; {count_of(done.files, 'file')} deleted")
    print(f"  proof     {count_of(done.read, 'row')} read afterwards, none of the key")
    print(f"  noted     in epoch {done.epoch}: that it was done, not which key")
    _say_mentions(done.mentions)
    print("  not here  targets of sinks, sources, copies of savepoints and backups elsewhere, caches of other machines")


def _say_mentions(mentions: tuple[str, ...]) -> None:
    if not mentions:
        print("  text      of the key stands in no file of the store")
        return
    print(f"  text      of the key still stands in {len(mentions):,} of the store's files, in values of other keys or"
          " by chance:")  # fmt: skip
    for path in mentions[:SHOWN_FILES]:
        print(f"              {path}")
    if len(mentions) > SHOWN_FILES:
        print(f"              … and {len(mentions) - SHOWN_FILES:,} more; --json lists all")
