"""Columns of values that can be changed in place: kept as bytes, handed out as copies.

A change that nobody set must not count, neither in rows that were given out before nor in what is undone; above all,
whether it does must not depend on where epochs end. So these columns hold bytes from the moment a value is put, what
is written at the flush is those bytes, and what a call did is undone by putting them back. The rest is as in
`headrace.state.overlay` and `headrace.state.cells`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.model.values import ValueCodec
from headrace.state.cells import ABSENT, EntriesColumn
from headrace.state.fitting import RAW, Copies
from headrace.state.overlay import KeyTable, ValueColumn
from headrace.state.subs import SubCodec
from headrace.state.ttl import Expiry


class CopiedValues(ValueColumn):
    """One value per key; ``values`` are bytes, and `get` gives a copy that is nobody else's."""

    __slots__ = ("copies",)

    def __init__(self, keys: KeyTable, table: str, codec: ValueCodec, expiry: Expiry | None) -> None:
        super().__init__(keys, table, RAW, expiry)
        self.copies = Copies(table, codec)

    def get(self, slot: int) -> Any:
        raw = super().get(slot)
        return None if raw is None else self.copies.decode(raw)

    def put(self, slot: int, value: Any) -> None:
        super().put(slot, None if value is None else self.copies.encode(value))


class CopiedEntries(EntriesColumn):
    """The entries of one state; who finds a value has it for himself."""

    __slots__ = ("_copies",)

    def __init__(
        self, keys: KeyTable, table: str, codec: ValueCodec, sub: SubCodec, expiry: Expiry | None, *, appends: bool
    ) -> None:
        super().__init__(keys, table, RAW, sub, expiry, appends=appends)
        self._copies = Copies(table, codec)

    def find(self, slot: int, name: Any) -> Any:
        raw = super().find(slot, name)
        return ABSENT if raw is ABSENT else self._copies.decode(raw)

    def entries(self, slot: int) -> Iterator[tuple[Any, Any]]:
        decode = self._copies.decode
        return ((name, decode(raw)) for name, raw in super().entries(slot))

    def put(self, slot: int, name: Any, value: Any, expires_us: int | None = None) -> None:
        super().put(slot, name, self._copies.encode(value), expires_us)
