"""What jobs still need of a log, so that nothing is removed that they could go back to.

A job writes a file of its own, with the oldest position that any of its savepoints has, when they come and go. The
server looks at all of them before it removes events. The file of a job that is gone for good is deleted by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.durable import write_whole
from headrace.ingest import layout

_log = logging.getLogger("headrace.ingest")


class LogNeed(msgspec.Struct, frozen=True):
    """Of one source of one store."""

    log: str
    """Id of the log that it is about."""
    stream: str
    partitions: dict[int, int]
    """Partition → the number of the oldest event that may be read again."""


def write_need(log: Path, holder: str, need: LogNeed) -> None:
    """Replaces what one job needs. ``holder``: a name that no other source of any store has."""
    path = layout.need_path(log, holder)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, [msgspec.json.encode(need)], durable=False, unique=True)


def drop_need(log: Path, holder: str) -> None:
    """Lets go of what one job needed."""
    layout.need_path(log, holder).unlink(missing_ok=True)


def read_needs(log: Path, log_id: str) -> Mapping[tuple[str, int], int]:
    """Stream and partition → the number of the oldest event that anybody may read again."""
    oldest: dict[tuple[str, int], int] = {}
    for path in layout.list_needs(log):
        try:
            need = msgspec.json.decode(path.read_bytes(), type=LogNeed)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("what a job needs of this log cannot be read: %s: %s", path, error)
            continue
        if need.log == log_id:
            for partition, number in need.partitions.items():
                place = (need.stream, partition)
                oldest[place] = min(number, oldest.get(place, number))
    return oldest
