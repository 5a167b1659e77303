"""The harness: pushing, epochs, clocks, taking, state, counters, restarts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed, Refused, SinkFailed, StoreInUse
from headrace.model.order import EpochLimits
from headrace.testing import Harness


class Tap(hr.Record):
    user: str
    at: hr.Timestamp
    n: int = 1


class Said(hr.Record):
    user: str
    what: str


class Mean(hr.Aggregator[int, tuple[int, int], float]):
    def zero(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, acc: tuple[int, int], x: int) -> tuple[int, int]:
        return (acc[0] + x, acc[1] + 1)

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return (a[0] + b[0], a[1] + b[1])

    def result(self, acc: tuple[int, int]) -> float:
        return acc[0] / acc[1]


class Keeper(hr.Process[Tap, Said, str]):
    """One state of each kind."""

    total: hr.ValueState[int]
    newest: hr.ValueState[Tap]
    trail: hr.ListState[Tap]
    by_n: hr.MapState[int, Tap]
    most: hr.ReducingState[int] = hr.state(reduce=max)
    mean: hr.AggregatingState[int, float] = hr.state(aggregator=Mean())
    quiet: hr.Timer
    many: hr.Timers
    wall: hr.WallTimer
    big: hr.Side[Tap]
    seen: hr.Counter

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Said]:
        self.total.set(self.total.get(0) + event.n)
        self.newest.set(event)
        self.trail.append(event)
        self.by_n[event.n] = event
        self.most.add(event.n)
        self.mean.add(event.n)
        self.quiet.set(event.at + hr.minutes(1))
        self.many.add(event.at + hr.minutes(2))
        self.wall.set(ctx.now + hr.minutes(3))
        self.seen.inc()
        if event.n > 5:
            self.big.emit(event)
        yield Said(ctx.key, f"{self.total.get()}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, timer.name)


class Program:
    def __init__(self, *, out_of_order: str = "0s") -> None:
        self.app = hr.App("taps")
        self.taps = self.app.read("taps", hr.source.items([]), Tap, time=Tap.at, out_of_order=out_of_order)
        self.kept = self.taps.key_by(Tap.user).process(Keeper())
        self.big = self.kept.side(Keeper.big)

    def harness(self, **options: Any) -> Harness:
        return Harness(self.app, start="2024-01-01T12:00", **options)


def said(rows: list[Said]) -> list[tuple[str, str]]:
    return sorted((row.user, row.what) for row in rows)


# --- time


def test_at_gives_times_of_the_day_of_the_start_and_whole_timestamps() -> None:
    with Program().harness() as h:
        noon = hr.timestamp("2024-01-01T12:00Z")
        assert h.at("12:00") == h.at("12:00:00") == h.at("2024-01-01T12:00") == noon
        assert h.at("12:00:01.5") == noon + hr.milliseconds(1500)
        assert h.at("00:00") == hr.timestamp("2024-01-01T00:00Z")
        assert h.at("24:00") == hr.timestamp("2024-01-02T00:00Z")
        assert h.clock_us == noon


@pytest.mark.parametrize("text", ["noon", "12", "12:0:0", "25:00:00:00", "12:60", "12:00:60", ""])
def test_at_refuses_what_is_no_time(text: str) -> None:
    with Program().harness() as h, pytest.raises(hr.ProgramError, match="invalid time of day"):
        h.at(text)


def test_rows_move_the_watermark_as_in_production() -> None:
    program = Program(out_of_order="10s")
    with program.harness() as h:
        h.push(program.taps, Tap("a", h.at("12:00:00")))
        h.epoch()
        h.push(program.taps, Tap("b", h.at("12:01:10")))
        h.epoch()
        assert said(h.take(program.kept)) == [("a", "1"), ("b", "1")]
        h.push(program.taps, Tap("b", hr.Timestamp(h.at("12:01:10") + 1)))
        h.epoch()
        assert said(h.take(program.kept)) == [("a", "quiet"), ("b", "2")]


def test_a_watermark_set_by_hand_fires_timers_and_never_goes_back() -> None:
    program = Program()
    with program.harness() as h:
        h.push(program.taps, Tap("a", h.at("12:00:00")))
        h.epoch(watermark="12:01:00")
        assert said(h.take(program.kept)) == [("a", "1"), ("a", "quiet")]
        h.epoch(watermark="12:00:10")
        h.push(program.taps, Tap("a", h.at("12:00:50")))
        h.epoch()
        assert h.counters(program.kept)["late"] == 1


def test_the_wall_clock_moves_only_when_told() -> None:
    program = Program()
    with program.harness() as h:
        h.push(program.taps, Tap("a", h.at("12:00")))
        h.epoch()
        h.epoch()
        assert said(h.take(program.kept)) == [("a", "1")]
        h.epoch(clock="12:02:59")
        assert h.take(program.kept) == []
        h.epoch(clock=h.at("12:03"))
        assert said(h.take(program.kept)) == [("a", "wall")]
        assert h.clock_us == h.at("12:03")


# --- rows in and out


def test_rows_wait_for_the_next_epoch_and_all_of_them_go_into_it() -> None:
    program = Program()
    with program.harness() as h:
        assert h.published == -1
        h.push(program.taps, Tap("a", h.at("12:00")), Tap("a", h.at("12:00"), 2))
        h.push(program.taps, Tap("b", h.at("12:00")))
        assert h.take(program.kept) == []
        h.epoch()
        assert said(h.take(program.kept)) == [("a", "1"), ("a", "3"), ("b", "1")]
        assert h.published == 0
        h.epoch()
        assert h.take(program.kept) == []
        assert h.published == 1


def test_only_sources_can_be_pushed_into() -> None:
    program = Program()
    with program.harness() as h, pytest.raises(hr.ProgramError, match="sources only"):
        h.push(program.kept, Said("a", "b"))


@pytest.mark.parametrize("row", ["a", Said("a", "b"), Tap("a", hr.Timestamp(0), "one")])  # type: ignore[arg-type]
def test_a_row_of_another_type_is_refused_at_once_and_not_queued(row: Any) -> None:
    program = Program()
    with program.harness() as h:
        with pytest.raises(hr.ProgramError, match="a row is no Tap"):
            h.push(program.taps, Tap("a", h.at("12:00")), row)
        h.epoch()
        assert h.take(program.taps) == []


def test_take_gives_what_came_since_it_was_last_asked_of_any_stream() -> None:
    program = Program()
    doubled = program.taps.where("n > 1").map(lambda tap: tap.replace(n=tap.n * 2), output=Tap)
    with program.harness() as h:
        h.push(program.taps, Tap("a", h.at("12:00"), 1), Tap("a", h.at("12:00"), 7))
        h.epoch()
        h.push(program.taps, Tap("b", h.at("12:00"), 8))
        h.epoch()
        assert [tap.n for tap in h.take(program.taps)] == [1, 7, 8]
        assert [tap.n for tap in h.take(doubled)] == [14, 16]
        assert [tap.n for tap in h.take(program.big)] == [7, 8]
        assert h.take(doubled) == h.take(program.big) == h.take(program.taps) == []


def test_a_stream_said_after_the_harness_was_made_cannot_be_taken() -> None:
    program = Program()
    with program.harness() as h, pytest.raises(hr.ProgramError, match="made before this stream"):
        h.take(program.taps.where("n > 1"))


def test_sinks_are_left_alone_unless_they_are_asked_for(tmp_path: Path) -> None:
    for feed in (False, True):
        program = Program()
        program.kept.write(hr.sink.files(tmp_path / f"{feed}", format="json"))
        with program.harness(sinks=feed) as h:
            h.push(program.taps, Tap("a", h.at("12:00")))
            h.epoch()
            assert said(h.take(program.kept)) == [("a", "1")]
    assert not (tmp_path / "False").exists()
    assert [file.read_text() for file in (tmp_path / "True").iterdir()] == ['{"user":"a","what":"1"}\n']


def test_sinks_that_are_fed_are_started_and_closed() -> None:
    heard: list[str] = []

    class Hearing(type(hr.sink.discard())):  # type: ignore[misc]
        def start(self) -> None:
            heard.append("start")

        def close(self) -> None:
            heard.append("close")

    program = Program()
    program.kept.write(Hearing())
    with program.harness():
        assert heard == []
    with program.harness(sinks=True) as h:
        h.epoch()
        assert heard == ["start"]
    assert heard == ["start", "close"]


# --- state and counters


def test_state_of_every_kind_can_be_read_as_it_is_declared() -> None:
    program = Program()
    with program.harness() as h:
        rows = [Tap("a", h.at("12:00:00"), 7), Tap("a", h.at("12:00:01"), 2), Tap("a", h.at("12:00:01"), 2)]
        h.push(program.taps, *rows, Tap("b", h.at("12:00")))
        h.epoch()
        assert h.state(program.kept, Keeper.total, "a") == 11
        assert h.state(program.kept, Keeper.newest, "a") == rows[-1]
        assert h.state(program.kept, Keeper.trail, "a") == rows
        assert h.state(program.kept, Keeper.by_n, "a") == {2: rows[-1], 7: rows[0]}
        assert h.state(program.kept, Keeper.most, "a") == 7
        assert h.state(program.kept, Keeper.mean, "a") == (11, 3)
        assert h.state(program.kept, Keeper.quiet, "a") == h.at("12:01:01")
        assert h.state(program.kept, Keeper.many, "a") == [h.at("12:02:00"), h.at("12:02:01")]
        assert h.state(program.kept, Keeper.wall, "a") == h.at("12:03:00")
        assert h.state(program.kept, Keeper.total, "b") == 1
        assert h.state(program.kept, Keeper.total, "c") is None


def test_state_that_was_never_written_is_none() -> None:
    program = Program()
    with program.harness() as h:
        assert h.state(program.kept, Keeper.total, "a") is None
        h.epoch()
        assert h.state(program.kept, Keeper.total, "a") is None


def test_state_has_to_be_named_where_a_step_keeps_several() -> None:
    program = Program()
    with program.harness() as h:
        for wrong in (None, Keeper.big, Keeper.seen):
            with pytest.raises(hr.ProgramError, match="keeps no such state"):
                h.state(program.kept, wrong, "a")
        with pytest.raises(hr.ProgramError, match="keeps no such state"):
            h.state(program.taps, None, "a")


def test_the_state_of_a_rolling_step_needs_no_name() -> None:
    app = hr.App("rolling")
    taps = app.read("taps", hr.source.items([]), Tap)
    newest = taps.key_by(Tap.user).latest().named("newest")
    totals = taps.key_by(Tap.user, Tap.n).aggregate(total=hr.sum("n")).named("totals")
    with Harness(app) as h:
        h.push(taps, Tap("a", hr.Timestamp(5)), Tap("a", hr.Timestamp(4)))
        h.epoch()
        assert h.state(newest, key="a") == Tap("a", hr.Timestamp(4))
        assert h.state(totals, key=("a", 1)).total == 2


def test_counters_are_totals_since_the_beginning() -> None:
    program = Program()
    with program.harness() as h:
        assert h.counters(program.kept) == {}
        for _ in range(3):
            h.push(program.taps, Tap("a", h.at("12:00")), Tap("b", h.at("12:00")))
            h.epoch(watermark="12:30")
            h.restart()
        assert h.counters(program.kept) == {"seen": 6, "late": 4}


# --- ends and beginnings


def test_drain_fires_everything_and_is_final() -> None:
    program = Program()
    with program.harness() as h:
        h.push(program.taps, Tap("a", h.at("12:00")))
        h.drain()
        assert said(h.take(program.kept)) == [("a", "1"), ("a", "many"), ("a", "quiet")]
        with pytest.raises(Refused, match="drained"):
            h.epoch()
        h.restart()
        with pytest.raises(Refused, match="drained"):
            h.drain()


def test_a_final_epoch_ends_all_time() -> None:
    program = Program()
    with program.harness() as h:
        h.push(program.taps, Tap("a", h.at("12:00")))
        h.epoch(watermark="12:00", final=True)
        assert said(h.take(program.kept)) == [("a", "1"), ("a", "many"), ("a", "quiet")]


def test_a_restart_keeps_the_store_and_what_is_queued() -> None:
    program = Program()
    with program.harness() as h:
        h.push(program.taps, Tap("a", h.at("12:00")))
        h.epoch()
        h.push(program.taps, Tap("a", h.at("12:00:05"), 2))
        h.restart()
        assert said(h.take(program.kept)) == [("a", "1")]
        h.epoch()
        assert said(h.take(program.kept)) == [("a", "3")]
        assert h.published == 1


def test_functions_are_opened_once_and_closed_at_the_end_of_each_run() -> None:
    heard: list[str] = []

    class Opening(hr.Process[Tap, Said, str]):
        def open(self) -> None:
            heard.append("open")

        def close(self) -> None:
            heard.append("close")

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            heard.append(event.user)

    app = hr.App("opening")
    taps = app.read("taps", hr.source.items([]), Tap)
    taps.key_by(Tap.user).process(Opening())
    with Harness(app, parallelism=3) as h:
        h.push(taps, Tap("a", hr.Timestamp(0)))
        h.epoch()
        h.epoch()
        assert heard == ["open", "a"]
        h.restart()
        h.epoch()
    assert heard == ["open", "a", "close", "open", "close"]


def test_a_failing_function_stops_with_its_place_and_the_program_goes_on_once_it_is_mended() -> None:
    patience = [0]

    class Fragile(hr.Process[Tap, Said, str]):
        total: hr.ValueState[int]

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Said]:
            self.total.set(self.total.get(0) + event.n)
            if event.n > patience[0]:
                raise ValueError("too much")
            yield Said(ctx.key, f"{self.total.get()}")

    app = hr.App("fragile")
    taps = app.read("taps", hr.source.items([]), Tap)
    step = taps.key_by(Tap.user).process(Fragile())
    with Harness(app) as h:
        h.push(taps, Tap("bob", hr.Timestamp(0), 3))
        for _ in range(2):
            with pytest.raises(FunctionFailed, match="too much") as caught:
                h.epoch()
        assert "step fragile" in caught.value.where and "test_harness.py" in caught.value.where
        assert "bob" in caught.value.found
        assert h.published == -1
        patience[0] = 5
        h.epoch()
        assert said(h.take(step)) == [("bob", "3")]


def test_rows_of_an_epoch_whose_sink_failed_are_released_before_the_next() -> None:
    down = [True]
    given: list[tuple[int, str]] = []

    def feed(rows: list[Said], epoch: int) -> None:
        if down[0]:
            raise OSError("down")
        given.extend((epoch, row.what) for row in rows)

    program = Program()
    program.kept.write(hr.sink.call(feed, batch=True), name="feed")
    with program.harness(sinks=True) as h:
        h.push(program.taps, Tap("a", h.at("12:00")))
        with pytest.raises(SinkFailed, match="down"):
            h.epoch()
        assert h.published == 0
        down[0] = False
        h.push(program.taps, Tap("a", h.at("12:00")))
        h.epoch()
        assert given == [(0, "1"), (1, "2")]
        assert said(h.take(program.kept)) == [("a", "1"), ("a", "2")]


def test_a_program_that_could_not_be_shipped_is_refused() -> None:
    class Locked(hr.Process[Tap, Said, str]):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
            pass

    app = hr.App("locked")
    app.read("taps", hr.source.items([]), Tap).key_by(Tap.user).process(Locked())
    with pytest.raises(hr.ProgramError, match="cannot be shipped") as caught:
        Harness(app)
    assert caught.value.where == "step locked"


def test_a_module_that_holds_its_app_is_shipped_as_a_run_of_its_file_ships_it(tmp_path: Path) -> None:
    (tmp_path / "locked_program.py").write_text(
        """
import threading
import headrace as hr

lock = threading.Lock()

def hold(n: int) -> int:
    with lock:
        return n

app = hr.App("locked")
app.read("numbers", hr.source.items([1]), int).map(hold).named("holding").write(hr.sink.discard())
"""
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import locked_program  # type: ignore[import-not-found]

        with pytest.raises(hr.ProgramError, match="step holding: the program cannot be shipped") as caught:
            Harness(locked_program.app)
        assert "lock" in caught.value.found
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("locked_program", None)


@pytest.mark.parametrize("parallelism", [0, 500, True, "2"])
def test_a_number_of_shards_that_cannot_be_is_refused(parallelism: Any) -> None:
    app = hr.App("shards")
    app.read("taps", hr.source.items([]), Tap).write(hr.sink.discard())
    with pytest.raises(hr.ProgramError, match="cannot have this many shards") as refused:
        Harness(app, parallelism=parallelism)
    assert "from 1 to 128" in refused.value.expected


def test_two_harnesses_on_one_store_at_a_time_are_refused(tmp_path: Path) -> None:
    with Program().harness(store=tmp_path), pytest.raises(StoreInUse):
        Program().harness(store=tmp_path)
    with Program().harness(store=tmp_path) as h:
        h.epoch()


def test_a_store_of_another_app_is_refused_and_left_free(tmp_path: Path) -> None:
    with Program().harness(store=tmp_path) as h:
        h.epoch()
    other = hr.App("other")
    other.read("taps", hr.source.items([]), Tap)
    with pytest.raises(Refused, match="another app"):
        Harness(other, store=tmp_path)
    with Program().harness(store=tmp_path) as h:
        assert h.published == 0


def test_a_temporary_store_goes_with_its_harness() -> None:
    with Program().harness() as h:
        h.epoch()
        assert Path(h.store).is_dir()
    assert not Path(h.store).exists()


def test_small_limits_write_state_and_outputs_to_files_and_change_nothing() -> None:
    found = []
    for limits in (None, EpochLimits(inline_run_bytes=0, inline_output_bytes=0, overlay_bytes=1)):
        program = Program()
        with program.harness(limits=limits) as h:
            for i in range(3):
                h.push(program.taps, *(Tap(user, h.at(f"12:0{i}"), i) for user in "abc"))
                h.epoch()
            found.append((said(h.take(program.kept)), h.state(program.kept, Keeper.trail, "a")))
            files = [path for path in Path(h.store).rglob("*") if path.is_file()]
            assert any(path.suffix == ".run" for path in files) == (limits is not None)
    assert found[0] == found[1]
