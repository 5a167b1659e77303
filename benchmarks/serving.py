"""State served over Redis' protocol beside the real Redis: requests per second, latency, and how fresh the state is.

    python benchmarks/serving.py                 1M keys, 50 clients; the stream standing still and running
    python benchmarks/serving.py --quick --json
    python benchmarks/serving.py --only idle     without Spark

`redis-benchmark` asks both servers in turns with the same commands, and both hold the same values. Headrace keeps
replies ready that were asked for before, so all servers are asked for nearly every key before the clock runs; what a
key costs that nobody has asked for yet is told apart. Freshness is the time from when an event comes into being until a
reader gets a value with it over the socket.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.children import ChildFailed
from benchmarks.lib.figures import count_text, quantile, rate_text
from benchmarks.lib.headrace_server import Asking, HeadraceServer
from benchmarks.lib.progress import say
from benchmarks.lib.redis_peer import CLIENTS, Measured, RedisServer, redis_benchmark
from benchmarks.lib.results import Bar, bars_table, emit, table
from benchmarks.lib.served_store import ADDRESS, KEY, pairs, write_store
from benchmarks.lib.streaming import PROBE, Freshness, Stream

KEYS = 1_000_000
PARTS = ("idle", "stream", "freshness")
RATE = 10_000
"""Events per second of the stream that runs while its state is read."""
FRESH_RATE, FRESH_KEYS = 1_000, 10_000
FIRST_SHARE = 0.1
"""So many requests per key find hardly one that was asked for before …"""
WARM_SHARE = 4
"""… and so many have asked for 98 of 100 keys."""
FAILURES = (ChildFailed, RuntimeError, OSError)
BARS = {"get": Bar(at_least=0.8, goal=1.0), "get_p16": Bar(at_least=0.4, goal=0.7)}
PEERS = {
    "redis": "Redis",
    "headrace": "Headrace",
    "headrace_2": "Headrace, 2 processes",
}


@dataclass(frozen=True)
class Question:
    name: str
    label: str
    command: tuple[str, ...]
    pipeline: int
    share: float
    """Of the requests that are sent for a single GET."""


ONE = f"{ADDRESS}:key__rand_int__"
FIRST = Question("get_first", "GET, keys that nobody has asked for yet", ("GET", ONE), 1, 0.0)
QUESTIONS = (
    Question("get", "GET", ("GET", ONE), 1, 1.0),
    Question("get_p16", "GET, 16 to a pipeline", ("GET", ONE), 16, 4.0),
    Question("mget_100", "MGET of 100", ("MGET", *[ONE] * 100), 1, 0.05),
)


def main() -> None:
    options = parse()
    rows: list[dict] = []
    versions: set[str] = set()
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        with RedisServer(Path(folder) / "redis") as redis:
            versions.add(redis.version)
            if {"idle", "stream"} & set(options.only):
                say(f"writing a store of {count_text(options.keys)} keys, and the same values to Redis")
                counts = write_store(Path(folder) / "made", options.keys)
                redis.load(pairs(counts))
            for part, measure in (("idle", measure_idle), ("stream", measure_streaming)):
                if part in options.only:
                    failed += attempt(part, rows, partial(measure, Path(folder), redis, options, versions))
        if "freshness" in options.only:
            failed += attempt("freshness", rows, partial(measure_freshness, Path(folder), options, versions))
    emit(report(rows, options, versions), as_json=options.json)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def attempt(part: str, rows: list[dict], measure: Callable[[], list[dict]]) -> list[str]:
    """One part; what was measured before and after one that fails is told all the same."""
    try:
        rows += measure()
    except FAILURES as failure:
        say(f"{part}: {type(failure).__name__}: {failure}")
        return [part]
    return []


# --- measuring


def measure_idle(folder: Path, redis: RedisServer, options: argparse.Namespace, versions: set[str]) -> list[dict]:
    """Nothing is written while all are asked."""
    store = folder / "made"
    with HeadraceServer(store) as one, HeadraceServer(store, processes=2) as two:
        for server in (one, two):
            server.wait_for(f"{ADDRESS}:{KEY.format(0)}")
            check_equal(server, redis, options.keys)
        ports = {"redis": redis.port, "headrace": one.port, "headrace_2": two.port}
        return [*ask_first(ports, "idle", options), *ask_all(ports, "idle", options)]


def measure_streaming(folder: Path, redis: RedisServer, options: argparse.Namespace, versions: set[str]) -> list[dict]:
    """A job changes keys all the time, on the same two cores; Redis is asked on the same busy machine."""
    say(f"starting a stream of {count_text(RATE)} events/s over {count_text(options.keys)} keys, an epoch per second")
    rows = []
    with Stream(folder / "streamed", keys=options.keys, rate=RATE, epoch="1s", label="stream") as stream:
        with HeadraceServer(stream.store) as server:
            stream.wait_until_steady(server.port)
            unread = watch(stream, server.port, options.fresh_s)
            watching = Freshness(stream, server.port)
            watching.start()
            rows += ask_all({"redis": redis.port, "headrace": server.port}, "streaming", options, stream)
            read = watching.finish()
        # Not beside the other server: both would follow the stream.
        with HeadraceServer(stream.store, processes=2) as server:
            server.wait_for(PROBE)
            rows += ask_all({"headrace_2": server.port}, "streaming", options, stream)
    versions.add(stream.version)
    rows.append(freshness_row("epochs of 1 s, nobody else reads", RATE, options.keys, unread))
    rows.append(freshness_row(f"epochs of 1 s, read by {CLIENTS} clients in turns", RATE, options.keys, read))
    return rows


def measure_freshness(folder: Path, options: argparse.Namespace, versions: set[str]) -> list[dict]:
    """Epochs one after the other without a pause: as fresh as it gets."""
    say(f"starting a stream of {count_text(FRESH_RATE)} events/s without a pause between epochs")
    with (
        Stream(folder / "fresh", keys=FRESH_KEYS, rate=FRESH_RATE, epoch="1ms", label="fresh stream") as stream,
        HeadraceServer(stream.store) as server,
    ):
        stream.wait_until_steady(server.port)
        time.sleep(options.fresh_s / 2)
        ages = watch(stream, server.port, options.fresh_s)
    versions.add(stream.version)
    return [freshness_row("epochs without a pause, nobody else reads", FRESH_RATE, FRESH_KEYS, ages)]


def watch(stream: Stream, port: int, seconds: float) -> list[float]:
    watching = Freshness(stream, port)
    watching.start()
    time.sleep(seconds)
    stream.check()
    return watching.finish()


def ask_first(ports: Mapping[str, int], when: str, options: argparse.Namespace) -> list[dict]:
    """Servers that have just started, each once."""
    count = int(options.keys * FIRST_SHARE)
    return [told(FIRST, when, peer, [ask(port, FIRST, count, options)]) for peer, port in ports.items()]


def ask_all(
    ports: Mapping[str, int], when: str, options: argparse.Namespace, stream: Stream | None = None
) -> list[dict]:
    """In turns, so that whatever else the machine does meets all of them."""
    for peer, port in ports.items():
        say(f"{when}: asking {PEERS[peer]} for nearly every key, to begin with")
        redis_benchmark(port, QUESTIONS[0].command, requests=WARM_SHARE * options.keys, keys=options.keys, pipeline=64)
    rows = []
    for question in QUESTIONS:
        found: dict[str, list[Measured]] = {peer: [] for peer in ports}
        for _ in range(options.rounds):
            for peer, port in ports.items():
                found[peer].append(ask(port, question, int(options.requests * question.share), options))
            if stream is not None:
                stream.check()
        rows += [told(question, when, peer, runs) for peer, runs in found.items()]
    return rows


def ask(port: int, question: Question, count: int, options: argparse.Namespace) -> Measured:
    return redis_benchmark(port, question.command, requests=count, keys=options.keys, pipeline=question.pipeline)


def told(question: Question, when: str, peer: str, runs: list[Measured]) -> dict:
    """Some runs of redis-benchmark as a row of the result."""
    row = {"part": "requests", "when": when, "question": question.name, "peer": peer}
    row |= {
        "per_s": median(run.per_s for run in runs),
        "p50_ms": median(run.p50_ms for run in runs),
        "p99_ms": median(run.p99_ms for run in runs),
        "lowest_per_s": min(run.per_s for run in runs),
        "highest_per_s": max(run.per_s for run in runs),
    }
    say(f"{when}, {question.label}: {PEERS[peer]} {rate_text(row['per_s'])}/s, p99 {row['p99_ms']:.2f} ms")
    return row


def check_equal(server: HeadraceServer, redis: RedisServer, keys: int) -> None:
    """Both say the same, and to every key something: redis-benchmark would count a missing value as an answer."""
    wanted = [f"{ADDRESS}:{KEY.format(number)}" for number in random.Random(1).sample(range(keys), 1000)]
    with Asking(server.port) as ours, Asking(redis.port) as theirs:
        if (found := ours.get_many(wanted)) != theirs.get_many(wanted) or None in found:
            raise ChildFailed("Headrace and Redis do not answer the same")


def freshness_row(label: str, rate: int, keys: int, ages_ms: list[float]) -> dict:
    row = {"part": "freshness", "label": label, "rate": rate, "keys": keys, "events": len(ages_ms)}
    row |= {"p50_ms": quantile(ages_ms, 0.5), "p99_ms": quantile(ages_ms, 0.99)}
    say(f"freshness, {label}: p50 {row['p50_ms']:.0f} ms, p99 {row['p99_ms']:.0f} ms")
    return row


# --- telling


def report(rows: list[dict], options: argparse.Namespace, versions: set[str]) -> dict:
    ratios = derive_ratios(rows)
    titles = {
        "idle": f"{count_text(options.keys)} keys, nothing is written",
        "streaming": f"{count_text(options.keys)} keys, while a stream of {count_text(RATE)} events/s changes them",
    }
    tables = [requests_table(rows, when, title) for when, title in titles.items() if any_of(rows, when)]
    fresh = [row for row in rows if row["part"] == "freshness"]
    if fresh:
        tables.append(freshness_table(fresh))
    if set(BARS) & set(ratios):
        tables.append(bars_table(ratios, BARS, "Headrace ÷ Redis, one process each, nothing is written"))
    notes = [
        f"redis-benchmark with {CLIENTS} clients, on the same 2 cores as the server; the median of {options.rounds} "
        f"runs in turns, after {WARM_SHARE} requests per key to begin with; {', '.join(sorted(versions))}.",
        "These requests to begin with were 10 % of those of a question until replies were kept; with that, more of the "
        "requests would have gone to keys that nobody had asked for yet, whose row is the lower end.",
        "Headrace keeps replies ready that were asked for before, here up to 384 MB of them in each process. Keys that "
        "nobody has asked for yet are looked up in the files of the state, once.",
        "A second process has no core of its own here: one is taken by redis-benchmark.",
        "Freshness: from the moment an event comes into being until a reader gets a value with it.",
    ]
    return {"benchmark": "serving", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def any_of(rows: list[dict], when: str) -> bool:
    return any(row.get("when") == when for row in rows)


def derive_ratios(rows: list[dict]) -> dict[str, float]:
    rates = {(row["when"], row["question"], row["peer"]): row["per_s"] for row in rows if row["part"] == "requests"}
    ratios = {}
    for (when, question, peer), rate in rates.items():
        if peer != "redis" and (when, question, "redis") in rates:
            name = question + peer.removeprefix("headrace") + ("" if when == "idle" else "_streaming")
            ratios[name] = round(rate / rates[when, question, "redis"], 2)
    return ratios


def requests_table(rows: list[dict], when: str, title: str) -> dict:
    mine = {(row["question"], row["peer"]): row for row in rows if row.get("when") == when}
    lines = []
    for question in (*QUESTIONS, FIRST):
        redis = mine.get((question.name, "redis"))
        for peer, label in PEERS.items():
            row = mine.get((question.name, peer))
            if row is None:
                continue
            ratio = "–" if peer == "redis" or redis is None else f"{row['per_s'] / redis['per_s']:.2f}"
            latency = [f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms")]
            lines.append([f"{question.label}: {label}", rate_text(row["per_s"]), *latency, ratio])
    return table(title, ["", "requests/s", "p50, ms", "p99, ms", "÷ Redis"], lines)


def freshness_table(rows: list[dict]) -> dict:
    lines = [
        [row["label"], count_text(row["rate"]), count_text(row["keys"]), f"{row['p50_ms']:.0f}", f"{row['p99_ms']:.0f}"]
        for row in rows
    ]
    return table("Event in → readable over the socket", ["", "events/s", "keys", "p50, ms", "p99, ms"], lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="fewer requests: rough figures, soon")
    parser.add_argument("--only", type=lambda text: text.split(","), default=PARTS, help=", ".join(PARTS))
    options = parser.parse_args()
    options.keys = KEYS
    options.requests, options.rounds, options.fresh_s = (100_000, 2, 10) if options.quick else (500_000, 5, 60)
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    main()
