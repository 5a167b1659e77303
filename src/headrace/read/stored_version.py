"""In which version a value was written, where its state has another type by now: the answer is of that type.

Nothing is looked up for a state whose types were never changed, or are all of the newest type since a fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.job import DeclaredState, derive_version
from headrace.model.keys import hash_key
from headrace.model.type_shape import type_text
from headrace.state.entries import walk_versions
from headrace.state.format import ENTRIES, VALUE

if TYPE_CHECKING:
    from headrace.state.view import TableView


class StoredVersion(NamedTuple):
    """The version of its step in which a value was written, and what has become of its type since."""

    version: int
    """Of a value in several parts, as the entries of a map, that of the oldest."""
    type: str
    """The type that the state had then."""
    newest: int
    newest_type: str


class TypeVersions:
    """The types that a state had, for a reader of it."""

    def __init__(self, state: DeclaredState, newest: int) -> None:
        self._state = state
        self._newest = newest

    def of(self, views: Sequence[TableView], key: bytes, now_us: int | None) -> StoredVersion | None:
        """The version of a key's value, where it is of an older type; None where it is not, or there is none."""
        if not any(self._state.is_older(view.version) for view in views):
            return None
        version = _version_in(views, key, now_us)
        if version is None or not self._state.is_older(version):
            return None
        old, new = self._state.type_in(version), self._state.type
        assert old is not None and new is not None, "types that are not known are never older"
        return StoredVersion(version, type_text(old, fields=True), self._newest, type_text(new, fields=True))


def type_versions(states: Mapping[str, DeclaredState], table: str) -> TypeVersions | None:
    """None where a state has one type only."""
    state = states.get(table)
    return None if state is None or not state.formers else TypeVersions(state, derive_version(states))


def _version_in(views: Sequence[TableView], key: bytes, now_us: int | None) -> int | None:
    hash_ = hash_key(key)
    kind = views[0].table.kind
    if kind == VALUE:
        return next((view.version for view in views if view.find(hash_, key) is not None), None)
    if kind != ENTRIES:
        return None
    versions = walk_versions(views, hash_, key)
    return min((version for version, end in versions if end is None or now_us is None or end > now_us), default=None)
