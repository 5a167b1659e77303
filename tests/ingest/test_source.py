"""`source.ingest`: any range of a log can be read again, and nothing is skipped in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import source
from headrace.connectors.ingest import IngestReader
from headrace.connectors.source_contract import BadRows, Offset, Passage, SplitReader
from headrace.errors import InputLost, ProgramError, StoreError
from headrace.ingest import layout
from headrace.ingest.log import Append, Log, LogOptions
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sources import verify_source
from tests.ingest.logs import folder_of

STREAM = "clicks"


class Click(Record):
    user: str
    at: Timestamp
    n: int = 1


class Post(Record, tag=True):
    text: str


class Like(Record, tag=True):
    post: int


def line(n: int) -> bytes:
    return b'{"user":"user-%d","at":"2024-01-01T00:00:%02dZ","n":%d}' % (n % 7, n % 60, n)


def fill(path: Path, rows: int, *, partitions: int = 1, **options: int) -> str:
    """A log whose requests have 1, 2, 3 … events; its id."""
    log = Log(path, LogOptions(**options))
    log.make_stream(STREAM, partitions)
    at = size = 0
    while at < rows:
        size = size % 5 + 1
        log.append([Append(STREAM, [line(n) for n in range(at, min(at + size, rows))])])
        at += size
    log.close()
    return log.id


def reader_of(path: Path, row_type: Any = Click, **options: Any) -> IngestReader:
    made = source.ingest(path, stream=STREAM, **options).bind(codec_of(row_type)).reader(codec_of(row_type))
    assert isinstance(made, IngestReader)
    return made


def rows_of(reader: SplitReader, start: Offset, end: Offset) -> list[Any]:
    """Records, and the texts of what is none."""
    found: list[Any] = []
    for split in reader.splits(start, end):
        for part in reader.read(split):
            found += part.texts if isinstance(part, BadRows) else part.to_pylist()
    return found


def numbers(reader: SplitReader, start: Offset, end: Offset) -> list[int]:
    return sorted(row["n"] for row in rows_of(reader, start, end))


@pytest.mark.parametrize("partitions", [1, 3])
def test_any_range_can_be_read_again(tmp_path: Path, partitions: int) -> None:
    fill(tmp_path, 100, partitions=partitions, segment_bytes=400)
    assert verify_source(lambda: reader_of(tmp_path), codec_of(Click).schema, epochs=20) == 100


def test_an_epoch_is_bounded_and_no_partition_starves(tmp_path: Path) -> None:
    log_id = fill(tmp_path, 90, partitions=3)
    reader = reader_of(tmp_path, max_per_epoch=10)
    first = reader.latest(reader.initial(), None)
    assert sorted(first[log_id].values()) == [3, 3, 4]
    assert reader.latest(first, 2)[log_id] != first[log_id]
    assert reader.remaining(first) == 80
    assert reader.hold(frozenset({"0"}))
    assert reader.latest(first, None)[log_id]["0"] == first[log_id]["0"]


def test_only_what_is_durable_is_read(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    reader = reader_of(tmp_path)
    end = reader.latest({}, None)
    writer = Log(tmp_path)
    [segment] = layout.list_segments(folder_of(tmp_path))
    with segment.open("ab") as file:
        file.write(b"half of a frame")
    assert reader.latest(end, None) == end
    assert numbers(reader, {}, end) == [0, 1, 2]
    writer.close()


def test_a_run_that_catches_up_ends_with_what_was_there(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    reader = reader_of(tmp_path)
    reader.available_now()
    log = Log(tmp_path)
    log.append([Append(STREAM, [line(5)])])
    end = reader.latest({}, None)
    assert numbers(reader, {}, end) == [0, 1, 2, 3, 4]
    assert reader.latest(end, None) == end
    later = reader_of(tmp_path)
    assert numbers(later, end, later.latest(end, None)) == [5]
    log.close()


def test_a_stream_without_events_is_waited_for_and_later_partitions_are_found(tmp_path: Path) -> None:
    log = Log(tmp_path)
    reader = reader_of(tmp_path)
    assert reader.latest({}, None) == {}
    log.append([Append(STREAM, [line(0)])])
    end = reader.latest({}, None)
    log.make_stream(STREAM, 2)
    log.append([Append(STREAM, [line(1)], partition=1)])
    assert numbers(reader, end, reader.latest(end, None)) == [1]
    log.close()


def test_events_that_do_not_fit_are_bad_rows_and_the_others_are_rows(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append([Append(STREAM, [line(0), b'{"user":7}', line(2)]), Append(STREAM, [b'{"user":"ann"}', line(4)])])
    log.close()
    reader = reader_of(tmp_path)
    good, bad = [], []
    for found in rows_of(reader, {}, reader.latest({}, None)):
        (bad if isinstance(found, str) else good).append(found)
    assert [row["n"] for row in good] == [0, 2, 4]
    told = [source.ingest(tmp_path).explain_bad(codec_of(Click), each) for each in bad]
    assert [each.text for each in told] == ['{"user":7}', '{"user":"ann"}']
    assert [each.where.rpartition(", ")[2] for each in told] == ["event 1", "event 3"]
    assert "Expected `str`, got `int`" in told[0].reason


def test_a_union_of_tagged_records_can_be_read(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append([Append(STREAM, [b'{"type":"Post","text":"hi"}', b'{"type":"Like","post":3}'])])
    log.close()
    reader = reader_of(tmp_path, Post | Like)
    codec = codec_of(Post | Like)
    [split] = reader.splits({}, reader.latest({}, None))
    [batch] = reader.read(split)
    assert not isinstance(batch, BadRows)
    assert codec.to_objects(batch.columns) == [Post("hi"), Like(3)]


def test_events_that_were_removed_before_they_were_read_are_an_error(tmp_path: Path) -> None:
    fill(tmp_path, 40, segment_bytes=1)
    reader = reader_of(tmp_path)
    read = reader.latest({}, 5)
    end = reader.latest(read, None)
    log = Log(tmp_path, LogOptions(keep_bytes=300))
    log.retain()
    log.close()
    with pytest.raises(InputLost, match="no longer has the events"):
        reader.splits(read, end)
    fresh = reader_of(tmp_path)
    left = numbers(fresh, fresh.initial(), fresh.latest(fresh.initial(), None))
    assert left == list(range(40 - len(left), 40)), "a new job begins with what is kept"


def test_another_log_in_the_same_place_is_not_read_on(tmp_path: Path) -> None:
    fill(tmp_path / "one", 9)
    end = reader_of(tmp_path / "one").latest({}, None)
    (tmp_path / "one").rename(tmp_path / "gone")
    fill(tmp_path / "one", 20)
    with pytest.raises(InputLost, match="another log"):
        reader_of(tmp_path / "one").latest(end, None)


def test_what_cannot_be_read_is_told_while_the_program_is_built_or_starts(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="from its files"):
        source.ingest("http://localhost:8400")
    with pytest.raises(ProgramError, match="name of a stream"):
        source.ingest(tmp_path, stream="No Such")
    with pytest.raises(ProgramError, match="JSON objects"):
        source.ingest(tmp_path).bind(codec_of(int))
    with pytest.raises(StoreError, match="there is no log here"):
        source.ingest(tmp_path).reader(codec_of(Click))
    assert source.ingest(f"file://{tmp_path}").describe() == f"ingest file://{tmp_path} (events)"


def test_a_job_that_goes_back_is_told_which_events_were_deleted(tmp_path: Path) -> None:
    log = fill(tmp_path, 60, segment_bytes=200)
    asked = source.ingest(tmp_path, stream=STREAM)
    assert asked.check_replay(Passage({log: {"0": 0}}, {log: {"0": 60}})).verdict == "sure"
    first, second = layout.list_segments(layout.partition_folder(tmp_path, STREAM, 0))[:2]
    first.unlink()
    kept = layout.first_number(second)
    assert asked.check_replay(Passage({log: {"0": kept}}, {log: {"0": 60}})).verdict == "sure"
    lost = asked.check_replay(Passage({log: {"0": kept - 1}}, {log: {"0": 60}}))
    assert (lost.verdict, f"events {kept - 1} to {kept - 1} of partition 0" in lost.why) == ("lost", True)
    assert asked.check_replay(Passage({"another": {"0": 0}}, {"another": {"0": 60}})).verdict == "lost"


def test_the_log_keeps_what_a_job_may_read_again(tmp_path: Path) -> None:
    id_ = fill(tmp_path, 60, segment_bytes=200)
    folder = layout.partition_folder(tmp_path, STREAM, 0)
    asked = source.ingest(tmp_path, stream=STREAM)

    def retain() -> int:
        log = Log(tmp_path, LogOptions(segment_bytes=200, keep_us=0))
        log.retain()
        log.close()
        return layout.first_number(layout.list_segments(folder)[0])

    asked.keep_behind([{id_: {"0": 40}}, {id_: {"0": 20}}], "5f3c-clicks")
    first = retain()
    assert 0 < first <= 20
    assert asked.check_replay(Passage({id_: {"0": 20}}, {id_: {"0": 60}})).verdict == "sure"
    # A savepoint was deleted; and one that is of another log holds nothing.
    asked.keep_behind([{id_: {"0": 40}}], "5f3c-clicks")
    assert first < retain() <= 40
    asked.keep_behind([], "5f3c-clicks")
    assert retain() > 40
