"""An answer without the program is of the version that a value was written in, and says which if it is an older one."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

import headrace as hr
from headrace.read.stored_version import StoredVersion
from tests.cli.calling import call, call_json
from tests.serve.served import Served
from tests.serve.tweets import fetch
from tests.testing.changed import Ask, keeping, write

STATE = "/v1/jobs/changed/state"


class Place(hr.Record):
    town: str


class Renamed(hr.Record):
    city: str = hr.field(was="town")
    people: int = 0


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``k0`` is of the newest type, ``k1`` of the one before; of ``k2`` one entry is new and one element is old."""
    path = tmp_path_factory.mktemp("changed") / "store"
    write(keeping(Place, lambda n: Place("x")), path)
    job = keeping(Renamed, lambda n: Renamed("y", n))
    with job.harness(path) as h:
        h.push(job.asks, Ask("k0", 5))
        h.epoch()
    return path


def test_a_view_says_in_which_version_an_older_value_was_written(changed: Path) -> None:
    view = hr.Store(str(changed)).state("kept.value")
    stored = view.stored_version("k1")
    assert stored is not None and (stored.version, stored.newest) == (0, 1)
    assert (stored.type, stored.newest_type) == ("Place(town: str)", "Renamed(city: str, people: int)")
    assert view.stored_version("k0") is None and view.stored_version("no such key") is None


def test_a_value_in_parts_is_as_old_as_its_oldest_part(changed: Path) -> None:
    store = hr.Store(str(changed))
    few, named = store.state("kept.few"), store.state("kept.named")
    assert few["k0"] == [{"town": "x"}, {"city": "y", "people": 5}]
    assert isinstance(few.stored_version("k0"), StoredVersion)
    # The only entry of the map was written anew.
    assert named.stored_version("k0") is None
    assert isinstance(named.stored_version("k1"), StoredVersion)


def test_a_state_of_one_type_only_looks_nothing_up(tmp_path: Path) -> None:
    write(keeping(Place, lambda n: Place("x")), tmp_path)
    view = hr.Store(str(tmp_path)).state("kept.value")
    assert view._reader.types is None and view.stored_version("k1") is None


def test_the_command_prints_the_version_beside_the_value(changed: Path) -> None:
    answer = call("state", changed, "kept.value", "k1")
    assert answer.stdout == '{"town": "x"}\n'
    assert "of version 0 of `kept`, whose type was Place(town: str); the newest is 1, Renamed(" in answer.stderr
    assert call("state", changed, "kept.value", "k0").stderr == ""
    assert call_json("state", changed, "kept.value", "k1")["stored"]["version"] == 0
    assert "stored" not in call_json("state", changed, "kept.value", "k0")


def test_http_tells_the_version_in_headers_and_of_many_keys_in_the_body(changed: Path) -> None:
    with Served(changed) as served:
        served.wait_for(0)
        old, new = (fetch(served.url, f"{STATE}/kept.value/{key}").headers for key in ("k1", "k0"))
        assert (old["headrace-value-version"], old["headrace-newest-version"]) == ("0", "1")
        assert "headrace-value-version" not in new and "headrace-newest-version" not in new
        get = f"{STATE}/kept.value/get"
        many = fetch(served.url, get, "POST", {"keys": ["k0", "k1", "none"]}).json
        assert (many["versions"], many["newest_version"]) == ([None, 0, None], 1)
        page = fetch(served.url, f"{STATE}/kept.value?limit=100").json
        versions = {entry["key"]: version for entry, version in zip(page["entries"], page["versions"])}
        assert versions == {"k0": None, **{f"k{i}": 0 for i in range(1, 8)}}
        assert "versions" not in fetch(served.url, get, "POST", {"keys": ["k0"]}).json


@pytest.mark.parametrize("protocol", ["url", "redis_url"], ids=["http", "redis"])
def test_a_client_is_told_with_its_newest_answer(changed: Path, protocol: str) -> None:
    with Served(changed) as served:
        served.wait_for(0)
        with hr.Client(getattr(served, protocol)) as client:
            kept = client.state("kept.value")
            assert kept.older_version is None
            assert kept["k1"] == {"town": "x"} and kept.older_version == (0, 1)
            assert kept["k0"] and kept.older_version is None
            assert kept.get_many(["k0", "k1"])[0] and kept.older_version == (0, 1)
            assert len(dict(kept.scan())) == 8 and kept.older_version == (0, 1)


@pytest.mark.parametrize("version", [2, 3])
def test_any_client_of_redis_asks_for_versions_by_its_keys(changed: Path, version: int) -> None:
    with Served(changed) as served, redis.Redis.from_url(served.redis_url, protocol=version) as cache:
        served.wait_for(0)
        keys = ["kept.value:k1", "kept.value:k0", "kept.value:none", "kept.few:k0"]
        old, new, none, few = cache.execute_command("HEADRACE.VERSION", *keys)
        facts = old if version == 3 else dict(zip(old[::2], old[1::2]))
        types = {b"type": b"Place(town: str)", b"newest_type": b"Renamed(city: str, people: int)"}
        assert facts == {b"version": 0, b"newest": 1, **types}
        assert new is None and none is None and few is not None
        with pytest.raises(redis.ResponseError, match="wrong number"):
            cache.execute_command("HEADRACE.VERSION")
