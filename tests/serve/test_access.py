"""Who may read over Redis' protocol: tokens, users, TLS, and what of it is written down."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from pathlib import Path

import pytest
import redis

from headrace.errors import SettingsError
from headrace.net.access import Access, Limits, Trail, add_user, check_binding, make_tls, read_users
from headrace.serve.serving import Options
from tests.serve.certificates import make_certificate
from tests.serve.made_store import START_US, MadeStore, values
from tests.serve.served import Served
from tests.serve.tweets import fetch
from tests.serve.wired import connect, read_all

# --- what is written down


def test_what_a_server_does_not_do_is_refused_in_writing(store: str, audited: list[str]) -> None:
    asked = {"SET a 1": "SET", "DEL a": "DEL", "FLUSHALL": "FLUSHALL", "CONFIG SET a b": "CONFIG SET",
             "ACL SETUSER x": "ACL SETUSER", "CLIENT KILL x": "CLIENT KILL", "SHUTDOWN": "SHUTDOWN"}  # fmt: skip
    with Served(store) as served, connect(served) as client:
        served.wait_for(0)
        for words, told in asked.items():
            audited.clear()
            with pytest.raises(redis.ResponseError):
                client.execute_command(*words.split())
            [line] = audited
            assert line.startswith(f"refused {told} from 127.0.0.1:")


@pytest.mark.parametrize("quick", [True, False])
def test_large_values_and_long_transactions_are_refused_in_writing(
    store_path: Path, audited: list[str], quick: bool
) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [("a", "x" * 6000), ("b", "y" * 90)])]})
    asked = [
        ["GET", "count.views:a"],
        ["MGET", "count.views:a", "count.views:b"],
        ["HEADRACE.GET", "count.views", "sa"],
    ]
    limits = Limits(reply_bytes=5000, keys=5, commands_per_second=0 if quick else 10_000)
    with Served(made.path, limits=limits) as served, connect(served) as client:
        served.wait_for(0)
        for words in asked:
            with pytest.raises(redis.ResponseError, match="a reply may have 5000 bytes"):
                client.execute_command(*words)
        with client.pipeline() as pipeline:
            pipeline.get("count.views:a")
            assert isinstance(pipeline.execute(raise_on_error=False)[0], redis.ResponseError)
        with client.pipeline(transaction=False) as pipeline:
            pipeline.get("count.views:a").get("count.views:b").get("count.views:a")
            assert pipeline.execute(raise_on_error=False)[1] == b'"%b"' % (b"y" * 90)
        assert len([line for line in audited if "a reply may have 5000 bytes" in line]) == len(asked) + 3
        with client.pipeline() as pipeline, pytest.raises(redis.ResponseError, match="too many commands"):
            for _ in range(9):
                pipeline.ping()
            pipeline.execute()
    assert len([line for line in audited if "refused a transaction" in line]) == 1


def test_a_flood_of_refusals_is_counted_and_others_are_still_written_down(audited: list[str]) -> None:
    now = 0.0
    trail = Trail(lambda: now)
    for port in range(5000):
        trail.refused(f"10.0.0.1:{port}", "", "SET", "no")
    trail.refused("10.0.0.2:1", "", "GET", "no")
    assert len(audited) == 1001 and audited[-1].startswith("refused GET from 10.0.0.2:1")
    audited.clear()
    trail.catch_up()
    assert audited == []
    now = 1.0
    trail.catch_up()
    assert audited == ["refused 4000 further requests from 10.0.0.1, too many for a line each"]
    for _ in range(100):
        trail.refused("10.0.0.1:7", "", "SET", "no")
    assert len(audited) == 1 + 9
    now = 2.0
    trail.refused("10.0.0.1:7", "", "SET", "no")
    assert audited[-2].startswith("refused 91 further requests") and audited[-1].startswith("refused SET")
    for host in range(5000):
        trail.refused(f"10.1.{host // 250}.{host % 250}:1", "", "SET", "no")
    assert len(trail._hosts) == 1000


def test_names_of_what_a_user_may_not_read_are_not_told(tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    tables = {"count": [values("views", [("a", 1)])], "salaries": [values("value", [("bob", 9)])]}
    made.epoch(tables, watermark_us=START_US)
    users = tmp_path / "users.toml"
    tokens = {name: add_user(users, name, states) for name, states in (("web", ("count.*",)), ("boss", ()))}
    with Served(made.path, users=users) as served:
        served.wait_for(0)
        listener = connect(served, password=tokens["boss"]).pubsub()
        listener.subscribe("salaries:bob", "count.views:a")
        served.until(lambda: len(served.resp.channels.exact) == 2)
        for name, steps in (("web", {"count"}), ("boss", {"count", "salaries"})):
            with connect(served, password=tokens[name]) as client:
                heard = {channel.partition(b".")[0].partition(b":")[0].decode() for channel in client.pubsub_channels()}
                assert heard == steps
                assert client.pubsub_numsub("salaries:bob") == [(b"salaries:bob", int(name == "boss"))]
                info = client.info("headrace")
                assert {step for step in ("count", "salaries") if f"watermark_{step}" in info} == steps
                assert (b"salaries" in repr(client.execute_command("HEADRACE.INFO")).encode()) == (name == "boss")
            token = {"Authorization": f"Bearer {tokens[name]}"}
            assert set(fetch(served.url, "/v1/jobs/tweets", **token).json["watermarks"]) == steps
            figures = fetch(served.url, "/metrics", **token).body.decode()
            assert {step for step in ("count", "salaries") if f'step="{step}"' in figures} == steps
        listener.close()


def test_a_state_that_is_not_there_is_refused_as_one_that_may_not_be_read(store: str, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("count.*",))
    requests = ["GET {}:a", "MGET {}:a", "HGETALL {}:a", "EXISTS {}:a", "TYPE {}:a", "TTL {}:a", "SUBSCRIBE {}:a"]
    with Served(store, users=users) as served:
        served.wait_for(0)
        for request in requests:
            words = []
            for address in ("last", "lost"):
                with connect(served, password=token) as client, pytest.raises(redis.ResponseError) as refused:
                    client.execute_command(*request.format(address).split())
                words.append(str(refused.value).replace(address, "ADDRESS"))
            assert words[0] == words[1] == "user web may not read the state ADDRESS", request


def test_no_answer_tells_where_the_store_lies(store: str, tmp_path: Path) -> None:
    with Served(store) as served, connect(served) as client:
        served.wait_for(0)
        for command in ("INFO", "ROLE", "HEADRACE.INFO"):
            assert Path(store).parent.name not in repr(client.execute_command(command))
    with Served(tmp_path / "nowhere") as served, connect(served) as client:
        served.until(lambda: served.service.trouble != "")
        for command in ("INFO", "ROLE", "HEADRACE.INFO"):
            assert "nowhere" not in repr(client.execute_command(command))
        with pytest.raises(redis.exceptions.BusyLoadingError) as loading:
            client.get("count.views:a")
        assert "nowhere" not in str(loading.value)
        assert "nowhere" not in fetch(served.url, "/v1/jobs/tweets/state/count.views/a").body.decode()


# --- HTTP on the wrong port


@pytest.mark.parametrize("head", [b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n", b"PING\r\nHost: localhost\r\n"])
def test_http_on_the_port_of_redis_runs_no_command(store: str, head: bytes, audited: list[str]) -> None:
    with Served(store) as served:
        served.wait_for(0)
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as browser:
            browser.sendall(head + b"Content-Length: 40\r\n\r\nGET count.views:a\r\nGET count.views:a\r\n")
            assert read_all(browser) in (b"", b"+PONG\r\n")
    assert any("HTTP was sent to the port of Redis' protocol" in line for line in audited)


# --- tokens


def test_a_token_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    token = add_user(path, "web", ("hourly", "fraud.*"))
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    user = Access(path).find(token)
    assert user is not None
    assert (user.name, user.states) == ("web", ("hourly", "fraud.*"))
    assert [user.may_read(state) for state in ("hourly", "fraud.shops", "fraud", "daily")] == [True, True, False, False]


def test_wrong_tokens_and_names_are_nobody(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    token = add_user(path, "web", ())
    other = add_user(path, "batch", ())
    access = Access(path)
    assert access.find(token[:-1]) is None
    assert access.find("") is None
    assert access.find(other, "web") is None
    assert access.find(token[:11] + other[11:]) is None


def test_a_user_may_have_several_tokens(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    first, second = add_user(path, "web", ("hourly",)), add_user(path, "web", ())
    access = Access(path)
    assert access.find(first) is access.find(second) is access.users["web"]
    with pytest.raises(SettingsError, match="states of its own"):
        add_user(path, "web", ("daily",))


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "ü", "-x", "x" * 65])
def test_names_that_would_not_survive_the_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="invalid user name"):
        add_user(tmp_path / "users.toml", name, ())


def test_patterns_that_would_not_survive_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="invalid pattern of states"):
        add_user(tmp_path / "users.toml", "web", ('a"]\n',))


@pytest.mark.parametrize(
    "content", ["users = 3", "[users.web]\nstate = ['x']", "[user.web]", "[[", "[users.web]\nstates = 'x'"]
)
def test_a_wrong_file_is_told_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(content)
    with pytest.raises(SettingsError, match="file of users cannot be read"):
        read_users(path)


def test_a_file_that_becomes_wrong_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    token = add_user(path, "web", ())
    access = Access(path)
    before = access.find(token)
    path.write_text("[[")
    assert not access.look()
    assert access.find(token) is before
    path.unlink()
    assert not access.look()
    assert access.find(token) is before


# --- binding


@pytest.mark.parametrize(
    ("host", "users", "tls", "insecure", "fine"),
    [
        ("127.0.0.1", False, False, False, True),
        ("localhost", False, False, False, True),
        ("::1", False, False, False, True),
        ("0.0.0.0", False, False, False, False),
        ("", False, False, False, False),
        ("192.0.2.7", True, False, False, False),
        ("192.0.2.7", False, True, False, False),
        ("example.org", True, True, False, True),
        ("0.0.0.0", False, False, True, True),
    ],
)
def test_other_machines_need_tokens_and_tls_or_a_word_that_it_is_meant_so(
    host: str, users: bool, tls: bool, insecure: bool, fine: bool
) -> None:
    if fine:
        check_binding(host, users=users, tls=tls, insecure=insecure, danger="read everything here")
        return
    with pytest.raises(SettingsError, match="other machines could read everything"):
        check_binding(host, users=users, tls=tls, insecure=insecure, danger="read everything here")


def test_half_of_tls_is_refused() -> None:
    with pytest.raises(SettingsError, match="both a certificate and its key"):
        Options(store="x", tls_cert="cert.pem").check()


# --- over the wire


def test_nothing_is_read_without_a_token_and_every_refusal_is_written_down(
    store: str, tmp_path: Path, audited: list[str]
) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("count.*",))
    with Served(store, users=users) as served:
        served.wait_for(0)
        with connect(served) as client:
            with pytest.raises(redis.AuthenticationError):
                client.get("count.views:a")
            with pytest.raises(redis.AuthenticationError):
                client.execute_command("INFO")
        with connect(served, password=token + "x") as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        with connect(served, username="other", password=token) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        for known in ({"password": token}, {"username": "web", "password": token}, {"password": token, "protocol": 3}):
            with connect(served, **known) as client:
                assert client.get("count.views:a") == b"1"
                assert client.acl_whoami() in (b"web", "web")
    assert all(line.startswith("refused ") and "127.0.0.1:" in line for line in audited)
    assert len(audited) >= 4
    assert not any(token in line for line in audited)


def test_a_user_sees_only_their_states(store: str, tmp_path: Path, audited: list[str]) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("count.*",))
    with Served(store, users=users) as served, connect(served, password=token) as client:
        served.wait_for(0)
        for ask in (
            lambda: client.get("fraud.shops:c1"),
            lambda: client.hgetall("fraud.shops:c1"),
            lambda: client.exists("last:a"),
            lambda: client.mget("count.views:a", "last:a"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError, match="web may not read"):
                ask()
        assert {key.partition(b":")[0] for key in client.scan_iter()} == {b"count.views", b"count.brief"}
        assert {key.partition(b":")[0] for key in client.keys("*")} == {b"count.views", b"count.brief"}
        assert client.dbsize() == 5
        assert list(client.execute_command("HEADRACE.STATES")) == [b"count.brief", b"count.views"]
        assert len(client.client_list()) == 1
    assert sum("may not read this state" in line for line in audited) == 4


def test_a_token_that_is_taken_back_ends_its_connections(store: str, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    gone, stays = add_user(users, "gone", ()), add_user(users, "stays", ())
    with Served(store, users=users) as served:
        served.wait_for(0)
        with connect(served, password=gone) as first, connect(served, password=stays) as second:
            assert first.ping() and second.ping()
            kept = second.client_id()
            text = users.read_text()
            without = tmp_path / "new.toml"
            without.write_text(text[text.index('\n[users."stays"]') :])
            os.utime(without, ns=(1, 1))
            without.replace(users)  # in one move: while a file is written it is empty, and nobody may come in
            served.until(lambda: served.resp.connections == 1)
            assert second.client_id() == kept
            with pytest.raises(redis.AuthenticationError):
                first.ping()


def test_tls_hides_what_is_read(store: str, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Served(store, tls=make_tls(certificate, key)) as served:
        served.wait_for(0)
        with redis.Redis(host="localhost", port=served.port, ssl=True, ssl_ca_certs=str(certificate)) as client:
            assert client.get("count.views:a") == b"1"
            assert client.mget([f"count.views:{i}" for i in range(3000)]) == [None] * 3000
        with socket.create_connection(("127.0.0.1", served.port)) as plain:
            plain.sendall(b"PING\r\n")
            plain.settimeout(60)
            assert b"PONG" not in read_all(plain)
        context = ssl.create_default_context()
        with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", served.port)) as doubting:
            context.wrap_socket(doubting, server_hostname="localhost")


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    with pytest.raises(SettingsError, match="certificate cannot be used"):
        make_tls(tmp_path / "cert.pem", tmp_path / "cert.pem")
