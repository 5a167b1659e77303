"""What sweeps are about to delete, written down before they do: how a savepoint and a sweep never miss each other.

A sweep deletes the manifest of an epoch only if an earlier sweep has condemned it, in a durable record, and if no
savepoint pins it now. Whoever pins an epoch writes the savepoint first and looks here second. So either the record was
there before that look, and the epoch is refused; or the record came after the savepoint, and the sweep that would
delete the epoch, which reads savepoints later still, sees the pin.

Each driver writes a record of its own, under its fence: one that was paused in the middle of a sweep may go on when a
newer one drives. A record goes when all that it names is gone.
"""

from __future__ import annotations

import contextlib

import msgspec

from headrace.errors import CorruptFile, MissingFile
from headrace.state import layout
from headrace.state.store import StoreFiles

Epochs = frozenset[layout.ManifestName]


class _CondemnedFiles(msgspec.Struct):
    epochs: list[tuple[int, int]]
    """Timeline and epoch of each."""


def read_condemned(store: StoreFiles) -> dict[int, Epochs]:
    """Fence → the epochs that its driver may delete."""
    condemned: dict[int, Epochs] = {}
    for path in store.list(layout.SWEEPS):
        fence = layout.parse_sweep(path)
        if fence is None:
            continue
        # A newer driver may delete the record at any time.
        with contextlib.suppress(MissingFile):
            condemned[fence] = _read(store, path)
    return condemned


def write_condemned(store: StoreFiles, fence: int, epochs: Epochs) -> None:
    """Says, before anything is deleted, what a driver may delete from now on."""
    store.write(layout.sweep(fence), msgspec.json.encode(_CondemnedFiles(sorted(epochs))))


def drop_condemned(store: StoreFiles, fence: int) -> None:
    """Forgets the record of a driver that is gone, once all that it names is gone, too."""
    store.delete(layout.sweep(fence))


def _read(store: StoreFiles, path: str) -> Epochs:
    try:
        record = msgspec.json.decode(store.read(path), type=_CondemnedFiles)
    except msgspec.DecodeError as error:
        raise CorruptFile(
            "a record of what a sweep may delete cannot be read",
            where=f"{store.url}/{path}",
            found=str(error),
            next_move="stop the job and delete the file: the next sweep writes it anew",
        ) from error
    return frozenset(layout.ManifestName(*name) for name in record.epochs)
