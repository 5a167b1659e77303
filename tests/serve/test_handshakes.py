"""TLS handshakes that are never finished: how many there may be, how long they may take, and who still gets in."""

from __future__ import annotations

import http.client
import socket
import ssl
from pathlib import Path

import pytest

from headrace.net.access import Limits
from headrace.net.listening import SPARE, affordable_connections
from tests.ingest.servers import Threaded
from tests.serve.certificates import make_certificate, make_server_tls
from tests.serve.served import Served
from tests.serve.wired import connect, read_all


def open_silent(port: int, count: int) -> list[socket.socket]:
    """Connections that never begin their handshake."""
    return [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(count)]


def is_refused(port: int) -> bool:
    """Whether a further connection is ended at once."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            return read_all(silent) == b""
    except ConnectionResetError:
        return True


def test_a_handshake_that_takes_too_long_ends_the_connection(store: str, tmp_path: Path, audited: list[str]) -> None:
    tls, _ = make_server_tls(tmp_path)
    with Served(store, tls=tls, limits=Limits(unfinished_s=0.2)) as served:
        for port in (served.port, served.http_port):
            [silent] = open_silent(port, 1)
            assert read_all(silent) == b""
            silent.close()
    assert len([line for line in audited if "the TLS handshake was not complete within 0.2 s" in line]) == 2


def test_one_address_has_a_limited_number_of_unfinished_handshakes(
    store: str, tmp_path: Path, audited: list[str]
) -> None:
    tls, trusted = make_server_tls(tmp_path)
    with Served(store, tls=tls, limits=Limits(handshakes_per_address=3)) as served:
        served.wait_for(0)
        for port, listener in ((served.port, served.resp.listener), (served.http_port, served.http.listener)):
            assert listener is not None
            held = open_silent(port, 3)
            served.until(lambda listener=listener: listener.handshakes == 3)  # type: ignore[misc]
            assert is_refused(port)
            held.pop().close()
            served.until(lambda listener=listener: listener.handshakes == 2)  # type: ignore[misc]
            context = ssl.create_default_context(cafile=str(trusted))
            if port == served.port:
                assert connect(served, ssl=True, ssl_ca_certs=str(trusted), host="localhost").ping()
            else:
                client = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
                client.request("GET", "/health")
                assert client.getresponse().status == 200
                client.close()
            for each in held:
                each.close()
    assert len([line for line in audited if "unfinished TLS handshakes of one address" in line]) == 2


def test_unfinished_handshakes_count_as_connections(store: str, tmp_path: Path, audited: list[str]) -> None:
    tls, _ = make_server_tls(tmp_path)
    with Served(store, tls=tls, limits=Limits(connections=2)) as served:
        assert served.resp.listener is not None
        held = open_silent(served.port, 2 + SPARE)
        listener = served.resp.listener
        served.until(lambda: listener.handshakes == 2 + SPARE)
        assert is_refused(served.port)
        assert served.resp.rejected_connections == 1
        for each in held:
            each.close()
    assert any("more than 2 connections" in line for line in audited)


def test_ingest_ends_a_handshake_that_takes_too_long(tmp_path: Path, audited: list[str]) -> None:
    certificate, key = make_certificate(tmp_path)
    with Threaded(tmp_path / "log", tls_cert=str(certificate), tls_key=str(key), handshake_s=0.2) as server:
        [silent] = open_silent(server.port, 1)
        assert read_all(silent) == b""
        silent.close()
    assert any("the TLS handshake was not complete" in line for line in audited)


def test_there_are_never_more_connections_than_file_descriptors_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 1024))
    monkeypatch.setattr("resource.setrlimit", lambda which, limits: None)  # or this process could open no more itself
    assert affordable_connections(100, 2) == 100
    assert affordable_connections(10_000, 1) == 1024 - 256 - SPARE
    assert affordable_connections(10_000, 2) == (1024 - 256) // 2 - SPARE
