"""Why is there no output: what `headrace epochs`, the live table and the last lines of a run say."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import headrace as hr
from headrace.foreground import say_end
from headrace.model.time import parse_time
from headrace.progress import Standstill
from headrace.read.store import Store, newest_manifests
from headrace.screens import EpochLines, EpochTable, TablesScreen
from headrace.state.manifest import Manifest
from headrace.testing import Harness
from tests.cli.calling import call, call_json

S = 1_000_000
NOON = parse_time("2024-01-01T12:00:00")


class View(hr.Record):
    page: str
    at: hr.Timestamp


class FellQuiet(hr.Process[View, View, str]):
    quiet: hr.Timer

    def on_event(self, event: View, ctx: hr.Context[str]) -> None:
        self.quiet.set(event.at + hr.minutes(1))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[View]:
        yield View(ctx.key, ctx.timestamp)


class Pages:
    """Two partitions of views; p1 stands at 12:00:20 and has been silent since noon, while p0 goes on."""

    def __init__(self) -> None:
        self.app = hr.App("pages")
        self.views = self.app.read("views", hr.source.items([]), View, time=View.at, out_of_order="5s")
        quiet = self.views.key_by(View.page).process(FellQuiet())
        quiet.show()
        counted = self.app.read("plain", hr.source.items([]), View).key_by(View.page).aggregate(n=hr.count())
        counted.named("counted").show()

    def stand_still(self, h: Harness) -> None:
        h.push(self.views, View("a", h.at("12:00:10")), split="p0")
        h.push(self.views, View("a", h.at("12:00:20")), split="p1")
        h.epoch()
        h.push(self.views, View("b", h.at("12:05:00")), split="p0")
        h.epoch(clock="12:03:10")


@pytest.fixture
def stored(tmp_path: Path) -> str:
    pages = Pages()
    with Harness(pages.app, start="2024-01-01T12:00", store=tmp_path / "s") as h:
        pages.stand_still(h)
    return str(tmp_path / "s")


def manifests(store: str) -> list[Manifest]:
    return newest_manifests(Store(store))


HELD: dict[str, Any] = {
    "steps": ["fell_quiet"],
    "kind": "behind",
    "watermark": "2024-01-01T12:00:14.999999Z",
    "source": "views",
    "split": "p1",
    "at": "2024-01-01T12:00:20Z",
    "since": "2024-01-01T12:00:00Z",
    "silent": True,
    "waits_for": "2024-01-01T12:01:20Z",
    "waiting_rows": 0,
    "aligned_waiting": [],
}


def test_the_list_names_the_input_that_holds_time_back_and_what_to_do(stored: str) -> None:
    out = " ".join(call("epochs", stored).stdout.split())
    for words in (
        "fell_quiet: time stands at 2024-01-01T12:00:14.999Z, held back by views, split p1",
        "whose newest row is of 2024-01-01T12:00:20Z (less out_of_order='5s'); no row came since 2024-01-01T12:00:00Z",
        "the next thing is due at 2024-01-01T12:01:20Z",
        "idle='1m' in app.read would let a silent input go",
        "counted: without event time",
    ):
        assert words in out


def test_one_epoch_in_detail_tells_it_as_of_then_and_lists_the_splits(stored: str) -> None:
    out = " ".join(call("epochs", stored, 1).stdout.split())
    assert "no row came since 2024-01-01T12:00:00Z (3m10s)" in out
    assert "views p1 2024-01-01T12:00:20Z 2024-01-01T12:00:00Z" in out
    first = " ".join(call("epochs", stored, 0).stdout.split())
    assert "time is at 2024-01-01T12:00:04.999Z; the slowest input is views, split p0" in first


def test_machines_get_the_same(stored: str) -> None:
    [held] = call_json("epochs", stored)[-1]["held_back"]
    move = held.pop("next_move")
    assert held == HELD
    assert "idle=" in move
    detail = call_json("epochs", stored, 1)
    assert [reason["kind"] for reason in detail["held_back"]] == ["behind", "no_time"]
    assert detail["watermarks"]["splits"]["views"]["p1"] == {
        "at": "2024-01-01T12:00:20Z",
        "seen": "2024-01-01T12:00:00Z",
    }


# --- while it runs


def test_the_live_table_says_so_once_something_has_waited_long_enough(stored: str) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, height=40)
    clock = [NOON + 29 * S]
    with EpochTable("pages", console, wall=lambda: clock[0]) as watch:
        watch(manifests(stored)[1])
        assert "held back" not in out.getvalue()
        clock[0] = NOON + 30 * S  # and no further epoch: where no row comes, none is run
    assert "held back by views, split p1" in out.getvalue()
    assert watch.left()


def test_lines_of_text_say_each_standstill_once(stored: str) -> None:
    out = io.StringIO()
    clock = [NOON + 190 * S]
    watch = EpochLines(Console(file=out, width=500), wall=lambda: clock[0])
    for _ in range(3):
        watch(manifests(stored)[1])
    assert out.getvalue().count("held back by views, split p1") == 1


def test_a_standstill_is_worth_a_word_again_after_time_has_moved(stored: str) -> None:
    pages = Pages()
    clock = [NOON + 190 * S]
    standstill = Standstill(lambda: clock[0])
    standstill(manifests(stored)[1])
    assert len(standstill.news()) == 1
    assert standstill.news() == []
    with Harness(pages.app, start="2024-01-01T12:00", store=stored) as h:
        h.push(pages.views, View("c", h.at("12:00:40")), split="p1")
        h.epoch(clock="12:04:00")
    standstill(manifests(stored)[2])
    clock[0] = NOON + 241 * S
    assert standstill.now() == [], "it has just moved"
    clock[0] = NOON + 300 * S
    assert len(standstill.now()) == 1
    assert len(standstill.news()) == 1


def test_tables_of_sinks_show_it_below(stored: str) -> None:
    out = io.StringIO()
    screen = TablesScreen(Console(file=out, force_terminal=True, width=300, height=40))
    with screen:
        screen(manifests(stored)[1])
    assert "held back by views, split p1" in out.getvalue()


def test_the_last_lines_of_a_run_say_what_has_not_come_out(stored: str) -> None:
    out = io.StringIO()
    watch = EpochLines(Console(file=out, width=500), wall=lambda: NOON + 190 * S)
    watch(manifests(stored)[1])
    out.truncate(0)
    say_end(watch, stopped=True)
    lines = out.getvalue().splitlines()
    assert "stopped: 1 epoch," in lines[0]
    assert lines[1].startswith("not out yet: fell_quiet: time stands at 2024-01-01T12:00:14.999Z")


def test_the_last_lines_name_only_steps_in_which_something_is_due(tmp_path: Path) -> None:
    pages = Pages()
    by_page = pages.views.key_by(View.page)
    by_page.aggregate(n=hr.count()).named("rolling").show()
    with Harness(pages.app, start="2024-01-01T12:00", store=tmp_path / "s") as h:
        pages.stand_still(h)
    standstill = Standstill(lambda: NOON + 190 * S)
    standstill(manifests(str(tmp_path / "s"))[1])
    assert ["fell_quiet, rolling: time stands" in line for line in standstill.now()] == [True]
    assert ["not out yet: fell_quiet: time stands" in line for line in standstill.left()] == [True]


def test_after_drained_input_nothing_is_left_to_say(stored: str) -> None:
    pages = Pages()
    with Harness(pages.app, start="2024-01-01T12:00", store=stored) as h:
        h.drain()
    standstill = Standstill(lambda: NOON + 9_000 * S)
    standstill(manifests(stored)[-1])
    assert standstill.now() == standstill.left() == []
    assert "fell_quiet: the input was drained" in call("epochs", stored).stdout
