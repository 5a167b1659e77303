"""A target that finds rows by another key than theirs holds what they come to: nothing under a key that they left."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.connectors.staged import read_batches
from headrace.errors import ProgramError
from headrace.model.batch import Rows
from headrace.model.row_kind import DELETE, INSERT, Kinds
from headrace.model.rows import codec_of
from headrace.testing import Harness
from headrace.testing.staging import Staging
from tests.checkpoint.keyed_table import KeyedTable
from tests.services.messages import read_messages

if TYPE_CHECKING:
    from tests.services.kafka import Broker


class Tx(hr.Record):
    card: str | None
    region: str | None
    n: int
    at: hr.Timestamp = hr.Timestamp(0)


class Total(hr.Record):
    card: str | None
    region: str | None
    n: int


class Held(NamedTuple):
    """What a model says that holds."""

    time: int
    row: Total


Stream = hr.Stream[Any]
Model = Callable[[dict[str | None, Held]], list[Held]]


def totals_of(tx: Stream) -> Stream:
    by_card = tx.key_by("card")
    return by_card.aggregate(Total, region=hr.last("region"), n=hr.sum("n")).named("totals")


def by_region(held: dict[str | None, Held]) -> list[Held]:
    """Per region the number of its cards; the region stands where the card was."""
    regions: dict[str | None, list[Held]] = {}
    for each in held.values():
        regions.setdefault(each.row.region, []).append(each)
    return [Held(0, Total(region, "all", len(cards))) for region, cards in regions.items()]


SHAPES: dict[str, tuple[Callable[[Stream], Stream], Model]] = {
    "upserts": (lambda totals: totals, lambda held: [*held.values()]),
    "upserts behind a condition": (
        lambda totals: totals.where("n > 0"),
        lambda held: [each for each in held.values() if each.row.n > 0],
    ),
    "upserts without a known key": (
        lambda totals: totals.map(lambda row: row.replace(n=row.n % 3), output=Total),
        lambda held: [each._replace(row=each.row.replace(n=each.row.n % 3)) for each in held.values()],
    ),
    "a union": (
        lambda totals: totals.where("n > 0").union(totals.where("n <= 0")),
        lambda held: [*held.values()],
    ),
    "a changelog": (
        lambda totals: (
            totals.key_by("region").aggregate(n=hr.count()).named("regions").select(
                Total, card="region", region="'all'", n="n"
            )
        ),
        by_region,
    ),
}  # fmt: skip
KEYS = (("card",), ("region",), ("n",), ("region", "n"))
CARDS, REGIONS = st.sampled_from(["a", "b", "c", None]), st.sampled_from(["x", "y", None])
EPOCHS = st.lists(
    st.tuples(
        st.lists(st.tuples(CARDS, REGIONS, st.integers(-2, 2)), max_size=4),
        st.sampled_from(["", "", "before_publish", "published"]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)), key=st.sampled_from(KEYS), epochs=EPOCHS, shards=st.integers(1, 3),
    timed=st.booleans(),
)  # fmt: skip
def test_a_target_holds_of_each_of_its_keys_the_newest_row_that_holds(
    shape: str, key: tuple[str, ...], epochs: Any, shards: int, timed: bool
) -> None:
    make, model = SHAPES[shape]
    app, table = hr.App("shop"), KeyedTable(*key)
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at if timed else None)
    make(totals_of(tx)).write(table, name="table")
    held: dict[str | None, Held] = {}
    number = 0
    with Harness(app, sinks=True, parallelism=shards) as h:
        for rows, point in epochs:
            for card, region, n in rows:
                number += 1
                h.push(tx, Tx(card, region, n, hr.Timestamp(number)))
                before = held[card].row if card in held else Total(card, None, 0)
                # `last` passes over null.
                held[card] = Held(number, Total(card, region or before.region, before.n + n))
            if not point:
                h.epoch()
            else:
                h.crash(at=point)
                if point == "before_publish":
                    h.epoch()
    wanted: dict[Any, list[Held]] = {}
    for each in model(held):
        wanted.setdefault(table.key_of(each.row), []).append(each)
    assert set(table.rows) == set(wanted)
    for found, candidates in wanted.items():
        rows_there = [each.row for each in candidates]
        assert table.rows[found] in rows_there
        if shape != "a changelog":
            newest = max(candidates, key=lambda each: each.time) if timed else candidates[0]
            assert len(rows_there) == 1 or not timed or table.rows[found] == newest.row


def test_a_row_leaves_the_key_that_it_had_also_where_an_epoch_says_nothing_else() -> None:
    app, table = hr.App("shop"), KeyedTable("n")
    tx = app.read("tx", hr.source.items([]), Tx)
    totals_of(tx).write(table, name="by_n")
    assert "by_n_rows: top" in app.explain() and "totals_normalised: normalise" in app.explain()
    with Harness(app, sinks=True) as h:
        for card in ("a", "b", "a"):
            h.push(tx, Tx(card, "x", 1))
            h.epoch()
        assert {n: row.card for n, row in table.rows.items()} == {1: "b", 2: "a"}


def test_a_target_by_the_key_of_the_stream_needs_no_step_of_its_own() -> None:
    app = hr.App("shop")
    totals_of(app.read("tx", hr.source.items([]), Tx)).write(KeyedTable("card"), name="table")
    assert "normalise" not in app.explain() and "top" not in app.explain()


@pytest.mark.parametrize("rows", ["a key that is no column", "sessions that fire early"])
def test_updates_whose_rows_may_move_and_cannot_be_taken_back_are_refused(rows: str) -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    early = hr.early("1s")
    stream: Stream = {
        "a key that is no column": lambda: tx.key_by(lambda row: row.card).latest().named("newest"),
        "sessions that fire early": lambda: (
            tx.key_by("card").window(hr.session("1m"), fire=early).aggregate(n=hr.count()).named("visits")
        ),
    }[rows]()
    with pytest.raises(ProgramError) as refused:
        stream.write(KeyedTable("n"))
    assert "write by n" in refused.value.what
    assert "test_sink_keys.py:" in refused.value.where and refused.value.next_move
    stream.changes().write(KeyedTable("n"))


def test_early_results_of_windows_go_to_a_target_by_a_part_of_their_key() -> None:
    """A window never leaves the key that its columns make; its newest result is there."""
    app, table = hr.App("shop"), KeyedTable("card")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    windows = tx.key_by("card").window(hr.tumbling("1m"), fire=hr.early("1s"))
    windows.aggregate(n=hr.count()).named("minutes").write(table)
    assert "normalise" not in app.explain()


def test_a_message_lies_in_the_topic_that_its_row_says_and_is_taken_back_there(tmp_path: Path) -> None:
    app = hr.App("shop")
    totals = totals_of(app.read("tx", hr.source.items([]), Tx))
    sink = hr.sink.kafka("totals", key="card", topic_field="region", partition="n")
    totals.write(sink, name="out")
    assert "changelog by card, region, n" in app.explain()
    codec = codec_of(Total)
    staging = Staging(tmp_path)
    writer = sink.bind(codec, "out").open_writer(codec, staging.task(0, 0, "out"))
    kinds: Kinds = np.array([DELETE, INSERT], np.int8)
    writer.write(Rows.of_objects(codec, [Total("a", "x", 1), Total("a", "y", 2)], None, kinds))
    table = pa.Table.from_batches(read_batches(writer.finish(), staging.release(0)))
    said = zip(*(table.column(name).to_pylist() for name in ("topic", "partition", "key")), strict=True)
    assert [*said] == [("x", 1, b"a"), ("y", 2, b"a")]
    assert [value is None for value in table.column("value").to_pylist()] == [True, False]


# -- a broker ---------------------------------------------------------------------------------------------------------


def played(sinks: dict[str, Any], tmp_path: Path) -> dict[str, Total]:
    """Random epochs with crashes, of cards into each of these; gives back the cards that hold."""
    rng = random.Random(11)
    app, held = hr.App("shop"), dict[str, Total]()
    tx = app.read("tx", hr.source.items([]), Tx)
    totals = totals_of(tx).where("n > 0")
    for name, sink in sinks.items():
        totals.write(sink, name=name)
    with Harness(app, store=tmp_path, sinks=True, parallelism=2) as h:
        for _ in range(8):
            for _ in range(rng.randrange(1, 4)):
                row = Tx(rng.choice("abc"), rng.choice("xy"), rng.randrange(-2, 4))
                h.push(tx, row)
                assert row.card is not None
                before = held[row.card].n if row.card in held else 0
                held[row.card] = Total(row.card, row.region, before + row.n)
            if rng.random() < 0.4:
                h.crash(at="published")
            h.epoch()
    return {card: row for card, row in held.items() if row.n > 0}


def test_compacted_topics_come_to_what_holds_by_the_key_of_the_stream_and_by_another(
    kafka: Broker, tmp_path: Path
) -> None:
    """Each deletion is a message without a value, which has to lie behind what it takes back, on a real broker."""
    topics = {key: f"t-{uuid.uuid4().hex[:12]}" for key in ("card", "region", "debezium")}
    options: Any = {"brokers": kafka.bootstrap, "create": {"cleanup.policy": "compact"}, "partitions": 2}
    sinks = {key: hr.sink.kafka(topics[key], key=key, **options) for key in ("card", "region")}
    sinks["debezium"] = hr.sink.kafka(topics["debezium"], key="card", format="debezium-json", **options)
    held = played(sinks, tmp_path)

    def left(key: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for message in read_messages(kafka.bootstrap, topics[key]):
            name, value = message.key(), message.value()
            assert isinstance(name, bytes)
            values[name.decode()] = None if value is None else json.loads(value)
        return {name: value for name, value in values.items() if value is not None}

    assert {card: row["n"] for card, row in left("card").items()} == {card: row.n for card, row in held.items()}
    by_region = left("region")
    assert set(by_region) == {row.region for row in held.values()}
    assert all(
        held[row["card"]].region == region and held[row["card"]].n == row["n"] for region, row in by_region.items()
    )
    # Whoever applies the envelopes in their order has the same rows.
    applied = {card: change["after"]["n"] for card, change in left("debezium").items() if change["after"] is not None}
    assert applied == {card: row.n for card, row in held.items()}
    befores: dict[str, Any] = {}
    for message in read_messages(kafka.bootstrap, topics["debezium"]):
        change = json.loads(message.value() or b"null")
        name = (message.key() or b"").decode()
        assert change["before"] == befores.get(name), "what goes is what came"
        befores[name] = change["after"]
