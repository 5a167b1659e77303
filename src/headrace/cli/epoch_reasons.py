"""What stands below a list of epochs: what people did in them, what holds event time back, what outputs wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.model.sink_waits import SinkWait
    from headrace.model.watermark_reasons import Reason
    from headrace.state.manifest import EpochNote, Manifest


def print_notes(console: Console, manifests: Sequence[Manifest]) -> None:
    """Who changed the state by hand, and why."""
    from rich.text import Text

    from headrace.progress import time_text

    noted = [(manifest.epoch, note) for manifest in manifests for note in manifest.notes]
    if noted:
        console.print(Text("by hand", "bold"))
    for epoch, note in noted:
        when = time_text(note.at_us)
        why = f": {note.why}" if note.why else ""
        console.print(Text(f"  epoch {epoch}: {note.kind} by {note.by} at {when}{_of(note)}{why}", "yellow"))


def _of(note: EpochNote) -> str:
    from headrace.model.amounts import count_of

    unit = "row" if note.kind == "bootstrap" else "key"
    keys = ", ".join(f"{count_of(count, unit)} of {state}" for state, count in note.changed.items())
    return f", {keys}" if keys else ""


def notes_data(manifest: Manifest) -> dict[str, Any]:
    """The same for machines; nothing where nobody did."""
    from headrace.cli.show import json_time

    notes = [
        {"kind": note.kind, "by": note.by, "at": json_time(note.at_us), "why": note.why, "changed": note.changed}
        for note in manifest.notes
    ]
    return {"notes": notes} if notes else {}


def print_waits(console: Console, waits: tuple[SinkWait, ...]) -> None:
    """Why the newest epoch is not out: what the job waits for, or has waited for in vain."""
    from rich.text import Text

    from headrace.model.sink_waits import AT_START, tell_patience, tell_wait
    from headrace.progress import wall_clock_us

    clock_us = wall_clock_us()
    for wait in waits:
        what = "the job cannot start" if wait.epoch == AT_START else f"epoch {wait.epoch} is not out"
        told = tell_wait(wait, clock_us)
        if clock_us > wait.until_us:
            told = f"{wait.sink} could not be reached for {tell_patience(wait)}: {wait.reason}; start again when it can"
        console.print(Text(f"{what}: {told}", "yellow"))


def print_reasons(console: Console, manifest: Manifest, clock_us: int) -> None:
    """Why is there no output: what holds each step's watermark back."""
    from rich.text import Text

    from headrace.model.watermark_reasons import next_move, tell_reason
    from headrace.progress import reasons_of

    reasons = reasons_of(manifest)
    if reasons:
        console.print(Text("event time", "bold"))
    for reason in reasons:
        console.print(Text(f"  {tell_reason(reason, clock_us)}"))
        if move := next_move(reason, clock_us):
            console.print(Text(f"    {move}", "dim"))


def reason_data(reason: Reason, clock_us: int) -> dict[str, Any]:
    """What holds a watermark back, for machines."""
    from headrace.cli.show import json_time
    from headrace.model.watermark_reasons import next_move

    return {
        "steps": list(reason.steps),
        "kind": reason.kind,
        "watermark": json_time(reason.watermark),
        "source": reason.source or None,
        "split": reason.split or None,
        "at": json_time(reason.at_us),
        "since": json_time(reason.since_us),
        "silent": reason.silent,
        "waits_for": json_time(reason.waits_for_us),
        "waiting_rows": reason.waiting_rows,
        "aligned_waiting": list(reason.held),
        "next_move": next_move(reason, clock_us) or None,
    }
