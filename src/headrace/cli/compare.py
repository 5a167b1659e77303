"""``headrace compare``: what two outputs show, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.compared_rows import RowComparison, RowDifference
    from headrace.connectors.sink_contract import Sink


def compare(
    file: options.File,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Which output; explain lists them.")],
    other: Annotated[
        str | None, typer.Option("--with", metavar="APP.PY[:NAME]", help="The program whose output it is held against.")
    ] = None,
    other_output: Annotated[
        str | None, typer.Option("--as", metavar="OUTPUT", help="What that program calls it, where it is another name.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="Instead: another target of its kind.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="COLUMNS", help="What tells rows apart: shop,day.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many rows that differ are shown.")] = 20,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write every row that differs to a file.")
    ] = None,
    profile: options.Profile = None,
    var: options.Vars = None,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Compare what two outputs show: rows added, removed and changed, by their key.

    The second side is the output of another program, or another target of the same output. Folders of files, tables
    of Postgres and of Delta, strings and hashes of Redis can be read. Without a key whole rows are compared.

    Ends with 0 where both show the same rows, and with 1 where they differ.

    Example: headrace compare shop.py totals --with shop_v2.py

    Example: headrace compare shop.py sales --target ./sales-again --key id
    """
    if (other is None) == (target is None):
        raise typer.BadParameter("say what it is held against: --with APP.PY, or --target TARGET")
    if other_output is not None and other is None:
        raise typer.BadParameter("--as is about the output of another program: --with APP.PY")
    with report_errors(trace=trace, as_json=as_json):
        import tempfile

        from headrace.cli.loading import parse_vars

        variables = parse_vars(var or [])
        sides = _open_sides(file, output, other, other_output or output, target, variables, profile)
        columns, by = _columns_of(sides, key)
        from headrace.connectors.compared_rows import RowComparison

        with tempfile.TemporaryDirectory(prefix="headrace-compare-") as folder:
            comparison = RowComparison(columns.both, by, Path(folder))
            comparison.read(*(_rows_of(side) for side in sides))
            walk = comparison.differences()
            if parquet is not None:
                walk = _writing(walk, parquet)
            shown = list(islice(walk, limit))
            for _ in walk:
                # To the end: all of them are counted, and written.
                pass
        _say(comparison, sides, columns, by, shown, as_json=as_json)
    if not comparison.counts.same:
        raise typer.Exit(Exit.DIFFERENT)


class _Columns(NamedTuple):
    both: list[str]
    first: list[str]
    """Those that only the first side has."""
    second: list[str]


def _open_sides(
    file: str, output: str, other: str | None, other_output: str, target: str | None, variables: Mapping[str, str],
    profile: str | None,
) -> tuple[Sink, Sink]:  # fmt: skip
    from headrace.errors import ProgramError

    first = _sink_of(file, output, variables, profile)
    if other is not None:
        second = _sink_of(other, other_output, variables, profile)
    else:
        assert target is not None
        moved = first.moved_to(target)
        if moved is None:
            raise ProgramError(
                f"the output {output} has no other target",
                where=first.describe(),
                expected="an output whose target has a name: a folder, a table, a key",
                found=first.kind,
                next_move="compare it with the output of another program: --with APP.PY",
            )
        second = moved
    if first.kind != second.kind:
        raise ProgramError(
            "outputs of two kinds write values in two ways",
            where=f"output {output}",
            expected="two outputs of one kind",
            found=f"{first.describe()} and {second.describe()}",
            next_move="let the second program write to a target of the first one's kind",
        )
    if first.target_name() and first.target_name() == second.target_name():
        raise ProgramError(
            "both are the same target",
            where=f"output {output}",
            expected="two targets",
            found=f"{first.describe()}, twice",
            next_move="give the second program an output of its own, as step 2 of blue and green says",
        )
    return first, second


def _sink_of(file: str, output: str, variables: Mapping[str, str], profile: str | None) -> Sink:
    from headrace.cli.loading import load_app
    from headrace.plan.compile import compile_app
    from headrace.plan.refilling import find_output

    app = load_app(file, variables=variables, profile=profile)
    app.settings(profile=profile, vars=dict(variables) or None)
    return find_output(compile_app(app, parallelism=1, key_groups=1), output)[1].sink


def _columns_of(sides: tuple[Sink, Sink], key: str | None) -> tuple[_Columns, list[str]]:
    from headrace.errors import ProgramError

    names = [list(side.codec.names) if side.codec is not None else [] for side in sides]
    both = [name for name in names[0] if name in names[1]]
    columns = _Columns(both, *([name for name in each if name not in both] for each in names))
    if key is None:
        keys = [side.changelog_key or () for side in sides]
        return columns, [name for name in keys[0] if set(keys[0]) == set(keys[1]) and name in both]
    by = [name.strip() for name in key.split(",") if name.strip()]
    if wrong := [name for name in by if name not in both]:
        raise ProgramError(
            f"there is no column {wrong[0]!r} on both sides",
            where=f"--key {key}",
            expected=", ".join(both),
            found=wrong[0],
            next_move="name columns that tell rows apart",
        )
    return columns, by


def _rows_of(sink: Sink) -> Iterator[pa.Table]:
    from headrace.errors import ProgramError

    sink.start()
    try:
        rows = sink.shown_rows()
        if rows is None:
            raise ProgramError(
                "what this output shows cannot be read",
                where=sink.describe(),
                expected="files, a table of Postgres or Delta, strings or hashes of Redis",
                found=sink.kind,
                next_move="compare the states that it is made of: headrace diff STORE STORE",
            )
        yield from rows
    finally:
        sink.close()


def _writing(walk: Iterator[RowDifference], path: Path) -> Iterator[RowDifference]:
    """Hands everything on, and writes it to a file on its way: a row for each value that differs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.read.columns import json_text

    schema = pa.schema([(name, pa.string()) for name in ("key", "change", "column", "before", "after")])
    with pq.ParquetWriter(path, schema) as writer:
        for each in walk:
            # Of a row that has no columns but its key, the row itself.
            columns: list[str | None] = list(dict.fromkeys(chain(each.before, each.after))) or [None]
            rows = [
                {
                    "key": json_text(each.key), "change": each.change, "column": name,
                    "before": each.before.get(name or ""), "after": each.after.get(name or ""),
                }
                for name in columns
            ]  # fmt: skip
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
            yield each


def _say(
    comparison: RowComparison, sides: tuple[Sink, Sink], columns: _Columns, by: Sequence[str],
    shown: Sequence[RowDifference], *, as_json: bool,
) -> None:  # fmt: skip
    from headrace.cli.show import make_console, make_table, print_json, print_table
    from headrace.model.amounts import count_of

    counts = comparison.counts
    if as_json:
        print_json({
            "first": {"output": sides[0].describe(), "rows": counts.first, "columns": columns.first},
            "second": {"output": sides[1].describe(), "rows": counts.second, "columns": columns.second},
            "key": list(by), "added": counts.added, "removed": counts.removed, "changed": counts.changed,
            "same": counts.same, "differences": [each._asdict() for each in shown],
        })  # fmt: skip
        return
    console = make_console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"{sides[0].describe()}: {count_of(counts.first, 'row')}")
    say(f"{sides[1].describe()}: {count_of(counts.second, 'row')}")
    for side, names in (("first", columns.first), ("second", columns.second)):
        if names:
            say(f"  not compared, because only the {side} has it: {', '.join(names)}")
    if counts.same:
        say("the same rows" + (f", by {', '.join(by)}" if by else ""))
        return
    say(f"{counts.added:,} added, {counts.removed:,} removed" + (f", {counts.changed:,} changed" if by else ""))
    if shown:
        table = make_table("row", "", "change", left=("row", "", "change"))
        for each in shown:
            table.add_row(_words(each.key), each.change, _change_words(each))
        print_table(console, "rows that differ", table, names=1)
    if left := counts.added + counts.removed + counts.changed - len(shown):
        say(f"… and {left:,} more: --limit, or --parquet FILE for all of them")


def _words(values: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {'null' if value is None else value}" for name, value in values.items())


def _change_words(each: RowDifference) -> str:
    if each.change != "changed":
        return _words(each.after or each.before)
    return ", ".join(
        f"{name} {'null' if was is None else was} → {'null' if each.after[name] is None else each.after[name]}"
        for name, was in each.before.items()
    )
