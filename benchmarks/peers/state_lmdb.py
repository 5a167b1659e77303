"""LMDB as the store of one shard: sorted cursor reads, `putmulti`, one synced transaction per epoch."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pyarrow as pa
from state_work import StateStore, main


class LmdbStore(StateStore):
    name = "LMDB"

    def __init__(self, folder: Path) -> None:
        self.db = lmdb.open(str(folder / "lmdb"), map_size=64 * 2**30, readahead=False, max_readers=4)

    def get(self, keys: pa.BinaryArray) -> list[bytes | None]:
        self.keys = keys.to_pylist()
        self.order = sorted(range(len(self.keys)), key=self.keys.__getitem__)
        with self.db.begin() as transaction, transaction.cursor() as cursor:
            found = dict(cursor.getmulti([self.keys[n] for n in self.order]))
        return [found.get(key) for key in self.keys]

    def put(self, keys: pa.BinaryArray, values: list[bytes]) -> None:
        items = [(self.keys[n], values[n]) for n in self.order]
        with self.db.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(items)

    def close(self) -> None:
        self.db.close()


if __name__ == "__main__":
    main(LmdbStore)
