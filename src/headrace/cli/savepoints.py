"""``headrace savepoints``: which epochs are kept by name, what is in one, whether it is whole, and letting it go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.completing import complete_savepoints
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.read.savepoints import SavedEpoch, SavedSize
    from headrace.read.store import Store
    from headrace.state.checking import Verification
    from headrace.state.savepoints import Savepoint


def savepoints(
    store: options.Store,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="One of them in detail; also a kept epoch or a time.",
            autocompletion=complete_savepoints,
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file against its checksum.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Let its epoch go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:  # fmt: skip
    """Savepoints of a job, stopped or running: a list, or one in detail.

    Example: headrace savepoints ./state

    Example: headrace savepoints ./state before-v2

    Example: headrace savepoints ./state before-v2 --verify

    Example: headrace savepoints ./state before-v2 --delete --yes
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.read.store import Store
        from headrace.state.moments import parse_address, plain_address

        if delete and verify:
            raise typer.BadParameter("--verify and --delete are two things: verify first, then delete")
        address = parse_address(store)
        if address.moment is not None:
            if name is not None:
                raise typer.BadParameter(f"say it once: STORE {name}, or {store}")
            store, name = plain_address(address.url), str(address.moment)
        opened = Store(store)
        if delete:
            if name is None:
                raise typer.BadParameter("say which savepoint is to go: headrace savepoints STORE NAME --delete")
            _delete(opened, name, ask=not yes and not as_json, as_json=as_json)
        elif verify:
            _verify(opened, name, as_json)
        elif name is None:
            _list(opened, as_json)
        else:
            _describe(opened, name, as_json)


# --- the list


def _list(store: Store, as_json: bool) -> None:
    from headrace.cli.savepoint import savepoint_data
    from headrace.cli.show import make_console, make_table, print_json, print_table
    from headrace.progress import time_text
    from headrace.read.savepoints import size_of_savepoint

    points = store.savepoints()
    sizes = [size_of_savepoint(store, point) for point in points]
    if as_json:
        print_json(
            [
                {**savepoint_data(point), "bytes": size and size.size_bytes}
                for point, size in zip(points, sizes, strict=True)
            ]
        )
        return
    if not points:
        print(f"{store.app}: no savepoint; take one with: headrace savepoint STORE --name NAME")
        return
    left = ("name", "published", "taken", "note")
    table = make_table("name", "epoch", "published", "taken", "state", "note", left=left)
    timelines = len({point.timeline for point in points} | {store.timeline}) > 1
    for point, size in zip(points, sizes, strict=True):
        line = f" (timeline {point.timeline})" * timelines
        times = time_text(point.clock_us), time_text(point.taken_us)
        table.add_row(point.name, f"{point.epoch}{line}", *times, _size_text(size), point.note)
    print_table(make_console(), f"{store.app}: savepoints", table)


def _size_text(size: SavedSize | None) -> str:
    from headrace.model.amounts import human_bytes

    return "not readable: --verify says why" if size is None else human_bytes(size.size_bytes)


# --- one of them


def _describe(store: Store, name: str, as_json: bool) -> None:
    from headrace.cli.show import make_console, print_json
    from headrace.read.savepoints import describe_moment

    described = describe_moment(store, name)
    if as_json:
        print_json(_data(described))
    else:
        from headrace.cli.saved_epoch import print_saved_epoch

        print_saved_epoch(make_console(), described)


def _data(described: SavedEpoch) -> dict[str, Any]:
    from headrace.cli.savepoint import savepoint_data
    from headrace.cli.show import json_time

    manifest, point, origin = described.manifest, described.savepoint, described.copied_from
    parent = described.forked_from
    return {
        **({"name": None} if point is None else savepoint_data(point)),
        "timeline": manifest.timeline,
        "epoch": manifest.epoch,
        "app": manifest.app,
        "program": manifest.program,
        "published": json_time(manifest.published_us),
        "final": manifest.final,
        "parallelism": manifest.parallelism,
        "key_groups": manifest.key_groups,
        "files": described.size.files,
        "bytes": described.size.size_bytes,
        "states": [
            {"state": info.address, "kind": info.kind, "rows": info.rows, "bytes": info.size_bytes, "about": info.about}
            for info in described.states
        ],
        "offsets": described.offsets,
        "watermarks": {
            "sources": {each: json_time(time.watermark) for each, time in manifest.time.sources.items()},
            "steps": {step: json_time(each) for step, each in manifest.time.steps.items()},
        },
        "loops": described.loops,
        "copied_from": None if origin is None else {
            "store": origin.url, "savepoint": origin.savepoint, "epoch": origin.epoch,
            "copied": json_time(origin.copied_us),
        },
        "forked_from": None if parent is None else {
            "store": parent.url, "savepoint": parent.savepoint, "epoch": parent.epoch,
            "forked": json_time(parent.forked_us),
        },
    }  # fmt: skip


# --- verifying and deleting


def _verify(store: Store, name: str | None, as_json: bool) -> None:
    from headrace.cli.bars import byte_bar
    from headrace.cli.show import print_json
    from headrace.read.savepoints import verify_moment

    names = [point.name for point in store.savepoints()] if name is None else [name]
    results: dict[str, Verification] = {}
    for each in names:
        with byte_bar(f"reading {each}", quiet=as_json) as advance:
            results[each] = verify_moment(store, each, advance)
    damaged = any(result.damages for result in results.values())
    if as_json:
        print_json({
            "whole": not damaged,
            "savepoints": [
                {"name": each, "files": result.files, "bytes": result.size_bytes, "whole": not result.damages,
                 "damages": [{"file": damage.path, "what": damage.what} for damage in result.damages]}
                for each, result in results.items()
            ],
        })  # fmt: skip
    else:
        _say_verified(store, results)
    if damaged:
        raise typer.Exit(Exit.STORE)


def _say_verified(store: Store, results: dict[str, Verification]) -> None:
    from headrace.model.amounts import count_of, human_bytes

    if not results:
        print(f"{store.app}: no savepoint to verify")
    for name, result in results.items():
        size = f"{count_of(result.files, 'file')}, {human_bytes(result.size_bytes)}"
        if not result.damages:
            print(f"{name}: whole ({f'{size} read' if result.files else 'all of it lies in the manifest'})")
            continue
        print(f"{name}: {count_of(len(result.damages), 'file')} missing or damaged ({size})")
        for damage in result.damages:
            print(f"  {damage.path}: {damage.what}")
        print("  next: put them back from a copy of the store; a file never changes, so any copy will do")


def _delete(store: Store, name: str, *, ask: bool, as_json: bool) -> None:
    from headrace.cli.savepoint import savepoint_data
    from headrace.cli.show import print_json
    from headrace.progress import time_text
    from headrace.read.savepoints import find_savepoint
    from headrace.read.store import files_of
    from headrace.state.savepoints import delete_savepoint

    point = find_savepoint(store, name)
    if ask and not _is_agreed(point):
        print("nothing was deleted")
        raise typer.Exit(Exit.WRONG)
    delete_savepoint(files_of(store), point.name)
    if as_json:
        print_json({"deleted": savepoint_data(point)})
    else:
        print(f"deleted {point.name}; the next sweeps of the job let epoch {point.epoch} go, if nothing else keeps it")
        print(f"  it was of {time_text(point.clock_us)}" + (f": {point.note}" if point.note else ""))


def _is_agreed(point: Savepoint) -> bool:
    about = f" ({point.note})" if point.note else ""
    try:
        return typer.confirm(f"delete the savepoint {point.name} of epoch {point.epoch}{about}?", err=True)
    except typer.Abort:
        # Nobody is there to answer.
        print()
        return False
