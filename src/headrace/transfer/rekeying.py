"""Keys of a step as other keys: by a type, or by a function, each distinct key once.

Two keys that become one would hide each other's state, so every new key must come from one old key: what was seen is
remembered by hashes, sixteen bytes a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, ProgramError
from headrace.model.batch import UInt64s
from headrace.model.key_text import key_text, parse_key_text
from headrace.model.keys import decode_key, encode_key, hash_encoded
from headrace.model.time import Timestamp
from headrace.model.time_shape import TimeShape, key_type_with_times
from headrace.model.values import type_name

KeyFunction = Callable[[Any], Any]
_MERGE_AT: Final = 1 << 22


def by_type(annotation: Any, times: TimeShape | None) -> KeyFunction:
    """Keys as another type: as people write them, read as that type. ``times``: where the times of old keys are."""

    def convert(key: Any) -> Any:
        kind = key_type_with_times(type(key), times)
        return parse_key_text(key_text(key, kind if kind is Timestamp else None), annotation)

    return convert


class KeyMap:
    """The keys of one step, old to new."""

    def __init__(self, step: str, function: KeyFunction, expected: str) -> None:
        self._step = step
        self._function = function
        self._expected = expected
        self._pairs: list[tuple[UInt64s, UInt64s]] = []
        self._rows = 0

    def convert(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The new key of each row."""
        coded = keys.dictionary_encode()
        distinct = coded.dictionary
        made = pa.array([self._convert(each) for each in distinct.to_pylist()], pa.binary())
        self._note(hash_encoded(made), hash_encoded(distinct))
        return made.take(coded.indices)

    def _convert(self, encoded: bytes) -> bytes:
        key = decode_key(encoded)
        try:
            return encode_key(self._function(key))
        except Exception as error:
            reason = (
                (error.found or error.what) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
            )
            raise ProgramError(
                "a key cannot be made one of the new type",
                where=f"step {self._step}, key {key_text(key)}",
                expected=self._expected,
                found=reason,
                next_move="give a function that takes every key: --key STEP=FILE.py:FUNCTION",
            ) from error

    def _note(self, new: UInt64s, old: UInt64s) -> None:
        self._pairs.append((new, old))
        self._rows += len(new)
        if self._rows >= _MERGE_AT:
            self.check()

    def check(self) -> None:
        """Raises where two keys have become one."""
        if not self._pairs:
            return
        new, old = (np.concatenate(each) for each in zip(*self._pairs))
        order = np.lexsort((old, new))
        new, old = new[order], old[order]
        same = new[1:] == new[:-1]
        if bool(np.any(same & (old[1:] != old[:-1]))):
            raise ProgramError(
                "several keys would become one, and hide each other's state",
                where=f"step {self._step}",
                expected="a new key for each old one",
                found=f"at least {int(np.count_nonzero(same & (old[1:] != old[:-1]))):,} that would not be alone",
                next_move="give another function; or begin anew, and give the step its rows: headrace bootstrap --rows",
            )
        kept = np.append(True, ~same) if len(new) else np.zeros(0, bool)
        self._pairs = [(new[kept], old[kept])]
        self._rows = 0


def key_words(annotation: Any) -> str:
    """The new type, for people."""
    return f"a key of type {type_name(annotation)}"
