"""Readers of tables with one value per key: as it is stored, or a result off the accumulators that are.

Single keys are found by `headrace.read.finding`, as fast as Python can; very many at once in bulk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.model.keys import hash_key
from headrace.read.columns import PIECE_ROWS, Piece, expiry_of, no_rows, piece_of
from headrace.read.finding import AdaptedFinder, Finder
from headrace.read.finishing import Finisher
from headrace.read.forms import JSON, PACKED, encode, json_of, unpack, unpack_all
from headrace.read.reader import Reader, ReaderOptions
from headrace.read.shape import value_decoder
from headrace.state import lookup

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.state.lookup import Layers

_FEW: Final = 1000
"""Up to this many keys are looked up one by one, at 2 to 3 µs each. A bulk lookup touches every batch of a large state,
which alone takes as long as a thousand of those."""
_AT_ONCE: Final = 2000
"""More are looked up in several goes, where it matters how much is held meanwhile."""


class ValueReader(Reader):
    """One value per key, as it is stored."""

    kind = "value"

    def __init__(self, layers: Layers, table: str, options: ReaderOptions) -> None:
        super().__init__(layers, table, options)
        self._decode = value_decoder(self.value_type, f"state {self.address}")
        self.expires = any(view.table.has_expires for view in self.views)
        self.stable = not self.expires

    @cached_property
    def finder(self) -> Finder:
        """Finds single keys. Made when it is first asked: it looks into every run."""
        if any(view.adapter is not None for view in self.views):
            return AdaptedFinder(self.views, self.layers, self.table)
        return Finder(self.views, self.layers.groups)

    def warm(self, rows: int) -> int:
        for run in self.finder.runs():
            rows -= run.rows
            if rows < 0:
                break
            run.warm()
        assert self.key_of is not None
        return rows

    @property
    def plain_json(self) -> bool:
        """Whether keys are text and values are given as they are stored, without times."""
        return self.stable and type(self) is ValueReader and self.by_text and self.value_times is None

    def raw(self, key: bytes) -> bytes | None:
        """The stored bytes of a key."""
        return self.finder.raw(key) if self.stable else self.finder.raw_at(key, self.now_us)

    def raws(self, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        """The stored bytes of several keys."""
        if len(keys) <= _FEW:
            return map(self.raw, keys)
        distinct = list(dict.fromkeys(keys))
        hashes = np.array([hash_key(key) for key in distinct], dtype=np.uint64)
        values, expires = lookup.find_values(self.views, hashes, pa.array(distinct, pa.binary()))
        ends = [None] * len(distinct) if expires is None else expires.to_pylist()
        raws = {
            key: None if raw is None or self.is_over(end) else raw
            for key, raw, end in zip(distinct, values.to_pylist(), ends)
        }
        return map(raws.__getitem__, keys)

    def decode(self, key: bytes, raw: bytes) -> Any:
        """The value of a key, from its stored bytes."""
        return unpack(raw) if self._decode is None else self.fit(key, lambda: self._decode(raw))  # type: ignore[misc]

    def encode(self, key: bytes, raw: bytes, form: str) -> bytes:
        """The same as it goes out."""
        if form == PACKED:
            return raw
        return json_of(raw) if self._times is None else encode(self.shown(unpack(raw), form), form)

    def value(self, key: bytes) -> Any:
        raw = self.finder.raw(key) if self.stable else self.finder.raw_at(key, self.now_us)
        return None if raw is None else self.decode(key, raw)

    def values(self, keys: Sequence[bytes]) -> list[Any]:
        return [None if raw is None else self.decode(key, raw) for key, raw in zip(keys, self.raws(keys))]

    def get(self, key: bytes, form: str = JSON) -> bytes | None:
        raw = self.finder.raw(key) if self.stable else self.finder.raw_at(key, self.now_us)
        return None if raw is None else self.encode(key, raw, form)

    def get_many(self, keys: Sequence[bytes], form: str = JSON) -> list[bytes | None]:
        return [None if raw is None else self.encode(key, raw, form) for key, raw in zip(keys, self.raws(keys))]

    def each_of(self, keys: Sequence[bytes], form: str = JSON) -> Iterator[bytes | None]:
        for at in range(0, len(keys), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            yield from super().each_of(part, form) if len(part) <= _FEW else self.get_many(part, form)

    def has(self, key: bytes) -> bool:
        return self.raw(key) is not None

    def expires_us(self, key: bytes) -> int | None:
        return self.finder.expires_us(key) if self.expires and not self.lasts else None

    def count(self) -> int:
        return sum(batch.num_rows for batch in self.layers.scan(self.table, self.now_us))

    def items(self, prefix: str = "") -> Iterator[tuple[bytes, Any]]:
        for batch in self.layers.scan(self.table, self.now_us):
            for key, raw in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist()):
                if self.matches(key, prefix):
                    yield key, self.decode(key, raw)

    def pieces(self, prefix: str = "", *, expires: bool = False) -> Iterator[Piece]:
        for batch in self.layers.scan(self.table, self.now_us):
            wanted = self._matching(batch, prefix)
            for start in range(0, wanted.num_rows, PIECE_ROWS):
                part = wanted.slice(start, PIECE_ROWS)
                values = self._decode_all(part.column("key"), part.column("value").to_pylist())
                piece = piece_of("value", [self.key_column(part.column("key")), values], self.value_type)
                yield piece | expiry_of(part) if expires and self.expires and not self.lasts else piece

    def _decode_all(self, keys: pa.BinaryArray, raws: list[bytes]) -> list[Any]:
        """The values of several keys, from their stored bytes."""
        if type(self) is ValueReader and self._decode is None:
            return unpack_all(raws)
        return [self.decode(key, raw) for key, raw in zip(keys.to_pylist(), raws)]


class AggregateReader(ValueReader):
    """Results per key of a step that aggregates.

    What is stored under a key are accumulators; how they become results stands in the manifest, so that nobody needs
    the program for it. An aggregate of the user's own cannot be finished here and is shown as it is stored. A store
    whose manifests say nothing of results (they are older) is read by `ValueReader` and shows accumulators.
    """

    def __init__(self, layers: Layers, table: str, options: ReaderOptions, declared: DeclaredState) -> None:
        super().__init__(layers, table, options._replace(value_type=None))
        self.value_type = options.value_type
        self._results = declared.results, declared.key
        self._finisher = Finisher(*self._results)

    def reads_like(self, other: Reader) -> bool:
        return isinstance(other, AggregateReader) and self._results == other._results

    @property
    def no_rows(self) -> Piece:
        return no_rows(dict.fromkeys(("key", *self._finisher.names)))

    def decode(self, key: bytes, raw: bytes) -> Any:
        stored = unpack(raw)
        if not isinstance(stored, dict):
            # Left by an earlier program, in which the step was another one.
            return stored
        row = self._finisher.finish(key, stored, self.key_annotation)
        if self.value_type is None or self.value_type is Any:
            return row
        return self.fit(key, lambda: msgspec.convert(row, self.value_type))

    def encode(self, key: bytes, raw: bytes, form: str) -> bytes:
        return encode(self.shown(self.decode(key, raw), form), form)
