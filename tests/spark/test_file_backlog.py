"""What of a folder is left: counted from a listing and from Spark's log of files, whatever comes in which order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.model.behind import Behind
from headrace.spark.file_backlog import FileBacklog
from headrace.spark.listing import InputFolder, ListedFile
from headrace.state import layout
from headrace.state.store import open_store

FOLDER = InputFolder("s3a://lake/history")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def found(*names: str, size_bytes: int = 10) -> list[ListedFile]:
    return [ListedFile(f"s3a://lake/history/{name}", size_bytes) for name in names]


def entry(number: int, *names: str, before: str = "") -> bytes:
    """An entry of Spark's log; one that is compacted repeats those ``before`` it."""
    lines = ["v1"]
    lines += [json.dumps({"path": f"s3a://lake/history/{name}", "timestamp": 1, "batchId": 0}) for name in before]
    lines += [json.dumps({"path": f"s3a://lake/history/{name}", "timestamp": 1, "batchId": number}) for name in names]
    return "\n".join(lines).encode()


class Listings:
    """A folder that is listed page by page, as far as it is let."""

    def __init__(self, *pages: list[ListedFile]) -> None:
        self.pages = list(pages)
        self.go_on = threading.Semaphore(1000)
        self.times = 0

    def __call__(self, folder: InputFolder) -> Iterator[list[ListedFile]]:
        self.times += 1
        for page in self.pages:
            assert self.go_on.acquire(timeout=60)
            yield page


class Job:
    def __init__(self, listings: Listings, store: Path, *, again: bool = False) -> None:
        self.store = open_store(str(store))
        self.now = 0.0
        self.backlog = FileBacklog({"orders": FOLDER}, listings, self.store, again=again, clock=lambda: self.now)

    def start(self) -> Job:
        self.backlog.start()
        wait_until(lambda: not self.backlog.counting())
        return self

    def read(self, path: str = "", content: bytes = b"") -> Behind | None:
        """An epoch: what it is told, and then published."""
        told = self.backlog.read({path: content} if path else {})
        if path:
            self.store.write(layout.input_entry(path), content)
        return told.get("orders")


def test_what_epochs_read_becomes_less_in_files_and_bytes(tmp_path: Path) -> None:
    big = found("big", size_bytes=1000)
    job = Job(Listings(found("a", "b", "c"), big), tmp_path).start()
    told = job.read("orders/0", entry(0, "a", "b"))
    assert told == Behind(2, "files", done=2, left_bytes=1010, done_bytes=20)
    assert told.percent == 1, "one huge file is most of what there is"
    assert job.read("orders/1", entry(1, "big", "unknown")) == Behind(
        1, "files", done=3, left_bytes=10, done_bytes=1020
    )
    # A failed epoch is read again; a compacted entry repeats what came before it, and ends with its own files.
    assert job.read("orders/1", entry(1, "big")) == Behind(1, "files", done=3, left_bytes=10, done_bytes=1020)
    assert job.read("orders/2.compact", entry(2, "c", before="ab")) == Behind(0, "files", left_bytes=0)


def test_no_epoch_waits_for_the_listing_and_what_is_read_meanwhile_counts(tmp_path: Path) -> None:
    listings = Listings(found("a", "b"), found("c", "d"))
    listings.go_on = threading.Semaphore(1)
    job = Job(listings, tmp_path)
    job.backlog.start()
    wait_until(lambda: job.backlog.counting() == {"orders": 2})
    assert job.read("orders/0", entry(0, "a")) == Behind(2, "files", counting=True)
    assert job.read("orders/1", entry(1, "c")) == Behind(2, "files", counting=True)
    listings.go_on.release()
    wait_until(lambda: not job.backlog.counting())
    assert job.read() == Behind(2, "files", done=2, left_bytes=20, done_bytes=20)


def test_a_run_that_goes_on_counts_what_was_left_when_it_began(tmp_path: Path) -> None:
    before = Job(Listings(found("a", "b", "c", "d")), tmp_path).start()
    before.read("orders/0", entry(0, "a"))
    before.read("orders/1.compact", entry(1, "b", before="a"))
    resumed = Job(Listings(found("a", "b", "c", "d")), tmp_path).start()
    told = resumed.read("orders/2", entry(2, "c"))
    assert told == Behind(1, "files", done=1, left_bytes=10, done_bytes=10)
    assert told.percent == 50


def test_files_that_came_meanwhile_count_when_the_others_are_read(tmp_path: Path) -> None:
    listings = Listings(found("a"))
    job = Job(listings, tmp_path, again=True).start()
    listings.pages.append(found("b", "c", "d"))
    job.now = 30.0
    assert job.read("orders/0", entry(0, "a")) == Behind(0, "files", left_bytes=0)
    assert listings.times == 1, "not again at once"
    job.now = 61.0
    # The epoch that has the folder listed is not published yet, and is not taken for one to come.
    told = [job.read("orders/1", entry(1, "b"))]
    thread = job.backlog._thread
    assert thread is not None
    thread.join(60)
    assert Behind(2, "files", left_bytes=20) in [*told, job.read()], "what has just come is not behind"
    assert job.read("orders/2", entry(2, "c")) == Behind(1, "files", done=1, left_bytes=10, done_bytes=10)


def test_a_run_that_ends_with_its_input_lists_it_once(tmp_path: Path) -> None:
    listings = Listings(found("a"))
    job = Job(listings, tmp_path).start()
    job.now = 1000.0
    job.read("orders/0", entry(0, "a"))
    job.read()
    assert listings.times == 1


def test_of_a_folder_that_cannot_be_listed_nothing_is_told(tmp_path: Path) -> None:
    def broken(folder: InputFolder) -> Iterator[list[ListedFile]]:
        yield found("a")
        raise RuntimeError("access denied")

    job = Job(broken, tmp_path).start()  # type: ignore[arg-type]
    assert job.read("orders/0", entry(0, "a")) is None


def test_a_run_that_ends_stops_listing(tmp_path: Path) -> None:
    listings = Listings(*(found(str(number)) for number in range(100)))
    listings.go_on = threading.Semaphore(3)
    job = Job(listings, tmp_path)
    job.backlog.start()
    wait_until(lambda: job.backlog.counting() == {"orders": 3})
    job.backlog.close()
    listings.go_on.release(2)
    thread = job.backlog._thread
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
    assert job.backlog.counting() == {"orders": 4}
