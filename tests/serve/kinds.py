"""A store with a state of every kind, made by hand, and the words in which its answers are expected."""

from __future__ import annotations

from pathlib import Path

from headrace.model.job import DeclaredState
from tests.serve.made_store import SECOND_US, START_US, MadeStore, lists, maps, timers, values

STATES = {
    "count": {"views": DeclaredState("value"), "brief": DeclaredState("value", "wall")},
    "fraud": {"shops": DeclaredState("map"), "recent": DeclaredState("list")},
}
OFFSETS = 'v2\n{}\nviews:{"topic": {"0": 12}}'


def make_kinds(path: Path) -> MadeStore:
    """One epoch: values, Records, maps, lists, timers, values that expire, keys that are numbers or pairs."""
    made = MadeStore(path)
    publish_kinds(made)
    return made


def publish_kinds(made: MadeStore) -> None:
    made.epoch(
        {
            "count": [
                values("views", [("a", 1), ("b", 2), ("ü:x y", 3)]),
                values("brief", [("soon", 1, START_US + 60 * SECOND_US), ("over", 2, START_US), ("ever", 3)]),
            ],
            "fraud": [
                maps("shops", [("c1", "baker", 2), ("c1", "bank", 1), ("c2", "bank", 9)]),
                lists("recent", [("c1", 1, "first"), ("c1", 2, "second"), ("c1", 3, "third")]),
                timers("checks", [("c1", START_US)]),
            ],
            "last": [values("value", [("a", {"tweet": "a", "n": 3})])],
            "sizes": [values("value", [(7, "seven"), (-8, "eight")])],
            "pairs": [values("value", [(("mill", 3), 1)])],
        },
        states=STATES,
        offsets=OFFSETS,
        watermark_us=START_US - SECOND_US,
    )
