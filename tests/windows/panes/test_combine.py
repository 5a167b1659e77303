"""Combining before the exchange: the step behind it must not notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.model.batch import Keys, Rows
from headrace.model.keys import encode_key
from headrace.operators import combine
from headrace.operators.contract import MAIN, Operator, TaskInfo
from headrace.testing.rig import OperatorRig
from headrace.windows.combine import combine_panes
from headrace.windows.kinds import Cumulating, Session, Sliding, Tumbling
from headrace.windows.sliced.operator import PaneOperator
from headrace.windows.triggers import Periodic
from tests.operators.combined import CombinedStep
from tests.windows.panes.steps import AGGS, Sale, info_of, results, spec_of, told


def combined_step(spec: Any) -> CombinedStep:
    return CombinedStep(PaneOperator(spec, info_of(spec.aggs)), combiner(spec))


def combiner(spec: Any) -> Any:
    found = combine_panes(spec, info_of(spec.aggs))
    assert found is not None
    return found.build()


def rig_of(operator: Operator) -> OperatorRig:
    return OperatorRig(operator, Sale, lambda sale: sale.shop, outlets=("finals",))


SALES = st.lists(
    st.builds(
        Sale,
        st.sampled_from(["a", "b", "c"]),
        st.integers(-5, 30) | st.just(-(2**63) + 1),
        st.integers(-3, 6),
        st.none() | st.sampled_from([0.5, 2.0]),
        st.none() | st.sampled_from(["x", "y"]),
    ),
    max_size=12,
)
SPECS = [
    spec_of(Tumbling(10)),
    spec_of(Sliding(10, 4), allow_late_us=5),
    spec_of(Cumulating(12, 4)),
    spec_of(Tumbling(20), fire=Periodic(5, "event"), discard=True),
]


@given(st.sampled_from(SPECS), st.lists(SALES, min_size=1, max_size=4), st.data())
def test_results_are_the_same_with_and_without_combining(
    spec: Any, epochs: Sequence[list[Sale]], data: st.DataObject
) -> None:
    plain, combined = rig_of(PaneOperator(spec, info_of(AGGS))), rig_of(combined_step(spec))
    names = ("SAMPLE_ROWS", "LOOK_AGAIN_ROWS", "MERGE_ROWS", "HELD_ROWS")
    before = {name: getattr(combine, name) for name in names}
    try:
        for name in names:
            setattr(combine, name, data.draw(st.integers(1, 4)))
        for number, rows in enumerate(epochs):
            for rig in (plain, combined):
                rig.epoch(rows[:5], rows[5:], watermark=10 * number)
            assert told(combined, "main") == told(plain, "main")
            assert told(combined, "finals") == told(plain, "finals")
            figures = [(rig.report.rows_in, rig.report.late) for rig in (plain, combined)]
            assert figures[0] == figures[1]
    finally:
        for name, value in before.items():
            setattr(combine, name, value)


@pytest.mark.parametrize(("keys", "sent"), [(10, 10), (20_000, 17_300), (10**9, 40_000)])
def test_few_keys_are_combined_and_single_rows_pass(keys: int, sent: int) -> None:
    operator = combined_step(spec_of(Tumbling(10)))
    rig = rig_of(operator)
    random = np.random.default_rng(7)
    rows = [Sale(f"shop {i}", 1) for i in random.integers(0, keys, 40_000).tolist()]
    rig.epoch(rows[:20_000], rows[20_000:], watermark=20)
    assert operator.sent == pytest.approx(sent, rel=0.01)
    assert len(rig.out["main"]) == len({row.shop for row in rows})


def test_rows_held_back_are_not_overtaken_by_rows_that_pass() -> None:
    aggs = {"oldest": hr.first("cents"), "newest": hr.last("cents"), "best": hr.max("cents", by="at")}
    operator = combined_step(spec_of(Tumbling(10), aggs))
    rig = rig_of(operator)
    count = combine.SAMPLE_ROWS + 10
    rows = [Sale("often" if i in (0, count // 2, count - 1) else f"shop {i}", 1, i) for i in range(count)]
    rig.epoch(rows, watermark=20)
    assert operator.sent > combine.SAMPLE_ROWS
    assert ("often", 0, count - 1, 0) in results(rig, "shop", "oldest", "newest", "best")


def test_keys_need_no_hash_before_the_exchange() -> None:
    operator = combiner(spec_of(Tumbling(10), AGGS))
    given_out: list[Rows] = []
    operator.outlets = {MAIN: given_out.append}
    operator.begin(TaskInfo(0, 0, 0), None)
    rig = rig_of(PaneOperator(spec_of(Tumbling(10)), info_of(AGGS)))
    rows, _ = rig.rows([Sale("a", 1), Sale("b", 2), Sale("a", 3)])
    keys = pa.array([encode_key(shop) for shop in ("a", "b", "a")], pa.binary())
    operator.process(0, rows, Keys(np.zeros(0, np.uint64), keys))
    operator.finish()
    assert [(each.columns[0].to_pylist(), each.columns[-1].to_pylist()) for each in given_out] == [
        ([2, 1], [encode_key("a"), encode_key("b")])
    ]


@pytest.mark.parametrize(("kind", "combines"), [(Tumbling(10), True), (Session(10), False), (Sliding(4, 10), False)])
def test_what_needs_whole_rows_is_not_combined(kind: Any, combines: bool) -> None:
    spec, info = spec_of(kind), info_of(AGGS)
    assert (spec.combined(replace(info, choice=spec.choose(info))) is not None) == combines
