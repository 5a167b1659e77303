"""A store in an object store: what only that has. The contract of every store is run against it in `test_store`."""

from __future__ import annotations

import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import AlreadyExists, EnvironmentMissing, MissingFile, StoreError
from headrace.state import layout
from headrace.state.remote import RemoteStore
from headrace.state.store import StoreFiles, open_store
from tests.objects import Fault

if TYPE_CHECKING:
    from tests.objects import ObjectServer

MANIFEST = layout.manifest(0, 1)
RUN = layout.run("step", 1, 0, "1xab")


@pytest.fixture
def store(bucket: str) -> RemoteStore:
    opened = open_store(f"s3://{bucket}/some/store")
    assert isinstance(opened, RemoteStore)
    return opened


def requests_of(store: StoreFiles) -> list[Callable[[], object]]:
    """Every kind of request there is."""
    return [
        store.list,
        lambda: store.read("a"),
        lambda: store.write("a", b""),
        lambda: store.create("a", b""),
        lambda: store.exists("a"),
    ]


def told(error: BaseException) -> str:
    """All that a person would see of an error, chain and all."""
    return "".join(traceback.format_exception(error))


# --- creating


def test_creating_is_one_conditional_put(store: RemoteStore, object_server: ObjectServer) -> None:
    store.create("warm", b"")
    object_server.seen.clear()
    store.create(MANIFEST, b"mine, nonce 17")
    assert [seen.partition(" ")[0] for seen in object_server.seen] == ["PUT"], "no look before, no look after"
    with pytest.raises(AlreadyExists, match=MANIFEST):
        store.create(MANIFEST, b"theirs, nonce 18")
    assert store.read(MANIFEST) == b"mine, nonce 17"


def test_of_many_machines_that_create_one_wins(bucket: str, tmp_path: Path) -> None:
    won: list[int] = []

    def attempt(number: int) -> None:
        mine = RemoteStore(f"s3://{bucket}/store", cache_dir=tmp_path / str(number))
        try:
            mine.create(MANIFEST, b"nonce %d" % number)
            won.append(number)
        except AlreadyExists:
            pass

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = won
    assert open_store(f"s3://{bucket}/store").read(MANIFEST) == b"nonce %d" % winner


def test_a_lost_answer_is_settled_by_reading_back_the_own_nonce(
    store: RemoteStore, object_server: ObjectServer
) -> None:
    store.create("warm", b"")
    object_server.faults.ordered = [Fault("PUT", MANIFEST, "InternalError", done=True)]
    object_server.seen.clear()
    store.create(MANIFEST, b"mine, nonce 17")
    assert object_server.seen.count(f"PUT /{store.url.removeprefix('s3://')}/{MANIFEST}") >= 2, "the client repeats it"
    assert store.read(MANIFEST) == b"mine, nonce 17"


def test_a_lost_answer_to_a_create_that_came_too_late_is_a_refusal(
    store: RemoteStore, object_server: ObjectServer
) -> None:
    store.create(MANIFEST, b"mine, nonce 17")
    object_server.faults.ordered = [Fault("PUT", MANIFEST, "InternalError", done=True)]
    with pytest.raises(AlreadyExists):
        store.create(MANIFEST, b"theirs, nonce 18")
    assert store.read(MANIFEST) == b"mine, nonce 17"


def test_a_create_that_never_arrived_is_sent_again(store: RemoteStore, object_server: ObjectServer) -> None:
    store.create("warm", b"")
    object_server.faults.ordered = [Fault("PUT", MANIFEST, "SlowDown", "503 Slow Down")]
    store.create(MANIFEST, b"mine")
    assert store.read(MANIFEST) == b"mine"


def test_an_object_store_without_conditional_puts_is_refused(store: RemoteStore, object_server: ObjectServer) -> None:
    object_server.faults.ignores_conditions = True
    with pytest.raises(StoreError, match="only if it is absent") as caught:
        store.create(MANIFEST, b"mine")
    assert "keeps two drivers apart" in caught.value.expected
    assert "second file under the same name was accepted" in caught.value.found
    assert caught.value.next_move
    assert store.list() == [], "neither the manifest nor the file it was tried out with"


# --- reading and writing


def test_a_large_file_goes_up_and_comes_down_whole(store: RemoteStore, bucket: str, tmp_path: Path) -> None:
    piece = bytes(range(256)) * 4096
    store.write(RUN, (piece for _ in range(12)))
    elsewhere = RemoteStore(store.url, cache_dir=tmp_path / "other")
    assert elsewhere.open_buffer(RUN).to_pybytes() == piece * 12


def test_what_one_machine_writes_another_sees_at_once(store: RemoteStore, tmp_path: Path) -> None:
    other = RemoteStore(store.url, cache_dir=tmp_path / "other")
    assert other.list(layout.RUNS) == []
    assert not other.exists(RUN)
    store.write(RUN, b"1")
    assert other.list(layout.RUNS) == [RUN]
    assert other.exists(RUN)
    other.delete(RUN)
    assert not store.exists(RUN)
    assert store.list() == []
    with pytest.raises(MissingFile):
        other.open_buffer(RUN)


def test_a_small_file_is_read_in_one_request_whether_or_not_it_is_there(
    store: RemoteStore, object_server: ObjectServer
) -> None:
    store.write(MANIFEST, b"1")
    object_server.seen.clear()
    assert store.read(MANIFEST) == b"1"
    with pytest.raises(MissingFile):
        store.read(layout.fence(1))
    assert [seen.partition(" ")[0] for seen in object_server.seen] == ["GET", "GET"]


def test_more_files_than_one_answer_holds_are_listed(
    store: RemoteStore, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    for number in range(25):
        store.write(layout.fence(number), b"")
    object_server.seen.clear()
    assert len(store.list(layout.FENCES)) == 25
    assert len(object_server.seen) == 3


def test_a_store_may_be_a_whole_bucket(bucket: str) -> None:
    store = open_store(f"s3://{bucket}")
    store.create(MANIFEST, b"1")
    assert store.list() == [MANIFEST]
    assert store.read(MANIFEST) == b"1"


def test_stores_whose_names_begin_alike_are_apart(bucket: str) -> None:
    one, two = open_store(f"s3://{bucket}/job"), open_store(f"s3://{bucket}/job-2")
    two.write("a", b"2")
    assert one.list() == []
    assert two.list() == ["a"]


# --- what can be wrong


def test_a_bucket_that_is_not_there_is_told(bucket: str) -> None:
    store = open_store("s3://no-such-bucket-anywhere/store")
    for ask in requests_of(store):
        with pytest.raises(StoreError, match="bucket of this store does not exist") as caught:
            ask()
        assert "no-such-bucket-anywhere" in caught.value.expected
        assert "store s3://no-such-bucket-anywhere/store" in caught.value.where
        assert caught.value.found and caught.value.next_move
        assert "botocore" not in told(caught.value)


def test_missing_permission_is_told_with_what_is_needed(store: RemoteStore, object_server: ObjectServer) -> None:
    object_server.faults.ordered = [Fault("*", "", "AccessDenied", "403 Forbidden", times=1000)]
    for ask in requests_of(store):
        with pytest.raises(StoreError, match="does not allow it") as caught:
            ask()
        assert "list, read, write and delete" in caught.value.expected
        assert "PutObject" in caught.value.next_move
        assert caught.value.found
        assert "botocore" not in told(caught.value)


def test_unknown_credentials_are_told(store: RemoteStore, object_server: ObjectServer) -> None:
    object_server.faults.ordered = [Fault("*", "", "InvalidAccessKeyId", "403 Forbidden", times=1000)]
    with pytest.raises(StoreError, match="no credentials that this store accepts") as caught:
        store.read("a")
    assert "AWS_ACCESS_KEY_ID" in caught.value.next_move
    assert "botocore" not in told(caught.value)


def test_no_credentials_at_all_are_told(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from s3fs import S3FileSystem

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="no credentials that this store accepts") as caught:
        open_store(store.url).write("a", b"1")
    assert "botocore" not in told(caught.value)


def test_an_object_store_that_cannot_be_reached_is_told(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from s3fs import S3FileSystem

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="does not answer") as caught:
        open_store(store.url).read("a")
    assert "AWS_ENDPOINT_URL" in caught.value.next_move
    assert "nothing is lost" in caught.value.next_move
    assert "botocore" not in told(caught.value)


def test_a_missing_package_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package of that name is hidden by what it exports.
    known = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(known, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(EnvironmentMissing, match="need a package that is not installed") as caught:
        open_store("s3://bucket/store", cache_dir=tmp_path)
    assert caught.value.next_move == 'pip install "headrace[s3]"'
    assert "s3fs" in caught.value.found
    with pytest.raises(EnvironmentMissing, match="nobody knows stores at odd://") as caught:
        open_store("odd://bucket/store", cache_dir=tmp_path)
    assert caught.value.next_move
