"""What rows say about time: largest, said by rows, said by a generator; per split, and across restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FunctionFailed, ProgramError, StoreError
from headrace.testing import Harness

S = 1_000_000


class Beat(hr.Record):
    at: hr.Timestamp
    kind: str = "row"
    safe: hr.Timestamp | None = None
    delay_ms: int = 0


class Watch(hr.Process[Beat, Beat, str]):
    """Sees time: a timer per kind at the row's own time, so that whatever the watermark passes comes out."""

    due: hr.Timers

    def on_event(self, event: Beat, ctx: hr.Context[str]) -> None:
        self.due.add(event.at)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Any:
        yield Beat(ctx.timestamp, ctx.key)


class Adaptive(hr.WatermarkGenerator[Beat]):
    newest: int = 0
    slack: int = 0

    def __init__(self, extra_ms: int = 0) -> None:
        self.extra_us = extra_ms * 1000

    def on_row(self, row: Beat, at: hr.Timestamp) -> None:
        self.newest = max(self.newest, int(at))
        self.slack = max(self.slack, row.delay_ms * 1000)

    def on_epoch(self) -> hr.Timestamp | None:
        return hr.Timestamp(self.newest - self.slack - self.extra_us)


class ByColumns(hr.WatermarkGenerator[Beat]):
    """The third largest time seen in the last epoch: one early clock does not move everything."""

    def on_rows(self, rows: pa.RecordBatch, times: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        assert rows.schema.names == ["at", "kind", "safe", "delay_ms"]
        self.third = int(np.sort(times)[-3]) if len(times) >= 3 else None

    def on_epoch(self) -> hr.Timestamp | None:
        return None if self.third is None else hr.Timestamp(self.third)


def program(watermark: Any, **read: Any) -> tuple[hr.App, Any, Any]:
    app = hr.App("beats")
    beats = app.read("beats", hr.source.items([]), Beat, time=Beat.at, watermark=watermark, **read)
    fired = beats.key_by(Beat.kind).process(Watch())
    fired.show()
    return app, beats, fired


def passed(h: Harness, fired: Any) -> list[int]:
    """Seconds of the day whose timers fired."""
    return sorted((int(row.at) - int(h.at("00:00"))) // S for row in h.take(fired))


def beat(h: Harness, second: int, **fields: Any) -> Beat:
    return Beat(hr.Timestamp(int(h.at("00:00")) + second * S), **fields)


def test_bounded_and_monotonous_are_out_of_order_said_otherwise() -> None:
    for watermark, expected in ((hr.watermarks.bounded("10s"), [5]), (hr.watermarks.monotonous(), [5, 12])):
        app, beats, fired = program(watermark)
        with Harness(app) as h:
            h.push(beats, beat(h, 5), beat(h, 12), beat(h, 20))
            h.epoch()
            assert passed(h, fired) == expected


def test_only_a_row_that_meets_the_condition_moves_time() -> None:
    app, beats, fired = program(hr.watermarks.punctuated("kind = 'flush'"))
    with Harness(app) as h:
        h.push(beats, beat(h, 5), beat(h, 50))
        h.epoch()
        assert passed(h, fired) == []
        h.push(beats, beat(h, 20, kind="flush"))
        h.epoch()
        assert passed(h, fired) == [5], "no row before 20 comes any more; one of 20 may"


@pytest.mark.parametrize("said", [Beat.safe, "safe", "CAST(safe AS TIMESTAMP)", lambda row: row.safe])
def test_a_column_or_a_function_can_say_how_far_time_is(said: Any) -> None:
    app, beats, fired = program(hr.watermarks.punctuated(said))
    with Harness(app) as h:
        h.push(beats, beat(h, 5), beat(h, 9, safe=h.at("00:00:07")))
        h.epoch()
        assert passed(h, fired) == [5]


def test_a_filter_behind_the_source_does_not_hide_what_rows_say() -> None:
    app = hr.App("beats")
    said = hr.watermarks.punctuated("kind = 'flush'")
    beats = app.read("beats", hr.source.items([]), Beat, time=Beat.at, watermark=said)
    fired = beats.where("kind = 'row'").key_by(Beat.kind).process(Watch())
    fired.show()
    with Harness(app) as h:
        h.push(beats, beat(h, 5), beat(h, 6, kind="flush"))
        h.epoch()
        assert passed(h, fired) == [5]


def test_a_generator_speaks_for_each_split_and_the_slowest_counts() -> None:
    app, beats, fired = program(Adaptive())
    with Harness(app) as h:
        h.push(beats, beat(h, 5), beat(h, 30), split="p0")
        h.push(beats, beat(h, 20, delay_ms=12_000), split="p1")
        h.epoch()
        assert passed(h, fired) == [5], "p1 says 20 − 12"
        h.push(beats, beat(h, 60), split="p0")
        h.push(beats, beat(h, 60), split="p1")
        h.epoch()
        assert passed(h, fired) == [20, 30], "p1 remembers its slack: 60 − 12"


def test_a_generator_may_look_at_columns() -> None:
    app, beats, fired = program(ByColumns())
    with Harness(app) as h:
        h.push(beats, beat(h, 1), beat(h, 3), beat(h, 4), beat(h, 900))
        h.epoch()
        assert passed(h, fired) == [1]


def test_what_a_generator_keeps_survives_crash_and_restart(tmp_path: Path) -> None:
    app, beats, fired = program(Adaptive())
    with Harness(app, store=tmp_path / "s") as h:
        h.push(beats, beat(h, 20, delay_ms=12_000))
        h.epoch()
        h.push(beats, beat(h, 30))
        h.crash(at="before_publish")
        h.epoch()
        assert h.take(fired) == []
        h.push(beats, beat(h, 40))
        h.crash(at="published")
        assert passed(h, fired) == [20], "40 − 12 = 28, and not 40"


def test_settings_of_a_generator_come_with_the_program_and_what_it_keeps_from_the_store(tmp_path: Path) -> None:
    app, beats, fired = program(Adaptive())
    with Harness(app, store=tmp_path / "s") as h:
        h.push(beats, beat(h, 20, delay_ms=12_000))
        h.epoch()
    app, beats, fired = program(Adaptive(extra_ms=5_000))
    with Harness(app, store=tmp_path / "s") as h:
        h.push(beats, beat(h, 38))
        h.epoch()
        assert passed(h, fired) == [20], "38 − 12 − 5 = 21"


def test_another_generator_begins_anew_where_time_has_come_to(tmp_path: Path) -> None:
    class Eager(Adaptive):
        def on_epoch(self) -> hr.Timestamp | None:
            return hr.Timestamp(self.newest)

    app, beats, fired = program(Adaptive())
    with Harness(app, store=tmp_path / "s") as h:
        h.push(beats, beat(h, 20, delay_ms=12_000))
        h.epoch()
    app, beats, fired = program(Eager())
    with Harness(app, store=tmp_path / "s") as h:
        h.push(beats, beat(h, 4))
        h.epoch()
        assert passed(h, fired) == [4], "late: time stays at 8, where the other one had brought it"
        assert h.counters(fired) == {"late": 1}


def test_a_split_that_brings_rows_without_saying_anything_is_not_idle() -> None:
    app, beats, fired = program(hr.watermarks.punctuated("kind = 'flush'"), idle="30s")
    with Harness(app) as h:
        h.push(beats, beat(h, 50, kind="flush"), split="p0")
        h.push(beats, beat(h, 1), split="p1")
        h.epoch()
        for clock in ("00:00:20", "00:00:40", "00:01:00"):
            h.push(beats, beat(h, 60, kind="flush"), split="p0")
            h.push(beats, beat(h, 2), split="p1")
            h.epoch(clock=clock)
            assert h.take(fired) == []
        h.push(beats, beat(h, 60, kind="flush"), split="p0")
        h.epoch(clock="00:01:30")
        assert passed(h, fired) == [1, 2, 50], "p1 has been silent for 30 s"


# --- mistakes


class Raises(Adaptive):
    def on_row(self, row: Beat, at: hr.Timestamp) -> None:
        raise ValueError("no clock in sight")


class SaysText(Adaptive):
    def on_epoch(self) -> Any:
        return "12:00"


class Hoards(hr.WatermarkGenerator[Beat]):
    rows: list[str] = []

    def on_row(self, row: Beat, at: hr.Timestamp) -> None:
        self.rows.append("x" * 1000)

    def on_epoch(self) -> hr.Timestamp | None:
        return None


@pytest.mark.parametrize(
    ("generator", "count", "words"),
    [(Raises(), 1, "no clock in sight"), (SaysText(), 1, "neither a timestamp"), (Hoards(), 20, "keep a summary")],
)
def test_a_generator_that_fails_stops_the_job_with_its_source(generator: Any, count: int, words: str) -> None:
    app, beats, _ = program(generator)
    with Harness(app) as h:
        h.push(beats, *[beat(h, 1)] * count)
        with pytest.raises(FunctionFailed) as caught:
            h.epoch()
        assert words in str(caught.value)
        assert "beats" in str(caught.value)


def test_splits_do_not_share_what_their_generators_keep() -> None:
    app, beats, _ = program(Hoards())
    with Harness(app) as h:
        for split in ("p0", "p1"):
            h.push(beats, *[beat(h, 1)] * 10, split=split)
        h.epoch()
    assert Hoards.rows == []


def test_a_field_that_changed_its_type_is_told_with_the_way_out(tmp_path: Path) -> None:
    app, beats, _ = program(Adaptive())
    with Harness(app, store=tmp_path / "s") as h:
        h.push(beats, beat(h, 1))
        h.epoch()

    class KeepsText(Adaptive):
        newest: str = ""  # type: ignore[assignment]

    KeepsText.__name__ = "Adaptive"
    app, beats, _ = program(KeepsText())
    with Harness(app, store=tmp_path / "s") as h:
        h.push(beats, beat(h, 2))
        with pytest.raises(StoreError) as caught:
            h.epoch()
        assert "give the field a new name" in str(caught.value)


class Silent(hr.WatermarkGenerator[Beat]):
    def on_row(self, row: Beat, at: hr.Timestamp) -> None:
        pass


class Blind(hr.WatermarkGenerator[Beat]):
    def on_epoch(self) -> hr.Timestamp | None:
        return None


class Begins(Adaptive):
    nothing: int


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ({"watermark": Silent()}, "on_epoch"),
        ({"watermark": Blind()}, "on_row"),
        ({"watermark": Begins()}, "nothing: int = …"),
        ({"watermark": Adaptive}, "add the parentheses"),
        ({"watermark": "5s"}, "hr.watermarks.bounded"),
        ({"watermark": hr.watermarks.punctuated("delay_ms + 1")}, "needs a condition or a timestamp"),
        ({"watermark": hr.watermarks.punctuated("nobody = 1")}, "nobody"),
        ({"watermark": hr.watermarks.bounded("5s"), "out_of_order": "5s"}, "one of them"),
        ({"watermark": hr.watermarks.monotonous(), "time": None}, "time="),
        ({"align": "g"}, "max_drift"),
        ({"align": "g", "max_drift": "0s"}, "max_drift='0s'"),
        ({"align": "g", "max_drift": "1m", "time": None}, "align is about event time"),
    ],
)
def test_mistakes_are_found_while_the_program_is_built(read: dict[str, Any], words: str) -> None:
    app = hr.App("beats")
    with pytest.raises(ProgramError) as caught:
        app.read("beats", hr.source.items([]), Beat, **{"time": Beat.at, **read})
    assert words in str(caught.value)
    assert "test_marking.py" in str(caught.value)


def test_a_source_that_spark_reads_cannot_be_aligned() -> None:
    with pytest.raises(ProgramError, match="not supported by sources that Spark reads"):
        hr.App("beats").read("beats", hr.source.files("x/"), Beat, time=Beat.at, align="g", max_drift="1m")


# --- the same of all kinds


def test_time_moves_with_the_slowest_input_and_output_comes_before_the_time_that_caused_it() -> None:
    app = hr.App("two")
    fast = app.read("fast", hr.source.items([]), Beat, time=Beat.at)
    slow = app.read("slow", hr.source.items([]), Beat, time=Beat.at)
    first = fast.union(slow).key_by(Beat.kind).process(Watch()).named("first")
    second = first.key_by(Beat.kind).process(Watch()).named("second")
    second.show()
    with Harness(app) as h:
        h.push(fast, beat(h, 5), beat(h, 90))
        h.push(slow, beat(h, 10))
        h.epoch()
        # What the first step gave because time passed 5 is no late row in the second, and fires there with it.
        assert passed(h, first) == [5]
        assert passed(h, second) == [5]
        assert h.counters(second) == {}
        h.push(slow, beat(h, 50))
        h.epoch()
        assert passed(h, second) == [10]


def test_a_source_that_is_too_far_ahead_waits_with_its_rows() -> None:
    app = hr.App("two")
    fast = app.read("fast", hr.source.items([]), Beat, time=Beat.at, align="g", max_drift="30s")
    slow = app.read("slow", hr.source.items([]), Beat, time=Beat.at, align="g", max_drift="30s")
    both = fast.union(slow).map(lambda row: row, output=Beat)
    both.show()

    def came(h: Harness) -> list[int]:
        return sorted((int(row.at) - int(h.at("00:00"))) // S for row in h.take(both))

    with Harness(app) as h:
        h.push(fast, beat(h, 10), beat(h, 50))
        h.push(slow, beat(h, 1))
        h.epoch()
        assert came(h) == [1, 10, 50]
        h.push(fast, beat(h, 60))
        h.push(slow, beat(h, 15))
        h.epoch()
        assert came(h) == [15], "fast is at 50 and slow was at 1"
        h.push(slow, beat(h, 30))
        h.epoch()
        assert came(h) == [30], "50 is still more than 30 s ahead of 15"
        h.crash(at="before_publish")
        h.epoch()
        assert came(h) == [60]
        h.push(fast, beat(h, 900))
        h.epoch()
        h.push(fast, beat(h, 901))
        h.drain()
        assert came(h) == [900, 901], "the end of input waits for nobody"
