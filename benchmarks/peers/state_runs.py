"""Headrace's own state as the store of one shard: immutable sorted runs, folded between epochs on the same core.

In a job, folds run beside the epochs; here they count as part of the epoch that called for them.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow as pa
from state_work import StateStore, main

from headrace.model.keys import hash_encoded
from headrace.model.report import RunRef
from headrace.state.encode import run_crc
from headrace.state.fold import apply_fold, plan_folds, write_fold
from headrace.state.format import VALUE, TableData
from headrace.state.lookup import open_layers
from headrace.state.run import encode_run
from headrace.state.store import LocalStore

GROUPS = 128
TABLE = "totals"


class RunsStore(StateStore):
    name = "Headrace runs"

    def __init__(self, folder: Path) -> None:
        self.files = LocalStore(folder / "store")
        self.list = folder / "list.json"
        self.refs: tuple[RunRef, ...] = ()
        if self.list.exists():
            self.refs = tuple(msgspec.convert(ref, RunRef) for ref in json.loads(self.list.read_text()))
        self.epoch = max((ref.epoch for ref in self.refs), default=0)

    def get(self, keys: pa.BinaryArray) -> list[bytes | None]:
        self.hashes = hash_encoded(keys)
        layers = open_layers(self.files, self.refs, lo=0, hi=GROUPS, groups=GROUPS)
        return layers.get_many(TABLE, self.hashes, keys)[0].to_pylist()

    def put(self, keys: pa.BinaryArray, values: list[bytes]) -> None:
        self.epoch += 1
        columns = {"hash": pa.array(self.hashes), "key": keys, "value": pa.array(values, pa.binary())}
        data = encode_run([TableData(TABLE, VALUE, pa.table(columns))], lo=0, hi=GROUPS, groups=GROUPS)
        file = f"runs/{self.epoch}.run"
        self.files.write(file, data)
        delta = RunRef(
            epoch=self.epoch, lo=0, hi=GROUPS, rows=len(keys), size_bytes=len(data), crc=run_crc(data), file=file
        )
        self.refs = (delta, *self.refs)
        self.fold()

    def fold(self) -> None:
        for number, fold in enumerate(plan_folds(self.refs)):
            result = write_fold(self.files, fold, f"runs/{self.epoch}-{number}-folded.run", groups=GROUPS)
            after = apply_fold(self.refs, fold, result)
            assert after is not None
            kept = {ref.file for ref in after}
            for ref in self.refs:
                if ref.file not in kept:
                    self.files.delete(ref.file)
            self.refs = after

    def close(self) -> None:
        self.list.write_text(json.dumps([msgspec.to_builtins(ref) for ref in self.refs]))


if __name__ == "__main__":
    main(RunsStore)
