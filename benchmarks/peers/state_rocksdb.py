"""RocksDB as the store of one shard: batched reads, one synced write batch per epoch, a large cache, Bloom filters."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions
from state_work import StateStore, main


class RocksStore(StateStore):
    name = "RocksDB"

    def __init__(self, folder: Path) -> None:
        blocks = BlockBasedOptions()
        blocks.set_block_cache(Cache(512 * 2**20))
        blocks.set_bloom_filter(10, False)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_size(128 * 2**20)
        options.set_max_write_buffer_number(4)
        options.set_max_background_jobs(2)
        options.set_level_compaction_dynamic_level_bytes(True)
        self.db = Rdict(str(folder / "rocksdb"), options)
        self.synced = WriteOptions()
        self.synced.sync = True

    def get(self, keys: pa.BinaryArray) -> list[bytes | None]:
        self.keys = keys.to_pylist()
        self.order = sorted(range(len(self.keys)), key=self.keys.__getitem__)
        ordered = self.db.get([self.keys[n] for n in self.order])
        found: list[bytes | None] = [None] * len(ordered)
        for n, value in zip(self.order, ordered, strict=True):
            found[n] = value
        return found

    def put(self, keys: pa.BinaryArray, values: list[bytes]) -> None:
        batch = WriteBatch(raw_mode=True)
        for n in self.order:
            batch.put(self.keys[n], values[n])
        self.db.write(batch, self.synced)

    def close(self) -> None:
        self.db.close()


if __name__ == "__main__":
    main(RocksStore)
