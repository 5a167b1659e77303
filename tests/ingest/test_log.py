"""The log's files: what is durable stays, what is torn is cut, and nobody reads what might vanish."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptFile, InputLost, StoreInUse
from headrace.ingest import layout, partition
from headrace.ingest.frames import HEAD_BYTES, decode_head, encode_frame, encode_head
from headrace.ingest.log import Append, AppendedEvents, KeyReused, Log, LogOptions
from headrace.ingest.partition import INDEX_EVERY_BYTES, WriteFailed
from headrace.ingest.reading import read_mark, read_range
from tests.ingest.logs import STREAM, append, event, folder_of, read, segments_of, write

EVENTS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4)
REQUESTS = st.lists(EVENTS, min_size=1, max_size=5)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def flat(requests: list[list[bytes]]) -> list[bytes]:
    return [each for events in requests for each in events]


# --- crashes


def test_a_disk_that_fails_while_it_makes_a_round_durable_ends_the_writer_and_loses_nothing_that_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = Log(tmp_path)
    append(log, event(0), event(1))
    with monkeypatch.context() as patched:
        patched.setattr(partition, "sync_data", failing)
        [outcome] = log.append([Append(STREAM, [event(2)], key=b"k")])
    assert isinstance(outcome, WriteFailed) and outcome.broken and not outcome.full
    assert log.broken is outcome, "what the disk holds is known only after a new start"
    assert read(tmp_path) == [event(0), event(1)]
    log.close()
    log = Log(tmp_path)
    assert read(tmp_path) == [event(0), event(1)]
    assert append(log, event(2), key=b"k").number == 2, "the sender asks again, and is taken"
    log.close()
    assert read(tmp_path) == [event(0), event(1), event(2)]


@settings(max_examples=60, deadline=None)
@given(REQUESTS, REQUESTS, st.data())
def test_a_crash_at_any_byte_of_the_tail_keeps_whole_requests_and_cuts_the_rest(
    durable: list[list[bytes]], unanswered: list[list[bytes]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        write(path, durable)
        [segment] = segments_of(path)
        number, tails = len(flat(durable)), []
        for events in unanswered:
            tails.append(encode_frame(number, 1, events))
            number += len(events)
        tail = b"".join(tails)
        cut = data.draw(st.integers(0, len(tail)), label="bytes that reached the disk")
        segment.write_bytes(segment.read_bytes() + tail[:cut])

        assert read(path) == flat(durable), "nobody reads beyond what is durable"
        log = Log(path)
        whole = [events for n, events in enumerate(unanswered) if len(b"".join(tails[: n + 1])) <= cut]
        assert read(path) == flat([*durable, *whole])
        assert append(log, b"next").number == len(flat([*durable, *whole]))
        log.close()
        assert read(path) == [*flat([*durable, *whole]), b"next"]


@settings(max_examples=60, deadline=None)
@given(REQUESTS, EVENTS, st.data())
def test_a_torn_write_is_never_taken_for_events(
    durable: list[list[bytes]], torn: list[bytes], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        write(path, durable)
        [segment] = segments_of(path)
        frame = bytearray(encode_frame(len(flat(durable)), 1, torn))
        at = data.draw(st.integers(0, len(frame) - 1), label="changed byte")
        frame[at] ^= data.draw(st.integers(1, 255), label="by")
        segment.write_bytes(segment.read_bytes() + frame)
        Log(path).close()
        assert read(path) == flat(durable)


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.data())
def test_damage_to_what_was_answered_is_refused_and_never_cut(requests: list[list[bytes]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        write(path, requests)
        [segment] = segments_of(path)
        before = bytearray(segment.read_bytes())
        at = data.draw(st.integers(HEAD_BYTES, len(before) - 1), label="changed byte")
        before[at] ^= 0x40
        segment.write_bytes(before)
        with pytest.raises(CorruptFile):
            Log(path)
        with pytest.raises(CorruptFile):
            read(path)
        assert segment.read_bytes() == before


@pytest.mark.parametrize("left", [b"", b"HLOG", bytes(28)])
def test_a_mark_that_was_lost_is_made_anew_from_the_segments(tmp_path: Path, left: bytes) -> None:
    write(tmp_path, [[event(1), event(2)]])
    (folder_of(tmp_path) / layout.DURABLE).write_bytes(left)
    Log(tmp_path).close()
    assert read(tmp_path) == [event(1), event(2)]


@pytest.mark.parametrize("left", [0, 5, HEAD_BYTES])
def test_a_segment_that_was_just_being_made_is_finished(tmp_path: Path, left: int) -> None:
    write(tmp_path, [[event(1)], [event(2)]], segment_bytes=1)
    newest = segments_of(tmp_path)[-1]
    log_id, _ = decode_head(newest.read_bytes())
    layout.segment_path(newest.parent, 2).write_bytes(encode_head(log_id, 2)[:left])
    log = Log(tmp_path)
    assert append(log, event(3)).number == 2
    log.close()
    assert read(tmp_path) == [event(1), event(2), event(3)]


def test_segments_that_vanished_are_told_and_not_started_over(tmp_path: Path) -> None:
    write(tmp_path, [[event(1)]])
    segments_of(tmp_path)[0].unlink()
    with pytest.raises(CorruptFile, match="answered as durable"):
        Log(tmp_path)


def test_two_servers_never_write_one_log(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(StoreInUse, match="another server"):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()


# --- segments and the index


def test_events_are_read_across_segments_from_any_number(tmp_path: Path) -> None:
    requests = [[event(3 * n + k) for k in range(3)] for n in range(20)]
    write(tmp_path, requests, segment_bytes=200)
    assert len(segments_of(tmp_path)) > 5
    for first in range(0, 60, 7):
        for stop in (first, first + 1, 59, 60):
            found = [each for frame in read_range(folder_of(tmp_path), first, stop) for each in frame]
            assert found == [event(n) for n in range(first, max(first, stop))]


@pytest.mark.parametrize("damage", ["none", "gone", "zeros", "shifted", "torn"])
def test_the_index_is_a_hint_that_may_be_wrong(tmp_path: Path, damage: str) -> None:
    wide = [b'{"n":%d,"pad":"%s"}' % (n, b"x" * 1000) for n in range(400)]
    write(tmp_path, [[each] for each in wide])
    [segment] = segments_of(tmp_path)
    index = layout.index_path(segment)
    entries = index.read_bytes()
    assert len(entries) // 16 >= segment.stat().st_size // INDEX_EVERY_BYTES - 1
    match damage:
        case "gone":
            index.unlink()
        case "zeros":
            index.write_bytes(bytes(len(entries)))
        case "shifted":
            index.write_bytes(entries[8:] + entries[:8])
        case "torn":
            index.write_bytes(entries[:-3])
    for first in (0, 1, 130, 399):
        assert [each for frame in read_range(folder_of(tmp_path), first, 400) for each in frame] == wide[first:]


def test_damage_in_an_old_segment_is_found_when_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, [[event(n)] for n in range(10)], segment_bytes=1)
    old = segments_of(tmp_path)[3]
    old.write_bytes(old.read_bytes()[:-1] + b"!")
    assert [each for frame in read_range(folder_of(tmp_path), 0, 3) for each in frame] == [event(n) for n in range(3)]
    with pytest.raises(CorruptFile):
        list(read_range(folder_of(tmp_path), 2, 5))


# --- retention


def test_old_segments_go_by_size_and_numbers_go_on(tmp_path: Path) -> None:
    log = Log(tmp_path, LogOptions(segment_bytes=1, keep_bytes=300))
    for n in range(20):
        append(log, event(n))
    log.retain()
    kept = read(tmp_path)
    assert 1 <= len(kept) < 6
    assert kept == [event(n) for n in range(20 - len(kept), 20)]
    assert append(log, event(20)).number == 20
    with pytest.raises(InputLost, match="no longer has"):
        list(read_range(folder_of(tmp_path), 0, 20))
    log.close()


def test_old_events_go_by_age_also_where_nothing_new_comes(tmp_path: Path) -> None:
    clock = Clock()
    log = Log(tmp_path, LogOptions(keep_us=60_000_000), clock=clock)
    append(log, event(0))
    clock.now_s += 50
    append(log, event(1))
    log.retain()
    assert read(tmp_path) == [event(0), event(1)], "a segment is kept while one of its events is to be"
    clock.now_s += 61
    log.retain()
    assert read(tmp_path) == []
    log.close()
    log = Log(tmp_path)
    assert append(log, event(2)).number == 2
    log.close()


# --- keys


def test_a_repeated_key_is_answered_as_the_first_and_appends_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    first = append(log, event(1), event(2), key=b"k")
    append(log, event(3))
    again = append(log, event(1), event(2), key=b"k")
    assert (again.number, again.events, again.repeated) == (first.number, 2, True)
    assert log.append([Append(STREAM, [event(9)], key=b"k")])[0].__class__ is KeyReused
    log.close()
    assert read(tmp_path) == [event(1), event(2), event(3)]


def test_a_key_that_comes_twice_in_one_round_is_appended_once(tmp_path: Path) -> None:
    log = Log(tmp_path)
    same, other = Append(STREAM, [event(1)], key=b"k"), Append(STREAM, [event(2)], key=b"k")
    one, two, three = log.append([same, same, other])
    assert isinstance(one, AppendedEvents) and isinstance(two, AppendedEvents) and isinstance(three, KeyReused)
    assert (one.repeated, two.repeated, two.number) == (False, True, one.number)
    log.close()
    assert read(tmp_path) == [event(1)]


def test_keys_are_known_after_a_restart_also_those_of_older_segments(tmp_path: Path) -> None:
    log = Log(tmp_path, LogOptions(segment_bytes=1))
    for n in range(5):
        append(log, event(n), key=b"key-%d" % n)
    log.close()
    log = Log(tmp_path)
    for n in range(5):
        again = append(log, event(n), key=b"key-%d" % n)
        assert (again.number, again.repeated) == (n, True)
    log.close()
    assert len(read(tmp_path)) == 5


def test_a_key_of_a_request_that_was_never_answered_is_answered_after_the_crash(tmp_path: Path) -> None:
    write(tmp_path, [[event(0)]])
    [segment] = segments_of(tmp_path)
    log = Log(tmp_path)
    append(log, event(1), key=b"k")
    whole = segment.read_bytes()
    log.close()
    mark = folder_of(tmp_path) / layout.DURABLE
    mark.unlink()
    segment.write_bytes(whole)
    log = Log(tmp_path)
    assert append(log, event(1), key=b"k").repeated
    log.close()
    assert read(tmp_path) == [event(0), event(1)]


def test_keys_are_forgotten_after_their_time_and_beyond_their_number(tmp_path: Path) -> None:
    clock = Clock()
    options = LogOptions(remember_us=60_000_000, remember_keys=2)
    log = Log(tmp_path, options, clock=clock)
    for n in range(3):
        append(log, event(n), key=b"key-%d" % n)
    assert not append(log, event(0), key=b"key-0").repeated, "the oldest of three"
    assert append(log, event(2), key=b"key-2").repeated
    clock.now_s += 61
    assert not append(log, event(2), key=b"key-2").repeated
    log.close()
    log = Log(tmp_path, options, clock=clock)
    assert append(log, event(2), key=b"key-2").repeated
    log.close()


# --- partitions


def test_a_round_goes_to_several_partitions_and_each_has_numbers_of_its_own(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.make_stream(STREAM, 3)
    routed = [Append(STREAM, [event(n)], route=b"user-%d" % (n % 5)) for n in range(30)]
    outcomes = [each for each in log.append(routed) if isinstance(each, AppendedEvents)]
    assert len(outcomes) == 30
    assert all(len({each.partition for each in outcomes[user::5]}) == 1 for user in range(5))
    log.close()
    log = Log(tmp_path)
    assert log.streams == {STREAM: 3}
    log.close()
    assert sorted(each for n in range(3) for each in read(tmp_path, n)) == sorted(event(n) for n in range(30))


def test_a_stream_gets_more_partitions_and_keeps_those_it_has(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.make_stream(STREAM, 2)
    append(log, event(1), partition=1)
    log.make_stream(STREAM, 4)
    log.make_stream(STREAM, 1)
    assert log.streams == {STREAM: 4}
    assert append(log, event(2), partition=1).number == 1
    log.close()


def test_the_mark_says_what_readers_may_see(tmp_path: Path) -> None:
    assert read_mark(folder_of(tmp_path)) is None
    write(tmp_path, [[event(1)], [event(2), event(3)]])
    mark = read_mark(folder_of(tmp_path))
    assert mark is not None and mark.number == 3
    assert mark.position == segments_of(tmp_path)[0].stat().st_size
