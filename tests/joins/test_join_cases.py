"""Joins by example: each file in ``cases`` is a table of one kind of join, written as `playing` says.

What a case says comes out is what Flink gives where it has such a join, up to what an epoch does at once: rows of an
epoch meet each other whatever their order, see the watermark of its beginning, and what is due comes at its end. What
an epoch does not mention has to be empty.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.testing.rig import NO_LIMIT
from tests.joins.playing import OUTLETS, clocks, inputs, rig_of, told

FILES = sorted((Path(__file__).parent / "cases").glob("*.toml"))
CASES = [(file.stem, case) for file in FILES for case in tomllib.loads(file.read_text())["case"]]
NAMES = [f"{stem}: {case['name']}" for stem, case in CASES]
KNOWN = {"left", "right", "watermark", "clock", "final", "out", *OUTLETS}

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


class Way(NamedTuple):
    """How an engine runs the epochs of a case; operators are tried in more ways where they are tested themselves."""

    limit_bytes: int = NO_LIMIT
    row_by_row: bool = False
    right_first: bool = False
    shards: tuple[int, ...] = (1,)
    folds: bool = False

    def batches(self, epoch: dict[str, Any]) -> list[tuple[int, Sequence[Any]]]:
        made = inputs(epoch)[:: -1 if self.right_first else 1]
        return [(port, [row]) for port, rows in made for row in rows] if self.row_by_row else made


WAYS = {
    "at once": Way(),
    "row by row, read back and folded": Way(limit_bytes=1, row_by_row=True, folds=True),
    "right side first, on other shards each epoch": Way(right_first=True, shards=(3, 1, 2)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("stem", "case"), CASES, ids=NAMES)
def test_a_case_gives_what_it_says(stem: str, case: dict[str, Any], way: Way) -> None:
    rig = rig_of(case, overlay_limit_bytes=way.limit_bytes)
    for number, epoch in enumerate(case["epochs"]):
        assert epoch.keys() <= KNOWN, f"epoch {number} says {sorted(epoch.keys() - KNOWN)}"
        rig.parallelism = way.shards[number % len(way.shards)]
        rig.epoch(*way.batches(epoch), **clocks(epoch))
        for outlet in ("main", *OUTLETS):
            said = epoch.get("out" if outlet == "main" else outlet, "")
            found = [told(row) for row in rig.out.get(outlet, [])]
            assert sorted(found) == sorted(said.split()), f"epoch {number}, {outlet}"
        late = len(epoch.get("late_left", "").split()) + len(epoch.get("late_right", "").split())
        assert rig.report.late == late, f"epoch {number}: late rows are counted"
        if way.folds:
            rig.fold()


def test_every_kind_of_join_has_a_file() -> None:
    assert [file.stem for file in FILES] == [
        "as_of",
        "co_group",
        "every_pair",
        "interval",
        "newest_rows",
        "windows",
    ]


def test_no_two_cases_have_one_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
