"""``headrace savepoint`` and ``headrace savepoints``, as a person and as a script call them."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cli.bars import ProgressLines
from headrace.cli.completing import complete_moments, complete_savepoints
from headrace.model import crash
from headrace.model.amounts import human_bytes
from headrace.state import layout
from tests.cli.calling import call, call_json
from tests.serve.made_store import START_US, MadeStore, busy_epoch, values


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    store = MadeStore(store_path)
    for _ in range(4):
        busy_epoch(store)
    return store


def test_a_savepoint_is_taken_of_the_newest_epoch_and_says_how_to_read_and_delete_it(made: MadeStore) -> None:
    out = call("savepoint", made.path, "--name", "before-v2").stdout
    assert out.startswith("savepoint before-v2: epoch 3 of tweets")
    assert "nothing was copied" in out
    assert f"headrace state {made.path}@before-v2" in out
    assert call_json("state", f"{made.path}@before-v2")["epoch"] == 3


@pytest.mark.parametrize(
    ("moment", "options", "name", "epoch"),
    [
        ("@1", [], "epoch-1", 1),
        ("@1", ["--name", "audit"], "audit", 1),
        ("@2024-01-01T12:00:02", [], "epoch-2", 2),
        ("@first", [], "first", 0),
        ("@first", ["--name", "again"], "again", 0),
        ("", [], "epoch-3", 3),
    ],
)
def test_any_kept_epoch_can_be_taken(made: MadeStore, moment: str, options: list[str], name: str, epoch: int) -> None:
    call_json("savepoint", f"{made.path}@0", "--name", "first")
    taken = call_json("savepoint", made.path + moment, *options)
    assert (taken["name"], taken["epoch"]) == (name, epoch)


def test_savepoints_are_listed_with_epoch_times_size_and_note(made: MadeStore) -> None:
    assert "headrace savepoint STORE" in call("savepoints", made.path).stdout
    call_json("savepoint", made.path, "--name", "last", "--note", "the last day of v1")
    call_json("savepoint", f"{made.path}@1", "--name", "first")
    first, last = call_json("savepoints", made.path)
    assert (first["name"], last["name"], last["note"]) == ("first", "last", "the last day of v1")
    assert 0 < first["bytes"] < last["bytes"]
    lines = [line.split() for line in call("savepoints", made.path).stdout.splitlines()]
    assert ["last", "3", "2024-01-01T12:00:03Z"] in [line[:3] for line in lines]


def test_one_savepoint_tells_states_sources_watermarks_program_and_shards(made: MadeStore) -> None:
    row = values("views", [("a", 1)])
    offsets = 'v1\n{"batchTimestampMs":1}\nviews:{"part-0":17}'
    made.epoch({"count_views": [row]}, watermark_us=START_US, offsets=offsets)
    call_json("savepoint", made.path, "--name", "before-v2")
    told = call_json("savepoints", made.path, "before-v2")
    assert (told["name"], told["epoch"], told["app"], told["program"]) == ("before-v2", 4, "tweets", "p")
    assert (told["parallelism"], told["key_groups"], told["copied_from"]) == (2, 128, None)
    assert told["offsets"] == {"views": '{"part-0":17}'}
    assert told["watermarks"]["steps"] == {"count_views": "2024-01-01T12:00:00Z"}
    [views] = told["states"]
    assert (views["state"], views["rows"]) == ("count_views.views", 9)
    out = call("savepoints", made.path, "before-v2").stdout
    for words in ("savepoint before-v2", "count_views.views", "2, at most 128", '{"part-0":17}', "12:00:00"):
        assert words in out


def test_a_kept_epoch_is_described_as_a_savepoint_is(made: MadeStore) -> None:
    told = call_json("savepoints", made.path, "2")
    assert (told["name"], told["epoch"]) == (None, 2)
    assert told == call_json("savepoints", f"{made.path}@2")
    assert "as long as the setting `retain` says" in call("savepoints", f"{made.path}@2").stdout
    assert call("savepoints", f"{made.path}@2", "1").exit_code == 2


def test_verifying_reads_all_files_and_fails_where_one_is_damaged(made: MadeStore) -> None:
    call_json("savepoint", f"{made.path}@1", "--name", "old")
    call_json("savepoint", made.path, "--name", "new")
    assert call("savepoints", made.path, "--verify").stdout.count("whole") == 2
    newest = made.files.list(layout.RUNS)[-1]
    (made.files.root / newest).write_bytes(b"something else")
    result = call("savepoints", made.path, "--verify")
    assert result.exit_code == 4
    assert "old: whole" in result.stdout
    assert f"{newest}: a file of the state is damaged" in result.stdout
    assert call("savepoints", made.path, "old", "--verify").exit_code == 0
    assert call("savepoints", made.path, "new", "--verify", "--json").exit_code == 4


def test_a_savepoint_without_its_manifest_is_listed_and_fails_to_verify(made: MadeStore) -> None:
    call_json("savepoint", f"{made.path}@1", "--name", "old")
    made.files.delete(layout.manifest(0, 1))
    assert [each["bytes"] for each in call_json("savepoints", made.path)] == [None]
    assert "--verify says why" in call("savepoints", made.path).stdout
    result = call("savepoints", made.path, "--verify")
    assert (result.exit_code, layout.manifest(0, 1) in result.stdout) == (4, True)


def test_deleting_asks_unless_told_not_to(made: MadeStore) -> None:
    for name in ("a", "b", "c"):
        call_json("savepoint", made.path, "--name", name)
    refused = call("savepoints", made.path, "a", "--delete")
    assert (refused.exit_code, "nothing was deleted" in refused.stdout) == (1, True)
    assert call("savepoints", made.path, "a", "--delete", "--yes").exit_code == 0
    assert call_json("savepoints", made.path, "b", "--delete")["deleted"]["name"] == "b"
    assert [each["name"] for each in call_json("savepoints", made.path)] == ["c"]
    gone = call("savepoints", made.path, "a", "--delete", "--yes")
    assert (gone.exit_code, "there is no savepoint 'a'" in gone.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["savepoints", "{store}", "--delete"], 2, "which savepoint"),
        (["savepoints", "{store}", "2", "--delete", "--yes"], 4, "2 is no savepoint but an epoch"),
        (["savepoints", "{store}", "x", "--delete", "--verify"], 2, "two things"),
        (["savepoints", "{store}", "nobody"], 4, "there is no savepoint 'nobody'"),
        (["savepoints", "{store}", "41"], 4, "epoch 41 is not in the store"),
        (["savepoint", "{store}@41"], 4, "epoch 41 is not in the store"),
        (["savepoint", "{store}", "--name", "2"], 4, "a savepoint cannot have this name"),
        (["savepoint", "{store}-nowhere"], 4, "there is no store here"),
        (["savepoint", "{store}", "--copy-to", "{store}"], 4, "something else where the copy is to go"),
        (["savepoint", "{store}", "--copy-to", "{store}/inside"], 4, "something else where the copy is to go"),
        (["savepoint", "{store}", "--copy-to", "{store}/store.json"], 4, "the copy cannot be begun here"),
    ],
)
def test_what_cannot_be_is_said_in_words(made: MadeStore, arguments: list[str], code: int, words: str) -> None:
    result = call(*(each.format(store=made.path) for each in arguments))
    assert result.exit_code == code
    # A screen of 80 columns may break a message of usage anywhere.
    assert words.replace(" ", "") in "".join(result.stderr.split()).replace("│", "")
    assert not Path(f"{made.path}-nowhere").exists()


def test_a_copy_is_a_store_of_its_own_that_says_where_it_is_from(made: MadeStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    out = call("savepoint", made.path, "--name", "nightly", "--copy-to", copy).stdout
    assert (out.startswith("copied nightly: epoch 3"), "stays until it is deleted" in out) == (True, True)
    again = call_json("savepoint", f"{made.path}@nightly", "--copy-to", copy)
    assert (again["copy"]["copied"], again["copy"]["files"]) == (0, 4)
    told = call_json("savepoints", copy, "nightly")
    assert (told["copied_from"]["store"], told["copied_from"]["savepoint"]) == (made.path, "nightly")
    assert call_json("state", copy, "count_views.views") == call_json("state", made.path, "count_views.views")


def test_a_fork_says_where_it_is_from(made: MadeStore) -> None:
    origin = {
        "url": "s3://b/tweets",
        "query": "q",
        "savepoint": "before-v2",
        "timeline": 0,
        "epoch": 1,
        "nonce": "n",
        "asked": "",
    }
    record = json.loads(made.files.read(layout.STORE_RECORD))
    record["forked_from"] = {**origin, "forked_us": START_US}
    made.files.write(layout.STORE_RECORD, json.dumps(record).encode())
    told = call_json("savepoints", made.path, "2")["forked_from"]
    assert told == {"store": "s3://b/tweets", "savepoint": "before-v2", "epoch": 1, "forked": "2024-01-01T12:00:00Z"}
    assert "2024-01-01T12:00:00Z from s3://b/tweets@before-v2" in call("savepoints", made.path, "2").stdout


def test_an_interrupted_copy_says_how_to_go_on_and_does(made: MadeStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    files = count()

    def interrupt(point: str, epoch: int) -> None:
        if point == "copying" and next(files):
            raise KeyboardInterrupt

    with crash.planned(interrupt):
        result = call("savepoint", made.path, "--copy-to", copy)
    assert result.exit_code == 130
    assert f"go on with: headrace savepoint {made.path}@epoch-3 --copy-to {copy}" in result.stderr
    busy_epoch(made)
    went_on = call_json("savepoint", f"{made.path}@epoch-3", "--copy-to", copy)
    assert went_on["copy"]["copied"] < went_on["copy"]["files"]
    assert call_json("savepoints", copy, "--verify")["whole"]


def test_a_copy_that_fails_half_way_says_how_to_go_on(made: MadeStore, tmp_path: Path) -> None:
    call_json("savepoint", made.path, "--name", "nightly")
    file = made.files.root / made.files.list(layout.RUNS)[-1]
    data = file.read_bytes()
    file.write_bytes(b"damaged" + data[7:])
    result = call("savepoint", f"{made.path}@nightly", "--copy-to", tmp_path / "copy")
    assert (result.exit_code, "a file of the state is damaged" in result.stderr) == (4, True)
    assert f"go on with: headrace savepoint {made.path}@nightly --copy-to {tmp_path / 'copy'}" in result.stderr
    file.write_bytes(data)
    assert call_json("savepoint", f"{made.path}@nightly", "--copy-to", tmp_path / "copy")["copy"]["files"] == 4


def test_savepoints_are_offered_at_the_tab_key(made: MadeStore) -> None:
    for name in ("before-v2", "nightly"):
        call_json("savepoint", made.path, "--name", name)
    ctx = SimpleNamespace(params={"store": made.path})
    assert complete_savepoints(ctx, "") == ["before-v2", "nightly"]
    assert complete_savepoints(ctx, "n") == ["nightly"]
    assert complete_savepoints(SimpleNamespace(params={"store": "nowhere"}), "") == []
    assert complete_moments(f"{made.path}@b") == [f"{made.path}@before-v2"]
    assert complete_moments(made.path) == [made.path]


def test_progress_in_a_log_is_a_line_every_few_seconds() -> None:
    seconds = iter((0, 1, 5, 6, 10))
    lines: list[str] = []
    advance = ProgressLines("copying x", human_bytes, lines.append, lambda: float(next(seconds)))
    for megabytes in (1, 5, 6, 10):
        advance(megabytes * 1_000_000, 20_000_000)
    assert lines == [
        "copying x: 5.0 MB of 20.0 MB, 1.0 MB/s, 15 s left",
        "copying x: 10.0 MB of 20.0 MB, 1.0 MB/s, 10 s left",
    ]
