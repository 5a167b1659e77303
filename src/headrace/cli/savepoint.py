"""``headrace savepoint``: keeps an epoch until somebody lets it go, and copies it to where it is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.read.savepoints import SavedSize
    from headrace.state.copying import CopyReport
    from headrace.state.moments import Address
    from headrace.state.savepoints import Savepoint
    from headrace.state.store import StoreFiles


def savepoint(
    store: options.Moment,
    name: Annotated[str, typer.Option("--name", help="What it is called; else after its epoch.")] = "",
    note: Annotated[str, typer.Option("--note", help="Why it is kept, for those who find it later.")] = "",
    copy_to: Annotated[
        str | None,
        typer.Option("--copy-to", metavar="STORE", help="Make a store of its own of it, in this folder or URL."),
    ] = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Keep an epoch until the savepoint is deleted. Of a job that runs or not; at once, whatever the size of its state.

    Example: headrace savepoint ./state --name before-v2 --note "the last day of v1"

    Example: headrace savepoint ./state@41 --name audit

    Example: headrace savepoint ./state --name nightly --copy-to s3://backups/tweets/nightly
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.read.store import open_for_reading
        from headrace.state.moments import parse_address

        address = parse_address(store)
        files = open_for_reading(address.url)
        # Before anything is pinned: a place that cannot be written to is a slip of the hand.
        target = None if copy_to is None else _open_target(copy_to)
        point = _take(files, address, name, note)
        if copy_to is None or target is None:
            _say_taken(files, point, as_json)
        else:
            _copy(files, point, address.url, target, copy_to, as_json)


def _open_target(url: str) -> StoreFiles:
    from headrace.errors import StoreError
    from headrace.state.store import open_store

    try:
        return open_store(url)
    except OSError as error:
        raise StoreError(
            "the copy cannot be begun here", where=url, expected="a folder that is empty or not there yet, or a URL",
            found=f"{type(error).__name__}: {error.strerror or error}", next_move="give another folder or URL",
        ) from error  # fmt: skip


def _take(files: StoreFiles, address: Address, name: str, note: str) -> Savepoint:
    """A new savepoint, or the one that the address names where neither a name nor a note asks for another."""
    from headrace.state.moments import AtSavepoint, find_moment
    from headrace.state.savepoints import create_savepoint, read_savepoint

    if isinstance(address.moment, AtSavepoint) and not name and not note:
        return read_savepoint(files, address.moment.name)
    place = None if address.moment is None else find_moment(files, address.moment)
    return create_savepoint(files, name=name, note=note, place=place)


def _copy(files: StoreFiles, point: Savepoint, url: str, target: StoreFiles, copy_to: str, as_json: bool) -> None:
    from headrace.cli.bars import byte_bar
    from headrace.cli.exits import tell_interrupted
    from headrace.errors import HeadraceError
    from headrace.state.copying import copy_savepoint
    from headrace.state.moments import plain_address

    begun = False

    def show(done: int, total: int) -> None:
        nonlocal begun
        # Called first when the target is known to be free, or an interrupted copy of the same.
        begun = True
        advance(done, total)

    try:
        with byte_bar(f"copying {point.name}", quiet=as_json) as advance:
            report = copy_savepoint(files, point, target, progress=show)
    except (KeyboardInterrupt, HeadraceError, OSError) as error:
        if begun:
            again = f"headrace savepoint {plain_address(url)}@{point.name} --copy-to {copy_to}"
            tell_interrupted(f"what was copied stays; go on with: {again}")
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(Exit.INTERRUPTED) from None
        raise
    _say_copied(files, point, report, as_json)


def savepoint_data(point: Savepoint) -> dict[str, Any]:
    """A savepoint for machines."""
    from headrace.cli.show import json_time

    return {
        "name": point.name,
        "timeline": point.timeline,
        "epoch": point.epoch,
        "app": point.app,
        "program": point.program,
        "published": json_time(point.clock_us),
        "taken": json_time(point.taken_us),
        "note": point.note,
    }


def size_text(size: SavedSize) -> str:
    """How large a state is, for people."""
    from headrace.model.amounts import count_of, human_bytes

    return f"{human_bytes(size.size_bytes)} in {count_of(size.files, 'file') if size.files else 'the manifest'}"


def _say_taken(files: StoreFiles, point: Savepoint, as_json: bool) -> None:
    from headrace.cli.show import print_json
    from headrace.progress import time_text
    from headrace.read.savepoints import derive_size
    from headrace.state.moments import plain_address
    from headrace.state.savepoints import read_saved_state

    size = derive_size(read_saved_state(files, point))
    if as_json:
        print_json({**savepoint_data(point), "store": files.url, "files": size.files, "bytes": size.size_bytes})
        return
    kept = f"{plain_address(files.url)}@{point.name}"
    print(f"savepoint {point.name}: epoch {point.epoch} of {point.app}, published {time_text(point.clock_us)}")
    print(f"  state  {size_text(size)}; nothing was copied")
    print(f"  read   headrace state {kept}")
    print(f"  delete headrace savepoints {plain_address(files.url)} {point.name} --delete")


def _say_copied(files: StoreFiles, point: Savepoint, report: CopyReport, as_json: bool) -> None:
    from headrace.cli.show import print_json
    from headrace.model.amounts import count_of, human_bytes

    if as_json:
        copy = {"store": report.url, "files": report.files, "bytes": report.size_bytes, "copied": report.copied}
        print_json({**savepoint_data(point), "store": files.url, "copy": copy})
        return
    there = report.files - report.copied
    were = f", {count_of(there, 'file')} of them there already" if there else ""
    size = f"{human_bytes(report.size_bytes)} in {count_of(report.files, 'file')}{were}"
    print(f"copied {point.name}: epoch {point.epoch} of {point.app}, {size}")
    print(f"  copy     {report.url}")
    print(f"  original {files.url}, where the savepoint stays until it is deleted")
