"""Sweeping: nothing goes that is retained, pinned, or was not condemned before; and a killed sweep does no harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptFile
from headrace.model import crash
from headrace.model.report import RunRef
from headrace.model.retention import Retention, parse_retention
from headrace.state import layout
from headrace.state.condemned import read_condemned, write_condemned
from headrace.state.lineage import TimelinePart
from headrace.state.manifest import JobState, Manifest, StepRuns, encode_manifest, list_epochs, read_state
from headrace.state.record import StoreRecord
from headrace.state.savepoints import create_savepoint, delete_savepoint
from headrace.state.store import LocalStore
from headrace.state.sweep import ManifestFact, Sweep, SweepFacts, decide_sweep, sweep_store


def run(epoch: int, fence: int = 1, name: str = "ab") -> str:
    return layout.run("step", epoch, 0, f"{fence}x{name}")


def names(*epochs: int, timeline: int = 0) -> frozenset[layout.ManifestName]:
    return frozenset(layout.ManifestName(timeline, epoch) for epoch in epochs)


def facts(count: int = 30, full_every: int = 4, **changes: object) -> SweepFacts:
    """Manifests 0 … count − 1, each with a run of its own, whole every few epochs; the sweep before condemned all."""
    manifests = tuple(
        ManifestFact(0, epoch, None if epoch % full_every == 0 else epoch - 1, frozenset({run(epoch)}))
        for epoch in range(count)
    )
    plain = SweepFacts(
        timeline=0,
        epoch=count - 1,
        fence=1,
        newest_fence=1,
        retain=Retention(5),
        lineage=(TimelinePart(0),),
        manifests=manifests,
        condemned={1: frozenset(fact.name for fact in manifests)},
        files=tuple(run(epoch) for epoch in range(count)),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_the_newest_manifests_stay_with_what_they_are_read_with() -> None:
    sweep = decide_sweep(facts())
    # 25 … 29 are retained; 25 is read with 24.
    assert sweep.manifests == tuple(layout.manifest(0, epoch) for epoch in range(23, -1, -1))
    assert set(sweep.files) == {run(epoch) for epoch in range(24)}


def test_a_savepoint_keeps_its_manifest_and_its_files() -> None:
    sweep = decide_sweep(facts(savepoints=names(10)))
    kept = {run(epoch) for epoch in (8, 9, 10)}
    assert set(sweep.files) == {run(epoch) for epoch in range(24)} - kept
    assert layout.manifest(0, 8) not in sweep.manifests


def test_files_of_the_last_published_epoch_and_later_stay() -> None:
    files = tuple(run(epoch, name="cd") for epoch in (28, 29, 30, 31))
    assert decide_sweep(facts(files=files)).files == (run(28, name="cd"),)


def test_files_of_a_newer_fence_stay() -> None:
    files = (run(3, fence=1, name="cd"), run(3, fence=2, name="cd"))
    assert decide_sweep(facts(files=files)).files == files[:1]


def test_a_driver_that_is_fenced_out_deletes_nothing() -> None:
    assert decide_sweep(facts(newest_fence=2)) == Sweep()


def test_a_listing_without_the_published_manifest_is_no_ground_to_delete_on() -> None:
    assert decide_sweep(facts(epoch=30)) == Sweep()


def test_runs_that_a_fold_has_just_written_stay() -> None:
    files = (run(3, name="cd"), run(4, name="cd"))
    assert decide_sweep(facts(files=files, spared=frozenset(files[:1]))).files == files[1:]


def test_staged_rows_go_when_a_later_epoch_is_published() -> None:
    files = tuple(layout.staged(epoch, "out", 0, "1xab", "jsonl") for epoch in (27, 28, 29, 30))
    assert decide_sweep(facts(files=files)).files == files[:2]


def test_names_that_say_nothing_stay() -> None:
    files = ("runs/step/notes.txt", "runs/step/000000000001-0-abc.run", "staged/readme")
    assert decide_sweep(facts(files=files)).files == ()


def test_two_manifests_stay_however_little_is_retained() -> None:
    sweep = decide_sweep(facts(full_every=1, retain=Retention(0)))
    assert layout.manifest(0, 28) not in sweep.manifests
    assert layout.manifest(0, 27) in sweep.manifests


def test_a_sealed_timeline_keeps_its_last_name_only() -> None:
    sealed = tuple(ManifestFact(7, epoch, None, frozenset({run(epoch, name="0d")})) for epoch in range(3))
    seal = ManifestFact(7, 3)
    manifests = (*facts().manifests, *sealed, seal)
    condemned = {1: frozenset(fact.name for fact in manifests)}
    sweep = decide_sweep(facts(manifests=manifests, condemned=condemned, files=(run(2, name="0d"),)))
    assert {path for path in sweep.manifests if path.startswith("manifests/7/")} == {
        layout.manifest(7, epoch) for epoch in range(3)
    }
    assert sweep.files == (run(2, name="0d"),)


def test_an_epoch_that_no_sweep_has_condemned_yet_is_condemned_and_stays_with_its_files() -> None:
    sweep = decide_sweep(facts(condemned={}))
    assert (sweep.manifests, sweep.files) == ((), ())
    assert sweep.condemned == names(*range(24))
    assert decide_sweep(facts(condemned={1: names(*range(24))})).condemned == frozenset()


def test_what_another_driver_has_condemned_does_not_count() -> None:
    assert decide_sweep(facts(fence=2, newest_fence=2, condemned={1: names(*range(24))})).manifests == ()


def test_the_record_of_a_dead_driver_goes_when_all_that_it_names_is_gone() -> None:
    mine = names(*range(24))
    assert decide_sweep(facts(condemned={1: mine, 0: names(3)})).finished == (0,)
    assert decide_sweep(facts(condemned={1: mine, 0: names(3, 28)})).finished == ()
    assert decide_sweep(facts(condemned={1: mine, 2: names(3)})).finished == ()


def test_a_savepoint_of_a_condemned_epoch_takes_it_off_the_record() -> None:
    sweep = decide_sweep(facts(full_every=1, condemned={1: names(*range(25))}, savepoints=names(10)))
    assert layout.manifest(0, 10) not in sweep.manifests
    assert sweep.condemned == frozenset()


@given(
    count=st.integers(1, 40),
    full_every=st.integers(1, 7),
    retain=st.integers(0, 50),
    savepoints=st.frozensets(st.integers(0, 39), max_size=3),
)
def test_whatever_is_kept_can_be_read(count: int, full_every: int, retain: int, savepoints: frozenset[int]) -> None:
    given_ = facts(count, full_every, retain=Retention(retain), savepoints=names(*savepoints))
    sweep = decide_sweep(given_)
    kept = {fact.epoch: fact for fact in given_.manifests if layout.manifest(0, fact.epoch) not in sweep.manifests}
    assert count - 1 in kept
    assert {epoch for epoch in savepoints if epoch < count} <= kept.keys()
    for fact in kept.values():
        assert fact.parent is None or fact.parent in kept
        assert not fact.files & set(sweep.files)


# --- in a store


class Job:
    """A store with an epoch after the other in it, one run each; the newest two make up the state."""

    def __init__(self, path: Path) -> None:
        self.store = LocalStore(path, durable=False)
        self.state: JobState | None = None
        record = StoreRecord(app="a", key_groups=8, query="{}")
        self.store.write(layout.STORE_RECORD, msgspec.json.encode(record))

    def publish(self, epoch: int, clock_us: int = 0) -> JobState:
        self.store.write(run(epoch), b"")
        self.store.write(layout.staged(epoch, "out", 0, "1xab", "jsonl"), b"")
        refs = [
            RunRef(epoch=each, lo=0, hi=8, rows=1, size_bytes=0, crc=0, file=run(each))
            for each in (epoch, epoch - 1)
            if each >= 0
        ]
        full = epoch % 3 == 0
        manifest = Manifest(
            app="a", timeline=0, epoch=epoch, nonce=str(epoch), fence=1, program="", parallelism=1, key_groups=8,
            clock_us=clock_us, parent_epoch=epoch - 1, parent=str(epoch - 1), full=full,
            steps={"step": StepRuns(runs=refs)},
        )  # fmt: skip
        self.store.create(layout.manifest(0, epoch), encode_manifest(manifest))
        self.state = read_state(self.store, 0, epoch)
        return self.state


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_store_keeps_what_its_retained_epochs_need(job: Job) -> None:
    for epoch in range(20):
        state = job.publish(epoch)
        sweep_store(job.store, state, fence=1, retain=Retention(3))
    sweep_store(job.store, state, fence=1, retain=Retention(3))
    # 17, 18, 19 are retained; 17 is read with 16 and 15.
    assert list_epochs(job.store, 0) == [15, 16, 17, 18, 19]
    assert job.store.list("runs") == [run(epoch) for epoch in range(14, 20)]
    assert job.store.list("staged") == [layout.staged(19, "out", 0, "1xab", "jsonl")]
    assert sorted(path.name for path in (job.store.root / "staged").iterdir()) == ["000000000019"]


def test_a_sweep_killed_anywhere_leaves_every_epoch_readable_and_is_finished_by_the_next(tmp_path: Path) -> None:
    for strike in range(1, 40):
        job = Job(tmp_path / str(strike))
        for epoch in range(12):
            job.publish(epoch)
        assert job.state is not None
        sweep_store(job.store, job.state, fence=1, retain=Retention(2))
        if not _die_at(strike, job):
            break
        for epoch in list_epochs(job.store, 0):
            read_state(job.store, 0, epoch)
        sweep_store(job.store, job.state, fence=1, retain=Retention(2))
        assert list_epochs(job.store, 0) == [9, 10, 11]
        assert job.store.list("runs") == [run(epoch) for epoch in range(8, 12)]
    assert strike > 17


def _die_at(strike: int, job: Job) -> bool:
    """Sweeps until the given deletion, then the world ends; false when there were fewer."""
    left = strike

    def hook(point: str, epoch: int) -> None:
        nonlocal left
        left -= point == "sweeping"
        if left == 0:
            raise crash.Crash

    assert job.state is not None
    with crash.planned(hook):
        try:
            sweep_store(job.store, job.state, fence=1, retain=Retention(2))
        except crash.Crash:
            return True
    return False


def test_savepoints_and_fences_of_a_store_are_heeded(job: Job) -> None:
    for epoch in range(12):
        state = job.publish(epoch)
    create_savepoint(job.store, name="before", place=layout.ManifestName(0, 4))
    job.store.create(layout.fence(2), b"{}")
    assert sweep_store(job.store, state, fence=1, retain=Retention(2)) == Sweep()
    for _ in range(2):
        sweep_store(job.store, state, fence=2, retain=Retention(2))
    assert list_epochs(job.store, 0) == [3, 4, 9, 10, 11]
    assert job.store.list("runs") == [run(epoch) for epoch in (2, 3, 4, 8, 9, 10, 11)]
    assert job.store.list("fences") == [layout.fence(2)]


def test_an_epoch_goes_two_sweeps_after_its_savepoint(job: Job) -> None:
    for epoch in range(12):
        state = job.publish(epoch)
    create_savepoint(job.store, name="before", place=layout.ManifestName(0, 3))
    kept = []
    for _ in range(4):
        sweep_store(job.store, state, fence=1, retain=Retention(2))
        kept.append(3 in list_epochs(job.store, 0))
        if len(kept) == 2:
            delete_savepoint(job.store, "before")
    assert kept == [True, True, True, False]


def test_spans_count_by_the_clock_in_the_manifests(job: Job) -> None:
    for epoch in range(12):
        state = job.publish(epoch, clock_us=epoch * 60_000_000)
    for _ in range(2):
        sweep_store(job.store, state, fence=1, retain=parse_retention("3m all"))
    # 8 … 11 are of the last three minutes; 8 is read with 7 and 6.
    assert list_epochs(job.store, 0) == [6, 7, 8, 9, 10, 11]


def test_nothing_is_swept_while_a_savepoint_cannot_be_read(job: Job) -> None:
    for epoch in range(12):
        state = job.publish(epoch)
    sweep_store(job.store, state, fence=1, retain=Retention(2))
    job.store.create(layout.savepoint("odd"), b"not json")
    with pytest.raises(CorruptFile, match=r"savepoints/odd\.json"):
        sweep_store(job.store, state, fence=1, retain=Retention(2))
    assert len(list_epochs(job.store, 0)) == 12


def test_a_driver_that_begins_condemns_anew_and_clears_up_behind_the_one_before(job: Job) -> None:
    for epoch in range(12):
        state = job.publish(epoch)
    write_condemned(job.store, 1, names(*range(9)))
    job.store.create(layout.fence(2), b"{}")
    sweep_store(job.store, state, fence=2, retain=Retention(2))
    assert (len(list_epochs(job.store, 0)), set(read_condemned(job.store))) == (12, {1, 2})
    sweep_store(job.store, state, fence=2, retain=Retention(2))
    assert list_epochs(job.store, 0) == [9, 10, 11]
    sweep_store(job.store, state, fence=2, retain=Retention(2))
    assert set(read_condemned(job.store)) == {2}
