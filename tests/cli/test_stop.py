"""``headrace stop``, with a thread in the place of the job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.checkpoint.fence import take_fence
from headrace.spark.ending import Ending
from headrace.state import layout
from headrace.state.store import LocalStore
from tests.cli.calling import call, call_json
from tests.serve.made_store import MadeStore, busy_epoch


class Running:
    """A job without Spark: it looks for commands until it is asked to end."""

    def __init__(self, store: LocalStore, epoch: int) -> None:
        self._fence = take_fence(store, interval_s=3600)
        self._ending = Ending(store)
        self._ending.listen(self._fence.number)
        self._epoch = epoch
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._ending.event.wait(0.01) and not self._ending.drains:
            self._ending.glance(self._epoch)
        self._ending.settle(layout.ManifestName(0, self._epoch), final=self._ending.drains)
        self._fence.drop()

    def end(self) -> None:
        self._ending.event.set()
        self._thread.join()


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    store = MadeStore(store_path)
    for _ in range(3):
        busy_epoch(store)
    return store


@pytest.fixture
def running(made: MadeStore) -> Iterator[Running]:
    job = Running(made.files, 2)
    yield job
    job.end()


def test_a_running_job_is_stopped_and_its_last_epoch_kept(made: MadeStore, running: Running) -> None:
    told = call_json("stop", made.path, "--savepoint", "before-v2", "--note", "why")
    assert told == {"store": made.path, "epoch": 2, "savepoint": "before-v2", "drained": False}
    [point] = call_json("savepoints", made.path)
    assert (point["name"], point["epoch"], point["note"]) == ("before-v2", 2, "why")
    again = call("stop", made.path)
    assert (again.exit_code, "no job runs on this store" in again.stderr) == (4, True)


def test_it_says_after_which_epoch_and_what_comes_next(made: MadeStore, running: Running) -> None:
    assert call("stop", made.path).stdout == "stopped after epoch 2; the next run goes on from there\n"


def test_a_drained_job_says_that_it_is_the_end(made: MadeStore, running: Running) -> None:
    assert call("stop", made.path, "--drain").stdout == "drained: after epoch 2, which is the last\n"


def test_a_name_that_is_taken_stops_nothing(made: MadeStore, running: Running) -> None:
    call_json("savepoint", made.path, "--name", "nightly")
    refused = call("stop", made.path, "--savepoint", "nightly")
    assert (refused.exit_code, "there is a savepoint 'nightly' already" in refused.stderr) == (4, True)
    assert not made.files.list(layout.COMMANDS)


def test_a_note_alone_and_a_store_that_is_none_are_refused(made: MadeStore) -> None:
    assert call("stop", made.path, "--note", "x").exit_code == 2
    assert call("stop", f"{made.path}-nowhere").exit_code == 4
    assert "nobody ever did" in call("stop", made.path).stderr
