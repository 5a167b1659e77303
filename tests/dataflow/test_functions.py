from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Generic, TypeVar

import pytest

import headrace as hr
from headrace.dataflow.functions import declarations, function_types
from headrace.errors import ProgramError
from headrace.state.handles import StateDecl

Q = TypeVar("Q")


class Tx(hr.Record):
    card: str


class Mean(hr.Aggregator[int, tuple[int, int], float]):
    def zero(self) -> tuple[int, int]:
        return (0, 0)


class Everything(hr.Process[Tx, Tx, str]):
    one: hr.ValueState[int]
    many: hr.ListState[Tx] = hr.state(max_len=10)
    named: hr.MapState[str, list[int]] = hr.state(ttl=hr.ttl("7d", clock="event"), was="old")
    most: hr.ReducingState[int] = hr.state(reduce=max)
    mean: hr.AggregatingState[int, float] = hr.state(aggregator=Mean())
    quiet: hr.Timer
    deadline: hr.WallTimer
    alarms: hr.Timers
    odd: hr.Side[Tx]
    hits: hr.Counter
    limit: int
    default: int = 3
    shared: ClassVar[dict[str, int]] = {}

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
        yield event

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None: ...


UNHASHED = [list[str], dict[str, int], set[int], frozenset[int], bytearray, Tx, tuple[str, list[int]], list[str] | None]


@pytest.mark.parametrize("kind", UNHASHED, ids=str)
def test_entries_of_a_map_are_named_by_what_can_be_a_key(kind: Any) -> None:
    class Wrong(hr.Process[Tx, Tx, str]):
        seen: hr.MapState[kind, int]

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    tx = hr.App("shop").read("tx", hr.source.items([]), Tx)
    with pytest.raises(ProgramError, match=r"in Wrong\.seen cannot be a key") as caught:
        tx.key_by("card").process(Wrong())
    assert "test_functions.py:" in caught.value.where
    assert "tuple" in caught.value.next_move


def test_every_kind_of_state_is_declared_by_its_annotation() -> None:
    decls = {decl.name: decl for decl in declarations(Everything)}
    assert {name: decl.kind for name, decl in decls.items()} == {
        "one": "value",
        "many": "list",
        "named": "map",
        "most": "reducing",
        "mean": "aggregating",
        "quiet": "timer",
        "deadline": "wall_timer",
        "alarms": "timers",
        "odd": "side",
        "hits": "counter",
    }
    assert decls["one"].args == (int,)
    assert decls["many"].max_len == 10
    assert decls["named"].args == (str, list[int])
    assert decls["named"].was == "old"
    assert decls["named"].ttl is not None
    assert decls["named"].ttl.clock == "event"
    assert decls["most"].reduce is max
    assert decls["mean"].value_type == tuple[int, int]


def test_declarations_stand_on_the_class() -> None:
    assert isinstance(Everything.odd, StateDecl)
    assert Everything.odd.name == "odd"
    assert Everything.default == 3
    assert not hasattr(Everything, "limit")


def test_types_come_from_the_generic_base() -> None:
    assert function_types(Everything, hr.Process, 3) == (Tx, Tx, str)


def test_types_come_through_generic_classes_in_between() -> None:
    class Between(hr.Process[Q, Tx, str], Generic[Q]):
        seen: hr.ValueState[int]

    class Last(Between[int]):
        more: hr.ValueState[str]

    class Short(hr.Process[Tx, Tx]): ...

    assert function_types(Last, hr.Process, 3) == (int, Tx, str)
    assert function_types(Between, hr.Process, 3) == (Any, Tx, str)
    assert function_types(Short, hr.Process, 3) == (Tx, Tx, Any)
    assert [decl.name for decl in declarations(Last)] == ["seen", "more"]


def test_local_and_forward_references_are_resolved() -> None:
    class Early(hr.Process["Later", "Later", str]):
        newest: hr.ValueState[Later]
        by_name: hr.MapState[str, list[Later]]
        odd: hr.Side[Later]

    class Later(hr.Record):
        x: int

    assert [decl.kind for decl in declarations(Early)] == ["value", "map", "side"]
    assert [decl.args for decl in declarations(Early)] == [(Later,), (str, list[Later]), (Later,)]
    assert function_types(Early, hr.Process, 3) == (Later, Later, str)


def test_a_name_that_nobody_knows_is_an_error_in_words() -> None:
    class Broken(hr.Process[Tx, Tx, str]):
        newest: hr.ValueState[Nowhere]  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(ProgramError, match="Broken.newest contains an unknown name"):
        declarations(Broken)


def test_foreign_annotations_are_left_alone() -> None:
    class Mine(hr.Process[Tx, Tx, str]):
        model: SomeModel  # type: ignore[name-defined] # noqa: F821
        total: hr.ValueState[int]

    assert [decl.name for decl in declarations(Mine)] == ["total"]


def test_subclasses_may_change_a_declaration() -> None:
    class Base(hr.Process[Tx, Tx, str]):
        total: hr.ValueState[int]

    class Derived(Base):
        total: hr.ValueState[int] = hr.state(ttl="1h")

    assert declarations(Base)[0].ttl is None
    (decl,) = declarations(Derived)
    assert decl.ttl is not None


def test_a_type_that_cannot_be_stored_is_refused() -> None:
    class Bad(hr.Process[Tx, Tx, str]):
        number: hr.ValueState[complex]

    class BadKey(hr.Process[Tx, Tx, str]):
        numbers: hr.MapState[complex, int]

    with pytest.raises(ProgramError, match="Bad.number cannot be stored"):
        declarations(Bad)
    with pytest.raises(ProgramError, match="a key of BadKey.numbers"):
        declarations(BadKey)


def declare(body: dict[str, Any], **annotations: Any) -> Any:
    return type("Made", (hr.Process,), {**body, "__annotations__": annotations, "__module__": __name__})


@pytest.mark.parametrize(
    ("body", "annotation", "words"),
    [
        ({}, hr.ValueState, "does not say what it holds"),
        ({"x": None}, hr.ValueState[int], "given a value"),
        ({"x": hr.state(max_len=3)}, hr.ValueState[int], "a ListState only"),
        ({"x": hr.state(ttl="1h")}, hr.Timer, "states only"),
        ({"x": hr.state(was="y")}, hr.Counter, "states and timers only"),
        ({"x": hr.state(reduce=max)}, hr.ValueState[int], "a ReducingState only"),
        ({"x": hr.state(scope="window")}, hr.ValueState[int], "states of a WindowProcess only"),
        ({}, hr.ReducingState[int], "how to combine"),
        ({}, hr.AggregatingState[int, int], "how to combine"),
        ({"x": hr.state()}, int, "not declared as one"),
        ({"x": hr.state(was="Old Name")}, hr.ValueState[int], "cannot be the name"),
    ],
)
def test_wrong_declarations_are_refused_when_the_class_is_made(body: Any, annotation: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        declare(body, x=annotation)


def test_options_without_an_annotation_are_refused() -> None:
    with pytest.raises(ProgramError, match="no annotation"):
        declare({"x": hr.state()})


def test_state_names_are_addresses() -> None:
    with pytest.raises(ProgramError, match="cannot be the name of a state"):
        declare({}, Total=hr.ValueState[int])


@pytest.mark.parametrize("name", ["open", "close", "on_event", "on_timer"])
def test_a_state_does_not_take_the_place_of_a_method(name: str) -> None:
    with pytest.raises(ProgramError, match=f"{name} is declared as ValueState.int., and is a method of") as caught:
        declare({}, **{name: hr.ValueState[int]})
    assert f"is_{name}" in caught.value.next_move


def test_a_state_may_be_declared_anew_but_not_over_a_method_of_ones_own() -> None:
    class Base(hr.Process[Tx, Tx, str]):
        seen: hr.ValueState[int]

        def total(self) -> int:
            return self.seen.get(0)

    class Derived(Base):
        seen: hr.ValueState[int] = hr.state(ttl="1h")

    assert [decl.ttl is not None for decl in declarations(Derived)] == [True]
    with pytest.raises(ProgramError, match="is a method of Base"):

        class Hiding(Base):
            total: hr.ValueState[int]  # type: ignore[assignment]


def test_former_names_of_states_must_not_clash() -> None:
    with pytest.raises(ProgramError, match="a state of its own"):
        declarations(declare({"b": hr.state(was="a")}, a=hr.ValueState[int], b=hr.ValueState[int]))
    twice = declare({"a": hr.state(was="z"), "b": hr.state(was="z")}, a=hr.ValueState[int], b=hr.ValueState[int])
    with pytest.raises(ProgramError, match="continued by a too"):
        declarations(twice)


def test_using_state_outside_of_its_methods_says_so() -> None:
    with pytest.raises(AttributeError, match="on_event and on_timer only"):
        Everything().one.get()


def test_what_looks_like_a_state_and_declares_none_is_refused() -> None:
    with pytest.raises(ProgramError, match="Assigned.total looks like a state") as caught:

        class Assigned(hr.Process[Tx, Tx, str]):
            total = hr.ValueState[int]

    assert caught.value.expected == "total: ValueState[int]"
    with pytest.raises(ProgramError, match="Inside.totals looks like a state") as caught:

        class Inside(hr.Process[Tx, Tx, str]):
            totals: list[hr.ValueState[int]]

    assert "MapState" in caught.value.next_move


def test_only_functions_that_are_given_rules_have_broadcast_states() -> None:
    class Paired(hr.CoProcess[Tx, Tx, Tx, str]):
        limits: hr.BroadcastState[str, int]

        def on_left(self, event: Tx, ctx: hr.Context[str]) -> None: ...
        def on_right(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    app = hr.App("shop")
    left, right = (app.read(name, hr.source.items([]), Tx).key_by(Tx.card) for name in ("left", "right"))
    with pytest.raises(ProgramError, match="limits is a broadcast state, and Paired gets no broadcast rows"):
        left.connect(right).process(Paired())
