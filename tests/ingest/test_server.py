"""Taking events over HTTP: what is answered, what is refused, and that an answer means durable."""

from __future__ import annotations

import http.client
import resource
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.ingest.streams import Streams, StreamSpec
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.net.access import add_user
from tests.ingest.logs import read
from tests.ingest.servers import Process, Sender, Threaded
from tests.serve.certificates import make_certificate


class Click(Record):
    user: str
    at: Timestamp
    n: int = 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Threaded]:
    with Threaded(tmp_path / "log") as server:
        yield server


def stored(server: Threaded, partition: int = 0, stream: str = "clicks") -> list[Any]:
    return [msgspec.json.decode(each) for each in read(server.log.path, partition, stream)]


# --- bodies


def test_one_object_an_array_and_lines_are_taken(server: Threaded) -> None:
    path = "/streams/clicks/events"
    ask = server.sender.ask
    first = ask("POST", path, b'{"n": 0}', Content_Type="application/json")
    assert (first.status, first.body["first"], first.body["events"]) == (200, 0, 1)
    array = ask("POST", path, b'[{"n": 1},\n {"n": 2}]', Content_Type="application/json")
    assert (array.body["first"], array.body["events"]) == (1, 2)
    lines = ask("POST", path, b'{"n": 3}\r\n\n  {"n": 4}\n', Content_Type="application/x-ndjson")
    assert (lines.body["first"], lines.body["events"]) == (3, 2)
    ask("POST", path, b'{\n  "n": 5\n}', Content_Type="application/json")
    ask("POST", path, b'{"n": 6}\n{"n": 7}', Content_Type="application/x-www-form-urlencoded")
    assert server.sender.send({"n": 8}, {"n": 9}, zipped=True).status == 200
    assert stored(server) == [{"n": n} for n in range(10)]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        (b'{"n": 1}\n{"n": \n', 422, "line 2"),
        (b'{"n": 1}\n\n[1]\n', 422, "line 3"),
        (b'[{"n": 1}, 7]', 422, "event 2 of the array"),
        (b'[{"n": 1}', 422, ""),
        (b'{"n": "\xff"}', 422, "line 1"),
        (b"nonsense", 422, "the body"),
        (b"  \n ", 400, ""),
        (b'{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "the body"),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused_as_a_whole(
    server: Threaded, body: bytes, status: int, where: str
) -> None:
    answer = server.sender.ask("POST", "/streams/clicks/events", body)
    assert (answer.status, answer.body["error"].get("where", "")) == (status, where)
    assert server.log.streams == {}


def test_events_are_checked_against_their_type_with_line_and_reason(tmp_path: Path) -> None:
    streams = Streams({"clicks": StreamSpec(codec=codec_of(Click))})
    with Threaded(tmp_path / "log", streams) as server:
        good = {"user": "ann", "at": "2024-01-01T00:00:00Z"}
        assert server.sender.send(good, good).status == 200
        for bad, reason in (
            ({"user": "ann"}, "missing required field `at`"),
            ({"user": 7, "at": "2024-01-01T00:00:00Z"}, "Expected `str`, got `int`"),
            ({**good, "at": "yesterday"}, "yesterday"),
            ({**good, "n": 2**70}, "n"),
        ):
            refused = server.sender.send(good, bad, good)
            assert (refused.status, refused.body["error"]["where"]) == (422, "line 2")
            assert refused.body["error"]["expected"] == "Click"
            assert reason in refused.body["error"]["found"]
        assert stored(server) == [good, good]
        assert server.sender.ask("GET", "/streams").body["streams"] == {"clicks": {"partitions": 1, "type": "Click"}}
        other = server.sender.send(good, stream="klicks")
        assert (other.status, other.body["error"]["expected"]) == (404, "one of clicks")


def test_limits_are_kept(tmp_path: Path) -> None:
    limits = {"request_bytes": 10_000, "event_bytes": 1000, "pending_bytes": 12_000}
    with Threaded(tmp_path / "log", **limits) as server:
        event = {"pad": "x" * 900}
        assert server.sender.send(event, event).status == 200
        assert server.sender.send({"pad": "x" * 1000}).status == 413
        assert server.sender.send(*[event] * 12).status == 413
        bomb = Sender(server.port).send(*[event] * 1000, zipped=True)
        assert (bomb.status, bomb.body["error"]["what"]) == (413, "the body is too large")
        broken = Sender(server.port).ask("POST", "/streams/clicks/events", b"xx", Content_Encoding="gzip")
        assert broken.status == 400
        assert Sender(server.port).ask("POST", "/streams/clicks/events", b"x", Content_Encoding="br").status == 415
        assert stored(server) == [event, event]
        assert server.sender.ask("GET", "/health").body == {"status": "ok", "pending_bytes": 0}


def test_what_waits_is_bounded_and_others_are_asked_to_come_back(tmp_path: Path) -> None:
    with Threaded(tmp_path / "log", pending_bytes=1000) as server:
        slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        slow.putrequest("POST", "/streams/clicks/events")
        slow.putheader("Content-Length", "900")
        slow.endheaders(b'{"pad":"' + b"x" * 800)
        ends = time.monotonic() + 60
        while server.sender.ask("GET", "/health").body["pending_bytes"] < 800:
            assert time.monotonic() < ends
        refused = Sender(server.port).send({"pad": "x" * 500})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        slow.send(b'"'.rjust(91) + b"}")
        assert slow.getresponse().status == 200
        assert server.sender.send({"pad": "x" * 500}).status == 200
        slow.close()


# --- keys and partitions


def test_a_repeated_key_is_answered_as_the_first_time(server: Threaded) -> None:
    first = server.sender.send({"n": 1}, {"n": 2}, key="order-7")
    server.sender.send({"n": 3})
    again = server.sender.send({"n": 1}, {"n": 2}, key="order-7")
    assert again.body == first.body
    assert ("headrace-repeated" in first.headers, again.headers["headrace-repeated"]) == (False, "true")
    reused = server.sender.send({"n": 4}, key="order-7")
    assert (reused.status, reused.body["error"]["where"]) == (422, "Idempotency-Key")
    assert server.sender.send({"n": 5}, key="x" * 300).status == 400
    assert [each["n"] for each in stored(server)] == [1, 2, 3]


def test_a_request_goes_to_one_partition_by_number_by_key_or_in_turn(tmp_path: Path) -> None:
    with Threaded(tmp_path / "log", Streams({"clicks": StreamSpec(partitions=3)})) as server:
        send = server.sender.send
        assert send({"n": 1}, query="?partition=2").body["partition"] == 2
        assert len({send({"n": n}, query="?key=ann").body["partition"] for n in range(5)}) == 1
        assert {send({"n": n}).body["partition"] for n in range(3)} == {0, 1, 2}
        assert send({"n": 1}, query="?partition=3").status == 400
        assert send({"n": 1}, query="?partitoin=3").status == 400
        events = server.sender.ask("GET", "/streams/clicks").body["events"]
        assert sum(each["next"] for each in events) == 9


def test_an_answer_tells_the_offset_that_a_reader_of_state_waits_for(server: Threaded) -> None:
    server.sender.send({"n": 1})
    answer = server.sender.send({"n": 2}, {"n": 3})
    assert answer.body["offset"] == {server.log.id: {"0": 3}}


# --- who may


def test_only_tokens_for_a_stream_may_send_to_it(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("clicks", "log-*"))
    with Threaded(tmp_path / "log", users=str(users)) as server:
        path, body = "/streams/{}/events", b"{}"
        ask, bearer = server.sender.ask, f"Bearer {token}"
        assert ask("POST", path.format("clicks"), body).status == 401
        assert ask("POST", path.format("clicks"), body, Authorization=bearer[:-1]).status == 401
        assert ask("POST", path.format("orders"), body, Authorization=bearer).status == 403
        assert ask("POST", path.format("log-7"), body, Authorization=bearer).status == 200
        assert ask("GET", "/streams").status == 401
        assert ask("GET", "/health").status == 200


@pytest.mark.parametrize("name", ["a%0ab", "a%0d%0ab", "a%09b", "ab%00", "a%252fb", "..%2fab", "A", "a%20"])
def test_a_name_outside_the_alphabet_is_no_stream(server: Threaded, name: str) -> None:
    refused = server.sender.ask("POST", f"/streams/{name}/events", b'{"n": 1}')
    assert refused.status == 404
    assert server.log.streams == {}
    assert server.sender.ask("GET", f"/streams/{name}").status == 404


def test_events_are_taken_over_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Threaded(tmp_path / "log", tls_cert=str(certificate), tls_key=str(key)) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=60, context=trusting)
        connection.request("POST", "/streams/clicks/events", b'{"n": 1}')
        assert connection.getresponse().status == 200
        connection.close()
        assert stored(server) == [{"n": 1}]


def test_a_web_page_may_send_only_where_it_was_named(tmp_path: Path) -> None:
    with Threaded(tmp_path / "log", origins=("https://shop.example",)) as server:
        path = "/streams/clicks/events"
        assert server.sender.ask("POST", path, b"{}", Origin="https://evil.example").status == 403
        good = server.sender.ask("POST", path, b"{}", Origin="https://shop.example")
        assert (good.status, good.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        assert server.sender.ask("POST", path, b"{}", Host="evil.example").status == 421


def test_a_rate_is_kept(tmp_path: Path) -> None:
    with Threaded(tmp_path / "log", max_rate=1) as server:
        answers = [server.sender.send({"n": n}) for n in range(30)]
        refused = [each for each in answers if each.status == 429]
        assert refused and refused[0].headers["retry-after"] == "1"
        assert len(stored(server)) == sum(each.status == 200 for each in answers)


def test_addresses_that_lead_nowhere_say_what_there_is(server: Threaded) -> None:
    assert server.sender.ask("GET", "/").status == 404
    assert server.sender.ask("GET", "/streams/nope").status == 404
    assert server.sender.send({}, stream="Bad%20Name").status == 404
    wrong = server.sender.ask("GET", "/streams/clicks/events")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")


# --- durable


def test_requests_that_wait_together_share_an_fsync(tmp_path: Path) -> None:
    with Threaded(tmp_path / "log") as server, ThreadPoolExecutor(16) as pool:

        def post(sender: int) -> None:
            own = Sender(server.port)
            assert all(own.send({"sender": sender, "n": n}).status == 200 for n in range(20))
            own.close()

        list(pool.map(post, range(16)))
        assert Counter(each["sender"] for each in stored(server)) == dict.fromkeys(range(16), 20)
    assert server.ended["requests"] == 320
    assert server.ended["commits"] < 320


class Storm:
    """Senders that never give up: an event without an answer is sent again, with the key that it had."""

    def __init__(self, senders: int, events: int) -> None:
        self.port = 0
        self.up = threading.Event()
        self.answered: list[str] = []
        self.enough = threading.Semaphore(0)
        self._events = events
        self._threads = [threading.Thread(target=self._send, args=(n,), daemon=True) for n in range(senders)]

    def start(self, port: int) -> None:
        self.port = port
        self.up.set()
        for thread in self._threads:
            if not thread.is_alive():
                thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _send(self, sender: int) -> None:
        names = [f"{sender}-{n}" for n in range(self._events)]
        while names:
            self.up.wait(60)
            connection = Sender(self.port)
            try:
                while names:
                    answer = connection.send({"id": names[0]}, {"id": f"{names[0]}b"}, key=names[0])
                    assert answer.status == 200, answer
                    self.answered += [names[0], f"{names[0]}b"]
                    names.pop(0)
                    self.enough.release()
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()


def test_after_kill_9_in_a_storm_every_answered_event_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    storm = Storm(senders=6, events=60)
    for _ in range(3):
        with Process(path) as server:
            if storm.port:
                storm.port = server.port
                storm.up.set()
            else:
                storm.start(server.port)
            for _ in range(60):
                assert storm.enough.acquire(timeout=60)
            storm.up.clear()
            server.kill()
        kept = Counter(msgspec.json.decode(each)["id"] for each in read(path))
        assert set(storm.answered) <= set(kept)
    with Process(path) as server:
        storm.port = server.port
        storm.up.set()
        storm.join()
        code, ended = server.stop()
        assert (code, ended["event"]) == (0, "ended")
    kept = Counter(msgspec.json.decode(each)["id"] for each in read(path))
    wanted = [f"{sender}-{n}{half}" for sender in range(6) for n in range(60) for half in ("", "b")]
    assert kept == dict.fromkeys(wanted, 1), "nothing is lost, and nothing is there twice"


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Process(path) as server:
        sender = Sender(server.port)
        wide = {"pad": "x" * 1000}
        assert sender.send({"n": 0}).status == 200
        # A file that may not grow is what a full disk looks like to whoever writes it.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        answers = [sender.send({"n": n, **wide}, key=str(n)) for n in range(1, 40)]
        taken = [n for n, answer in enumerate(answers, 1) if answer.status == 200]
        refused = [answer for answer in answers if answer.status != 200]
        assert taken and {each.status for each in refused} == {507}
        assert "retry-after" in refused[0].headers
        assert set(refused[0].body["error"]) >= {"what", "where", "expected", "found", "next_move"}
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        assert sender.send({"n": 0}, stream="orders").status == 507
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        again = [sender.send({"n": n, **wide}, key=str(n)) for n in range(1, 40)]
        assert {answer.status for answer in again} == {200}
        assert [n for n, answer in enumerate(again, 1) if "headrace-repeated" in answer.headers] == taken
        assert sender.send({"n": 0}, stream="orders").status == 200
        sender.close()
        server.stop()
        numbers = [msgspec.json.decode(each)["n"] for each in read(path)]
        assert sorted(numbers) == list(range(40))
