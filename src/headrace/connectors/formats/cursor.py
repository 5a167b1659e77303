"""Many messages read side by side: one place in each, moved on by whole columns.

A `Cursor` holds where each message is being read and where it ends. Every step reads the same thing of all of them and
gives it as an array, so a message costs a few array elements and no Python object. What does not fit marks its message
as bad, with a reason, and never the ones beside it: such a message is read on as zeros, and its row is left out at the
end (`Faults`). Bytes are never looked at behind the end of the block, whatever a message claims.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

TOO_SHORT: Final = "it ends too early"
_ZEROS: Final = 32
"""Zero bytes behind the last message, where bad ones are read on."""
_VARINT_BYTES: Final = 10


class Faults:
    """Which messages are bad, and why: the first reason of each."""

    def __init__(self, count: int) -> None:
        self.bad: Mask = np.zeros(count, np.bool_)
        self.reasons: dict[int, str] = {}
        self._stops: Ints | None = None

    def stops(self, data: Bytes) -> Ints:
        """Where numbers of seven bits a byte could end in the block."""
        if self._stops is None:
            self._stops = np.flatnonzero(data < 0x80)
        return self._stops

    def add(self, rows: Ints, reason: str) -> None:
        for row in rows.tolist():
            self.reasons.setdefault(row, reason)
        self.bad[rows] = True


class Cursor:
    """A place in each of some messages. `rows`: which message of the block each of them is."""

    def __init__(self, data: Bytes, at: Ints, ends: Ints, rows: Ints, faults: Faults) -> None:
        self.data, self.at, self.ends, self.rows, self.faults = data, at, ends, rows, faults
        self._lost: Mask | None = None
        """Those that are bad; None: none is."""

    @classmethod
    def over(cls, values: pa.Array, faults: Faults, skipped: int = 0) -> Cursor:
        """At the beginning of each value of a column of bytes without nulls, or `skipped` bytes behind it."""
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        content = values.buffers()[2]
        stop = int(offsets[-1]) if len(values) else 0
        held = np.frombuffer(content, np.uint8)[:stop] if content is not None else np.empty(0, np.uint8)
        data = np.concatenate([held, np.zeros(_ZEROS, np.uint8)])
        bounds = offsets.astype(np.int64)
        cursor = cls(data, bounds[:-1] + skipped, bounds[1:].copy(), np.arange(len(values)), faults)
        cursor._check()
        return cursor

    def __len__(self) -> int:
        return len(self.at)

    @property
    def lost(self) -> Mask:
        return np.zeros(len(self), np.bool_) if self._lost is None else self._lost

    def fail(self, wrong: Mask, reason: str) -> None:
        """Marks messages as bad; from here on they are read as zeros."""
        if not wrong.any():
            return
        self.faults.add(self.rows[wrong], reason)
        self._lost = self.lost | wrong
        self._park()

    def _park(self) -> None:
        if self._lost is not None:
            self.at[self._lost] = len(self.data) - _ZEROS
            self.ends[self._lost] = len(self.data)

    def _check(self) -> None:
        self._park()
        if len(self) and (self.at > self.ends).any():
            self.fail(self.at > self.ends, TOO_SHORT)

    def finish(self) -> None:
        """Every message has to end here."""
        left = self.ends - self.at
        self.fail((left != 0) & ~self.lost, "more bytes follow than its schema says")

    # -- parts of the messages --------------------------------------------------------------------------------------

    def subset(self, which: Ints) -> Cursor:
        """These messages alone, to be handed back by `rejoin`."""
        part = Cursor(self.data, self.at[which], self.ends[which], self.rows[which], self.faults)
        if self._lost is not None and self._lost[which].any():
            part._lost = self._lost[which]
        return part

    def rejoin(self, which: Ints, part: Cursor) -> None:
        """These messages have been read on elsewhere."""
        self.at[which] = part.at
        if part._lost is not None:
            lost = self.lost.copy()
            lost[which] |= part._lost
            self._lost = lost
            self._park()

    def window(self, sizes: Ints) -> Cursor:
        """The next so many bytes of each as messages of their own; this cursor goes on behind them."""
        starts = self.advance(sizes)
        ends = starts + np.where(self.lost, 0, sizes)
        part = Cursor(self.data, starts, ends, self.rows, self.faults)
        part._lost = self._lost
        return part

    def advance(self, sizes: Ints | int) -> Ints:
        """Goes on by so many bytes; where that began. A message that is too short for it is bad."""
        starts = self.at
        if not isinstance(sizes, int) and len(self) and int(sizes.min()) < 0:
            self.fail(sizes < 0, "a length in it is negative")
            starts, sizes = self.at, np.where(self.lost, 0, sizes)
        room = self.ends - starts
        if len(self) and (sizes > room).any():
            # Compared before it is added: a claimed length may be near the largest number.
            self.fail(sizes > room, TOO_SHORT)
            starts, sizes = self.at, np.where(self.lost, 0, sizes)
        self.at = starts + sizes
        self._check()
        return starts

    # -- numbers and bytes ------------------------------------------------------------------------------------------

    def varints(self) -> npt.NDArray[np.uint64]:
        """Numbers of seven bits a byte, the lowest first."""
        first = self.data[self.at]
        values = (first & 0x7F).astype(np.uint64)
        at = self.at + 1
        more = np.flatnonzero(first >= 0x80)
        for place in range(1, _VARINT_BYTES):
            if not len(more):
                break
            byte = self.data[np.minimum(at[more], len(self.data) - 1)]
            values[more] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
            at[more] += 1
            more = more[byte >= 0x80]
        self.at = at
        if len(more):
            self.fail(np.isin(np.arange(len(self)), more), "a number in it has no end")
        self._check()
        return values if self._lost is None else np.where(self._lost, np.uint64(0), values)

    def longs(self) -> Ints:
        """Signed numbers, zigzag."""
        return zigzag_decoded(self.varints())

    def fixed(self, size: int) -> Bytes:
        """The next `size` bytes of each message: a row per message."""
        starts = self.advance(size)
        at = np.minimum(starts[:, None] + np.arange(size), len(self.data) - 1)
        found: Bytes = self.data[at]
        if self._lost is not None:
            found[self._lost] = 0
        return found

    def numbers(self, counts: Ints, size: int) -> tuple[Cursor, Ints]:
        """The next so many numbers of each message as messages of their own, and which of these each belongs to.

        `size`: their bytes; 0: seven bits a byte. So a list costs no more for one message with many numbers.
        """
        counts = np.where(self.lost, 0, counts)
        if size:
            starts = self.advance(counts * size)
        else:
            stops = self.faults.stops(self.data)
            first = np.searchsorted(stops, self.at)
            last = first + counts - 1
            self.fail((counts > 0) & (last >= len(stops)), TOO_SHORT)
            behind = np.where(counts > 0, stops[np.minimum(last, len(stops) - 1)] + 1, self.at)
            starts = self.advance(np.where(self.lost, 0, behind - self.at))
        counts = np.where(self.lost, 0, counts)
        owners = np.repeat(np.arange(len(self)), counts)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        if size:
            at = starts[owners] + place * size
            ends = at + size
        else:
            number = first[owners] + place
            at = np.where(place == 0, starts[owners], stops[number - 1] + 1)
            ends = stops[number] + 1
        return Cursor(self.data, at, ends, self.rows[owners], self.faults), owners

    def hand_back(self, part: Cursor, owners: Ints) -> None:
        """Marks the messages in whose parts something was wrong; why is known already."""
        if part._lost is not None:
            wrong: Mask = np.zeros(len(self), np.bool_)
            wrong[owners[part._lost]] = True
            self._lost = self.lost | wrong
            self._park()

    def slices(self, sizes: Ints) -> pa.Array:
        """The next so many bytes of each message, as a column of bytes."""
        starts = self.advance(sizes)
        return cut_out(self.data, starts, np.where(self.lost, 0, sizes) if self._lost is not None else sizes)


def zigzag_decoded(values: npt.NDArray[np.uint64]) -> Ints:
    """0, −1, 1, −2, … out of 0, 1, 2, 3, …"""
    return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)


def cut_out(data: Bytes, starts: Ints, sizes: Ints) -> pa.Array:
    """Pieces of a block as a column of bytes."""
    count = len(starts)
    ends = starts + sizes
    if count and (starts[1:] >= ends[:-1]).all():
        # Pieces in their order, and the gaps between them, are a column already; Arrow leaves the gaps out.
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        whole = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
        return whole.take(pa.array(np.arange(0, 2 * count, 2)))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[at])]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def scattered(parts: list[tuple[Ints, pa.Array]], count: int, kind: pa.DataType) -> pa.Array:
    """A column of `count` values: of each part its values at its places, null elsewhere."""
    parts = [(places, values) for places, values in parts if len(places)]
    if not parts:
        return pa.nulls(count, kind)
    where = np.full(count, -1, np.int64)
    begin = 0
    for places, values in parts:
        where[places] = np.arange(begin, begin + len(values))
        begin += len(values)
    together = parts[0][1] if len(parts) == 1 else pa.concat_arrays([values for _, values in parts])
    return together.take(pa.array(where, mask=where < 0))
