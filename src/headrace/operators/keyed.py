"""What all keyed steps share: rows put in key order, late rows parted, keys made ready in the state.

A batch is handled in key order, stable, so that rows of one key keep their order: what is kept for a key is fetched and
bound once, not once per row. Keys come in the order in which the epoch first met them. A row is late if its time lies
at or behind the watermark as the epoch began; late rows are counted and handled like any other, unless somebody reads
``late``: then they go there instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import FunctionFailed, StoreError
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.key_text import key_phrase
from headrace.model.keys import decode_key, encode_key
from headrace.model.record import Failed
from headrace.model.rows import codec_of
from headrace.operators.contract import ERRORS, LATE, StatefulOperator, TaskInfo
from headrace.operators.failures import NO_KEY, READ_ERRORS, failed_row, function_failed
from headrace.state.shard import distinct_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.state.shard import ShardState

_TEXT: Final = ord("s")
"""Tag of text among key bytes."""
MAX_PIECE_ROWS: Final = 131_072
"""Larger batches are handled in pieces, so that the state can be relieved in between …"""
_MIN_PIECE_ROWS: Final = 1_024
_FIRST_PIECE_ROWS: Final = 16_384
"""… and smaller ones too, until it is known how much state a row brings into memory."""


class KeyedBatch(NamedTuple):
    """Rows in key order."""

    rows: Rows
    slots: Int64s
    """The slot of each row; never falls."""

    def starts(self) -> Int64s:
        """Where the rows of each key begin."""
        return starts_of(self.slots)

    def newest(self) -> Int64s:
        """The position of the newest row of each key."""
        ends = np.append(self.starts()[1:], len(self.slots)) - 1
        if self.rows.times is None:
            return ends.astype(np.int64)
        # By slot, then time, stable: the last row of each key is its newest.
        newest: Int64s = np.lexsort((self.rows.times, self.slots))[ends]
        return newest


class KeyedOperator(StatefulOperator):
    """Base of the steps that keep state by key."""

    late_tag = LATE
    """Outlet of late rows."""
    entries_per_row = 1
    """How many entries of the state a row may touch: where they are many, fewer rows are handled at once."""

    def __init__(self, step: str, key_type: Any = None) -> None:
        super().__init__(step)
        self.key_type = key_type
        self._piece_rows = _FIRST_PIECE_ROWS
        self._failed: list[Failed] = []
        self._failed_times: list[int] = []

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self._failed, self._failed_times = [], []

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        count = len(rows)
        self.report.rows_in += count
        if not count:
            return
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        self.take(port, *self._part_late(rows, keys))

    def take(self, port: int, rows: Rows, keys: Keys) -> None:
        """Takes the rows that are to be handled, piece by piece; a step may keep them back, and do so in `finish`."""
        start = 0
        while start < len(rows):
            most = max(self._piece_rows // self.entries_per_row, 1)
            if start == 0 and len(rows) <= most:
                self._handle_piece(port, rows, keys)
                return
            piece = np.arange(start, self.piece_end(rows, keys, min(start + most, len(rows))))
            start += len(piece)
            self._handle_piece(port, rows.take(piece), keys.take(piece))

    def piece_end(self, rows: Rows, keys: Keys, end: int) -> int:
        """Where a piece ends that may end here: here, or behind further rows that are handled with it."""
        return end

    @abstractmethod
    def handle(self, port: int, batch: KeyedBatch) -> None:
        """Takes rows in key order, their keys made ready in the state."""

    def _handle_piece(self, port: int, rows: Rows, keys: Keys) -> None:
        self.handle(port, self._in_key_order(rows, keys))
        self.give_failed()
        self.state.relieve(len(rows) * self.entries_per_row)
        self._piece_rows = self.next_piece_rows()

    def next_piece_rows(self) -> int:
        """How many rows are to be handled before the state is weighed again."""
        return min(max(self.state.room_rows, _MIN_PIECE_ROWS), MAX_PIECE_ROWS)

    def _in_key_order(self, rows: Rows, keys: Keys) -> KeyedBatch:
        encoded = keys.encoded
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        distinct = distinct_keys(keys.hashes, encoded)
        slots = self.state.enter(distinct.hashes, distinct.keys, by_slot=True)[distinct.codes]
        if bool((slots[1:] < slots[:-1]).any()):
            order = sort_slots(slots)
            rows, slots = rows.take(order), slots[order]
        return KeyedBatch(rows, slots)

    def _part_late(self, rows: Rows, keys: Keys) -> tuple[Rows, Keys]:
        if rows.times is None or self.watermark <= MIN_TIME:
            return rows, keys
        late = rows.times <= self.watermark
        count = int(np.count_nonzero(late))
        if not count:
            return rows, keys
        self.report.late += count
        outlet = self.outlets.get(self.late_tag)
        if outlet is None:
            return rows, keys
        outlet(rows.take(np.flatnonzero(late)))
        in_time = np.flatnonzero(~late)
        return rows.take(in_time), keys.take(in_time)

    # --- rows whose function raised

    @property
    def keeps_errors(self) -> bool:
        """Whether somebody reads the errors of this step; otherwise a failing function stops the task."""
        return ERRORS in self.outlets

    def key_of(self, slot: int) -> Any:
        return decode_keys([self.state.name(slot)], self.key_type)[0]

    def place(self, error: FunctionFailed, slot: int | None) -> FunctionFailed:
        """An aggregate cannot be computed: says of which step, and of which key where that is known."""
        error.where = f"step {self.step}"
        error.found = "" if slot is None else key_phrase(self.key_of(slot))
        return error

    def failure(self, error: Exception, function: Any, row: Any, slot: int, way_out: str = READ_ERRORS) -> Exception:
        """The error that ends the task where a function of the user's raised."""
        if isinstance(error, StoreError):
            return error
        key = self.key_of(slot)
        return function_failed(error, step=self.step, function=function, row=row, key=key, way_out=way_out)

    def keep_failed(
        self, error: Exception, function: Any, row: Any, at_us: int | None, *, key: Any = NO_KEY, timer: str = ""
    ) -> None:
        """Remembers a row, or a timer, whose function raised, until `give_failed`."""
        self._failed.append(failed_row(error, step=self.step, function=function, row=row, key=key, timer=timer))
        self._failed_times.append(MIN_TIME if at_us is None else at_us)

    def give_failed(self) -> None:
        """Sends failed rows to where they are read."""
        if self._failed:
            rows, times = self._failed, self._failed_times
            self._failed, self._failed_times = [], []
            self.outlets[ERRORS](Rows.of_objects(codec_of(Failed), rows, times))


def stamps_of(times: Sequence[int | None]) -> Int64s | None:
    """Times of rows; None where no row has one. A row without among others belongs to the beginning of time."""
    if all(time is None for time in times):
        return None
    return np.array([MIN_TIME if time is None else time for time in times], dtype=np.int64)


def starts_of(slots: Int64s) -> Int64s:
    """Where the rows of each key begin among some that are in key order; there is one row at least."""
    return np.append(0, np.flatnonzero(slots[1:] != slots[:-1]) + 1)


def sort_slots(slots: Int64s) -> Int64s:
    """The stable order of slots. Numbers of 16 bits are sorted by counting, several times faster than by comparing."""
    low = np.argsort((slots & 0xFFFF).astype(np.uint16), kind="stable")
    high = slots >> 16
    if not high.any():
        return low
    if int(high.max()) > 0xFFFF:
        return np.argsort(slots, kind="stable")
    return low[np.argsort(high.astype(np.uint16)[low], kind="stable")]


def key_decoder(key_type: Any) -> Callable[[bytes], Any]:
    """From key bytes to the key; text, the usual key, without looking at the tag."""
    if key_type is str:
        return lambda encoded: encoded[1:].decode() if encoded[:1] == b"s" else decode_key(encoded, str)
    kind = None if key_type is Any else key_type
    return lambda encoded: decode_key(encoded, kind)


def decode_keys(names: Sequence[bytes], key_type: Any) -> list[Any]:
    if key_type is str:
        return [name[1:].decode() if name[0] == _TEXT else decode_key(name, str) for name in names]
    return list(map(key_decoder(key_type), names))


def key_parts(keys: list[Any], columns: int) -> list[list[Any]]:
    """The columns of keys that have so many; the key of a whole stream has none."""
    if columns == 1:
        return [keys]
    return [list(part) for part in zip(*keys)] if columns else []


def check_same_key(columns: Sequence[str], value: Any, event: Any) -> None:
    """Refuses a row that a reduce made of rows of another key. Not-a-number is a key too, and not equal to itself."""
    for name in columns:
        after, before = getattr(value, name), getattr(event, name)
        if encode_key(after) != encode_key(before):
            raise ValueError(f"reduce must leave the key as it is, and {name} became {after!r}")
