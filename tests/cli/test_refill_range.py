"""`headrace refill --from --into`: what past epochs gave to an output that appends is in a new target, once."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.cli.loading import load_app
from headrace.model.crash import Crash, planned
from headrace.state import layout
from headrace.state.manifest import encode_manifest, read_manifest
from headrace.state.store import LocalStore
from tests.cli.calling import call
from tests.replay.replayed import as_read

NUMBERS = count()
PROGRAM = """
import headrace as hr

OUT = "FOLDER"
T = hr.timestamp("2024-01-01T12:00")


class Sale(hr.Record):
    shop: str
    at: hr.Timestamp
    cents: int


class Large(hr.Process[Sale, Sale, str]):
    total: hr.ValueState[int]
    late: hr.Timers

    def on_event(self, sale, ctx):
        self.total.set(self.total.get(0) + sale.cents)
        self.late.add(sale.at + hr.minutes(3))
        yield sale.replace(cents=self.total.get())

    def on_timer(self, timer, ctx):
        yield Sale(ctx.key, ctx.timestamp, -self.total.get())


ROWS = [Sale(f"shop {n % 3}", T + hr.minutes(n), n) for n in range(48)]
app = hr.App("shop")
sales = app.read("sales", hr.source.items(ROWS), Sale, time=Sale.at)
by_shop = sales.where("cents >= 0").key_by(Sale.shop)
large = by_shop.process(Large()).named("large")
large.write(hr.sink.files(OUT + "/large", format="json"), name="large")
large.key_by(Sale.cents).aggregate(n=hr.count()).named("behind").write(hr.sink.discard(), name="behind")
tens = by_shop.window(hr.tumbling("10m")).aggregate(n=hr.count(), cents=hr.sum("cents")).named("tens")
tens.write(hr.sink.files(OUT + "/tens", format="parquet"), name="tens")
sales.write(hr.sink.files(OUT + "/raw", format="csv", roll_epochs=4), name="raw")
by_shop.latest().named("newest").write(hr.sink.call(lambda rows, epoch: None), name="called")
"""
PER_EPOCH = 8
EPOCHS = 6


class Job:
    """A job whose input can be read again, and what it gave out."""

    def __init__(self, folder: Path, program: str = PROGRAM) -> None:
        self.out = folder / "out"
        self.store = folder / "store"
        name = f"refilled_range_{next(NUMBERS)}"
        self.file = folder / f"{name}.py"
        self.text = program.replace("FOLDER", str(self.out))
        self.file.write_text(self.text)
        app = load_app(str(self.file))
        self.module = sys.modules[name]
        with hr.testing.Harness(app, store=self.store, sinks=True, start="2024-01-01T12:00") as h:
            self.harness = h
            for first in range(0, len(self.module.ROWS), PER_EPOCH):
                h.push(self.module.sales, *self.module.ROWS[first : first + PER_EPOCH])
                h.clock_us += 60_000_000
                h.epoch()
        self.files = as_read(self.store)

    def refill(self, output: str, *arguments: object) -> Any:
        return call("refill", self.file, output, "--store", self.store, *arguments)

    def rows(self, folder: Path, output: str, first: int = 0, last: int = EPOCHS) -> list[str]:
        """The lines, or rows, of the files of some epochs, in order."""
        lines: list[str] = []
        for path in sorted(folder.rglob("part-*")):
            if first <= int(path.name.split("-")[2]) <= last:
                if path.suffix == ".parquet":
                    import pyarrow.parquet as pq

                    lines += map(str, pq.read_table(path).to_pylist())
                else:
                    lines += path.read_text().splitlines()[path.suffix == ".csv" :]
        return sorted(lines)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("output", ["large", "tens"])
def test_a_range_is_written_as_the_job_gave_it_out(job: Job, output: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    done = job.refill(output, "--from", 2, "--to", 4, "--into", new)
    assert done.exit_code == 0, done.stderr
    rows = job.rows(new, output)
    assert rows == job.rows(job.out / output, output, 2, 4) != []
    assert f"{len(rows)} rows of 3 epochs written" in done.stdout
    assert f"epochs 2 to 4 are there: {len(rows)} rows, and the target shows as many" in done.stdout


def test_all_epochs_are_written_from_the_first_on(job: Job, tmp_path: Path) -> None:
    done = job.refill("raw", "--from", 0, "--into", tmp_path / "new", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.pop("target").startswith("files ")
    assert told == {
        "output": "raw", "from": 0, "to": 5, "rows": 48, "written": True, "epochs_written": 6, "rows_written": 48,
        "unchecked_epochs": [], "epochs_missing": 0, "rows_counted": 48, "agrees": True,
    }  # fmt: skip
    assert job.rows(tmp_path / "new", "raw") == job.rows(job.out / "raw", "raw")


def test_the_command_repeated_writes_nothing_twice_and_a_later_end_goes_on(job: Job, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert job.refill("large", "--from", 1, "--to", 2, "--into", new).exit_code == 0
    files = {path: path.stat().st_mtime_ns for path in new.rglob("part-*")}
    again = job.refill("large", "--from", 1, "--to", 2, "--into", new)
    assert again.exit_code == 0 and "nothing to write" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in new.rglob("part-*")} == files
    assert "3 epochs written" in job.refill("large", "--from", 1, "--into", new).stdout
    assert job.rows(new, "large") == job.rows(job.out / "large", "large", 1)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_refill_that_died_behind_an_epoch_is_completed_by_the_next(job: Job, tmp_path: Path, epoch: int) -> None:
    new = tmp_path / "new"

    def die(point: str, at: int) -> None:
        if (point, at) == ("refilling", epoch):
            raise Crash(point)

    arguments = ("refill", job.file, "large", "--store", job.store, "--from", 1, "--into", new)
    with planned(die), pytest.raises(Crash):
        call(*arguments, catch_exceptions=False)
    assert job.rows(new, "large") == job.rows(job.out / "large", "large", 1, epoch)
    found = job.refill("large", "--from", 1, "--into", new, "--verify")
    assert found.exit_code == 1 and "not written yet" in found.stdout
    done = call(*arguments)
    assert done.exit_code == 0, done.stderr
    assert job.rows(new, "large") == job.rows(job.out / "large", "large", 1)


def test_verify_alone_compares(job: Job, tmp_path: Path) -> None:
    new = tmp_path / "new"
    found = job.refill("large", "--from", 1, "--into", new, "--verify")
    assert found.exit_code == 4 and "nothing was filled into this target yet" in found.stderr
    assert not new.exists()
    job.refill("large", "--from", 1, "--into", new)
    assert job.refill("large", "--from", 1, "--into", new, "--verify").exit_code == 0
    next(iter(sorted(new.rglob("part-*")))).unlink()
    found = job.refill("large", "--from", 1, "--into", new, "--verify")
    assert found.exit_code == 1 and "but the target shows" in found.stdout


def test_state_that_was_edited_between_counts_as_it_was(tmp_path: Path) -> None:
    """Each epoch begins with the state of production, which has the edit."""
    job = Job(tmp_path)
    app, module = load_app(str(job.file)), job.module
    with hr.Editor(str(job.store), why="a test") as edit:
        edit.set("large.total", "shop 1", 1000)
    del app, module
    done = job.refill("large", "--from", 4, "--into", tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    assert job.rows(tmp_path / "new", "large") == job.rows(job.out / "large", "large", 4)


# --- refusals


@pytest.mark.parametrize("where", ["large", "large/", "raw", "raw/inside", "."])
def test_a_place_that_the_job_writes_to_is_refused(job: Job, where: str) -> None:
    done = job.refill("large", "--from", 1, "--into", job.out / where if where != "large/" else f"{job.out}/large/")
    assert done.exit_code == (4 if where != "." else 4), done.stdout
    assert "the job itself writes there" in done.stderr


def test_a_target_grows_at_its_end_only(job: Job, tmp_path: Path) -> None:
    assert job.refill("large", "--from", 2, "--to", 3, "--into", tmp_path / "new").exit_code == 0
    done = job.refill("large", "--from", 1, "--to", 3, "--into", tmp_path / "new")
    assert done.exit_code == 4 and "go on with --from 2" in done.stderr


def test_a_target_that_has_rows_of_others_is_refused(job: Job, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "part-0-000000000003-large-00000.json").write_text('{"shop": "x"}\n')
    done = job.refill("large", "--from", 2, "--into", other)
    assert done.exit_code == 4 and "1 rows that no refill" in done.stderr


def test_another_program_and_other_input_are_refused_before_a_row_is_written(job: Job, tmp_path: Path) -> None:
    job.file.write_text(job.text.replace("minutes(3)", "minutes(4)"))
    done = job.refill("large", "--from", 2, "--into", tmp_path / "new")
    assert done.exit_code == 4 and "of another program" in done.stderr
    assert not list((tmp_path / "new").rglob("part-*"))


def test_an_epoch_that_comes_to_another_number_of_rows_is_refused(job: Job, tmp_path: Path) -> None:
    place = layout.ManifestName(0, 3)
    manifest = read_manifest(job.files, *place)
    parts = [msgspec.structs.replace(part, rows=part.rows + 1) for part in manifest.outputs["large"]]
    changed = msgspec.structs.replace(manifest, outputs={**manifest.outputs, "large": parts})
    job.files.delete(layout.manifest(*place))
    job.files.create(layout.manifest(*place), encode_manifest(changed))
    done = job.refill("large", "--from", 2, "--into", tmp_path / "new")
    assert done.exit_code == 4 and "epoch 3 comes to other rows than it did" in done.stderr
    assert job.rows(tmp_path / "new", "large") == job.rows(job.out / "large", "large", 2, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("large", "--from", 3), 2, "--from EPOCH --into TARGET"),
        (("large", "--into", "x"), 2, "--from EPOCH --into TARGET"),
        (("large", "--from", 5, "--to", 3, "--into", "x"), 4, "to the same or a later one"),
        (("large", "--from", 3, "--to", 90, "--into", "x"), 4, "90"),
        (("larg", "--from", 3, "--into", "x"), 1, "did you mean large?"),
        (("called", "--from", 3, "--into", "x"), 1, "cannot be written to another target"),
        (("tens", "--from", 3, "--into", "x", "--delete-extra"), 2, "--delete-extra"),
        (("tens",), 1, "--from EPOCH --into TARGET"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(job: Job, arguments: Any, code: int, words: str) -> None:
    done = job.refill(*arguments)
    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr


def test_a_range_of_which_an_epoch_is_swept_is_refused(job: Job, tmp_path: Path) -> None:
    LocalStore(job.store, durable=False).delete(layout.manifest(0, 1))
    done = job.refill("large", "--from", 1, "--into", tmp_path / "new")
    assert done.exit_code == 4 and "begin with epoch" in done.stderr


def test_a_program_that_asks_other_systems_is_refused(tmp_path: Path) -> None:
    asking = PROGRAM + (
        "\nasync def ask(sale):\n    return sale\n\n\n"
        'sales.map_async(ask, timeout="1s").write(hr.sink.discard(), name="asked")\n'
    )
    job = Job(tmp_path, asking)
    done = job.refill("large", "--from", 1, "--into", tmp_path / "new")
    assert done.exit_code == 4 and "asks other systems" in done.stderr
