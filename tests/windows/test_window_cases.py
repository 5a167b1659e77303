"""Windows by example: each file in ``cases`` is a table, each case is played in several ways of asking for values.

What a case says comes out is what Flink gives, up to what an epoch does at once: rows of an epoch see the watermark of
its beginning, and what is due fires at its end.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.model.ids import MAX_TIME
from headrace.testing.operators import EpochInput, verify_step
from tests.windows.stepping import (
    VERBS,
    Event,
    events,
    expected_of,
    operator_of,
    rig_of,
    told,
    windowed,
)

FILES = sorted((Path(__file__).parent / "cases").glob("*.toml"))
CASES = [(file.stem, case) for file in FILES for case in tomllib.loads(file.read_text())["case"]]
NAMES = [f"{stem}: {case['name']}" for stem, case in CASES]

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


def step_of(case: dict[str, Any], verb: str) -> hr.types.WindowStream[Any, Event]:
    names = {"hr": hr, "Event": Event}
    options: dict[str, Any] = {name: eval(case[name], names) for name in ("fire", "evict") if name in case}
    options |= {name: case[name] for name in ("panes", "allow_late") if name in case}
    return windowed(hr.App("cases"), eval(case["window"], names), verb, timed=case.get("timed", True), **options)


def clocks(epoch: dict[str, Any]) -> dict[str, Any]:
    final = epoch.get("final", False)
    watermark = MAX_TIME if final else epoch.get("watermark")
    return {"watermark": watermark, "clock": epoch.get("clock"), "final": final}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("stem", "case"), CASES, ids=NAMES)
def test_a_case_gives_what_it_says(stem: str, case: dict[str, Any], verb: str) -> None:
    step = step_of(case, verb)
    spec: Any = step.node.spec  # type: ignore[attr-defined]
    rig = rig_of(step, timed=case.get("timed", True))
    for number, epoch in enumerate(case["epochs"]):
        rig.epoch(events(epoch.get("rows", ""), case.get("gap", 0)), **clocks(epoch))
        for outlet in ("main", "finals"):
            said = "out" if outlet == "main" else outlet
            if said in epoch:
                found = [told(row, spec) for row in rig.out.get(outlet, [])]
                assert sorted(found) == sorted(expected_of(epoch[said], verb)), f"epoch {number}, {outlet}"
        late = [f"{row.value.key}{row.value.n}@{row.value.at}" for row in rig.out.get("late", [])]
        assert sorted(late) == sorted(epoch.get("late", "").split()), f"epoch {number}, late"
        assert rig.report.late == len(late)


@pytest.mark.parametrize(("stem", "case"), CASES, ids=NAMES)
def test_no_way_to_run_a_case_gives_anything_else(stem: str, case: dict[str, Any]) -> None:
    verb = VERBS[NAMES.index(f"{stem}: {case['name']}") % len(VERBS)]
    step = step_of(case, verb)
    spec: Any = step.node.spec  # type: ignore[attr-defined]
    if spec.assigner.timed and not spec.discard:
        step.finals()
    if spec.assigner.timed and spec.assigner.clock == "event":
        _ = step.late
    gap = case.get("gap", 0)
    verify_step(step, [EpochInput(events(epoch.get("rows", ""), gap), **clocks(epoch)) for epoch in case["epochs"]])


def test_a_step_of_windows_is_run_by_the_operator_of_its_kind() -> None:
    one_by_one = ("process", "own", "reduce")
    kinds = {verb: "WindowOperator" if verb in one_by_one else "SessionPaneOperator" for verb in VERBS}
    for verb, kind in kinds.items():
        step = windowed(hr.App("cases"), hr.session("10us"), verb)
        assert type(operator_of(step)).__name__ == kind
