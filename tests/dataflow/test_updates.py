"""Updates: rows that and these are updates, the sinks that refuse them, and ``changes``, which makes facts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.program.sinks import DiscardSink
from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import ChangesNode, WriteNode
from headrace.dataflow.keyed import KeyedStream
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
    number = len(rows.app.nodes)
    return rows.app.read(f"other_{number}", hr.source.items([]), Tx, time=Tx.at)


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
    assert rolling(tx, verb).node.kind.corrects


HANDING_ON: dict[str, Callable[[hr.Stream[Any]], hr.Stream[Any]]] = {
    "where": lambda rows: rows.where("cents > 0"),
    "select": lambda rows: rows.select("card", "cents"),
    "with_columns": lambda rows: rows.with_columns(double="cents * 2"),
    "filter": lambda rows: rows.filter(bool),
    "only": lambda rows: rows.only(rows.node.codec.type),
    "union": lambda rows: rows.where("cents > 0").union(rows.where("cents < 0")),
    "latest": lambda rows: rows.key_by("card").latest(),
    "map": lambda rows: rows.map(lambda row: row, output=Tx),
    "flat_map": lambda rows: rows.flat_map(lambda row: [row], output=Tx),
    "map_batches": lambda rows: rows.map_batches(lambda batch: batch, Tx),
}
FACTS_ONLY: dict[str, Callable[[hr.Stream[Any]], hr.Stream[Any]]] = {
    "process": lambda rows: rows.key_by("card").process(Same()),
    "process in order": lambda rows: rows.key_by("card").process(Same(), order="time"),
    "late": lambda rows: rows.key_by("card").process(Same()).late,
    "side": lambda rows: rows.key_by("card").process(Same()).side(Same.odd),
    "connect": lambda rows: rows.key_by("card").connect(other(rows).key_by("card")).process(Both()),
    "connected": lambda rows: other(rows).key_by("card").connect(rows.key_by("card")).process(Both()),
    "connect to rules": lambda rows: rows.key_by("card").connect(other(rows).broadcast()).process(Ruled()),
    "connect without a key": lambda rows: rows.connect(other(rows).broadcast()).process(Ruled()),
    "broadcast": lambda rows: other(rows).key_by("card").connect(rows.broadcast()).process(Ruled()),
    "lookup": lambda rows: rows.lookup(answered, by="card", output=Tx).select(card="left.card"),
    "map_async": lambda rows: rows.map_async(answered).named("asked"),
    "map_async, carried": lambda rows: rows.map_async(answered, wait="carry", ordered=False).named("asked"),
    "join_asof": lambda rows: as_of(rows).select(card="left.card"),
    "joined as of": lambda rows: other(rows).key_by("card").join_asof(rows.key_by("card")).select(card="left.card"),
}
"""Verbs that take each row for something that has happened."""


@pytest.mark.parametrize("verb", HANDING_ON)
def test_what_hands_rows_on_hands_on_that_they_are_updates(tx: hr.Stream[Tx], verb: str) -> None:
    assert HANDING_ON[verb](rolling(tx, "latest")).node.kind.corrects


@pytest.mark.parametrize("verb", [verb for verb in HANDING_ON if verb != "latest"])
def test_what_hands_rows_on_makes_no_updates_of_its_own(tx: hr.Stream[Tx], verb: str) -> None:
    assert not HANDING_ON[verb](tx).node.kind.corrects


@pytest.mark.parametrize("verb", ["errors", "changes"])
def test_errors_and_changes_stand_for_themselves(tx: hr.Stream[Tx], verb: str) -> None:
    newest = rolling(tx, "latest")
    rows: hr.Stream[Any] = newest.errors if verb == "errors" else newest.changes()
    assert not rows.node.kind.corrects
    rows.write(hr.sink.files("out/"))


COUNTING: dict[str, Callable[[hr.Stream[Any]], Any]] = {
    "aggregate": lambda rows: rows.key_by("card").aggregate(n=hr.count()),
    "aggregate over": lambda rows: rows.key_by("card").aggregate(n=hr.count(over="1h")),
    "reduce": lambda rows: rows.key_by("card").reduce(bigger),
}
TAKING_BACK = ("where", "map", "flat_map", "map_batches", "union")
"""Verbs that say of a row that goes what they said of it when it came."""


@pytest.mark.parametrize("counting", COUNTING)
@pytest.mark.parametrize("between", TAKING_BACK)
def test_what_cannot_take_rows_out_refuses_rows_that_replace_earlier_ones(
    tx: hr.Stream[Tx], between: str, counting: str
) -> None:
    newest = HANDING_ON[between](rolling(tx, "latest"))
    if counting == "aggregate":
        assert str(COUNTING[counting](newest).node.kind) == "changelog by card"
        return
    with pytest.raises(ProgramError, match="would count every version of a row") as caught:
        COUNTING[counting](newest)
    assert "test_updates.py:" in caught.value.where
    assert caught.value.found.startswith("rows of rolling, which")
    assert ".changes()" in caught.value.next_move
    COUNTING[counting](newest.changes())


@pytest.mark.parametrize("verb", FACTS_ONLY)
@pytest.mark.parametrize("between", ["", "where", "map"])
def test_what_takes_facts_only_refuses_updates_and_takes_every_version_of_them(
    tx: hr.Stream[Tx], verb: str, between: str
) -> None:
    newest = rolling(tx, "latest")
    rows = HANDING_ON[between](newest) if between else newest
    with pytest.raises(ProgramError, match="would take every version of a row for a fact") as caught:
        FACTS_ONLY[verb](rows)
    assert "test_updates.py:" in caught.value.where
    assert caught.value.found.startswith("rows of rolling, which")
    assert ".changes()" in caught.value.next_move
    assert not FACTS_ONLY[verb](rows.changes()).node.kind.corrects


def untimed(rows: hr.Stream[Any]) -> hr.Stream[Any]:
    """Updates of a stream without event time."""
    tx = rows.app.read("untimed", hr.source.items([]), Tx)
    return tx.key_by("card").latest().named("untimed_latest")


REFUSED_OVER_CHANGELOGS: dict[str, tuple[Callable[[hr.Stream[Any]], Any], str]] = {
    "quantile": (lambda rows: rows.key_by("card").aggregate(q=hr.quantile("n", 0.5)), "cannot be taken out"),
    "newest": (lambda rows: untimed(rows).key_by("card").aggregate(n=hr.last("card")), "came last means nothing"),
    "per row": (lambda rows: rows.key_by("card").aggregate(fire=hr.per_row(), n=hr.count()), "fire=hr.per_row()"),
    "horizon": (lambda rows: rows.key_by("card").aggregate(n=hr.count(over="1h")), "every version"),
    "reduce": (lambda rows: rows.key_by("card").reduce(lambda a, b: a), "every version"),
    "latest": (
        lambda rows: untimed(rows).where("cents > 1").key_by("card").aggregate(n=hr.count()).key_by("n").latest(),
        "which row is the newest is not known",
    ),
    "any key": (
        lambda rows: rows.key_by(lambda row: row.card).aggregate(n=hr.count()),
        "has to know which row replaces",
    ),
    "window without an end": (
        lambda rows: rows.key_by("card").window(hr.unbounded(), fire=hr.every(rows=3)),
        "neither fixed bounds",
    ),
    "window that fires early": (
        lambda rows: rows.key_by("card").window(hr.tumbling("1h"), fire=hr.early("1m")),
        "fire=, allow_late=",
    ),
    "window of the wall clock": (
        lambda rows: rows.key_by("card").window(hr.tumbling("1h", clock="wall")),
        "the wall clock cannot be had",
    ),
    "map_async": (lambda rows: rows.map_async(answered, output=Tx), "for a fact"),
    "lookup": (lambda rows: rows.lookup(answered, by="card", output=Tx), "for a fact"),
    "join within a time": (
        lambda rows: rows.key_by("card").join(rows.key_by("card"), within=("0s", "1h")),
        "cannot take updates",
    ),
    "join of the newest": (
        lambda rows: rows.key_by("card").join(rows.key_by("card"), within=None, keep="latest"),
        "taken back",
    ),
    "join of the newest by another key": (
        lambda rows: (
            other(rows)
            .key_by("cents")
            .latest()
            .key_by("card")
            .join(other(rows).key_by("card"), within=None, keep="latest")
        ),
        "have moved to another key",
    ),
    "join_asof": (lambda rows: rows.key_by("card").join_asof(other(rows).key_by("card")), "for a fact"),
    "appending sink": (lambda rows: rows.write(hr.sink.files("out/")), "can only append rows"),
    "call": (lambda rows: rows.write(hr.sink.call(print)), "cannot take back rows"),
}


@pytest.mark.parametrize("name", REFUSED_OVER_CHANGELOGS)
def test_what_cannot_be_right_over_rows_that_are_taken_back_is_refused_with_the_way_out(
    tx: hr.Stream[Tx], name: str
) -> None:
    counts = rolling(tx, "latest").key_by("card").aggregate(n=hr.count()).named("counts")
    apply, words = REFUSED_OVER_CHANGELOGS[name]
    with pytest.raises(ProgramError) as caught:
        apply(counts)
    error = caught.value
    assert words in error.what
    assert "test_updates.py:" in error.where and error.expected and error.found and error.next_move


def test_rows_whose_key_is_no_column_cannot_be_taken_back(tx: hr.Stream[Tx]) -> None:
    newest = tx.key_by(lambda row: row.card).latest().named("newest")
    for apply in (lambda: newest.key_by("card").aggregate(n=hr.count()), lambda: newest.changes(kind="op")):
        with pytest.raises(ProgramError, match="has to know which row replaces which") as caught:
            apply()
        assert "key_by(Tx.card)" in caught.value.next_move


def test_a_step_that_has_the_name_of_one_that_is_put_in_is_refused(tx: hr.Stream[Tx]) -> None:
    newest = rolling(tx, "latest")
    tx.key_by("card").latest().named("rolling_normalised").show()
    newest.changes(kind="op").show()
    with pytest.raises(ProgramError, match="the name 'rolling_normalised' is taken"):
        tx.app.explain()


def test_the_kind_of_a_change_needs_a_name_of_its_own(tx: hr.Stream[Tx]) -> None:
    with pytest.raises(ProgramError, match="have a column 'cents' already"):
        rolling(tx, "latest").changes(kind="cents")


def test_a_window_over_early_results_is_refused_and_one_over_final_results_is_not(tx: hr.Stream[Tx]) -> None:
    early = tx.key_by("card").window(hr.tumbling("1m"), fire=hr.early("1s")).aggregate(cents=hr.sum("cents"))
    early = early.named("minutes")
    with pytest.raises(ProgramError) as caught:
        early.key_by("card").window(hr.tumbling("1h"))
    assert ".finals()" in caught.value.next_move
    early.finals().key_by("card").window(hr.tumbling("1h")).aggregate(cents=hr.sum("cents"))


class Looked(hr.WindowProcess[Tx, Tx, str]):
    odd: hr.Side[Tx]

    def on_window(self, rows: Any, ctx: hr.WindowContext[str]) -> Iterator[Tx]:
        yield rows[-1]


def early(rows: hr.Stream[Any], **how: Any) -> hr.types.Windowed[Any, Any]:
    """Windows that give their results more than once."""
    return rows.key_by("card").window(hr.tumbling("1h"), fire=hr.early("1s"), **how)


def as_of(rows: hr.Stream[Any]) -> hr.types.Joined[Any, Any]:
    return rows.key_by("card").join_asof(other(rows).key_by("card"))


def lasting(rows: hr.Stream[Any]) -> hr.types.Joined[Any, Any]:
    return rows.key_by("card").join(other(rows).key_by("card"), within=None, how="left")


def connected(rows: hr.Stream[Any]) -> hr.types.Connected[Any, Any, Any]:
    return rows.key_by("card").connect(other(rows).key_by("card"))


def fed(rows: hr.Stream[Any]) -> hr.types.Loop[Any]:
    loop = rows.app.loop("again", Tx)
    rows.feed(loop)
    return loop


HANDS_ON, REFUSES, DROPS, MAKES = "hands on", "refuses", "drops", "makes updates of its own"
"""What a verb does with the mark that rows and these are updates."""
NO_ROWS, MAKES_OF_FACTS = "gives no rows", "refuses, and makes updates of facts"
Verb = tuple[str, Callable[[hr.Stream[Any]], Any]]
NOTHING: Verb = (NO_ROWS, lambda rows: None)
VERBS: dict[str, Verb] = {
    "Stream.app": NOTHING,
    "Stream.node": NOTHING,
    "Stream.named": (MAKES, lambda rows: rows.key_by("card").latest().named("again")),
    "Stream.queryable": (MAKES, lambda rows: rows.key_by("card").latest().queryable()),
    "Stream.show": NOTHING,
    "Stream.write": (REFUSES, lambda rows: rows.write(hr.sink.files("out/"))),
    "Stream.feed": (REFUSES, fed),
    "Stream.key_by": NOTHING,
    "Stream.broadcast": (REFUSES, FACTS_ONLY["broadcast"]),
    "Stream.connect": (REFUSES, FACTS_ONLY["connect without a key"]),
    "Stream.changes": (DROPS, lambda rows: rows.changes()),
    # It is of changes that come from outside, which have a type of their own.
    "Stream.debezium": NOTHING,
    "KeyedStream.upserts": (MAKES_OF_FACTS, lambda rows: rows.key_by("card").upserts()),
    "Stream.errors": (DROPS, lambda rows: rows.map(lambda row: row, output=Tx).errors),
    "Stream.side": (REFUSES, FACTS_ONLY["side"]),
    "Stream.lookup": (REFUSES, FACTS_ONLY["lookup"]),
    "Stream.map_async": (REFUSES, FACTS_ONLY["map_async"]),
    "Stream.window": (DROPS, lambda rows: rows.window(hr.tumbling("1h")).aggregate(n=hr.count())),
    **{
        f"Stream.{verb}": (HANDS_ON, HANDING_ON[verb])
        for verb in (
            "filter", "flat_map", "map", "map_batches", "only", "select", "union", "where", "with_columns",
        )
    },
    "StepStream.late": (REFUSES, FACTS_ONLY["late"]),
    "KeyedStream.app": NOTHING,
    "KeyedStream.key": NOTHING,
    "KeyedStream.process": (REFUSES, FACTS_ONLY["process"]),
    "KeyedStream.connect": (REFUSES, FACTS_ONLY["connect"]),
    "KeyedStream.latest": (MAKES, lambda rows: rows.key_by("card").latest()),
    "KeyedStream.top": (MAKES, lambda rows: rows.key_by("card").top(3, by="-cents")),
    "KeyedStream.aggregate": (MAKES, COUNTING["aggregate"]),
    "KeyedStream.reduce": (REFUSES, COUNTING["reduce"]),
    "KeyedStream.window": (
        DROPS, lambda rows: rows.key_by("card").window(hr.tumbling("1h")).aggregate(n=hr.count()),
    ),
    "KeyedStream.match": (
        REFUSES, lambda rows: rows.key_by("card").match(hr.pattern("small", "cents < 9").then("large", "cents > 99")),
    ),
    "KeyedStream.co_group": (
        REFUSES, lambda rows: rows.key_by("card").co_group(other(rows).key_by("card"), hr.tumbling("1h")),
    ),
    "KeyedStream.join": (
        REFUSES, lambda rows: rows.key_by("card").join(other(rows).key_by("card"), within=("0s", "1h")),
    ),
    "KeyedStream.join_asof": (REFUSES, FACTS_ONLY["join_asof"]),
    "Joined.app": NOTHING,
    "Joined.node": NOTHING,
    "Joined.named": NOTHING,
    "Joined.select": (MAKES, lambda rows: lasting(rows).select(card="left.card")),
    "Joined.map": (MAKES, lambda rows: lasting(rows).map(lambda left, right: left, output=Tx)),
    "Joined.errors": (REFUSES, lambda rows: rows.lookup(answered, by="card", output=Tx).errors),
    "Joined.late_left": (REFUSES, lambda rows: as_of(rows).late_left),
    "Joined.late_right": (REFUSES, lambda rows: other(rows).key_by("card").join_asof(rows.key_by("card")).late_right),
    # Only joins that refuse updates on either side have these.
    "Joined.unmatched_left": NOTHING,
    "Joined.unmatched_right": NOTHING,
    "Connected.process": (REFUSES, FACTS_ONLY["connected"]),
    "ConnectedStream.late_left": (REFUSES, lambda rows: connected(rows).process(Both()).late_left),
    "ConnectedStream.late_right": (
        REFUSES, lambda rows: other(rows).key_by("card").connect(rows.key_by("card")).process(Both()).late_right,
    ),
    "BroadcastConnected.process": (REFUSES, FACTS_ONLY["connect to rules"]),
    # Windows refuse updates and make them of their own, where they fire more than once.
    "Windowed.aggregate": (MAKES, lambda rows: early(rows.changes()).aggregate(n=hr.count())),
    "Windowed.reduce": (MAKES, lambda rows: early(rows.changes()).reduce(bigger)),
    "Windowed.process": (MAKES, lambda rows: early(rows.changes()).process(Looked())),
    "WindowStream.late": (DROPS, lambda rows: early(rows.changes()).process(Looked()).late),
    "WindowStream.finals": (DROPS, lambda rows: early(rows.changes()).process(Looked()).finals()),
    "WindowStream.queryable": (MAKES, lambda rows: early(rows.changes()).process(Looked()).queryable()),
    "CoGrouped.map": NOTHING,
    "CoGrouped.process": NOTHING,
}  # fmt: skip
CLASSES = (
    hr.Stream, hr.types.StepStream, KeyedStream, hr.types.Joined, hr.types.Connected, hr.types.ConnectedStream,
    hr.types.BroadcastConnected, hr.types.Windowed, hr.types.WindowStream, hr.types.CoGrouped,
)  # fmt: skip


def test_every_public_verb_says_what_it_does_with_updates() -> None:
    there = {
        f"{cls.__name__}.{name}"
        for cls in CLASSES
        for name in dir(cls)
        if not name.startswith("_")
        and (name in vars(cls) or not any(name in dir(base) for base in cls.__mro__[1:] if base in CLASSES))
    }
    assert there == set(VERBS), "a verb is not in the table: say whether it hands on that rows are updates"


@pytest.mark.parametrize("verb", [verb for verb, (does, _) in VERBS.items() if does != NO_ROWS])
def test_verbs_do_with_updates_what_the_table_says(verb: str) -> None:
    def newest() -> hr.Stream[Any]:
        return rolling(hr.App("shop").read("tx", hr.source.items([]), Tx, time=Tx.at), "latest")

    does, apply = VERBS[verb]
    if does in (REFUSES, MAKES_OF_FACTS):
        with pytest.raises(ProgramError) as refused:
            apply(newest())
        assert ".changes()" in f"{refused.value.next_move}{refused.value.expected}"
        made = apply(newest().changes())
        assert does == REFUSES or made.node.kind.corrects
        return
    assert apply(newest()).node.kind.corrects is (does != DROPS)
    if does == HANDS_ON:
        assert not apply(newest().changes()).node.kind.corrects


def test_what_windows_that_fire_early_are_made_into_is_refused_by_windows_and_files(tx: hr.Stream[Tx]) -> None:
    looked = early(tx).process(Looked())
    with pytest.raises(ProgramError, match="window would count every version") as refused:
        looked.key_by("card").window(hr.tumbling("1h"))
    assert ".finals()" in refused.value.next_move
    with pytest.raises(ProgramError, match="and these are updates"):
        looked.write(hr.sink.files("out/"))
    looked.finals().write(hr.sink.files("out/"))
    assert not early(tx, panes="discard").process(Looked()).named("new").node.kind.corrects
    assert not tx.key_by("card").window(hr.tumbling("1h")).process(Looked()).named("once").node.kind.corrects


@pytest.mark.parametrize(("how", "key"), [("inner", "a"), ("left", "a"), ("right", "b"), ("full", None)])
def test_pairs_of_the_newest_rows_have_the_key_of_the_side_that_is_always_there(
    tx: hr.Stream[Tx], how: Any, key: str | None
) -> None:
    newest = tx.key_by("card").latest().named("newest")
    pairs = newest.key_by("card").join(other(tx).key_by("card"), within=None, keep="latest", how=how).named("pairs")
    rows = pairs.select(a="left.card", b="right.card")
    assert rows.node.kind.rows == "upsert" and rows.node.kind.key == (None if key is None else (key,))


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
    assert "can only append rows" in error.what
    assert error.found.startswith("rolling, ")
    assert ".changes().write(" in error.next_move
    assert not [node for node in tx.app.nodes if isinstance(node, WriteNode)]
    totals.changes().write(sink)


@pytest.mark.parametrize(
    "sink", [hr.sink.console(), hr.sink.collect(), hr.sink.call(print), hr.sink.discard(), Upserting()]
)
def test_other_sinks_take_updates(tx: hr.Stream[Tx], sink: hr.Sink) -> None:
    rolling(tx, "reduce").write(sink)


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
