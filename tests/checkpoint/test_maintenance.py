"""Folding and sweeping beside the epochs: what goes wrong with one step is no matter of the others."""

from __future__ import annotations

import logging

import pytest

import headrace as hr
from headrace.checkpoint.maintenance import SWEEP_EVERY, Maintainer
from headrace.errors import StoreError
from headrace.model.report import RunRef
from headrace.state.fold import RunFold
from headrace.state.manifest import JobState
from headrace.testing import Harness


class Tx(hr.Record):
    card: str
    at: hr.Timestamp


class FailsAt(Maintainer):
    """Cannot fold one step."""

    step = ""
    sweeps = 0

    def _fold(self, state: JobState, step: str, fold: RunFold) -> RunRef | None:
        if step == self.step:
            raise OSError("no space left")
        return super()._fold(state, step, fold)

    def sweep(self, state: JobState) -> int:
        self.sweeps += 1
        return super().sweep(state)


@pytest.mark.parametrize(("step", "other"), [("first", "second"), ("second", "first")])
def test_a_step_that_cannot_be_folded_is_logged_and_stops_neither_other_folds_nor_sweeps(
    step: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    for name in ("first", "second"):
        tx.key_by(Tx.card).latest().named(name).show()
    with Harness(app) as h:
        for at in range(SWEEP_EVERY):
            h.push(tx, Tx("a", hr.Timestamp(at)))
            h.epoch()
        state = h._coordinator.state
        assert state is not None and h._fence is not None
        upkeep = FailsAt(h._store, h._program.facts, h._fence.number, retain=2)
        upkeep.step = step
        try:
            with caplog.at_level(logging.WARNING):
                for _ in range(SWEEP_EVERY):
                    upkeep._maintain(state)
        finally:
            upkeep.close()
        assert set(upkeep.take_folds(state)) == {other}
        assert upkeep.sweeps == 1
    assert f"folding the state of step {step} was put off: OSError: no space left" in caplog.messages


def test_what_follows_a_sweep_comes_once_more_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A run that is stopped with a savepoint takes it behind its last sweep."""
    called: list[str] = []

    def tell() -> None:
        called.append("told")
        if len(called) > 1:
            raise StoreError("the store is away")

    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    tx.write(hr.sink.discard())
    with Harness(app) as h:
        for expected in (1, 2):
            assert h._fence is not None
            Maintainer(h._store, h._program.facts, h._fence.number, retain=2, swept=tell).close()
            assert len(called) == expected
    assert any("the store is away" in message for message in caplog.messages)
