"""The state part of an epoch alone, the same for every store: fetch, decode, update, encode, write durably.

A store offers `get` and `put` for the distinct keys of an epoch and may sort them as it likes; that time counts. Keys
are 16 random bytes, values small MessagePack maps. One shard, one core, no Spark and no rows: what remains is what the
choice of a store costs.
"""

from __future__ import annotations

import argparse
import json
import time
from abc import ABC, abstractmethod
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

FILL_ROWS = 500_000


class Totals(msgspec.Struct):
    count: int
    total: int
    first: int
    last: int


class StateStore(ABC):
    """One process uses one store; `put` returns when the values would survive a crash."""

    name: str

    @abstractmethod
    def get(self, keys: pa.BinaryArray) -> list[bytes | None]:
        """The values of distinct keys, in their order."""

    @abstractmethod
    def put(self, keys: pa.BinaryArray, values: list[bytes]) -> None:
        """Values of the keys that the last `get` was asked for."""

    @abstractmethod
    def close(self) -> None: ...


def keys_of(ids: np.ndarray) -> pa.BinaryArray:
    """16 bytes per id that look random and are the same each time."""
    mixed = np.empty((len(ids), 2), dtype=np.uint64)
    mixed[:, 0] = _mix(ids.astype(np.uint64))
    mixed[:, 1] = _mix(mixed[:, 0] + np.uint64(1))
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * 16
    return pa.BinaryArray.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(mixed)])


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: one to one, so that different ids stay different keys."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def epoch(store: StateStore, ids: np.ndarray, now: int) -> float:
    """Handles one epoch of events, one per id; returns the seconds of the state part."""
    distinct, counts = np.unique(ids, return_counts=True)
    keys, events = keys_of(distinct), counts.tolist()
    decode, encode = msgspec.msgpack.Decoder(Totals).decode, msgspec.msgpack.Encoder().encode
    started = time.perf_counter()
    values = []
    for found, many in zip(store.get(keys), events, strict=True):
        totals = Totals(0, 0, now, now) if found is None else decode(found)
        for _ in range(many):
            totals.count += 1
            totals.total += 3
            totals.last = now
        values.append(encode(totals))
    store.put(keys, values)
    return time.perf_counter() - started


def measure(store: StateStore, keys: int, epochs: int, per_epoch: int) -> dict:
    for start in range(0, keys, FILL_ROWS):
        epoch(store, np.arange(start, min(start + FILL_ROWS, keys)), now=1)
        print(f"progress: filled {min(start + FILL_ROWS, keys):,} of {keys:,} keys", flush=True)
    random = np.random.default_rng(3)
    seconds = [epoch(store, random.integers(0, keys, per_epoch), now=number) for number in range(2, 2 + epochs)]
    return {"store": store.name, "keys": keys, "events_per_s": epochs * per_epoch / sum(seconds), "epoch_s": seconds}


def main(open_store: type[StateStore]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--per-epoch", type=int, default=250_000)
    options = parser.parse_args()
    store = open_store(options.work)
    found = measure(store, options.keys, options.epochs, options.per_epoch)
    store.close()
    found["disk_bytes"] = sum(file.stat().st_blocks * 512 for file in options.work.rglob("*") if file.is_file())
    started = time.perf_counter()
    again = open_store(options.work)
    assert again.get(keys_of(np.array([options.keys // 2])))[0] is not None
    found["reopen_s"] = time.perf_counter() - started
    again.close()
    options.result.write_text(json.dumps(found))
