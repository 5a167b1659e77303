"""Changes of values in words and colours: what was, and what is instead. For histories, differences and replays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from rich.text import Text

from headrace.cli.show import value_text
from headrace.model.keys import key_text
from headrace.read.changes import ABSENT, PartChange, parts_changed

SHOWN_PARTS: Final = 12
"""So many parts of one value are shown; --json has all."""
_CHARS: Final = 120


def change_text(kind: str, before: Any, after: Any) -> Text:
    """What changed, a line for each part. Both are as `Reader.shown_whole` gives them."""
    parts = iter(parts_changed(kind, before, after))
    lines = [_part_text(part) for part in islice(parts, SHOWN_PARTS)]
    if more := sum(1 for _ in parts):
        lines.append(Text(f"… {more} more", "dim"))
    return Text("\n").join(lines)


def _part_text(part: PartChange) -> Text:
    name, before, after = part
    label = "" if name is None else f"{name if isinstance(name, str) else key_text(name)}: "
    if before is ABSENT:
        return Text(f"+ {label}{_short(after)}", "green")
    if after is ABSENT:
        return Text(f"− {label}{_short(before)}", "red")
    if name is not None and isinstance(before, dict) and isinstance(after, dict):
        inner = (f"{field} {_both(was, now)}" for field, was, now in parts_changed("value", before, after))
        return Text(f"~ {label}{', '.join(inner)}", "yellow")
    return Text(f"~ {label}{_both(before, after)}", "yellow")


def _both(before: Any, after: Any) -> str:
    return f"{_short(before)} → {_short(after)}"


def _short(value: Any) -> str:
    text = "–" if value is ABSENT else value_text(value)
    return text if len(text) <= _CHARS else text[: _CHARS - 1] + "…"


def parts_data(parts: Iterable[PartChange]) -> Iterator[dict[str, Any]]:
    """Changed parts for machines: what is not there is left out."""
    for name, before, after in parts:
        told = {"before": before, "after": after}
        named = {} if name is None else {"part": name}
        yield {**named, **{word: value for word, value in told.items() if value is not ABSENT}}
