"""Durable files: the only module that calls fsync, rename and link.

Every room may import it. It knows nothing of stores, logs or formats.

Invariants
- A file that `write_whole` writes appears under its name whole or not at all, to readers and after a crash.
- When a function returns that says it makes something durable, that survives a crash of the machine: content by fsync
  of the file, a name by fsync of its folder.
- Of several `link` calls for one name exactly one succeeds.

What it deliberately does not do: choose names, catch errors of the disk, or retry. A full disk is an ``OSError`` here;
the caller knows what it means.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from typing_extensions import Buffer

sync_data: Final = getattr(os, "fdatasync", os.fsync)
"""Makes the content of an open file durable, and its length, but not its times."""

_REFUSED: Final = frozenset({errno.ENOSPC, errno.EACCES, errno.ENOENT, errno.EROFS, errno.EDQUOT})
"""Errors of a link that a copy would meet, too."""


def sync_file(file: int) -> None:
    """Makes an open file durable."""
    os.fsync(file)


def sync_path(path: str | Path) -> None:
    """Makes a closed file durable; of a folder, the names in it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Makes a folder and those above it. Durable: each is an entry of the one above, which is synced too."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, durable=durable)
    try:
        folder.mkdir()
    except FileExistsError:
        # A folder may be gone again by now, where a sweep removes empty ones: who writes into it tries again.
        if not folder.is_dir() and os.path.lexists(folder):
            raise
    if durable:
        sync_path(folder.parent)


def write_whole(
    target: Path,
    pieces: Iterable[Buffer],
    *,
    durable: bool = True,
    unique: bool = False,
    settle: bool = True,
    mode: int = 0o666,
) -> None:
    """Writes or replaces a file, atomically; the folder has to be there.

    ``unique``: several processes may write the same file at once, so each needs a temporary name of its own. Otherwise
    the next writer overwrites what a killed one left behind. ``durable=False``: for what can be made again.
    ``settle=False``: only the content is durable at once; the name is with the next sync of the folder.
    """
    mark = f".{os.urandom(6).hex()}" if unique else ""
    temporary = target.with_name(f".{target.name}{mark}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable and settle:
        sync_path(target.parent)


def move(made: str | Path, target: str | Path) -> None:
    """Gives a file another name, which it takes from whoever has it. Durable with the next sync of the folder."""
    os.replace(made, target)


def link(made: str | Path, target: str | Path) -> None:
    """Gives a file a second name, if that is free: otherwise ``FileExistsError``. Durable as with `move`."""
    os.link(made, target)


def try_link(made: str | Path, target: str | Path) -> bool:
    """The same; False where links cannot be made: another device, a file system without them, or a limit."""
    try:
        link(made, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in _REFUSED:
            raise
        return False
    return True


def take_name(made: Path, target: Path) -> bool:
    """Gives a file a name that nobody has; False where somebody has it. Durable as with `move`."""
    try:
        if try_link(made, target):
            return True
    except FileExistsError:
        return False
    # Without links, looking first is the best that can be done.
    if target.exists():
        return False
    move(made, target)
    return True
