"""Count and sum per key in a Python process function that emits a row per event: Headrace beside its peers.

    python benchmarks/keyed_process.py                     1M events, 1 000 and 500 000 keys, all peers
    python benchmarks/keyed_process.py --only headrace,tws --quick
    python benchmarks/keyed_process.py --long --json       10M events; one JSON object with `rows` and `ratios`

Every peer is a process of its own, one after the other, reading the same rows. Start-up and steady state are shown
apart: steady state begins when every key has been seen. Each peer proves by a checksum over its results that it handled
every row exactly once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.children import ChildFailed, run_child
from benchmarks.lib.environments import FLINK, TWS, Environment, python_of
from benchmarks.lib.events import FILES_PER_EPOCH, Events, write_events
from benchmarks.lib.figures import count_text, quantile, rate_text, ratio_text
from benchmarks.lib.headrace_job import run_counting
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

KEYS = (1_000, 500_000)
BARS = {
    "vs_tws_500k": Bar(at_least=25, goal=40),
    "vs_tws_1k": Bar(at_least=4, goal=6),
    "vs_pyflink_500k": Bar(at_least=12, goal=20),
    "vs_pyflink_1k": Bar(at_least=12, goal=20),
}


@dataclass(frozen=True)
class Peer:
    name: str
    label: str
    family: str
    """Peers of one family are modes of one engine; a ratio is against the best of them."""
    program: str = ""
    environment: Environment | None = None
    """None for Headrace, which runs in the environment of the benchmarks."""
    arguments: tuple[str, ...] = ()
    epochs: bool = True
    """Whether it works in epochs (takes --files-per-epoch); others have no such bounds and may take a --limit-s."""


def _flink(name: str, label: str, *arguments: str) -> Peer:
    return Peer(f"pyflink-{name}", label, "pyflink", "flink_process.py", FLINK, arguments, epochs=False)


# At 1 000 keys, process mode with its default bundles of 1 000 rows came out four to eight times slower than with
# 100 000, in each of three tries on a busy machine; the cache is made to hold every key, so that none is fetched twice.
_LARGE_BUNDLES = ("python.state.cache-size=1000000", "python.fn-execution.bundle.size=100000")

PEERS = (
    Peer("headrace", "Headrace", "headrace"),
    Peer("tws", "PySpark transformWithState, RocksDB", "tws", "tws.py", TWS),
    # One interpreter lock serves all threads of a process, so it is not clear beforehand which of the two is faster.
    _flink("thread-1", "PyFlink, thread mode, parallelism 1", "--mode", "thread", "--parallelism", "1"),
    _flink("thread", "PyFlink, thread mode, parallelism 2", "--mode", "thread"),
    _flink(
        "process",
        "PyFlink, process mode, parallelism 2",
        "--mode",
        "process",
        *(word for option in _LARGE_BUNDLES for word in ("--set", option)),
    ),
)


def main() -> None:
    options = parse()
    peers = [peer for peer in PEERS if not options.only or {peer.name, peer.family} & set(options.only)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for keys in options.keys:
            say(f"writing {count_text(options.events)} events over {count_text(keys)} keys")
            events = write_events(
                Path(folder) / f"events-{keys}",
                keys=keys,
                events=options.events,
                per_epoch=options.per_epoch,
                csv=any(not peer.epochs for peer in peers),
            )
            rows += [measure(peer, events, Path(folder) / f"{peer.name}-{keys}", options) for peer in peers]
    emit(report(rows, options), as_json=options.json)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def measure(peer: Peer, events: Events, work: Path, options: argparse.Namespace) -> dict:
    """One peer over one input, as a row of the result; a peer that fails is a row too."""
    label = f"{peer.name}, {count_text(events.keys)} keys"
    say(f"{label}: starting")
    row = {"peer": peer.name, "label": peer.label, "family": peer.family, "keys": events.keys, "error": None}
    try:
        found = run_peer(peer, events, work, label, options.limit_s)
        check(peer, events, found)
    except ChildFailed as failed:
        say(str(failed))
        return {**row, "events_per_s": None, "error": str(failed)}
    rate = found["steady_rows"] / found["steady_s"]
    say(f"{label}: {rate_text(rate)} events/s")
    return {**row, "events_per_s": rate, **found}


def run_peer(peer: Peer, events: Events, work: Path, label: str, limit_s: float) -> dict:
    if peer.environment is None:
        return run_counting(events, work, label=label)
    arguments = ["--input", str(events.folder), *peer.arguments]
    arguments += ["--files-per-epoch", str(FILES_PER_EPOCH)] if peer.epochs else ["--limit-s", str(limit_s)]
    return run_child(peer.program, arguments, work=work, label=label, python=python_of(peer.environment))


def check(peer: Peer, events: Events, found: dict) -> None:
    """A peer that was stopped early cannot tell; every other one must have handled each row exactly once."""
    for name, wanted in (("rows_out", events.total_rows), ("checksum", events.checksum)):
        if found[name] is not None and found[name] != wanted:
            raise ChildFailed(f"{peer.name} is wrong: {name} was to be {wanted:,} and is {found[name]:,}")


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    ratios = derive_ratios(rows)
    tables = [speed_table([row for row in rows if row["keys"] == keys], keys) for keys in options.keys]
    if ratios:
        tables.append(bars_table(ratios, BARS, "Headrace ÷ peer, steady state"))
    return {
        "benchmark": "keyed_process",
        "rows": rows,
        "ratios": ratios,
        "tables": tables,
        "notes": notes(rows, options),
    }


def derive_ratios(rows: list[dict]) -> dict[str, float]:
    """Headrace's rate over that of each engine's best mode, per number of keys."""
    ratios = {}
    for keys in KEYS:
        ours = best(rows, "headrace", keys)
        for family in ("tws", "pyflink"):
            theirs = best(rows, family, keys)
            if ours and theirs:
                ratios[f"vs_{family}_{count_text(keys)}"] = round(ours / theirs, 2)
    return ratios


def best(rows: list[dict], family: str, keys: int) -> float | None:
    """The rate of an engine's best mode; unknown when one of its modes failed, for that might have been the best."""
    modes = [row for row in rows if (row["family"], row["keys"]) == (family, keys)]
    if any(row["error"] for row in modes):
        return None
    return max((row["events_per_s"] for row in modes if row.get("filled", True)), default=None)


def speed_table(rows: list[dict], keys: int) -> dict:
    ours = best(rows, "headrace", keys)
    lines = []
    for row in rows:
        rate = row["events_per_s"]
        if rate is None:
            lines.append([row["label"], "failed", "–", "–", "–", "–"])
            continue
        steady_epochs = row.get("steady_epoch_s") or []
        lines.append(
            [
                row["label"] + ("" if row.get("filled", True) else " (stopped while filling)"),
                f"{row['startup_s']:.1f}",
                f"{row['steady_rows']:,}",
                f"{quantile(steady_epochs, 0.5):.2f}" if steady_epochs else "–",
                rate_text(rate),
                ratio_text(ours / rate if ours and row["family"] != "headrace" else None),
            ]
        )
    columns = ["", "start-up, s", "rows measured", "epoch p50, s", "events/s", "Headrace is"]
    return table(f"{count_text(keys)} keys", columns, lines)


def notes(rows: list[dict], options: argparse.Namespace) -> list[str]:
    versions = sorted({row["version"] for row in rows if row.get("version")})
    return [
        f"{options.events:,} events after every key was seen, {options.per_epoch:,} per epoch where a peer has epochs; "
        f"2 cores; {', '.join(versions)}.",
        "Start-up: from the launch of the process to its first result. Steady state: from commit to commit (Headrace, "
        "transformWithState), or as counted in the function itself (PyFlink).",
        "transformWithState: RocksDB with changelog checkpointing, 2 shuffle partitions. PyFlink: hash map state, a "
        "checkpoint every 10 s; process mode with worker processes of its own, a cache of 1M values and bundles of "
        "100k rows. Ratios are against PyFlink's best mode.",
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help="peers: " + ", ".join(p.name for p in PEERS))
    parser.add_argument("--keys", type=int, choices=KEYS, nargs="+", default=KEYS, help="one number of keys only")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="200k events: rough figures, soon")
    size.add_argument("--long", action="store_true", help="10M events")
    options = parser.parse_args()
    options.events, options.per_epoch, options.limit_s = 1_000_000, 250_000, 240
    if options.quick:
        options.events, options.per_epoch, options.limit_s = 200_000, 100_000, 60
    if options.long:
        options.events, options.limit_s = 10_000_000, 900
    known = {name for peer in PEERS for name in (peer.name, peer.family)}
    if unknown := set(options.only or ()) - known:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return options


if __name__ == "__main__":
    main()
