"""Which stored keys are meant: a key as people write it, told apart by the type that each step's keys have.

In a step whose keys are of another type the key cannot be. Where a manifest does not say the type, everything that is
written so is looked for. With ``parts``, keys of several parts are meant as well if the key is one of theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.edit.targets import typed_key
from headrace.errors import ProgramError
from headrace.model.job import DeclaredState
from headrace.model.keys import encode_key, hash_key, possible_keys
from headrace.model.type_json import key_annotation
from headrace.state.manifest import Manifest

_LENGTH: Final = struct.Struct(">I")
_TUPLE: Final = b"("


class KeyMatch(NamedTuple):
    """The stored keys of one step that are meant."""

    keys: tuple[bytes, ...]
    parts: tuple[bytes, ...] = ()
    """Stored parts of keys: whatever has one of them is meant."""

    @property
    def needles(self) -> tuple[bytes, ...]:
        """Bytes that stand wherever such a key does."""
        return (*self.keys, *self.parts)

    def rows_of(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which rows of a table's batch have such a key."""
        mask: npt.NDArray[np.bool_] = np.zeros(batch.num_rows, bool)
        stored = batch.column("key")
        hashes = batch.column("hash").to_numpy()
        for key in self.keys:
            same = np.flatnonzero(hashes == np.uint64(hash_key(key)))
            mask[same] = [each == key for each in stored.take(pa.array(same)).to_pylist()]
        for part in self.parts:
            needle = _LENGTH.pack(len(part)) + part
            # Few keys have these bytes in them; of those each is taken apart.
            for row in np.flatnonzero(pc.match_substring(stored, needle).to_numpy(zero_copy_only=False)).tolist():
                mask[row] = mask[row] or part in _parts_of(stored[row].as_py())
        return mask


class WantedKey(NamedTuple):
    """The key of somebody, as people write it."""

    text: str
    parts: bool = False

    def match(self, manifest: Manifest, step: str) -> KeyMatch | None:
        """What is meant in a step; None: its keys are of another type."""
        types = {
            msgspec.json.encode((each.key_type, each.key_times)): _key_annotations(each)
            for each in manifest.states.get(step, {}).values()
            if each.key_type is not None and each.kind != "broadcast"
        }
        whole: list[bytes] = []
        inside: list[bytes] = []
        for annotation, places in types.values() or [(None, (None,))]:
            whole += _encodings(self.text, annotation)
            inside += [part for place in places for part in _encodings(self.text, place)]
        match = KeyMatch(tuple(dict.fromkeys(whole)), tuple(dict.fromkeys(inside)) if self.parts else ())
        return match if match.keys or match.parts else None


def _key_annotations(declared: DeclaredState) -> tuple[Any, Sequence[Any]]:
    """The annotation of keys, and those of their parts."""
    annotation = key_annotation(declared.key_type, declared.key_times)
    if annotation is None:
        return None, (None,)
    shape = declared.key_type
    return annotation, annotation.__args__ if shape is not None and (shape.places or shape.fields) else ()


@lru_cache(256)
def _encodings(text: str, annotation: Any) -> tuple[bytes, ...]:
    """The stored forms of a key that is written so."""
    if annotation is None:
        return tuple(map(encode_key, possible_keys(text)))
    try:
        return (typed_key(text, annotation),)
    except ProgramError:
        return ()


def _parts_of(key: bytes) -> list[bytes]:
    """The stored parts of a key; none where it is of one part."""
    if key[:1] != _TUPLE:
        return []
    parts, at = [], 1
    while at < len(key):
        (length,) = _LENGTH.unpack_from(key, at)
        parts.append(key[at + _LENGTH.size : at + _LENGTH.size + length])
        at += _LENGTH.size + length
    return parts
