"""HTTP asked by somebody who means no good: whatever comes, there is an answer, and it is never a fault of ours."""

from __future__ import annotations

import http.client
import resource
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.served import Served
from tests.serve.tweets import Tweets

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")
ADDRESSES = ["hourly", "totals", "last", "watch.seen", "watch.sizes", "watch.recent", "by_size", "by_pair", "nope", ""]
ours = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("fuzz") / "store"
    with Tweets(path) as tweets, Served(path) as server:
        server.wait_for(tweets.push(("a", "12:01", 1), ("b", "12:01", 1), ("5", "13:05", 5)))
        yield server


def ask(served: Served, method: str, path: str, body: bytes | None = None, headers: Any = None) -> int:
    connection = http.client.HTTPConnection("localhost", served.http_port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        if "text/event-stream" in (answer.headers["content-type"] or ""):
            return answer.status
        content = answer.read()
        if answer.status >= 400 and method != "HEAD":
            assert msgspec.json.decode(content)["error"]["what"], content
        return answer.status
    finally:
        connection.close()


texts = st.text(max_size=30)
parts = st.one_of(texts, st.sampled_from(["state", "get", "windows", "a", "5", "[]", '["a",1]', "..", "null", "%"]))
values = st.one_of(
    texts, st.integers().map(str), st.sampled_from(["arrow", "csv", "json", "true", "0", "1s", "-1", "{}"])
)
names = st.one_of(
    texts,
    st.sampled_from(
        [
            "at",
            "wait_epoch",
            "wait_offset",
            "timeout",
            "timeline",
            "prefix",
            "limit",
            "after",
            "format",
            "count",
            "window",
        ]
    ),
)


def no_waiting(query: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A client may well ask to wait for a minute; a test may not."""
    kept = [(name, value) for name, value in query if name != "timeout"]
    return [*kept, ("timeout", "0s")] if any(name.startswith("wait") for name, _ in kept) else kept


@ours
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "WHAT"]),
    address=st.sampled_from(ADDRESSES),
    more=st.lists(parts, max_size=3),
    query=st.lists(st.tuples(names, values), max_size=4).map(no_waiting),
)
def test_any_path_and_query_is_answered(
    served: Served, method: str, address: str, more: list[str], query: list[tuple[str, str]]
) -> None:
    path = "/".join(["/v1/jobs/tweets/state", address, *(quote(part, safe="") for part in more)])
    asked = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    assert ask(served, method, f"{path}?{asked}") < 500 or "wait" in asked


@ours
@given(
    address=st.sampled_from(ADDRESSES[:8]),
    body=st.one_of(
        st.binary(max_size=200),
        st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | texts, st.lists, max_leaves=8).map(
            lambda keys: msgspec.json.encode({"keys": [keys]})
        ),
        st.lists(st.binary(max_size=12)).map(lambda keys: msgspec.msgpack.encode({"keys": keys, "windows": True})),
        st.just(b'{"keys":' + b"[" * 5_000),
    ),
    packed=st.booleans(),
    accept=st.sampled_from(["", "application/msgpack", "*/*", "text/csv", ",;q"]),
)
def test_any_body_is_answered(served: Served, address: str, body: bytes, packed: bool, accept: str) -> None:
    kind = "application/msgpack" if packed else "application/json"
    status = ask(served, "POST", f"/v1/jobs/tweets/state/{address}/get", body, {"Content-Type": kind, "Accept": accept})
    assert status in (200, 400)


@ours
@given(
    query=st.lists(st.tuples(st.sampled_from(["state", "key", "values", "x"]), values), max_size=3),
    last=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=50),
)
def test_any_wish_for_changes_is_answered(served: Served, query: list[tuple[str, str]], last: str) -> None:
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query)
    assert ask(served, "GET", f"/v1/jobs/tweets/changes?{asked}", None, {"Last-Event-ID": last}) < 500


@ours
@given(
    data=st.one_of(st.binary(max_size=500), st.binary(max_size=60).map(lambda b: b"GET /" + b + b" HTTP/1.1\r\n\r\n"))
)
def test_any_bytes_leave_the_server_standing(served: Served, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.http_port), timeout=60) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        answer = line.recv(65_536)
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert ask(served, "GET", "/v1/jobs/tweets/state/watch.seen/a") == 200


def test_many_half_requests_cost_little_memory(served: Served) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = [socket.create_connection(("127.0.0.1", served.http_port), timeout=60) for _ in range(200)]
    try:
        for line in lines:
            line.sendall(b"POST /v1/jobs/tweets/state/watch.seen/get HTTP/1.1\r\nHost: localhost\r\n")
            line.sendall(b"Content-Length: 4000000\r\n\r\n" + b"x" * 1000)
        assert ask(served, "GET", "/v1/jobs/tweets/state/watch.seen/a") == 200
    finally:
        for line in lines:
            line.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
