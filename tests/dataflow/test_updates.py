"""Updates: rows that replace earlier ones, the sinks that refuse them, and ``changes``, which makes facts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.program.sinks import DiscardSink
from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import ChangesNode, WriteNode
from headrace.errors import ProgramError
from headrace.testing import Harness


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int = 0


class Same(hr.Process[Tx, Tx, str]):
    odd: hr.Side[Tx]

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
        yield event


class Both(hr.CoProcess[Tx, Tx, Tx, str]):
    odd: hr.Side[Tx]

    def on_left(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
        yield event

    def on_right(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
        yield event


class Ruled(hr.BroadcastProcess[Tx, Tx, Tx, str]):
    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
        yield event

    def on_broadcast(self, event: Tx, ctx: hr.BroadcastContext[str]) -> Iterator[Tx]:
        yield event


def other(rows: hr.Stream[Any]) -> hr.Stream[Tx]:
    """A stream of the same program whose rows are no updates."""
    return rows.app.read("other", hr.source.items([]), Tx, time=Tx.at)


async def answered(row: Tx) -> Tx:
    return row


def bigger(a: Tx, b: Tx) -> Tx:
    return a if a.cents > b.cents else b


@pytest.fixture
def tx() -> hr.Stream[Tx]:
    return hr.App("shop").read("tx", hr.source.items([]), Tx, time=Tx.at)


def rolling(tx: hr.Stream[Tx], verb: str) -> hr.Stream[Any]:
    by_card = tx.key_by("card")
    made: dict[str, Callable[[], hr.Stream[Any]]] = {
        "aggregate": lambda: by_card.aggregate(cents=hr.sum("cents")),
        "latest": by_card.latest,
        "reduce": lambda: by_card.reduce(bigger),
        "reduce per epoch": lambda: by_card.reduce(bigger, fire=hr.per_epoch()),
    }
    return made[verb]().named("rolling")


ROLLING = ["aggregate", "latest", "reduce", "reduce per epoch"]


@pytest.mark.parametrize("verb", ROLLING)
def test_rolling_steps_give_updates(tx: hr.Stream[Tx], verb: str) -> None:
    assert rolling(tx, verb).node.updates


HANDING_ON: dict[str, Callable[[hr.Stream[Any]], hr.Stream[Any]]] = {
    "where": lambda rows: rows.where("cents > 0"),
    "select": lambda rows: rows.select("card", "cents"),
    "with_columns": lambda rows: rows.with_columns(double="cents * 2"),
    "filter": lambda rows: rows.filter(bool),
    "only": lambda rows: rows.only(rows.node.codec.type),
    "union": lambda rows: rows.where("cents > 0").union(rows.where("cents < 0")),
    "latest": lambda rows: rows.key_by("card").latest(),
    "late": lambda rows: rows.key_by("card").process(Same()).late,
    "map": lambda rows: rows.map(lambda row: row, output=Tx),
    "flat_map": lambda rows: rows.flat_map(lambda row: [row], output=Tx),
    "map_batches": lambda rows: rows.map_batches(lambda batch: batch, Tx),
    "process": lambda rows: rows.key_by("card").process(Same()),
    "side": lambda rows: rows.key_by("card").process(Same()).side(Same.odd),
    "connect": lambda rows: rows.key_by("card").connect(other(rows).key_by("card")).process(Both()),
    "connected": lambda rows: other(rows).key_by("card").connect(rows.key_by("card")).process(Both()),
    "side of connect": lambda rows: (
        other(rows).key_by("card").connect(rows.key_by("card")).process(Both()).side(Both.odd)
    ),
    "connect to rules": lambda rows: rows.key_by("card").connect(other(rows).broadcast()).process(Ruled()),
    "map_async": lambda rows: rows.map_async(answered).named("asked"),
    "map_async, carried": lambda rows: rows.map_async(answered, wait="carry", ordered=False).named("asked"),
    "broadcast": lambda rows: other(rows).key_by("card").connect(rows.broadcast()).process(Ruled()),
}


@pytest.mark.parametrize("verb", HANDING_ON)
def test_what_hands_rows_on_hands_on_that_they_are_updates(tx: hr.Stream[Tx], verb: str) -> None:
    assert HANDING_ON[verb](rolling(tx, "latest")).node.updates


@pytest.mark.parametrize("verb", [verb for verb in HANDING_ON if verb != "latest"])
def test_what_hands_rows_on_makes_no_updates_of_its_own(tx: hr.Stream[Tx], verb: str) -> None:
    assert not HANDING_ON[verb](tx).node.updates


@pytest.mark.parametrize("verb", ["errors", "changes"])
def test_errors_and_changes_stand_for_themselves(tx: hr.Stream[Tx], verb: str) -> None:
    newest = rolling(tx, "latest")
    rows: hr.Stream[Any] = newest.errors if verb == "errors" else newest.changes()
    assert not rows.node.updates
    rows.write(hr.sink.files("out/"))


COUNTING: dict[str, Callable[[hr.Stream[Any]], Any]] = {
    "aggregate": lambda rows: rows.key_by("card").aggregate(n=hr.count()),
    "aggregate over": lambda rows: rows.key_by("card").aggregate(n=hr.count(over="1h")),
    "reduce": lambda rows: rows.key_by("card").reduce(bigger),
    "window": lambda rows: rows.key_by("card").window(hr.tumbling("1h")),
    "window of all": lambda rows: rows.window(hr.tumbling("1h")),
}


@pytest.mark.parametrize("counting", COUNTING)
@pytest.mark.parametrize(
    "between",
    [
        "where", "map", "flat_map", "map_batches", "process", "union", "connect", "connected", "connect to rules",
        "broadcast",
    ],
)  # fmt: skip
def test_aggregates_and_windows_refuse_rows_that_replace_earlier_ones(
    tx: hr.Stream[Tx], between: str, counting: str
) -> None:
    newest = HANDING_ON[between](rolling(tx, "latest"))
    with pytest.raises(ProgramError, match="would count every version of rows") as caught:
        COUNTING[counting](newest)
    assert "test_updates.py:" in caught.value.where
    assert caught.value.found.startswith("rows of rolling, which")
    assert ".changes()" in caught.value.next_move
    COUNTING[counting](newest.changes())


def test_a_window_over_early_results_is_refused_and_one_over_final_results_is_not(tx: hr.Stream[Tx]) -> None:
    early = tx.key_by("card").window(hr.tumbling("1m"), fire=hr.early("1s")).aggregate(cents=hr.sum("cents"))
    early = early.named("minutes")
    with pytest.raises(ProgramError) as caught:
        early.key_by("card").window(hr.tumbling("1h"))
    assert ".finals()" in caught.value.next_move
    early.finals().key_by("card").window(hr.tumbling("1h")).aggregate(cents=hr.sum("cents"))


class Upserting(DiscardSink):
    kind = "upserting"


class Silent(DiscardSink):
    """A sink whose author did not say."""

    kind = "silent"
    accepts_updates = hr.Sink.accepts_updates


@pytest.mark.parametrize(
    "sink", [hr.sink.files("out/"), hr.sink.spark("parquet", path="out/"), Silent()], ids=["files", "spark", "own"]
)
def test_a_sink_that_appends_refuses_updates_at_the_line_of_the_write(tx: hr.Stream[Tx], sink: hr.Sink) -> None:
    totals = rolling(tx, "aggregate").where("cents > 0")
    with pytest.raises(ProgramError) as caught:
        totals.write(sink)
    error = caught.value
    assert "test_updates.py:" in error.where
    assert "replace earlier ones" in error.what
    assert error.found.startswith("rolling, ")
    assert ".changes().write(" in error.next_move
    assert not [node for node in tx.app.nodes if isinstance(node, WriteNode)]
    totals.changes().write(sink)


@pytest.mark.parametrize(
    "sink", [hr.sink.console(), hr.sink.collect(), hr.sink.call(print), hr.sink.discard(), Upserting()]
)
def test_other_sinks_take_updates(tx: hr.Stream[Tx], sink: hr.Sink) -> None:
    rolling(tx, "reduce").write(sink)


def test_late_updates_are_told_by_the_step_that_made_them(tx: hr.Stream[Tx]) -> None:
    late = rolling(tx, "latest").key_by("card").process(Same()).late
    with pytest.raises(ProgramError) as caught:
        late.write(hr.sink.files("late/"))
    assert caught.value.found.startswith("rolling, ")


def test_changes_of_rows_that_are_no_updates_are_the_rows(tx: hr.Stream[Tx]) -> None:
    assert tx.changes().node is tx.node


def test_changes_keep_the_place_of_rows_and_the_name_of_their_output(tx: hr.Stream[Tx]) -> None:
    newest = rolling(tx, "latest")
    changes = newest.changes()
    assert isinstance(changes.node, ChangesNode)
    assert changes.node.placed_by == ("card",)
    changes.write(hr.sink.files("out/"))
    write = tx.app.nodes[-1]
    assert write.name == "rolling_files_out"
    assert "changes → Tx" in tx.app.explain()


def test_every_version_of_a_key_stands_in_the_files(tx: hr.Stream[Tx], tmp_path: Path) -> None:
    counts = tx.key_by(Tx.card).aggregate(n=hr.count()).named("counts")
    again = counts.changes().where("n > 1").key_by("card").aggregate(versions=hr.count()).named("again")
    counts.changes().write(hr.sink.files(tmp_path / "out"))
    again.show()
    assert len(reachable(tx.app)) == 8
    with Harness(tx.app, sinks=True) as h:
        for at in (1, 2, 3):
            h.push(tx, Tx("a", hr.Timestamp(at)))
            h.epoch()
        assert [row.n for row in h.take(counts)] == [1, 2, 3]
        assert [row.versions for row in h.take(again)] == [1, 2]
    files = sorted((tmp_path / "out").iterdir())
    assert [file.read_text() for file in files] == [f'{{"card":"a","n":{n}}}\n' for n in (1, 2, 3)]
