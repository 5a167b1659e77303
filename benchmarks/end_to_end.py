"""Kafka → count and sum per key in Python → Kafka: Headrace beside PyFlink and plain Structured Streaming.

    python benchmarks/end_to_end.py                        2M events at full speed, then 1 000 per second for latency
    python benchmarks/end_to_end.py --quick --json
    python benchmarks/end_to_end.py --only headrace,spark --what speed

Speed is measured from outside: how many answers a reader of committed messages could see, and when, from the moment
when a fifth of them is there until all are, or for a minute. Latency is from writing an event until its answer is
read with `read_committed`, after a minute at the same pace, in which a JVM on two cores is busy with compiling itself.
Every engine has topics of two partitions in the same broker and two cores, one after the other; the answers prove that
each event was counted exactly once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.children import ChildFailed, run_child
from benchmarks.lib.environments import FLINK, TWS, Environment, python_of
from benchmarks.lib.figures import count_text, quantile, rate_text, ratio_text
from benchmarks.lib.jars import FLINK_KAFKA, SPARK_KAFKA, jars
from benchmarks.lib.kafka_topics import Ages, Answers, BenchmarkBroker, Filled, Trickle, Visible, count_answers, fill
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

KEYS = 10_000
BARS = {"vs_pyflink": Bar(at_least=1), "vs_spark": Bar(at_least=1)}
STARTED_SHARE = 0.2
"""Of the answers: when so many are to be seen, an engine has started."""
LEAST_SHARE = 0.2
"""Of the answers: so many have to come afterwards, for their speed to mean something."""
_START_S = 180.0
_STOP_S = 120.0


@dataclass(frozen=True)
class Peer:
    name: str
    label: str
    family: str
    """Peers of one family are modes of one engine; a ratio is against the best of them."""
    program: str
    environment: Environment | None = None
    artifacts: tuple[str, ...] = ()
    speed: tuple[str, ...] = ()
    """Arguments for full speed."""
    latency: tuple[str, ...] | None = ()
    """Arguments for low latency; None: another mode of the engine is for that."""
    epochs: bool = True
    """Whether it takes --per-epoch."""


def _flink(mode: str, speed: tuple[str, ...], latency: tuple[str, ...] | None) -> Peer:
    return Peer(
        f"pyflink-{mode}",
        f"PyFlink, {mode} mode, exactly once",
        "pyflink",
        "flink_kafka.py",
        FLINK,
        FLINK_KAFKA,
        ("--mode", mode, *speed),
        None if latency is None else ("--mode", mode, *latency),
        epochs=False,
    )


_LARGE_BUNDLES = ("--set", "python.state.cache-size=1000000", "--set", "python.fn-execution.bundle.size=100000")

PEERS = (
    Peer("headrace", "Headrace, exactly once", "headrace", "headrace_kafka.py"),
    # Answers are to be seen after a checkpoint, so for latency these are frequent; no other value was tried. Process
    # mode, which hands rows over in bundles, falls behind then.
    _flink("thread", ("--checkpoints", "2 s"), ("--checkpoints", "200 ms")),
    _flink("process", ("--checkpoints", "2 s", *_LARGE_BUNDLES), None),
    Peer("spark", "Structured Streaming, at least once", "spark", "spark_kafka.py", TWS, SPARK_KAFKA),
)


def main() -> None:
    options = parse()
    peers = [peer for peer in PEERS if not options.only or {peer.name, peer.family} & set(options.only)]
    rows = []
    say(" ".join(["python benchmarks/end_to_end.py", *sys.argv[1:]]))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        say("starting a broker")
        with BenchmarkBroker(Path(folder) / "broker") as broker:
            filled = None
            if "speed" in options.what:
                say(f"writing {count_text(options.events)} events over {count_text(KEYS)} keys")
                filled = fill(broker, broker.new_topic("events"), events=options.events, keys=KEYS)
            for peer in peers:
                rows.append(measure(peer, broker, filled, Path(folder) / peer.name, options))
    emit(report(rows, options), as_json=options.json)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


# --- measuring


def measure(
    peer: Peer, broker: BenchmarkBroker, filled: Filled | None, work: Path, options: argparse.Namespace
) -> dict:
    """One peer, as a row of the result; a peer that fails is a row too. Without `filled` no speed is measured."""
    row = {"peer": peer.name, "label": peer.label, "family": peer.family, "error": None}
    row |= {"events_per_s": None, "p50_ms": None, "p99_ms": None}
    try:
        if filled is not None:
            row |= measure_speed(peer, broker, filled, work / "speed", options)
            say(f"{peer.name}: {rate_text(row['events_per_s'])} events/s")
        if "latency" in options.what and peer.latency is not None:
            row |= measure_latency(peer, broker, work / "latency", options)
            say(f"{peer.name}: p50 {row['p50_ms']:.0f} ms, p99 {row['p99_ms']:.0f} ms")
    except ChildFailed as failed:
        say(str(failed))
        row["error"] = str(failed)
    return row


def measure_speed(peer: Peer, broker: BenchmarkBroker, filled: Filled, work: Path, options: argparse.Namespace) -> dict:
    label = f"{peer.name}, full speed"
    topic = broker.new_topic(f"answers-{peer.name}")
    say(f"{label}: starting")
    visible = Visible(broker, topic, lambda seen: say(f"{label}: {seen:,} of {filled.events:,} answers"))
    arguments = [*common(peer, broker, filled.topic, topic), *peer.speed, "--until", "caught_up"]
    arguments += ["--per-epoch", str(options.per_epoch)] if peer.epochs else []
    job = Background(peer, arguments, work, label)
    visible.start()
    began = time.time()
    job.start()
    try:
        whole = wait_until_read(visible, job, filled.events * STARTED_SHARE, options.limit_s, label)
    finally:
        job.finish()
        steps = visible.finish()
    if job.error is not None:
        raise job.error
    if job.is_alive():
        raise ChildFailed(f"{label}: it does not stop")
    check(peer, filled, count_answers(broker, topic), whole=whole)
    started = next(number for number, (_, seen) in enumerate(steps) if seen >= filled.events * STARTED_SHARE)
    (from_s, before), (to_s, after) = steps[started], steps[-1]
    if after == before or (whole and after - before < filled.events * LEAST_SHARE):
        raise ChildFailed(f"{label}: most answers came at once, so there is nothing to measure: more events are needed")
    return {
        **job.found,
        "startup_s": steps[0][0] - began,
        "whole": whole,
        "steady_rows": after - before,
        "steady_s": to_s - from_s,
        "events_per_s": (after - before) / (to_s - from_s),
    }


def wait_until_read(visible: Visible, job: Background, started: float, limit_s: float, label: str) -> bool:
    """Whether the peer came to its end by itself; one that is slow has been measured long enough after `limit_s`."""
    until = None
    while job.is_alive():
        job.join(0.2)
        now = time.monotonic()
        if until is None and visible.seen >= started:
            until = now + limit_s
        if until is not None and now > until:
            say(f"{label}: {limit_s:g} s are enough")
            return False
    return True


def check(peer: Peer, filled: Filled, answers: Answers, *, whole: bool) -> None:
    """The counts of each key have to be 1, 2, 3 and so on; where all events were read, all of them are there."""
    wanted = (filled.events, filled.checksum) if whole else (answers.rows, answers.counted_once)
    if (answers.rows, answers.checksum) != wanted:
        raise ChildFailed(
            f"{peer.name} is wrong: {wanted[0]:,} answers with the checksum {wanted[1]:,} were expected, "
            f"{answers.rows:,} with {answers.checksum:,} are there"
        )


def measure_latency(peer: Peer, broker: BenchmarkBroker, work: Path, options: argparse.Namespace) -> dict:
    label = f"{peer.name}, {options.rate:,.0f} events/s"
    events, answers = broker.new_topic("trickle"), broker.new_topic(f"trickle-{peer.name}")
    say(f"{label}: starting")
    arguments = [*common(peer, broker, events, answers), *(peer.latency or ()), "--until", "stopped"]
    job = Background(peer, arguments, work, label)
    trickle, ages = Trickle(broker, events, rate=options.rate, keys=KEYS), Ages(broker, answers)
    for thread in (job, trickle, ages):
        thread.start()
    try:
        wait_until(lambda: bool(ages.seen), job, _START_S, f"{label}: no answer came")
        say(f"{label}: the first answer is there")
        trickle.go()
        job.sleep(options.warm_s)
        began = time.time()
        job.sleep(options.seconds)
    finally:
        trickle.finish()
        ages.finish()
        job.finish()
    taken = [age for at, age in ages.seen if at >= began]
    if len(taken) < options.rate * options.seconds * 0.5:
        raise ChildFailed(f"{label}: it falls behind, {len(taken):,} answers in {options.seconds:g} s")
    return {"p50_ms": quantile(taken, 0.5), "p99_ms": quantile(taken, 0.99), "answers": len(taken)}


class Background(threading.Thread):
    """A peer that runs until it is told to stop."""

    def __init__(self, peer: Peer, arguments: list[str], work: Path, label: str) -> None:
        super().__init__(daemon=True)
        self._peer, self._arguments, self._work, self._label = peer, arguments, work, label
        self.error: BaseException | None = None
        self.found: dict = {}
        """What the peer said at its end."""

    def run(self) -> None:
        try:
            self.found = run_child(
                self._peer.program, self._arguments, work=self._work, label=self._label, python=python_for(self._peer)
            )
        except BaseException as error:
            self.error = error

    def sleep(self, seconds: float) -> None:
        self.join(seconds)
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.is_alive():
            raise ChildFailed(f"{self._label}: it ended by itself")

    def finish(self) -> None:
        # The folder is the child's to make; one that ended before it did is not waited for.
        while self.is_alive() and not self._work.exists():
            self.join(0.1)
        if self.is_alive():
            (self._work / "stop").touch()
        self.join(_STOP_S)


def wait_until(done, job: Background, timeout_s: float, what: str) -> None:
    ends = time.monotonic() + timeout_s
    while not done():
        job.sleep(0.1)
        if time.monotonic() > ends:
            raise ChildFailed(what)


def common(peer: Peer, broker: BenchmarkBroker, source: str, sink: str) -> list[str]:
    arguments = ["--brokers", broker.bootstrap, "--source", source, "--sink", sink]
    return [*arguments, "--jars", ",".join(jars(peer.artifacts))] if peer.artifacts else arguments


def python_for(peer: Peer) -> Path | None:
    return None if peer.environment is None else python_of(peer.environment)


# --- telling


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    ratios = derive_ratios(rows)
    tables = [figures_table(rows)]
    if ratios.keys() & BARS.keys():
        tables.append(bars_table(ratios, BARS, "Headrace ÷ peer, events/s"))
    told = notes(rows, options)
    if "latency_vs_flink" in ratios:
        told.append(
            f"latency_vs_flink is {ratios['latency_vs_flink']:.2f}: Headrace's p50 over PyFlink's best; below 1, "
            "Headrace is sooner."
        )
    return {"benchmark": "end_to_end", "rows": rows, "ratios": ratios, "tables": tables, "notes": told}


def derive_ratios(rows: list[dict]) -> dict[str, float]:
    """Headrace's speed over that of each engine's best mode, and its median latency over that of Flink's best."""
    ratios = {}
    ours = best(rows, "headrace", "events_per_s", max)
    for family in ("pyflink", "spark"):
        theirs = best(rows, family, "events_per_s", max)
        if ours and theirs:
            ratios[f"vs_{family}"] = round(ours / theirs, 2)
    latency, flink = best(rows, "headrace", "p50_ms", min), best(rows, "pyflink", "p50_ms", min)
    if latency and flink:
        ratios["latency_vs_flink"] = round(latency / flink, 2)
    return ratios


def best(rows: list[dict], family: str, what: str, of) -> float | None:
    """The figure of an engine's best mode; unknown when one of its modes failed, for that might have been the best."""
    modes = [row for row in rows if row["family"] == family]
    if any(row["error"] for row in modes):
        return None
    return of((row[what] for row in modes if row[what] is not None), default=None)


def figures_table(rows: list[dict]) -> dict:
    ours = best(rows, "headrace", "events_per_s", max)
    lines = []
    for row in rows:
        rate = row["events_per_s"]
        other = ours and rate and row["family"] != "headrace"
        lines.append(
            [
                row["label"] + (" (failed)" if row["error"] else ""),
                "–" if row.get("startup_s") is None else f"{row['startup_s']:.1f}",
                rate_text(rate),
                ratio_text(ours / rate if other else None),
                *("–" if row[name] is None else f"{row[name]:,.0f}" for name in ("p50_ms", "p99_ms")),
            ]
        )
    columns = ["", "start-up, s", "events/s", "Headrace is", "latency p50, ms", "p99, ms"]
    return table("Kafka to Kafka", columns, lines)


def notes(rows: list[dict], options: argparse.Namespace) -> list[str]:
    versions = sorted({row["version"] for row in rows if row.get("version")})
    return [
        f"{options.events:,} events over {KEYS:,} keys in a topic of two partitions, {options.per_epoch:,} per epoch "
        f"where an engine has epochs; 2 cores, with the broker on them; {', '.join(versions)}.",
        "Speed: from the moment when a fifth of the answers could be read with read_committed until all could, or for "
        f"{options.limit_s:g} s. Start-up: from the launch to the first of them.",
        f"Latency: from writing an event to reading its answer with read_committed, {options.rate:,.0f} events/s for "
        f"{options.seconds:g} s, after {options.warm_s:g} s at the same pace. Headrace: epochs of 50 ms at least, less "
        "than one takes. PyFlink: a checkpoint every 200 ms (2 s at full speed), thread mode. Structured "
        "Streaming: batch after batch; its sink knows no transactions.",
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help="peers: " + ", ".join(p.name for p in PEERS))
    parser.add_argument("--what", choices=["speed", "latency"], nargs="+", default=("speed", "latency"))
    parser.add_argument("--quick", action="store_true", help="300k events and short runs: rough figures, soon")
    options = parser.parse_args()
    options.events, options.per_epoch = 2_000_000, 250_000
    options.rate, options.warm_s, options.seconds, options.limit_s = 1_000.0, 60.0, 30.0, 60.0
    if options.quick:
        options.events, options.per_epoch = 300_000, 60_000
        options.warm_s, options.seconds, options.limit_s = 15.0, 8.0, 30.0
    known = {name for peer in PEERS for name in (peer.name, peer.family)}
    if unknown := set(options.only or ()) - known:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return options


if __name__ == "__main__":
    main()
