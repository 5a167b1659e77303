"""Changes as server-sent events: pushed when an epoch is published, none left out when a connection is lost."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.net.access import ANYBODY
from headrace.read.follow import Follower
from headrace.read.store import Store
from headrace.serve.http import events
from tests.serve.served import Served
from tests.serve.tweets import Tweets, fetch

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")
CHANGES = "/v1/jobs/tweets/changes"


class Listener:
    """A client of server-sent events."""

    def __init__(self, served: Served, path: str, last: str = "") -> None:
        self._connection = http.client.HTTPConnection("localhost", served.http_port, timeout=60)
        self._connection.request("GET", path, headers={"Last-Event-ID": last} if last else {})
        self.answer = self._connection.getresponse()
        self.last = last

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.sock.close() if self._connection.sock else None
        self.answer.close()

    def next(self) -> tuple[str, Any]:
        """The next event and its data; signs of life are passed over."""
        fields: dict[str, str] = {}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        self.last = fields.get("id", self.last)
        return (fields["event"], json.loads(fields["data"])) if "event" in fields else self.next()

    def epoch(self) -> list[tuple[str, Any]]:
        """(key, value) of the changes until the next epoch is complete."""
        found: list[tuple[str, Any]] = []
        while (event := self.next())[0] != "epoch":
            kind, data = event
            found.append((data["key"], data["value"]) if kind == "change" else (kind, data["epoch"]))
        return found


@pytest.fixture
def tweets(tmp_path: Path) -> Iterator[Tweets]:
    with Tweets(tmp_path / "store") as running:
        running.push(("a", "12:01", 1), ("b", "12:01", 1))
        yield running


@pytest.fixture
def served(tweets: Tweets) -> Iterator[Served]:
    with Served(tweets.path) as server:
        server.wait_for(0)
        yield server


def test_a_watched_key_is_told_at_once_and_after_each_change(tweets: Tweets, served: Served) -> None:
    with Listener(served, f"{CHANGES}?state=watch.seen&key=a&key=c") as listener:
        assert listener.answer.headers["content-type"].startswith("text/event-stream")
        assert listener.epoch() == [("a", 1), ("c", None)]
        tweets.push(("b", "12:02", 1))
        tweets.push(("a", "12:03", 1))
        assert listener.epoch() == [("a", 2)]
        tweets.push(("c", "12:03", 1))
        assert listener.epoch() == [("c", 1)]


def test_a_watched_state_tells_every_key_that_an_epoch_changed(tweets: Tweets, served: Served) -> None:
    with Listener(served, f"{CHANGES}?state=watch.seen&state=hourly") as listener:
        assert listener.epoch() == []
        tweets.push(("b", "12:02", 1), ("d", "12:02", 4))
        told = listener.epoch()
        assert sorted(entry for entry in told if not isinstance(entry[1], dict)) == [("b", 2), ("d", 1)]
        assert sorted((key, value["impressions"]) for key, value in told if isinstance(value, dict)) == [
            ("b", 2),
            ("d", 4),
        ]


def test_whoever_comes_back_hears_of_all_epochs_between(tweets: Tweets, served: Served) -> None:
    with Listener(served, f"{CHANGES}?state=watch.seen") as listener:
        assert listener.epoch() == []
        last = listener.last
    for _ in range(3):
        tweets.push(("a", "12:02", 1))
    served.wait_for(tweets.push(("b", "12:02", 1)))
    with Listener(served, f"{CHANGES}?state=watch.seen", last) as listener:
        assert dict(listener.epoch()) == {"a": 4, "b": 2}
        assert listener.last.startswith("4-")
    with Listener(served, f"{CHANGES}?state=watch.seen", listener.last) as listener:
        assert listener.epoch() == []


def test_whoever_knows_another_history_is_told_to_read_again(tweets: Tweets, served: Served) -> None:
    for last in ("0-elsewhe", "99", "99-abc"):
        with Listener(served, f"{CHANGES}?state=watch.seen", last) as listener:
            assert listener.epoch() == [("reset", 0)]


def test_values_can_be_left_out_or_packed(tweets: Tweets, served: Served) -> None:
    with Listener(served, f"{CHANGES}?state=watch.seen&key=a&values=false") as listener:
        assert listener.next() == ("change", {"state": "watch.seen", "key": "a", "epoch": 0})
    with Listener(served, f"{CHANGES}?state=watch.raw&key=a&values=msgpack") as listener:
        assert listener.next()[1]["value"] == "xAIA/w=="


def test_what_cannot_be_watched_is_refused_before_the_stream_begins(tweets: Tweets, served: Served) -> None:
    assert fetch(served.url, f"{CHANGES}?state=hurly").status == 404
    assert fetch(served.url, f"{CHANGES}?state=by_size&key=five").status == 400
    assert fetch(served.url, CHANGES, Last_Event_ID="yesterday").status == 400
    assert fetch(served.url, CHANGES, "HEAD").status == 200


def test_a_stream_without_changes_gives_signs_of_life(
    tweets: Tweets, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "ALIVE_S", 0.02)
    with Listener(served, f"{CHANGES}?state=watch.seen&key=a") as listener:
        listener.epoch()
        assert listener.answer.readline() == b": alive\n"
        assert listener.answer.readline().startswith(b"id: 0-")


def test_a_server_that_stops_ends_streams_and_waits_by_itself(tweets: Tweets, caplog: pytest.LogCaptureFixture) -> None:
    waiting = None
    with Served(tweets.path) as served:
        served.wait_for(0)
        listener = Listener(served, f"{CHANGES}?state=watch.seen&key=a")
        assert listener.epoch() == [("a", 1)]
        waiting = http.client.HTTPConnection("localhost", served.http_port, timeout=60)
        waiting.request("GET", "/v1/jobs/tweets/state?wait_epoch=99&timeout=60s")
        # Both wait for what will never come: an epoch after this one.
        served.until(lambda: len(served.service._waiting) == 2)
    with listener, contextlib.closing(waiting):
        assert listener.answer.read() == b"", "the stream ended whole; cut off, reading would raise"
        refused = waiting.getresponse()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "being stopped" in refused.read().decode()
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_listeners_that_leave_are_forgotten(tweets: Tweets, served: Served) -> None:
    with Listener(served, f"{CHANGES}?state=watch.seen") as listener:
        listener.epoch()
        assert served.app.jobs.watches == 1
    served.until(lambda: served.app.jobs.watches == 0)


def test_others_have_their_turn_while_many_keys_are_compared(tweets: Tweets) -> None:
    snapshot = Follower(Store(tweets.path)).look()
    assert snapshot is not None
    watched = [("watch.seen", f"k{number}") for number in range(20 * events.KEYS_AT_ONCE)]
    watch: Any = events.KeyWatch(None, None, events.WatchingClient(ANYBODY, "", "json", "json"), watched)  # type: ignore[arg-type]

    async def compare() -> tuple[int, int]:
        done, turns = asyncio.Event(), 0

        async def look() -> None:
            nonlocal turns
            while not done.is_set():
                await asyncio.sleep(0)
                turns += 1

        looking = asyncio.ensure_future(look())
        told = [part async for part in watch._compare(snapshot, everything=False)]
        done.set()
        await looking
        return len(told), turns

    told, turns = asyncio.run(compare())
    assert told == 0 and turns >= 20
