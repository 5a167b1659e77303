"""Times as tests write them."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import ProgramError
from headrace.model.time import parse_time

_TIME_OF_DAY: Final = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d(?:\.\d{1,6})?))?")
_DAY_US: Final = 86_400_000_000


def read_time(text: str | int, start: str) -> int:
    """Microseconds since 1970, of a time of day (on the day of ``start``), a whole timestamp, or a number of them."""
    if isinstance(text, int):
        return text
    if "-" in text or "T" in text:
        return parse_time(text)
    found = _TIME_OF_DAY.fullmatch(text)
    if found is None:
        raise ProgramError(
            "invalid time of day",
            where="Harness",
            expected='"12:00", "12:00:30", "12:00:30.250", or a whole timestamp',
            found=repr(text),
        )
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    midnight = parse_time(start) // _DAY_US * _DAY_US
    return midnight + round((hours * 3600 + minutes * 60 + seconds) * 1_000_000)
