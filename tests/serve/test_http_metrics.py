"""``/metrics``: what somebody who watches over servers reads, in the form that Prometheus expects."""

from __future__ import annotations

import re
from pathlib import Path

import redis

from headrace.net.access import add_user
from tests.serve.served import Served
from tests.serve.tweets import Tweets, fetch

LINE = re.compile(r'headrace_(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)+)\} (-?[0-9.e+]+)')


def figures(text: str) -> dict[str, float]:
    """Name → number; every line has to be what Prometheus reads."""
    found = {}
    kinds = {}
    for line in text.splitlines():
        if line.startswith("# TYPE headrace_"):
            name, kind = line.removeprefix("# TYPE headrace_").split()
            kinds[name] = kind
        elif not line.startswith("# HELP headrace_"):
            matched = LINE.fullmatch(line)
            assert matched is not None, line
            assert matched[1] in kinds, "its kind comes first"
            found[matched[1]] = float(matched[3])
    assert {kind for name, kind in kinds.items() if name.endswith("_total")} <= {"counter"}
    return found


def test_a_server_tells_its_epoch_its_age_and_what_it_was_asked(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store") as served:
        before = figures(fetch(served.url, "/metrics").body.decode())
        assert before["epoch"] == -1
        served.wait_for(tweets.push(("a", "12:01", 1)))
        with redis.Redis(port=served.port) as client:
            for _ in range(5):
                assert client.get("watch.seen:a") == b"1"
            answer = fetch(served.url, "/metrics")
            found = figures(answer.body.decode())
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert (found["epoch"], found["lag_epochs"], found["trouble"]) == (0, 0, 0)
        assert found["redis_commands_total"] >= 5
        assert (found["redis_connections"], found["redis_kept_replies"]) == (1, 1)
        assert found["memory_peak_bytes"] > 2**20
        assert found["watermark_seconds"] > 0
        assert fetch(served.url, "/metrics?x=1").status == 400


def test_figures_are_for_those_with_a_token_where_one_is_needed(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "watcher", ())
    with Tweets(tmp_path / "store") as tweets, Served(tmp_path / "store", users=users) as served:
        served.wait_for(tweets.push(("a", "12:01", 1)))
        assert fetch(served.url, "/metrics").status == 401
        assert figures(fetch(served.url, "/metrics", Authorization=f"Bearer {token}").body.decode())["epoch"] == 0
