from __future__ import annotations

import contextlib
import io
import os
import random
import shlex
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from rich.console import Console

import headrace as hr
from headrace.cli.demo import BoardLines, command_name
from headrace.cli.demo_server import HTTP_PORT, DemoServer
from headrace.demo import QUIET, START, TOLD_EVERY, Board, CountViews, Impression, Standing, make_demo, make_impression
from headrace.errors import SettingsError
from headrace.query.serving import LOOPBACK, PORT, bind
from tests.cli.calling import call
from tests.query.made_store import MadeStore, busy_epoch


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
    from tests.cli.processes import run_headrace, start_headrace

    with start_headrace("demo", "--seconds", "2", "--rate", "2000", "--stay", cwd=tmp_path) as playing:
        assert playing.stdout is not None
        said = []
        for line in playing.stdout:
            said.append(line.strip())
            if len(said) > 1 and said[-2].startswith("redis-cli"):
                break
        redis, curl = (shlex.split(line.split("   ")[0]) for line in said[-2:])
        assert any(line.startswith("ask while it plays: redis-cli -p") for line in said)
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


def test_a_port_that_is_taken_keeps_no_demo_from_serving(store_path: Path) -> None:
    taken = []
    for port in (PORT, HTTP_PORT):
        with contextlib.suppress(SettingsError):
            taken.append(bind(LOOPBACK, port))
            taken[-1].listen()
    made = MadeStore(store_path)
    busy_epoch(made)
    served = threading.Event()
    try:
        with DemoServer(str(store_path), "tweets", served.set) as server:
            assert served.wait(60)
            (redis, _), (curl, _) = server.commands("tweet-1")
            assert f"-p {PORT} " not in redis
            assert urlopen(curl.split()[1], timeout=20).read() == b"1"
    finally:
        for each in taken:
            each.close()
