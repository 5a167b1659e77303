"""``headrace rewrite``: a store for another type of keys, or another number of key groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    from headrace.transfer.rewriting import NewKeys, RewriteReport

TYPES: Final = "str, int, float, bool, bytes, date, datetime, Timestamp, Decimal, UUID"


def rewrite(
    store: options.Moment,
    to: Annotated[str, typer.Option("--to", metavar="STORE", help="Folder or URL of the new store.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="STEP=TYPE|FILE.py:FUNCTION",
            help=f"The new keys of a step: as a type ({TYPES}), or what a function makes of each; repeatable.",
        ),
    ] = None,
    key_groups: Annotated[
        int | None, typer.Option("--key-groups", help="The new number of key groups, a power of two.")
    ] = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:  # fmt: skip
    """Write a store anew whose keys have another type, or which is to have more shards than it has key groups.

    The old store stays as it is. Stop its job first: what it does later is not in the new one.

    Example: headrace rewrite ./state --to ./wider --key-groups 512

    Example: headrace rewrite ./state --to ./renamed --key totals=int --key fraud=keys.py:card_number

    Example: headrace rewrite ./state@before-v2 --to s3://lake/state --key totals=int
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.bars import count_bar
        from headrace.cli.exits import tell_interrupted
        from headrace.read.store import Store, files_of, job_state_of
        from headrace.state.store import open_store
        from headrace.transfer.rewriting import rewrite_store

        if not key and key_groups is None:
            raise typer.BadParameter("say what is to change: --key or --key-groups")
        keys = dict(_new_keys(word) for word in key or [])
        opened = Store(store)
        try:
            with count_bar("rewriting rows", quiet=as_json) as advance:
                report = rewrite_store(
                    files_of(opened), job_state_of(opened), open_store(to), keys=keys, key_groups=key_groups,
                    progress=advance,
                )  # fmt: skip
        except KeyboardInterrupt:
            tell_interrupted(f"{to} is no store yet; the same command begins again")
            raise typer.Exit(Exit.INTERRUPTED) from None
        _say(report, as_json)


def _new_keys(word: str) -> tuple[str, NewKeys]:
    from headrace.transfer.rewriting import NewKeys

    step, equals, what = word.partition("=")
    if not (step and equals and what):
        raise typer.BadParameter(f"{word!r} is no pair", param_hint="--key")
    if ":" in what:
        return step, NewKeys(function=_load(what))
    known = _key_types()
    if what not in known:
        raise typer.BadParameter(f"{what!r} is none of {TYPES}, and no FILE.py:FUNCTION", param_hint="--key")
    return step, NewKeys(known[what])


def _key_types() -> dict[str, Any]:
    from datetime import date, datetime
    from decimal import Decimal
    from uuid import UUID

    from headrace.model.time import Timestamp

    return {
        "str": str, "int": int, "float": float, "bool": bool, "bytes": bytes, "date": date, "datetime": datetime,
        "Timestamp": Timestamp, "Decimal": Decimal, "UUID": UUID,
    }  # fmt: skip


def _load(spec: str) -> Any:
    from headrace.cli.loading import import_file, split_spec

    path, name = split_spec(spec)
    function = getattr(import_file(path), name or "", None)
    if not callable(function):
        raise typer.BadParameter(f"there is no function {name!r} in {path}", param_hint="--key")
    return function


def _say(report: RewriteReport, as_json: bool) -> None:
    from headrace.cli.show import make_console, make_table, print_json, print_table
    from headrace.model.amounts import count_of, human_bytes
    from headrace.model.ids import KEY_GROUPS

    if as_json:
        print_json(report._asdict())
        return
    table = make_table("step", "stored rows", left=("step",))
    for name, rows in report.rows.items():
        table.add_row(name, f"{rows:,}")
    groups = count_of(report.key_groups, "key group")
    title = f"{report.app}: epoch {report.epoch} in {report.store}, {groups}, {human_bytes(report.size_bytes)}"
    print_table(make_console(), title, table)
    setting = "" if report.key_groups == KEY_GROUPS else f"HEADRACE_KEY_GROUPS={report.key_groups} "
    print(f"go on with  {setting}headrace run APP.PY --store {report.store}")
