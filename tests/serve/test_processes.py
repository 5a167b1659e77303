"""Who holds a port for servers in processes of their own, and what happens when none of them stays alive."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError, SettingsError
from headrace.net.listening import bind
from headrace.serve import processes
from headrace.serve.processes import Workers, _reserve, serve_together
from headrace.serve.serving import LOOPBACK, Options
from tests.serve.kinds import make_kinds
from tests.serve.test_serving import connect, listening

# --- ports


def test_a_port_that_is_held_for_children_is_theirs_alone_before_they_listen() -> None:
    with _reserve(LOOPBACK, 0, "--port") as held:
        port = held.getsockname()[1]
        for host in (LOOPBACK, "0.0.0.0"):
            with pytest.raises(SettingsError, match=f"{port} is in use") as told:
                _reserve(host, port, "--serve")
            assert f"--serve {port + 1}" in told.value.next_move
        with pytest.raises(SettingsError, match="is in use"):
            bind(LOOPBACK, port)
        assert not listening(port)
        with bind(LOOPBACK, port, shared=True) as one, bind(LOOPBACK, port, shared=True) as two:
            one.listen()
            two.listen()
            assert listening(port)
    _reserve(LOOPBACK, port, "--port").close()


def test_of_those_who_want_a_port_at_the_same_time_one_gets_it() -> None:
    with bind(LOOPBACK, 0) as probe:
        port = probe.getsockname()[1]
    held: list[socket.socket] = []
    begin = threading.Barrier(8)

    def want() -> None:
        begin.wait()
        with contextlib.suppress(SettingsError):
            held.append(_reserve(LOOPBACK, port, "--port"))

    for _ in range(20):
        threads = [threading.Thread(target=want) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(held) == 1
        held.pop().close()


def test_servers_that_were_stopped_start_again_on_their_port_at_once(store_path: Path) -> None:
    make_kinds(store_path)
    port = 0
    for _ in range(2):
        served = threading.Event()
        workers = Workers(
            Options(store=str(store_path), port=port, processes=2),
            lambda told: served.set() if told["event"] == "serving" else None,  # noqa: B023
        )
        port = workers.options.port
        workers.start()
        try:
            assert served.wait(60)
            clients = [connect(port) for _ in range(8)]
            assert {client.get("count.views:a") for client in clients} == {b"1"}
        finally:
            # The server ends connections first: the system remembers them for a minute, on its port.
            workers.stop()
        for client in clients:
            client.close()


def test_a_second_port_that_is_taken_gives_the_first_one_back(store_path: Path) -> None:
    with bind(LOOPBACK, 0) as taken, bind(LOOPBACK, 0) as probe:
        taken.listen()
        http_port, port = taken.getsockname()[1], probe.getsockname()[1]
        probe.close()
        with pytest.raises(SettingsError, match=f"{http_port} is in use") as told:
            Workers(Options(store=str(store_path), port=port, http_port=http_port), print)
        assert f"--http-port {http_port + 1}" in told.value.next_move
        bind(LOOPBACK, port).close()


# --- processes that die


def test_servers_of_which_none_stays_alive_are_an_error(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_kinds(store_path)
    monkeypatch.setattr(processes, "_MOST_DEATHS", 1)
    monkeypatch.setattr(processes, "_AGAIN_S", 0.01)
    told: list[dict[str, Any]] = []
    nothing = str(store_path / "no.pem")
    options = Options(store=str(store_path), port=0, processes=2, tls_cert=nothing, tls_key=nothing)
    with pytest.raises(HeadraceError, match="no server process stays alive") as error:
        serve_together(options, told.append)
    assert "code 1" in error.value.found
    assert [each["event"] for each in told].count("ended") == 2
