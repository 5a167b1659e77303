"""Servers and replicas that are started while their store is not there, or not whole: what they answer, and say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import redis

from headrace.errors import StoreError
from headrace.read.follow import Follower, open_replica
from headrace.read.store import Store
from headrace.state import layout
from headrace.state.store import LocalStore
from tests.serve.made_store import MadeStore, values
from tests.serve.served import Served


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    made = MadeStore(store_path)
    for number in range(3):
        made.epoch({"count": [values("views", [("a", number), (f"k{number}", number)])]})
    return made


@pytest.fixture
def cache(made: MadeStore, tmp_path: Path) -> Path:
    """The folder of a replica that has answered from the newest epoch, and was ended."""
    follower = Follower(open_replica(made.path, tmp_path / "cache"))
    assert follower.look() is not None
    return tmp_path / "cache"


def take_away(made: MadeStore) -> Path:
    return Path(made.path).rename(Path(made.path).with_name("away"))


def ask(served: Served, key: str = "count.views:a") -> bytes | str:
    # Without trying again: clients take LOADING for a reason to.
    with redis.Redis(port=served.port, retry=None, socket_timeout=90) as client:
        try:
            found = client.get(key)
            assert isinstance(found, bytes)
            return found
        except redis.exceptions.BusyLoadingError as error:
            return str(error)


def test_a_server_answers_as_soon_as_its_store_is_back(made: MadeStore) -> None:
    away = take_away(made)
    with Served(made.path) as served:
        served.until(lambda: served.service.trouble != "")
        assert "there is no store here" in str(ask(served))
        away.rename(made.path)
        served.wait_for(2)
        assert ask(served) == b"2"
        served.until(lambda: served.service.trouble == "")


def test_a_replica_that_starts_without_its_store_answers_from_what_it_has_and_says_so(
    made: MadeStore, cache: Path
) -> None:
    away = take_away(made)
    with Served(made.path, cache=cache) as served:
        served.wait_for(2)
        assert [ask(served), ask(served, "count.views:k0")] == [b"2", b"0"]
        served.until(lambda: "there is no store here" in served.service.trouble)
        away.rename(made.path)
        made.epoch({"count": [values("views", [("a", 3)])]})
        served.wait_for(3)
        assert ask(served) == b"3"
        served.until(lambda: served.service.trouble == "")


def test_a_replica_that_is_ended_remembers_the_epoch_it_answered_from_last(made: MadeStore, tmp_path: Path) -> None:
    with Served(made.path, cache=tmp_path / "cache") as served:
        for number in range(3, 6):
            made.epoch({"count": [values("views", [("a", number)])]})
            served.wait_for(number)
    shutil.rmtree(made.path)
    with Served(made.path, cache=tmp_path / "cache") as served:
        served.wait_for(5)
        assert ask(served) == b"5"


def test_another_store_in_the_same_place_takes_the_place_of_what_was_remembered(made: MadeStore, cache: Path) -> None:
    shutil.rmtree(made.path)
    with Served(made.path, cache=cache) as served:
        served.wait_for(2)
        anew = MadeStore(Path(made.path), id="anew")
        anew.epoch({"count": [values("views", [("a", 77)])]})
        served.until(lambda: served.service.snapshot is not None and served.service.snapshot.epoch == 0)
        assert ask(served) == b"77"


def test_a_replica_that_lacks_a_file_waits_for_its_store(made: MadeStore, cache: Path) -> None:
    away = take_away(made)
    next(cache.rglob("*.run")).unlink()
    with Served(made.path, cache=cache) as served:
        served.until(lambda: served.service.trouble != "")
        assert "there is no store here" in str(ask(served))
        away.rename(made.path)
        served.wait_for(2)
        assert ask(served) == b"2"


@pytest.mark.parametrize("spoil", ["cut", "changed", "of another store"])
def test_what_was_not_remembered_whole_and_of_this_store_is_not_used(made: MadeStore, cache: Path, spoil: str) -> None:
    memory = cache / "newest-epoch"
    data = memory.read_bytes()
    if spoil == "of another store":
        other = MadeStore(Path(made.path).with_name("other"))
        other.epoch({"count": [values("views", [("a", 9)])]})
        assert Follower(open_replica(other.path, cache)).look() is not None
    else:
        memory.write_bytes(data[:-5] if spoil == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    take_away(made)
    with pytest.raises(StoreError, match="there is no store here"):
        open_replica(made.path, cache)


def test_an_epoch_whose_manifests_are_not_all_there_is_told_with_what_is_missing(made: MadeStore) -> None:
    first = layout.manifest(0, 0)
    content = LocalStore(made.path).read(first)
    made.files.delete(first)
    follower = Follower(Store(made.path))
    with pytest.raises(StoreError, match="files are missing") as raised:
        follower.look()
    assert raised.value.found == "the manifest of epoch 0 is not in the store"
    made.files.write(first, content)
    snapshot = follower.look()
    assert snapshot is not None and snapshot.epoch == 2


def test_nothing_is_remembered_in_the_store_itself(made: MadeStore) -> None:
    before = sorted(made.files.list())
    follower = Follower(Store(made.path))
    assert follower.look() is not None
    follower.remember()
    assert sorted(made.files.list()) == before
