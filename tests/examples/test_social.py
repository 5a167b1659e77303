from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.ingest.streams import Streams, StreamSpec
from headrace.model.rows import codec_of
from tests.examples.programs import EXAMPLES, load_program
from tests.ingest.servers import Threaded
from tests.serve.served import Served


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return load_program("social", tmp_path)


def load_client() -> Any:
    spec = importlib.util.spec_from_file_location("social_client", EXAMPLES / "social" / "client.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_posts_reach_those_who_follow_at_that_time(program: Any, store_path: Path) -> None:
    post, follow, unfollow = program.Post, program.Follow, program.Unfollow
    with hr.testing.Harness(program.app, start="2024-05-01T12:00", store=store_path) as h:
        h.push(
            program.commands,
            post("ann", "p1", "nobody listens", h.at("12:00:00")),
            follow("bob", "ann"),
            follow("ann", "ann"),
            post("ann", "p2", "hello bob", h.at("12:00:01")),
        )
        h.epoch()
        h.push(program.commands, follow("cid", "ann"), post("ann", "p3", "hello all", h.at("12:00:02")))
        h.push(program.commands, unfollow("bob", "ann"), post("ann", "p4", "bye bob", h.at("12:00:03")))
        h.epoch()
    store = hr.Store(store_path)
    timelines = dict(store.state("timelines.entries").scan())
    assert {reader: [entry["text"] for entry in entries] for reader, entries in timelines.items()} == {
        "ann": ["nobody listens", "hello bob", "hello all", "bye bob"],
        "bob": ["hello bob", "hello all"],
        "cid": ["hello all", "bye bob"],
    }
    assert list(store.state("members.followers")["ann"]) == ["cid"]
    assert store.state("members.posts")["ann"] == 4


def test_a_like_counts_once_per_person(program: Any, store_path: Path) -> None:
    with hr.testing.Harness(program.app, start="2024-05-01T12:00", store=store_path) as h:
        h.push(program.commands, program.Like("ann", "p1"), program.Like("bob", "p1"), program.Like("ann", "p1"))
        h.epoch()
        h.push(program.commands, program.Like("ann", "p1"), program.Like("cid", "p1"), program.Like("cid", "p2"))
        h.crash(at="before_publish")
        h.epoch()
        likes = hr.Store(store_path).state("likes", program.Liked)
        assert (likes["p1"].likes, likes["p2"].likes) == (3, 1)


@pytest.mark.spark
def test_on_spark_whoever_sends_a_command_reads_what_became_of_it(tmp_path: Path, spark: Any) -> None:
    program = load_program("social", tmp_path)
    streams = Streams({"commands": StreamSpec(codec=codec_of(program.Command))})
    with Threaded(tmp_path / "log", streams) as server:
        store = tmp_path / "store"
        run = program.app.start(spark=spark, store=store, parallelism=2, epoch="50ms")
        try:
            with Served(store) as served:
                network = load_client().Network(f"http://localhost:{server.port}", f"localhost:{served.port}")
                network.send("Follow", user="bob", whom="ann")
                assert network.followers("ann") == ["bob"]
                first = network.post("ann", "hello")
                second = network.post("ann", "again")
                assert [entry["text"] for entry in network.timeline("bob")] == ["again", "hello"]
                assert network.likes(first) == 0
                network.send("Like", user="bob", post=first)
                assert (network.likes(first), network.likes(second)) == (1, 0)
                refused = server.sender.send({"type": "Poke", "user": "bob"}, stream="commands")
                assert (refused.status, "Poke" in refused.body["error"]["found"]) == (422, True)
                network.close()
        finally:
            run.stop()
    # The log is all there is: a new store makes the same network from it.
    program.app.run(until="caught_up", spark=spark, store=tmp_path / "other", parallelism=3)
    again = hr.Store(tmp_path / "other").state("timelines.entries")["bob"]
    assert [entry["text"] for entry in again] == ["hello", "again"]
