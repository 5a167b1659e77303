"""What sources say of the rows that a job has read, when it is to go back."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.checkpoint.rewind.proof import ReplayKeeper, prove_sources
from headrace.connectors.source_contract import InputFile, Passage
from headrace.state import layout
from headrace.state.manifest import Manifest
from headrace.state.savepoints import create_savepoint, delete_savepoint
from headrace.state.store import LocalStore
from tests.state.saved import SavedJob

if TYPE_CHECKING:
    from tests.services.redis import Redis


class Click(hr.Record):
    user: str


def manifest(epoch: int, **offsets: Any) -> Manifest:
    lines = ["v2", "{}", *(f"{name}:{json.dumps(offset)}" for name, offset in offsets.items())]
    return Manifest(
        app="a", timeline=0, epoch=epoch, nonce="n", fence=1, program="p", parallelism=1, key_groups=8, clock_us=0,
        offsets="\n".join(lines),
    )  # fmt: skip


def test_generated_rows_can_always_be_made_again() -> None:
    for source in (hr.source.items([Click("a")]), hr.source.generator(lambda i, rng: Click(str(i)))):
        assert source.check_replay(Passage({"i": 1}, {"i": 7})).verdict == "sure"


def test_a_source_that_does_not_tell_is_not_known() -> None:
    source = hr.source.spark("rate")
    assert source.check_replay(Passage(1, 2)).verdict == "unknown"
    assert source.check_replay(Passage(None, None)).verdict == "sure"


def listed(folder: Path, *names: str) -> list[InputFile]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text('{"user": "a"}\n')
    return [InputFile((folder / name).as_uri(), (folder / name).stat().st_mtime_ns // 1_000_000) for name in names]


def test_files_have_to_be_there_and_unchanged(tmp_path: Path) -> None:
    files = tuple(listed(tmp_path / "in", "a.json", "b c.json"))
    source = hr.source.files(tmp_path / "in", format="json")
    asked = Passage({"logOffset": 0}, {"logOffset": 2}, files)
    assert source.check_replay(asked).verdict == "sure"
    os.utime(tmp_path / "in" / "a.json", (1, 1))
    assert source.check_replay(asked).verdict == "unknown"
    (tmp_path / "in" / "b c.json").unlink()
    replay = source.check_replay(asked)
    assert (replay.verdict, replay.why) == ("lost", f"{files[1].url} cannot be found")


def test_the_files_that_count_are_those_behind_the_epoch(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    files = listed(tmp_path / "in", "0.json", "1.json", "2.json", "3.json")
    for number, file in enumerate(files):
        entry = json.dumps({"path": file.url, "timestamp": file.modified_ms, "batchId": number})
        name = f"clicks/{number}" + (".compact" if number == 2 else "")
        # A compacted entry tells of all before it, too.
        before = files[:2] if number == 2 else []
        earlier = [json.dumps({"path": each.url, "batchId": n}) for n, each in enumerate(before)]
        store.write(layout.input_entry(name), "\n".join(["v1", *earlier, entry]).encode())
    sources = {"clicks": hr.source.files(tmp_path / "in", format="json")}

    def verdict() -> str:
        start, end = manifest(1, clicks={"logOffset": 0}), manifest(4, clicks={"logOffset": 2})
        return prove_sources(store, sources, start, end)["clicks"].verdict

    def verdict_of_all() -> str:
        """Of a source that came behind the epoch."""
        return prove_sources(store, sources, manifest(1), manifest(4, clicks={"logOffset": 2}))["clicks"].verdict

    assert verdict_of_all() == "sure"
    (tmp_path / "in" / "0.json").unlink()
    (tmp_path / "in" / "3.json").unlink()
    assert verdict_of_all() == "lost"
    assert verdict() == "sure"
    (tmp_path / "in" / "1.json").unlink()
    assert verdict() == "lost"


def test_a_source_that_was_not_read_since_is_not_asked(tmp_path: Path) -> None:
    sources = {"clicks": hr.source.spark("rate"), "new": hr.source.spark("rate")}
    same = {"clicks": 7}
    found = prove_sources(LocalStore(tmp_path), sources, manifest(1, **same), manifest(2, **same))
    assert [replay.verdict for replay in found.values()] == ["sure", "sure"]


def test_entries_of_a_stream_must_not_have_been_trimmed(redis_server: Redis) -> None:
    stream = f"clicks-{uuid.uuid4().hex}"
    source = hr.source.redis_stream(stream, url=redis_server.url)
    with redis_server.client() as client:
        entries = [client.xadd(stream, {"user": str(n)}).decode() for n in range(10)]
        start = {stream: {"id": entries[3], "n": 4, "from": ["0-0", 0]}}
        end = {stream: {"id": entries[9], "n": 10, "from": ["0-0", 0]}}
        client.xtrim(stream, maxlen=6, approximate=False)
        assert source.check_replay(Passage(start, end)).verdict == "sure"
        client.xtrim(stream, maxlen=5, approximate=False)
        lost = source.check_replay(Passage(start, end))
        assert (lost.verdict, "1 of 6 unread entries were trimmed" in lost.why) == ("lost", True)


class Listening(type(hr.source.items([Click("a")]))):  # type: ignore[misc]
    """Notes what it is asked to keep."""

    def keep_behind(self, positions: Any, holder: str) -> None:
        self.told.append((positions, holder))


def test_a_source_is_told_what_savepoints_need_when_they_come_and_go(tmp_path: Path) -> None:
    job = SavedJob(tmp_path)
    source = Listening([Click("a")], 1, 1)
    source.told = []
    keeper = ReplayKeeper(job.store, {"clicks": source}, "5f3c")
    job.publish(3)
    keeper.tell()
    create_savepoint(job.store, name="here")
    for _ in range(2):
        keeper.tell()
    delete_savepoint(job.store, "here")
    keeper.tell()
    assert source.told == [([], "5f3c-clicks"), ([None], "5f3c-clicks"), ([], "5f3c-clicks")]
