"""The page that readers see, made from results alone: the same results give the same page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lib.results import markdown

_HEAD = """# Benchmarks

Measured on 2 cores by `make bench`, which writes this page. Peers run in the same run, on the same rows, each in a
process of its own and one after the other; compare ratios rather than absolute numbers. Start-up and steady state are
shown apart.
"""

_SECTIONS = {
    "exchange": (
        "From a source to the shard",
        "Rows on their way from a source to the Python task that owns their key, and nothing else: as frames, and as "
        "the rows of a plain Spark plan that does the same.",
    ),
    "keyed_process": (
        "Count and sum per key",
        "A Python process function keeps a count and a sum per key and emits a row per event. Every peer proves by a "
        "checksum over its results that each row was handled exactly once.",
    ),
    "windows": (
        "Windows",
        "Count, sum and maximum per key in tumbling windows of 10 seconds of event time, as declared aggregates: no "
        "Python function runs per row.",
    ),
    "sessions": (
        "Sessions and different values",
        "Declared aggregates that are more than a number per key and window: sessions, which grow and merge, and sets.",
    ),
    "joins": (
        "Interval join",
        "Two streams joined by key where the right row comes within 10 seconds behind the left one.",
    ),
    "patterns": (
        "Patterns",
        "A sequence within a time, one or more with skip past the last row, and absence: per key, by event time.",
    ),
    "nexmark": (
        "Nexmark",
        "An auction's people, auctions and bids, and 23 questions about them in SQL: the same texts for both engines.",
    ),
    "epoch_floor": (
        "The floor of an epoch",
        "How long a whole epoch takes, from one published manifest to the next, when there is hardly anything to do.",
    ),
    "epoch_policy": (
        "How often: adaptive epochs",
        "A load that changes a hundredfold, under a policy for epochs and under fixed intervals.",
    ),
    "state_growth": (
        "As state grows",
        "The same job over more and more keys: speed, memory and the time to start again. Below it, the state part "
        "alone beside two embedded stores.",
    ),
    "savepoints": (
        "Savepoints",
        "A job that counts per key is saved while it runs, and started from what was saved with another number of "
        "shards.",
    ),
    "transfer": (
        "State from and to files",
        "A state by text keys out of a store, into a new one, and from store to store.",
    ),
    "serving": (
        "Serving state",
        "The state of a job over Redis' protocol, by one Python process, beside Redis itself with the same keys and "
        "values: the same requests to both, sent by redis-benchmark.",
    ),
    "snapshot_sql": (
        "SQL over state",
        "Questions about a job's state over Postgres' protocol, by one Python process, beside Postgres itself with the "
        "same rows.",
    ),
    "impressions": (
        "Counts that are read every second",
        "Counts per key in windows of 10 seconds that an application reads while they are counted: from the state "
        "itself, or from a Redis that the job flushes into every second.",
    ),
    "end_to_end": (
        "From Kafka to Kafka",
        "Count and sum per key in Python, JSON in, JSON out, as a reader with `read_committed` sees it. Headrace "
        "and PyFlink write them exactly once; Spark's own Kafka sink cannot.",
    ),
}


def write_page(page: Path, results: list[dict[str, Any]]) -> None:
    page.write_text("\n".join([_HEAD, *(_section(result) for result in results)]))


def _section(result: dict[str, Any]) -> str:
    name = result["benchmark"]
    title, text = _SECTIONS[name]
    command = f"python benchmarks/{name}.py" + (" --quick" if result.get("quick") else "")
    rough = "These figures are rough: the run was a quick one.\n\n" if result.get("quick") else ""
    return f"## {title}\n\n{text}\n\n```bash\n{command}\n```\n\n{rough}{markdown(result)}\n"
