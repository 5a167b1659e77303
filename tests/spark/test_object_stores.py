"""A program on real Spark whose store is in an object store, of which Spark itself knows nothing, and whose history is
in a file system that only Spark knows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.model.behind import Behind
from headrace.read.store import newest_manifests
from headrace.state import layout
from headrace.state.store import open_store
from tests.cli.processes import run_headrace

pytestmark = pytest.mark.spark

PROGRAM = """
import headrace as hr

class Hit(hr.Record):
    page: str
    n: int

class Count(hr.Process[Hit, Hit, str]):
    total: hr.ValueState[int]

    def on_event(self, event, ctx):
        self.total.set(self.total.get(0) + event.n)
        yield Hit(ctx.key, self.total.get())

app = hr.App("hits")
hits = app.read("hits", hr.source.items([Hit("a", i) for i in range(1, UPTO)], per_epoch=2), Hit)
old = app.read("old", hr.source.files("viewfs://lake/history/*/", glob="*.json", max_files_per_epoch=1), Hit)
hits.union(old).key_by(Hit.page).process(Count()).write(hr.sink.files("out"))
"""


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"page": "a", "n": 100}\n')


def test_a_program_on_an_object_store_runs_ends_and_resumes(bucket: str, tmp_path: Path) -> None:
    program, url = tmp_path / "hits.py", f"s3://{bucket}/hits"
    history = tmp_path / "history"
    put(history, "day 1/a b%.json", "day 1/ü.json", "day 2/c.json")
    put(history, "day 1/_not.json", "day 2/.nor.json", "day 2/this.txt", "day 2/below/neither.json")
    mounted = f'"hadoop.fs.viewfs.mounttable.lake.link./history" = "{history.as_uri()}"'
    (tmp_path / "headrace.toml").write_text(f"[spark]\n{mounted}\n")
    for upto, total in ((5, 310), (7, 521)):
        program.write_text(PROGRAM.replace("UPTO", str(upto)))
        done = run_headrace("run", program, "--store", url, "--until", "caught_up", "--plain", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert hr.Store(url).state("count.total", int)["a"] == total
        put(history, "day 3/d.json", "day 3/e.json")
    assert hr.Store(url).epoch == 4
    assert open_store(url).list(layout.SPARK) == []
    rows = [line for file in sorted((tmp_path / "out").glob("part-*")) for line in file.read_text().splitlines()]
    assert len(rows) == 11
    _check_told(hr.Store(url))


def _check_told(store: hr.Store) -> None:
    """How far behind the history each epoch was; a run that has it listed late tells nothing before."""
    told = {manifest.epoch: manifest.behind["old"] for manifest in newest_manifests(store)}
    size = len('{"page": "a", "n": 100}\n')
    known = {
        0: Behind(2, "files", done=1, left_bytes=2 * size, done_bytes=size),
        1: Behind(1, "files", done=2, left_bytes=size, done_bytes=2 * size),
        2: Behind(0, "files", left_bytes=0),
        3: Behind(1, "files", done=1, left_bytes=size, done_bytes=size),
        4: Behind(0, "files", left_bytes=0),
    }
    assert all(each in (known[epoch], msgspec.structs.replace(each, counting=True)) for epoch, each in told.items())
    assert {epoch: told[epoch] for epoch in (2, 4)} == {epoch: known[epoch] for epoch in (2, 4)}
