"""A store made by hand, as a job would have left it: runs per shard, manifests, a record. No program and no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.model.keys import encode_key, group_range, hash_key, key_group
from headrace.model.report import RunRef, StagedPart
from headrace.model.watermarks import TimeState
from headrace.state import layout
from headrace.state.encode import encode_run, run_crc
from headrace.state.format import DUE, ENTRIES, VALUE, TableData
from headrace.state.manifest import JobState, Manifest, StepRuns, TaskStats, encode_manifest
from headrace.state.store import LocalStore
from headrace.state.subs import LIST_SUB, TIME_SUB

GROUPS = 128
START_US = 1_704_110_400_000_000
"""2024-01-01T12:00:00Z"""
SECOND_US = 1_000_000

pack = msgspec.msgpack.encode
Row = tuple[Any, ...]
"""(key, value) or (key, value, expires); (key, sub, value[, expires]) of entries. A value None is a tombstone."""


def values(name: str, rows: Iterable[Row]) -> tuple[str, str, list[dict[str, Any]]]:
    made = []
    for key, value, *expires in rows:
        made.append(
            {"key": encode_key(key), "value": None if value is None else pack(value), "expires": [*expires, None][0]}
        )
    return name, VALUE, made


def _entries(name: str, rows: Iterable[Row], sub_of: Any) -> tuple[str, str, list[dict[str, Any]]]:
    made = []
    for key, sub, value, *expires in rows:
        cell = {"key": encode_key(key), "sub": None if sub is None else sub_of(sub)}
        made.append({**cell, "value": None if value is None else pack(value), "expires": [*expires, None][0]})
    return name, ENTRIES, made


def maps(name: str, rows: Iterable[Row]) -> tuple[str, str, list[dict[str, Any]]]:
    """(key, entry, value); an entry None is the marker of a clear."""
    return _entries(name, rows, encode_key)


def lists(name: str, rows: Iterable[Row]) -> tuple[str, str, list[dict[str, Any]]]:
    """(key, place, value)."""
    return _entries(name, rows, LIST_SUB.encode)


def timers(name: str, rows: Iterable[tuple[Any, int]]) -> tuple[str, str, list[dict[str, Any]]]:
    """(key, time in µs)."""
    return _entries(name, ((key, time_us, True) for key, time_us in rows), TIME_SUB.encode)


class MadeStore:
    """Publishes epochs one after the other. Each epoch writes one run per shard that has rows."""

    def __init__(
        self, root: Path, *, parallelism: int = 2, app: str = "tweets", inline: bool = False, id: str = ""
    ) -> None:
        """``id``: tells it from others that are made in the same place."""
        self.files = LocalStore(root, durable=False)
        self.path = str(root)
        self.app = app
        self.parallelism = parallelism
        self.inline = inline
        self.state: JobState | None = None
        self.id = id
        query = msgspec.json.encode({"id": id} if id else {}).decode()
        record = {"app": app, "key_groups": GROUPS, "query": query, "format": 1, "timeline": 0}
        self.files.create(layout.STORE_RECORD, msgspec.json.encode(record))

    @property
    def next_epoch(self) -> int:
        return 0 if self.state is None else self.state.epoch + 1

    def epoch(
        self,
        steps: Mapping[str, Iterable[tuple[str, str, list[dict[str, Any]]]]] | None = None,
        *,
        clock_us: int = START_US,
        watermark_us: int | None = None,
        full: bool | None = None,
        **more: Any,
    ) -> Manifest:
        epoch = self.next_epoch
        added = {step: self._write(step, epoch, list(tables)) for step, tables in (steps or {}).items()}
        before = {} if self.state is None else self.state.runs
        whole = self.state is None if full is None else full
        names = {*added, *(before if whole else ())}
        listed = {
            name: StepRuns(runs=[*added.get(name, []), *before.get(name, ())]) if whole else StepRuns(added=added[name])
            for name in sorted(names)
        }
        known = [] if self.state is None else self.state.manifest.time.steps
        watermarks = {} if watermark_us is None else dict.fromkeys({*known, *(steps or {})}, watermark_us)
        manifest = Manifest(
            app=self.app, timeline=0, epoch=epoch, nonce=f"{self.id}n{epoch}", fence=1, program="p", key_groups=GROUPS,
            parallelism=self.parallelism, clock_us=clock_us, parent_epoch=epoch - 1,
            parent=f"{self.id}n{epoch - 1}" if epoch else "", full=whole, steps=listed,
            time=TimeState(steps=watermarks), **more,
        )  # fmt: skip
        self.files.create(layout.manifest(0, epoch), encode_manifest(manifest))
        self.state = (self.state or JobState(manifest, {})).followed_by(manifest)
        return manifest

    def _write(self, step: str, epoch: int, tables: list[tuple[str, str, list[dict[str, Any]]]]) -> list[RunRef]:
        refs = []
        for shard in range(self.parallelism):
            groups = group_range(shard, self.parallelism, GROUPS)
            data = [made for table in tables if (made := _table(table, groups)) is not None]
            if data:
                refs.append(self._write_run(step, epoch, shard, groups, data))
        return refs

    def _write_run(self, step: str, epoch: int, shard: int, groups: range, data: list[TableData]) -> RunRef:
        encoded = encode_run(data, lo=groups.start, hi=groups.stop, groups=GROUPS)
        path = "" if self.inline else layout.run(step, epoch, shard, layout.new_uid(1))
        if path:
            self.files.write(path, encoded)
        return RunRef(
            epoch=epoch, lo=groups.start, hi=groups.stop, rows=sum(table.batch.num_rows for table in data),
            size_bytes=len(encoded), crc=run_crc(encoded), file=path, inline=b"" if path else encoded.to_pybytes(),
        )  # fmt: skip


def _table(table: tuple[str, str, list[dict[str, Any]]], groups: range) -> TableData | None:
    name, kind, rows = table
    rows = [{"hash": hash_key(row["key"]), **row} for row in rows]
    mine = [row for row in rows if key_group(row["hash"], GROUPS) in groups]
    if not mine:
        return None
    types = {
        "hash": pa.uint64(), "key": pa.binary(), "sub": pa.binary(), "value": pa.binary(), "expires": pa.int64(),
        "time": pa.int64(), "timer": pa.uint8(),
    }  # fmt: skip
    names = {VALUE: "hash key value expires", ENTRIES: "hash key sub value expires", DUE: "time hash key timer"}[kind]
    wanted = [each for each in names.split() if each != "expires" or any(row["expires"] is not None for row in mine)]
    return TableData(
        name, kind, pa.table({each: pa.array([row[each] for row in mine], types[each]) for each in wanted})
    )


def due(name: str, rows: Iterable[tuple[Any, int]]) -> tuple[str, str, list[dict[str, Any]]]:
    """The index of timers: (key, time in µs)."""
    return name, DUE, [{"key": encode_key(key), "time": time_us, "timer": 0} for key, time_us in rows]


def busy_epoch(store: MadeStore, *, rows: int = 1200) -> Manifest:
    """An epoch with everything that `headrace epochs` shows."""
    tasks = [
        TaskStats(0, 0, rows, rows, rows * 40, {"process": 5000}, {}, {}),
        *(
            TaskStats(
                1, shard, rows // 2, 0, rows * 20, {"open": 1000, "process": 20_000, "write": 3000},
                {"count_views": {"rows_in": rows // 2, "rows_out": 7, "late": 1, "fired": 2, "delta_rows": 40,
                                 "delta_bytes": 2048}},
                {"totals": 7},
            )
            for shard in range(store.parallelism)
        ),
    ]  # fmt: skip
    return store.epoch(
        {"count_views": [values("views", [("tweet-1", 1 + store.next_epoch), ("tweet-2", 5)])]},
        clock_us=START_US + store.next_epoch * SECOND_US,
        watermark_us=START_US - 5 * SECOND_US,
        tasks=tasks,
        took_us={"order": 2000, "tasks": 110_000, "between": 300_000},
        outputs={"totals": [StagedPart(rows=14, size_bytes=560, format="arrow", inline=b"x")]},
    )
