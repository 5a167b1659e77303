"""Addresses of moments: one spelling, one meaning, and errors that list what is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StoreError
from headrace.state import layout
from headrace.state.moments import (
    Address,
    AtEpoch,
    AtSavepoint,
    AtTime,
    find_moment,
    parse_address,
    parse_moment,
    read_moment,
)
from headrace.state.savepoints import create_savepoint
from tests.state.saved import EPOCH_US, SavedJob

NOON = AtTime(1_714_564_800_000_000)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("./state", Address("./state")),
        ("./state@41", Address("./state", AtEpoch(41))),
        ("./state@before-v2", Address("./state", AtSavepoint("before-v2"))),
        ("./state@2024-05-01T12:00", Address("./state", NOON)),
        ("./state@2024-05-01T14:00+02:00", Address("./state", NOON)),
        ("./me@work/state", Address("./me@work/state")),
        ("./me@work@", Address("./me@work")),
        ("./me@work@7", Address("./me@work", AtEpoch(7))),
        ("s3://me@bucket", Address("s3://me@bucket")),
        ("s3://bucket/state@7", Address("s3://bucket/state", AtEpoch(7))),
        ("s3://me@bucket/state@7", Address("s3://me@bucket/state", AtEpoch(7))),
    ],
)
def test_an_address_is_a_store_and_maybe_a_moment(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["./state@-1", "./state@a b", "./state@2024-13-01", "./state@.x", "@41"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse_address(text)
    assert "headrace savepoints" in caught.value.next_move


@given(moment=st.integers(0, 10**12 - 1).map(AtEpoch) | st.integers(0, 10**16).map(AtTime)
       | st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,30}", fullmatch=True).map(AtSavepoint))  # fmt: skip
def test_a_moment_is_read_as_it_is_written(moment: AtEpoch | AtTime | AtSavepoint) -> None:
    assert parse_moment(str(moment)) == moment
    assert parse_address(str(Address("s3://b/state", moment))) == Address("s3://b/state", moment)


@pytest.fixture
def job(tmp_path: Path) -> SavedJob:
    job = SavedJob(tmp_path, timeline=1)
    job.publish(6)
    for epoch in (0, 1):
        job.store.delete(layout.manifest(1, epoch))
    return job


def epoch_at(job: SavedJob, text: str) -> int:
    return find_moment(job.store, parse_moment(text)).epoch


def test_moments_lead_to_epochs(job: SavedJob) -> None:
    create_savepoint(job.store, name="mine", place=layout.ManifestName(1, 3))
    assert find_moment(job.store, None) == (1, 5)
    assert find_moment(job.store, AtEpoch(2)) == (1, 2)
    assert find_moment(job.store, AtSavepoint("mine")) == (1, 3)
    assert read_moment(job.store, AtSavepoint("mine")).nonce == "n3"


def test_a_time_means_the_newest_epoch_published_at_or_before_it(job: SavedJob) -> None:
    assert epoch_at(job, "1970-01-01T00:03") == 3
    assert epoch_at(job, "1970-01-01T00:03:59.999999") == 3
    assert epoch_at(job, "1970-01-01T00:02:00") == 2
    assert epoch_at(job, "2024-01-01") == 5


@given(at=st.integers(2 * EPOCH_US, 7 * EPOCH_US))
def test_a_time_finds_what_looking_at_every_epoch_finds(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    job = JOBS.setdefault("job", SavedJob(tmp_path_factory.getbasetemp() / "times"))
    if job.epoch < 0:
        job.publish(6)
    assert find_moment(job.store, AtTime(at)).epoch == max(e for e in range(6) if e * EPOCH_US <= at)


JOBS: dict[str, SavedJob] = {}


def test_errors_list_what_is_there(job: SavedJob, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="epoch 1 is not in the store") as caught:
        find_moment(job.store, AtEpoch(1))
    assert caught.value.expected == "one of 2–5"
    with pytest.raises(StoreError, match="epoch 9 is not in the store") as caught:
        find_moment(job.store, AtEpoch(9))
    assert "has not come so far" in caught.value.next_move
    with pytest.raises(StoreError, match="no epoch that was published by 1970-01-01T00:01:00Z") as caught:
        epoch_at(job, "1970-01-01T00:01")
    assert caught.value.expected == "1970-01-01T00:02:00Z (epoch 2) or later"
    with pytest.raises(StoreError, match="there is no savepoint 'x'"):
        find_moment(job.store, AtSavepoint("x"))
    with pytest.raises(StoreError, match="no epoch has been published"):
        find_moment(SavedJob(tmp_path / "empty").store, None)
