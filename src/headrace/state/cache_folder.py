"""Where a machine keeps fetched files of remote stores, and how many.

``HEADRACE_CACHE_DIR`` names the folder (by default one in the folder for temporary files, readable by its user only)
and ``HEADRACE_CACHE_GB`` the limit per store. They come from the environment because every process that opens a store
needs them, the driver, the workers and readers, and each machine may have its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import xxhash

from headrace.errors import SettingsError, StoreError

FOLDER: Final = "HEADRACE_CACHE_DIR"
LIMIT: Final = "HEADRACE_CACHE_GB"
CACHE_BYTES: Final = 32 * 2**30
"""At most, and never more than half of the disk: folders for temporary files often are small, or in memory."""


def cache_folder(url: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for the files of one store, made where it is not there."""
    named = environment.get(FOLDER)
    base = Path(named) if named else Path(tempfile.gettempdir()) / f"headrace-cache-{os.getuid()}"
    folder = base / xxhash.xxh64_hexdigest(url.encode())
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        owner = base.stat().st_uid
    except OSError as error:
        raise _unusable(base, f"{type(error).__name__}: {error}") from error
    if not named and owner != os.getuid():
        # Whoever made it first could put files there for us to read.
        raise _unusable(base, f"a folder of user {owner}")
    return folder


def cache_limit_bytes(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """How large the cache of one store may grow."""
    text = environment.get(LIMIT)
    if not text:
        folder.mkdir(parents=True, exist_ok=True)
        return min(CACHE_BYTES, shutil.disk_usage(folder).total // 2)
    try:
        limit = int(float(text) * 1e9)
    except ValueError:
        limit = -1
    if limit < 0:
        raise SettingsError(
            "the size of the cache has the wrong form",
            where=f"the environment ({LIMIT})",
            expected="gigabytes, as 20 or 0.5",
            found=repr(text),
        )
    return limit


def _unusable(folder: Path, found: str) -> StoreError:
    return StoreError(
        "the cache for files of a remote store cannot be used",
        where=str(folder),
        expected="a folder of our own that can be written to",
        found=found,
        next_move=f"name another folder: {FOLDER}=…",
    )
