from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StoreError
from headrace.state import layout
from headrace.state.store import check_path

NAMES = st.text(min_size=1, max_size=13)
"""Short enough to be spelled out even where each character takes twelve."""


@given(name=NAMES, epoch=st.integers(0, 10**12 - 1), shard=st.integers(0, 5000), fence=st.integers(0, 10**6))
def test_paths_of_any_name_are_one_safe_segment_and_can_be_read_back(
    name: str, epoch: int, shard: int, fence: int
) -> None:
    uid = layout.new_uid(fence)
    run = layout.run(name, epoch, shard, uid)
    check_path(run)
    assert run.count("/") == 2
    assert layout.parse_run(run) == (name, epoch, shard, uid)
    staged = layout.staged(epoch, name, shard, uid, "jsonl.gz")
    check_path(staged)
    assert layout.parse_staged(staged) == (epoch, name, shard, uid, "jsonl.gz")
    assert layout.uid_fence(uid) == fence


def test_manifests_sort_by_epoch_and_parse_back() -> None:
    paths = [layout.manifest(3, epoch) for epoch in (9, 10, 99, 100, 12345)]
    assert paths == sorted(paths)
    assert [layout.epoch_of_manifest(path) for path in paths] == [9, 10, 99, 100, 12345]
    assert layout.parse_manifest(paths[0]) == (3, 9)


def test_a_stray_file_among_manifests_is_named() -> None:
    with pytest.raises(StoreError, match="README"):
        layout.epoch_of_manifest("manifests/0/README")


def test_fences_parse_back() -> None:
    assert layout.parse_fence(layout.fence(17)) == 17
    assert layout.parse_fence("fences/x.json") is None


def test_parsers_answer_none_for_other_files() -> None:
    other = ["store.json", "runs/a/b", "runs/a/000000000001-0.run", "staged/1/x-0-1xab.jsonl", "manifests/0/1.json"]
    for path in other:
        assert layout.parse_run(path) is None
        assert layout.parse_staged(path) is None
        assert layout.parse_manifest(path) is None


def test_names_longer_than_a_file_system_allows_stay_apart() -> None:
    one, two = layout.segment("ü" * 300 + "1"), layout.segment("ü" * 300 + "2")
    assert one != two
    assert max(len(one), len(two)) < 200


def test_a_uid_made_elsewhere_has_no_fence() -> None:
    assert layout.uid_fence("abc") is None


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a//b", "../x", "a/../b", "a/./b", "a/"])
def test_paths_that_could_leave_the_store_are_refused(path: str) -> None:
    with pytest.raises(StoreError):
        check_path(path)


def test_epochs_that_would_not_sort_are_refused() -> None:
    with pytest.raises(ValueError, match="twelve digits"):
        layout.manifest(0, 10**12)
    with pytest.raises(ValueError, match="twelve digits"):
        layout.manifest(0, -1)
