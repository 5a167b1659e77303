"""Whether a source has been read up to an offset: how a writer waits until its own event can be read.

Offsets are in the words of the source, as Spark keeps them: JSON, in which every number counts something that has been
read (``{"topic": {"0": 123}}`` of Kafka, ``{"rows": 7}`` of a generator). An offset is reached when every number of it
is; names that it does not mention do not matter.
"""

from __future__ import annotations

import json
from typing import Any


def reaches(read: str, wanted: Any) -> bool:
    """Whether what has been read of a source covers an offset: a number, or an object of numbers.

    >>> reaches('{"topic": {"0": 12, "1": 7}}', {"topic": {"1": 7}})
    True
    >>> reaches('{"rows": 7}', 8)
    False
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
    if isinstance(wanted, int) and isinstance(read, dict):
        # A source that counts one thing only: its number may stand alone.
        return len(read) == 1 and _covers(next(iter(read.values())), wanted)
    if isinstance(wanted, int) and isinstance(read, int):
        return read >= wanted
    return bool(read == wanted)
