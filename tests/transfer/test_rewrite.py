"""A store for other keys, or for another number of key groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.model import crash
from headrace.model.order import EpochLimits
from headrace.state import layout
from headrace.state.store import open_store
from headrace.testing import Harness
from headrace.transfer.rewriting import NewKeys, rewrite_store
from tests.cli.calling import call, call_json
from tests.transfer.till import FIRST, SECOND, Rule, Till, sale


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three epochs of the till, with runs that hide each other."""
    folder = tmp_path_factory.mktemp("till") / "store"
    till = Till(folder)
    till.h.push(till.rules, Rule("r", 5))
    till.epoch(*FIRST)
    till.h.push(till.rules, Rule("s", 6))
    till.epoch(sale("a", 8, 55), sale("d", 1, 56))
    till.epoch(sale("b", 3, 58))
    till.close()
    return folder


def rewrite(store: Path, target: Path, **how: Any) -> Any:
    from headrace.read.store import Store, files_of, job_state_of

    opened = Store(store)
    return rewrite_store(files_of(opened), job_state_of(opened), open_store(target), **how)


def test_a_job_goes_on_in_a_store_with_other_key_groups_as_in_the_old_one(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = rewrite(store, tmp_path / "new", key_groups=512)
    assert (report.epoch, report.key_groups) == (2, 512)
    before, after = hr.Store(store), hr.Store(tmp_path / "new")
    for info in before.states():
        assert dict(after.state(info.address).scan()) == dict(before.state(info.address).scan()), info.address
    import shutil

    shutil.copytree(store, tmp_path / "old")
    old = Till(tmp_path / "old")
    monkeypatch.setattr("headrace.testing.taps.KEY_GROUPS", 512)
    new = Till(tmp_path / "new", parallelism=5)
    for rows in (SECOND, [sale("ü:x", 1, 200), sale("a", 6, 500)]):
        assert new.epoch(*rows) == old.epoch(*rows)
    assert new.h.published == old.h.published == 4
    for info in hr.Store(tmp_path / "old").states():
        same = hr.Store(tmp_path / "new").state(info.address)
        assert dict(same.scan()) == dict(hr.Store(tmp_path / "old").state(info.address).scan()), info.address
    old.close()
    new.close()


class Hit(hr.Record):
    page: str
    n: int = 1


class Trail(hr.Process[Hit, str, Any]):
    trail: hr.ListState[int]
    seen: hr.MapState[str, int]
    gone: hr.MapState[str, int]

    def on_event(self, event: Hit, ctx: hr.Context[Any]) -> Iterator[str]:
        self.trail.append(event.n)
        self.seen[f"n{event.n}"] = event.n
        self.gone["x"] = event.n
        if event.n % 2:
            self.gone.clear()
        yield f"{ctx.key} {list(self.trail)} {sorted(self.seen.items())} {sorted(self.gone.items())}"


def number_of(hit: Hit) -> int:
    return int(hit.page)


def trails(key: Any) -> tuple[hr.App, Any, Any]:
    app = hr.App("trails")
    hits = app.read("hits", hr.source.items([]), Hit)
    step = hits.key_by(key).process(Trail()).named("step")
    step.show()
    return app, hits, step


def filled(folder: Path, *epochs: list[Hit]) -> Path:
    app, hits, _ = trails(Hit.page)
    with Harness(app, store=folder) as h:
        for rows in epochs:
            h.push(hits, *rows)
            h.epoch()
    return folder


@pytest.mark.parametrize("function", [None, int])
def test_keys_of_another_type_find_what_was_kept_of_them(
    tmp_path: Path, function: Callable[[Any], Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.transfer import runs

    # Chunks of few rows, so that a run is put together of several.
    monkeypatch.setitem(runs.RunSorter.__init__.__kwdefaults__, "chunk_rows", 3)
    first = [Hit(str(n % 7), n) for n in range(20)]
    filled(tmp_path / "old", first, [Hit("3", 101), Hit("4", 100)])
    rewrite(tmp_path / "old", tmp_path / "new", keys={"step": NewKeys(int if function is None else None, function)})
    app, hits, step = trails(number_of)
    with Harness(app, store=tmp_path / "new") as h:
        h.push(hits, Hit("3", 8), Hit("99", 1))
        h.epoch()
        told = sorted(h.take(step))
    assert told == [
        "3 [3, 10, 17, 101, 8] [('n10', 10), ('n101', 101), ('n17', 17), ('n3', 3), ('n8', 8)] [('x', 8)]",
        "99 [1] [('n1', 1)] []",
    ]
    view = hr.Store(tmp_path / "new").state("step.trail")
    assert view[4] == [4, 11, 18, 100]
    assert hr.Store(tmp_path / "new").state("step.gone").get(4) == {"x": 100}


@pytest.mark.parametrize(
    ("keys", "new", "words"),
    [
        (["1", "01"], NewKeys(function=int), "several keys would become one"),
        (["1", "01"], NewKeys(int), "key 01"),
        (["1", "x"], NewKeys(function=int), "key x"),
    ],
)
def test_keys_that_would_become_one_or_none_are_refused(
    tmp_path: Path, keys: list[str], new: NewKeys, words: str
) -> None:
    filled(tmp_path / "old", [Hit(key) for key in keys])
    with pytest.raises(hr.HeadraceError) as raised:
        rewrite(tmp_path / "old", tmp_path / "new", keys={"step": new})
    assert words in str(raised.value)
    with pytest.raises(hr.HeadraceError, match="no store here"):
        hr.Store(tmp_path / "new")


class Job(hr.Record):
    name: str
    left: int


def test_rows_that_wait_in_a_loop_come_along(tmp_path: Path) -> None:
    app = hr.App("jobs")
    jobs = app.read("jobs", hr.source.items([]), Job)
    again = app.loop("again", Job)
    tried = jobs.union(again).map(lambda job: job.replace(left=job.left - 1), output=Job)
    tried.where("left > 0").feed(again)
    done = tried.where("left <= 0").key_by(Job.name).latest().named("done")
    done.show()
    limits = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)
    with Harness(app, store=tmp_path / "old", limits=limits) as h:
        h.push(jobs, Job("short", 1), Job("long", 3))
        h.epoch()
    rewrite(tmp_path / "old", tmp_path / "new", keys={"done": NewKeys(function=lambda name: name)})
    with Harness(app, store=tmp_path / "new") as h:
        h.epoch()
        h.epoch()
        assert h.take(done) == [Job("long", 0)]
        assert h.state(done, key="short") == Job("short", 0)


@pytest.mark.parametrize("point", ["making", "store_made"])
def test_a_rewrite_that_died_is_no_store_and_begins_again(store: Path, tmp_path: Path, point: str) -> None:
    def strike(at: str, epoch: int) -> None:
        if at == point:
            raise crash.Crash(point)

    with pytest.raises(crash.Crash), crash.planned(strike):
        rewrite(store, tmp_path / "new", key_groups=64)
    with pytest.raises(hr.HeadraceError, match="no store here"):
        hr.Store(tmp_path / "new")
    rewrite(store, tmp_path / "new", key_groups=64)
    assert len(hr.Store(tmp_path / "new").state("last")) == 5
    assert not open_store(tmp_path / "new").exists(layout.MAKING)


def test_the_command_rewrites_and_refuses_what_cannot_be_meant(tmp_path: Path) -> None:
    old = filled(tmp_path / "old", [Hit("1"), Hit("2")])
    (tmp_path / "keys.py").write_text("def minus(key):\n    return -int(key)\n")
    data = call_json("rewrite", old, "--to", tmp_path / "new", "--key", f"step={tmp_path / 'keys.py'}:minus")
    assert data["epoch"] == 0
    assert sorted(hr.Store(tmp_path / "new").state("step.trail")) == [-2, -1]
    assert call("rewrite", old, "--to", tmp_path / "typed", "--key", "step=int").exit_code == 0
    assert sorted(hr.Store(tmp_path / "typed").state("step.trail")) == [1, 2]
    for arguments, code, words in (
        ([], 2, "--key or --key-groups"),
        (["--key", "step=complex"], 2, "none of"),
        (["--key", "stpe=int"], 4, "no such step"),
        (["--key-groups", "100"], 4, "power of two"),
    ):
        result = call("rewrite", old, "--to", tmp_path / "other", *arguments)
        assert result.exit_code == code, result.stderr
        assert words in result.stderr
    again = call("rewrite", old, "--to", tmp_path / "new", "--key-groups", "64")
    assert again.exit_code == 4
    assert "something else" in again.stderr
