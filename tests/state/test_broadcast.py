"""Broadcast state alone: a mapping over runs, its changes, its digests."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.keys import encode_key
from headrace.model.report import RunRef
from headrace.model.values import value_codec
from headrace.state.broadcast import BroadcastState, BroadcastTable, SharedState, StoredMapping
from headrace.state.format import TableData
from headrace.state.lookup import Layers
from headrace.state.run import encode_run, open_run

GROUPS = 16


class Shared:
    """Broadcast states over epochs, as one shard sees them."""

    def __init__(self, value: Any = int, key: Any = str) -> None:
        self.runs: list[Any] = []
        self.codec, self.key = value_codec(value), key
        self.kept: dict[str, StoredMapping] = {}
        self.begin()

    def begin(self) -> None:
        layers = Layers(self.runs, lo=0, hi=GROUPS, groups=GROUPS)
        self.state = SharedState(layers, tuple(run for _, run in self.runs))
        self.table = self.state.table("rules", self.codec, self.key, self.kept)
        self.rules: BroadcastState[Any, Any] = BroadcastState(self.table)
        self.table.writable = True

    def end(self) -> tuple[list[TableData], dict[str, str]]:
        tables, digests = self.state.flush()
        if tables:
            data = encode_run(tables, lo=0, hi=GROUPS, groups=GROUPS)
            ref = RunRef(epoch=len(self.runs), lo=0, hi=GROUPS, rows=0, size_bytes=len(data), crc=0)
            self.runs.insert(0, (ref, open_run(data)))
        self.begin()
        return tables, digests


def test_it_is_a_dictionary_from_epoch_to_epoch() -> None:
    shared, model = Shared(), dict[str, int]()
    for epoch in range(6):
        for i in range(5):
            name = f"r{(epoch * 3 + i) % 7}"
            shared.rules[name] = model[name] = epoch * 10 + i
        gone = f"r{epoch}"
        assert shared.rules.pop(gone, None) == model.pop(gone, None)
        assert dict(shared.rules) == model
        shared.end()
        assert dict(shared.rules) == model
        assert (len(shared.rules), "r1" in shared.rules, shared.rules.get("?", 5)) == (len(model), "r1" in model, 5)
    with pytest.raises(KeyError):
        shared.rules["?"]
    with pytest.raises(KeyError):
        del shared.rules["?"]
    shared.rules.clear()
    shared.end()
    assert dict(shared.rules) == {}


def test_going_over_it_follows_the_encoded_keys_wherever_epochs_end() -> None:
    names = ["b", "aa", "ä", "c", "a", "", "zz"]
    together, apart = Shared(), Shared()
    for name in names:
        together.rules[name] = apart.rules[name] = 1
        apart.end()
    assert list(together.rules) == list(apart.rules) == sorted(names, key=encode_key)
    del apart.rules["c"]
    apart.rules["d"] = 1
    assert list(apart.rules) == sorted([*(set(names) - {"c"}), "d"], key=encode_key)


def test_keys_have_their_declared_type_again() -> None:
    shared = Shared(key=tuple[str, int])
    shared.rules["a", 1] = 5
    shared.end()
    assert shared.rules["a", 1] == 5
    assert list(shared.rules) == [("a", 1)]


def test_only_what_differs_is_written() -> None:
    shared = Shared()
    shared.rules["a"] = 1
    shared.end()
    shared.rules["a"] = 1
    shared.rules["b"] = 2
    del shared.rules["b"]
    assert shared.end() == ([], {})


def test_equal_changes_have_equal_digests_and_others_do_not() -> None:
    def digest(*changes: tuple[str, Any], value: Any = dict[str, int]) -> dict[str, str]:
        shared = Shared(value)
        for name, held in changes:
            shared.rules[name] = held
        return shared.state.flush()[1]

    one = digest(("a", {"x": 1, "y": 2}), ("b", {}))
    assert one == digest(("b", {}), ("a", {"y": 2, "x": 1}))
    assert digest(("a", {1, 2, 300}), value=set[int]) == digest(("a", {300, 2, 1}), value=set[int])
    others = [digest(("a", {"x": 1})), digest(("b", {"x": 1})), digest(("ab", {})), digest(("a", {}), ("b", {})), one]
    assert len({tuple(each.items()) for each in others}) == len(others)


def test_what_was_read_is_read_again_only_when_runs_have_changed() -> None:
    shared = Shared()
    shared.rules["a"] = 1
    shared.end()
    before = shared.kept["rules"]
    shared.end()
    assert shared.kept["rules"] is before
    shared.rules["b"] = 1
    shared.end()
    assert shared.kept["rules"] is not before


def test_a_value_changed_in_place_is_not_seen_by_the_next_epoch() -> None:
    shared = Shared(list[int])
    shared.rules["a"] = [1]
    shared.end()
    shared.rules["a"].append(2)
    shared.end()
    assert shared.rules["a"] == [1]


def test_what_a_failing_call_did_can_be_undone() -> None:
    shared = Shared()
    shared.rules.update({"a": 1, "b": 2})
    shared.end()
    shared.rules["a"] = 3
    shared.table.begin()
    shared.rules["a"] = 4
    shared.rules["c"] = 5
    del shared.rules["b"]
    shared.rules["a"] = 6
    shared.table.undo()
    assert dict(shared.rules) == {"a": 3, "b": 2}
    shared.end()
    assert dict(shared.rules) == {"a": 3, "b": 2}


def test_writing_where_it_is_not_allowed_says_where_it_is() -> None:
    table = BroadcastTable("rules", value_codec(int), {})
    rules: BroadcastState[str, int] = BroadcastState(table)
    with pytest.raises(RuntimeError, match="'rules' can be changed in on_broadcast only"):
        rules["a"] = 1
    assert dict(rules) == {}
