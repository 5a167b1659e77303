"""What refills have written into new targets: a record per output and target, in the store.

A sink passes over what it has of an epoch or an older one, so a target is filled from one first epoch upwards. The
record says which that is, and how far it has come: a refill that died, or one up to a later epoch, goes on behind it.
It is written behind each epoch; where a refill dies in between, the sink is given that one epoch again.
"""

from __future__ import annotations

import msgspec
import xxhash

from headrace.errors import CorruptFile, MissingFile
from headrace.state import layout
from headrace.state.checked import decode_checked, encode_checked
from headrace.state.store import StoreFiles


class RefillNote(msgspec.Struct, frozen=True, kw_only=True):
    """How far one target is filled."""

    output: str
    target: str
    """Where it is, in the words of its sink."""
    first: int
    """The first epoch whose rows were asked for."""
    timeline: int = -1
    """Of the newest epoch that is there."""
    epoch: int = -1
    """That epoch; −1: none is there yet."""
    rows: int = 0
    """Of all epochs that are there."""

    @property
    def place(self) -> layout.ManifestName | None:
        return None if self.epoch < 0 else layout.ManifestName(self.timeline, self.epoch)


def target_mark(kind: str, target: str) -> str:
    """What tells the targets of one output apart, safe in file names."""
    return xxhash.xxh64_hexdigest(f"{kind}\0{target}".encode())


def read_refill(store: StoreFiles, output: str, mark: str) -> RefillNote | None:
    """What is known of a target; None: nothing was ever filled into it."""
    path = layout.refill(output, mark)
    try:
        return decode_checked(store.read(path), RefillNote)
    except MissingFile:
        return None
    except msgspec.DecodeError as error:
        raise CorruptFile(
            "the record of a refill cannot be read",
            where=f"{store.url}/{path}",
            found=str(error),
            next_move="delete it, and fill another target",
        ) from error


def write_refill(store: StoreFiles, mark: str, note: RefillNote) -> None:
    store.write(layout.refill(note.output, mark), encode_checked(note))
