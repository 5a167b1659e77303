from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import KeyedNode
from headrace.errors import ProgramError
from headrace.model.keyspec import KeySpec


class Tx(hr.Record):
    card: str
    shop: str
    at: hr.Timestamp
    cents: int = 0
    tags: list[str] = []


class Alert(hr.Record):
    card: str
    n: int = 0


class Fraud(hr.Process[Tx, Alert, str]):
    small: hr.ValueState[bool]
    odd: hr.Side[Tx]

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Alert]:
        yield Alert(ctx.key)


def bigger(a: Tx, b: Tx) -> Tx:
    return a if a.cents > b.cents else b


@pytest.fixture
def tx() -> hr.Stream[Tx]:
    return hr.App("fraud").read("tx", hr.source.items([]), Tx, time=Tx.at)


def keyed(stream: hr.Stream[Any]) -> KeyedNode:
    node = stream.node
    assert isinstance(node, KeyedNode)
    return node


def mistake(call: Callable[[], Any], *parts: str) -> None:
    with pytest.raises(ProgramError) as caught:
        call()
    assert "test_keyed.py:" in caught.value.where, str(caught.value)
    for part in parts:
        assert part in str(caught.value)


# -- keys --------------------------------------------------------------------------------------------------------


def test_a_key_is_a_field_a_name_several_or_a_function(tx: hr.Stream[Tx]) -> None:
    def of_row(row: Tx) -> tuple[str, int]:
        return (row.card, row.cents)

    anonymous = lambda row: row.card  # noqa: E731
    assert tx.key_by(Tx.card).key == KeySpec(("card",), None, str)
    assert tx.key_by("card").key == KeySpec(("card",), None, str)
    assert tx.key_by("CARD").key == KeySpec(("card",), None, str)
    assert tx.key_by(hr.col("at")).key == KeySpec(("at",), None, hr.Timestamp)
    assert tx.key_by(Tx.card, "shop").key == KeySpec(("card", "shop"), None, tuple[str, str])
    assert tx.key_by(of_row).key == KeySpec(None, of_row, tuple[str, int])
    assert tx.key_by(anonymous).key == KeySpec(None, anonymous, Any)


def test_wrong_keys_are_refused(tx: hr.Stream[Tx]) -> None:
    def listed(row: Tx) -> list[str]:
        return row.tags

    mistake(tx.key_by, "without a key")  # type: ignore[call-overload]
    mistake(lambda: tx.key_by("card", "card"), "twice")
    mistake(lambda: tx.key_by("tags"), "Tx.tags cannot be a key")
    mistake(lambda: tx.key_by(listed), "cannot be a key")
    mistake(lambda: tx.key_by("cents + 1"), "not the name of a column")
    mistake(lambda: tx.key_by(lambda row: row.card, "shop"), "key_by takes one function")
    mistake(lambda: tx.key_by(5), "not a column")


# -- steps -------------------------------------------------------------------------------------------------------


def test_a_process_step_is_named_by_its_class(tx: hr.Stream[Tx]) -> None:
    alerts = tx.key_by("card").process(Fraud())
    alerts.write(hr.sink.collect())
    reachable(tx.app)
    node = keyed(alerts)
    assert (node.name, node.op, node.codec.type) == ("fraud", "process", Alert)
    assert [decl.name for decl in node.decls] == ["small", "odd"]
    assert node.stateful


def test_a_name_given_by_hand_wins_whenever_it_is_given(tx: hr.Stream[Tx]) -> None:
    first = tx.key_by("card").process(Fraud())
    second = tx.key_by("card").process(Fraud()).named("again", was="second")
    for stream in (first, second):
        stream.write(hr.sink.collect())
    reachable(tx.app)
    assert (first.node.name, second.node.name, second.node.was) == ("fraud", "again", "second")


@pytest.mark.parametrize("verb", ["reduce", "aggregate", "latest"])
def test_other_keyed_steps_need_a_name(tx: hr.Stream[Tx], verb: str) -> None:
    by_card = tx.key_by("card")
    step: hr.Stream[Any] = {
        "reduce": lambda: by_card.reduce(bigger),
        "aggregate": lambda: by_card.aggregate(n=hr.count()),
        "latest": by_card.latest,
    }[verb]()
    step.write(hr.sink.collect())
    mistake(lambda: reachable(tx.app), f"this {verb} keeps state and has no name", '.named("…")')
    step.named("fine")
    assert reachable(tx.app)


def test_two_steps_of_one_name_are_refused_with_both_places(tx: hr.Stream[Tx]) -> None:
    tx.key_by("card").latest().named("newest")
    mistake(lambda: tx.key_by("card").latest().named("newest"), "two steps are named 'newest'", "test_keyed.py:")
    mistake(lambda: tx.key_by("card").latest().named("tx"), "two steps are named 'tx'")
    mistake(lambda: tx.app.read("newest", hr.source.items([]), Tx), "two steps are named 'newest'")


def test_two_steps_of_one_class_are_refused_when_the_program_is_whole(tx: hr.Stream[Tx]) -> None:
    for _ in range(2):
        tx.key_by("card").process(Fraud()).write(hr.sink.collect())
    mistake(lambda: reachable(tx.app), "two steps are named 'fraud'", ".named(")


def test_former_names_must_not_clash(tx: hr.Stream[Tx]) -> None:
    tx.key_by("card").latest().named("a").queryable()
    second = tx.key_by("card").latest().named("b", was="a").queryable()
    mistake(lambda: reachable(tx.app), "'b' cannot continue 'a'", "the name of another step")
    second.named("b", was="old")
    tx.key_by("card").latest().named("c", was="old").queryable()
    mistake(lambda: reachable(tx.app), "continued by 'b' too")


def test_queryable_counts_as_a_reader(tx: hr.Stream[Tx]) -> None:
    newest = tx.key_by("card").latest().named("newest").queryable()
    assert newest.node in reachable(tx.app)


# -- exchanges ---------------------------------------------------------------------------------------------------


def test_siblings_on_one_key_have_equal_specs(tx: hr.Stream[Tx]) -> None:
    first, second = tx.key_by(Tx.card).latest(), tx.key_by("card").reduce(bigger)
    assert keyed(first).key == keyed(second).key
    assert hash(keyed(first).key) == hash(keyed(second).key)
    assert keyed(first).input is keyed(second).input


@pytest.mark.parametrize("verb", ["reduce", "aggregate", "latest"])
def test_rows_that_lie_by_their_key_need_no_second_exchange(tx: hr.Stream[Tx], verb: str) -> None:
    by_card = tx.key_by("card", "shop")
    step: hr.Stream[Any] = {
        "reduce": lambda: by_card.reduce(bigger),
        "aggregate": lambda: by_card.aggregate(cents=hr.sum("cents")),
        "latest": by_card.latest,
    }[verb]()
    assert keyed(step).needs_exchange
    assert not keyed(step.key_by("card", "shop").latest()).needs_exchange
    assert not keyed(step.where("cents > 0").filter(bool).key_by("card", "shop").latest()).needs_exchange
    assert keyed(step.key_by("shop", "card").latest()).needs_exchange
    assert keyed(step.key_by("card").latest()).needs_exchange


def test_a_step_that_touches_the_key_needs_an_exchange(tx: hr.Stream[Tx]) -> None:
    newest = tx.key_by("card").latest()
    kept = newest.with_columns(double="cents * 2").select("card", "double")
    assert not keyed(kept.key_by("card").latest()).needs_exchange
    changed = newest.with_columns(card="upper(card)")
    assert keyed(changed.key_by("card").latest()).needs_exchange
    swapped = newest.select(card="shop", shop="card")
    assert keyed(swapped.key_by("card").latest()).needs_exchange
    mapped = newest.map(lambda t: t, output=Tx)
    assert keyed(mapped.key_by("card").latest()).needs_exchange
    processed = tx.key_by("card").process(Fraud())
    assert keyed(processed.key_by("card").latest()).needs_exchange
    by_function = tx.key_by(lambda t: t.card).latest()
    assert keyed(by_function.key_by("card").latest()).needs_exchange


# -- process -----------------------------------------------------------------------------------------------------


def test_process_takes_an_instance(tx: hr.Stream[Tx]) -> None:
    mistake(lambda: tx.key_by("card").process(Fraud), "process(Fraud(…))")  # type: ignore[arg-type]
    mistake(lambda: tx.key_by("card").process(lambda t: t), "map, flat_map")  # type: ignore[arg-type]


def test_process_checks_what_goes_in_and_the_key(tx: hr.Stream[Tx]) -> None:
    alerts = tx.map(lambda t: Alert(t.card), output=Alert)
    mistake(lambda: alerts.key_by("card").process(Fraud()), "takes rows of another type", "Tx", "Alert")  # type: ignore[arg-type]
    mistake(lambda: tx.key_by("cents").process(Fraud()), "another type of key", "int")
    tx.key_by(lambda row: row.card).process(Fraud()).named("by_function")  # its key may be anything: no mistake


def test_rows_can_be_put_in_the_order_of_event_time_where_there_is_one(tx: hr.Stream[Tx]) -> None:
    ordered = tx.where("cents > 0").key_by("card").process(Fraud(), order="time").named("ordered")
    ordered.write(hr.sink.collect())
    by = tx.key_by("card").process(Fraud(), order=("time", "cents")).named("by_cents")
    by.write(hr.sink.collect())
    explained = tx.app.explain()
    assert "each key's rows in the order of time, when the watermark has passed them" in explained
    assert "each key's rows in the order of time, then cents, when the watermark has passed them" in explained
    untimed = hr.App("b").read("tx", hr.source.items([]), Tx)
    assert keyed(untimed.key_by("card").process(Fraud())).spec is None
    mistake(lambda: untimed.key_by("card").process(Fraud(), order="time"), "needs event time", "time=Tx.at")
    mistake(lambda: tx.key_by("card").process(Fraud(), order="size"), 'order="time"')
    newest = tx.key_by("card").latest().named("newest")
    mistake(lambda: newest.key_by("card").process(Fraud(), order="time"), "for a fact", ".changes()")
    assert keyed(newest.changes().key_by("card").process(Fraud(), order="time").named("versions")).spec is not None
    mistake(lambda: tx.key_by("card").process(Fraud(), order=("cents",)), 'order="time"')
    mistake(lambda: tx.key_by("card").process(Fraud(), order=("time", "sents")), "no column 'sents'", "cents")
    both = untimed.union(untimed.app.read("timed", hr.source.items([]), Tx, time=Tx.at))
    assert keyed(both.key_by("card").process(Fraud(), order="time")).spec is not None


def test_a_time_to_live_on_event_time_needs_event_time(tx: hr.Stream[Tx]) -> None:
    class Brief(hr.Process[Tx, Alert, str]):
        seen: hr.ValueState[int] = hr.state(ttl=hr.ttl("1h", clock="event"))
        long: hr.ValueState[int] = hr.state(ttl="1h")

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    assert keyed(tx.key_by("card").process(Brief())).decls
    untimed = hr.App("b").read("tx", hr.source.items([]), Tx)
    mistake(lambda: untimed.key_by("card").process(Brief()), "seen would never expire", 'clock="wall"')


def test_process_has_to_say_what_comes_out(tx: hr.Stream[Tx]) -> None:
    class Vague(hr.Process):  # type: ignore[type-arg]
        def on_event(self, event: Any, ctx: Any) -> None: ...

    mistake(lambda: tx.key_by("card").process(Vague()), "class Vague(hr.Process[In, Out, Key])")


def test_process_needs_its_methods(tx: hr.Stream[Tx]) -> None:
    class Empty(hr.Process[Tx, Alert, str]):
        pass

    class Deaf(hr.Process[Tx, Alert, str]):
        quiet: hr.Timer

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    mistake(lambda: tx.key_by("card").process(Empty()), "has no on_event")
    mistake(lambda: tx.key_by("card").process(Deaf()), "has no on_timer", "quiet")


def test_side_outputs_are_taken_by_their_declaration(tx: hr.Stream[Tx]) -> None:
    class Other(hr.Process[Tx, Alert, str]):
        strange: hr.Side[Tx]

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    alerts = tx.key_by("card").process(Fraud())
    assert alerts.side(Fraud.odd).node is alerts.side(Fraud.odd).node
    assert alerts.side(Fraud.odd).node.codec.type is Tx
    mistake(lambda: alerts.side(Other.strange), "no side output of Fraud", "Fraud.odd")
    mistake(lambda: alerts.side(Fraud.small), "no side output")  # type: ignore[arg-type]
    mistake(lambda: alerts.side("odd"), "no side output")  # type: ignore[arg-type]
    mistake(lambda: tx.side(Fraud.odd), "side takes an output of a process function")


def test_late_rows_need_event_time(tx: hr.Stream[Tx]) -> None:
    alerts = tx.key_by("card").process(Fraud())
    assert alerts.late.node.codec.type is Tx
    untimed = hr.App("b").read("tx", hr.source.items([]), Tx).key_by("card").latest()
    mistake(lambda: untimed.late, ".late needs event time")
    mistake(lambda: tx.late, "come out of keyed steps")  # type: ignore[attr-defined]


# -- aggregates --------------------------------------------------------------------------------------------------


def test_aggregates_make_rows_of_key_and_results(tx: hr.Stream[Tx]) -> None:
    node = keyed(tx.key_by("card", "shop").aggregate(total=hr.sum(Tx.cents), n=hr.count(), last=hr.last("at")))
    assert node.codec.annotations == {"card": str, "shop": str, "total": int, "n": int, "last": hr.Timestamp}
    assert list(node.aggs) == ["total", "n", "last"]
    assert node.fire == "per_epoch"


def test_a_key_function_is_the_column_key(tx: hr.Stream[Tx]) -> None:
    def shop_of(row: Tx) -> str:
        return row.shop

    assert keyed(tx.key_by(shop_of).aggregate(n=hr.count())).codec.annotations == {"key": str, "n": int}


def test_aggregates_into_a_type_are_checked(tx: hr.Stream[Tx]) -> None:
    class Total(hr.Record):
        card: str
        total: int
        share: float = 0.0

    class Wrong(hr.Record):
        card: int
        total: int

    by_card = tx.key_by("card")
    assert keyed(by_card.aggregate(Total, total=hr.sum("cents"))).codec.type is Total
    assert keyed(by_card.aggregate(Total, total=hr.sum("cents"), share=hr.sum("cents"))).codec.type is Total
    mistake(lambda: by_card.aggregate(Total, totl=hr.sum("cents")), "did you mean total")
    mistake(lambda: by_card.aggregate(Total, share=hr.avg("cents")), "what total of Total is")
    mistake(lambda: by_card.aggregate(Total, total=hr.max("shop")), "another type", "int", "str")
    mistake(lambda: by_card.aggregate(Wrong, total=hr.sum("cents")), "Wrong.card")


def test_wrong_aggregates_are_refused(tx: hr.Stream[Tx]) -> None:
    by_card = tx.key_by("card")
    mistake(by_card.aggregate, "without aggregates")
    mistake(lambda: by_card.aggregate(n="count(*)"), "is no aggregate")  # type: ignore[arg-type]
    mistake(lambda: by_card.aggregate(card=hr.count()), "the name of another column", "a name other than card")
    mistake(lambda: by_card.aggregate(n=hr.sum("sents")), "sents")
    mistake(lambda: by_card.aggregate(n=hr.sum("shop")), "numbers")
    mistake(lambda: by_card.aggregate(n=hr.count(), fire="row"), "hr.per_row()")  # type: ignore[arg-type]


def test_results_may_be_given_out_for_each_row(tx: hr.Stream[Tx]) -> None:
    assert keyed(tx.key_by("card").aggregate(n=hr.count(), fire=hr.per_row())).fire == "per_row"
    assert keyed(tx.key_by("card").reduce(bigger)).fire == "per_row"
    assert keyed(tx.key_by("card").reduce(bigger, fire=hr.per_epoch())).fire == "per_epoch"


class Either(hr.Record):
    id: str | int
    anything: Any = None


@pytest.mark.parametrize("field", ["id", "anything"])
def test_an_aggregate_by_a_field_of_several_types_is_refused_and_one_by_a_function_is_not(field: str) -> None:
    app = hr.App("either")
    rows = app.read("rows", hr.source.items([]), Either)
    with pytest.raises(hr.ProgramError, match=f"cannot have '{field}' as a column of their key") as refused:
        rows.key_by(field).aggregate(n=hr.count())
    assert f"key_by(lambda row: row.{field})" in refused.value.next_move
    with pytest.raises(hr.ProgramError, match="as a column of their key"):
        rows.key_by(field).window(hr.tumbling("1h", clock="wall")).aggregate(n=hr.count())
    counts = rows.key_by(lambda row: row.id).aggregate(n=hr.count()).named("counts")
    with hr.testing.Harness(app) as h:
        h.push(rows, Either("a"), Either(1), Either(1))
        h.epoch()
        assert sorted((str(row.key), row.n) for row in h.take(counts)) == [("1", 2), ("a", 1)]


def test_windows_by_wall_clock_need_no_event_time() -> None:
    app = hr.App("wall")
    rows = app.read("rows", hr.source.items([]), Either)
    windows = rows.key_by(lambda row: row.id).window(hr.tumbling("1h", clock="wall"), fire=hr.per_epoch())
    counts = windows.aggregate(n=hr.count()).named("counts")
    with hr.testing.Harness(app) as h:
        h.push(rows, Either("a"), Either("a"))
        h.epoch()
        assert [row.n for row in h.take(counts)] == [2]
