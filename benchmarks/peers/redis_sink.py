"""Rows into Redis, as well as it can be done from Python: MSETs of many keys, made from columns, in the tasks.

Two ways. Staged: tasks make the bytes, and the driver sends them when their epoch is published, so readers of Redis see
published epochs only, as readers of state do. Direct: tasks send them on the spot; nothing waits in between, and
readers see what may still fail. In both ways every reply is waited for.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.sink_contract import Release, Sink, StageTask, StageWriter
from headrace.connectors.staged import stage
from headrace.model.batch import Rows
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec

PAIRS_PER_COMMAND = 500


class RedisSink(Sink):
    kind: ClassVar[str] = "redis"
    guarantee: ClassVar[Any] = "at least once"
    accepts_updates: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("_connection",)

    def __init__(self, port: int, *, direct: bool) -> None:
        self.port, self.direct = port, direct
        self._connection: Connection | None = None

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return DirectWriter(self.port) if self.direct else StagedWriter(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        if self.direct:
            return
        if self._connection is None:
            self._connection = Connection(self.port)
        for part in parts:
            self._connection.send(ctx.read(part), int(part.extra["commands"]))
        self._connection.drain()


class StagedWriter(StageWriter):
    def __init__(self, task: StageTask) -> None:
        self._task = task
        self._held: list[bytes | memoryview] = []
        self._commands = self._rows = 0

    def write(self, rows: Rows) -> None:
        if len(rows):
            pieces, commands = encode(rows.record_batch)
            self._held += pieces
            self._commands += commands
            self._rows += len(rows)

    def finish(self) -> list[StagedPart]:
        if not self._rows:
            return []
        return [stage(self._task, b"".join(self._held), self._rows, "resp", {"commands": str(self._commands)})]


class DirectWriter(StageWriter):
    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: Connection | None = None
        self._rows = 0

    def write(self, rows: Rows) -> None:
        if not len(rows):
            return
        if self._connection is None:
            self._connection = Connection(self._port)
        pieces, commands = encode(rows.record_batch)
        self._connection.send(b"".join(pieces), commands)
        self._rows += len(rows)

    def finish(self) -> list[StagedPart]:
        if self._connection is None:
            return []
        self._connection.drain()
        self._connection.close()
        return [StagedPart(rows=self._rows, size_bytes=0, format="none")]


class Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._unread = 0

    def send(self, data: Any, commands: int) -> None:
        self._socket.sendall(data)
        self._unread += commands

    def drain(self) -> None:
        """Waits until everything that was sent is set."""
        wanted = self._unread * len(b"+OK\r\n")
        while wanted:
            found = self._socket.recv(min(wanted, 65536))
            if not found or found.strip(b"+OK\r\n"):
                raise ConnectionError(f"Redis says {found[:200]!r}")
            wanted -= len(found)
        self._unread = 0

    def close(self) -> None:
        self._socket.close()


def encode(batch: pa.RecordBatch) -> tuple[list[bytes | memoryview], int]:
    """MSETs of ``per_key:<key>`` to the newest window of a key, and how many they are."""
    starts = batch.column("window_start").cast(pa.int64())
    if pc.min_max(starts)["min"] != pc.min_max(starts)["max"]:
        # The last one of a key is what stays.
        batch = batch.take(pc.sort_indices(starts))
        starts = batch.column("window_start").cast(pa.int64())
    keys = pc.binary_join_element_wise("per_key:", batch.column("key"), "")
    counts = pc.cast(batch.column("n"), pa.string())
    starts_text = pc.cast(starts, pa.string())
    values = pc.binary_join_element_wise('{"window_start":', starts_text, ',"n":', counts, "}", "")
    sizes = [pc.cast(pc.binary_length(texts), pa.string()) for texts in (keys, values)]
    pairs = pc.binary_join_element_wise("$", sizes[0], "\r\n", keys, "\r\n$", sizes[1], "\r\n", values, "\r\n", "")
    _, offsets, data = pairs.buffers()
    ends = memoryview(offsets).cast("i")[pairs.offset : pairs.offset + len(pairs) + 1]
    body = memoryview(data)
    pieces: list[bytes | memoryview] = []
    for first in range(0, len(pairs), PAIRS_PER_COMMAND):
        last = min(first + PAIRS_PER_COMMAND, len(pairs))
        pieces += [b"*%d\r\n$4\r\nMSET\r\n" % (2 * (last - first) + 1), body[ends[first] : ends[last]]]
    return pieces, len(pieces) // 2
