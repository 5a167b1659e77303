"""``headrace state``: what a job keeps, read from its store while it runs or after it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from headrace.cli import options
from headrace.cli.completing import complete_addresses
from headrace.cli.exits import Exit, Json, Trace, report_errors
from headrace.cli.state_history import print_history

if TYPE_CHECKING:
    from headrace.read.store import Store
    from headrace.read.view import StateView

CELL_CHARS: Final = 300
"""How much of a key or value a list shows."""


def state(
    store: options.Moment,
    address: Annotated[
        str | None,
        typer.Argument(metavar="STEP[.STATE]", help="Which state; none: a list.", autocompletion=complete_addresses),
    ] = None,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="One key; text as it is, everything else as JSON.")
    ] = None,
    at: options.At = None,
    history: Annotated[
        bool, typer.Option("--history", help="How the value of KEY changed over the epochs that are kept.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="MOMENT", help="Of a history: only from this moment on.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only keys that start so.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many keys, or versions; 0: all.")] = 20,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """State of a job, stopped or running: a list of states, the keys of one, the value of a key, or its history.

    Example: headrace state ./.headrace/demo

    Example: headrace state ./.headrace/demo count_views.views

    Example: headrace state ./.headrace/demo@41 count_views.views tweet-42

    Example: headrace state ./.headrace/demo count_views.views tweet-42 --history
    """
    if (history or since is not None) and (key is None or not history):
        raise typer.BadParameter("--history and --since are about one KEY: headrace state STORE STEP KEY --history")
    options.check_one_moment(store, at)
    with report_errors(trace=trace, as_json=as_json):
        from headrace.read.store import Store

        opened = Store(store)
        if at is not None:
            opened = opened.at(at)
        if address is None:
            _list(opened, as_json)
        elif key is None:
            _scan(opened.state(address), prefix, limit, as_json)
        elif history:
            print_history(opened, opened.state(address), key, since, limit, as_json)
        else:
            _one(opened.state(address), key, as_json)


def _list(store: Store, as_json: bool) -> None:
    from headrace.cli.show import make_console, make_table, print_json, print_table
    from headrace.model.amounts import human_bytes

    epoch = store.epoch
    infos = store.at(epoch).states()
    if as_json:
        states = [
            {
                "state": info.address,
                "kind": info.kind,
                "rows": info.rows,
                "old_rows": info.old_rows,
                "bytes": info.size_bytes,
                "about": info.about,
            }
            for info in infos
        ]
        print_json({"app": store.app, "epoch": epoch, "states": states})
        return
    if not infos:
        print(f"{store.app}: no step has written state by epoch {epoch}")
        return
    table = make_table("state", "kind", "stored rows", "size", left=("state", "kind"))
    for info in infos:
        about = "about " if info.about else ""
        old = f" ({info.old_rows:,} of an older type)" if info.old_rows else ""
        table.add_row(info.address, info.kind, f"{about}{info.rows:,}{old}", human_bytes(info.size_bytes))
    print_table(make_console(), f"{store.app}: state at epoch {epoch}", table)


def _scan(view: StateView[Any], prefix: str, limit: int, as_json: bool) -> None:
    from headrace.cli.show import make_console, make_table, print_json, print_table, value_text
    from headrace.model.keys import encode_key

    pairs: Iterator[tuple[Any, Any]] = view.scan(prefix)
    # One more than asked for tells whether there are more.
    found = list(islice(pairs, limit + 1)) if limit else list(pairs)
    more = bool(limit) and len(found) > limit
    shown = [(key, _shown(view, value)) for key, value in found[:limit] or found]
    if as_json:
        entries = [{"key": _shown_key(view, key), "value": value} for key, value in shown]
        print_json({"state": view.address, "kind": view.kind, "epoch": view.epoch, "entries": entries, "more": more})
        return
    table = make_table("key", "value", left=("key", "value"))
    for key, value in shown:
        table.add_row(_cell(view._reader.text(encode_key(key))), _cell(value_text(value)))
    console = make_console()
    print_table(console, f"{view.address} at epoch {view.epoch}", table)
    if more:
        console.print(f"… more keys; --limit shows them, --prefix narrows ({limit} shown)", style="dim")
    elif not shown:
        console.print("no keys" + (f" that start with {prefix}" if prefix else ""))


def _one(view: StateView[Any], text: str, as_json: bool) -> None:
    from rich.console import Console

    from headrace.cli.finding_keys import find_key
    from headrace.cli.show import print_json, value_text

    key, value = find_key(view, text)
    stored = view.stored_version(key)
    if as_json:
        print_json({"state": view.address, "kind": view.kind, "epoch": view.epoch, "key": _shown_key(view, key),
                    "value": None if value is None else _shown(view, value),
                    **({} if stored is None else {"stored": stored._asdict()})})  # fmt: skip
    elif value is not None:
        print(value_text(_shown(view, value)))
        if stored is not None:
            # Beside the value: whoever reads it from a pipe wants nothing else.
            Console(stderr=True, soft_wrap=True).print(
                f"of version {stored.version} of `{view.address.partition('.')[0]}`, whose type was {stored.type}; "
                f"the newest is {stored.newest}, {stored.newest_type}",
                markup=False, highlight=False,
            )  # fmt: skip
    else:
        Console(stderr=True).print(
            f"{view.address} has nothing for the key {text!r} at epoch {view.epoch}", markup=False
        )
    if value is None:
        raise typer.Exit(Exit.WRONG)


def _shown(view: StateView[Any], value: Any) -> Any:
    """Times as text; everything else as it is."""
    return view._reader.shown(value)


def _shown_key(view: StateView[Any], key: Any) -> Any:
    from headrace.model.keys import encode_key

    return view._reader.shown_key(encode_key(key))


def _cell(text: str) -> Text:
    """Text as it is, brackets and all; the end of a long one is shown by asking for its key."""
    return Text(text if len(text) <= CELL_CHARS else text[: CELL_CHARS - 1] + "…")
