"""An epoch as Delta counts transactions: who writes, and a number that only goes up.

Delta keeps, for each writer, the number of its last transaction. Every way in which we write to Delta names an epoch by
these two, so that a table may change from one to the other: an epoch whose number the table has, or a greater one, was
written before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.connectors.sink_contract import Release

_EPOCHS_OF_A_TIMELINE: Final = 1 << 40
"""Delta's numbers have 63 bits. With an epoch every millisecond this is 35 years of one timeline."""


class EpochTransaction(NamedTuple):
    writer: str
    """The job and the output; with another store or another output it is another writer."""
    number: int


def transaction_of(release: Release) -> EpochTransaction:
    """What a release is to Delta."""
    return EpochTransaction(
        f"headrace-{release.job}-{release.output}", int(release.timeline) * _EPOCHS_OF_A_TIMELINE + release.epoch
    )


def split_number(number: int) -> tuple[int, int]:
    """Timeline and epoch.

    >>> split_number(3 * 2**40 + 41)
    (3, 41)
    """
    return divmod(number, _EPOCHS_OF_A_TIMELINE)
