"""Requests out of bytes: in any pieces, of any content, and never more than the limits allow."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serve.resp.requests import BadRequest, RequestParser


def packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


REQUEST = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


@given(st.lists(REQUEST, max_size=6), st.data())
def test_requests_come_out_as_they_were_sent_whatever_the_pieces(
    requests: list[list[bytes]], data: st.DataObject
) -> None:
    stream = b"".join(packed(*request) for request in requests)
    reader, found = RequestParser(), []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += reader.feed(stream[at : at + size])
        at += size
    assert found == requests
    assert not reader.pending


def test_a_request_byte_by_byte() -> None:
    reader, found = RequestParser(), []
    for byte in packed(b"GET", b"a\r\nb:*2\r\n$3") * 2:
        found += reader.feed(bytes([byte]))
    assert found == [[b"GET", b"a\r\nb:*2\r\n$3"]] * 2


def test_many_words_and_long_words() -> None:
    words = [b"MGET", *(b"key-%d" % i for i in range(5000)), b"x" * 70_000]
    assert RequestParser().feed(packed(*words) + packed(b"PING")) == [words, [b"PING"]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\r\n", [[b"PING"]]),
        (b"  get   a:b \n", [[b"get", b"a:b"]]),
        (b"ECHO \"two words\" 'and more' x\r\n", [[b"ECHO", b"two words", b"and more", b"x"]]),
        (b'ECHO "a\\"b"\r\n', [[b"ECHO", b'a"b']]),
        (b"\r\n\r\n", []),
        (b"PING\r\n" + packed(b"PING"), [[b"PING"], [b"PING"]]),
        (packed(b"PING") + b"PING\r\n", [[b"PING"], [b"PING"]]),
        (b"*0\r\n*-1\r\n" + packed(b"PING"), [[b"PING"]]),
    ],
)
def test_lines_that_people_type_are_requests_too(line: bytes, words: list[list[bytes]]) -> None:
    assert RequestParser().feed(line) == words


@pytest.mark.parametrize(
    "wrong",
    [
        b"*x\r\n",
        b"*1_0\r\n",
        b"*99999999999999999999\r\n",
        b"*1000000000\r\n",
        b"*1\r\n+OK\r\n",
        b"*1\r\n*1\r\n$1\r\nx\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$99999999999\r\n",
        b"*1\r\n$1\r\nxyz\r\n",
        b"*1\r\n$ 1\r\nx\r\n",
        b"*" + b"1" * 100,
        b"x" * 70_000,
        b'ECHO "open\r\n',
    ],
)
def test_what_is_no_request_is_refused_behind_those_that_are(wrong: bytes) -> None:
    with pytest.raises(BadRequest, match="Protocol error") as refused:
        RequestParser().feed(packed(b"PING") + wrong)
    assert refused.value.before == [[b"PING"]]


@pytest.mark.parametrize("announced", [b"*60000\r\n", b"*2\r\n$3\r\nGET\r\n$4000000\r\n"])
def test_nothing_is_reserved_for_what_was_only_announced(announced: bytes) -> None:
    tracemalloc.start()
    readers = [RequestParser() for _ in range(100)]
    before = tracemalloc.get_traced_memory()[0]
    for reader in readers:
        assert reader.feed(announced) == []
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100 * 2000


def test_a_request_longer_than_the_limit_is_refused_before_it_has_come() -> None:
    reader = RequestParser(max_bytes=1000)
    assert reader.feed(b"*3\r\n$600\r\n" + b"x" * 600 + b"\r\n") == []
    with pytest.raises(BadRequest, match="invalid bulk length"):
        reader.feed(b"$600\r\n")


def test_more_words_than_the_limit_are_refused_before_they_have_come() -> None:
    with pytest.raises(BadRequest, match="invalid multibulk length"):
        RequestParser(max_arguments=10).feed(b"*11\r\n")


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes_are_requests_or_refused(pieces: list[bytes]) -> None:
    reader = RequestParser(max_bytes=10_000)
    with contextlib.suppress(BadRequest):
        for piece in pieces:
            for request in reader.feed(piece):
                assert request and all(type(word) is bytes for word in request)


TOKENS = [
    b"*1\r\n", b"*2\r\n", b"*-1\r\n", b"*9999999\r\n", b"$3\r\n", b"$0\r\n", b"$-1\r\n", b"GET\r\n", b"\r\n",
    b"%2\r\n", b"~1\r\n", b">1\r\n", b"\n", b"*", b"$", b":1\r\n", b"+x\r\n", b"_\r\n", b"\x00", b'"',
]  # fmt: skip


@given(st.lists(st.sampled_from(TOKENS), max_size=30))
def test_pieces_of_the_protocol_in_any_order_are_requests_or_refused(tokens: list[bytes]) -> None:
    with contextlib.suppress(BadRequest):
        for request in RequestParser(max_bytes=10_000).feed(b"".join(tokens)):
            assert request and all(type(word) is bytes for word in request)
