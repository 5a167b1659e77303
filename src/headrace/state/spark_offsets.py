"""What a store has of Spark's log: reading its entries of offsets, and the names of the logs per source.

Entries are kept as Spark wrote them, in manifests and in ``inputs/``. Of an offset only that much is read here as is
needed to know which entries belong to it; what it means is the business of its source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from headrace.model.order import SOURCE
from headrace.state import layout

_HEADER_LINES = 2


def source_offsets(offsets: str) -> dict[str, str]:
    """Source → its offset, as an entry of Spark's log says."""
    pairs = (line.partition(":") for line in offsets.splitlines()[_HEADER_LINES:])
    return {name: value for name, _, value in pairs if name and name != SOURCE}


def log_offset(offset: str) -> int | None:
    """How far a source has come that Spark keeps a log of; None for all others."""
    try:
        found = json.loads(offset)
    except ValueError:
        return None
    reached = found.get("logOffset") if isinstance(found, dict) else None
    return reached if isinstance(reached, int) else None


def entry_number(path: str, prefix: str) -> int | None:
    """The number of an entry of a source's log, by its path; None for other paths."""
    number = path.removeprefix(prefix).removesuffix(".compact")
    return int(number) if path.startswith(prefix) and number.isdigit() else None


def entries_read(paths: Iterable[str], offsets: str) -> list[str]:
    """Of the kept entries of logs per source those that belong to offsets: nothing that was listed later.

    Where what was listed earlier is in a later, compacted entry only, all entries of the source belong: then it goes on
    with files that are listed already.
    """
    chosen = list(paths)
    for source, offset in source_offsets(offsets).items():
        reached = log_offset(offset)
        prefix = layout.input_entry(f"{source}/")
        entries = {path: number for path in chosen if (number := entry_number(path, prefix)) is not None}
        if reached is None or not entries:
            continue
        read = {path: number for path, number in entries.items() if number <= reached}
        whole = 0 in read.values() or any(path.endswith(".compact") for path in read)
        chosen = [path for path in chosen if path not in entries or path in read or not whole]
    return chosen
