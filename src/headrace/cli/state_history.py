"""``headrace state STORE STEP KEY --history``: how the value of a key changed over the epochs that are kept."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.exits import Exit

if TYPE_CHECKING:
    from headrace.read.history import KeyVersion
    from headrace.read.reader import Reader
    from headrace.read.store import Store
    from headrace.read.view import StateView


def print_history(store: Store, view: StateView[Any], text: str, since: str | None, limit: int, as_json: bool) -> None:
    """``limit``: so many of the newest versions; 0: all."""
    from headrace.cli.bars import count_bar
    from headrace.cli.finding_keys import readings_of
    from headrace.model.keys import encode_key
    from headrace.read.store import walk_history

    reader = view._reader
    shown: deque[tuple[KeyVersion[Any] | None, KeyVersion[Any]]] = deque(maxlen=limit or None)
    count, found = 0, b""
    with count_bar("reading epochs", quiet=as_json) as tell:
        for reading in dict.fromkeys(encode_key(each) for each in readings_of(view, text)):
            before: KeyVersion[Any] | None = None
            for version in walk_history(store, reader, reading, since, tell):
                shown.append((before, version))
                before, count = version, count + 1
            found = found or reading
            if any(version.value is not None for _, version in shown):
                found = reading
                break
            count = 0
            shown.clear()
    if as_json:
        _print_data(reader, found, [version for _, version in shown], count)
    else:
        _print_table(reader, found, list(shown), count)
    if not shown:
        raise typer.Exit(Exit.WRONG)


def _print_data(reader: Reader, key: bytes, versions: list[KeyVersion[Any]], count: int) -> None:
    from headrace.cli.show import json_time, print_json

    told = [
        {
            "epoch": version.epoch,
            "after": None if version.after < 0 else version.after,
            "published": json_time(int(version.published)),
            "value": reader.shown_whole(version.value),
        }
        for version in versions
    ]
    more = count > len(versions)
    head = {"state": reader.address, "kind": reader.kind, "key": reader.shown_key(key)}
    print_json({**head, "versions": told, "more": more})


def _print_table(
    reader: Reader, key: bytes, versions: list[tuple[KeyVersion[Any] | None, KeyVersion[Any]]], count: int
) -> None:
    from rich.console import Console

    from headrace.cli.change_text import change_text
    from headrace.cli.show import make_console, make_table, print_table
    from headrace.model.amounts import count_of
    from headrace.model.time import format_time

    if not versions:
        words = f"{reader.address} has had nothing for the key {reader.text(key)} in any epoch that is kept"
        Console(stderr=True, soft_wrap=True).print(words, markup=False)
        return
    table = make_table("epoch", "published", "change", left=("published", "change"))
    for before, version in versions:
        was = None if before is None else reader.shown_whole(before.value)
        change = change_text(reader.kind, was, reader.shown_whole(version.value))
        table.add_row(epoch_text(version), format_time(int(version.published)), change)
    console = make_console()
    print_table(console, f"{reader.address}, key {reader.text(key)}", table)
    if count > len(versions):
        earlier = count_of(count - len(versions), "earlier change")
        console.print(f"… {earlier}; --limit 0 shows all", style="dim")


def epoch_text(version: KeyVersion[Any]) -> str:
    """In which epoch a version came about: one, or somewhere between two that are kept."""
    if version.after < 0 < version.epoch:
        return f"≤ {version.epoch}"
    first = version.after + 1
    return str(version.epoch) if first == version.epoch else f"{first}–{version.epoch}"
