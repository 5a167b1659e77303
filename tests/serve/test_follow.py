"""Following a job: which snapshot there is, what it holds, what changed, and what happens when files go or come."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import StoreError
from headrace.model.job import DeclaredState
from headrace.read.follow import Follower, open_replica
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store
from headrace.state import layout
from headrace.state.manifest import JobState, encode_manifest
from tests.serve.made_store import MadeStore, lists, maps, values


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    return MadeStore(store_path)


def look(follower: Follower) -> Snapshot:
    found = follower.look()
    assert found is not None
    return found


def read(snapshot: Snapshot, address: str, key: str) -> Any:
    table = snapshot.table(address)
    assert table is not None
    found = table.get(table.key(key))
    return None if found is None else msgspec.json.decode(found)


def changes(snapshot: Snapshot, since: Snapshot | None = None) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for address, keys in snapshot.changed(since):
        table = snapshot.table(address)
        assert table is not None
        found.setdefault(address, set()).update(map(table.text, keys))
    return {address: keys for address, keys in found.items() if keys}


def test_there_is_no_snapshot_before_the_first_epoch(made: MadeStore) -> None:
    follower = Follower(Store(made.path))
    assert follower.look() is None
    made.epoch({"count": [values("views", [("a", 1)])]})
    assert read(look(follower), "count.views", "a") == 1


def test_each_look_gives_the_newest_epoch_and_older_snapshots_stay_as_they_are(made: MadeStore) -> None:
    follower = Follower(Store(made.path))
    seen = []
    for number in range(20):
        made.epoch({"count": [values("views", [("a", number)])]}, full=number % 8 == 0)
        seen.append(look(follower))
    assert [snapshot.epoch for snapshot in seen] == list(range(20))
    assert [read(snapshot, "count.views", "a") for snapshot in seen] == list(range(20))
    assert look(follower) is seen[-1]


def test_several_epochs_at_once_are_one_step(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 0), ("b", 0)])]})
    follower = Follower(Store(made.path))
    before = look(follower)
    for number in range(1, 5):
        made.epoch({"count": [values("views", [("a", number)])]})
    newest = look(follower)
    assert (newest.epoch, follower.newest_epoch, follower.lag_epochs) == (4, 4, 0)
    assert changes(newest) == {"count.views": {"a"}}
    assert changes(newest, before) == {"count.views": {"a"}}


def test_changes_are_those_of_all_epochs_since_and_tell_states_apart(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 0)])], "fraud": [maps("shops", [("c", "x", 1)])]})
    follower = Follower(Store(made.path))
    before = look(follower)
    made.epoch({"count": [values("views", [("b", 1), ("a", None)])]})
    made.epoch({"fraud": [maps("shops", [("d", "x", 1)]), lists("recent", [("e", 1, 2)])]})
    newest = look(follower)
    assert changes(newest) == {"fraud.shops": {"d"}, "fraud.recent": {"e"}}
    assert changes(newest, before) == {"count.views": {"a", "b"}, "fraud.shops": {"d"}, "fraud.recent": {"e"}}
    assert newest.changed_rows(before) == 4


def test_a_fold_of_epochs_that_were_not_seen_tells_only_what_differs(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 0), ("b", 0), ("c", 0)])]})
    follower = Follower(Store(made.path))
    before = look(follower)
    made.epoch({"count": [values("views", [("a", 1)])]})
    assert made.state is not None
    folded = MadeStore(Path(made.path).parent / "folded")
    folded.epoch({"count": [values("views", [("a", 1), ("b", 0), ("c", 0)])]})
    assert folded.state is not None
    refs = []
    for ref in folded.state.runs["count"]:
        made.files.write(ref.file + "", folded.files.read(ref.file))
        refs.append(msgspec.structs.replace(ref, epoch=1, level=1))
    made.state = JobState(made.state.manifest, {"count": tuple(refs)})
    made.epoch({"count": [values("views", [("c", 2)])]}, full=True)
    newest = look(follower)
    assert changes(newest, before) == {"count.views": {"a", "c"}}


def test_a_store_that_is_started_over_is_followed_into_its_new_timeline(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    made.epoch({"count": [values("views", [("a", 2)])]})
    now = [0.0]
    follower = Follower(Store(made.path), clock=lambda: now[0])
    before = look(follower)
    for path in made.files.list(layout.MANIFESTS):
        made.files.delete(path)
    record = msgspec.json.decode(made.files.read(layout.STORE_RECORD))
    made.files.write(layout.STORE_RECORD, msgspec.json.encode(record | {"timeline": 1}))
    now[0] += 5
    assert look(follower) is before, "what was published last is served until something else is"
    fresh = MadeStore(Path(made.path).parent / "fresh")
    manifest = msgspec.structs.replace(fresh.epoch({"count": [values("views", [("a", 7)])]}), timeline=1)
    for path in fresh.files.list(layout.RUNS):
        made.files.write(path, fresh.files.read(path))
    made.files.write(layout.manifest(1, 0), encode_manifest(manifest))
    now[0] += 5
    after = look(follower)
    assert (after.timeline, after.epoch, read(after, "count.views", "a")) == (1, 0, 7)
    assert after.version > before.version
    assert changes(after, before) == {"count.views": {"a"}}


def test_an_epoch_that_is_swept_while_it_is_opened_is_passed_over(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    follower = Follower(Store(made.path))
    before = look(follower)
    made.epoch({"count": [values("views", [("a", 2)])]})
    for run in made.files.list(layout.RUNS):
        made.files.delete(run)
    with pytest.raises(StoreError, match="vanish faster"):
        follower.look()
    assert follower.snapshot is before, "what could be read can still be"
    assert read(before, "count.views", "a") == 1
    made.state = None if made.state is None else JobState(made.state.manifest, {})
    made.epoch({"count": [values("views", [("a", 3)])]}, full=True)
    assert read(look(follower), "count.views", "a") == 3


def test_states_that_were_declared_and_never_written_are_there_and_empty(made: MadeStore) -> None:
    declared = {
        "fraud": {"shops": DeclaredState("map"), "small": DeclaredState("value"), "hits": DeclaredState("counter")}
    }
    made.epoch({"fraud": [values("small", [("a", True)])]}, states=declared)
    snapshot = look(Follower(Store(made.path)))
    assert snapshot.addresses == ("fraud.shops", "fraud.small")
    shops = snapshot.table("fraud.shops")
    assert shops is not None
    assert (shops.get(shops.key("a")), shops.count(), shops.page(0, 10).keys) == (None, 0, [])
    assert snapshot.table("fraud.nothing") is None
    assert snapshot.table("nothing") is None


def test_a_renamed_state_is_read_under_its_new_name(made: MadeStore) -> None:
    made.epoch({"count": [values("hits", [("a", 1), ("b", 2)])]})
    renamed = {"count": {"views": DeclaredState("value", was=("hits",))}}
    made.epoch({"count": [values("views", [("a", 5)])]}, states=renamed)
    snapshot = look(Follower(Store(made.path)))
    assert snapshot.addresses == ("count.views",)
    assert (read(snapshot, "count.views", "a"), read(snapshot, "count.views", "b")) == (5, 2)
    assert changes(snapshot) == {"count.views": {"a"}}


def test_offsets_are_told_by_source(made: MadeStore) -> None:
    offsets = 'v2\n{}\nheadrace_ticker:{"seq": 1}\nviews:{"topic": {"0": 12}}\nclicks:{"rows": 3}'
    made.epoch({}, offsets=offsets)
    assert look(Follower(Store(made.path))).offsets == {"views": '{"topic": {"0": 12}}', "clicks": '{"rows": 3}'}


# --- replicas


def test_a_replica_fetches_files_and_reads_them_when_the_store_is_gone(made: MadeStore, tmp_path: Path) -> None:
    for number in range(3):
        made.epoch({"count": [values("views", [("a", number), (f"k{number}", number)])]})
    cache = tmp_path / "cache"
    follower = Follower(open_replica(made.path, cache))
    snapshot = look(follower)
    shutil.rmtree(made.path)
    assert [read(snapshot, "count.views", key) for key in ("a", "k0", "k2", "none")] == [2, 0, 2, None]
    assert list(cache.rglob("*.run"))
    with pytest.raises(StoreError, match="there is no store"):
        open_replica(made.path, tmp_path / "another")


def test_a_replica_is_swapped_in_only_when_every_file_is_here(made: MadeStore, tmp_path: Path) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    follower = Follower(open_replica(made.path, tmp_path / "cache"))
    before = look(follower)
    made.epoch({"count": [values("views", [("a", 2)])]})
    hidden = {run: made.files.read(run) for run in made.files.list(layout.RUNS) if "000000000001-" in run}
    for run in hidden:
        made.files.delete(run)
    with pytest.raises(StoreError):
        follower.look()
    assert follower.snapshot is before
    assert (follower.newest_epoch, follower.lag_epochs) == (1, 1)
    for run, content in hidden.items():
        made.files.write(run, content)
    assert read(look(follower), "count.views", "a") == 2
    assert follower.lag_epochs == 0


def test_a_replica_of_an_object_store_reads_what_was_published(bucket: str, tmp_path: Path) -> None:
    from headrace.state.store import open_store

    made = MadeStore(tmp_path / "local")
    made.epoch({"count": [values("views", [("a", 1)])]})
    remote = open_store(f"s3://{bucket}/job")
    for path in made.files.list():
        remote.write(path, made.files.read(path))
    follower = Follower(open_replica(f"s3://{bucket}/job", tmp_path / "cache"))
    assert read(look(follower), "count.views", "a") == 1
    made.epoch({"count": [values("views", [("a", 2)])]})
    for path in made.files.list():
        remote.write(path, made.files.read(path))
    assert read(look(follower), "count.views", "a") == 2


def test_following_writes_nothing_to_the_store(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    before = sorted(made.files.list())
    look(Follower(Store(made.path)))
    assert sorted(made.files.list()) == before


def test_runs_that_no_snapshot_needs_are_let_go(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 0)])], "fraud": [maps("shops", [("c", "x", 1)])]})
    follower = Follower(Store(made.path))
    held: list[weakref.ref[Any]] = []
    for number in range(1, 6):
        snapshot = look(follower)
        snapshot.warm(10**6)
        assert read(snapshot, "count.views", "a") == number - 1
        held += [weakref.ref(run) for run in snapshot._runs.values()]
        assert made.state is not None
        # As a fold would: one run takes the place of all before.
        made.state = JobState(made.state.manifest, {"fraud": made.state.runs["fraud"]})
        made.epoch({"count": [values("views", [("a", number)])]}, full=True)
    del snapshot
    newest = look(follower)
    gc.collect()
    alive = {run() for run in held} - {None}
    assert alive <= set(newest._runs.values())
    assert len(alive) == 1, "only that of the step that did not change"
