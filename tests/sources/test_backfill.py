"""`source.backfill`: what it says of itself, what it refuses, and on which side of the seam a start goes on."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import ProgramError, Refused
from headrace.model.watermarks import HISTORY, TimedSource, TimeState, derive_time
from headrace.plan.compile import compile_app
from headrace.plan.sides import has_seam, histories, one_side
from headrace.spark.seam import decide_side
from headrace.state.manifest import Manifest

S = 1_000_000


class Event(hr.Record):
    key: str
    at: hr.Timestamp


def backfill(until: str | None = "2024-01-01") -> hr.App:
    app = hr.App("filled")
    source = hr.source.backfill(hr.source.files("."), hr.source.items([]), until=until)
    app.read("events", source, Event, time=Event.at).write(hr.sink.discard())
    app.read("others", hr.source.items([]), Event).write(hr.sink.discard())
    return app


def manifest(offsets: dict[str, str], retired: dict[str, str] | None = None) -> Manifest:
    lines = ["v2", "{}", *(f"{name}:{offset}" for name, offset in offsets.items())]
    return Manifest(
        app="filled", timeline=0, epoch=7, nonce="n", fence=1, program="", parallelism=1, key_groups=128, clock_us=0,
        offsets="\n".join(lines), retired=retired or {},
    )  # fmt: skip


def test_explain_tells_both_sides_and_the_cut() -> None:
    assert "backfill: files . (json) until 2024-01-01T00:00:00Z, then items (0 rows)" in backfill().explain()


def test_each_side_of_the_program_reads_one_of_the_two_under_a_name_of_its_own() -> None:
    program = compile_app(backfill(), parallelism=2, key_groups=128)
    assert has_seam(program) and histories(program) == {"events": "events__history"}
    before, behind = one_side(program, "history"), one_side(program, "live")
    assert [source.source.kind for source in before.sources] == ["files", "items"]
    assert [source.source.kind for source in behind.sources] == ["items", "items"]
    assert before.facts.sources == ("events__history", "others")
    assert behind.facts.sources == ("events", "others")
    assert before.timed == behind.timed, "time goes on under one name"


def test_a_start_goes_on_where_the_last_one_was() -> None:
    program = compile_app(backfill(), parallelism=2, key_groups=128)
    assert decide_side(program, None) == "history"
    assert decide_side(program, manifest({"others": "{}"})) == "history"
    assert decide_side(program, manifest({"events__history": "{}", "others": "{}"})) == "history"
    assert decide_side(program, manifest({"others": "{}"}, {"events__history": "{}"})) == "live"
    assert decide_side(program, manifest({"events": "{}"}, {"events__history": "{}"})) == "live"


def test_a_stream_that_was_read_live_gets_no_history_behind_it() -> None:
    program = compile_app(backfill(), parallelism=2, key_groups=128)
    with pytest.raises(Refused, match="'events' was read live before"):
        decide_side(program, manifest({"events": "{}"}))


def test_a_cut_needs_event_time_and_has_to_be_a_time() -> None:
    app = hr.App("filled")
    source = hr.source.backfill(hr.source.files("."), hr.source.items([]), until="2024-01-01")
    with pytest.raises(ProgramError, match="cut by event time"):
        app.read("events", source, Event)
    with pytest.raises(ProgramError, match="no point in time"):
        hr.source.backfill(hr.source.files("."), hr.source.items([]), until="yesterday")
    with pytest.raises(ProgramError, match="cannot read this as its live"):
        hr.source.backfill(hr.source.files("."), source)
    app.read("events", hr.source.backfill(hr.source.files("."), hr.source.items([])), Event)


def test_splits_of_the_history_hold_nothing_back_once_the_live_stream_speaks() -> None:
    sources, steps = [TimedSource("events")], {"step": ["events"]}

    def epoch(before: TimeState, marks: dict[str, int]) -> TimeState:
        return derive_time(before, {"events": marks}, sources=sources, steps=steps, clock_us=0, final=False)

    history = epoch(TimeState(), {f"{HISTORY}0": 10 * S, f"{HISTORY}1": 20 * S})
    assert history.steps["step"] == 10 * S - 1
    silent = epoch(history, {})
    assert silent.steps["step"] == 10 * S - 1
    live = epoch(silent, {"0": 30 * S, "1": 40 * S})
    assert live.steps["step"] == 30 * S - 1
    assert set(live.sources["events"].splits) == {"0", "1"}
