"""A store of many keys as a counting job would have left it, written without Spark in a few seconds.

Per shard one large run and some small ones of later epochs, as between two folds: so lookups have several runs to look
into. The same values go to Redis as text (`pairs`), so both servers send the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from headrace.model.keys import group_range, hash_encoded, key_groups
from headrace.model.report import RunRef
from headrace.state import layout
from headrace.state.encode import encode_run, run_crc
from headrace.state.format import VALUE, TableData
from headrace.state.manifest import Manifest, StepRuns, encode_manifest
from headrace.state.store import LocalStore

STEP, STATE = "count_sum", "totals"
ADDRESS = f"{STEP}.{STATE}"
KEY = "key{:012d}"
"""What redis-benchmark makes of `key__rand_int__`."""
GROUPS = 128
SHARDS = 2
DELTAS = 4
DELTA_ROWS = 10_000


class Totals(msgspec.Struct):
    count: int
    total: int


def write_store(folder: Path, keys: int, seed: int = 5) -> np.ndarray:
    """Writes the store; gives the count of every key, in the order of keys."""
    files = LocalStore(folder, durable=False)
    record = {"app": "serving", "key_groups": GROUPS, "query": "{}", "format": 1, "timeline": 0}
    files.create(layout.STORE_RECORD, msgspec.json.encode(record))
    random = np.random.default_rng(seed)
    counts = random.integers(1, 10_000, keys)
    refs: list[RunRef] = []
    for epoch in range(1 + DELTAS):
        ids = np.arange(keys) if epoch == 0 else np.unique(random.integers(0, keys, DELTA_ROWS))
        if epoch:
            counts[ids] += 1
        refs = [*write_runs(files, epoch, ids, counts[ids]), *refs]
        manifest = Manifest(
            app="serving", timeline=0, epoch=epoch, nonce=f"n{epoch}", fence=1, program="p", key_groups=GROUPS,
            parallelism=SHARDS, clock_us=1_700_000_000_000_000 + epoch * 1_000_000, parent_epoch=epoch - 1,
            parent=f"n{epoch - 1}" if epoch else "", full=True, steps={STEP: StepRuns(runs=refs)},
        )  # fmt: skip
        files.create(layout.manifest(0, epoch), encode_manifest(manifest))
    return counts


def write_runs(files: LocalStore, epoch: int, ids: np.ndarray, counts: np.ndarray) -> list[RunRef]:
    """One run per shard."""
    names = pa.array([b"s" + KEY.format(each).encode() for each in ids.tolist()], pa.binary())
    pack = msgspec.msgpack.Encoder().encode
    values = pa.array([pack(Totals(count, 3 * count)) for count in counts.tolist()], pa.binary())
    hashes = hash_encoded(names)
    groups = key_groups(hashes, GROUPS)
    refs = []
    for shard in range(SHARDS):
        mine = group_range(shard, SHARDS, GROUPS)
        at = np.flatnonzero((groups >= mine.start) & (groups < mine.stop))
        rows = pa.table({"hash": pa.array(hashes[at]), "key": names.take(at), "value": values.take(at)})
        data = encode_run([TableData(STATE, VALUE, rows)], lo=mine.start, hi=mine.stop, groups=GROUPS)
        file = layout.run(STEP, epoch, shard, layout.new_uid(1))
        files.write(file, data)
        made = RunRef(
            epoch=epoch, lo=mine.start, hi=mine.stop, rows=len(at), size_bytes=len(data), crc=run_crc(data),
            file=file, level=0 if epoch else 3,
        )  # fmt: skip
        refs.append(made)
    return refs


def pairs(counts: np.ndarray) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values as a client of either server sees them."""
    text = msgspec.json.Encoder().encode
    for number, count in enumerate(counts.tolist()):
        yield f"{ADDRESS}:{KEY.format(number)}".encode(), text(Totals(count, 3 * count))
