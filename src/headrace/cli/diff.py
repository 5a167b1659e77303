"""``headrace diff``: what differs between two epochs, two savepoints or two stores, state by state and key by key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.completing import complete_moments
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.read.diff import StoreDiff
    from headrace.read.pairs import StatePair

    Difference = tuple[StatePair, bytes, Any, Any]
    """State, stored key, and what it is on either side."""


def diff(
    first: options.Moment,
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="STORE[@MOMENT]",
            help="What it is held against; left out: the newest epoch of the first.",
            autocompletion=complete_moments,
        ),
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STEP[.STATE]", help="Only this state, or all of a step.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Show what changed in each key.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many keys; 0: all.")] = 20,
    after: Annotated[
        str | None, typer.Option("--after", metavar="PLACE", help="Go on with keys where the page before ended.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write every part of a key that differs to a file.")
    ] = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """What differs between two epochs, two savepoints or two stores: keys added, removed and changed, state by state.

    Ends with 0 where both say the same, and with 1 where they differ. What they share in files is not read.

    Example: headrace diff ./.headrace/demo@41 ./.headrace/demo@57

    Example: headrace diff ./.headrace/demo@41

    Example: headrace diff ./blue ./green --state count_views.views --keys
    """
    if after is not None and not keys:
        raise typer.BadParameter("--after is about a list of keys: add --keys")
    if parquet is not None and after is not None:
        raise typer.BadParameter("a file has all keys: leave out --after, or --parquet")
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.bars import count_bar
        from headrace.read.diff import diff as compare

        behind = None if after is None else _parse_place(after)
        with count_bar("comparing rows", quiet=as_json) as tell:
            found = compare(first, second or _present_of(first), state=state, tell=tell)
            shown, more = _walk(found, behind, limit if keys else None, parquet)
        if as_json:
            _print_data(found, shown, more, keys, paged=behind is not None)
        else:
            _print_tables(found, shown, more, keys, paged=behind is not None)
        differ = bool(shown) if behind is not None else not found.same
    if differ:
        raise typer.Exit(Exit.DIFFERENT)


def _present_of(first: str) -> str:
    from headrace.state.moments import parse_address, plain_address

    return plain_address(parse_address(first).url)


def _walk(
    found: StoreDiff, behind: tuple[str, int] | None, limit: int | None, parquet: Path | None
) -> tuple[list[Difference], tuple[str, int] | None]:
    """The keys that are shown, and behind which of them others follow. ``limit``: None shows none, 0 all."""
    from headrace.read.diff import cursor_of

    walk = iter(found.walk(behind))
    if parquet is not None:
        walk = _writing(walk, parquet)
    shown = [] if limit is None else list(islice(walk, limit or None))
    more: Difference | None = None
    if shown and limit:
        last = cursor_of(*shown[-1][:2])
        for difference in walk:
            # Keys of one hash stand on one page.
            if cursor_of(*difference[:2]) != last:
                more = difference
                break
            shown.append(difference)
    if behind is None:
        # To the end: what is counted there is told, and what is written is written whole.
        for _ in walk:
            pass
    return shown, None if more is None else cursor_of(*shown[-1][:2])


def _writing(walk: Iterator[Difference], path: Path) -> Iterator[Difference]:
    """Hands everything on, and writes it to a file on its way."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.errors import SettingsError
    from headrace.read.diff import BATCH_ROWS, SCHEMA, rows_of

    rows: list[dict[str, str | None]] = []
    if not path.parent.is_dir():
        raise SettingsError(
            "there is no folder for the file of differences",
            where=f"--parquet {path}",
            expected="a folder that exists",
            found=f"no folder {path.parent}",
            next_move=f"mkdir -p {path.parent}, or give another file",
        )
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for difference in walk:
            rows += rows_of(*difference)
            if len(rows) >= BATCH_ROWS:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
                rows = []
            yield difference
        writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))


def _place_text(place: tuple[str, int]) -> str:
    return f"{place[0]}/{place[1]:016x}"


def _parse_place(text: str) -> tuple[str, int]:
    address, _, place = text.rpartition("/")
    with contextlib.suppress(ValueError):
        if address and len(place) == 16:
            return address, int(place, 16)
    raise typer.BadParameter(f"--after {text!r} is not where a page ended, like totals/00ab4cd1e2f30516")


def _print_data(
    found: StoreDiff, shown: list[Difference], more: tuple[str, int] | None, keys: bool, *, paged: bool
) -> None:
    from headrace.cli.change_text import parts_data
    from headrace.cli.show import print_json
    from headrace.read.changes import parts_changed
    from headrace.read.diff import change_of
    from headrace.read.pairs import shown_difference

    told: dict[str, Any] = {"first": {"epoch": found.epochs[0]}, "second": {"epoch": found.epochs[1]}}
    if not paged:
        told["same"] = found.same
        told["states"] = [
            {"state": each.address, "kind": each.kind, "added": each.added, "removed": each.removed,
             "changed": each.changed, **({"was": each.was} if each.was else {}),
             **({"only": each.only} if each.only else {}), **({"note": each.note} if each.note else {})}
            for each in found.states
        ]  # fmt: skip
    if keys:
        told["keys"] = [
            {
                "state": pair.shown.address,
                "key": pair.shown.shown_key(key),
                "change": change_of(before, after),
                "parts": list(parts_data(parts_changed(pair.shown.kind, *shown_difference(pair, before, after)))),
            }
            for pair, key, before, after in shown
        ]
        told["next"] = None if more is None else _place_text(more)
    print_json(told)


def _print_tables(
    found: StoreDiff, shown: list[Difference], more: tuple[str, int] | None, keys: bool, *, paged: bool
) -> None:
    from headrace.cli.change_text import change_text
    from headrace.cli.show import make_console, make_table, print_table
    from headrace.model.amounts import count_of
    from headrace.read.diff import change_of
    from headrace.read.pairs import shown_difference

    console = make_console()
    title = f"epoch {found.epochs[0]} to epoch {found.epochs[1]}"
    if not paged:
        differing = [each for each in found.states if not each.same or each.only]
        if differing:
            table = make_table("state", "kind", "added", "removed", "changed", "", left=("state", "kind", ""))
            for each in differing:
                counts = (f"{count:,}" for count in (each.added, each.removed, each.changed))
                was = f"was {each.was}" if each.was else f"only on the {each.only} side" if each.only else ""
                table.add_row(each.address, each.kind, *counts, "; ".join(filter(None, (was, each.note))))
            print_table(console, title, table)
        if rest := len(found.states) - len(differing):
            console.print(f"{title}: the same in {count_of(rest, 'state')}" if not differing
                          else f"the same in {count_of(rest, 'other state')}")  # fmt: skip
        elif not differing:
            console.print(f"{title}: neither keeps any state")
    if keys and shown:
        table = make_table("state", "key", "", "change", left=("state", "key", "", "change"))
        for pair, key, before, after in shown:
            change = change_text(pair.shown.kind, *shown_difference(pair, before, after))
            table.add_row(pair.shown.address, pair.shown.text(key), change_of(before, after), change)
        print_table(console, "keys that differ", table, names=2)
    if keys and more is not None:
        console.print(f"… more keys: --after {_place_text(more)}", style="dim")
