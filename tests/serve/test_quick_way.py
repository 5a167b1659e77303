"""GET and MGET have a quick way through a connection: it says to the byte what the long way says, whatever comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.net.access import Access, Limits, add_user
from headrace.read.follow import Follower
from headrace.read.store import Store
from headrace.serve.resp.connection import Connection
from headrace.serve.resp.scopes import asked, key_asked
from headrace.serve.resp.server import RespServer
from headrace.serve.service import Service
from tests.effort import examples
from tests.serve.kinds import STATES, publish_kinds
from tests.serve.made_store import MadeStore, values

FUZZ = settings(
    max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
LIMITS = Limits(keys=6, request_bytes=9000)
LONG = "l" * 200


class Wire(asyncio.Transport):
    """Keeps what is written; full above so many bytes until somebody reads."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__()
        self.said = bytearray()
        self.unread = 0
        self.room = room
        self.protocol: Connection | None = None
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += data
        self.unread += len(data)
        if self.room is not None and self.unread > self.room and self.protocol is not None and not self.protocol.full:
            self.protocol.pause_writing()

    def read_all(self) -> None:
        """The client reads until nothing is left for it."""
        assert self.protocol is not None
        while self.protocol.full:
            self.unread = 0
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class LongWay(Connection):
    """A connection about which something is always special."""

    plain = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


def make_server(path: Path, access: Access | None = None, limits: Limits = LIMITS) -> RespServer:
    service = Service(lambda: Store(path), where=str(path), limits=limits, access=access)
    server = RespServer(service)
    snapshot = Follower(Store(path)).look()
    assert snapshot is not None
    service._swap(snapshot)
    return server


@pytest.fixture(scope="module", autouse=True)
def one_long_turn() -> Iterator[None]:
    """There is no loop in which others could have theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.serve.resp.connection._TURN_S", float("inf"))
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quick") / "store"
    made = MadeStore(path)
    publish_kinds(made)
    odd = ["", "$", "a$b", "a\r\nb", "*2\r\n$3\r\nGET\r\n$", LONG, *(f"k{number}" for number in range(20))]
    large = [("large", "x" * 6000), ("larger", "y" * 300_000)]
    rows = [*((key, number) for number, key in enumerate(odd)), *large]
    made.epoch({"count": [values("views", rows)]}, states=STATES)
    return path


@pytest.fixture(scope="module")
def servers(store: Path) -> tuple[RespServer, RespServer]:
    return make_server(store), make_server(store)


def connect(
    server: RespServer, kind: type[Connection] = Connection, room: int | None = None
) -> tuple[Connection, Wire]:
    connection, wire = kind(server), Wire(room)
    wire.protocol = connection
    connection.connection_made(wire)
    connection.session.number = 1
    return connection, wire


def talk(
    server: RespServer, pieces: list[bytes], kind: type[Connection], room: int | None = None
) -> tuple[bytes, bool]:
    """What a client hears that sends these pieces, and whether the connection was closed."""
    connection, wire = connect(server, kind, room)
    for piece in pieces:
        if wire.closed:
            break
        connection.data_received(piece)
        wire.read_all()
    connection.connection_lost(None)
    return bytes(wire.said), wire.closed


def packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


KEYS = st.sampled_from(
    [b"count.views:" + key for key in (
        b"a", b"b", b"k1", b"k2", b"k3", b"", b"$", b"a$b", b"a\r\nb", b"*2\r\n$3\r\nGET\r\n$", b"none", b"large",
        b"larger", LONG.encode(), b"\xff", b"x" * 1500,
    )]
    + [b"count.brief:soon", b"count.brief:over", b"fraud.shops:c1", b"fraud.shops:none", b"sizes:7", b"sizes:007",
       b"sizes:x", b'pairs:["mill", 3]', b"last:a", b"nope:a", b"nope", b"", b"\r\n", b"$3\r\nGET\r\n$"]
)  # fmt: skip
GETS = st.builds(packed, st.sampled_from([b"GET", b"GET", b"GET", b"get", b"Get"]), KEYS)
MGETS = st.builds(
    lambda name, keys: packed(name, *keys), st.sampled_from([b"MGET", b"MGET", b"mget"]), st.lists(KEYS, max_size=8)
)
OTHERS = st.sampled_from(
    [packed(b"PING"), packed(b"ECHO", b"*2\r\n$3\r\nGET\r\n$"), packed(b"MULTI"), packed(b"EXEC"), packed(b"GET"),
     packed(b"GET", b"a", b"b"), packed(b"SELECT", b"1"), packed(b"HELLO", b"3"), packed(b"SET", b"a", b"1"),
     b"GET count.views:a\r\n", b"*0\r\n", b"\r\n"]
)  # fmt: skip
BROKEN = st.sampled_from(
    [b"*2\r\n$4\r\nGET\r\n$1\r\na\r\n", b"*2\r\n$3\r\nGET\r\n$2\r\na\r\n", b"*2\r\n$3\r\nGET\r\n",
     b"*2\r\n$3\r\nGET\r\n$", b"$13\r\ncount.views:a\r\n",
     b"*2\r\n$3\r\nGET\r\n$13\r\ncount.views:a\r", b"*2\r\n$3\r\nGET\r\n$013\r\ncount.views:a\r\n",
     b"*3\r\n$4\r\nMGET\r\n$13\r\ncount.views:a\r\n", b"*1\r\n$4\r\nMGET\r\n$13\r\ncount.views:a\r\n",
     b"*2\r\n$4\r\nMGET\r\n$13\r\ncount.views:a", b"*2\r\n$4\r\nMGET\r\n$", b"*-1\r\n", b"*x\r\n", b"\x00"]
)  # fmt: skip
REQUESTS = st.one_of(GETS, GETS, GETS, MGETS, OTHERS)


@FUZZ
@given(st.lists(REQUESTS, max_size=12), st.lists(st.one_of(BROKEN, REQUESTS), max_size=3), st.data())
def test_both_ways_say_the_same_wherever_the_input_is_cut(
    servers: tuple[RespServer, RespServer], requests: list[bytes], ending: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join([*requests, *ending])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=4)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)]) if a < b]
    quick, long = servers
    expected = talk(long, pieces, LongWay)
    assert talk(quick, pieces, Connection) == expected
    # Now everything that may be kept is; and a client may be slow to read.
    room = data.draw(st.one_of(st.none(), st.integers(0, 400)))
    assert talk(quick, pieces, Connection, room) == expected


@FUZZ
@given(st.lists(KEYS, min_size=1, max_size=700))
def test_long_pipelines_are_answered_in_order(servers: tuple[RespServer, RespServer], keys: list[bytes]) -> None:
    stream = b"".join(packed(b"GET", key) for key in keys)
    assert talk(servers[0], [stream], Connection) == talk(servers[1], [stream], LongWay)


@given(st.binary(max_size=2000))
def test_a_key_is_read_as_it_was_asked_for(key: bytes) -> None:
    assert key_asked(asked(key)) == (key if len(key) < 1024 else None)
    assert key_asked(asked(key)[:-1]) is None
    assert key_asked(asked(key) + b"x") is None


def test_kept_replies_of_one_read_are_written_at_once_and_not_without_bound(
    servers: tuple[RespServer, RespServer],
) -> None:
    connection, wire = connect(servers[0], room=100_000)
    key = b"count.views:" + LONG.encode()
    connection.data_received(packed(b"GET", b"count.views:larger") * 8)
    assert len(wire.said) < 4 * 300_000, "the client does not read: what else it asked for waits"
    wire.read_all()
    assert bytes(wire.said).count(b"$300002\r\n") == 8
    connection.data_received(packed(b"GET", key) * 3)
    assert bytes(wire.said).endswith(b"$1\r\n5\r\n" * 3)


def test_a_user_is_told_what_is_not_theirs_on_either_way(store: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("count.*",))
    server = make_server(store, Access(users))
    hello = packed(b"AUTH", b"web", token.encode())
    theirs, others = packed(b"GET", b"count.views:a"), packed(b"GET", b"last:a")
    both = packed(b"MGET", b"count.views:a", b"last:a")
    for kind in (Connection, LongWay):
        said, _ = talk(server, [theirs, hello, theirs, others, theirs + others + theirs, both], kind)
        refusal = b"-NOPERM user web may not read the state last\r\n"
        told = b"-NOAUTH Authentication required.\r\n+OK\r\n$1\r\n1\r\n" + refusal
        assert said == told + b"$1\r\n1\r\n" + refusal + b"$1\r\n1\r\n" + refusal


def test_values_longer_than_a_reply_may_be_are_refused_on_either_way(store: Path) -> None:
    server = make_server(store, limits=Limits(reply_bytes=10_000))
    one, two = packed(b"GET", b"count.views:large"), packed(b"MGET", b"count.views:large", b"count.views:a")
    too_long = packed(b"GET", b"count.views:larger")
    too_many = packed(b"MGET", b"count.views:large", b"count.views:large", b"count.views:larger")
    together = packed(b"MGET", b"count.views:large", b"count.views:a", b"count.views:" + LONG.encode())
    for kind in (Connection, LongWay):
        for request in (one, two, together):
            assert b"ERR" not in talk(server, [request], kind)[0]
        for request in (too_long, too_many):
            assert talk(server, [request], kind)[0].startswith(b"-ERR limit: a reply may have 10000 bytes,")
        twice = talk(server, [packed(b"MGET", b"count.views:large", b"count.views:large")], kind)[0]
        assert twice.startswith(b"-ERR limit: the values have more than 10000 bytes together")


def test_a_connection_counts_its_commands_on_either_way(servers: tuple[RespServer, RespServer]) -> None:
    one, many = packed(b"GET", b"count.views:a"), packed(b"MGET", b"count.views:a", b"count.views:b")
    for kind in (Connection, LongWay):
        connection, _ = connect(servers[0], kind)
        for piece in (one, one * 3, many, packed(b"PING")):
            connection.data_received(piece)
        assert connection.session.commands == 6
