from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import polars as pl
import pytest

from headrace.errors import MissingFile, ProgramError, StoreError
from headrace.model.record import Record
from headrace.model.time import Timestamp
from headrace.read import Store
from headrace.state import layout
from headrace.state.store import LocalStore
from tests.serve.made_store import SECOND_US, START_US, MadeStore, due, lists, maps, timers, values


class Total(Record):
    tweet: str
    at: Timestamp
    n: int = 1


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    return MadeStore(store_path)


# --- values


def test_the_newest_value_of_a_key_wins_over_several_epochs_and_shards(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [(f"t{i}", i) for i in range(500)])]})
    made.epoch({"count": [values("views", [("t7", 700), ("new", 1)])]})
    view = Store(made.path).state("count.views", int)
    assert (view["t7"], view["t8"], view["new"]) == (700, 8, 1)
    assert len(view) == 501
    assert view.epoch == 1


def test_a_key_without_value_is_absent_in_every_way_of_asking(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1), ("b", 2)])]})
    made.epoch({"count": [values("views", [("a", None)])]})
    view = Store(made.path).state("count.views", int)
    assert "a" not in view
    assert view.get("a") is None
    assert view.get("a", 5) == 5
    assert list(view) == ["b"]
    assert view.get_many(["a", "b", "never"]) == [None, 2, None]
    with pytest.raises(KeyError):
        view["a"]


def test_many_keys_are_answered_in_the_order_asked_also_when_one_is_asked_twice(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [(i, i * i) for i in range(2000)])]})
    view = Store(made.path).state("count.views", int)
    asked = [5, 3, 5, *range(1000, 1500), 99_999]
    assert view.get_many(asked) == [25, 9, 25, *(i * i for i in range(1000, 1500)), None]
    assert view.get_many([]) == []


def test_a_type_gives_values_their_type_and_none_gives_plain_python(made: MadeStore) -> None:
    made.epoch({"last": [values("row", [("a", {"tweet": "a", "at": START_US, "n": 3})])]})
    store = Store(made.path)
    assert store.state("last.row", Total)["a"] == Total("a", Timestamp(START_US), 3)
    assert store.state("last.row")["a"] == {"tweet": "a", "at": START_US, "n": 3}


def test_a_value_that_does_not_fit_its_type_is_an_error_that_names_state_and_key(made: MadeStore) -> None:
    text = values("views", [("a", "text"), (("mill", 3), "text")])
    made.epoch({"count": [text, maps("pages", [("b", "/", "text")])], "last": [values("value", [(None, "text")])]})
    store = Store(made.path)
    cases = [
        ("count.views", int, "a", "state count.views, key a"),
        ("count.views", int, ("mill", 3), 'state count.views, key ["mill", 3]'),
        ("count.pages", dict[str, int], "b", "state count.pages, key b"),
        ("last", int, None, "state last, key null"),
    ]
    for address, kind, key, where in cases:
        view = store.state(address, kind)
        for ask in (lambda v=view, k=key: v[k], lambda v=view, k=key: v.get_many([k])):
            with pytest.raises(StoreError, match="does not fit the type") as caught:
                ask()
            assert caught.value.where == where


def test_a_notebook_shows_the_first_rows_of_a_view_and_nothing_in_them_is_markup(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [(f"<b>{i}</b>", "<script>") for i in range(11)])]})
    shown = Store(made.path).state("count.views")._repr_html_()
    assert "count.views (value) at epoch 0" in shown
    assert shown.count("<tr>") == 11 and shown.count("&lt;script&gt;") == 10 and "…" in shown
    assert "<b>" not in shown and "<script>" not in shown


@pytest.mark.parametrize(
    "key",
    ["", "text", "ünï", 7, -1, True, None, 1.5, b"\x00y", ("a", 1), ("a", None), datetime(2024, 1, 1, tzinfo=UTC)],
)
def test_any_key_a_stream_can_have_can_be_asked_for(made: MadeStore, key: object) -> None:
    made.epoch({"count": [values("views", [(key, 1), ("other", 2)])]})
    assert Store(made.path).state("count.views", int)[key] == 1


def test_keys_come_back_in_the_type_asked_for(made: MadeStore) -> None:
    key = UUID("12345678-1234-5678-1234-567812345678")
    made.epoch({"count": [values("views", [(key, 1)])]})
    assert list(Store(made.path).state("count.views", int, key=UUID)) == [key]
    assert list(Store(made.path).state("count.views", int)) == [str(key)]


# --- entries


def test_a_map_is_a_dict_merged_over_epochs(made: MadeStore) -> None:
    made.epoch({"fraud": [maps("shops", [("c1", "baker", 2), ("c1", "bank", 1), ("c2", "bank", 9)])]})
    made.epoch({"fraud": [maps("shops", [("c1", "baker", 3), ("c1", "bank", None)])]})
    view = Store(made.path).state("fraud.shops", dict[str, int])
    assert dict(view.scan()) == {"c1": {"baker": 3}, "c2": {"bank": 9}}
    assert view["c1"] == {"baker": 3}
    assert view.get_many(["c2", "c1", "c9"]) == [{"bank": 9}, {"baker": 3}, None]
    assert view.kind == "map"


def test_a_cleared_map_keeps_only_what_came_after(made: MadeStore) -> None:
    made.epoch({"fraud": [maps("shops", [("c1", "old", 1), ("c2", "old", 1)])]})
    made.epoch({"fraud": [maps("shops", [("c1", None, None), ("c1", "new", 2), ("c2", None, None)])]})
    view = Store(made.path).state("fraud.shops")
    assert dict(view) == {"c1": {"new": 2}}
    assert len(view) == 1


def test_a_map_larger_than_the_bulk_limit_is_answered_whole(made: MadeStore) -> None:
    made.epoch({"fraud": [maps("shops", [("big", i, i) for i in range(3000)])]})
    view = Store(made.path).state("fraud.shops", dict[int, int])
    assert view.get_many(["big"]) == [{i: i for i in range(3000)}]
    assert view["big"][2999] == 2999


def test_a_list_keeps_its_order(made: MadeStore) -> None:
    made.epoch({"fraud": [lists("recent", [("c", 2, "second"), ("c", 1, "first")])]})
    made.epoch({"fraud": [lists("recent", [("c", (1 << 64) + 1, "third")])]})
    view = Store(made.path).state("fraud.recent", list[str])
    assert view["c"] == ["first", "second", "third"]
    assert view.kind == "list"


def test_timers_are_their_times_and_their_index_is_no_state(made: MadeStore) -> None:
    times = [START_US + 5, START_US, -7]
    made.epoch({"fraud": [timers("checks", [("c", at) for at in times]), due("!event", [("c", at) for at in times])]})
    store = Store(made.path)
    assert store.state("fraud.checks")["c"] == sorted(times)
    assert store.state("fraud")["c"] == sorted(times)
    assert [info.address for info in store.states()] == ["fraud.checks"]
    assert store.state("fraud.checks").kind == "timers"


def test_a_map_asked_for_as_another_type_is_refused_with_the_right_one(made: MadeStore) -> None:
    made.epoch({"fraud": [maps("shops", [("c1", "baker", 2)])]})
    with pytest.raises(ProgramError, match=r"dict\[KeyType, ValueType\]"):
        Store(made.path).state("fraud.shops", list[int])


# --- time to live


def test_what_has_expired_by_the_clock_of_the_epoch_is_hidden(made: MadeStore) -> None:
    rows = [("over", 1, START_US), ("alive", 2, START_US + 1), ("forever", 3)]
    made.epoch(
        {"count": [values("views", rows), maps("shops", [("c", str(k), v, e[0] if e else None) for k, v, *e in rows])]}
    )
    store = Store(made.path)
    view = store.state("count.views")
    assert dict(view) == {"alive": 2, "forever": 3}
    assert "over" not in view
    assert view.get_many(["over", "alive"]) == [None, 2]
    assert len(view) == 2
    assert store.state("count.shops")["c"] == {"alive": 2, "forever": 3}


def test_under_the_event_clock_the_watermark_decides(made: MadeStore) -> None:
    long_ago = START_US - 1000 * SECOND_US
    made.epoch({"count": [values("views", [("a", 1, long_ago), ("b", 2, long_ago - 2)])]}, watermark_us=long_ago - 1)
    assert dict(Store(made.path).state("count.views", clock="event")) == {"a": 1}
    assert dict(Store(made.path).state("count.views", clock="wall")) == {}


# --- names


def test_a_step_with_one_state_is_addressed_by_its_name_alone(made: MadeStore) -> None:
    made.epoch({"totals": [values("total", [("a", 1)])]})
    assert Store(made.path).state("totals", int)["a"] == 1


def test_a_step_with_several_states_asks_which_one(made: MadeStore) -> None:
    made.epoch({"fraud": [values("small", [("a", True)]), maps("shops", [("a", "x", 1)])]})
    with pytest.raises(StoreError, match=r"fraud\.shops or fraud\.small"):
        Store(made.path).state("fraud")


def test_unknown_steps_and_states_are_answered_with_the_known_ones(made: MadeStore) -> None:
    made.epoch({"fraud": [values("small", [("a", True)])]})
    with pytest.raises(StoreError, match="expected: fraud"):
        Store(made.path).state("froud.small")
    with pytest.raises(StoreError, match=r"fraud\.small"):
        Store(made.path).state("fraud.smell")


def test_a_state_that_nothing_was_written_to_is_empty_where_the_caller_knows_of_it(made: MadeStore) -> None:
    made.epoch({"fraud": [values("small", [("a", True)])]})
    store = Store(made.path)
    for address in ("fraud.shops", "other.state", "other"):
        assert dict(store.state(address, empty_ok=True)) == {}
    assert store.state("fraud", empty_ok=True)["a"] is True


def test_a_renamed_state_is_found_under_its_new_name_in_old_runs(made: MadeStore) -> None:
    made.epoch({"fraud": [maps("merchants", [("c", "old", 1), ("d", "old", 1)])]})
    made.epoch({"fraud": [maps("shops", [("c", "new", 2)])]})
    view = Store(made.path).state("fraud.shops", dict[str, int], was="merchants")
    assert dict(view) == {"c": {"new": 2, "old": 1}, "d": {"old": 1}}


def test_the_list_of_states_tells_kinds_and_sizes(made: MadeStore) -> None:
    made.epoch({"fraud": [values("small", [("a", True)]), maps("shops", [("a", "x", 1), ("a", "y", 1)])]})
    made.epoch({"count": [values("views", [("a", 1)])]})
    infos = Store(made.path).states()
    assert [(info.address, info.kind, info.rows) for info in infos] == [
        ("count.views", "value", 1),
        ("fraud.shops", "map", 2),
        ("fraud.small", "value", 1),
    ]
    assert all(info.size_bytes > 0 for info in infos)
    assert Store(made.path).steps() == ["count", "fraud"]


# --- epochs


def test_a_past_epoch_is_read_as_it_was(made: MadeStore) -> None:
    for number in range(20):
        made.epoch({"count": [values("views", [("a", number)])]}, full=number % 8 == 0)
    store = Store(made.path)
    assert store.epochs() == list(range(20))
    assert store.epoch == 19
    assert [store.at(n).state("count.views", int)["a"] for n in (0, 7, 8, 19)] == [0, 7, 8, 19]


def test_an_epoch_that_is_not_kept_is_refused_with_those_that_are(made: MadeStore) -> None:
    for number in range(6):
        made.epoch({"count": [values("views", [("a", number)])]}, full=True)
    made.files.delete(layout.manifest(0, 0))
    made.files.delete(layout.manifest(0, 2))
    with pytest.raises(StoreError, match="one of 1, 3–5"):
        Store(made.path).at(2)


def test_a_view_stays_at_its_epoch_and_a_new_one_sees_the_newest(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    store = Store(made.path)
    before = store.state("count.views", int)
    made.epoch({"count": [values("views", [("a", 2)])]})
    assert before["a"] == 1
    assert store.state("count.views", int)["a"] == 2


def test_small_runs_inside_the_manifest_are_read_like_files(store_path: Path) -> None:
    made = MadeStore(store_path, inline=True)
    made.epoch({"count": [values("views", [("a", 1), ("b", 2)])]})
    assert not made.files.list(layout.RUNS)
    assert dict(Store(made.path).state("count.views", int)) == {"a": 1, "b": 2}


# --- a store that changes under the reader


class SweptFiles(LocalStore):
    """A store whose runs are swept, and the next epoch published, in the middle of the first read of a run."""

    def __init__(self, made: MadeStore) -> None:
        super().__init__(made.path, durable=False)
        self.made = made
        self.swept = False

    def open_buffer(self, path: str, crc: int | None = None):  # type: ignore[no-untyped-def]
        if not self.swept:
            self.swept = True
            for run in self.list(layout.RUNS):
                self.delete(run)
            self.made.state = None if self.made.state is None else self._forget()
            self.made.epoch({"count": [values("views", [("a", 2)])]}, full=True)
        return super().open_buffer(path, crc)

    def _forget(self):  # type: ignore[no-untyped-def]
        import msgspec

        assert self.made.state is not None
        return msgspec.structs.replace(self.made.state, runs={})


def test_a_reader_that_loses_a_file_to_a_sweep_starts_again_from_the_newest_manifest(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    store = Store(made.path)
    store._files = SweptFiles(made)
    view = store.state("count.views", int)
    assert (view["a"], view.epoch) == (2, 1)


def test_a_file_that_the_newest_manifest_misses_is_an_error_and_never_empty_state(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    for run in made.files.list(layout.RUNS):
        made.files.delete(run)
    with pytest.raises(MissingFile, match=r"\.run is not there"):
        Store(made.path).state("count.views", int)


def test_a_folder_that_is_no_store_is_told_so_and_left_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store here"):
        Store(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StoreError, match="there is no store here"):
        Store(tmp_path)


def test_a_store_without_epochs_says_that_none_is_published(made: MadeStore) -> None:
    assert Store(made.path).epochs() == []
    with pytest.raises(StoreError, match="no epoch has been published yet"):
        Store(made.path).state("count.views")


# --- as a whole


def test_scanning_by_prefix_gives_matching_keys_only(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("tweet-1", 1), ("tweet-2", 2), ("user-1", 3), (12, 4)])]})
    view = Store(made.path).state("count.views", int)
    assert dict(view.scan("tweet-")) == {"tweet-1": 1, "tweet-2": 2}
    assert dict(view.scan("1")) == {12: 4}
    assert len(dict(view.scan())) == 4


def test_a_state_of_records_becomes_typed_columns(made: MadeStore) -> None:
    made.epoch({"last": [values("row", [("a", {"tweet": "a", "at": START_US, "n": 3})])]})
    frame = Store(made.path).state("last.row", Total).to_polars()
    assert frame.columns == ["key", "tweet", "at", "n"]
    assert frame.row(0) == ("a", "a", datetime(2024, 1, 1, 12, tzinfo=UTC), 3)


def test_maps_lists_and_timers_become_a_row_per_entry(made: MadeStore) -> None:
    made.epoch({"fraud": [
        maps("shops", [("c", "baker", 2), ("c", "bank", 1)]),
        lists("recent", [("c", 1, "first"), ("c", 2, "second")]),
        timers("checks", [("c", START_US)]),
    ]})  # fmt: skip
    store = Store(made.path)
    assert store.state("fraud.shops").to_polars().rows() == [("c", "baker", 2), ("c", "bank", 1)]
    assert store.state("fraud.recent").to_polars().rows() == [("c", 0, "first"), ("c", 1, "second")]
    assert store.state("fraud.checks").to_polars().row(0)[1] == datetime(2024, 1, 1, 12, tzinfo=UTC)


def test_composite_keys_become_a_struct_column(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [(("a", 1), 10)])]})
    frame = Store(made.path).state("count.views", int).to_polars()
    assert frame.schema["key"] == pl.Struct({"part_0": pl.String, "part_1": pl.Int64})


def test_an_empty_state_becomes_an_empty_frame(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    made.epoch({"count": [values("views", [("a", None)])]})
    assert Store(made.path).state("count.views", int).to_polars().shape == (0, 2)


def test_reading_state_loads_no_pyspark() -> None:
    code = "import headrace.read, sys; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


def test_a_store_and_its_views_show_public_names_only(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("a", 1)])]})
    store = Store(made.path)
    assert [name for name in dir(store) if not name.startswith("_")] == [
        "app", "at", "epoch", "epochs", "export", "history", "savepoints", "sql", "state", "states", "steps",
        "timeline", "url", "waits",
    ]  # fmt: skip
    assert [name for name in dir(store.state("count.views")) if not name.startswith("_")] == [
        "address", "between", "epoch", "get", "get_many", "items", "keys", "kind", "scan", "stored_version",
        "to_pandas", "to_polars", "values", "windows",
    ]  # fmt: skip
