"""A program on real Spark whose store is in an object store: Spark itself knows nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
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
hits.key_by(Hit.page).process(Count()).write(hr.sink.files("out"))
"""


def test_a_program_on_an_object_store_runs_ends_and_resumes(bucket: str, tmp_path: Path) -> None:
    program, url = tmp_path / "hits.py", f"s3://{bucket}/hits"
    for upto, total in ((5, 10), (7, 21)):
        program.write_text(PROGRAM.replace("UPTO", str(upto)))
        done = run_headrace("run", program, "--store", url, "--until", "caught_up", "--plain", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert hr.Store(url).state("count.total", int)["a"] == total
    assert hr.Store(url).epoch == 2
    assert open_store(url).list(layout.SPARK) == []
    rows = [line for file in sorted((tmp_path / "out").glob("part-*")) for line in file.read_text().splitlines()]
    assert len(rows) == 6
