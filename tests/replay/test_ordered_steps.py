"""Steps in the order of time when a job goes back, and when epochs are replayed: rows that wait are state as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import Harness
from tests.replay.replayed import EPOCHS, ROWS, START, Payment, Watch, replayed, run_job


class Previous(hr.Process[Payment, Payment, str]):
    """Each payment with the cents of the one before it; and the key, when it was quiet for three minutes."""

    last: hr.ValueState[int]
    quiet: hr.Timer

    def on_event(self, event: Payment, ctx: hr.Context[str]) -> Iterator[Payment]:
        yield event.replace(shop=f"after {self.last.get(0)}")
        self.last.set(event.cents)
        self.quiet.set(event.at + hr.minutes(3))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Payment]:
        yield Payment(ctx.key, "quiet", ctx.timestamp, 0)
        self.last.clear()


def ordered(source: Any = None, watch: Watch | None = None) -> tuple[hr.App, Any]:
    app = hr.App("cards")
    payments = app.read("payments", source or hr.source.items(ROWS), Payment, time=Payment.at, out_of_order="12m")
    payments.key_by(Payment.card).process(watch or Watch(), order="time").named("watch").queryable()
    return app, payments


@pytest.mark.parametrize("first", range(EPOCHS - 1))
@pytest.mark.parametrize("key", ["card-0", "card-1"])
def test_a_replay_begins_with_the_rows_that_waited_and_ends_where_production_ended(
    tmp_path: Path, first: int, key: str
) -> None:
    store = run_job(tmp_path / "store", make=ordered)
    events, (verdict, _) = replayed(store, "watch", key, str(first), make=ordered)
    assert verdict.same and verdict.epoch == EPOCHS - 1
    assert any(event.changes for event in events), "rows that had waited are handled"


@pytest.mark.parametrize("back_to", [0, 1, 2])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_job_that_goes_back_handles_again_what_waited_then(back_to: int, shards: int) -> None:
    def play(h: Harness, payments: Any, first: int) -> None:
        for epoch in range(first, EPOCHS):
            # Each epoch has rows that are older than those of the one before it.
            h.push(payments, *ROWS[(epoch ^ 1) * 8 : (epoch ^ 1) * 8 + 8])
            h.epoch()

    def start(**how: Any) -> tuple[Harness, Any, Any]:
        app = hr.App("cards")
        payments = app.read("payments", hr.source.items([]), Payment, time=Payment.at, out_of_order="20m")
        out = payments.key_by("card").process(Previous(), order="time").named("previous")
        out.show()
        return Harness(app, start=START, parallelism=shards, **how), payments, out

    h, payments, out = start()
    with h:
        play(h, payments, 0)
        h.drain()
        wanted = sorted(map(repr, h.take(out)))
    assert any("quiet" in row for row in wanted) and any("after 0" in row for row in wanted)
    h, payments, out = start()
    with h:
        play(h, payments, 0)
        seen = h.take(out)
        assert seen
        h.rewind(back_to)
        # The rows that were pushed since are read once more, and what they made goes out again.
        h.epoch()
        h.drain()
        again = h.take(out)
    assert set(map(repr, again)) <= set(wanted)
    assert set(map(repr, [*seen, *again])) == set(wanted)
