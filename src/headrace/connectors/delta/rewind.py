"""Going back in a table of Delta: which version it had after an epoch, and whether all since is ours.

Every commit of ours says in its information whose epoch it is (`EPOCH_NOTE`). Going back restores the version before
the first epoch that is abandoned, in one commit, which also moves the number of the writer on: an abandoned driver
finds a number above its own. A version that was restored says so (`RESTORED_NOTE`), and what it took back is not
looked at again.

What others changed in the table since would be taken back, too. So a table in which others wrote meanwhile is refused;
what only rearranges files (OPTIMIZE, VACUUM) does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.fs

from headrace.connectors.delta.errors import DeltaTarget
from headrace.connectors.delta.transaction import EpochTransaction, split_number
from headrace.errors import SinkFailed

EPOCH_NOTE: Final = "headrace"
RESTORED_NOTE: Final = "headrace_restored"
SHUT_NOTE: Final = "headrace_shut"
"""Of a commit without rows, which only shuts an abandoned timeline out."""
_REARRANGING: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})

Entry = Mapping[str, Any]
"""What the history of a table tells of a version."""


class RestorePlan(NamedTuple):
    version: int | None
    """Which version to restore; None: the table has nothing of the abandoned epochs."""
    strangers: tuple[str, ...] = ()
    """Versions since then that are not ours, for people."""


def epoch_note(transaction: EpochTransaction) -> dict[str, str]:
    """What a commit says of itself."""
    return {EPOCH_NOTE: f"{transaction.writer} {transaction.number}"}


def shut_note(writer: str) -> dict[str, str]:
    return {SHUT_NOTE: writer}


def restored_note(version: int) -> dict[str, str]:
    return {RESTORED_NOTE: str(version)}


def derive_restore(
    history: Iterable[Entry], writer: str, timeline: int, epoch: int, following: int | None = None
) -> RestorePlan:
    """What to do, from the versions of a table, the newest first; as many are taken as have to be looked at.

    ``following``: the timeline that goes on. Those between are abandoned, too, and go before this one.
    """
    first: int | None = None
    between: list[tuple[int, str]] = []
    taken_back = -1
    """Versions above this one, and below the restore that was seen, are gone."""
    for entry in history:
        version = int(entry["version"])
        if SHUT_NOTE in entry or (taken_back >= 0 and version > taken_back):
            continue
        taken_back = -1
        if RESTORED_NOTE in entry:
            taken_back = int(entry[RESTORED_NOTE])
            continue
        mine = _number_of(entry, writer)
        if mine is None:
            if entry.get("operation") not in _REARRANGING:
                between.append((version, str(entry.get("operation"))))
        elif split_number(mine) <= (timeline, epoch):
            break
        elif split_number(mine)[0] == timeline:
            first = version
        elif following is None or split_number(mine)[0] >= following:
            between.append((version, f"epoch {split_number(mine)[1]} of timeline {split_number(mine)[0]}"))
    if first is None:
        return RestorePlan(None)
    strangers = tuple(f"version {number} ({operation})" for number, operation in between if number > first)
    return RestorePlan(first - 1, strangers)


def read_history(table: Any) -> Iterator[Entry]:
    """What the commits of a table say of themselves, the newest first, as far back as its log goes.

    Not by `DeltaTable.history`, which reads all of it at once. Both let no thread of Python run while they wait.
    """
    from deltalake.fs import DeltaStorageHandler

    files = pa.fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
    for version in range(table.version(), -1, -1):
        try:
            with files.open_input_file(f"_delta_log/{version:020}.json") as commit:
                lines = commit.read().splitlines()
        except FileNotFoundError:
            return
        told: dict[str, Any] = next((each["commitInfo"] for each in map(json.loads, lines) if "commitInfo" in each), {})
        yield {**told, "version": version}


def check_restore(plan: RestorePlan, target: DeltaTarget, output: str) -> None:
    """Raises SinkFailed where others wrote to the table since."""
    if plan.strangers:
        shown = ", ".join(plan.strangers[:5]) + (", …" if len(plan.strangers) > 5 else "")
        raise SinkFailed(
            "others changed the table since",
            where=target.where,
            expected=f"only commits of this output after version {plan.version}, which is to be restored",
            found=shown,
            next_move=f"hold the output until its old end is passed (--hold {output}), or write to another table",
        )


def _number_of(entry: Entry, writer: str) -> int | None:
    whose, _, number = str(entry.get(EPOCH_NOTE, "")).rpartition(" ")
    return int(number) if whose == writer and number.isdigit() else None
