"""Erasing a key: no file of the store has a row of it afterwards, everybody else's rows are as they were, and a death
anywhere leaves a store that reads, runs and can be erased again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.edit.erasing.erase import erase_key, find_text, read_all_manifests
from headrace.errors import Refused, SinkFailed, StoreError, StoreInUse
from headrace.model import crash
from headrace.read.follow import Follower
from headrace.read.store import Store, manifest_of
from headrace.state.checking import verify_state
from headrace.state.manifest import read_state
from headrace.state.store import LocalStore, StoreFiles, open_store
from tests.edit.people import PEOPLE, People
from tests.serve.archived import Job as Archived
from tests.serve.archived import asked

ANN = PEOPLE[3]
OTHERS = [person for person in PEOPLE if person != ANN]


def run_some(folder: Path, *, inline: bool = False) -> LocalStore:
    people = People(str(folder), inline=inline)
    with people.h:
        people.visit(*PEOPLE)
        people.visit(*PEOPLE[::2], ANN, page="cart", at="12:05")
        people.h.savepoint("before")
        people.visit(*PEOPLE[::3], at="12:50")
        people.visit(ANN, at="12:55")
    return LocalStore(folder, durable=False)


def test_an_object_store_is_erased_like_a_folder(tmp_path: Path) -> None:
    url = f"memory://{uuid4()}/store"
    with People(url).h as h:
        assert h.published == -1
    people = People(url)
    with people.h:
        people.visit(*PEOPLE)
        people.visit(ANN)
    store = open_store(url, cache_dir=tmp_path / "cache")
    assert find_text(store, ANN)
    assert erase_key(store, ANN, parts=True).mentions == ()
    assert find_text(open_store(url, cache_dir=tmp_path / "another"), ANN) == []
    readable(store)
    again = People(url)
    with again.h:
        assert again.seen(ANN) == (None,) * 7
        assert again.seen(PEOPLE[0])[0] == 1


def seen_by_others(folder: Path) -> list[tuple[Any, ...]]:
    people = People(str(folder))
    with people.h:
        return [people.seen(person) for person in OTHERS]


def stands_in_a_file(store: LocalStore, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in store.root.rglob("*") if path.is_file())


def readable(store: StoreFiles) -> None:
    """Every epoch that is kept can be read whole, against checksums."""
    for timeline, epoch in read_all_manifests(store):
        assert verify_state(store, read_state(store, timeline, epoch)).damages == ()


@pytest.mark.parametrize("inline", [False, True], ids=["in files", "inside of manifests"])
def test_nothing_of_the_key_is_left_and_everything_of_the_others(inline: bool, tmp_path: Path) -> None:
    store = run_some(tmp_path / "store", inline=inline)
    before = seen_by_others(tmp_path / "store")
    assert find_text(store, ANN)
    done = erase_key(store, ANN, parts=True, why="a request")
    assert {"trail", "hourly", "sittings", "pairs", "joined"} <= set(done.rows)
    assert done.mentions == ()
    assert find_text(store, ANN) == []
    assert not stands_in_a_file(store, ANN)
    assert done.read > 0
    readable(store)
    for moment in (0, 1, 2, 3, "before"):
        old = Store(f"{store.url}@{moment}")
        assert old.state("trail.count").get(ANN) is None
        assert old.state("trail.count").get(PEOPLE[0]) is not None
    assert seen_by_others(tmp_path / "store") == before
    people = People(str(tmp_path / "store"))
    with people.h:
        assert people.seen(ANN) == (None,) * 7
        people.visit(*PEOPLE, at="13:00")
        assert people.seen(ANN)[0] == 1
        assert people.seen(PEOPLE[0])[0] == 4


def test_that_it_was_done_is_noted_and_not_what_it_was(tmp_path: Path) -> None:
    store = run_some(tmp_path / "store")
    done = erase_key(store, ANN, parts=True, why="a request")
    (note,) = manifest_of(Store(store.url)).notes
    assert (note.kind, note.why, done.epoch) == ("erase", "a request", 4)
    assert ANN not in repr(note)


def test_keys_of_several_parts_are_erased_where_they_are_asked_for(tmp_path: Path) -> None:
    store = run_some(tmp_path / "store")
    assert "pairs" not in erase_key(store, ANN).rows
    assert set(erase_key(store, json.dumps([ANN, "home"])).rows) == {"pairs"}
    assert set(erase_key(store, ANN, parts=True).rows) == {"pairs"}
    assert erase_key(store, ANN, parts=True).rows == {}


def test_only_the_steps_that_are_named(tmp_path: Path) -> None:
    store = run_some(tmp_path / "store")
    assert set(erase_key(store, ANN, steps=["hourly"]).rows) == {"hourly"}
    assert Store(store.url).state("trail.count").get(ANN) == 4
    with pytest.raises(StoreError, match="no step 'hurly' keeps state"):
        erase_key(store, ANN, steps=["hurly"])


POINTS = [("erase_rewritten", 0), ("erase_manifest", 0), ("erase_manifest", 2), ("erase_deleting", 0),
          ("erase_deleting", 5), ("offline_written", 0), ("published", 0)]  # fmt: skip


@pytest.mark.parametrize(("point", "after"), POINTS, ids=str)
def test_dying_anywhere_leaves_a_store_that_reads_and_runs_and_is_erased_by_the_same_command(
    point: str, after: int, tmp_path: Path
) -> None:
    store = run_some(tmp_path / "store")
    before = seen_by_others(tmp_path / "store")
    left = after

    def strike(reached: str, epoch: int) -> None:
        nonlocal left
        if reached == point:
            if left == 0:
                raise crash.Crash(point)
            left -= 1

    with crash.planned(strike), pytest.raises(crash.Crash):
        erase_key(store, ANN, parts=True)
    readable(store)
    assert seen_by_others(tmp_path / "store") == before
    people = People(str(tmp_path / "store"))
    with people.h:
        people.visit(PEOPLE[0], at="13:00")
        assert people.seen(PEOPLE[0])[0] == 4
    erase_key(store, ANN, parts=True)
    assert find_text(store, ANN) == []
    readable(store)


def test_rows_in_loops_are_erased_and_the_others_go_round(tmp_path: Path) -> None:
    store = run_some(tmp_path / "store")
    assert erase_key(store, ANN).looped > 0
    people = People(str(tmp_path / "store"))
    with people.h:
        people.visit(PEOPLE[0], at="13:00")
        people.h.drain()


def test_closed_windows_in_the_archive_are_erased_and_answered_for_the_others(tmp_path: Path) -> None:
    job = Archived(tmp_path)
    with job.h:
        for hour in range(5):
            job.push(("a", hour + 0.1, hour), ("b", hour + 0.2, 10), watermark=hour + 0.5)
    done = erase_key(LocalStore(job.store, durable=False), "a")
    assert done.archived == 4
    assert sums(job, "b") == [10] * 5
    assert sums(job, "a") == []
    again = Archived(tmp_path)
    with again.h:
        again.push(("a", 5.1, 7), watermark=6.5)
    assert sums(job, "a") == [7]
    assert erase_key(LocalStore(job.store, durable=False), "a").archived == 1


def sums(job: Archived, key: str) -> list[int]:
    """What all windows of a key came to, open and closed ones."""
    return [n for _, n in asked(Follower(Store(job.store)).look(), key)]


def test_an_archive_that_is_not_there_stops_the_erasure_before_it_begins(tmp_path: Path) -> None:
    job = Archived(tmp_path)
    with job.h:
        job.hours(0, 1, 2)
    folder = tmp_path / "archive"
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="archive of closed windows cannot be reached"):
        erase_key(LocalStore(job.store, durable=False), "a")
    assert Store(job.store).epoch == 2


def test_a_timeline_that_was_abandoned_is_erased_as_well(tmp_path: Path) -> None:
    people = People(str(tmp_path / "store"))
    with people.h:
        people.visit(*PEOPLE)
        people.visit(ANN, at="12:10")
        people.h.rewind(0)
        people.h.epoch()
    store = LocalStore(tmp_path / "store", durable=False)
    assert {timeline for timeline, _ in read_all_manifests(store)} == {0, 1}
    erase_key(store, ANN, parts=True)
    assert find_text(store, ANN) == []
    readable(store)
    again = People(str(tmp_path / "store"))
    with again.h:
        again.h.rewind(0, again=True)
        assert again.seen(ANN) == (None,) * 7
        assert again.seen(PEOPLE[0])[0] == 1


def test_a_job_that_runs_is_not_touched(tmp_path: Path) -> None:
    people = People(str(tmp_path / "store"))
    with people.h:
        people.visit(ANN)
        with pytest.raises(StoreInUse):
            erase_key(LocalStore(tmp_path / "store", durable=False), ANN)


def test_rows_that_wait_for_a_sink_are_released_first(tmp_path: Path) -> None:
    def down(rows: list[Any], epoch: int) -> None:
        raise RuntimeError("down")

    program = hr.App("people")
    names = program.read("names", hr.source.items([]), str)
    names.key_by(lambda name: name).latest().named("newest").write(hr.sink.call(down), name="out")
    with pytest.raises(SinkFailed), hr.testing.Harness(program, store=tmp_path, sinks=True) as h:
        h.push(names, ANN)
        h.epoch()
    with pytest.raises(Refused, match="have not come to their sinks yet") as refused:
        erase_key(LocalStore(tmp_path, durable=False), ANN)
    assert "start the job" in refused.value.next_move


def test_values_of_other_keys_that_say_the_same_text_are_told(tmp_path: Path) -> None:
    people = People(str(tmp_path / "store"))
    with people.h:
        people.visit(PEOPLE[0], page=ANN)
    done = erase_key(LocalStore(tmp_path / "store", durable=False), ANN)
    assert any("trail" in path for path in done.mentions)


def test_a_text_that_begins_others_is_no_mention(tmp_path: Path) -> None:
    people = People(str(tmp_path / "store"))
    with people.h:
        people.visit("pers", "person-01", page="pers-on")
    assert erase_key(LocalStore(tmp_path / "store", durable=False), "pers", parts=True).mentions == ()


def call(*args: str, text: str | None = None) -> Any:
    return CliRunner().invoke(app, ["erase", *args], input=text)


def test_the_command_asks_erases_and_proves(tmp_path: Path) -> None:
    store = run_some(tmp_path / "store")
    refused = call(store.url, "--key", ANN, text="n\n")
    assert refused.exit_code == 1
    assert Store(store.url).state("trail.count").get(ANN) == 4
    done = call(store.url, "--key", ANN, "--parts", "--yes")
    assert done.exit_code == 0, done.output
    assert re.search(r"trail: \d+ rows erased, over all epochs", done.output)
    assert "none of the key" in done.output
    assert "stands in no file of the store" in done.output
    again = call(store.url, "--key", ANN, "--parts", "--json")
    assert json.loads(again.stdout)["rows"] == {}
