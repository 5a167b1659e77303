"""A plan for people and for machines: every line, then what is refused and the ways out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from headrace.model.amounts import count_of, human_count, span_text
from headrace.upgrade.lines import Upgrade, UpgradeLine

_FATES: Final = ("renamed", "migrated", "new", "dropped", "gone", "refused")


def plan_text(upgrade: Upgrade) -> str:
    """All of it."""
    rows = [(line.part, line.name, line.fate, remarks(line)) for line in upgrade.lines]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    lines = [opening(upgrade)]
    lines += [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in rows
    ]
    for line in upgrade.refused:
        lines += ["", *objection_lines(line)]
    return "\n".join(lines)


def opening(upgrade: Upgrade) -> str:
    if upgrade.epoch is None:
        return "the store is new: everything begins empty"
    return f"the program goes on behind epoch {upgrade.epoch}: {summary(upgrade) or 'nothing has changed'}"


def summary(upgrade: Upgrade) -> str:
    """One line: what changes, counted; empty where nothing does."""
    counts = Counter((line.fate, line.part) for line in upgrade.changes if line.fate in _FATES)
    texts = [
        f"{count_of(count, part)} {fate}"
        for fate in _FATES
        for (each, part), count in sorted(counts.items())
        if each == fate
    ]
    if not texts:
        texts = [f"{line.name}: {line.notes[0]}" for line in upgrade.changes[:3]]
    return ", ".join(texts)


def remarks(line: UpgradeLine) -> str:
    """What is to be said of a line, in one."""
    texts = [f"was {line.was}"] if line.was else []
    texts += line.notes
    if line.rows is not None:
        texts.append(_amount(line, line.rows))
    if line.cost_s is not None:
        texts.append(f"about {span_text(line.cost_s)} of work" if line.cost_s >= 1 else "less than 1 s of work")
    if line.objection is not None:
        texts.append(line.objection.what)
    return "; ".join(texts)


def _amount(line: UpgradeLine, rows: int) -> str:
    noun = "key" if line.by_key else "stored row"
    amount = f"{human_count(rows)} {noun}s" if rows != 1 else f"1 {noun}"
    # A key that was changed since lies in several runs.
    at_most = "up to " if line.by_key and rows != 1 else ""
    return f"{at_most}{amount}{' of an older type' if line.fate == 'migrated' else ''}"


def objection_lines(line: UpgradeLine) -> Iterator[str]:
    """Why a line is refused: the parts of an error."""
    objection = line.objection
    if objection is None:
        return
    yield f"refused: {objection.what}"
    for label, part in (("expected", objection.expected), ("found", objection.found), ("next", objection.next_move)):
        yield f"  {label:<9} " + part.replace("\n", "\n" + " " * 12)


def plan_data(upgrade: Upgrade) -> dict[str, Any]:
    """All of it as plain data, for ``--json``."""
    return {
        "epoch": upgrade.epoch,
        "refused": len(upgrade.refused),
        "changes": len(upgrade.changes),
        "lines": [_line_data(line) for line in upgrade.lines],
    }


def _line_data(line: UpgradeLine) -> dict[str, Any]:
    data: dict[str, Any] = {"part": line.part, "name": line.name, "fate": line.fate}
    if line.was:
        data["was"] = line.was
    if line.notes:
        data["notes"] = list(line.notes)
    if line.rows is not None:
        data["rows"] = line.rows
    if line.cost_s is not None:
        data["cost_s"] = round(line.cost_s, 3)
    if line.objection is not None:
        objection = line.objection
        data["refusal"] = {
            "what": objection.what,
            "expected": objection.expected,
            "found": objection.found,
            "next": objection.next_move,
        }
    return data
