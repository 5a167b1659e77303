"""Counts per key and window that an application can read every second: from the state itself, or flushed into Redis.

    python benchmarks/impressions.py               4M events, 100 and 1M keys
    python benchmarks/impressions.py --quick --json
    python benchmarks/impressions.py --only alone,serve --keys 1000000

The job is the same each time: impressions per key in windows of 10 s of event time. It runs alone; with its state
served and read over Redis' protocol; and flushing every window that changed into a real Redis each second, which is
read in the same way. What counts is how much of its speed the job keeps.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.lib.children import ChildFailed, run_child
from benchmarks.lib.figures import count_text, quantile, rate_text
from benchmarks.lib.headrace_server import Asking, HeadraceServer
from benchmarks.lib.progress import say
from benchmarks.lib.reader import KEYS_AT_ONCE, PER_SECOND, Reader
from benchmarks.lib.redis_peer import RedisServer
from benchmarks.lib.results import Bar, bars_table, emit, table
from benchmarks.lib.timed_events import OUT_OF_ORDER_S, TimedEvents, read_columns, write_timed_events

KEYS = (100, 1_000_000)
WINDOW_US = 10_000_000
NAME = "per_key:user-{:06d}"
SAMPLE = 200
BARS = {"kept_1m": Bar(at_least=0.95)}
WAYS = {
    "alone": "alone: nobody can read it",
    "serve": "(a) state served by Headrace, and read",
    "redis-staged": "(b) flushed into Redis after each epoch, and read",
    "redis-direct": "(b) flushed into Redis by the tasks, and read",
}


def main() -> None:
    options = parse()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for keys in options.keys:
            say(f"writing {count_text(options.events)} events over {count_text(keys)} keys")
            events = write_timed_events(
                Path(folder) / f"events-{keys}",
                keys=keys,
                events=options.events,
                per_epoch=options.per_epoch,
                rows_per_second=options.per_epoch // 5,
            )
            # In turns, so that whatever else the machine does meets all of them.
            for round_number in range(options.rounds):
                for way in options.only:
                    rows.append(measure(way, events, Path(folder) / f"{way}-{keys}-{round_number}"))
    emit(report(rows, options), as_json=options.json)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


# --- measuring


def measure(way: str, events: TimedEvents, folder: Path) -> dict:
    """One run, as a row of the result; one that fails is a row too."""
    label = f"{way}, {count_text(events.keys)} keys"
    row = {"way": way, "keys": events.keys, "error": None, "events_per_s": None}
    say(f"{label}: starting")
    try:
        with beside(way, folder) as (port, check):
            arguments = ["--how", way, "--input", str(events.folder), "--store", str(folder / "store")]
            arguments += ["--redis-port", str(port or 0)]
            reader = None if port is None else Reader(port, NAME, events.keys)
            if reader is not None:
                reader.start()
            found = run_child("headrace_impressions.py", arguments, work=folder / "job", label=label)
            if reader is not None:
                found |= reader.finish()
            check(events)
    except (ChildFailed, OSError) as failed:
        said = f"{type(failed).__name__}: {failed}"
        say(f"{label}: {said}")
        return {**row, "error": said}
    rate = found["steady_rows"] / found["steady_s"]
    say(f"{label}: {rate_text(rate)} events/s")
    return {**row, **found, "events_per_s": rate}


@contextlib.contextmanager
def beside(way: str, folder: Path) -> Iterator[tuple]:
    """Whoever answers readers while the job runs: its port, and a check of its answers at the end."""
    if way == "alone":
        yield None, lambda events: None
    elif way == "serve":
        with HeadraceServer(folder / "store") as server:
            yield server.port, lambda events: check_served(server, events)
    else:
        with RedisServer(folder / "redis") as redis:
            yield redis.port, lambda events: check_flushed(redis, events)


def check_served(server: HeadraceServer, events: TimedEvents) -> None:
    """What the server says at the end is what the events come to, for some keys."""
    wanted = open_counts(events)
    step = max(1, events.keys // SAMPLE)
    numbers = range(0, events.keys, step)
    with Asking(server.port) as asking:
        values = asking.get_many([NAME.format(number) for number in numbers])
    found = {
        number: msgspec.json.decode(value)["n"]
        for number, value in zip(numbers, values, strict=True)
        if value is not None
    }
    right = {number: wanted[number] for number in numbers if number in wanted}
    if found != right:
        wrong = sum(found.get(number) != right.get(number) for number in numbers)
        raise ChildFailed(f"{wrong} of {len(numbers)} keys are served with a wrong count")


def open_counts(events: TimedEvents) -> dict[int, int]:
    """Key → rows in its newest window that the last watermark has not closed."""
    ids, times = [], []
    for rows in read_columns(events, "events", ("start", "fill", "steady")):
        times.append(rows.column("at").cast("int64").to_numpy())
        ids.append(rows.column("key").combine_chunks().cast("binary"))
    at = np.concatenate(times)
    names = np.concatenate([np.array([int(name[5:]) for name in part.to_pylist()]) for part in ids])
    starts = at // WINDOW_US
    is_open = (starts + 1) * WINDOW_US - 1 > at.max() - OUT_OF_ORDER_S * 1_000_000 - 1
    pairs, counts = np.unique(names[is_open] * 2**40 + starts[is_open], return_counts=True)
    # The last pair of a key is the one of its newest window.
    return dict(zip((pairs // 2**40).tolist(), counts.tolist(), strict=True))


def check_flushed(redis: RedisServer, events: TimedEvents) -> None:
    """Every key was set, but for those that only the last second may have brought."""
    columns = read_columns(events, "events", ("start", "fill", "steady"))
    seen = pa.chunked_array([chunk for rows in columns for chunk in rows.column("key").chunks])
    wanted = len(seen.unique())
    if not 0.9 * wanted <= redis.size() <= wanted:
        raise ChildFailed(f"{wanted:,} keys were seen, and {redis.size():,} flushed into Redis")


# --- telling


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    ratios = derive_ratios(rows)
    tables = [speed_table(rows, keys) for keys in options.keys]
    if set(BARS) & set(ratios):
        tables.append(bars_table(ratios, BARS, "Speed with its state served and read ÷ alone"))
    versions = sorted({row["version"] for row in rows if row.get("version")})
    notes = [
        f"{options.events:,} events, {options.per_epoch:,} per epoch, two epochs to a window; every epoch can be read "
        f"as soon as it is published. The median of {options.rounds} runs in turns; 2 cores, which the job shares with "
        f"server and reader; {', '.join(versions)}.",
        f"Read: {PER_SECOND} times a second {KEYS_AT_ONCE} keys, in one MGET.",
        "Flushed: windows that changed, every second, as MSETs of 500 keys made from columns in the tasks. Where the "
        "tasks send them, readers see what may yet fail; where they go out after each epoch, they do not.",
    ]
    return {"benchmark": "impressions", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def speed_of(rows: list[dict], way: str, keys: int) -> float | None:
    """The median over the rounds; unknown where one failed."""
    mine = [row["events_per_s"] for row in rows if (row["way"], row["keys"]) == (way, keys)]
    return median(mine) if mine and None not in mine else None


def derive_ratios(rows: list[dict]) -> dict[str, float]:
    ratios = {}
    for keys in sorted({row["keys"] for row in rows}):
        alone = speed_of(rows, "alone", keys)
        for way, name in (
            ("serve", "kept"),
            ("redis-staged", "kept_redis_staged"),
            ("redis-direct", "kept_redis_direct"),
        ):
            speed = speed_of(rows, way, keys)
            if alone and speed:
                ratios[f"{name}_{count_text(keys).lower()}"] = round(speed / alone, 3)
    return ratios


def speed_table(rows: list[dict], keys: int) -> dict:
    alone = speed_of(rows, "alone", keys)
    lines = []
    for way, label in WAYS.items():
        mine = [row for row in rows if (row["way"], row["keys"]) == (way, keys)]
        speed = speed_of(rows, way, keys)
        if not mine:
            continue
        if speed is None:
            lines.append([label, "failed", "–", "–", "–"])
            continue
        epochs = [took for row in mine for took in row["steady_epoch_s"]]
        reads = [row["read_p99_ms"] for row in mine if "read_p99_ms" in row]
        lines.append(
            [
                label,
                rate_text(speed),
                f"{speed / alone:.0%}" if alone else "–",
                f"{quantile(epochs, 0.5):.2f}",
                f"{median(reads):.1f}" if reads else "–",
            ]
        )
    columns = ["", "events/s", "kept", "epoch p50, s", "MGET p99, ms"]
    return table(f"{count_text(keys)} keys", columns, lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="1M events, once: rough figures, soon")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--keys", type=int, choices=KEYS, nargs="+", default=KEYS, help="one number of keys only")
    options = parser.parse_args()
    options.events, options.per_epoch, options.rounds = 4_000_000, 500_000, 3
    if options.quick:
        options.events, options.per_epoch, options.rounds = 1_000_000, 250_000, 1
    if unknown := set(options.only) - set(WAYS):
        parser.error(f"no way {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    return options


if __name__ == "__main__":
    main()
