"""`headrace refill --from --into`: what past epochs gave to an output that appends is in a new target, once."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import headrace as hr
from headrace.cli.loading import load_app
from headrace.model.crash import Crash, planned
from headrace.model.retention import parse_retention
from headrace.state import layout
from headrace.state.manifest import encode_manifest, read_manifest, read_state
from headrace.state.savepoints import list_savepoints
from headrace.state.store import LocalStore
from headrace.state.sweep import sweep_store
from tests.cli.calling import call
from tests.replay.replayed import as_read
from tests.services.messages import read_messages
from tests.services.redis import Redis
from tests.sinks.postgres_tables import query

if TYPE_CHECKING:
    from tests.services.kafka import Broker

NUMBERS = count()
Between = Callable[[hr.testing.Harness, int], "hr.testing.Harness | None"]
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
PLAIN = """
import headrace as hr

OUT = "FOLDER"
T = hr.timestamp("2024-01-01T12:00")


class Sale(hr.Record):
    shop: str
    at: hr.Timestamp
    cents: int


class Noted(hr.Process[Sale, Sale, str]):
    rows: hr.ValueState[int]

    def on_event(self, sale, ctx):
        self.rows.set(self.rows.get(0) + 1)
        yield sale.replace(shop=f"{sale.shop} {self.rows.get()}")


ROWS = [Sale(f"shop {n % 3}", T + hr.minutes(n), n) for n in range(48)]
app = hr.App("shop")
sales = app.read("sales", hr.source.items(ROWS), Sale, time=Sale.at)
sales.write(hr.sink.files(OUT + "/raw", format="json"), name="raw")
noted = sales.key_by(Sale.shop).process(Noted()).named("noted")
noted.write(hr.sink.files(OUT + "/sums", format="json"), name="sums")
"""
PER_EPOCH = 8
EPOCHS = 6


class Job:
    """A job whose input can be read again, and what it gave out."""

    def __init__(self, folder: Path, program: str = PROGRAM, between: Between = lambda h, rows: None) -> None:
        """``between``: called behind each epoch, with how many rows were read up to then."""
        self.out = folder / "out"
        self.store = folder / "store"
        name = f"refilled_range_{next(NUMBERS)}"
        self.file = folder / f"{name}.py"
        self.text = program.replace("FOLDER", str(self.out))
        self.file.write_text(self.text)
        self.app = load_app(str(self.file))
        self.module = sys.modules[name]
        rows = self.module.ROWS
        h = self.start()
        for first in range(0, len(rows), PER_EPOCH):
            h.push(self.module.sales, *rows[first : first + PER_EPOCH])
            h.clock_us += 60_000_000
            h.epoch()
            h = between(h, first + PER_EPOCH) or h
        h.close()
        self.files = as_read(self.store)

    def start(self, **how: Any) -> hr.testing.Harness:
        return hr.testing.Harness(self.app, store=self.store, sinks=True, **{"start": "2024-01-01T12:00", **how})

    def refill(self, output: str, *arguments: object) -> Any:
        return call("refill", self.file, output, "--store", self.store, *arguments)

    def rows(self, folder: Path, first: int = 0, last: int = EPOCHS) -> list[str]:
        """The lines, or rows, of the files of some epochs, in order."""
        lines: list[str] = []
        for path in sorted(folder.glob("part-*")):
            if first <= int(path.name.split("-")[2]) <= last:
                if path.suffix == ".parquet":
                    import pyarrow.parquet as pq

                    lines += map(str, pq.read_table(path).to_pylist())
                else:
                    lines += path.read_text().splitlines()[path.suffix == ".csv" :]
        return sorted(lines)

    def cents(self, row: str | bytes) -> int:
        return int(json.loads(row)["cents"])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("output", ["large", "tens"])
def test_a_range_is_written_as_the_job_gave_it_out(job: Job, output: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    done = job.refill(output, "--from", 2, "--to", 4, "--into", new)
    assert done.exit_code == 0, done.stderr
    rows = job.rows(new)
    assert rows == job.rows(job.out / output, 2, 4) != []
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
    assert job.rows(tmp_path / "new") == job.rows(job.out / "raw")


def test_the_command_repeated_writes_nothing_twice_and_a_later_end_goes_on(job: Job, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert job.refill("large", "--from", 1, "--to", 2, "--into", new).exit_code == 0
    files = {path: path.stat().st_mtime_ns for path in new.rglob("part-*")}
    again = job.refill("large", "--from", 1, "--to", 2, "--into", new)
    assert again.exit_code == 0 and "nothing to write" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in new.rglob("part-*")} == files
    assert "3 epochs written" in job.refill("large", "--from", 1, "--into", new).stdout
    assert job.rows(new) == job.rows(job.out / "large", 1)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_refill_that_died_behind_an_epoch_is_completed_by_the_next(job: Job, tmp_path: Path, epoch: int) -> None:
    new = tmp_path / "new"

    def die(point: str, at: int) -> None:
        if (point, at) == ("refilling", epoch):
            raise Crash(point)

    arguments = ("refill", job.file, "large", "--store", job.store, "--from", 1, "--into", new)
    with planned(die), pytest.raises(Crash):
        call(*arguments, catch_exceptions=False)
    assert job.rows(new) == job.rows(job.out / "large", 1, epoch)
    found = job.refill("large", "--from", 1, "--into", new, "--verify")
    assert found.exit_code == 1 and "not written yet" in found.stdout
    done = call(*arguments)
    assert done.exit_code == 0, done.stderr
    assert job.rows(new) == job.rows(job.out / "large", 1)


@pytest.mark.parametrize(("output", "point"), [("large", "between_files"), ("raw", "outputs_staged")])
def test_a_refill_that_died_within_an_epoch_is_completed_by_the_next(tmp_path: Path, output: str, point: str) -> None:
    """Also where files of several epochs are put together."""
    job = Job(tmp_path, PROGRAM.replace("n % 3", "n % 7"))

    def die(reached: str, at: int) -> None:
        if (reached, at) == (point, 4):
            raise Crash(point)

    arguments = ("refill", job.file, output, "--store", job.store, "--from", 0, "--into", tmp_path / "new")
    with planned(die), pytest.raises(Crash):
        call(*arguments, catch_exceptions=False)
    done = call(*arguments)
    assert done.exit_code == 0 and "the target shows as many" in done.stdout, done.stderr
    assert job.rows(tmp_path / "new") == job.rows(job.out / output) != []


def test_a_job_that_sweeps_meanwhile_leaves_the_range_alone(job: Job, tmp_path: Path) -> None:
    """Its driver keeps two epochs; the range is older, and what it is read with."""
    kept: list[set[str]] = []
    pins: list[set[str]] = []

    def sweep(point: str, epoch: int) -> None:
        if point == "refilling":
            store = LocalStore(job.store)
            for _ in range(2):
                # What the first lets go of the second deletes.
                sweep_store(store, read_state(store, 0, 5), fence=9, retain=parse_retention(2))
            kept.append({path[-7:-5] for path in store.list("manifests/0")})
            pins.append({point.name[-1] for point in list_savepoints(store)})

    with planned(sweep):
        done = job.refill("large", "--from", 2, "--to", 4, "--into", tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    assert job.rows(tmp_path / "new") == job.rows(job.out / "large", 2, 4) != []
    assert {"03", "04"} <= kept[0] and "04" in kept[1], "what is not written yet"
    assert pins == [set("1234"), set("234"), set("34")], "each until the one behind it has been run"
    assert list_savepoints(LocalStore(job.store)) == []


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


def test_state_that_was_edited_in_between_counts_as_it_was(tmp_path: Path) -> None:
    """Each epoch begins with the state of production, which has the edit."""

    def edit(h: hr.testing.Harness, rows: int) -> None:
        if rows == 3 * PER_EPOCH:
            with h.edit() as edit:
                edit.set("large.total", "shop 1", 1000)

    job = Job(tmp_path, between=edit)
    done = job.refill("large", "--from", 1, "--into", tmp_path / "new")
    assert done.exit_code == 0 and "6 epochs written" in done.stdout, done.stderr
    rows = job.rows(tmp_path / "new")
    assert rows == job.rows(job.out / "large", 1) and any("10" in row.partition("cents")[2] for row in rows)


def test_epochs_of_other_numbers_of_shards_follow_each_other(tmp_path: Path) -> None:
    def rescale(h: hr.testing.Harness, rows: int) -> hr.testing.Harness | None:
        if rows not in (2 * PER_EPOCH, 4 * PER_EPOCH):
            return None
        h.close()
        clock = f"2024-01-01T12:{rows // PER_EPOCH:02d}"
        return hr.testing.Harness(app(), store=h.store, sinks=True, start=clock, parallelism=3 if rows < 20 else 1)

    def app() -> hr.App:
        return load_app(str(next(tmp_path.glob("refilled_range_*.py"))))

    job = Job(tmp_path, between=rescale)
    for output in ("large", "tens"):
        done = job.refill(output, "--from", 1, "--into", tmp_path / output)
        assert done.exit_code == 0, done.stderr
        assert job.rows(tmp_path / output) == job.rows(job.out / output, 1)


def test_behind_a_rewind_the_line_that_goes_on_counts(tmp_path: Path) -> None:
    """What was held back is given out here, and cannot be compared."""

    def go_back(h: hr.testing.Harness, rows: int) -> None:
        if rows == 4 * PER_EPOCH:
            h.rewind(1, repeat="raw", hold="sums")
            h.epoch()

    job = Job(tmp_path, PLAIN, between=go_back)
    done = job.refill("raw", "--from", 1, "--into", tmp_path / "raw")
    assert done.exit_code == 0, done.stderr
    assert job.rows(tmp_path / "raw") == [row for row in job.rows(job.out / "raw") if job.cents(row) >= PER_EPOCH]
    done = job.refill("sums", "--from", 1, "--into", tmp_path / "sums")
    assert done.exit_code == 0, done.stderr
    assert "since it held that back: epoch 2" in done.stdout
    assert job.rows(tmp_path / "sums") == [row for row in job.rows(job.out / "sums") if job.cents(row) >= PER_EPOCH]


# --- other targets


def test_a_table_of_postgres_is_filled_once(tmp_path: Path, postgres: Any) -> None:
    dsn = str(postgres.database())
    job = Job(tmp_path, PLAIN + f'sales.write(hr.sink.postgres("raw", dsn="{dsn}"), name="table")\n')
    for _ in range(2):
        done = job.refill("table", "--from", 2, "--into", "again")
        assert done.exit_code == 0, done.stderr
    assert "and the target shows as many" in done.stdout
    assert query(dsn, "SELECT * FROM again ORDER BY at") == query(
        dsn, "SELECT * FROM raw WHERE cents >= 16 ORDER BY at"
    )
    query(dsn, "INSERT INTO again SELECT * FROM raw WHERE cents = 1")
    assert job.refill("table", "--from", 2, "--into", "again", "--verify").exit_code == 1
    assert "the job itself writes there" in job.refill("table", "--from", 2, "--into", "public.raw").stderr


def test_a_stream_of_redis_is_filled_once(tmp_path: Path, redis_server: Redis) -> None:
    sink = f'hr.sink.redis(url="{redis_server.url}", key="{{shop}}:{tmp_path.name}", as_="stream")'
    job = Job(tmp_path, PLAIN + f'sales.write({sink}, name="stream")\n')
    for _ in range(2):
        done = job.refill("stream", "--from", 2, "--into", f"again:{tmp_path.name}")
        assert done.exit_code == 0, done.stderr
    assert "cannot be counted" in done.stdout
    with redis_server.client() as client:
        entries = client.xrange(f"again:{tmp_path.name}")
    assert [int(entry[b"cents"]) for _, entry in entries] == list(range(16, 48))


def test_a_topic_of_kafka_is_filled_once(tmp_path: Path, kafka: Broker) -> None:
    """Also where the job's producer has a name of its own: it is not shut out."""
    topic, again = (kafka.topic(f"refill-{uuid.uuid4().hex[:8]}-{name}") for name in ("raw", "again"))
    sink = f'hr.sink.kafka("{topic}", brokers="{kafka.bootstrap}", transactional_id="{topic}")'
    job = Job(tmp_path, PLAIN + f'sales.write({sink}, name="topic")\n')
    for _ in range(2):
        done = job.refill("topic", "--from", 2, "--into", again)
        assert done.exit_code == 0, done.stderr
    assert [job.cents(message.value()) for message in read_messages(kafka.bootstrap, again)] == list(range(16, 48))
    assert "the job itself writes there" in job.refill("topic", "--from", 2, "--into", topic).stderr


def test_a_table_of_delta_is_filled_once(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    job = Job(tmp_path, PLAIN + 'sales.write(hr.sink.delta(OUT + "/delta"), name="delta")\n')
    for _ in range(2):
        done = job.refill("delta", "--from", 2, "--into", tmp_path / "again")
        assert done.exit_code == 0, done.stderr
    cents = deltalake.DeltaTable(str(tmp_path / "again")).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(cents) == list(range(16, 48))


# --- refusals


@pytest.mark.parametrize("where", ["large", "large/", "raw", "raw/inside", "."])
def test_a_place_that_the_job_writes_to_is_refused(job: Job, where: str) -> None:
    done = job.refill("large", "--from", 1, "--into", job.out / where if where != "large/" else f"{job.out}/large/")
    assert done.exit_code == 4, done.stdout
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
    assert done.exit_code == 4 and "1 row that no refill" in done.stderr


def test_another_program_is_refused_before_a_row_is_written(job: Job, tmp_path: Path) -> None:
    job.file.write_text(job.text.replace('tumbling("10m")', 'tumbling("1h")'))
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
    assert job.rows(tmp_path / "new") == job.rows(job.out / "large", 2, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("large", "--from", 3), 2, "a range of epochs goes to a new target"),
        (("large", "--into", "x"), 2, "a range of epochs goes to a new target"),
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
        "\nasync def ask(sale: Sale) -> Sale:\n    return sale\n\n\n"
        'sales.map_async(ask, timeout="1s").write(hr.sink.discard(), name="asked")\n'
    )
    job = Job(tmp_path, asking)
    done = job.refill("large", "--from", 1, "--into", tmp_path / "new")
    assert done.exit_code == 4 and "asks other systems" in done.stderr
