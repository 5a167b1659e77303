"""Every path of a store, spelled once.

A path is text with forward slashes, relative to the root of the store; it never starts with a slash and never holds
``..``. Names that people choose (steps, outputs, savepoints) are percent-encoded into one segment.

Invariants:
- numbers that order files (epochs) have twelve digits, so that a sorted listing is in order;
- a file of a run or of staged rows carries a uid made by :func:`new_uid`: attempts never write the same name, and the
  fence of the driver that started the attempt can be read off it;
- ``parse_…`` is the inverse of the function that spells the path and answers ``None`` for any other name.

What this module deliberately does not do: touch a file.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import xxhash

from headrace.errors import StoreError

STORE_RECORD: Final = "store.json"
"""Written once when the store is made: its id, format version and number of key groups."""

LOCK: Final = "lock"
"""Held by the running driver where the file system has locks; advice for other drivers, never the exclusion itself."""

TICK: Final = "tick.json"
"""Event times that filters hid from the last epoch of a run, for the next run."""

WAITING: Final = "waiting.json"
"""Which aligned sources wait in the next epoch, for those that plan what it reads."""

SPARK: Final = "spark"
"""Spark's own checkpoint folders, one per run of its query, each made from the last manifest. In a remote store there
are none: they lie on the driver's machine, in the store's ``scratch()``."""

INPUTS: Final = "inputs"
"""Durable copies of Spark's logs per source (which files were read), from which its folders are made."""

KEPT: Final = "kept"
"""What sources keep for themselves, a folder each: the copy of a table that a job reads."""

RELEASED: Final = "released.json"
"""The newest epoch whose outputs are out; kept up to date where Spark's folders lie elsewhere and cannot tell."""

COPYING: Final = "copying.json"
"""Of which savepoint a copy is being made here; gone when it is whole."""

MAKING: Final = "making.json"
"""What a store is being made of here, out of files or of another store; gone when it is whole."""

UNRELEASED: Final = "unreleased.json"
"""Which sinks the driver waits for, while it does; where it died waiting, until the next one has released all."""

RESTATED: Final = "restated.json"
"""The rows that bring outputs back to an earlier epoch, while a rewind is under way."""

HEARTBEATS: Final = "heartbeats"
"""Signs of life of drivers, one file per fence."""

MANIFESTS: Final = "manifests"
FENCES: Final = "fences"
RUNS: Final = "runs"
STAGED: Final = "staged"
SAVEPOINTS: Final = "savepoints"
SWEEPS: Final = "sweeps"
"""What each driver may delete, written down before it does."""

COMMANDS: Final = "commands"
"""What other processes ask of a driver, and its answers, in a folder per fence."""

REFILLS: Final = "refills"
"""What was written into new targets of outputs by hand, a record per target."""

TEMPORARY: Final = "tmp"
"""Half-written files of a local store; nothing in here is ever named by anything."""

PROBES: Final = "probes"
"""Files that opening a store writes and deletes to try out create-if-absent."""

_SEGMENT_MAX_CHARS: Final = 160
_UID = re.compile(r"^(\d+)x([0-9a-f]+)$")


class ManifestName(NamedTuple):
    timeline: int
    epoch: int


class RunName(NamedTuple):
    step: str
    epoch: int
    shard: int
    uid: str


class StagedName(NamedTuple):
    epoch: int
    output: str
    shard: int
    uid: str
    extension: str


def segment(name: str) -> str:
    """A name that people chose as one path segment; names too long for a file system end in their hash instead."""
    if not name:
        raise ValueError("a name that becomes part of a path cannot be empty")
    text = quote(name, safe="")
    if text.startswith("."):
        # Hidden files, "." and ".." mean something to file systems.
        text = "%2E" + text[1:]
    if len(text) > _SEGMENT_MAX_CHARS:
        return f"{text[:_SEGMENT_MAX_CHARS]}~{xxhash.xxh64_hexdigest(name.encode())}"
    return text


def new_uid(fence: int) -> str:
    """A unique id for the files of one attempt, which also says under which fence they were written."""
    return f"{fence}x{os.urandom(8).hex()}"


def uid_fence(uid: str) -> int | None:
    """The fence inside a uid, or ``None`` when the uid was not made by :func:`new_uid`."""
    found = _UID.match(uid)
    return int(found.group(1)) if found else None


def manifests(timeline: int) -> str:
    """The folder of one timeline's manifests."""
    return f"{MANIFESTS}/{timeline}"


def manifest(timeline: int, epoch: int) -> str:
    return f"{manifests(timeline)}/{_epoch(epoch)}.json"


def parse_manifest(path: str) -> ManifestName | None:
    found = re.match(rf"^{MANIFESTS}/(\d+)/(\d{{12}})\.json$", path)
    return ManifestName(int(found.group(1)), int(found.group(2))) if found else None


def epoch_of_manifest(path: str) -> int:
    """The epoch of a path that must be a manifest's."""
    name = parse_manifest(path)
    if name is None:
        raise StoreError(
            "a file in the folder of manifests is no manifest",
            where=path,
            expected=f"{MANIFESTS}/<timeline>/<epoch in twelve digits>.json",
            next_move="move the file out of the store",
        )
    return name.epoch


def kept_by_source(source: str) -> str:
    """The folder of what one source keeps."""
    return f"{KEPT}/{segment(source)}"


def fence(number: int) -> str:
    return f"{FENCES}/{number}.json"


def parse_fence(path: str) -> int | None:
    found = re.match(rf"^{FENCES}/(\d+)\.json$", path)
    return int(found.group(1)) if found else None


def heartbeat(fence: int) -> str:
    """The file that the driver with this fence refreshes as long as it lives."""
    return f"{HEARTBEATS}/{fence}.json"


def parse_heartbeat(path: str) -> int | None:
    found = re.match(rf"^{HEARTBEATS}/(\d+)\.json$", path)
    return int(found.group(1)) if found else None


_BROADCAST = "!broadcast"


def broadcast(step: str) -> str:
    """The name under which a step's broadcast states are listed: they have runs of their own, over all key groups."""
    return f"{step}{_BROADCAST}"


def is_broadcast(name: str) -> bool:
    return name.endswith(_BROADCAST)


def step_of(name: str) -> str:
    """The step whose runs are listed under this name."""
    return name.removesuffix(_BROADCAST)


def runs(step: str) -> str:
    """The folder of one step's runs."""
    return f"{RUNS}/{segment(step)}"


def run(step: str, epoch: int, shard: int, uid: str) -> str:
    return f"{runs(step)}/{_epoch(epoch)}-{shard}-{_plain(uid)}.run"


def parse_run(path: str) -> RunName | None:
    found = re.match(rf"^{RUNS}/([^/]+)/(\d{{12}})-(\d+)-([^/\-]+)\.run$", path)
    if not found:
        return None
    return RunName(unquote(found.group(1)), int(found.group(2)), int(found.group(3)), found.group(4))


def staged_folder(epoch: int) -> str:
    """The folder of all rows that wait for one epoch to be published."""
    return f"{STAGED}/{_epoch(epoch)}"


def staged(epoch: int, output: str, shard: int, uid: str, extension: str) -> str:
    return f"{staged_folder(epoch)}/{segment(output)}-{shard}-{_plain(uid)}.{extension}"


def parse_staged(path: str) -> StagedName | None:
    found = re.match(rf"^{STAGED}/(\d{{12}})/([^/]+)-(\d+)-([^/\-.]+)\.([^/]+)$", path)
    if not found:
        return None
    epoch, output, shard, uid, extension = found.groups()
    return StagedName(int(epoch), unquote(output), int(shard), uid, extension)


def savepoint(name: str) -> str:
    return f"{SAVEPOINTS}/{segment(name)}.json"


def refill(output: str, mark: str) -> str:
    """How far one target of an output is filled. ``mark``: tells its targets apart."""
    return f"{REFILLS}/{segment(output)}-{mark}.json"


def sweep(fence: int) -> str:
    """What the driver with this fence may delete."""
    return f"{SWEEPS}/{fence}.json"


def parse_sweep(path: str) -> int | None:
    found = re.match(rf"^{SWEEPS}/(\d+)\.json$", path)
    return int(found.group(1)) if found else None


def commands(fence: int) -> str:
    """The folder of what the driver with this fence is asked."""
    return f"{COMMANDS}/{fence}"


def command(fence: int, number: int) -> str:
    return f"{commands(fence)}/{number}.json"


def answer(fence: int, number: int) -> str:
    """What became of a command."""
    return f"{commands(fence)}/{number}-answer.json"


def parse_command(path: str) -> int | None:
    """The number of a command among those of its driver."""
    found = re.match(rf"^{COMMANDS}/\d+/(\d+)\.json$", path)
    return int(found.group(1)) if found else None


def parse_command_fence(path: str) -> int | None:
    """The driver that a command is for, also by the path of its answer."""
    found = re.match(rf"^{COMMANDS}/(\d+)/\d+(-answer)?\.json$", path)
    return int(found.group(1)) if found else None


def probe(uid: str) -> str:
    return f"{PROBES}/{_plain(uid)}"


def _epoch(epoch: int) -> str:
    if not 0 <= epoch < 10**12:
        raise ValueError(f"an epoch has at most twelve digits and is not negative: {epoch}")
    return f"{epoch:012d}"


def _plain(uid: str) -> str:
    if not uid.isalnum():
        raise ValueError(f"a uid holds letters and digits only: {uid!r}")
    return uid


def spark(run: str) -> str:
    """Spark's own checkpoint folder of one run of its query."""
    return f"{SPARK}/{_plain(run)}"


def spark_metadata(run: str) -> str:
    """The file that gives Spark's query its id."""
    return f"{spark(run)}/metadata"


def spark_offset(run: str, epoch: int) -> str:
    """The offsets that Spark fixed for an epoch."""
    return f"{spark(run)}/offsets/{epoch}"


def spark_commit(run: str, epoch: int) -> str:
    """Says that Spark was told of the end of an epoch."""
    return f"{spark(run)}/commits/{epoch}"


def spark_inputs(run: str) -> str:
    """The folder of Spark's logs per source: lists of files, initial offsets."""
    return f"{spark(run)}/sources"


def spark_run_of(path: str) -> str | None:
    """The run whose folder a path lies in."""
    found = re.match(rf"^{SPARK}/([^/]+)/", path)
    return found.group(1) if found else None


def input_entry(name: str) -> str:
    """Our durable copy of an entry of Spark's logs per source; ``name`` is its path below that folder."""
    return f"{INPUTS}/{name}"
