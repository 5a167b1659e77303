from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

import headrace as hr
from headrace.dataflow.settings import Settings
from headrace.foreground import read_opening
from headrace.progress import RunProgress, status_line, time_text
from headrace.screens import EpochLines, EpochTable, TablesScreen, choose_screen
from headrace.stop_signals import STOPPING, StopSignals
from tests.serve.made_store import MadeStore, busy_epoch, values


class Hit(hr.Record):
    page: str


def make_app(*, shown: bool) -> hr.App:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([Hit("a")]), Hit)
    if shown:
        hits.show()
    else:
        hits.write(hr.sink.collect())
    return app


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, height=40)


# --- how a run begins


@pytest.mark.parametrize("fresh", [False, True])
def test_the_store_of_another_app_invites_nobody_to_throw_it_away(store_path: Path, fresh: bool) -> None:
    made = MadeStore(store_path)
    made.epoch()
    text = str(read_opening(Settings(store=made.path, fresh=fresh), "fraud"))
    assert text == f"{made.path} is the store of another app, tweets"


def test_a_first_run_says_where_it_keeps_its_state(tmp_path: Path) -> None:
    opening = read_opening(Settings(store=str(tmp_path / "state")), "tweets")
    assert str(opening) == f"starting in {tmp_path / 'state'}"
    assert not (tmp_path / "state").exists()


def test_a_second_run_says_where_it_resumes_and_how_to_start_over(store_path: Path) -> None:
    made = MadeStore(store_path)
    for _ in range(41):
        made.epoch()
    text = str(read_opening(Settings(store=made.path), "tweets"))
    assert text == f"resuming at epoch 41 from {made.path}; --fresh starts over"


def test_a_fresh_run_says_that_it_starts_over(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch()
    assert str(read_opening(Settings(store=made.path, fresh=True), "tweets")) == f"starting over in {made.path}"


def test_a_drained_store_is_not_said_to_resume(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch(final=True)
    text = str(read_opening(Settings(store=made.path), "tweets"))
    assert "drained by epoch 0" in text
    assert "--from goes back to an earlier one, --fresh starts over" in text


# --- how a run is ended


def test_the_first_signal_stops_and_the_second_interrupts() -> None:
    stopped = threading.Event()
    said: list[str] = []
    with (
        StopSignals() as signals,
        pytest.raises(KeyboardInterrupt),
        signals.stopping(stopped.set, said.append, lambda: True) as came,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
    assert came == [signal.SIGTERM, signal.SIGINT]
    assert said == [STOPPING]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_run_or_while_spark_is_starting_interrupts_at_once(number: signal.Signals) -> None:
    said: list[str] = []
    with StopSignals() as signals:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt), signals.stopping(lambda: None, said.append, lambda: False):
            os.kill(os.getpid(), number)
    assert said == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_after_the_run_ends_what_waits_and_interrupts_nothing(number: signal.Signals) -> None:
    with StopSignals() as signals:
        with signals.stopping(lambda: None, print, lambda: True) as came:
            pass
        assert not signals.ended.is_set()
        os.kill(os.getpid(), number)
        assert signals.wait_while(lambda: True)
    assert came == []


def test_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_beside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# --- what is shown


def test_without_a_terminal_epochs_are_lines() -> None:
    screen = choose_screen(make_app(shown=False), console=Console(file=io.StringIO()))
    assert isinstance(screen, EpochLines)


def test_on_a_terminal_the_tables_of_console_sinks_take_the_screen() -> None:
    assert isinstance(choose_screen(make_app(shown=False), console=terminal()), EpochTable)
    assert isinstance(choose_screen(make_app(shown=True), console=terminal()), TablesScreen)
    assert isinstance(choose_screen(make_app(shown=True), console=terminal(), plain=True), EpochLines)


def test_the_live_table_cuts_no_number_where_the_terminal_is_narrow(store_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    manifest = busy_epoch(MadeStore(store_path))
    screen = EpochTable("hits", console)
    screen.follow(list, str)
    with screen:
        screen(manifest)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in out
    for words in ("rows in", "rows/s", "watermark", "1,200", "1 epoch, 1,200 rows in, 14 rows out"):
        assert words in out


@pytest.mark.parametrize("shown", [True, False])
def test_before_the_first_epoch_a_screen_says_what_the_job_is_doing(*, shown: bool) -> None:
    console = terminal()
    doing = ["starting Spark, 3 s"]
    with choose_screen(make_app(shown=shown), console=console) as screen:
        screen.follow(list, lambda: doing[0])
        screen._live.refresh()
        doing[0] = "epoch 0, 3 of 8 tasks done, 42 s"
        screen._live.refresh()
    out = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("starting Spark, 3 s …", "epoch 0, 3 of 8 tasks done, 42 s …"):
        assert words in out
    assert "rows in" not in out, "an empty table says nothing"


def test_lines_of_text_say_what_the_job_is_doing_where_nothing_comes_for_a_while() -> None:
    out = io.StringIO()
    EpochLines(Console(file=out)).still("starting Spark, 12 s")
    assert out.getvalue() == "starting Spark, 12 s\n"


def test_what_a_terminal_echoes_at_ctrl_c_has_a_line_of_its_own(store_path: Path) -> None:
    # Behind a full line it would begin another, and a piece of the old table would stay above the next one.
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    screen = EpochTable("hits", console)
    screen.follow(lambda: ["x" * 60], str)
    screen(busy_epoch(MadeStore(store_path)))
    lines = console.render_lines(screen._frame(), pad=False)
    assert "".join(segment.text for segment in lines[-1]).strip() == ""


def test_tables_are_drawn_above_a_line_about_the_epoch(store_path: Path) -> None:
    console = terminal()
    manifest = busy_epoch(MadeStore(store_path))
    with TablesScreen(console, {"made": lambda: Text("made anew")}) as screen:
        screen.show("given", Text("given once"))
        screen(manifest)
        screen.say("a remark")
    out = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("starting Spark", "made anew", "given once", "epoch 0: 1,200 rows in, 14 out, 112 ms", "a remark"):
        assert words in out


def test_the_line_about_an_epoch_tells_rows_time_delta_and_watermark(store_path: Path) -> None:
    manifest = busy_epoch(MadeStore(store_path))
    expected = "epoch 0: 1,200 rows in, 14 out, 112 ms, delta 4.1 KB, watermark 2024-01-01T11:59:55Z"
    assert status_line(manifest) == expected


def test_counting_begins_with_the_first_epoch_and_not_with_the_start_of_spark(store_path: Path) -> None:
    now = [1000.0]
    count = RunProgress(clock=lambda: now[0])
    assert count.summary() == "no epoch was published"
    made = MadeStore(store_path)
    now[0] = 1060.0
    count(busy_epoch(made))
    now[0] = 1061.888
    count(busy_epoch(made))
    assert count.summary() == "2 epochs, 2,400 rows in, 28 rows out in 2.0 s (1,200 rows/s)"


def test_times_are_shown_to_the_millisecond(store_path: Path) -> None:
    manifest = MadeStore(store_path).epoch({"s": [values("v", [("a", 1)])]}, watermark_us=1_704_110_400_123_999)
    assert time_text(manifest.time.steps["s"]) == "2024-01-01T12:00:00.123Z"
    assert time_text(None) == "–"


@pytest.mark.parametrize(
    ("start_from", "words"), [("before-v2", "asked to go back to before-v2"), ("./blue@cut", "resuming at epoch 1")]
)
def test_a_fork_that_goes_on_is_no_rewind(store_path: Path, start_from: str, words: str) -> None:
    made = MadeStore(store_path)
    made.epoch()
    assert words in str(read_opening(Settings(store=made.path, start_from=start_from), "tweets"))
