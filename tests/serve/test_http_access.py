"""Who may read over HTTP, how much, and what becomes of those who ask for more or never end."""

from __future__ import annotations

import http.client
import logging
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.net import http_server
from headrace.net.access import Limits, add_user
from headrace.serve.http import events
from headrace.serve.serving import Options, what_works
from tests.serve.certificates import make_server_tls
from tests.serve.served import Served
from tests.serve.tweets import Tweets, fetch

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")
STATE = "/v1/jobs/tweets/state"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    store = tmp_path_factory.mktemp("access") / "store"
    with Tweets(store) as tweets:
        tweets.push(("a", "12:01", 1), ("b", "12:01", 1))
        yield store


def test_a_token_is_asked_for_and_opens_what_its_user_may_read(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = tmp_path / "users.toml"
    web, everything = add_user(users, "web", ("watch.s*",)), add_user(users, "boss", ())
    with Served(path, users=users) as served, caplog.at_level(logging.WARNING, "headrace.audit"):
        served.wait_for(0)
        nobody = fetch(served.url, f"{STATE}/watch.seen/a")
        assert (nobody.status, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="headrace"')
        assert fetch(served.url, "/health").status == 200
        assert fetch(served.url, f"{STATE}/watch.seen/a", Authorization=f"Bearer {web}x").status == 401
        assert fetch(served.url, f"{STATE}/watch.seen/a", Authorization=f"Bearer {web}").json == 1
        # Whether a state exists is nobody's business who may not read it.
        for address in ("hourly", "no_such_state"):
            assert fetch(served.url, f"{STATE}/{address}/a", Authorization=f"Bearer {web}").status == 403
        listed = fetch(served.url, STATE, Authorization=f"Bearer {web}").json["states"]
        assert [told["state"] for told in listed] == ["watch.seen", "watch.sizes"]
        changes = "/v1/jobs/tweets/changes"
        assert fetch(served.url, f"{changes}?state=hourly", Authorization=f"Bearer {web}").status == 403
        assert len(fetch(served.url, STATE, Authorization=f"Bearer {everything}").json["states"]) > 5
        done = subprocess.run(
            ["curl", "-sS", "-u", f"web:{web}", f"{served.url}{STATE}/watch.seen/b"], capture_output=True, timeout=60,
            check=True,
        )  # fmt: skip
        assert done.stdout == b"1"
    refused = [record.getMessage() for record in caplog.records if record.name == "headrace.audit"]
    assert len(refused) == 5
    assert any("(user web)" in line and "hourly" in line for line in refused)
    assert all(web not in line for line in refused)


def test_a_user_who_is_taken_out_hears_nothing_more(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "ALIVE_S", 0.05)
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ())
    with Served(path, users=users) as served:
        served.wait_for(0)
        connection = http.client.HTTPConnection("localhost", served.http_port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/v1/jobs/tweets/changes?state=watch.seen&key=a", headers=headers)
        stream = connection.getresponse()
        while stream.readline() != b"event: epoch\n":
            pass
        users.write_text("")
        served.until(lambda: not served.service.access.users)
        assert fetch(served.url, STATE, Authorization=f"Bearer {token}").status == 401
        while stream.readline():
            pass
        connection.close()


def test_https_is_spoken_with_a_certificate(path: Path, tmp_path: Path) -> None:
    tls, trusted = make_server_tls(tmp_path)
    with Served(path, tls=tls) as served:
        served.wait_for(0)
        done = subprocess.run(
            ["curl", "-sS", "--cacert", str(trusted), f"{served.url}{STATE}/watch.seen/a"], capture_output=True,
            timeout=60, check=True,
        )  # fmt: skip
        assert done.stdout == b"1"


def test_the_commands_that_a_server_says_work_name_the_client_and_take_the_certificate(
    path: Path, tmp_path: Path
) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ())
    tls, _ = make_server_tls(tmp_path)
    with Served(path, users=users, tls=tls) as served:
        served.wait_for(0)
        ports = {"port": served.port, "http_port": served.http_port}
        options = Options(store=str(path), users="users.toml", tls_cert="cert.pem", tls_key="key.pem")
        assert served.service.snapshot is not None
        redis_cli, curl = what_works(options, ports, served.service.snapshot)
        assert " --tls --insecure -a TOKEN " in redis_cli
        words = [word.replace("TOKEN", token) for word in shlex.split(curl)]
        done = subprocess.run([*words, "-sS", "--fail"], capture_output=True, check=True, timeout=60)
        assert done.stdout
        _, curl = what_works(Options(store=str(path), bind="::1"), ports, served.service.snapshot)
        assert curl.startswith(f"curl http://[::1]:{served.http_port}/v1/jobs/tweets/")


def test_requests_are_bounded_in_size_keys_and_rate(path: Path) -> None:
    limits = Limits(request_bytes=1000, keys=10)
    with Served(path, limits=limits) as served:
        served.wait_for(0)
        large = fetch(served.url, f"{STATE}/watch.seen/get", "POST", {"keys": ["x" * 2000]})
        assert (large.status, large.json["error"]["expected"]) == (413, "up to 1000 bytes")
        many = fetch(served.url, f"{STATE}/watch.seen/get", "POST", {"keys": ["a"] * 11})
        assert (many.status, many.json["error"]["found"]) == (413, "11 keys")
        keys = "&".join(f"key={i}" for i in range(11))
        assert fetch(served.url, f"/v1/jobs/tweets/changes?state=watch.seen&{keys}").status == 413
        assert fetch(served.url, f"{STATE}/watch.seen/{'x' * 40_000}").status == 414


def test_what_is_too_much_or_not_done_here_is_refused_in_writing(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.serve.http.jobs.DOWNLOADS", 0)
    with Served(path, limits=Limits(connections=1)) as served, caplog.at_level(logging.WARNING, "headrace.audit"):
        served.wait_for(0)
        # One connection is as many as there may be, so that uvicorn itself refuses what comes over it.
        assert fetch(served.url, "/health").status == 503
        [crowded] = [record.getMessage() for record in caplog.records if record.name == "headrace.audit"]
        assert "more connections or requests at a time than the limit of 1" in crowded
    with Served(path) as served, caplog.at_level(logging.WARNING, "headrace.audit"):
        served.wait_for(0)
        for where, method, status, reason in (
            (f"{STATE}/watch.seen/{'x' * 40_000}", "GET", 414, "the address is too long"),
            (f"{STATE}/watch.seen/a", "DELETE", 405, ""),
            (f"{STATE}/watch.seen?format=arrow", "GET", 503, "too many whole states are being read"),
        ):
            caplog.clear()
            assert fetch(served.url, where, method).status == status
            [line] = caplog.messages
            assert line.startswith(f"refused {method} ") and line.endswith(reason)


def test_values_of_many_keys_are_bounded_like_those_of_any_reply(path: Path) -> None:
    with Served(path, limits=Limits(reply_bytes=100)) as served:
        served.wait_for(0)
        # Few keys are looked up in the loop, and more in a thread.
        for state, fits, most in (("watch.seen", 60, 100), ("last", 1, 10)):
            assert len(fetch(served.url, f"{STATE}/{state}/get", "POST", {"keys": ["a"] * fits}).json["values"]) == fits
            error = fetch(served.url, f"{STATE}/{state}/get", "POST", {"keys": ["a"] * (most + 1)}).json["error"]
            assert (error["status"], error["expected"]) == (413, "up to 100 bytes")
            assert error["what"] == "the values have more than 100 bytes together"
            assert error["next_move"].startswith("ask for fewer keys at a time")
        windows = fetch(served.url, f"{STATE}/hourly/get", "POST", {"keys": ["a", "b"], "windows": True})
        assert (windows.status, windows.json["error"]["expected"]) == (413, "up to 100 bytes")


def test_who_asks_too_often_is_told_to_wait(path: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ())
    users.write_text(users.read_text().replace("states =", "commands_per_second = 3\nstates ="))
    with Served(path, users=users) as served:
        served.wait_for(0)
        statuses = []
        # Where requests take long they are not too many; some of them come close behind each other.
        while 429 not in statuses and len(statuses) < 500:
            answer = fetch(served.url, f"{STATE}/watch.seen/a", Authorization=f"Bearer {token}")
            statuses.append(answer.status)
        assert statuses[0] == 200
        assert set(statuses) == {200, 429}
        assert answer.headers["retry-after"] == "1"


def test_a_connection_that_never_asks_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.05)
    with Served(path) as served:
        served.wait_for(0)
        for begun in (b"", b"GET /v1/jobs HTTP/1.1\r\nHost: lo"):
            with socket.create_connection(("127.0.0.1", served.http_port), timeout=60) as line:
                line.sendall(begun)
                assert line.recv(100) == b""
        # One that was answered stays open, until a second request begins and never ends.
        monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 60.0)
        with socket.create_connection(("127.0.0.1", served.http_port), timeout=60) as line:
            line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += line.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200")
            monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.05)
            line.sendall(b"GET /hea")
            assert line.recv(100) == b""


def test_headers_without_end_cost_no_memory(path: Path) -> None:
    with Served(path) as served, socket.create_connection(("127.0.0.1", served.http_port), timeout=60) as line:
        try:
            line.sendall(b"GET /health HTTP/1.1\r\n")
            for i in range(5_000):
                line.sendall(b"x-%d: %b\r\n" % (i, b"y" * 100))
            answer = line.recv(1000)
        except OSError:
            answer = b""
        assert not answer or b"400" in answer
