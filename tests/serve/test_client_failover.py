"""A client and its servers: those that fail are passed over, and no answer is older than one before."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.client import sessions
from headrace.errors import Unreachable
from headrace.state import layout
from headrace.state.manifest import encode_manifest
from tests.serve.made_store import MadeStore, values
from tests.serve.served import Served
from tests.serve.test_client import both, url_of
from tests.serve.tweets import Tweets
from tests.services import free_port

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


def copy_of(tweets: Tweets, path: Path) -> Path:
    """The store as it is now; what comes later does not reach the copy."""
    shutil.copytree(tweets.path, path)
    return path


@contextmanager
def one_behind(tmp_path: Path) -> Iterator[tuple[Tweets, Served]]:
    """A job of two epochs, and a server that never hears of the second."""
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        old = copy_of(tweets, tmp_path / "old")
        tweets.push(("a", "12:02", 1))
        with Served(old) as behind:
            behind.wait_for(0)
            yield tweets, behind


@both
def test_the_next_server_answers_when_one_is_gone(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        with Served(tweets.path) as second:
            second.wait_for(0)
            with Served(tweets.path) as first:
                first.wait_for(0)
                client = hr.Client([url_of(first, protocol), url_of(second, protocol)])
                view = client.state("watch.seen", int)
                assert view["a"] == 1
            second.wait_for(tweets.push(("a", "12:02", 1)))
            # The connection that was open is gone, and nobody listens there any more.
            assert view["a"] == 2
            assert [view["a"] for _ in range(3)] == [2, 2, 2]
            client.close()


@both
def test_a_server_that_was_started_again_is_found_again(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        ports = {"port": free_port(), "http_port": free_port()}
        with Served(tweets.path, **ports) as served:
            client = hr.Client(url_of(served, protocol))
            view = client.state("watch.seen", int)
            assert view["a"] == 1
            watched = view.watch("a")
            assert next(watched) == 1
        tweets.push(("a", "12:02", 1))
        with Served(tweets.path, **ports):
            assert view["a"] == 2
            assert next(watched) == 2
            watched.close()  # type: ignore[attr-defined]
            client.close()


@both
def test_a_replica_that_is_behind_is_not_believed(protocol: str, tmp_path: Path) -> None:
    with one_behind(tmp_path) as (tweets, behind):
        with Served(tweets.path) as ahead:
            ahead.wait_for(1)
            urls = [url_of(ahead, protocol), url_of(behind, protocol)]
            client = hr.Client(urls, timeout="400ms")
            view = client.state("watch.seen", int)
            assert client.wait_for(1, timeout="60s") == 1
        with pytest.raises(Unreachable):
            view["a"]
        assert hr.Client(urls).state("watch.seen", int)["a"] == 1
        client.close()


@both
def test_a_client_waits_for_the_replica_that_catches_up(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        replica = copy_of(tweets, tmp_path / "replica")
        epoch = tweets.push(("a", "12:02", 1))
        with Served(replica) as served, hr.Client(url_of(served, protocol), timeout="60s") as client:
            assert client.state("watch.seen", int)["a"] == 1
            answers: list[int] = []

            def read() -> None:
                client.wait_for(epoch)
                answers.append(client.state("watch.seen", int)["a"])

            reader = threading.Thread(target=read)
            reader.start()
            name = layout.manifest(0, epoch)
            shutil.copyfile(tweets.path / name, tmp_path / "next")
            (tmp_path / "next").rename(replica / name)
            reader.join(60)
            assert answers == [2]


@both
def test_a_watched_key_goes_on_with_a_server_that_is_not_behind(protocol: str, tmp_path: Path) -> None:
    with one_behind(tmp_path) as (tweets, behind), Served(tweets.path) as second:
        second.wait_for(1)
        with Served(tweets.path) as first:
            first.wait_for(1)
            client = hr.Client([url_of(each, protocol) for each in (first, behind, second)], timeout="60s")
            view = client.state("watch.seen", int)
            watched = view.watch("a")
            assert (next(watched), view.epoch) == (2, 1)
        tweets.push(("a", "12:03", 1))
        assert (next(watched), view.epoch) == (3, 2)
        watched.close()  # type: ignore[attr-defined]
        client.close()


@both
def test_a_watched_key_never_goes_back_to_a_replica_that_is_behind(protocol: str, tmp_path: Path) -> None:
    with one_behind(tmp_path) as (tweets, behind):
        with Served(tweets.path) as ahead:
            ahead.wait_for(1)
            client = hr.Client([url_of(ahead, protocol), url_of(behind, protocol)], timeout="400ms")
            watched = client.state("watch.seen", int).watch("a")
            assert next(watched) == 2
        with pytest.raises(Unreachable):
            next(watched)
        client.close()


@both
def test_a_change_that_a_later_answer_has_overtaken_is_read_anew(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        with Served(tweets.path) as served, hr.Client(url_of(served, protocol)) as client:
            served.wait_for(0)
            view = client.state("watch.seen", int)
            watched = view.watch("a")
            assert next(watched) == 1
            served.wait_for(tweets.push(("a", "12:02", 1)))
            served.wait_for(newest := tweets.push(("b", "12:03", 1)))
            # The change of the epoch before is on its way already, and nothing more is said of the key.
            assert client.epoch == newest
            assert (next(watched), view.epoch) == (2, newest)
            watched.close()  # type: ignore[attr-defined]


@both
def test_a_watched_key_goes_on_when_the_job_is_started_over(protocol: str, tmp_path: Path) -> None:
    made, fresh = MadeStore(tmp_path / "store"), MadeStore(tmp_path / "fresh")
    for number in range(5):
        made.epoch({"count": [values("value", [("a", number)])]})
    begun = msgspec.structs.replace(fresh.epoch({"count": [values("value", [("a", 7)])]}), timeline=1)
    with Served(made.path) as served, hr.Client(url_of(served, protocol)) as client:
        view = client.state("count", int)
        watched = view.watch("a")
        assert (next(watched), view.epoch) == (4, 4)
        for path in fresh.files.list(layout.RUNS):
            made.files.write(path, fresh.files.read(path))
        made.files.create(layout.manifest(1, 0), encode_manifest(begun))
        record = msgspec.json.decode(made.files.read(layout.STORE_RECORD))
        made.files.write(layout.STORE_RECORD, msgspec.json.encode({**record, "timeline": 1}))
        # Its epochs count from the beginning, and are later all the same.
        assert (next(watched), view.epoch, view["a"]) == (7, 0, 7)
        watched.close()  # type: ignore[attr-defined]


ANSWERS: dict[str, Callable[[hr.Client], object]] = {
    "count": lambda client: len(client.state("watch.seen")),
    "kind": lambda client: client.state("watch.seen").kind,
    "states": lambda client: client.states(),
    "frame": lambda client: client.state("hourly").to_polars(),
}


@both
@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_without_a_key_do_not_go_back_either(answer: str, protocol: str, tmp_path: Path) -> None:
    ask = ANSWERS[answer]
    with one_behind(tmp_path) as (tweets, behind):
        with Served(tweets.path) as ahead:
            ahead.wait_for(1)
            urls = [url_of(ahead, protocol), url_of(behind, protocol)]
            taught, asking = hr.Client(urls, timeout="300ms"), hr.Client(urls, timeout="300ms")
            ask(taught)
            assert asking.epoch == 1
        # What they were told is remembered, and what they are told is compared.
        with pytest.raises(Unreachable):
            taught.state("watch.seen")["a"]
        with pytest.raises(Unreachable):
            ask(asking)
        taught.close()
        asking.close()


@both
def test_nobody_there_is_told_with_all_that_was_tried(protocol: str) -> None:
    port = free_port()
    scheme = "redis" if protocol == "redis" else "http"
    with hr.Client(f"{scheme}://127.0.0.1:{port}", timeout="200ms") as client, pytest.raises(Unreachable) as caught:
        client.epoch
    assert str(port) in caught.value.where
    assert "refused" in caught.value.found
    assert "headrace serve" in caught.value.next_move


@both
def test_a_server_that_says_nothing_is_passed_over(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CONNECT_S", 0.3)
    with Tweets(tmp_path / "store") as tweets, socket.create_server(("127.0.0.1", 0)) as silent:
        tweets.push(("a", "12:01", 1))
        scheme = "redis" if protocol == "redis" else "http"
        with Served(tweets.path) as served:
            urls = [f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", url_of(served, protocol)]
            with hr.Client(urls, timeout="60s") as client:
                assert client.state("watch.seen", int)["a"] == 1


@both
def test_a_server_that_breaks_off_or_talks_nonsense_is_passed_over(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, socket.create_server(("127.0.0.1", 0)) as broken:
        tweets.push(("a", "12:01", 1))

        def answer_badly() -> None:
            for nonsense in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"\x00\xffnonsense\r\n\r\n"):
                line, _ = broken.accept()
                with line:
                    line.recv(1000)
                    line.sendall(nonsense)

        thread = threading.Thread(target=answer_badly, daemon=True)
        thread.start()
        scheme = "redis" if protocol == "redis" else "http"
        with Served(tweets.path) as served:
            served.wait_for(0)
            bad = f"{scheme}://127.0.0.1:{broken.getsockname()[1]}"
            for _ in range(3):
                with hr.Client([bad, url_of(served, protocol)]) as client:
                    assert client.state("watch.seen", int)["a"] == 1
        thread.join(60)


@both
def test_a_client_goes_on_with_a_store_that_was_removed_and_made_anew(protocol: str, tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store", id="first")
    for number in range(5):
        made.epoch({"count": [values("value", [("a", number)])]})
    old = shutil.copytree(made.path, tmp_path / "old")
    with Served(made.path) as served, Served(old) as behind:
        # Asked by hand first, so that both have looked.
        assert {hr.Client(url_of(each, protocol)).epoch for each in (served, behind)} == {4}
        client = hr.Client([url_of(served, protocol), url_of(behind, protocol)], timeout="60s")
        view = client.state("count", int)
        watched = view.watch("a")
        assert (next(watched), view["a"], view.epoch) == (4, 4, 4)
        shutil.rmtree(made.path)
        anew = MadeStore(made.path, id="second")
        anew.epoch({"count": [values("value", [("a", 7)])]})
        assert (next(watched), view["a"], view.epoch, client.epoch) == (7, 7, 0, 0)
        # A server that still has the store from before is one that is behind.
        assert [view["a"] for _ in range(5)] == [7] * 5
        watched.close()  # type: ignore[attr-defined]
        client.close()


@both
def test_a_store_that_was_put_back_is_told_apart_from_one_that_nobody_serves(protocol: str, tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        earlier = copy_of(tweets, tmp_path / "earlier")
        tweets.push(("a", "12:02", 1))
        ports = {"port": free_port(), "http_port": free_port()}
        with Served(tweets.path, **ports) as served:
            client = hr.Client(url_of(served, protocol), timeout="400ms")
            assert client.wait_for(1, timeout="60s") == 1
        with Served(earlier, **ports) as served:
            served.wait_for(0)
            with pytest.raises(Unreachable, match="no server has come as far") as caught:
                client.state("watch.seen", int)["a"]
            assert "make a new hr.Client" in caught.value.next_move
        client.close()
