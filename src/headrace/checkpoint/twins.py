"""Two stores under one id: a folder that was copied by hand, and its original.

Sinks know a job by the id of its store. Of two that go on under one id, each would take the other's epochs for its own:
rows would be left out, or refused, without a word about why. A copy that `headrace savepoint --copy-to` made gets an id
of its own when a job starts in it; of a copy that a person made nothing says that it is one. So every fence says where
its store was. Where that is another place, and a store of this id still lies there, the two know of each other from
then on: whoever starts leaves a fence in the other one, which says where the job is, and nobody starts while a driver
lives in the other.

What this module deliberately does not do: find copies in which nobody ever started, or on machines out of reach.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headrace.errors import CorruptFile, HeadraceError, MissingFile
from headrace.state import layout
from headrace.state.record import StoreRecord, read_record
from headrace.state.store import StoreFiles, open_store

log = logging.getLogger("headrace.fence")

_PROBE: Final = b"the same folder under two names"


def find_twin(store: StoreFiles, url: str) -> StoreFiles | None:
    """The store of the same id at the place where this one was last driven, if there is another one.

    None also where that place is this very store under another name, or cannot be reached.
    """
    record = read_record(store)
    if not url or url == store.url or record is None or record.copied_from is not None:
        # A copy that says so gets an id of its own.
        return None
    try:
        twin = _open(url)
        return twin if twin is not None and _is_other(store, record, twin) else None
    except (HeadraceError, OSError, ImportError, ValueError) as error:
        log.info("could not look for another store of this id at %s: %s", url, error)
        return None


def find_original(store: StoreFiles, url: str) -> StoreFiles | None:
    """The store that a copy was made of, where it still lies at its place under the id that the copy has."""
    record = read_record(store)
    try:
        original = None if record is None else _open(url)
        return original if record is not None and original is not None and _is_other(store, record, original) else None
    except (HeadraceError, OSError, ImportError, ValueError) as error:
        log.info("could not look for the original of this copy at %s: %s", url, error)
        return None


def _open(url: str) -> StoreFiles | None:
    parts = urlsplit(url)
    if "://" in url and parts.scheme != "file":
        return open_store(url)
    # Opening a local store would make it.
    return open_store(url) if Path(unquote(parts.path) if parts.scheme else url).is_dir() else None


def _is_other(store: StoreFiles, record: StoreRecord, twin: StoreFiles) -> bool:
    try:
        found = read_record(twin)
    except CorruptFile:
        return False
    return found is not None and found.query == record.query and not _is_same_folder(store, twin)


def _is_same_folder(store: StoreFiles, other: StoreFiles) -> bool:
    """Whether what is written to the one appears in the other: a link, a mount, a server with two names."""
    path = layout.probe(os.urandom(8).hex())
    store.write(path, _PROBE)
    try:
        with contextlib.suppress(MissingFile):
            return other.read(path) == _PROBE
        return False
    finally:
        store.delete(path)
