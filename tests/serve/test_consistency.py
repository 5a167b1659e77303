"""A checker that knows the truth of every epoch reads while a job publishes, crashes, folds, sweeps and changes shards.

Whatever it is told must be true of one published epoch, the same for all keys of a request, and never of an older one
than it was told before on the same connection.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.serve.resp import scopes
from headrace.testing import Harness
from tests.serve.served import Served
from tests.serve.test_serving import connect, serving, wait_until
from tests.services import free_port

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")
KEYS = [f"k{i}" for i in range(40)]
TICK = "tick"
"""A key that changes with every epoch: its value tells which epoch an answer is of."""


class Hit(hr.Record):
    key: str
    n: int


class Count(hr.Process[Hit, Hit, str]):
    total: hr.ValueState[int]
    by_n: hr.MapState[str, int]

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> None:
        self.total.set(self.total.get(0) + event.n)
        self.by_n[str(event.n)] = self.by_n.get(str(event.n), 0) + 1


def program() -> tuple[hr.App, hr.Stream[Hit]]:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), Hit)
    hits.key_by(Hit.key).process(Count()).named("count").queryable()
    hits.key_by(Hit.key).aggregate(sum=hr.sum("n"), rows=hr.count()).named("sums").queryable()
    return app, hits


class Job:
    """Runs epochs whose outcome is known before they are published."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.truth: dict[int, dict[str, list[int]]] = {}
        """Epoch → key → all numbers that it ever was sent."""
        self._sent: dict[str, list[int]] = {}

    def run(self, epochs: int, *, parallelism: int = 2, crash: str | None = None) -> None:
        """A start of the job on what is in the store, perhaps with another number of shards."""
        app, hits = program()
        with Harness(app, store=self.path, parallelism=parallelism) as h:
            for number in range(epochs):
                if crash is not None and number == epochs // 2:
                    self._push(h, hits)
                    self._expect(h.published + 1)
                    h.crash(at=crash)
                    if h.published + 1 in self.truth:
                        # It died before it was published; its rows are still there.
                        h.epoch()
                    continue
                self._push(h, hits)
                self._expect(h.published + 1)
                h.epoch()
                if number % 5 == 4:
                    h.maintain()

    def _push(self, h: Harness, hits: hr.Stream[Hit]) -> None:
        for key in [TICK, *self.random.sample(KEYS, self.random.randint(1, 20))]:
            n = 1 if key == TICK else self.random.randint(1, 9)
            self._sent.setdefault(key, []).append(n)
            h.push(hits, Hit(key, n))

    def _expect(self, epoch: int) -> None:
        self.truth[epoch] = {key: list(sent) for key, sent in self._sent.items()}


class Checker(threading.Thread):
    """Asks on one connection, again and again, and compares."""

    def __init__(self, port: int, truth: dict[int, dict[str, list[int]]], ask: Callable[..., int], seed: int) -> None:
        super().__init__()
        self.port = port
        self.truth = truth
        self.ask = ask
        self.random = random.Random(seed)
        self.seen: list[int] = []
        self.error: BaseException | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            with connect(self.port, decode_responses=True) as client:
                newest = -1
                while not self.stopped.is_set():
                    epoch = self.ask(client, self.truth, self.random)
                    assert epoch >= newest, f"went back from epoch {newest} to {epoch}"
                    newest = epoch
                    self.seen.append(epoch)
        except BaseException as error:
            self.error = error


def total(truth: dict[str, list[int]], key: str) -> str | None:
    return str(sum(truth[key])) if key in truth else None


def ask_many(client: Any, truth: dict[int, dict[str, list[int]]], chance: random.Random) -> int:
    """MGET over two states: one epoch for all keys."""
    keys = chance.sample(KEYS, 12)
    names = [f"count.total:{TICK}", *(f"count.total:{key}" for key in keys), *(f"sums:{key}" for key in keys)]
    tick, *answers = client.mget(names)
    epoch = int(tick) - 1
    then = truth[epoch]
    assert answers[:12] == [total(then, key) for key in keys]
    sums = [{"key": k, "sum": sum(then[k]), "rows": len(then[k])} if k in then else None for k in keys]
    assert [None if told is None else json.loads(told) for told in answers[12:]] == sums
    return epoch


def ask_in_a_transaction(client: Any, truth: dict[int, dict[str, list[int]]], chance: random.Random) -> int:
    key = chance.choice(KEYS)
    with client.pipeline() as pipeline:
        pipeline.execute_command("HEADRACE.EPOCH").get(f"count.total:{key}").hgetall(f"count.by_n:{key}")
        epoch, value, counts = pipeline.execute()
    then = truth[epoch]
    assert value == total(then, key)
    sent = then.get(key, [])
    assert {int(n): int(count) for n, count in counts.items()} == {n: sent.count(n) for n in set(sent)}
    return int(epoch)


def ask_one_by_one(client: Any, truth: dict[int, dict[str, list[int]]], chance: random.Random) -> int:
    """Single GETs: each of an epoch between those that the ticks around it tell."""
    before = int(client.get(f"count.total:{TICK}")) - 1
    key = chance.choice(KEYS)
    value = client.get(f"count.total:{key}")
    after = int(client.get(f"count.total:{TICK}")) - 1
    assert value in [total(truth[epoch], key) for epoch in range(before, after + 1)]
    return after


def ask_all(client: Any, truth: dict[int, dict[str, list[int]]], chance: random.Random) -> int:
    """A pipeline in one piece: answered from one snapshot, whatever is published meanwhile."""
    with client.pipeline(transaction=False) as pipeline:
        for key in (TICK, *KEYS):
            pipeline.get(f"count.total:{key}")
        tick, *values = pipeline.execute()
    epoch = int(tick) - 1
    assert values == [total(truth[epoch], key) for key in KEYS]
    return epoch


ASKING = [ask_many, ask_in_a_transaction, ask_one_by_one, ask_all]


def all_saw(checkers: list[Checker], epoch: int) -> bool:
    return all(checker.error is not None or epoch in checker.seen[-1:] for checker in checkers)


def check(port: int, job: Job, *work: Callable[[], None]) -> list[Checker]:
    """Asks while the job works; behind each piece of work until everybody has seen what came of it."""
    checkers = [Checker(port, job.truth, ask, seed) for seed, ask in enumerate(ASKING)]
    for checker in checkers:
        checker.start()
    try:
        for each in work:
            each()
            wait_until(partial(all_saw, checkers, max(job.truth)))
    finally:
        for checker in checkers:
            checker.stopped.set()
        for checker in checkers:
            checker.join(60)
    for checker in checkers:
        if checker.error is not None:
            raise checker.error
    return checkers


@pytest.mark.parametrize(
    "few", [scopes.FEW_KEPT, -1], ids=["few replies are dropped", "replies are kept until they change"]
)
def test_answers_are_true_of_their_epoch_while_the_job_runs_crashes_and_changes_shards(
    store_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scopes, "FEW_KEPT", few)
    job = Job(store_path, seed=11)
    job.run(1)
    with Served(store_path) as served:
        served.wait_for(0)
        checkers = check(
            served.port,
            job,
            lambda: job.run(7),
            lambda: job.run(6, parallelism=3, crash="before_publish"),
            lambda: job.run(6, parallelism=1, crash="manifest_answer_lost"),
            lambda: job.run(5, parallelism=4),
        )
    for checker in checkers:
        assert len(set(checker.seen)) > 3, "it saw the job go on"


def test_answers_stay_true_when_the_server_is_killed_and_started_again(store_path: Path) -> None:
    job = Job(store_path, seed=12)
    job.run(3)
    port = free_port()
    newest = -1
    for _ in range(2):
        with serving(str(store_path), "--port", str(port)) as running:
            running.wait_line("epoch ")
            [*checkers] = check(port, job, lambda: job.run(6))
            with connect(port) as client:
                wait_until(lambda: client.execute_command("HEADRACE.EPOCH") == max(job.truth))
            seen = [epoch for checker in checkers for epoch in checker.seen]
            assert min(seen) >= newest
            newest = max(seen)
            running.end(signal.SIGKILL)


def test_a_reader_that_waits_for_its_own_event_reads_it(store_path: Path) -> None:
    app, hits = program()
    with Harness(app, store=store_path) as h, Served(store_path) as served, redis.Redis(port=served.port) as client:
        for number in range(1, 6):
            h.push(hits, Hit("me", 1))
            h.epoch()
            assert client.execute_command("HEADRACE.WAIT", "hits", number, 60_000) is not None
            assert client.get("count.total:me") == b"%d" % number
