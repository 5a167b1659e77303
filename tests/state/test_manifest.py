"""Manifests: what was written is read back, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import CorruptFile
from headrace.model.retention import Retention
from headrace.state import layout
from headrace.state.manifest import JobState, Manifest, StepRuns, encode_manifest, read_manifest
from headrace.state.store import LocalStore
from headrace.state.sweep import sweep_store

MADE = Manifest(
    app="tweets", timeline=0, epoch=3, nonce="n3", fence=1, program="p", parallelism=2, key_groups=128, clock_us=5,
    full=True, steps={"count": StepRuns(runs=[])},
)  # fmt: skip


def test_a_manifest_comes_back(store_path: Path) -> None:
    store = LocalStore(store_path, durable=False)
    store.create(layout.manifest(0, 3), encode_manifest(MADE))
    assert read_manifest(store, 0, 3) == MADE


CHANGES = [(b'"steps"', b'"stepr"'), (b'"count"', b'"cound"'), (b'"crc"', b'"crd"'), (b":5", b":6")]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_byte_is_noticed_by_who_reads_and_by_who_sweeps(
    store_path: Path, change: tuple[bytes, bytes]
) -> None:
    store = LocalStore(store_path, durable=False)
    store.create(layout.manifest(0, 3), encode_manifest(MADE).replace(*change, 1))
    with pytest.raises(CorruptFile, match="does not fit its checksum") as caught:
        read_manifest(store, 0, 3)
    assert layout.manifest(0, 3) in str(caught.value)
    with pytest.raises(CorruptFile, match="nothing is swept"):
        sweep_store(store, JobState(MADE, {}), fence=1, retain=Retention(1))


def test_a_manifest_under_another_name_is_refused(store_path: Path) -> None:
    store = LocalStore(store_path, durable=False)
    store.create(layout.manifest(0, 4), encode_manifest(MADE))
    with pytest.raises(CorruptFile, match="has the name of another"):
        read_manifest(store, 0, 4)
