"""Peers over one input, one after the other, and the table of their speeds: shared by the benchmarks of event time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.children import ChildFailed, run_child
from benchmarks.lib.environments import Environment, python_of
from benchmarks.lib.figures import count_text, quantile, rate_text, ratio_text
from benchmarks.lib.progress import say
from benchmarks.lib.results import table


@dataclass(frozen=True)
class Peer:
    name: str
    label: str
    family: str
    """Peers of one family are modes of one engine; a ratio is against the best of them."""
    program: str
    environment: Environment | None = None
    """None: the environment of the benchmarks."""
    arguments: tuple[str, ...] = ()


def measure(peer: Peer, source: Path, keys: int, work: Path) -> dict:
    """One peer over one input, as a row of the result; a peer that fails is a row too."""
    label = f"{peer.name}, {count_text(keys)} keys"
    say(f"{label}: starting")
    row = {"peer": peer.name, "label": peer.label, "family": peer.family, "keys": keys, "error": None}
    python = None if peer.environment is None else python_of(peer.environment)
    try:
        found = run_child(
            peer.program, [*peer.arguments, "--input", str(source)], work=work, label=label, python=python
        )
    except ChildFailed as failed:
        say(str(failed))
        return {**row, "events_per_s": None, "error": str(failed)}
    rate = found["steady_rows"] / found["steady_s"]
    say(f"{label}: {rate_text(rate)} events/s")
    return {**row, "events_per_s": rate, **found}


def wrong(row: dict, why: str) -> dict:
    """The row, failed if its results are wrong."""
    if not why:
        return row
    say(f"{row['peer']} is wrong: {why}")
    return {**row, "events_per_s": None, "error": why}


def best(rows: list[dict], family: str, keys: int) -> float | None:
    """The rate of an engine's best mode; unknown when one of its modes failed, for that might have been the best."""
    modes = [row for row in rows if (row["family"], row["keys"]) == (family, keys)]
    if any(row["error"] for row in modes):
        return None
    return max((row["events_per_s"] for row in modes), default=None)


def speed_table(rows: list[dict], title: str) -> dict:
    ours = next((row["events_per_s"] for row in rows if row["family"] == "headrace"), None)
    lines = []
    for row in rows:
        rate = row["events_per_s"]
        if rate is None:
            lines.append([row["label"], "failed", "–", "–", "–"])
            continue
        epochs = row.get("steady_epoch_s") or []
        lines.append(
            [
                row["label"],
                f"{row['startup_s']:.1f}",
                f"{quantile(epochs, 0.5):.2f}" if epochs else "–",
                rate_text(rate),
                ratio_text(ours / rate if ours and row["family"] != "headrace" else None),
            ]
        )
    return table(title, ["", "start-up, s", "epoch p50, s", "events/s", "Headrace is"], lines)
