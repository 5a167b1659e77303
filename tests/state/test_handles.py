"""What handles promise beyond being right: maps behave as dictionaries, order is fixed, writing does not read."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError
from headrace.model.values import value_codec
from headrace.state import cells
from headrace.state.entry_handles import ListState, MapState
from headrace.state.handles import StateDecl
from headrace.state.lookup import Layers
from headrace.state.shard import ShardState
from headrace.state.subs import LIST_SUB, TIME_SUB, first_place, map_sub
from tests.state.test_shard import GROUPS, Shard, needles, run_of


class Deaf(Layers):
    """Layers that must not be asked for entries."""

    def entries_many(self, *_: Any) -> Any:
        raise AssertionError("entries were fetched")

    entry = entries = entries_many


def shard_of(layers: Layers) -> ShardState:
    return ShardState(layers, lo=0, hi=GROUPS, groups=GROUPS, spill=print, overlay_limit_bytes=1 << 40)


def map_state(shard: ShardState, key: str = "k", of: Any = str) -> MapState[Any, int]:
    handle = MapState[Any, int](shard.entries("m", value_codec(int), map_sub(of)))
    handle._slot = int(shard.enter(*needles(key))[0])
    return handle


def test_a_map_is_a_mutable_mapping() -> None:
    handle = map_state(Shard().state)
    handle["b"] = 2
    handle.update(a=1, c=3)
    assert handle == {"a": 1, "b": 2, "c": 3}
    assert handle.setdefault("a", 9) == 1 and handle.setdefault("d", 4) == 4
    assert handle.pop("d") == 4 and handle.pop("d", None) is None
    assert "a" in handle and "z" not in handle and handle.get("z") is None and handle.get("z", 7) == 7
    with pytest.raises(KeyError):
        handle["z"]
    with pytest.raises(KeyError):
        del handle["z"]
    del handle["a"]
    assert list(handle.keys()) == ["b", "c"] and list(handle.values()) == [2, 3] and ("b", 2) in handle.items()
    handle.clear()
    assert not handle and len(handle) == 0


@pytest.mark.parametrize("small", [0, 64])
def test_the_order_of_a_map_does_not_depend_on_where_epochs_end(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "SMALL_ENTRIES", small)
    names = ["q", "b", "z", "a", "m"]
    whole = map_state(Shard().state)
    for name in names:
        whole[name] = 1
    before = Shard()
    handle = map_state(before.state)
    for name in names[:3]:
        handle[name] = 1
    after = map_state(Shard([run_of(before.state.flush())]).state)
    for name in names[3:]:
        after[name] = 1
    assert list(after) == list(whole) == sorted(names)


def test_a_map_may_be_changed_while_it_is_gone_over() -> None:
    handle = map_state(Shard().state)
    handle.update(a=1, b=2, c=3)
    for name, value in handle.items():
        if value % 2:
            del handle[name]
        handle[name + "x"] = value
    assert handle == {"ax": 1, "b": 2, "bx": 2, "cx": 3}


def test_a_map_may_hold_none() -> None:
    shard = Shard()
    handle = MapState[str, Any](shard.state.entries("m", value_codec(int | None), map_sub(str)))
    [handle._slot] = shard.enter("k")
    handle["a"] = None
    again = Shard([run_of(shard.state.flush())])
    handle = MapState[str, Any](again.state.entries("m", value_codec(int | None), map_sub(str)))
    [handle._slot] = again.enter("k")
    assert "a" in handle and handle["a"] is None


def test_appending_and_putting_do_not_read() -> None:
    shard = shard_of(Deaf([], lo=0, hi=GROUPS, groups=GROUPS))
    items = ListState[int](shard.entries("l", value_codec(int), LIST_SUB, appends=True), None, 3)
    entries = map_state(shard)
    items._slot = entries._slot
    items.append(1)
    items.replace([2])
    entries["a"] = 1
    entries.clear()
    entries["b"] = 2
    assert list(items) == [2] and entries == {"b": 2}  # Cleared, so nothing below can show.
    assert {table.name: table.batch.num_rows for table in shard.flush()} == {"l": 2, "m": 2}


def test_entries_of_a_large_map_are_looked_up_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Shard()
    handle = map_state(before.state, of=int)
    for i in range(1000):
        handle[i] = i
    after = Shard([run_of(before.state.flush())])
    handle = map_state(after.state, of=int)
    monkeypatch.setattr(after.layers, "entries", Deaf.entries_many, raising=True)
    handle[5] = handle[7] + handle.get(2000, 10)
    assert handle[5] == 17 and 999 in handle and 1000 not in handle
    monkeypatch.undo()
    assert len(handle) == 1000 and sum(handle.values()) == sum(range(1000)) + 12


def test_subs_sort_as_what_they_name() -> None:
    places = [first_place(0), first_place(0) + 1, first_place(1), first_place(2**40) + 2**63]
    assert sorted(map(LIST_SUB.encode, places)) == list(map(LIST_SUB.encode, places))
    assert [LIST_SUB.decode(LIST_SUB.encode(place)) for place in places] == places
    times = [-(2**63) + 1, -1, 0, 1, 2**63 - 1]
    assert sorted(map(TIME_SUB.encode, times)) == list(map(TIME_SUB.encode, times))
    assert [TIME_SUB.decode(TIME_SUB.encode(time)) for time in times] == times


# --- declarations


def test_a_declaration_knows_what_is_stored() -> None:
    assert StateDecl("s", "value", (int,)).value_type is int
    assert StateDecl("s", "map", (str, float)).value_type is float
    assert StateDecl("s", "timer").value_type is int
    with pytest.raises(ProgramError, match="how to combine"):
        StateDecl("s", "reducing", (int,)).value_type
    with pytest.raises(ProgramError, match="how to combine"):
        StateDecl("s", "aggregating", (int, int)).value_type


def test_options_are_checked_where_they_are_given() -> None:
    with pytest.raises(ProgramError, match="max_len must be 1 or more"):
        hr.state(max_len=0)
    assert hr.state(ttl="1d", was="old").was == "old"


def test_a_declaration_travels_and_explains_itself() -> None:
    decl = StateDecl("total", "value", (int,))
    assert pickle.loads(pickle.dumps(decl)) == decl
    with pytest.raises(AttributeError, match="on_event and on_timer only"):
        decl.get  # type: ignore[attr-defined]


def test_a_timer_wants_a_whole_number() -> None:
    from headrace.state.handles import Timer

    shard = Shard()
    timer = Timer("t", shard.state.values("t", value_codec(int)))
    [timer._slot] = shard.enter("k")
    with pytest.raises(TypeError):
        timer.set(1.5)  # type: ignore[arg-type]
