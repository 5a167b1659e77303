"""Whether a source has been read up to an offset: how a writer waits until its own event can be read.

Offsets are in the words of the source, as Spark keeps them: JSON, in which every number counts something that has been
read (``{"topic": {"0": 123}}`` of Kafka, ``{"rows": 7}`` of a generator), and ids of entries in Redis streams come one
after the other (``{"stream": {"id": "1700000000000-5", …}}``). An offset is reached when every number and id of it is;
names that it does not mention do not matter. Any other text has no order: it is reached when it is the same.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from headrace.model.watermarks import WAITED

_ENTRY_ID: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
"""Of an entry in a Redis stream: milliseconds, and a number among the entries of that millisecond."""
_ID: Final = "id"
"""Under this name the position in a stream has the id of the last entry that was read."""


def reaches(read: str, wanted: Any) -> bool:
    """Whether what has been read of a source covers an offset: a number, the id of an entry, or an object of them.

    >>> reaches('{"topic": {"0": 12, "1": 7}}', {"topic": {"1": 7}})
    True
    >>> reaches('{"rows": 7}', 8)
    False
    >>> reaches('{"events": {"id": "1700000000000-10", "n": 12}}', {"events": "1700000000000-9"})
    True
    """
    try:
        return _covers(json.loads(read), wanted) if read else False
    except ValueError:
        return False


def _covers(read: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(read, dict) and all(
            name in read and _covers(read[name], each) for name, each in wanted.items()
        )
    if isinstance(wanted, str) and isinstance(read, dict) and _ID in read:
        # The id is what XADD answered: whoever wrote an entry knows nothing else of its position.
        return _covers(read[_ID], wanted)
    if isinstance(wanted, int | str) and isinstance(read, dict):
        # A source that counts one thing only: its number, or id, may stand alone. How often it waited is not read.
        parts = [each for name, each in read.items() if name != WAITED]
        return len(parts) == 1 and _covers(parts[0], wanted)
    if isinstance(wanted, int) and isinstance(read, int):
        return read >= wanted
    if isinstance(wanted, str) and isinstance(read, str):
        return read == wanted or _is_behind(wanted, read)
    return bool(read == wanted)


def _is_behind(one: str, other: str) -> bool:
    """Whether both are ids of entries, and the first comes before the second. As text "9-0" would follow "10-0"."""
    first, second = _ENTRY_ID.fullmatch(one), _ENTRY_ID.fullmatch(other)
    if first is None or second is None:
        return False
    return (int(first[1]), int(first[2])) < (int(second[1]), int(second[2]))
