"""An epoch as Delta counts transactions: who writes, and a number that only goes up.

Delta keeps, for each writer, the number of its last transaction. Every way in which we write to Delta names an epoch by
these two, so that a table may change from one to the other: an epoch whose number the table has, or a greater one, was
written before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.connectors.sink_contract import Forget, Release

_EPOCHS_OF_A_TIMELINE: Final = 1 << 40
"""Delta's numbers have 63 bits. With an epoch every millisecond this is 35 years of one timeline."""


class EpochTransaction(NamedTuple):
    writer: str
    """The job and the output; with another store or another output it is another writer."""
    number: int


def writer_of(ctx: Release | Forget) -> str:
    """Who writes: an output of a job."""
    return writer_name(ctx.job, ctx.output)


def writer_name(job: str, output: str) -> str:
    return f"headrace-{job}-{output}"


def transaction_of(release: Release) -> EpochTransaction:
    """What a release is to Delta."""
    return EpochTransaction(writer_of(release), int(release.timeline) * _EPOCHS_OF_A_TIMELINE + release.epoch)


def beginning_of(timeline: str) -> int:
    """The number right before all of a timeline's."""
    return int(timeline) * _EPOCHS_OF_A_TIMELINE - 1


def split_number(number: int) -> tuple[int, int]:
    """Timeline and epoch.

    >>> split_number(3 * 2**40 + 41)
    (3, 41)
    """
    return divmod(number, _EPOCHS_OF_A_TIMELINE)
