"""``headrace run --serve``: what is served beside a job, how that is said, and the commands it names."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.cli.run import _serving
from headrace.dataflow.serve_settings import HTTP_PORT, Serving
from headrace.dataflow.settings import Settings, load_settings
from headrace.errors import SettingsError
from headrace.foreground import _serve_options, serving_beside
from headrace.net.access import add_user
from headrace.net.listening import bind
from headrace.screens import EpochLines, TablesScreen
from headrace.serve.serving import LOOPBACK
from tests.cli.calling import call
from tests.serve.certificates import make_certificate
from tests.serve.kinds import make_kinds
from tests.serve.made_store import MadeStore, values
from tests.serve.test_serving import connect, listening, wait_until
from tests.services import free_port

needs_tools = pytest.mark.skipif(
    shutil.which("redis-cli") is None or shutil.which("curl") is None, reason="runs redis-cli and curl"
)


def loaded(
    tmp_path: Path, told: Any = None, *, env: dict[str, str] | None = None, profile: str | None = None
) -> Serving:
    return load_settings("app", {"serve": told}, environment=env or {}, folder=tmp_path, profile=profile).serve


# --- how it is said


@pytest.mark.parametrize(
    ("told", "serving"),
    [
        (False, None), ("", None), ("false", None), (True, {}), ("true", {}), (7000, {"port": 7000}),
        ("7000", {"port": 7000}), ("0.0.0.0:7000", {"bind": "0.0.0.0", "port": 7000}),
        ("localhost:7000", {"bind": "localhost", "port": 7000}), ("[::1]:7000", {"bind": "::1", "port": 7000}),
        ({"port": 7000, "users": "u.toml"}, {"port": 7000, "users": "u.toml"}), ({"on": False, "port": 7000}, None),
        ({"http_port": False, "origins": ["http://a"]}, {"http_port": False, "origins": ("http://a",)}),
        ({"http_port": 0, "processes": 2}, {"http_port": 0, "processes": 2}),
    ],
)  # fmt: skip
def test_the_setting_is_said_in_short_or_as_a_table(told: Any, serving: dict[str, Any] | None, tmp_path: Path) -> None:
    def fits(found: Serving) -> bool:
        return not found.on if serving is None else found == Serving(**serving)

    assert fits(loaded(tmp_path, told))
    assert fits(loaded(tmp_path, env={"HEADRACE_SERVE": json.dumps(told) if isinstance(told, dict) else str(told)}))
    lines = [f"{name} = {json.dumps(word)}" for name, word in told.items()] if isinstance(told, dict) else []
    (tmp_path / "headrace.toml").write_text(
        "\n".join(["[serve]", *lines] if lines else [f"serve = {json.dumps(told)}"])
    )
    assert fits(loaded(tmp_path))


def test_nothing_is_served_unless_somebody_says_so(tmp_path: Path) -> None:
    assert not loaded(tmp_path).on
    assert not Settings().serve.on


@pytest.mark.parametrize("told", ["here", "localhost:", "70000", -1, {"port": "x"}, {"http_port": 70_000}, "{", [1]])
def test_a_setting_that_is_no_place_is_refused(told: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'serve' has the wrong form"):
        loaded(tmp_path, told)


def test_a_word_that_serve_does_not_know_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no setting 'user' in the table 'serve'") as told:
        loaded(tmp_path, {"user": "u.toml"})
    assert told.value.next_move == "did you mean users?"


def test_the_words_of_all_places_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        '[serve]\non = false\nusers = "u.toml"\nport = 7000\n[profiles.open]\nserve = "0.0.0.0:7001"\n'
        "[profiles.closed]\nserve = false\n"
    )
    assert not loaded(tmp_path).on
    assert loaded(tmp_path, True) == Serving(users="u.toml", port=7000)
    assert loaded(tmp_path, profile="open") == Serving(users="u.toml", port=7001, bind="0.0.0.0")
    assert loaded(tmp_path, {"http_port": 1}, profile="open").http_port == 1
    assert not loaded(tmp_path, profile="closed").on
    assert loaded(tmp_path, profile="closed", env={"HEADRACE_SERVE": "7002"}) == Serving(users="u.toml", port=7002)


@pytest.mark.parametrize(
    "words",
    [["--serve"], ["--serve", "7000"], ["--serve=7000"], ["--serve", "localhost:7000"], ["--serve", "[::1]:7000"]],
)
def test_run_takes_serve_alone_or_with_a_place(words: list[str]) -> None:
    for arguments in (["no_such_file.py", *words, "--plain"], [*words, "no_such_file.py"]):
        assert "there is no such file" in call("run", *arguments).stderr


def test_flags_say_the_same_words_and_each_of_them_serves(tmp_path: Path) -> None:
    assert _serving(None, http_port=None) is None
    assert _serving("7000", http_port=None) == "7000"
    assert loaded(tmp_path, _serving(None, http_port=8500)) == Serving(http_port=8500)
    both = _serving("0.0.0.0:7000", http_port=8500, users="u.toml", insecure=True, processes=None)
    assert loaded(tmp_path, both) == Serving(bind="0.0.0.0", port=7000, http_port=8500, users="u.toml", insecure=True)


def test_what_cannot_be_served_stops_a_run_before_spark_and_names_its_flags(tmp_path: Path) -> None:
    program = tmp_path / "hits.py"
    program.write_text(
        'import headrace as hr\nclass Hit(hr.Record):\n    page: str\napp = hr.App("hits")\n'
        'app.read("hits", hr.source.items([Hit("a")]), Hit).write(hr.sink.collect())\n'
    )
    store = ("--store", tmp_path / "state")
    done = call("run", program, *store, "--serve", "0.0.0.0:0")
    assert (done.exit_code, "--serve 0.0.0.0:0" in done.stderr) == (1, True), done.stderr
    for flag in ("--users", "--tls-cert", "--insecure"):
        assert flag in done.stderr
    done = call("run", program, *store, "--serve", "0", "--users", tmp_path / "none.toml")
    assert (done.exit_code, "none.toml" in done.stderr) == (1, True), done.stderr
    assert call("run", program, *store, "--serve", "0", "--processes", 0).exit_code == 1


# --- what is served


@pytest.mark.parametrize("live", [False, True])
def test_a_command_longer_than_the_screen_is_said_in_one_line(live: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=live, width=60)
    command = "curl http://127.0.0.1:8399/v1/jobs/tweets/state/count_views.views/" + "k" * 100
    with TablesScreen(console) if live else EpochLines(console) as screen:
        screen.say(f"state is served: {command}")
    assert f"state is served: {command}\n" in out.getvalue()


@contextmanager
def beside(store: Path, **words: Any) -> Iterator[list[str]]:
    """A server beside a job that is not there; what was said."""
    said: list[str] = []
    with serving_beside(Settings(store=str(store), serve=Serving(**words)), said.append):
        yield said


def test_a_server_beside_a_job_answers_both_protocols_while_it_runs_and_ends_with_it(store_path: Path) -> None:
    port, http_port = free_port(), free_port()
    with beside(store_path, port=port, http_port=http_port) as said:
        made = make_kinds(store_path)
        wait_until(lambda: said)
        assert said[0].startswith(f"state is served: redis-cli -p {port} ")
        assert f"   or   curl http://127.0.0.1:{http_port}/v1/jobs/tweets/state/" in said[0]
        with connect(port) as client:
            assert client.get("count.views:a") == b"1"
            made.epoch({"count": [values("views", [("a", 2)])]})
            assert client.execute_command("HEADRACE.WAIT", 1, 60_000) == 1
            assert client.get("count.views:a") == b"2"
    assert not listening(port)
    assert not listening(http_port)


@needs_tools
@pytest.mark.parametrize("empty", [False, True])
def test_the_commands_that_it_names_work(store_path: Path, empty: bool) -> None:
    if empty:
        MadeStore(store_path).epoch()
    else:
        make_kinds(store_path)
    with beside(store_path, port=0, http_port=0) as said:
        for works in commands(said):
            assert answered(works)


@needs_tools
def test_for_other_machines_it_asks_for_tokens_over_tls_from_several_processes(
    store_path: Path, tmp_path: Path
) -> None:
    make_kinds(store_path)
    certificate, key = map(str, make_certificate(tmp_path))
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ())
    words = {"bind": "0.0.0.0", "users": str(users), "tls_cert": certificate, "tls_key": key, "processes": 2}
    with beside(store_path, port=0, http_port=0, **words) as said:
        for works in commands(said):
            assert "TOKEN" in works
            assert answered(works.replace("TOKEN", token))
            assert "NOAUTH" in (refused := printed(works.replace(" -a TOKEN", ""))) or '"error"' in refused


def commands(said: list[str]) -> list[str]:
    line = wait_until(lambda: next((each for each in said if each.startswith("state is served: ")), None))
    found = line.removeprefix("state is served: ").split("   or   ")
    assert [shlex.split(each)[0] for each in found] == ["redis-cli", "curl"]
    return found


def answered(works: str) -> str:
    """What a command prints that was not refused."""
    out = printed(works)
    assert out.strip() and not out.startswith(("ERR", "NOAUTH", "WRONGPASS", "LOADING")) and '"error"' not in out, out
    return out


def printed(works: str) -> str:
    done = subprocess.run(shlex.split(works), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_http_is_on_its_usual_port_another_or_none() -> None:
    def http_port(**words: Any) -> int | None:
        return _serve_options(Settings(serve=Serving(**words)), print).http_port

    assert http_port() == HTTP_PORT == 8399
    assert http_port(http_port=0) == 0
    assert http_port(http_port=False) is None


@pytest.mark.parametrize(("word", "flag"), [("port", "--serve"), ("http_port", "--http-port")])
def test_a_busy_port_stops_the_job_before_it_starts_and_names_the_flag(store_path: Path, word: str, flag: str) -> None:
    with bind(LOOPBACK, 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match="is in use") as told, beside(store_path, **{"port": 0, word: port}):
            pass
        assert f"{flag} {port + 1}" in told.value.next_move


def test_a_job_without_a_server_starts_none(store_path: Path) -> None:
    before = threading.active_count()
    with serving_beside(Settings(store=str(store_path)), print):
        assert threading.active_count() == before
