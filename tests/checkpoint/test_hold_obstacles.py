"""What keeps an output from being held: things behind the savepoint that reading again would not bring back."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.checkpoint.offline import hold_stopped
from headrace.checkpoint.rewind.rewinder import Rewinder
from headrace.errors import Refused
from headrace.state.manifest import EpochNote
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.checkpoint.test_rewind import AppendOnly, counting, played


class Visit(hr.Record):
    page: str
    at: hr.Timestamp


def test_windows_that_the_end_of_the_input_fired_are_not_fired_again_behind_a_hold() -> None:
    app = hr.App("visits")
    visits = app.read("visits", hr.source.items([]), Visit, time=Visit.at)
    hourly = visits.key_by(Visit.page).window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly")
    hourly.finals().write(AppendOnly(), name="out")
    with Harness(app, sinks=True) as h:
        h.push(visits, Visit("a", h.at("00:10:00")))
        h.epoch()
        h.savepoint("before")
        h.push(visits, Visit("a", h.at("00:20:00")))
        h.epoch()
        h.drain()
        with pytest.raises(Refused, match="may come to other rows") as error:
            h.rewind("before", hold="out")
        assert "epoch 2 ended the input (--until drained)" in error.value.found


def test_an_edit_counts_also_when_its_epoch_is_swept(tmp_path: Path) -> None:
    program = counting(AppendOnly())
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 1)
    with hold_stopped(LocalStore(tmp_path)) as stopped:
        edited = stopped.publish(EpochNote(kind="edit", by="ada", at_us=1)).epoch
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 20)
        h.maintain()
        assert edited not in hr.Store(tmp_path).epochs()
        with pytest.raises(Refused, match="may come to other rows") as error:
            h.rewind("before", hold="all")
        assert f"epoch {edited} holds a change that a person made" in error.value.found
        # What lies behind it can be held.
        h.savepoint("later")
        played(h, program, 2)
        h.rewind("later", hold="all")


def test_another_program_in_between_counts_also_when_its_epochs_are_swept(tmp_path: Path) -> None:
    program, other = counting(AppendOnly()), counting(AppendOnly(), hr.sink.discard())
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 1)
        h.savepoint("before")
    with Harness(other.app, store=tmp_path, sinks=True) as h:
        played(h, other, 1)
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 20)
        h.maintain()
        assert 1 not in hr.Store(tmp_path).epochs()
        with pytest.raises(Refused, match="may come to other rows") as error:
            h.rewind("before", hold="all")
        assert "the program was another one before epoch 2" in error.value.found


def test_outputs_that_the_program_has_no_more_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, one = counting(hr.sink.collect(), hr.sink.collect()), counting(hr.sink.collect())
    with Harness(both.app, store=tmp_path, sinks=True) as h:
        played(h, both, 1)
        h.savepoint("before")
        played(h, both, 1)
    begin, lines = Rewinder.begin, list[str]()
    monkeypatch.setattr(Rewinder, "begin", lambda self, request: lines.extend(begin(self, request)))
    with Harness(one.app, store=tmp_path, sinks=True, start_from="before"):
        assert "the program has no output 'out1' any more: what went out of it stays" in lines
