"""Whether the files that a job has read are still there, for a job that goes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.connectors.source_contract import SURE, InputFile, Passage, Replay
from headrace.model.amounts import count_of

_MS: int = 1_000_000
"""Nanoseconds."""


def find_files(passage: Passage) -> Replay:
    """Looks at every file that was read between two positions. One that was changed since may hold other rows now."""
    gone: list[str] = []
    changed: list[str] = []
    for file in passage.files:
        modified_ms = _modified_ms(file)
        if modified_ms is None:
            gone.append(file.url)
        elif file.modified_ms and modified_ms not in (0, file.modified_ms):
            changed.append(file.url)
    if gone:
        more = f" and {count_of(len(gone) - 1, 'other file')}" if len(gone) > 1 else ""
        return Replay("lost", f"{gone[0]}{more} cannot be found")
    return Replay("unknown", f"{changed[0]} was changed since it was read") if changed else SURE


def _modified_ms(file: InputFile) -> int | None:
    """When a file was last changed; None where it is not there, 0 where that is not told."""
    parts = urlsplit(file.url)
    if parts.scheme in ("", "file"):
        try:
            return Path(unquote(parts.path)).stat().st_mtime_ns // _MS
        except (FileNotFoundError, NotADirectoryError):
            return None
    import fsspec

    # Spark's names of object stores are those of Hadoop.
    url = file.url.replace(f"{parts.scheme}://", f"{parts.scheme.removesuffix('a')}://", 1)
    system, path = fsspec.core.url_to_fs(unquote(url), use_listings_cache=False)
    exists: Any = system.exists(path)
    return 0 if exists else None
