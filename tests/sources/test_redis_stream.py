"""Redis streams as a source, on a real server: replay, starts, losses, bad entries."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import headrace as hr
from headrace.connectors.redis import reader as redis_reader
from headrace.connectors.source_contract import BadRows, Offset
from headrace.errors import EpochFailed, InputLost, ProgramError, SettingsError
from headrace.model.rows import codec_of
from headrace.testing.sources import verify_source

if TYPE_CHECKING:
    from headrace.connectors.redis.reader import RedisStreamReader
    from tests.services.redis import Redis


class Order(hr.Record):
    sku: str
    n: int
    price: float = 0.0
    gift: bool = False
    at: hr.Timestamp | None = None
    tags: list[str] = []


class Seen(hr.Record):
    entry: str
    at: hr.Timestamp
    stream: str
    n: int


CODEC = codec_of(Order)


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def stream() -> str:
    return f"orders-{uuid.uuid4().hex}"


def add(client: Any, stream: str, *numbers: int) -> list[str]:
    pipe = client.pipeline(transaction=False)
    for n in numbers:
        pipe.xadd(stream, {"sku": f"s{n % 3}", "n": n})
    return [entry.decode() for entry in pipe.execute()]


def reader(server: Redis, *streams: str, of: Any = Order, **options: Any) -> RedisStreamReader:
    codec = codec_of(of)
    source: Any = hr.source.redis_stream(streams, url=server.url, **options).bind(codec)
    made: RedisStreamReader = source.reader(codec)
    return made


def read(reader: RedisStreamReader, start: Offset, end: Offset) -> list[Any]:
    """Rows, and the texts of bad ones."""
    found: list[Any] = []
    for split in reader.splits(start, end):
        for each in reader.read(split):
            if isinstance(each, BadRows):
                found += [msgspec.json.decode(text) for text in each.texts]
            else:
                found += reader.codec.to_objects(each.columns)
    return found


def numbers(reader: RedisStreamReader, start: Offset, end: Offset) -> list[int]:
    return [row.n for row in read(reader, start, end)]


# --- replay


@pytest.mark.parametrize("start", ["earliest", "0-1", "2020-01-01"])
def test_a_stream_is_replayed_exactly(redis_server: Redis, client: Any, stream: str, start: str) -> None:
    add(client, stream, *range(30))
    client.xadd(stream, {"sku": "no number"})
    add(client, stream, *range(30, 40))
    made = lambda: reader(redis_server, stream, start=start)  # noqa: E731
    assert verify_source(made, CODEC.schema, epochs=12) == 41


def test_several_streams_are_replayed_exactly(
    redis_server: Redis, client: Any, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_reader, "FIRST_PAGE", 3)
    monkeypatch.setattr(redis_reader, "LARGEST_PAGE", 4)
    monkeypatch.setattr(redis_reader, "WALKED_ENTRIES", 2)
    add(client, stream, *range(25))
    add(client, stream + "-2", *range(3))
    made = lambda: reader(redis_server, stream, stream + "-2", stream + "-none")  # noqa: E731
    assert verify_source(made, CODEC.schema) == 28


def test_an_epoch_takes_a_fair_share_of_each_stream(redis_server: Redis, client: Any, stream: str) -> None:
    add(client, stream, *range(100))
    add(client, stream + "-2", *range(3))
    made = reader(redis_server, stream, stream + "-2", max_per_epoch=10)
    start = made.initial()
    end = made.latest(start, None)
    assert [len(list(made.read(split))) for split in made.splits(start, end)] == [1, 1]
    assert numbers(made, start, end) == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert made.remaining(end) == 93
    assert made.latest(end, 4)[stream]["n"] == 11


def test_positions_outlive_the_reader_and_new_entries_come_after_them(
    redis_server: Redis, client: Any, stream: str
) -> None:
    add(client, stream, 1, 2)
    first = reader(redis_server, stream)
    end = first.latest(first.initial(), None)
    assert first.latest(end, None) == end, "nothing new"
    add(client, stream, 3)
    second = reader(redis_server, stream)
    later = second.latest(end, None)
    assert numbers(second, end, later) == [3]
    assert numbers(second, second.initial(), later) == [1, 2, 3]


def test_a_run_that_ends_with_its_input_ignores_what_comes_later(redis_server: Redis, client: Any, stream: str) -> None:
    add(client, stream, 1, 2)
    made = reader(redis_server, stream)
    made.available_now()
    add(client, stream, 3)
    end = made.latest(made.initial(), None)
    assert numbers(made, made.initial(), end) == [1, 2]
    assert made.latest(end, None) == end


def test_a_stream_that_is_added_to_the_program_begins_where_it_should(
    redis_server: Redis, client: Any, stream: str
) -> None:
    add(client, stream, 1)
    one = reader(redis_server, stream)
    end = one.latest(one.initial(), None)
    add(client, stream + "-2", 7)
    both = reader(redis_server, stream, stream + "-2")
    later = both.latest(end, None)
    assert numbers(both, end, later) == [7]
    without = reader(redis_server, stream + "-2")
    assert without.latest(later, None)[stream] == later[stream], "a stream that is left out keeps its place"


# --- where to start


def test_latest_begins_behind_what_was_there_when_the_first_epoch_was_planned(
    redis_server: Redis, client: Any, stream: str
) -> None:
    add(client, stream, 1, 2)
    made = reader(redis_server, stream, start="latest")
    start = made.initial()
    assert start == reader(redis_server, stream, start="latest").initial(), "a constant, whenever it is asked"
    planned = made.latest(start, None)
    assert planned != start
    assert numbers(made, start, planned) == []
    add(client, stream, 3, 4)
    end = made.latest(planned, 1)
    assert numbers(made, planned, end) == [3]
    assert numbers(made, start, end) == [3], "from the first position on nothing else is read"
    assert numbers(made, end, made.latest(end, None)) == [4]


def test_latest_of_a_stream_that_is_not_there_yet_reads_it_from_its_first_entry(
    redis_server: Redis, client: Any, stream: str
) -> None:
    made = reader(redis_server, stream, start="latest")
    planned = made.latest(made.initial(), None)
    add(client, stream, 1)
    assert numbers(made, planned, made.latest(planned, None)) == [1]


def test_a_start_may_be_an_entry_or_a_time(redis_server: Redis, client: Any, stream: str) -> None:
    for ms in (1000, 2000, 3000):
        client.xadd(stream, {"sku": "a", "n": ms}, id=f"{ms}-5")
    for start, expected in [
        ("2000-5", [2000, 3000]),
        ("2000-6", [3000]),
        (hr.Timestamp(2_000_000), [2000, 3000]),
        (hr.Timestamp(2_000_001), [3000]),
        (datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), [3000]),
        ("1970-01-01T00:00:01Z", [1000, 2000, 3000]),
        ("9000-0", []),
    ]:
        made = reader(redis_server, stream, start=start)
        assert numbers(made, made.initial(), made.latest(made.initial(), None)) == expected, start


def test_a_start_in_the_future_waits_for_its_entry(redis_server: Redis, client: Any, stream: str) -> None:
    client.xadd(stream, {"sku": "a", "n": 1}, id="1000-0")
    made = reader(redis_server, stream, start="5000-0")
    end = made.latest(made.initial(), None)
    assert end == made.initial()
    client.xadd(stream, {"sku": "a", "n": 2}, id="5000-0")
    assert numbers(made, end, made.latest(end, None)) == [2]


@pytest.mark.parametrize("start", ["soon", "12-x", 1.5, None, True])
def test_another_start_is_a_mistake_in_the_program(start: Any) -> None:
    with pytest.raises(ProgramError, match="invalid start="):
        hr.source.redis_stream("orders", start=start)


# --- entries that are gone


def begun(redis_server: Redis, client: Any, stream: str) -> tuple[RedisStreamReader, Offset]:
    """A reader that has read two of five entries."""
    add(client, stream, 1, 2, 3, 4, 5)
    made = reader(redis_server, stream)
    return made, made.latest(made.initial(), 2)


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (
            lambda client, stream: client.xtrim(stream, maxlen=2, approximate=False),
            "1 of 3 unread entries were trimmed",
        ),
        (lambda client, stream: client.xtrim(stream, maxlen=0, approximate=False), "none is left"),
        (lambda client, stream: client.xdel(stream, client.xrange(stream)[3][0]), "XDEL"),
        (lambda client, stream: client.delete(stream), "the stream is gone"),
        (lambda client, stream: (client.delete(stream), add(client, stream, 7, 8, 9, 10)), "made anew"),
    ],
)
def test_entries_that_are_gone_before_they_were_read_are_an_error(
    redis_server: Redis, client: Any, stream: str, lose: Callable[[Any, str], object], words: str
) -> None:
    made, at = begun(redis_server, client, stream)
    lose(client, stream)
    for limit in (None, 1):
        with pytest.raises(InputLost, match=words) as caught:
            made.latest(at, limit)
    assert stream in caught.value.what
    assert 'lost="skip"' in caught.value.next_move


def test_entries_that_were_read_may_go(redis_server: Redis, client: Any, stream: str) -> None:
    made, at = begun(redis_server, client, stream)
    client.xtrim(stream, maxlen=3, approximate=False)
    end = made.latest(at, None)
    assert numbers(made, at, end) == [3, 4, 5]
    client.xtrim(stream, maxlen=0, approximate=False)
    assert made.latest(end, None) == end
    add(client, stream, 6)
    assert numbers(made, end, made.latest(end, None)) == [6]


def test_entries_that_were_gone_before_the_job_began_are_no_loss(redis_server: Redis, client: Any, stream: str) -> None:
    ids = add(client, stream, *range(10))
    client.xtrim(stream, maxlen=6, approximate=False)
    client.xdel(stream, ids[7])
    made = reader(redis_server, stream, max_per_epoch=2)
    at, found = made.initial(), []
    while (end := made.latest(at, None)) != at:
        found += numbers(made, at, end)
        at = end
    assert found == [4, 5, 6, 8, 9]


def test_entries_that_go_between_planning_and_reading_are_an_error(
    redis_server: Redis, client: Any, stream: str
) -> None:
    made, at = begun(redis_server, client, stream)
    end = made.latest(at, None)
    client.xtrim(stream, maxlen=2, approximate=False)
    with pytest.raises(InputLost, match="2 of 3 entries"):
        read(made, at, end)


def test_who_wants_to_goes_on_without_what_is_gone(redis_server: Redis, client: Any, stream: str) -> None:
    _, at = begun(redis_server, client, stream)
    client.xtrim(stream, maxlen=2, approximate=False)
    skipping = reader(redis_server, stream, lost="skip")
    end = skipping.latest(at, None)
    assert numbers(skipping, at, end) == [4, 5]
    add(client, stream, 6)
    again = reader(redis_server, stream)
    assert numbers(again, end, again.latest(end, None)) == [6], "and is as strict as before"


# --- entries as rows


def test_fields_are_read_from_text(redis_server: Redis, client: Any, stream: str) -> None:
    client.xadd(stream, {"sku": "a", "n": "3", "price": "1.5", "gift": "true", "at": "2024-01-01T00:00:00Z",
                         "tags": '["x","y"]', "more": "is ignored"})  # fmt: skip
    client.xadd(stream, {"sku": "", "n": "-1"})
    made = reader(redis_server, stream)
    assert read(made, made.initial(), made.latest(made.initial(), None)) == [
        Order("a", 3, 1.5, True, hr.timestamp("2024-01-01"), ["x", "y"]),
        Order("", -1),
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sku": "a"}, "the entry has no field 'n'"),
        ({"sku": "a", "n": "many"}, "n is no int: "),
        ({"sku": "a", "n": "1", "at": "noon"}, "at is no "),
        ({"sku": "a", "n": "1", "tags": "x"}, "tags is no list[str]: "),
        ({"sku": b"\xff", "n": "1"}, "sku is no str: "),
        ({"sku": "a", "n": str(2**70)}, "fit"),
    ],
)
def test_an_entry_that_gives_no_row_is_a_bad_row_in_its_place(
    redis_server: Redis, client: Any, stream: str, fields: dict[Any, Any], reason: str
) -> None:
    add(client, stream, 1)
    entry = client.xadd(stream, fields).decode()
    add(client, stream, 2)
    made = reader(redis_server, stream)
    one, bad, two = read(made, made.initial(), made.latest(made.initial(), None))
    assert (one.n, two.n) == (1, 2)
    assert bad["where"] == f"stream {stream}, entry {entry}"
    assert reason in bad["reason"]
    assert set(msgspec.json.decode(bad["text"])) == set(fields)


def test_one_field_may_hold_the_row_as_json(redis_server: Redis, client: Any, stream: str) -> None:
    client.xadd(stream, {"payload": '{"sku":"a","n":2,"at":"2024-01-01T00:00:00Z"}'})
    client.xadd(stream, {"payload": '{"sku":"a"}'})
    client.xadd(stream, {"other": "x"})
    made = reader(redis_server, stream, field="payload")
    good, short, other = read(made, made.initial(), made.latest(made.initial(), None))
    assert good == Order("a", 2, at=hr.timestamp("2024-01-01"))
    assert "missing required field `n`" in short["reason"]
    assert other["reason"] == "the entry has no field 'payload'"


@pytest.mark.parametrize("field", [None, "payload"])
def test_a_row_may_take_the_id_its_time_and_the_name_of_the_stream(
    redis_server: Redis, client: Any, stream: str, field: str | None
) -> None:
    client.xadd(stream, {"n": "4"} if field is None else {"payload": '{"n":4}'}, id="1704067200123-7")
    made = reader(redis_server, stream, of=Seen, field=field, id_as="entry", time_as="at", stream_as="stream")
    [row] = read(made, made.initial(), made.latest(made.initial(), None))
    assert row == Seen("1704067200123-7", hr.timestamp("2024-01-01T00:00:00.123Z"), stream, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id_as": "entri"}, "did you mean entry"),
        ({"id_as": "n"}, "another type"),
        ({"time_as": "entry"}, "another type"),
        ({"lost": "maybe"}, "lost cannot be"),
        ({"url": "http://localhost"}, "invalid address"),
        ({"max_per_epoch": 0}, "max_per_epoch"),
    ],
)
def test_wrong_options_are_found_while_the_program_is_built(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        hr.source.redis_stream("orders", **options).bind(codec_of(Seen))


def test_plain_values_need_a_field() -> None:
    with pytest.raises(ProgramError, match="field="):
        hr.source.redis_stream("orders").bind(codec_of(int))


# --- a server that is away, or does not let us


def test_a_server_that_does_not_answer_fails_the_epoch_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_reader, "TRIES", 1)
    codec = codec_of(Order)
    made = hr.source.redis_stream("orders", url="redis://:hunter2@127.0.0.1:1").reader(codec)
    with pytest.raises(EpochFailed, match="Redis does not answer") as caught:
        made.latest(made.initial(), None)
    assert "hunter2" not in str(caught.value)
    split = made.splits({"orders": {"id": "1-0", "n": 1, "from": ["0-0", 0]}},
                        {"orders": {"id": "2-0", "n": 2, "from": ["0-0", 0]}})[0]  # fmt: skip
    with pytest.raises(EpochFailed, match="Redis does not answer"):
        list(made.read(split))


def test_a_key_that_holds_no_stream_and_a_missing_right_are_told(redis_server: Redis, client: Any, stream: str) -> None:
    client.set(stream, "x")
    made = reader(redis_server, stream)
    with pytest.raises(ProgramError, match="holds no stream"):
        made.latest(made.initial(), None)
    client.execute_command("ACL", "SETUSER", "guest", "on", ">pw", "~*", "+ping", "+eval")
    url = redis_server.url.replace("://", "://guest:pw@")
    denied = hr.source.redis_stream(stream, url=url).reader(CODEC)
    with pytest.raises(SettingsError, match="does not let"):
        denied.latest(denied.initial(), None)
    wrong = hr.source.redis_stream(stream, url=url.replace("pw@", "no@")).reader(CODEC)
    with pytest.raises(SettingsError, match="does not let"):
        wrong.latest(wrong.initial(), None)
