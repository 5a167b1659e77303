from __future__ import annotations

import contextlib
import io
import os
import queue
import random
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from redis import Redis
from rich.console import Console

import headrace as hr
from headrace.cli.demo import BoardLines, _first_tweet, _leader, _own_commands, _wait_served, command_name
from headrace.cli.demo_server import HTTP_PORT, DemoServer
from headrace.demo import QUIET, START, TOLD_EVERY, Board, CountViews, Impression, Standing, make_demo, make_impression
from headrace.errors import SettingsError
from headrace.net.listening import bind
from headrace.serve.serving import LOOPBACK, PORT
from headrace.stop_signals import StopSignals
from tests.cli.calling import call
from tests.cli.processes import headrace, run_headrace
from tests.serve.made_store import MadeStore, busy_epoch, values


def drawn(board: Board) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(board.draw())
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def standing(tweet: str, views: int, second: int, *, quiet: bool = False) -> Standing:
    return Standing(tweet, views, START + hr.seconds(second), quiet)


# --- the program


def test_the_program_counts_views_and_tells_of_every_tenth() -> None:
    app = make_demo(Board())
    with hr.testing.Harness(app, start="2024-05-01T12:00") as h:
        impressions, standings = _streams(app)
        h.push(impressions, *(Impression("tweet-1", START + hr.seconds(i)) for i in range(2 * TOLD_EVERY + 3)))
        h.epoch()
        assert [row.views for row in h.take(standings)] == [TOLD_EVERY, 2 * TOLD_EVERY]
        assert h.state(standings, CountViews.views, key="tweet-1") == 2 * TOLD_EVERY + 3


def test_a_tweet_that_nobody_sees_any_more_goes_quiet_once() -> None:
    app = make_demo(Board())
    with hr.testing.Harness(app, start="2024-05-01T12:00") as h:
        impressions, standings = _streams(app)
        h.push(impressions, Impression("tweet-1", START))
        h.epoch()
        h.push(impressions, Impression("tweet-2", START + hr.minutes(10)))
        h.epoch()
        assert h.take(standings) == [Standing("tweet-1", 1, START + QUIET, quiet=True)]
        h.push(impressions, Impression("tweet-2", START + hr.minutes(11)))
        h.epoch()
        assert h.take(standings) == []


def _streams(app: hr.App) -> tuple[Any, Any]:
    from headrace.dataflow.stream import Stream

    read, step = (node for node in app.nodes if node.verb in ("read", "process"))
    return Stream(app, read), Stream(app, step)


def test_an_impression_depends_on_its_number_and_the_seed_alone() -> None:
    made = [make_impression(i, random.Random(7)) for i in (0, 12_345, 999_999)]
    again = [make_impression(i, random.Random(7)) for i in (0, 12_345, 999_999)]
    assert made == again
    assert made[0].at < made[1].at < made[2].at


def test_views_are_skewed_and_newer_tweets_take_over() -> None:
    rng = random.Random(1)
    early = [make_impression(i, rng).tweet for i in range(5000)]
    late = [make_impression(i, rng).tweet for i in range(1_000_000, 1_005_000)]
    most = max(set(early), key=early.count)
    assert early.count(most) > 1000
    assert late.count(most) == 0
    assert len(set(early)) > 100


# --- the board


def test_the_board_ranks_by_views_and_tells_the_speed() -> None:
    board = Board()
    board.take([standing("a", 10, 0), standing("b", 30, 0)], 0)
    board.take([standing("a", 50, 2)], 1)
    assert [(row.tweet, row.views, speed) for row, speed in board.top()] == [("a", 50, 20.0), ("b", 30, 0.0)]
    assert board.line() == "most viewed: a 50, b 30; no tweet went quiet yet"


def test_a_quiet_tweet_leaves_the_board_and_is_told_of() -> None:
    board = Board()
    board.take([standing("a", 100, 0), standing("b", 30, 0), standing("c", 1, 20, quiet=True)], 0)
    board.take([standing("a", 104, 30, quiet=True)], 1)
    assert [row.tweet for row, _ in board.top()] == ["b"]
    out = drawn(board)
    assert "2 tweets went quiet, lately a after 104 views" in out
    assert "most viewed tweets" in out


def test_an_empty_board_can_be_drawn() -> None:
    assert "no tweet went quiet yet" in drawn(Board())
    assert Board().line().startswith("most viewed: –")


# --- the command


def test_in_a_log_the_demo_says_something_every_few_seconds_only(store_path: Path) -> None:
    now = [0.0]
    out = Console(file=io.StringIO(), width=200)
    lines = BoardLines(Board(), out, clock=lambda: now[0])
    made = MadeStore(store_path)
    for second in (0.0, 1.0, 2.0, 6.0):
        now[0] = second
        lines(busy_epoch(made))
    said = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split(":")[0].strip() for line in said] == ["epoch 0", "most viewed", "epoch 3", "most viewed"]
    assert lines.summary().startswith("4 epochs, 4,800 rows in")


def test_the_next_command_is_written_as_this_one_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "headrace"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_name([str(script)]) == "bin/headrace"
    monkeypatch.setenv("PATH", str(script.parent))
    assert command_name([str(script)]) == "headrace"
    assert command_name(["/somewhere/cli/__main__.py"]) == "python -m headrace.cli"


def test_a_negative_time_to_play_is_refused() -> None:
    assert call("demo", "--seconds", "-1").exit_code == 2


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_what_the_demo_says_to_try_works_while_it_stays_and_the_next_one_resumes(tmp_path: Path) -> None:
    with headrace("demo", "--seconds", "2", "--rate", "2000", "--stay", cwd=tmp_path) as playing:
        assert playing.stdout is not None
        said = []
        for line in playing.stdout:
            said.append(line.strip())
            if len(said) > 1 and said[-2].startswith("redis-cli"):
                break
        assert "its state is served until Ctrl-C; try now" in said, said
        redis, curl = (shlex.split(line.split("   ")[0]) for line in said[-2:])
        answer = urlopen(curl[1], timeout=20).read()
        assert int(answer) > 0
        if shutil.which("redis-cli") is not None:
            told = subprocess.run(redis, capture_output=True, timeout=20, check=True).stdout
            assert told.strip() == answer
        os.killpg(playing.pid, signal.SIGINT)
        assert playing.wait(30) == 0
    second = run_headrace("demo", "--seconds", "1", "--rate", "2000", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "resuming at epoch" in second.stdout
    assert "the demo has ended" in second.stdout
    assert "Traceback" not in second.stderr
    command = next(line for line in second.stdout.splitlines() if "views tweet-" in line).split("   ")[0].split()
    told = run_headrace(*command[command.index("state") :], cwd=tmp_path)
    assert int(told.stdout) > 0


# --- what is told to be asked for


@contextlib.contextmanager
def served(store: Path, pick: Callable[[], str | None]) -> Iterator[tuple[DemoServer, queue.Queue[str]]]:
    """The demo's server over a store, and the tweets that it told of."""
    told: queue.Queue[str] = queue.Queue()
    with DemoServer(str(store), "tweets", pick, told.put) as server:
        yield server, told


def answers(server: DemoServer, tweet: str) -> list[str]:
    """What its commands give now, one after the other."""
    (redis, _), (curl, _) = server.commands(tweet)
    words = shlex.split(redis)
    with Redis(port=int(words[2])) as client:
        return [client.execute_command(*words[3:]).decode(), urlopen(curl.split()[1], timeout=20).read().decode()]


def wait_until(so: Callable[[], bool], limit_s: float = 60) -> None:
    ends = time.monotonic() + limit_s
    while not so():
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.02)


def counted(made: MadeStore, *rows: tuple[str, int]) -> None:
    made.epoch({"count_views": [values("views", rows)]} if rows else {})


def test_a_tweet_is_told_of_when_it_is_on_the_board_and_can_be_asked_for(store_path: Path) -> None:
    board = Board()
    made = MadeStore(store_path)
    counted(made)
    picked: list[str | None] = []

    def pick() -> str | None:
        picked.append(_leader(board))
        return picked[-1]

    with served(store_path, pick) as (server, told):
        wait_until(lambda: server.answers(None))
        assert not server.answers("tweet-21")
        # The board is filled from the epoch at hand, and the server may not have read it yet.
        board.take([standing("tweet-21", 10, 0)], 1)
        wait_until(lambda: picked.count("tweet-21") > 1)
        assert told.empty()
        counted(made, ("tweet-21", 10))
        assert told.get(timeout=60) == "tweet-21"
        assert answers(server, "tweet-21") == ["10", "10"]


def test_after_the_end_the_last_epoch_is_waited_for(store_path: Path) -> None:
    made = MadeStore(store_path)
    counted(made, ("tweet-21", 10))
    with served(store_path, lambda: None) as (server, told):
        assert _wait_served(server, "tweet-21", 0, StopSignals())
        assert not server.answers("tweet-21", 1)
        later = threading.Timer(0.5, counted, (made, ("tweet-21", 20)))
        later.start()
        assert _wait_served(server, "tweet-21", 1, StopSignals())
        assert answers(server, "tweet-21") == ["20", "20"]
        later.join()
    assert told.empty()


def test_a_server_that_does_not_come_so_far_is_not_waited_for_forever(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(MadeStore(store_path), ("tweet-21", 10))
    monkeypatch.setattr("headrace.cli.demo.SERVED_WITHIN_S", 0.5)
    with served(store_path, lambda: None) as (server, _):
        assert _wait_served(server, "tweet-21", 7, StopSignals()) is False


def test_who_does_not_want_to_wait_ends_the_waiting(store_path: Path) -> None:
    counted(MadeStore(store_path), ("tweet-21", 10))
    with served(store_path, lambda: None) as (server, _):
        signals = StopSignals()
        signals.ended.set()
        assert _wait_served(server, "tweet-21", 7, signals) is None


def test_where_no_tweet_is_on_the_board_one_from_the_store_is_named_or_none(store_path: Path) -> None:
    made = MadeStore(store_path)
    counted(made)
    assert _first_tweet(str(store_path)) is None
    commands = [command for command, _ in _own_commands(str(store_path), None, [0], serves=False)]
    assert not [command for command in commands if "views" in command]
    counted(made, ("tweet-33", 1))
    assert _first_tweet(str(store_path)) == "tweet-33"


def test_a_port_that_is_taken_keeps_no_demo_from_serving(store_path: Path) -> None:
    taken = []
    for port in (PORT, HTTP_PORT):
        with contextlib.suppress(SettingsError):
            taken.append(bind(LOOPBACK, port))
            taken[-1].listen()
    counted(MadeStore(store_path), ("tweet-1", 1))
    try:
        with served(store_path, lambda: "tweet-1") as (server, told):
            assert told.get(timeout=60) == "tweet-1"
            assert f"-p {PORT} " not in server.commands("tweet-1")[0][0]
            assert answers(server, "tweet-1") == ["1", "1"]
    finally:
        for each in taken:
            each.close()
