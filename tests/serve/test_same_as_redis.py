"""Redis itself is the judge: loaded with what a server tells, it must say the same to every question, to the byte.

Its own suite writes before it reads, so it cannot be run against a server that only answers. Here a real Redis is
given the same keys, and both are asked the same: every reading command with arguments of all kinds, in RESP2 and RESP3.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.kinds import make_kinds
from tests.serve.served import Served
from tests.services.redis import Redis

Words = list[bytes]


class Talk:
    """One connection, word by word; errors are told by their text."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._reader = hiredis.Reader()

    def ask(self, *words: bytes | str) -> Any:
        sent = [word.encode() if isinstance(word, str) else word for word in words]
        self._socket.sendall(b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in sent))
        while (said := self._reader.gets()) is False:
            got = self._socket.recv(65536)
            assert got, f"the server closed the connection after {sent}"
            self._reader.feed(got)
        return said

    def close(self) -> None:
        self._socket.close()


def plain(said: Any) -> Any:
    """Replies in a form that can be compared."""
    if isinstance(said, hiredis.ReplyError):
        return ("error", str(said))
    if isinstance(said, list):
        return [plain(part) for part in said]
    if isinstance(said, dict):
        return {plain(key): plain(value) for key, value in said.items()}
    return said


class Both:
    """Our server and a Redis that was told all it knows."""

    def __init__(self, ours: int, redis: int, protocol: int) -> None:
        self.ours, self.redis = Talk(ours), Talk(redis)
        if protocol == 3:
            self.ours.ask("HELLO", "3")
            self.redis.ask("HELLO", "3")

    def load(self) -> None:
        self.redis.ask("FLUSHALL")
        for key in self.ours.ask("KEYS", "*"):
            if self.ours.ask("PTTL", key) != -1:
                continue  # would be gone in one of them first
            kind = self.ours.ask("TYPE", key)
            if kind == b"string":
                self.redis.ask("SET", key, self.ours.ask("GET", key))
            elif kind == b"hash":
                self.redis.ask("HSET", key, *self.ours.ask("HGETALL", key))
            elif kind == b"list":
                self.redis.ask("RPUSH", key, *self.ours.ask("LRANGE", key, "0", "-1"))

    def compare(self, *words: bytes | str) -> None:
        ours, redis = plain(self.ours.ask(*words)), plain(self.redis.ask(*words))
        if words[0] in (b"KEYS", "KEYS"):
            ours, redis = sorted(ours), sorted(redis)
        assert ours == redis, f"{words}: {ours!r} where Redis says {redis!r}"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    redis = Redis(tmp_path_factory.mktemp("judge"))
    redis.start()
    yield redis
    redis.stop()


@pytest.fixture(scope="module", params=[2, 3], ids=["RESP2", "RESP3"])
def both(request: pytest.FixtureRequest, judge: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    made = make_kinds(tmp_path_factory.mktemp("judged") / "store")
    with Served(made.path) as served:
        served.wait_for(0)
        Both(served.port, judge.port, 2).load()
        yield Both(served.port, judge.port, request.param)


STRING, HASH, LIST, NONE = "count.views:a", "fraud.shops:c1", "fraud.recent:c1", "count.views:none"
ODD = "count.views:ü:x y"
# Words as in a shell.
CASES = """\
PING
PING hello
ECHO x
SELECT 0
GET count.views:a
GET count.views:none
GET 'count.views:ü:x y'
get count.views:a
STRLEN count.views:a
MGET count.views:a count.views:none 'count.views:ü:x y'
MGET fraud.shops:c1 count.views:a
EXISTS count.views:a
EXISTS count.views:a count.views:a count.views:none
TYPE count.views:a
TYPE fraud.shops:c1
TYPE fraud.recent:c1
TYPE count.views:none
TTL count.views:a
TTL count.views:none
PTTL count.views:a
HGET fraud.shops:c1 bank
HGET fraud.shops:c1 none
HGET count.views:none x
HMGET fraud.shops:c1 bank none baker
HGETALL fraud.shops:c1
HGETALL count.views:none
HKEYS fraud.shops:c1
HVALS fraud.shops:c1
HLEN fraud.shops:c1
HLEN count.views:none
HEXISTS fraud.shops:c1 bank
HEXISTS fraud.shops:c1 none
HSTRLEN fraud.shops:c1 bank
LLEN fraud.recent:c1
LLEN count.views:none
LRANGE fraud.recent:c1 0 -1
LRANGE fraud.recent:c1 -2 -1
LRANGE fraud.recent:c1 5 9
LRANGE count.views:none 0 -1
LRANGE fraud.recent:c1 x 1
LINDEX fraud.recent:c1 0
LINDEX fraud.recent:c1 -1
LINDEX fraud.recent:c1 9
LINDEX fraud.recent:c1 1.5
KEYS count.views:*
KEYS fraud.shops:c?
KEYS fraud.*:c[12]
KEYS nothing*
GET
GET count.views:a more
MGET
HGET fraud.shops:c1
LRANGE fraud.recent:c1 0
TYPE
EXISTS
GET fraud.shops:c1
GET fraud.recent:c1
HGET count.views:a x
HGETALL fraud.recent:c1
LLEN fraud.shops:c1
LRANGE count.views:a 0 1
"""


@pytest.mark.parametrize("question", CASES.splitlines())
def test_the_answer_is_that_of_redis(both: Both, question: str) -> None:
    both.compare(*shlex.split(question))


KEYS = st.sampled_from([STRING, ODD, HASH, LIST, NONE, "fraud.shops:c2", "count.views:nowhere", "count.views:"])
FIELDS = st.sampled_from(["bank", "baker", "none", "", "ü"])
NUMBERS = st.one_of(st.integers(-6, 6).map(str), st.sampled_from(["", "x", "1.0", "+1", "99999999999999999999"]))
QUESTIONS = st.one_of(
    st.tuples(st.sampled_from(["GET", "TYPE", "STRLEN", "HGETALL", "HKEYS", "HVALS", "HLEN", "LLEN", "TTL"]), KEYS),
    st.tuples(st.sampled_from(["HGET", "HEXISTS", "HSTRLEN"]), KEYS, FIELDS),
    st.tuples(st.just("LINDEX"), KEYS, NUMBERS),
    st.tuples(st.just("LRANGE"), KEYS, NUMBERS, NUMBERS),
    st.tuples(st.sampled_from(["MGET", "EXISTS"]), KEYS, KEYS, KEYS),
    st.tuples(st.just("HMGET"), KEYS, FIELDS, FIELDS),
)


@given(questions=st.lists(QUESTIONS, min_size=1, max_size=30))
def test_whatever_is_asked_the_answers_are_those_of_redis(both: Both, questions: list[tuple[str, ...]]) -> None:
    for words in questions:
        both.compare(*words)
