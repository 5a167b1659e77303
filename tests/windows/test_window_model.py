"""Windows against a plain recomputation: random kinds, triggers, rows, watermarks, batches, crashes and shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.state import cells
from headrace.testing.rig import NO_LIMIT
from headrace.windows.by_row import firing
from tests.windows.model import Kind, Model, Rule
from tests.windows.stepping import VERBS, Event, expected_of, rig_of, told, windowed

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")

SPANS = st.integers(1, 12)
KINDS = st.one_of(
    st.builds(Kind, st.just("tumbling"), SPANS, offset=st.integers(0, 3)),
    st.builds(Kind, st.just("sliding"), SPANS, SPANS, st.integers(0, 3)),
    st.builds(lambda every, steps, offset: Kind("cumulating", every * steps, every, offset), SPANS,
              st.integers(1, 3), st.integers(0, 3)),
    st.builds(Kind, st.just("session"), SPANS),
    st.builds(Kind, st.just("unbounded")),
)  # fmt: skip
RULES = st.one_of(
    st.builds(Rule, st.sampled_from(["end", "per_epoch", "per_row"])),
    st.builds(Rule, st.sampled_from(["early wall", "early event", "every_rows"]), st.integers(1, 6)),
)
ROWS = st.lists(
    st.builds(lambda key, n, at: Event(key, n, hr.Timestamp(at)), st.sampled_from("abc"), st.integers(1, 99),
              st.integers(-5, 40)),
    max_size=6,
)  # fmt: skip


def assigner(kind: Kind) -> Any:
    size, every, offset = hr.Duration(kind.size), hr.Duration(kind.every), hr.Duration(kind.offset)
    match kind.name:
        case "tumbling":
            return hr.tumbling(size, offset=offset)
        case "sliding":
            return hr.sliding(size, every=every, offset=offset)
        case "cumulating":
            return hr.cumulating(size, every=every, offset=offset)
        case "session":
            return hr.session(size)
    return hr.unbounded()


def trigger(rule: Rule) -> Any:
    match rule.name:
        case "early wall":
            return hr.early(hr.Duration(rule.n))
        case "early event":
            return hr.early(hr.Duration(rule.n), clock="event")
        case "per_epoch":
            return hr.per_epoch()
        case "per_row":
            return hr.per_row()
        case "every_rows":
            return hr.every(rows=rule.n)
    return None


class Epoch:
    def __init__(self, rows: list[Event], ahead: int, tick: int, cut: float, given_up: bool, shards: int) -> None:
        self.rows, self.ahead, self.tick, self.cut = rows, ahead, tick, cut
        self.given_up, self.shards = given_up, shards

    def batches(self) -> list[Sequence[Event]]:
        at = round(self.cut * len(self.rows))
        return [self.rows[:at], [], self.rows[at:]]

    def __repr__(self) -> str:
        told = " ".join(f"{row.key}{row.n}@{row.at}" for row in self.rows)
        return f"<{told} +{self.ahead} tick {self.tick} cut {self.cut:.2f} given up {self.given_up} on {self.shards}>"


EPOCHS = st.lists(
    st.builds(Epoch, ROWS, st.integers(0, 15), st.integers(0, 6), st.floats(0, 1), st.booleans(), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@given(
    kind=KINDS,
    rule=RULES,
    discard=st.booleans(),
    allow_late=st.integers(0, 10),
    keep=st.sampled_from([0, 0, 1, 3]),
    verb=st.sampled_from(VERBS),
    little_memory=st.booleans(),
    small_entries=st.sampled_from([0, 2, 64]),
    window_keys=st.sampled_from([1, 2, 8192]),
    epochs=EPOCHS,
)
def test_windows_give_what_a_plain_recomputation_gives(
    kind: Kind, rule: Rule, discard: bool, allow_late: int, keep: int, verb: str, little_memory: bool,
    small_entries: int, window_keys: int, epochs: list[Epoch],
) -> None:  # fmt: skip
    if kind.name == "unbounded":
        allow_late = 0
        rule = rule if rule.name != "end" else Rule("per_epoch")
    step = windowed(
        hr.App("model"), assigner(kind), verb, fire=trigger(rule), panes="discard" if discard else "accumulate",
        allow_late=hr.Duration(allow_late), evict=hr.keep_rows(keep) if keep else None,
    )  # fmt: skip
    model = Model(kind, rule, discard, allow_late, keep)
    with (
        patch.object(cells, "SMALL_ENTRIES", small_entries),
        patch.object(cells, "WINDOW_KEYS", window_keys),
        patch.object(firing, "CHUNK_KEYS", window_keys),
        patch.object(firing, "CHUNK_ROWS", window_keys),
    ):
        compare(step, model, verb, epochs, overlay_limit_bytes=1 if little_memory else NO_LIMIT)


def compare(
    step: hr.types.WindowStream[Any, Event], model: Model, verb: str, epochs: list[Epoch], *, overlay_limit_bytes: int
) -> None:
    spec: Any = step.node.spec  # type: ignore[attr-defined]
    rig = rig_of(step, overlay_limit_bytes=overlay_limit_bytes)
    watermark, clock = -6, 0
    for number, epoch in enumerate(epochs):
        watermark, clock = watermark + epoch.ahead, clock + epoch.tick
        rig.parallelism = epoch.shards
        if epoch.given_up:
            rig.attempt(*epoch.batches(), watermark=watermark, clock=clock, finish=epoch.cut < 0.5)
        rig.epoch(*epoch.batches(), watermark=watermark, clock=clock)
        model.epoch(epoch.rows, watermark, clock)
        outlets = {"main": model.out} if model.discard else {"main": model.out, "finals": model.finals}
        for outlet, expected in outlets.items():
            found = [told(row, spec) for row in rig.out.get(outlet, [])]
            assert sorted(found) == sorted(expected_of(" ".join(expected), verb)), f"epoch {number}, {outlet}"
        late = [f"{row.value.key}{row.value.n}@{row.value.at}" for row in rig.out.get("late", [])]
        assert sorted(late) == sorted(model.late), f"epoch {number}, late"
