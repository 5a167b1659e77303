"""Nexmark: q0 to q22 as SQL, Headrace beside Flink SQL, over the same Parquet files.

    python benchmarks/nexmark.py                       all queries: answers compared, then speed at 8M events
    python benchmarks/nexmark.py --queries q3,q7 --quick
    python benchmarks/nexmark.py --answers             only the answers, over 50k events
    python benchmarks/nexmark.py --queries q3,q7 --rows nexmark.rows.json
                                                       in pieces: measured rows are kept in a file, and all are shown
    python benchmarks/nexmark.py --json                one JSON object with `rows` and `ratios`

The texts stand in `benchmarks/nexmark/`; both engines are given the same ones. A query is measured only where its
answer is that of Flink; q6, which Flink cannot say, has DuckDB's. The windows of q12 go by the wall clock, for which
neither engine waits at the end of its input, so there is nothing to compare.

Both write to the same kind of sink, exactly once: a folder of files. Results that only grow are Parquet; of those that
are corrected both write every row that comes or goes, as JSON lines. `--discard` measures both without a sink.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow.parquet as pq

from benchmarks.lib.children import ChildFailed, run_child
from benchmarks.lib.environments import FLINK, python_of
from benchmarks.lib.figures import rate_text, ratio_text
from benchmarks.lib.jars import FLINK_PARQUET, jars
from benchmarks.lib.nexmark_events import STREAMS, NexmarkInput, write_nexmark
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

TEXTS = Path(__file__).resolve().parent / "nexmark"
QUERIES = tuple(f"q{number}" for number in range(23))
CHANGELOGS = {"q4", "q9", "q15", "q16", "q17", "q18", "q19"}
"""Queries whose rows are taken back."""
WITHOUT_STATE = {"q0", "q1", "q2", "q10", "q14", "q21", "q22"}
NOT_OF_FLINK = "q6"
OF_THE_WALL_CLOCK = "q12"
ANSWERED = (1_000, 20_000, 29_000)
"""Events of the epochs over which answers are compared."""
BARS = {
    "vs_flinksql_geomean": Bar(at_least=1.5, goal=3),
    "least_with_state": Bar(at_least=0.7),
    "least_without_state": Bar(at_least=0.5, goal=1),
}


def main() -> None:
    options = parse()
    rows: dict[str, dict] = {}
    if options.rows is not None and options.rows.exists():
        rows = {row["query"]: row for row in json.loads(options.rows.read_text())}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        small = write_nexmark(Path(folder) / "small", warm=(), steady=ANSWERED)
        large = None if options.answers else write_nexmark(Path(folder) / "large", **options.epochs)
        for query in options.queries:
            row = rows.get(query, {}) if options.speed else {}
            row = row if row.get("answers") else answered(query, small, Path(folder) / query)
            if large is not None and not row["error"]:
                row |= measured(query, large, Path(folder) / query, options)
            rows[query] = row
            if options.rows is not None:
                options.rows.write_text(json.dumps(list(rows.values()), indent=2))
            shutil.rmtree(Path(folder) / query, ignore_errors=True)
    emit(report(sorted(rows.values(), key=lambda row: QUERIES.index(row["query"])), options), as_json=options.json)
    if any(rows[query]["error"] for query in options.queries):
        raise SystemExit(1)


# -- answers -------------------------------------------------------------------------------------------------------


def answered(query: str, small: NexmarkInput, work: Path) -> dict:
    """The query as a row of the result, with the number of its answers; failed where engines disagree."""
    row: dict[str, Any] = {"query": query, "error": None}
    try:
        ours = headrace(query, small, work / "ours", answers=work / "ours.parquet")
        mine = [tuple(each.values()) for each in pq.read_table(work / "ours.parquet").to_pylist()]
        if query == NOT_OF_FLINK:
            theirs = of_duckdb(query, small)
        else:
            flink(query, small, work / "theirs", answers=work / "theirs.json")
            theirs = [tuple(each) for each in json.loads((work / "theirs.json").read_text())]
    except ChildFailed as failed:
        say(str(failed))
        return {**row, "error": str(failed)}
    why = difference(query, mine, theirs)
    say(f"{query}: {why or f'{len(mine):,} answers, the same'}")
    return {**row, "version": ours["version"], "answers": len(mine), "error": why or None}


def difference(query: str, ours: list[tuple], theirs: list[tuple]) -> str:
    """Why two answers are not the same; empty where they are."""
    if query == OF_THE_WALL_CLOCK:
        return ""
    mine, other = Counter(map(_canonical, ours)), Counter(map(_canonical, theirs))
    if mine == other:
        return ""
    only, missing = list((mine - other).elements()), list((other - mine).elements())
    return f"{len(only):,} rows are ours alone, such as {only[:2]}; {len(missing):,} are missing, such as {missing[:2]}"


def _canonical(row: tuple) -> tuple:
    return tuple(map(_canonical_value, row))


def _canonical_value(value: Any) -> Any:
    """Equal for what engines write differently: times, decimals, and the last bits of floats."""
    if hasattr(value, "isoformat"):
        value = value.replace(tzinfo=None).isoformat(sep=" ")
    if isinstance(value, str):
        head, dot, fraction = value.partition(".")
        whole_time = len(head) == 19 and head[10:11] == " " and head[4] == "-"
        if whole_time:
            return f"{head}.{fraction.ljust(6, '0')}" if dot else f"{head}.000000"
        try:
            value = float(value)
        except ValueError:
            return value
    if value is None or isinstance(value, bool):
        return value
    number = float(value)
    return number if number == 0 or not math.isfinite(number) else float(f"{number:.11e}")


def of_duckdb(query: str, small: NexmarkInput) -> list[tuple]:
    import duckdb

    with duckdb.connect() as connection:
        for stream in STREAMS:
            files = str(small.folder / stream / "*.parquet")
            connection.execute(f"CREATE VIEW {stream} AS SELECT * FROM read_parquet('{files}')")
        return connection.execute((TEXTS / f"{query}.sql").read_text()).fetchall()


# -- speed ---------------------------------------------------------------------------------------------------------


def measured(query: str, large: NexmarkInput, work: Path, options: argparse.Namespace) -> dict:
    """Events per second of each engine; an engine that fails leaves its reason."""
    row: dict[str, Any] = {}
    engines = {"headrace": headrace, "flinksql": flink}
    for name in options.only:
        if name == "flinksql" and query == NOT_OF_FLINK:
            continue
        try:
            result = engines[name](query, large, work / f"{name}-speed", discard=options.discard)
        except ChildFailed as failed:
            say(str(failed))
            row["error"] = str(failed)
            continue
        row[name] = result["steady_rows"] / result["steady_s"]
        row[f"{name}_version"] = result["version"]
        row[f"{name}_bytes"] = result["written_bytes"]
        say(f"{query}, {name}: {rate_text(row[name])} events/s")
    return row


def headrace(
    query: str, source: NexmarkInput, work: Path, answers: Path | None = None, *, discard: bool = False
) -> dict:
    arguments = _arguments(query, source, answers, discard)
    return run_child("headrace_nexmark.py", arguments, work=work, label=f"{query}, headrace")


def flink(query: str, source: NexmarkInput, work: Path, answers: Path | None = None, *, discard: bool = False) -> dict:
    """Faster with its hash map than with RocksDB in every query that was tried."""
    arguments = [*_arguments(query, source, answers, discard), "--jars", ",".join(jars(FLINK_PARQUET))]
    arguments += ["--changelog"] if query in CHANGELOGS else []
    label = f"{query}, flinksql"
    return run_child("flink_nexmark.py", arguments, work=work, label=label, python=python_of(FLINK))


def _arguments(query: str, source: NexmarkInput, answers: Path | None, discard: bool) -> list[str]:
    arguments = ["--query", query, "--queries", str(TEXTS), "--input", str(source.folder)]
    arguments += ["--epochs", json.dumps(source.epochs), "--warm", str(len(source.warm))]
    arguments += ["--discard"] if discard else []
    return arguments + ([] if answers is None else ["--answers", str(answers)])


# -- the result ----------------------------------------------------------------------------------------------------


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    ratios = derive_ratios(rows)
    lines = []
    for row in rows:
        ours, theirs = row.get("headrace"), row.get("flinksql")
        ratio = ours / theirs if ours and theirs else None
        speeds = [rate_text(speed) if speed else "–" for speed in (ours, theirs)]
        lines.append([row["query"], "differs" if row["error"] else f"{row['answers']:,}", *speeds, ratio_text(ratio)])
    tables = [table("Queries", ["", "answers", "Headrace, events/s", "Flink SQL, events/s", "Headrace is"], lines)]
    if ratios:
        tables.append(bars_table(ratios, BARS, "Headrace ÷ Flink SQL"))
    versions = sorted({row[key] for row in rows for key in ("version", "flinksql_version") if row.get(key)})
    written = (
        "Results are written exactly once by both: Parquet files; of "
        f"{', '.join(sorted(CHANGELOGS, key=QUERIES.index))} JSON lines with every row that comes or goes. "
        "Headrace's are visible at each epoch, Flink's at its checkpoints, every 10 s, and at the end."
    )
    notes = [
        f"{sum(options.epochs['steady']):,} events measured, {options.epochs['steady'][0]:,} per epoch of Headrace; "
        f"2 cores; {', '.join(versions)}.",
        "Results are discarded by both." if options.discard else written,
        f"Answers are compared over {sum(ANSWERED):,} events, row by row: equal up to the last bits of floats.",
        "Steady state: from commit to commit (Headrace); a second, whole job in a warm process (Flink SQL), with "
        "mini-batches and its hash map.",
    ]
    return {"benchmark": "nexmark", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def derive_ratios(rows: list[dict]) -> dict[str, float]:
    shares = {row["query"]: row["headrace"] / row["flinksql"] for row in rows if {"headrace", "flinksql"} <= row.keys()}
    kept = [share for query, share in shares.items() if query not in WITHOUT_STATE]
    plain = [share for query, share in shares.items() if query in WITHOUT_STATE]
    ratios = {}
    if shares:
        ratios["vs_flinksql_geomean"] = round(math.exp(sum(map(math.log, shares.values())) / len(shares)), 2)
    if kept:
        ratios["least_with_state"] = round(min(kept), 2)
    if plain:
        ratios["least_without_state"] = round(min(plain), 2)
    return ratios


def _names(text: str) -> list[str]:
    return text.split(",")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="500k events in small epochs: rough figures, soon")
    parser.add_argument("--answers", action="store_true", help="compare answers, and measure nothing")
    parser.add_argument("--discard", action="store_true", help="measure both with results written nowhere")
    parser.add_argument("--speed", action="store_true", help="answers that --rows holds are not compared again")
    parser.add_argument("--queries", type=_names, default=QUERIES, help="with commas: q0 to q22")
    parser.add_argument("--rows", type=Path, help="a file with the rows of earlier pieces, to which these are added")
    parser.add_argument("--only", type=_names, default=["headrace", "flinksql"], help="whom to measure")
    options = parser.parse_args()
    per_epoch, epochs = (125_000, 4) if options.quick else (2_000_000, 4)
    options.epochs = {"warm": (1_000, per_epoch), "steady": (per_epoch,) * epochs}
    if unknown := set(options.queries) - set(QUERIES):
        parser.error(f"no query {', '.join(sorted(unknown))}; there are {', '.join(QUERIES)}")
    return options


if __name__ == "__main__":
    main()
