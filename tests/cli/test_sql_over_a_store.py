"""``headrace sql --store`` and ``headrace serve --pg-port``, as commands."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.serve.processes import Workers
from headrace.serve.serving import Options
from tests.serve.pg_served import PgServed
from tests.serve.tweets import Tweets


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "store"
    with Tweets(path) as tweets:
        tweets.push(("a", "12:01", 1), ("b", "12:02", 2), ("a", "12:10", 5))
        tweets.push(("a", "12:31", 1), ("c", "12:32", 2), watermark="13:10")
    return path


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sql", *words])
    return result.exit_code, result.output


def test_a_statement_over_a_store_is_answered_at_once_in_any_format(store: Path) -> None:
    query = "SELECT tweet, views FROM totals ORDER BY 1"
    code, lines = run("--store", str(store), "-e", query, "--format", "json")
    assert code == 0 and json.loads(lines.splitlines()[0]) == {"tweet": "a", "views": 3}
    assert run("--store", str(store), "-e", query, "--format", "csv") == (0, "tweet,views\na,3\nb,1\nc,1\n")
    code, table = run("--store", str(store), "-e", r"\d hourly")
    assert code == 0 and "impressions" in table and "key" in table


def test_a_past_epoch_is_asked_with_at_or_behind_the_store(store: Path) -> None:
    query = "SELECT views FROM totals WHERE tweet = 'a'"
    for words in (["--store", str(store), "--at", "0"], ["--store", f"{store}@0"]):
        assert run(*words, "-e", query, "--format", "csv") == (0, "views\n2\n")
    code, said = run("--at", "0", "-e", query)
    assert code != 0 and "--store" in said


def test_a_mistake_is_said_with_its_place(store: Path) -> None:
    code, said = run("--store", str(store), "-e", "SELECT nope FROM totals")
    assert code != 0 and "nope" in said and "line 1, column 8" in said and "Traceback" not in said


def test_served_processes_share_a_port_for_postgres(store: Path) -> None:
    serving = threading.Event()
    events: list[dict[str, Any]] = []

    def tell(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "serving":
            serving.set()

    workers = Workers(Options(store=str(store), port=0, pg_port=0, processes=2), tell)
    workers.start()
    try:
        assert serving.wait(60), events
        assert any("psql -h 127.0.0.1" in works for works in events[-1]["try"])
        dsn = f"host=127.0.0.1 port={workers.options.pg_port} user=me dbname=tweets connect_timeout=60"
        for _ in range(4):
            with psycopg.connect(dsn) as client:
                assert client.execute("SELECT views FROM totals WHERE tweet = 'a'").fetchone() == (3,)
    finally:
        workers.stop()


def test_a_server_is_asked_as_a_store_is(store: Path) -> None:
    query = "SELECT tweet, views, mean FROM totals ORDER BY 1"
    with PgServed(store) as server:
        server.wait_for(1)
        url = f"postgresql://me@127.0.0.1:{server.port}/tweets"
        for form in ("json", "csv"):
            words = ("-e", query, "--format", form)
            assert run("--to", url, *words) == run("--store", str(store), *words)
        code, table = run("--to", url, "-e", r"\d watch.sizes")
        assert code == 0 and "entry" in table and "key" in table
        code, said = run("--to", url, "-e", "SELECT nope FROM totals")
        assert code != 0 and "nope" in said and "Traceback" not in said
        assert run("--to", f"{url}@0", "-e", "SELECT views FROM totals", "--format", "csv")[0] == 0
    code, said = run("--to", url, "-e", query)
    assert code != 0 and "cannot be reached" in said
