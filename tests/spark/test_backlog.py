"""How far sources are behind that Python reads, or whose offsets are numbers: from positions alone, without a JVM."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.connectors.program.sources import ItemsReader
from headrace.connectors.source_contract import Offset, SplitReader
from headrace.model.behind import Behind
from headrace.model.rows import codec_of
from headrace.spark.backlog import KafkaBacklog, ReaderBacklog


class Row(hr.Record):
    n: int


def reader_of(rows: int) -> SplitReader:
    return hr.source.items([Row(n) for n in range(rows)]).reader(codec_of(Row))


def at(n: int) -> dict[str, str]:
    return {"rows": json.dumps({"i": n})}


def test_a_reader_tells_what_was_read_and_what_is_left() -> None:
    remaining = ReaderBacklog({})
    remaining.watch({"rows": reader_of(10)})
    assert [remaining.read(at(n))["rows"] for n in (3, 6, 10)] == [Behind(7, done=3), Behind(4, done=6), Behind(0)]


def test_a_run_that_goes_on_counts_from_where_it_began() -> None:
    remaining = ReaderBacklog(at(6))
    remaining.watch({"rows": reader_of(10)})
    assert remaining.read(at(8))["rows"] == Behind(2, done=2)


def test_a_query_that_is_started_again_goes_on_counting() -> None:
    remaining = ReaderBacklog({})
    remaining.watch({"rows": reader_of(10)})
    remaining.read(at(3))
    remaining.watch({"rows": reader_of(10)})
    assert remaining.read(at(3))["rows"] == Behind(7, done=3), "the epoch that failed is planned again"
    assert remaining.read(at(5))["rows"] == Behind(5, done=5)


class Forgetful(ItemsReader):
    """Knows nothing of what lies far back, and breaks down at last."""

    def remaining(self, start: Offset) -> int:
        if start["i"] == 9:
            raise ConnectionError("gone")
        if start["i"] < 5:
            raise LookupError("trimmed")
        return 10 - int(start["i"])


def test_a_reader_that_fails_is_left_alone_and_one_that_forgets_tells_what_is_left() -> None:
    remaining = ReaderBacklog({})
    remaining.watch({"rows": Forgetful(pa.record_batch({"n": list(range(10))}), None, 1)})
    assert remaining.read(at(6)) == {"rows": Behind(4, done=0)}
    assert remaining.read(at(8)) == {"rows": Behind(2, done=2)}
    assert remaining.read(at(9)) == {}
    assert remaining.read(at(10)) == {}


# --- Kafka's offsets


class Offsets:
    """A stream of Spark that has seen these."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 - as Spark spells it
        return self

    def json(self) -> str:
        return json.dumps({"clicks": self.partitions})


class Reader(KafkaBacklog):
    def _find_streams(self, query: Any) -> dict[str, Any]:
        return {"rows": query}


def test_offsets_tell_from_the_initial_ones_on_what_was_read() -> None:
    reader, stream = Reader(["rows"], {}), Offsets(p0=100, p1=50)
    initial = {"rows/0": b'\x00v1\n{"clicks":{"p0":20,"p1":0}}'}
    told = reader.read(stream, {"rows": {"clicks": {"p0": 40, "p1": 10}}}, initial)
    assert told == {"rows": Behind(100, done=30)}
    stream.partitions = {"p0": 110, "p1": 50, "p2": 7}
    # A partition that is new to the epoch does not count until its rows are read.
    told = reader.read(stream, {"rows": {"clicks": {"p0": 100, "p1": 50}}}, {})
    assert told == {"rows": Behind(10)}, "what is left has just come"


def test_offsets_of_a_run_that_goes_on_count_from_the_epoch_before() -> None:
    reader = Reader(["rows"], {"rows": '{"clicks":{"p0":60}}'})
    told = reader.read(Offsets(p0=100), {"rows": {"clicks": {"p0": 70}}}, {})
    assert told == {"rows": Behind(30, done=10)}
    assert told["rows"].percent == 25
