"""Anything at all is sent to a server: it answers or closes, lives on for others, and its memory stays where it was."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.net.access import Limits
from headrace.serve.resp.commands import COMMANDS
from tests.serve.kinds import make_kinds
from tests.serve.served import Served

EVIL_AT_ONCE = 12
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = make_kinds(tmp_path_factory.mktemp("fuzz") / "store")
    with Served(made.path, limits=Limits(request_bytes=100_000)) as server:
        server.wait_for(0)
        yield server


@pytest.fixture
def faults(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.ERROR):
        yield caplog


def exchange(served: Served, pieces: list[bytes]) -> bytes:
    """Sends bytes, says that there will be no more, and reads until the server closes."""
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.settimeout(60)
        answer = []
        try:
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(65_536):
                answer.append(data)
        except OSError:
            # The server had seen enough.
            pass
        return b"".join(answer)


def memory_bytes() -> int:
    """What this process has in memory, and the server with it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def packed(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def healthy(served: Served, faults: pytest.LogCaptureFixture) -> None:
    with redis.Redis(port=served.port) as client:
        assert client.get("count.views:a") == b"1"
    assert not [record for record in faults.records if record.levelno >= logging.ERROR], "the server stumbled"


@FUZZ
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_any_bytes(served: Served, faults: pytest.LogCaptureFixture, pieces: list[bytes]) -> None:
    exchange(served, pieces)
    healthy(served, faults)


WORDS = st.one_of(
    st.sampled_from(sorted(COMMANDS)),
    st.sampled_from(
        [b"count.views:a", b"fraud.shops:c1", b"fraud.recent:c1", b"sizes:7", b"pairs:[", b"last:a", b"*", b"[a-", b"0",
         b"-1", b"MATCH", b"COUNT", b"TYPE", b"GET", b"AUTH", b"SETNAME", b"3", b"2", b"1", b"99999999999999999999",
         b"",
         b"[[[[", b"[" * 5000, b'{"a":' * 1000,
         b"\xff\xfe", b"LIST", b"ON", b"MULTI", b"EXEC", b"DOCS", b"GETKEYS", b'{"a":1}', b"NUMSUB"]
    ),
    st.binary(max_size=20),
)  # fmt: skip


def hurried(words: list[bytes]) -> list[bytes]:
    """The same request, but one that waits does so for a moment at most."""
    waits = words[0].upper() == b"HEADRACE.WAIT" and len(words) > 2 and words[-1].isdigit()
    return [*words[:-1], b"%d" % (int(words[-1]) % 3)] if waits and int(words[-1]) <= 3_600_000 else words


@FUZZ
@given(st.lists(st.lists(WORDS, min_size=1, max_size=6), max_size=8))
def test_any_words(served: Served, faults: pytest.LogCaptureFixture, requests: list[list[bytes]]) -> None:
    exchange(served, [packed(hurried(words)) for words in requests])
    healthy(served, faults)


@FUZZ
@given(st.sampled_from(sorted(COMMANDS)), st.lists(WORDS, max_size=5), st.sampled_from([2, 3]))
def test_every_command_with_any_arguments_is_answered(
    served: Served, faults: pytest.LogCaptureFixture, name: bytes, words: list[bytes], version: int
) -> None:
    answer = exchange(
        served, [packed([b"HELLO", b"%d" % version]), packed(hurried([name, *words])), packed([b"ECHO", b"done"])]
    )
    assert b"server's own" not in answer
    healthy(served, faults)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is told by /proc, as on Linux")
@pytest.mark.parametrize(
    "evil",
    [
        b"*1000000000\r\n",
        b"*65536\r\n" * 1000,
        b"*1\r\n" * 20_000,
        b"*2\r\n$3\r\nGET\r\n$99999\r\n" + b"x" * 50_000,
        b"*60000\r\n" + b"$0\r\n\r\n" * 59_999,
        b"x" * 60_000,
        b"$" * 60_000,
        b"\x00" * 60_000,
        b"PSUBSCRIBE " + b"*a" * 20_000 + b"\r\n",
        b"KEYS " + b"*a" * 20_000 + b"\r\n",
        b"MULTI\r\n" + b"GET a\r\n" * 20_000,
        b"SUBSCRIBE" + b" x" * 20_000 + b"\r\n",
        packed([b"SUBSCRIBE", *(b"x%d" % i for i in range(7000))]),
        packed([b"SUBSCRIBE", *(b"%d" % i + b"x" * 900 for i in range(100))]) * 10,
        packed([b"PSUBSCRIBE", *(b"*x%d" % i for i in range(7000))]),
        packed([b"PSUBSCRIBE", b"*" + b"?*" * 500]) * 50,
        b"".join(packed([b"PSUBSCRIBE", b"*%dx*" % i * 100]) for i in range(100)),
        packed([b"HEADRACE.WAIT", b"x", b"[" * 90_000, b"10"]),
    ],
)
def test_evil_requests_cost_next_to_nothing(served: Served, faults: pytest.LogCaptureFixture, evil: bytes) -> None:
    exchange(served, [evil])
    before = memory_bytes()
    held = []
    for _ in range(EVIL_AT_ONCE):
        client = socket.create_connection(("127.0.0.1", served.port))
        client.settimeout(60)
        with contextlib.suppress(ConnectionError):
            client.sendall(evil)
        held.append(client)
    healthy(served, faults)
    grown = memory_bytes() - before
    for client in held:
        client.close()
    served.until(lambda: served.resp.connections == 0)
    assert grown < EVIL_AT_ONCE * 6 * 2**20, f"{grown / 2**20:.0f} MB for {EVIL_AT_ONCE} requests"
    healthy(served, faults)
