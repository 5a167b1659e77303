"""Nexmark's people, auctions and bids, seeded: of fifty events one is a person, three are auctions and the rest bids.

The distributions are those of the benchmark: half of the bids go to a hot auction and three quarters come from a hot
bidder, three quarters of the auctions are a hot seller's, prices are spread evenly over six decades, half of the bids
come by one of four channels. Events are evenly apart in time, `EVENTS_PER_SECOND` of them, and none is late.

A stream is a folder; an epoch is `FILES_PER_EPOCH` Parquet files in each. Engines without epochs read the same rows
from one file per core and phase, `warm` and `steady`, each in the order of time. Nothing here knows any engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.lib.events import FILES_PER_EPOCH

STREAMS = ("person", "auction", "bid")
BEGIN_US = 1_700_000_000_000_000
EVENTS_PER_SECOND = 1_000
"""So that no two events come at the same millisecond."""
SIDE_ROWS = 10_000
_ROUND = 50
"""Events among which each kind comes a fixed number of times."""
_AUCTIONS_OF_ROUND = 3
_FIRST_ID = 1_000
_FIRST_CATEGORY = 10
_ACTIVE_PEOPLE = 1_000
_OPEN_AUCTIONS = 100
_HOT_EVERY = 100
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent",
           "Cheyenne")  # fmt: skip
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS = 10_000


@dataclass(frozen=True)
class NexmarkInput:
    """A written input."""

    folder: Path
    warm: tuple[int, ...]
    """Events of each epoch before the measured ones."""
    steady: tuple[int, ...]

    @property
    def epochs(self) -> tuple[int, ...]:
        return (*self.warm, *self.steady)


def write_nexmark(folder: Path, *, warm: tuple[int, ...], steady: tuple[int, ...], seed: int = 5) -> NexmarkInput:
    """Writes the three streams, and the table `side` that does not change."""
    rng = np.random.default_rng(seed)
    begin = 0
    notes = pa.table({"id": np.arange(SIDE_ROWS), "note": [f"note {number}" for number in range(SIDE_ROWS)]})
    _write_epoch(folder / "side", 0, notes)
    for phase, sizes, first in (("warm", warm, 0), ("steady", steady, len(warm))):
        of_phase: dict[str, list[pa.Table]] = {stream: [] for stream in STREAMS}
        for number, events in enumerate(sizes, first):
            ids = np.arange(begin, begin + events)
            begin += events
            for stream in STREAMS:
                rows = _OF_STREAM[stream](ids, rng)
                _write_epoch(folder / stream, number, rows)
                of_phase[stream].append(rows)
        for stream, tables in of_phase.items():
            if tables:
                _write_epoch(folder / phase / stream, 0, pa.concat_tables(tables))
        _write_epoch(folder / phase / "side", 0, notes)
    return NexmarkInput(folder, warm, steady)


def _people(ids: np.ndarray, rng: np.random.Generator) -> pa.Table:
    mine = ids[ids % _ROUND == 0]
    rows = len(mine)
    first, last = _picked(_FIRST_NAMES, rows, rng), _picked(_LAST_NAMES, rows, rng)
    return pa.table(
        {
            "id": _people_until(mine) - 1 + _FIRST_ID,
            "name": pc.binary_join_element_wise(first, last, " "),
            "email_address": pc.binary_join_element_wise(_letters(rows, 7, rng), _letters(rows, 5, rng), "@"),
            "credit_card": _digits(rows, 16, rng),
            "city": _picked(_CITIES, rows, rng),
            "state": _picked(_STATES, rows, rng),
            "date_time": _times(mine),
            "extra": _letters(rows, 40, rng),
        }
    )


def _auctions(ids: np.ndarray, rng: np.random.Generator) -> pa.Table:
    place = ids % _ROUND
    mine = ids[(place >= 1) & (place <= _AUCTIONS_OF_ROUND)]
    rows = len(mine)
    people = _people_until(mine)
    hot = (people - 1) // _HOT_EVERY * _HOT_EVERY
    seller = np.where(rng.integers(0, 4, rows) > 0, hot, _of_the_last(people, _ACTIVE_PEOPLE, rng))
    initial = _prices(rows, rng)
    open_us = (_OPEN_AUCTIONS * _ROUND // _AUCTIONS_OF_ROUND) * 1_000_000 // EVENTS_PER_SECOND
    lasts_us = 1_000 * (1 + rng.integers(0, 2 * open_us // 1_000, rows))
    return pa.table(
        {
            "id": _auctions_until(mine) - 1 + _FIRST_ID,
            "item_name": _letters(rows, 20, rng),
            "description": _letters(rows, 60, rng),
            "initial_bid": initial,
            "reserve": initial + _prices(rows, rng),
            "date_time": _times(mine),
            "expires": pa.array(_at_us(mine) + lasts_us, pa.timestamp("us", "UTC")),
            "seller": seller + _FIRST_ID,
            "category": rng.integers(0, 5, rows) + _FIRST_CATEGORY,
            "extra": _letters(rows, 40, rng),
        }
    )


def _bids(ids: np.ndarray, rng: np.random.Generator) -> pa.Table:
    mine = ids[ids % _ROUND > _AUCTIONS_OF_ROUND]
    rows = len(mine)
    auctions, people = _auctions_until(mine), _people_until(mine)
    hot_auction = (auctions - 1) // _HOT_EVERY * _HOT_EVERY
    hot_bidder = np.minimum((people - 1) // _HOT_EVERY * _HOT_EVERY + 1, people - 1)
    auction = np.where(rng.integers(0, 2, rows) > 0, hot_auction, _of_the_last(auctions, _OPEN_AUCTIONS, rng))
    bidder = np.where(rng.integers(0, 4, rows) > 0, hot_bidder, _of_the_last(people, _ACTIVE_PEOPLE, rng))
    channel, url = _channels(rows, rng)
    return pa.table(
        {
            "auction": auction + _FIRST_ID,
            "bidder": bidder + _FIRST_ID,
            "price": _prices(rows, rng),
            "channel": channel,
            "url": url,
            "date_time": _times(mine),
            "extra": _letters(rows, 40, rng),
        }
    )


_OF_STREAM: dict[str, Callable[[np.ndarray, np.random.Generator], pa.Table]] = {
    "person": _people, "auction": _auctions, "bid": _bids,
}  # fmt: skip


def _channels(rows: int, rng: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    """Names and addresses: half of them of four channels, nine tenths of the others with their number."""
    folders = ("item.htm?query=1", *(f"{a}/{b}/item.htm?query=1" for a in "abcd" for b in "wxyz"))
    names = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(_CHANNELS))]
    tails = ["" for _ in _HOT_CHANNELS]
    tails += [f"&channel_id={number}" if number % 10 else "" for number in range(_CHANNELS)]
    hot = rng.integers(0, 2, rows) > 0
    picked = np.where(hot, rng.integers(0, len(_HOT_CHANNELS), rows), rng.integers(4, len(names), rows))
    hosts = pa.array([f"https://www.nexmark.com/{letter}" for letter in "abcdefgh"])
    host = hosts.take(pa.array(rng.integers(0, len(hosts), rows)))
    folder = pa.array(folders).take(pa.array(rng.integers(0, len(folders), rows)))
    head = pc.binary_join_element_wise(host, folder, "/")
    return pa.array(names).take(pa.array(picked)), pc.binary_join_element_wise(
        head, pa.array(tails).take(pa.array(picked)), ""
    )


def _people_until(ids: np.ndarray) -> np.ndarray:
    """How many people there are when an event comes, itself included."""
    return ids // _ROUND + 1


def _auctions_until(ids: np.ndarray) -> np.ndarray:
    """How many auctions there are when an event comes, itself included; one at least."""
    return np.maximum(ids // _ROUND * _AUCTIONS_OF_ROUND + np.minimum(ids % _ROUND, _AUCTIONS_OF_ROUND), 1)


def _of_the_last(counts: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """For each row one of the newest, by number."""
    among = np.minimum(counts, most)
    return counts - 1 - (rng.random(len(counts)) * among).astype(np.int64)


def _prices(rows: int, rng: np.random.Generator) -> np.ndarray:
    return np.rint(10 ** (rng.random(rows) * 6) * 100).astype(np.int64)


def _at_us(ids: np.ndarray) -> np.ndarray:
    # Flink's event time has milliseconds, so everybody's has.
    times = BEGIN_US + ids * 1_000_000 // EVENTS_PER_SECOND
    return times - times % 1000


def _times(ids: np.ndarray) -> pa.Array:
    return pa.array(_at_us(ids), pa.timestamp("us", "UTC"))


def _picked(values: tuple[str, ...], rows: int, rng: np.random.Generator) -> pa.Array:
    return pa.array(values).take(pa.array(rng.integers(0, len(values), rows)))


def _letters(rows: int, length: int, rng: np.random.Generator) -> pa.Array:
    return _text(rng.integers(97, 123, rows * length, dtype=np.uint8), rows, length)


def _digits(rows: int, length: int, rng: np.random.Generator) -> pa.Array:
    return _text(rng.integers(48, 58, rows * length, dtype=np.uint8), rows, length)


def _text(letters: np.ndarray, rows: int, length: int) -> pa.Array:
    ends = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters))


def _write_epoch(folder: Path, number: int, rows: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(FILES_PER_EPOCH):
        path = folder / f"e{number:05d}-{part}.parquet"
        # Each file is in the order of time, and so is whoever reads one after the other.
        pq.write_table(rows.take(np.arange(part, rows.num_rows, FILES_PER_EPOCH)), path, compression="snappy")
        written_s = 1_700_000_000 + number * 60 + part
        os.utime(path, (written_s, written_s))
