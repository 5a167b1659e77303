"""What a shell offers at the Tab key: programs, stores, and the states and savepoints of a store.

It is asked while a person types, so it reads names only: folders, the head of a file, one manifest. A mistake in what
was typed so far offers nothing; the command itself says what is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from headrace.state import layout

_HEAD_BYTES: Final = 65_536


def complete_programs(incomplete: str) -> list[str]:
    """Python files that make an app, files of SQL, and folders on the way to one."""
    folder, start = _split(incomplete)
    offered = []
    for path in sorted(folder.glob(f"{start}*")):
        if path.is_dir() and not path.name.startswith((".", "_")):
            offered.append(f"{path}/")
        elif path.suffix == ".sql" or (path.suffix == ".py" and b"App(" in path.read_bytes()[:_HEAD_BYTES]):
            offered.append(str(path))
    return offered


def complete_stores(incomplete: str) -> list[str]:
    """Stores: those under ``.headrace`` where nothing is typed, else folders that are one or lead to one."""
    if not incomplete:
        return sorted(str(file.parent) for file in Path(".headrace").glob(f"*/{layout.STORE_RECORD}"))
    folder, start = _split(incomplete)
    folders = sorted(path for path in folder.glob(f"{start}*") if path.is_dir())
    return [str(path) if (path / layout.STORE_RECORD).is_file() else f"{path}/" for path in folders]


def complete_moments(incomplete: str) -> list[str]:
    """Stores, and behind an ``@`` the savepoints of the one before it."""
    url, at, start = incomplete.rpartition("@")
    if not at or "/" in start:
        return complete_stores(incomplete)
    return [f"{url}@{name}" for name in _savepoint_names(url) if name.startswith(start)]


def complete_savepoints(ctx: Any, incomplete: str) -> list[str]:
    """The savepoints of the store that was typed before."""
    return [name for name in _savepoint_names(ctx.params.get("store")) if name.startswith(incomplete)]


def _savepoint_names(store: Any) -> list[str]:
    from headrace.errors import HeadraceError
    from headrace.read.store import Store

    try:
        return [point.name for point in Store(store).savepoints()]
    except (HeadraceError, OSError, TypeError):
        return []


def complete_addresses(ctx: Any, incomplete: str) -> list[str]:
    """The states of the store that was typed before."""
    from headrace.errors import HeadraceError
    from headrace.read.store import Store

    try:
        addresses = [info.address for info in Store(ctx.params["store"]).states()]
    except (HeadraceError, OSError, KeyError, TypeError):
        return []
    return [address for address in addresses if address.startswith(incomplete)]


def _split(incomplete: str) -> tuple[Path, str]:
    """The folder that was typed, and the beginning of a name in it."""
    folder, slash, start = incomplete.rpartition("/")
    return Path(folder or slash or "."), start
