"""Epochs run again for one key: what came, what changed, what went out, and whether it ends where production ended."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed, HeadraceError, InputLost, ProgramError, StoreError
from headrace.replay.replaying import find_places
from headrace.replay.stopping import is_users
from headrace.state import layout
from headrace.state.moments import AtEpoch
from headrace.state.store import StoreFiles
from tests.replay.replayed import (
    EPOCHS,
    PER_EPOCH,
    ROWS,
    Doubling,
    Payment,
    Watch,
    program,
    replayed,
    rows_of,
    run_job,
)

NEWEST = EPOCHS - 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreFiles:
    return run_job(tmp_path_factory.mktemp("job") / "store")


def changes(event: Any) -> dict[str, tuple[Any, Any]]:
    return {change.address: (change.before, change.after) for change in event.changes}


def test_every_row_of_the_key_is_shown_with_what_it_changed(store: StoreFiles) -> None:
    events, (verdict, plan) = replayed(store, "watch", "card-1", "1", "2")
    assert [event.row for event in events if event.number] == rows_of("card-1", 2, 2)
    assert [event.number for event in events] == [1, 2, 3, 0]
    first = events[0]
    before = sum(row.cents for row in rows_of("card-1", 0, 1))
    assert changes(first)["watch.spent"] == (before, before + first.row.cents)
    assert [given.row for event in events[:3] for given in event.out] == [row for row in ROWS[16:24] if row.cents > 20
                                                                          and row.card == "card-1"]  # fmt: skip
    assert (verdict.same, verdict.states, verdict.epoch) == (True, 3, 2)
    assert (plan.rows, plan.level, plan.same_program, plan.edited) == (PER_EPOCH, 1, True, [])


def test_timers_fire_when_time_goes_on_behind_the_rows(store: StoreFiles) -> None:
    events, _ = replayed(store, "watch", "card-1", "1", "2")
    end = events[-1]
    before, after = changes(end)["watch.checks"]
    assert {*after} < {*before} and end.at_us == int(ROWS[23].at) - 1
    fired = len(before) - len(after)
    assert [given.row.shop for given in end.out] == ["late"] * fired
    was, now = changes(end)["watch.shops"]
    assert now["late"] - was.get("late", 0) == fired


@pytest.mark.parametrize("step", ["watch", "tens", "totals"])
@pytest.mark.parametrize("key", ["card-0", "card-1", "card-2"])
def test_a_replay_ends_where_production_ended(store: StoreFiles, step: str, key: str) -> None:
    events, (verdict, _) = replayed(store, step, key, "0")
    assert verdict.same and verdict.epoch == NEWEST
    assert [event.row for event in events if event.number] == rows_of(key, 1, NEWEST)
    assert all(event.changes for event in events if event.number)


def test_behind_a_second_exchange_rows_of_all_keys_lead_to_this_one(store: StoreFiles) -> None:
    events, (verdict, plan) = replayed(store, "by_shop", "late", "0")
    assert verdict.same and plan.level == 2
    assert {event.row.card for event in events if event.number} == {"card-0", "card-1", "card-2"}


def test_a_key_that_nobody_knew_yet_begins_with_nothing(store: StoreFiles) -> None:
    events, (verdict, _) = replayed(store, "by_shop", "baker", "0")
    assert verdict.same
    assert changes(next(event for event in events if event.number))["by_shop"][0] is None


def test_another_function_ends_otherwise_and_is_told_from_production(store: StoreFiles) -> None:
    _, (verdict, _) = replayed(store, "watch", "card-1", "1", watch=Doubling())
    assert not verdict.same
    [difference] = verdict.differences
    production = sum(row.cents for row in rows_of("card-1", 0, NEWEST))
    doubled = production + sum(row.cents for row in rows_of("card-1", 2, NEWEST))
    assert (difference.address, difference.before, difference.after) == ("watch.spent", production, doubled)


def test_a_step_that_was_renamed_since_goes_on_from_its_old_state(store: StoreFiles) -> None:
    renamed = partial(program, name="watched", was="watch")
    events, (verdict, plan) = replayed(store, "watched", "card-1", "1", make=renamed)
    before = sum(row.cents for row in rows_of("card-1", 0, 1))
    assert changes(events[0])["watched.spent"][0] == before
    assert not plan.same_program
    assert [change.after for change in verdict.differences] == []


def test_an_error_of_the_program_comes_behind_the_rows_before_it(store: StoreFiles) -> None:
    class Failing(Watch):
        def on_event(self, event: Payment, ctx: hr.Context[str]) -> Any:
            if event.cents == 19:
                raise ValueError("nineteen")
            return super().on_event(event, ctx)

    with pytest.raises(FunctionFailed, match="nineteen"):
        replayed(store, "watch", "card-1", "1", watch=Failing())


def test_nothing_in_the_store_changes_and_no_sink_is_touched(store: StoreFiles, tmp_path: Path) -> None:
    def written(source: Any = None, watch: Any = None) -> tuple[hr.App, Any]:
        app, payments = program(source, watch)
        payments.write(hr.sink.files(str(tmp_path / "out"), format="json"))
        return app, payments

    before = {path: store.read(path) for path in store.list()}
    replayed(store, "watch", "card-1", "0", make=written)
    assert {path: store.read(path) for path in store.list()} == before
    assert not (tmp_path / "out").exists()


def test_each_row_of_the_key_is_called_by_whoever_wants_to_look(store: StoreFiles) -> None:
    numbers: list[int] = []

    def call(work: Any, number: int) -> None:
        numbers.append(number)
        work()

    replayed(store, "watch", "card-1", "1", "2", call=call)
    assert numbers == [1, 2, 3]


def test_a_debugger_stops_in_the_users_code_only() -> None:
    import json as a_module_of_python

    assert is_users(__file__)
    assert not is_users(hr.__file__ or "")
    assert not is_users(a_module_of_python.__file__)
    assert not is_users("<string>")


# --- sources


def test_files_are_read_again_by_the_names_that_each_epoch_read(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    source = hr.source.files(str(folder))
    store = run_job(tmp_path / "store", source, lambda rows: {"logOffset": rows // PER_EPOCH - 1})
    for epoch in range(EPOCHS):
        file = folder / f"{epoch}.json"
        rows = list(map(_line, _rows_of_epoch(epoch)))
        file.write_text("\n".join(["", *rows, "{not a row"] if epoch == 1 else rows))
        entry = json.dumps({"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": epoch})
        store.write(layout.input_entry(f"payments/{epoch}"), f"v1\n{entry}".encode())
    events, (verdict, _) = replayed(store, "watch", "card-1", "1", source=source)
    assert verdict.same
    assert [event.row for event in events if event.number] == rows_of("card-1", 2, NEWEST)
    with pytest.raises(HeadraceError, match="JSON is malformed"):
        replayed(store, "watch", "card-1", "0", "1", source=source)
    (folder / "3.json").unlink()
    with pytest.raises(InputLost, match="no longer has what these epochs read"):
        replayed(store, "watch", "card-1", "1", source=source)


def _rows_of_epoch(epoch: int) -> list[Payment]:
    return ROWS[epoch * PER_EPOCH : (epoch + 1) * PER_EPOCH]


def _line(row: Payment) -> str:
    from headrace.model.rows import codec_of

    return next(iter(codec_of(Payment).to_json([row]))).decode()


def test_a_source_that_cannot_say_what_it_gave_is_refused_before_anything_runs(store: StoreFiles) -> None:
    with pytest.raises(ProgramError, match="'payments' cannot be read again"):
        replayed(store, "watch", "card-1", source=hr.source.spark("rate"))


# --- what cannot be replayed


def test_every_epoch_in_between_has_to_be_kept(tmp_path: Path) -> None:
    store = run_job(tmp_path / "store")
    store.delete(layout.manifest(0, 3))
    with pytest.raises(StoreError, match=r"epochs between the two are swept(.|\n)*no epoch 3(.|\n)*begin with epoch 4"):
        find_places(store, AtEpoch(1), None)


@pytest.mark.parametrize(("first", "last"), [(4, 4), (3, 2)])
def test_a_replay_goes_forward(store: StoreFiles, first: int, last: int) -> None:
    with pytest.raises(StoreError, match="goes from an epoch to a later one"):
        find_places(store, AtEpoch(first), AtEpoch(last))


def test_a_step_that_the_program_lacks_is_refused_with_those_it_has(store: StoreFiles) -> None:
    with pytest.raises(ProgramError, match=r"no step 'nobody'(.|\n)*by_shop or tens or totals or watch"):
        replayed(store, "nobody", "card-1")


def test_the_store_of_another_app_is_refused(store: StoreFiles) -> None:
    def other(source: Any = None, watch: Any = None) -> tuple[hr.App, Any]:
        app = hr.App("other")
        payments = app.read("payments", hr.source.items(ROWS), Payment, time=Payment.at)
        payments.key_by(Payment.card).process(Watch()).named("watch").queryable()
        return app, payments

    with pytest.raises(StoreError, match="the store belongs to another app"):
        replayed(store, "watch", "card-1", make=other)
