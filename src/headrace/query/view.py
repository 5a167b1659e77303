"""One state of one published epoch, as a read-only mapping from key to value.

Invariants
- A view never changes: it is of one epoch, and all answers are of that epoch. Its files are mapped when it is made, so
  a sweep that deletes them later does not disturb it.
- Expired entries are hidden, judged by the clock of the epoch and not by the reader's.
- Walking goes in the order of the keys' hashes, which is no order for people.

What a view deliberately does not do: follow the job. Ask the `Store` for a new view to see a newer epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from headrace.errors import ProgramError
from headrace.model.keys import decode_key, encode_key, hash_key, key_text
from headrace.query.shape import Kind, derive_shape
from headrace.query.tables import to_frame

if TYPE_CHECKING:
    import polars as pl

    from headrace.model.window import Window
    from headrace.query.ranges import Moment
    from headrace.state.lookup import Layers

V = TypeVar("V", default=Any)

WHOLE_MAP_ENTRIES = 1024
"""Maps up to this size are fetched together; larger ones are walked."""


class StateView(Mapping[Any, V], Generic[V]):
    """The state of every key, as it was when the epoch was published.

    Made by ``hr.Store(path).state(…)``. Keys are what the stream was keyed by: text, numbers, tuples. The length is
    counted by walking over all keys.

    >>> shops = hr.Store("./state").state("fraud.shops", dict[str, int])     # doctest: +SKIP
    >>> shops["card-7"]                                                      # doctest: +SKIP
    {'baker': 2}
    """

    def __init__(
        self,
        layers: Layers,
        table: str,
        *,
        address: str,
        epoch: int,
        now_us: int | None,
        value: Any = None,
        key: Any = None,
    ) -> None:
        """``now_us``: what expired at or before it is hidden; None hides nothing. ``value``, ``key``: annotations."""
        self.address = address
        """``step`` or ``step.state``."""
        self.epoch = epoch
        """The epoch this view is of."""
        self._layers = layers
        self._table = table
        self._now_us = now_us
        self._key_type = key
        self._value_type = value
        table_kind = layers.tables.get(table, "value")
        first = None if table_kind == "value" else self._first_sub()
        self._shape = derive_shape(table_kind, first, value, f"state {address}")

    def __repr__(self) -> str:
        return f"StateView({self.address!r}, {self.kind}, epoch {self.epoch})"

    @property
    def kind(self) -> Kind:
        """``value``, ``map``, ``list`` or ``timers``."""
        return self._shape.kind

    # --- by key

    def __getitem__(self, key: Any) -> V:
        found = self._find(encode_key(key))
        if found is None:
            raise KeyError(key)
        return found  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        return self._find(encode_key(key)) is not None

    def get_many(self, keys: Iterable[Any]) -> list[V | None]:
        """The values of several keys in the order asked, None where there is none; far cheaper than one by one."""
        wanted = [encode_key(key) for key in keys]
        distinct = list(dict.fromkeys(wanted))
        found = dict(zip(distinct, self._find_many(distinct)))
        return [found[key] for key in wanted]

    def windows(self, key: Any) -> dict[Window, V]:
        """Every window of a key that is kept, in the order of their ends, with its result. Of windowed states only."""
        raise self._no_windows()

    def between(self, key: Any, start: Moment | None = None, end: Moment | None = None) -> dict[Window, V]:
        """The windows of a key that lie between two times, in the order of their ends, kept and archived ones."""
        raise self._no_windows()

    def _no_windows(self) -> ProgramError:
        return ProgramError(
            "this state has no windows",
            where=f"state {self.address}",
            expected="a windowed state",
            found=f"a {self.kind} per key",
            next_move="ask for the key alone: view[key]",
        )

    def _find(self, key: bytes) -> Any:
        if self._shape.sub is None:
            value, expires = self._layers.get(self._table, hash_key(key), key)
            return None if value is None or self._is_over(expires) else self._shape.decode(value)
        rows = self._layers.entries(self._table, hash_key(key), key)
        live = [(sub, value) for sub, value, expires in rows if not self._is_over(expires)]
        return self._shape.join(live) if live else None

    def _find_many(self, keys: list[bytes]) -> list[Any]:
        if not keys:
            return []
        hashes = np.array([hash_key(key) for key in keys], np.uint64)
        encoded = pa.array(keys, pa.binary())
        if self._shape.sub is None:
            values, expires = self._layers.get_many(self._table, hashes, encoded)
            ends = [None] * len(keys) if expires is None else expires.to_pylist()
            pairs = zip(values.to_pylist(), ends)
            return [None if value is None or self._is_over(end) else self._shape.decode(value) for value, end in pairs]
        maps = self._layers.entries_many(self._table, hashes, encoded, WHOLE_MAP_ENTRIES)
        return [self._find(key) if found is None else self._join(found) for key, found in zip(keys, maps)]

    def _join(self, found: dict[bytes, tuple[bytes, int | None]]) -> Any:
        live = [(sub, value) for sub, (value, expires) in found.items() if not self._is_over(expires)]
        return self._shape.join(live) if live else None

    def _is_over(self, expires_us: int | None) -> bool:
        return expires_us is not None and self._now_us is not None and expires_us <= self._now_us

    # --- all of it

    def __iter__(self) -> Iterator[Any]:
        for encoded in self._encoded_keys():
            yield decode_key(encoded, self._key_type)

    def __len__(self) -> int:
        if self._shape.sub is None:
            return sum(batch.num_rows for batch in self._batches())
        return sum(1 for _ in self._encoded_keys())

    def scan(self, prefix: str = "") -> Iterator[tuple[Any, V]]:
        """(key, value) of every key whose text starts with the prefix; keys that are not text are compared as JSON."""
        for encoded, value in self._pairs(prefix):
            yield decode_key(encoded, self._key_type), value

    def to_polars(self) -> pl.DataFrame:
        """The whole state as a DataFrame.

        Columns: ``key`` and ``value``; of a map also ``entry``, with a row per entry; of a list also ``index``, with a
        row per element; of timers ``key`` and ``at``. A Record is a struct column (``unnest`` spreads it).
        """
        return to_frame(self.kind, self.scan(), self._value_type)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        return self._layers.scan(self._table, self._now_us)

    def _encoded_keys(self) -> Iterator[bytes]:
        last = None
        for batch in self._batches():
            for key in batch.column("key").to_pylist():
                if key != last:
                    yield key
                last = key

    def _pairs(self, prefix: str) -> Iterator[tuple[bytes, Any]]:
        if self._shape.sub is None:
            for batch in self._batches():
                for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist()):
                    if self._matches(key, prefix):
                        yield key, self._shape.decode(value)
            return
        for key, rows in groupby(self._entry_rows(), key=itemgetter(0)):
            if self._matches(key, prefix):
                yield key, self._shape.join((sub, value) for _, sub, value in rows)

    def _entry_rows(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        for batch in self._batches():
            columns = (batch.column(name).to_pylist() for name in ("key", "sub", "value"))
            yield from zip(*columns)

    def _matches(self, encoded: bytes, prefix: str) -> bool:
        return not prefix or key_text(decode_key(encoded, self._key_type), self._key_type).startswith(prefix)

    def _first_sub(self) -> bytes | None:
        for batch in self._layers.scan(self._table):
            sub: bytes = batch.column("sub")[0].as_py()
            return sub
        return None
