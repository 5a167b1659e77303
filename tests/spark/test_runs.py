"""Whole programs on real Spark: what a user would see."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import BadRow, Fenced, FunctionFailed, Refused, StoreInUse

pytestmark = pytest.mark.spark

SECOND = 1_000_000


class Event(hr.Record):
    key: str
    at: hr.Timestamp
    n: int = 1


class Total(hr.Record):
    key: str
    n: int
    sum: int


class Sums(hr.Process[Event, Total, str]):
    count: hr.ValueState[int]
    sum: hr.ValueState[int]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Total]:
        self.count.set(n := self.count.get(0) + 1)
        self.sum.set(total := self.sum.get(0) + event.n)
        yield Total(ctx.key, n, total)


class Quiet(hr.Record):
    key: str
    at: hr.Timestamp


class WhenQuiet(hr.Process[Event, Quiet, str]):
    quiet: hr.Timer

    def on_event(self, event: Event, ctx: hr.Context[str]) -> None:
        self.quiet.set(event.at + hr.seconds(10))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Quiet]:
        yield Quiet(ctx.key, ctx.timestamp)


def events(count: int, keys: int = 7) -> list[Event]:
    return [Event(f"k{i % keys}", hr.Timestamp(i * SECOND), i) for i in range(count)]


def expected_totals(rows: list[Event]) -> dict[str, Total]:
    totals: dict[str, Total] = {}
    for row in rows:
        old = totals.get(row.key, Total(row.key, 0, 0))
        totals[row.key] = Total(row.key, old.n + 1, old.sum + row.n)
    return totals


def newest(rows: list[Total]) -> dict[str, Total]:
    return {row.key: row for row in sorted(rows, key=lambda row: row.n)}


def sums_app(
    rows: list[Event],
    sink: Any,
    *,
    per_epoch: int | None = None,
    fn: Callable[[Event], Event] | None = None,
    named: str | None = None,
) -> hr.App:
    app = hr.App("sums")
    stream = app.read("events", hr.source.items(rows, per_epoch=per_epoch), Event, time=Event.at)
    if fn is not None:
        stream = stream.map(fn, output=Event)
    sums = stream.key_by(Event.key).process(Sums())
    (sums if named is None else sums.named(named, was="sums")).write(sink)
    return app


def run(app: hr.App, spark: Any, store: Path, until: Any = "caught_up", **settings: Any) -> None:
    app.start(until=until, spark=spark, store=str(store), **{"parallelism": 2, "epoch": "100ms", **settings}).wait()


def test_state_is_kept_over_epochs_restarts_a_lost_spark_log_and_a_new_name(spark: Any, store_path: Path) -> None:
    rows, sink = events(120), hr.sink.collect()
    run(sums_app(rows[:40], sink, per_epoch=15), spark, store_path)
    assert newest(sink.rows) == expected_totals(rows[:40]), "over epochs"
    run(sums_app(rows[:70], sink), spark, store_path)
    assert newest(sink.rows) == expected_totals(rows[:70]), "over a restart"
    shutil.rmtree(store_path / "spark")
    run(sums_app(rows[:100], sink), spark, store_path)
    assert newest(sink.rows) == expected_totals(rows[:100]), "without Spark's log"
    run(sums_app(rows, sink, named="renamed"), spark, store_path)
    assert newest(sink.rows) == expected_totals(rows), "under another name"
    assert len(sink.rows) == len(rows), "nothing is read twice"


def test_parallelism_changes_at_any_restart(spark: Any, store_path: Path) -> None:
    rows, sink = events(200, keys=40), hr.sink.collect()
    for parallelism, upto in ((2, 60), (3, 110), (1, 150), (4, 200)):
        run(sums_app(rows[:upto], sink), spark, store_path, parallelism=parallelism)
        assert newest(sink.rows) == expected_totals(rows[:upto]), f"on {parallelism} shards"
    assert len(sink.rows) == len(rows)


def test_fresh_starts_over_and_lost_manifests_are_refused_in_words(spark: Any, store_path: Path) -> None:
    rows, sink = events(20), hr.sink.collect()
    run(sums_app(rows, hr.sink.collect()), spark, store_path)
    run(sums_app(rows, sink), spark, store_path, fresh=True)
    assert newest(sink.rows) == expected_totals(rows)
    shutil.rmtree(store_path / "manifests")
    with pytest.raises(Refused, match="no manifest"):
        run(sums_app(events(40), sink), spark, store_path)


def test_a_failing_function_is_reported_with_its_line_key_and_row(spark: Any, store_path: Path) -> None:
    def broken(event: Event) -> Event:
        if event.n == 13:
            raise ValueError("thirteen")
        return event

    rows, sink = events(40), hr.sink.collect()
    with pytest.raises(FunctionFailed) as caught:
        run(sums_app(rows, sink, fn=broken), spark, store_path)
    text = str(caught.value)
    assert "thirteen" in text
    assert "test_runs.py:" in text
    assert '"n":13' in text
    assert "py4j" not in text
    assert sink.rows == []
    run(sums_app(rows, sink, fn=lambda event: event), spark, store_path)
    assert newest(sink.rows) == expected_totals(rows), "the store is resumable after the fix"


def test_a_python_step_before_the_exchange_gives_rows_and_errors(spark: Any, store_path: Path) -> None:
    def twice(event: Event) -> Event:
        if event.n % 10 == 3:
            raise ValueError("three")
        return event.replace(n=event.n * 2)

    good, bad = hr.sink.collect(), hr.sink.collect()
    app = hr.App("sums")
    stream = app.read("events", hr.source.items(events(40)), Event).map(twice, output=Event)
    stream.errors.write(bad)
    stream.key_by(Event.key).process(Sums()).write(good)
    run(app, spark, store_path)
    assert newest(good.rows) == expected_totals([row.replace(n=row.n * 2) for row in events(40) if row.n % 10 != 3])
    assert sorted(json.loads(row.row)["n"] for row in bad.rows) == [3, 13, 23, 33]


def json_app(folder: Path, sink: Any, errors: Any = None) -> hr.App:
    app = hr.App("files")
    stream = app.read("events", hr.source.files(str(folder)), Event, time=Event.at)
    if errors is not None:
        stream.errors.write(errors)
    stream.key_by(Event.key).process(Sums()).write(sink)
    return app


def test_a_bad_row_stops_the_job_with_file_and_line(spark: Any, store_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"key":"a","at":"2024-01-01T00:00:00Z","n":1}\n{"key":"b","n":"x"}\n')
    with pytest.raises(BadRow) as caught:
        run(json_app(folder, hr.sink.collect()), spark, store_path)
    assert "a.json:2" in str(caught.value)


def test_new_files_are_picked_up_and_their_bad_rows_go_to_errors(spark: Any, store_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good, bad = hr.sink.collect(), hr.sink.collect()
    for name in ("a", "b"):
        row = json.dumps({"key": name, "at": "2024-01-01T00:00:00Z"})
        (folder / f"{name}.json").write_text(f"{row}\nnot json {name}\n")
        run(json_app(folder, good, bad), spark, store_path)
    assert [row.key for row in good.rows] == ["a", "b"]
    assert [bytes(row.row).strip() for row in bad.rows] == [b"not json a", b"not json b"]


def quiet_app(rows: list[Event], sink: Any, where: str | None = None, per_epoch: int | None = None) -> hr.App:
    app = hr.App("quiet")
    stream = app.read("events", hr.source.items(rows, per_epoch=per_epoch), Event, time=Event.at)
    if where is not None:
        stream = stream.where(where)
    stream.key_by(Event.key).process(WhenQuiet()).write(sink)
    return app


def test_a_timer_fires_in_the_epoch_whose_data_made_it_due(spark: Any, store_path: Path) -> None:
    sink = hr.sink.collect()
    rows = [Event("a", hr.Timestamp(0)), Event("b", hr.Timestamp(11 * SECOND))]
    run(quiet_app(rows, sink), spark, store_path)
    assert sink.rows == [Quiet("a", hr.Timestamp(10 * SECOND))]
    assert hr.Store(str(store_path)).epochs() == [0]


def test_drained_input_fires_everything_and_is_final(spark: Any, store_path: Path) -> None:
    sink = hr.sink.collect()
    # The newest row is hidden by a filter, and its time is learned by the last epoch.
    run(quiet_app(events(20, keys=3), sink, where="n < 19"), spark, store_path, until="drained")
    assert sorted(row.key for row in sink.rows)[-1] == "k2"
    fired = len(sink.rows)
    run(quiet_app(events(30, keys=3), sink, where="n < 19"), spark, store_path, until="drained")
    assert len(sink.rows) == fired, "a drained store has ended"


def test_a_selective_where_does_not_stop_time(spark: Any, store_path: Path) -> None:
    sink = hr.sink.collect()
    rows = [Event("a", hr.Timestamp(0), 1)] + [Event("b", hr.Timestamp(i * 20 * SECOND), 0) for i in range(1, 4)]
    run(quiet_app(rows, sink, where="n > 0", per_epoch=1), spark, store_path)
    assert sink.rows == [Quiet("a", hr.Timestamp(10 * SECOND))]


def test_what_a_filter_hid_at_the_end_of_a_run_moves_time_in_the_next(spark: Any, store_path: Path) -> None:
    sink = hr.sink.collect()
    rows = [Event("a", hr.Timestamp(0), 1), Event("b", hr.Timestamp(20 * SECOND), 0)]
    run(quiet_app(rows, sink, where="n > 0"), spark, store_path)
    assert sink.rows == []
    run(quiet_app(rows, sink, where="n > 0"), spark, store_path)
    assert sink.rows == [Quiet("a", hr.Timestamp(10 * SECOND))], "though it read nothing new"
    run(quiet_app(rows, sink, where="n > 0"), spark, store_path, fresh=True)
    run(quiet_app(rows, sink, where="n > 0"), spark, store_path, fresh=True)
    assert len(sink.rows) == 1, "what is begun anew knows nothing of the run before"


class Reminder(hr.Process[Event, Quiet, str]):
    soon: hr.WallTimer

    def on_event(self, event: Event, ctx: hr.Context[str]) -> None:
        self.soon.set(ctx.now + hr.milliseconds(300))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Quiet]:
        yield Quiet(ctx.key, ctx.timestamp)


def wait_until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def reminder_app(sink: Any, count: int = 3) -> hr.App:
    app = hr.App("reminders")
    app.read("events", hr.source.items(events(count)), Event).key_by(Event.key).process(Reminder()).write(sink)
    return app


def test_wall_clock_timers_fire_with_no_input_flowing_and_overdue_ones_after_a_restart(
    spark: Any, store_path: Path
) -> None:
    sink = hr.sink.collect()
    run(reminder_app(sink), spark, store_path)
    assert sink.rows == []
    time.sleep(0.4)  # until they are overdue
    run(reminder_app(sink), spark, store_path)
    assert sorted(row.key for row in sink.rows) == ["k0", "k1", "k2"], "also in a run that finds nothing to read"
    running = reminder_app(sink, 5).start(spark=spark, store=str(store_path), parallelism=2, epoch="100ms")
    wait_until(lambda: len(sink.rows) == 5)
    running.stop()
    assert sorted(row.key for row in sink.rows) == ["k0", "k1", "k2", "k3", "k4"]


def test_a_second_driver_is_refused_or_takes_over(spark: Any, store_path: Path) -> None:
    first = reminder_app(hr.sink.collect()).start(spark=spark, store=str(store_path), parallelism=2, epoch="100ms")
    wait_until(lambda: first.epoch >= 0)
    with pytest.raises(StoreInUse, match="another driver"):
        run(reminder_app(hr.sink.collect()), spark, store_path)
    run(reminder_app(hr.sink.collect()), spark, store_path, takeover=True)
    with pytest.raises(Fenced):
        first.wait(120)


def test_two_keyed_steps_run_in_one_job(spark: Any, store_path: Path) -> None:
    sink = hr.sink.collect()
    app = hr.App("two")
    stream = app.read("events", hr.source.items(events(100), per_epoch=20), Event)
    sums = stream.key_by(Event.key).process(Sums())
    by_count = sums.map(lambda total: Event(f"c{total.n}", hr.Timestamp(0), 1), output=Event)
    by_count.key_by(Event.key).process(Sums()).named("again").write(sink)
    run(app, spark, store_path)
    assert newest(sink.rows)["c1"] == Total("c1", 7, 7)
    assert len(sink.rows) == 100


def test_two_sources_meet_in_one_step(spark: Any, store_path: Path) -> None:
    sink = hr.sink.collect()
    app = hr.App("union")
    left = app.read("left", hr.source.items(events(30)), Event)
    right = app.read("right", hr.source.items(events(20)), Event)
    left.union(right).key_by(Event.key).process(Sums()).write(sink)
    run(app, spark, store_path)
    assert newest(sink.rows) == expected_totals(events(30) + events(20)) or len(sink.rows) == 50
    assert {key: total.n for key, total in newest(sink.rows).items()} == {
        key: total.n for key, total in expected_totals(events(30) + events(20)).items()
    }
