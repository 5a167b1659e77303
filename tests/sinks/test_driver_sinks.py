"""`collect`, `call`, `discard` and `console`: fed in the driver, from staging."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from rich.console import Console

import headrace as hr
from headrace import sink
from headrace.connectors.console.sink import ConsoleSink
from headrace.connectors.program.sinks import CallSink
from headrace.connectors.sink_contract import GuaranteeChoice, Sink, chosen_guarantee
from headrace.errors import ProgramError, SinkFailed
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows


class Count(Record):
    word: str
    at: Timestamp
    n: int
    tags: list[str] = []


COUNTS = [Count(f"w{i}", Timestamp(i * 500_000), i, ["x"] * (i % 2)) for i in range(9)]
CODEC = codec_of(Count)


def release(out: Sink, staging: Staging, epoch: int, rows: list[Count]) -> None:
    out.release(stage_rows(out, CODEC, staging, epoch, [rows]), staging.release(epoch, out.output))


def test_collect_keeps_every_promise_of_a_sink() -> None:
    def new_target() -> SinkTarget:
        kept = sink.collect()
        return SinkTarget(lambda: kept, lambda: list(kept.rows))

    verify_sink(new_target, Count, COUNTS)


def test_collected_rows_are_dataframes(tmp_path: Path) -> None:
    kept = sink.collect()
    bound = kept.bind(CODEC, "counts")
    release(bound, Staging(tmp_path), 0, COUNTS)
    frame = kept.to_polars()
    assert frame.columns == ["word", "at", "n", "tags"]
    assert frame["n"].to_list() == [row.n for row in COUNTS]
    assert kept.to_pandas()["word"].tolist() == [row.word for row in COUNTS]


def test_rows_of_several_types_or_of_no_stream_are_no_dataframe() -> None:
    class Other(Record):
        x: int

    kept = sink.collect()
    with pytest.raises(ProgramError, match="write a stream to it first"):
        kept.to_polars()
    kept.bind(CODEC, "counts")
    kept.bind(codec_of(Other), "others")
    with pytest.raises(ProgramError, match="a sink of its own"):
        kept.to_pandas()


def test_call_keeps_every_promise_of_a_sink() -> None:
    def new_target() -> SinkTarget:
        seen: list[Any] = []
        return SinkTarget(lambda: sink.call(lambda rows, epoch: seen.extend(rows)), lambda: list(seen))

    verify_sink(new_target, Count, COUNTS)


def test_call_row_by_row_keeps_every_promise_of_a_sink() -> None:
    def new_target() -> SinkTarget:
        seen: list[Any] = []
        return SinkTarget(lambda: sink.call(lambda row, epoch: seen.append(row), batch=False), lambda: list(seen))

    verify_sink(new_target, Count, COUNTS)


def test_collect_shows_rows_on_the_sink_the_user_holds(tmp_path: Path) -> None:
    kept = sink.collect()
    release(kept.bind(CODEC, "counts"), Staging(tmp_path), 0, COUNTS)
    assert kept.rows == COUNTS
    kept.clear()
    assert kept.rows == []


def test_collect_takes_several_outputs_and_the_same_epoch_of_each(tmp_path: Path) -> None:
    kept = sink.collect()
    for output in ("one", "two"):
        release(kept.bind(CODEC, output), Staging(tmp_path), 0, COUNTS[:2])
    assert kept.rows == COUNTS[:2] * 2


def test_what_the_driver_keeps_does_not_travel() -> None:
    kept = sink.collect().bind(CODEC, "counts")
    kept.rows.extend(COUNTS * 10_000)
    lock = __import__("threading").Lock()
    called = sink.call(lambda rows, epoch: lock.acquire()).bind(CODEC, "counts")
    shown = sink.console().bind(CODEC, "counts")
    shown.start()
    for out in (kept, called, shown, sink.discard().bind(CODEC, "counts")):
        assert len(cloudpickle.dumps(out)) < 1000


def test_call_is_told_the_epoch_and_gets_all_its_rows_at_once(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    out = sink.call(lambda rows, epoch: calls.append((len(rows), epoch))).bind(CODEC, "counts")
    staging = Staging(tmp_path)
    out.release(stage_rows(out, CODEC, staging, 4, [COUNTS[:3], COUNTS[3:]]), staging.release(4, "counts"))
    assert calls == [(9, 4)]


def test_a_function_that_raises_is_named_with_its_place(tmp_path: Path) -> None:
    def broken(rows: list[Any], epoch: int) -> None:
        raise KeyError("no such table")

    with pytest.raises(SinkFailed) as failed:
        release(sink.call(broken).bind(CODEC, "counts"), Staging(tmp_path), 7, COUNTS)
    text = str(failed.value)
    assert "test_driver_sinks.py:" in text and "KeyError" in text and "epoch 7" in text and "next:" in text


def test_a_guarantee_that_the_user_chose_is_the_instances_and_is_explained() -> None:
    class Choosy(CallSink):
        def __init__(self, guarantee: GuaranteeChoice) -> None:
            super().__init__(print, batch=True)
            self.guarantee = chosen_guarantee(guarantee, "sink.choosy")

    app = hr.App("counts")
    counts = app.read("counts", hr.source.items([]), Count)
    counts.write(Choosy("exactly_once"), name="one")
    counts.write(Choosy("at_least_once"), name="two")
    lines = [line for line in app.explain().splitlines() if "write call" in line]
    assert "[exactly once]" in lines[0] and "[at least once]" in lines[1]
    with pytest.raises(ProgramError, match="no guarantee 'twice'"):
        Choosy("twice")  # type: ignore[arg-type]


def test_discard_counts_each_epoch_once(tmp_path: Path) -> None:
    dropped = sink.discard()
    out, staging = dropped.bind(CODEC, "counts"), Staging(tmp_path)
    for epoch in (0, 1, 1):
        release(out, staging, epoch, COUNTS)
    assert dropped.count == 18
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [sink.discard, sink.collect])
def test_what_tells_repeated_releases_does_not_grow_with_the_epochs(tmp_path: Path, make: Any) -> None:
    out, staging = make().bind(CODEC, "counts"), Staging(tmp_path)
    sizes = []
    for epoch in range(20):
        release(out, staging, epoch, COUNTS)
        sizes.append(len(repr({name: value for name, value in vars(out).items() if name not in ("rows", "_total")})))
    assert max(sizes[1:]) < sizes[0] + 20


def console_on(text: io.StringIO, limit: int = 3, *, terminal: bool) -> ConsoleSink:
    screen = Console(file=text, force_terminal=terminal, width=100)
    out = ConsoleSink(limit, screen).bind(CODEC, "counts")
    out.start()
    return out


def test_console_prints_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    text = io.StringIO()
    out = console_on(text, terminal=False)
    release(out, Staging(tmp_path), 5, COUNTS[:2])
    assert text.getvalue().splitlines() == [
        'counts 5: {"word":"w0","at":"1970-01-01T00:00:00Z","n":0,"tags":[]}',
        'counts 5: {"word":"w1","at":"1970-01-01T00:00:00.5Z","n":1,"tags":["x"]}',
    ]


def test_console_shows_the_newest_rows_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    text = io.StringIO()
    out = console_on(text, terminal=False)
    release(out, Staging(tmp_path), 0, COUNTS)
    lines = text.getvalue().splitlines()
    assert lines[0] == "counts 0: … 6 more rows before these"
    assert [line.split('"')[3] for line in lines[1:]] == ["w6", "w7", "w8"]


def test_console_shows_a_live_table_on_a_terminal(tmp_path: Path) -> None:
    text = io.StringIO()
    out = console_on(text, terminal=True)
    staging = Staging(tmp_path)
    release(out, staging, 0, COUNTS[:2])
    release(out, staging, 1, COUNTS[2:4])
    out.close()
    assert "4 rows, epoch 1" in text.getvalue() and "w3" in text.getvalue()
    table = out.table(1)
    assert table.row_count == 3


@pytest.mark.parametrize("width", [32, 40, 100])
def test_console_cuts_no_column_on_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    shown: list[Any] = []
    out = ConsoleSink(4, Console(file=io.StringIO(), force_terminal=True)).bind(CODEC, "counts")
    out.show = shown.append
    out.start()
    release(out, Staging(tmp_path), 0, COUNTS)
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(shown[-1])
    lines = text.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    heads = [line.split() for line in lines if line.startswith("┃")]
    assert {word for head in heads for word in head} >= {"word", "at", "n", "tags"}
    assert all(head[1] == "word" for head in heads)
    # However many bands there are, they take no more lines together than one table has.
    rows = [line.split()[1] for line in lines if line.startswith("│")]
    assert rows[-1] == "w8" and len(rows) <= 4 and rows.count("w8") == len(heads)


def test_a_second_live_table_falls_back_to_lines(tmp_path: Path) -> None:
    text = io.StringIO()
    screen = Console(file=text, force_terminal=True, width=100)
    outs = [ConsoleSink(3, screen).bind(CODEC, name) for name in ("one", "two")]
    for out in outs:
        out.start()
    release(outs[1], Staging(tmp_path), 0, COUNTS[:1])
    for out in outs:
        out.close()
    assert "w0" in text.getvalue()


def test_whoever_draws_the_screen_takes_the_table_over(tmp_path: Path) -> None:
    text, tables = io.StringIO(), []
    out = ConsoleSink(3, Console(file=text, force_terminal=True)).bind(CODEC, "counts")
    out.show = tables.append
    out.start()
    release(out, Staging(tmp_path), 0, COUNTS)
    assert len(tables) == 1 and text.getvalue() == ""


@pytest.mark.parametrize("make", [sink.collect, sink.console, sink.discard, lambda: sink.call(print)])
def test_a_sink_tells_what_it_is_and_promises(make: Any) -> None:
    out = make()
    assert out.describe().startswith(out.kind)
    assert out.guarantee in ("exactly once", "at least once")
