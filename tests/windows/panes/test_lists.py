"""Sets, sketches, lists and tops in columns: equal where the values are, in the order rows came, through everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FunctionFailed, StoreError
from headrace.model.batch import Keys, Rows
from headrace.model.keys import encode_key, hash_encoded
from headrace.model.record import row_type
from headrace.model.rows import codec_of
from headrace.operators.combine import PartialCodec
from headrace.operators.contract import MAIN, TaskInfo
from headrace.operators.spec import StepInfo
from headrace.testing.rig import OperatorRig
from headrace.windows.by_row.operator import WindowOperator
from headrace.windows.combine import combine_panes
from headrace.windows.kinds import Cumulating, Sliding, Tumbling
from headrace.windows.sliced.operator import PaneOperator
from headrace.windows.spec import WindowSpec
from headrace.windows.triggers import PerEpoch, Periodic
from tests.effort import examples


class Color(Enum):
    RED = "red"


class Inner(hr.Record):
    n: int = 0


class Seen(hr.Record):
    key: str
    at: hr.Timestamp
    whole: int | None = None
    real: float | None = None
    flag: bool | None = None
    text: str | None = None
    raw: bytes | None = None
    moment: datetime | None = None
    span: timedelta | None = None
    day: date | None = None
    money: Decimal | None = None
    id: UUID | None = None
    word: Literal["x", "y"] | None = None
    either: int | float | None = None
    color: Color | None = None
    inner: Inner | None = None
    any: Any = None


COLUMNAR = ["whole", "real", "flag", "text", "raw", "moment", "span", "day", "money", "id", "word", "either"]
IDS = [UUID(int=i) for i in range(3)]


ROWS = st.lists(
    st.builds(
        Seen,
        st.sampled_from(["a", "b"]),
        st.integers(0, 30),
        st.none() | st.sampled_from([0, 1, -1, 2**62, -(2**62)]),
        st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.0, 1e300]),
        st.none() | st.booleans(),
        st.none() | st.sampled_from(["", "a", "ß", "b"]),
        st.none() | st.sampled_from([b"", b"\0", b"\xff"]),
        st.none() | st.sampled_from([datetime(1969, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)]),
        st.none() | st.sampled_from([timedelta(0), timedelta(days=-1)]),
        st.none() | st.sampled_from([date(1969, 1, 1), date(2024, 1, 1)]),
        st.none() | st.sampled_from([Decimal("1.0"), Decimal(1), Decimal("-0.000000000000000001"), Decimal(0)]),
        st.none() | st.sampled_from(IDS),
        st.none() | st.sampled_from(["x", "y"]),
        st.none() | st.sampled_from([1, 1.0, 2.5]),
    ),
    max_size=8,
)


def info_of(aggs: dict[str, Any]) -> StepInfo:
    taken = codec_of(Seen)
    fields: dict[str, Any] = {"key": str, "window_start": hr.Timestamp, "window_end": hr.Timestamp, "pane": str}
    fields |= {name: agg.result_type(taken) | None for name, agg in aggs.items()}
    return StepInfo("seen", (taken,), codec_of(row_type("Result", fields)), str, ("key",))


def rig_of(kind: Any, spec: WindowSpec, **more: Any) -> OperatorRig:
    return OperatorRig(kind(spec, info_of(dict(spec.aggs))), Seen, lambda row: row.key, **more)


def told(rig: OperatorRig) -> list[dict[str, Any]]:
    rows = [{name: getattr(row.value, name) for name in row.value.__struct_fields__} for row in rig.out.get("main", [])]
    return sorted(rows, key=lambda row: (row["key"], row["window_end"]))


DISTINCT = {name: hr.count_distinct(name) for name in COLUMNAR}
COLLECT = {name: hr.collect(name) for name in [*COLUMNAR, "inner"]}
TOPS: dict[str, Any] = {name: hr.top(name, 2) for name in COLUMNAR}
CHOSEN: dict[str, Any] = {name: hr.top("at", 2, by=name) for name in COLUMNAR}
ASSIGNERS = [Tumbling(10), Sliding(10, 4), Cumulating(12, 4)]


@pytest.mark.parametrize("aggs", [DISTINCT, COLLECT, TOPS, CHOSEN], ids=["distinct", "collect", "top", "top by"])
@settings(max_examples=examples(12))
@given(assigner=st.sampled_from(ASSIGNERS), epochs=st.lists(ROWS, min_size=1, max_size=3), data=st.data())
def test_every_type_is_told_apart_ordered_and_given_back_as_by_the_general_operator(
    aggs: dict[str, Any], assigner: Any, epochs: list[list[Seen]], data: st.DataObject
) -> None:
    spec = WindowSpec(assigner, aggs=aggs)
    assert spec.choose(info_of(aggs)).operator == "sliced"
    wanted = rig_of(WindowOperator, spec)
    rig = rig_of(PaneOperator, spec, overlay_limit_bytes=data.draw(st.sampled_from([1, 1 << 40])))
    for number, rows in enumerate([*epochs, []]):
        watermark = 2**40 if number == len(epochs) else 8 * number
        for each in (wanted, rig):
            each.epoch(rows[:3], rows[3:], watermark=watermark)
        assert told(rig) == told(wanted)
        if data.draw(st.booleans()):
            rig.fold(newest=data.draw(st.none() | st.integers(1, 2)))


def test_not_a_number_is_one_value_and_no_part_of_quantiles_for_both_operators() -> None:
    spec = WindowSpec(Tumbling(10), aggs={"real": hr.count_distinct("real"), "half": hr.quantile("real", 0.5)})
    for kind in (WindowOperator, PaneOperator):
        rig = rig_of(kind, spec)
        rig.epoch([Seen("a", 1, real=math.nan), Seen("a", 1, real=math.nan), Seen("b", 1, real=math.inf)], watermark=1)
        rig.epoch([Seen("a", 1, real=math.nan), Seen("a", 1, real=1.0)], watermark=20)
        assert [row["real"] for row in told(rig)] == [2, 1]
        assert [row["half"] for row in told(rig)] == [pytest.approx(1, rel=0.01), math.inf]


def test_a_uuid_may_be_written_in_several_ways() -> None:
    spec = WindowSpec(Tumbling(10), aggs={"id": hr.count_distinct("id"), "last": hr.top("id", 1)})
    operator = PaneOperator(spec, info_of(dict(spec.aggs)))
    rig = OperatorRig(operator, Seen, lambda row: row.key)
    rows, keys = rig.rows([Seen("a", 1) for _ in range(5)])
    place = rows.codec.index("id")
    one = "0000000a-0000-0000-0000-0000000000ff"
    ids = pa.array([one, one.upper(), one.replace("-", ""), None, "{" + one + "}"], pa.string())
    columns = [ids if i == place else column for i, column in enumerate(rows.columns)]
    rig._cut = lambda batches, groups: iter([(0, Rows.of_columns(rows.codec, columns, rows.times), keys)])  # type: ignore[method-assign]
    rig.epoch(watermark=20)
    assert [(row["id"], row["last"]) for row in told(rig)] == [(1, [UUID(one)])]


@pytest.mark.parametrize(
    "agg",
    [
        hr.count_distinct("color"),
        hr.count_distinct("any"),
        hr.collect("any"),
        hr.top("inner", 1),
        hr.top("at", 1, by="any"),
    ],
    ids=["enum", "anything", "a list of anything", "records", "by anything"],
)
def test_types_whose_columns_do_not_tell_run_row_by_row(agg: Any) -> None:
    choice = WindowSpec(Tumbling(10), aggs={"x": agg}).choose(info_of({"x": hr.count()}))
    assert (choice.operator, choice.why) == ("by row", "the aggregate 'x' has no columns")


@pytest.mark.parametrize("assigner", [Sliding(20, 5), Cumulating(20, 5)], ids=["sliding", "cumulating"])
def test_lists_over_several_slices_are_in_the_order_in_which_rows_came(assigner: Any) -> None:
    spec = WindowSpec(assigner, aggs={"all": hr.collect("whole"), "best": hr.top("whole", 3, by="flag")})
    rig = rig_of(PaneOperator, spec)
    rig.epoch([Seen("a", 19, 1, flag=True), Seen("a", 2, 2, flag=True)], [Seen("a", 9, 3, flag=False)], watermark=0)
    rig.epoch([Seen("a", 17, 4, flag=True), Seen("a", 1, 5, flag=True)], watermark=1)
    rig.fold()
    rig.epoch(watermark=100)
    whole = next(row for row in told(rig) if (row["window_start"], row["window_end"]) == (0, 20))
    assert (whole["all"], whole["best"]) == ([1, 2, 3, 4, 5], [1, 2, 4])


def test_the_oldest_of_equal_rows_is_chosen_whatever_its_slice() -> None:
    spec = WindowSpec(Sliding(10, 5), aggs={"least": hr.min("text", by="whole"), "most": hr.max("text", by="whole")})
    for kind in (WindowOperator, PaneOperator):
        rig = rig_of(kind, spec)
        rig.epoch([Seen("a", 7, 3, text="first"), Seen("a", 2, 3, text="second")], watermark=0)
        rig.epoch([Seen("a", 1, 3, text="third")], watermark=100)
        found = {row["window_start"]: (row["least"], row["most"]) for row in told(rig)}
        assert found == {-5: ("second", "second"), 0: ("first", "first"), 5: ("first", "first")}


def test_rows_combined_before_the_exchange_keep_the_order_in_which_they_came() -> None:
    spec = WindowSpec(Sliding(20, 5), aggs={"all": hr.collect("whole"), "kinds": hr.count_distinct("text")})
    info = info_of(dict(spec.aggs))
    combined = combine_panes(spec, info)
    assert combined is not None
    before = combined.build()
    sent: list[Rows] = []
    before.outlets = {MAIN: sent.append}
    rig = rig_of(PaneOperator, spec)
    rows = [Seen("a", at, i, text="x") for i, at in enumerate([12, 3, 14, 2, 9, 1])]
    before.begin(TaskInfo(7, 0, 0), None)
    given_rows, _ = rig.rows(rows)
    keys = pa.array([encode_key(row.key) for row in rows], pa.binary())
    before.process(0, given_rows, Keys(np.zeros(0, np.uint64), keys))
    for _ in before.finish() or ():
        pass
    assert sum(len(each) for each in sent) == 3
    *columns, encoded = sent[0].columns
    partials = Rows.of_columns(combined.codec, columns, sent[0].times)
    rig._cut = lambda batches, groups: iter([(1, partials, Keys(hash_encoded(encoded), encoded))])  # type: ignore[method-assign]
    rig.epoch(watermark=100)
    whole = next(row for row in told(rig) if row["window_start"] == 0)
    assert (whole["all"], whole["kinds"]) == ([0, 1, 2, 3, 4, 5], 1)


def test_partials_of_lists_have_a_type_in_the_exchange() -> None:
    aggs = {"all": hr.collect("moment"), "kinds": hr.count_distinct("text"), "half": hr.quantile("real", 0.5)}
    combined = combine_panes(WindowSpec(Sliding(20, 5), aggs=aggs), info_of(aggs))
    assert combined is not None
    assert isinstance(combined.codec, PartialCodec)
    assert "ARRAY<STRUCT<`bucket`: INT, `count`: BIGINT>>" in combined.codec.spark_ddl
    assert "ARRAY<STRUCT<`came`: BIGINT, `value`: TIMESTAMP>>" in combined.codec.spark_ddl


@pytest.mark.parametrize("fire", [None, PerEpoch(), Periodic(5, "wall")], ids=["end", "per epoch", "early"])
def test_emptied_windows_give_each_value_once(fire: Any) -> None:
    spec = WindowSpec(Tumbling(100), fire=fire, discard=True, aggs={"all": hr.collect("whole")}, allow_late_us=50)
    rig = rig_of(PaneOperator, spec)
    given_out: list[int] = []
    for number, watermark in enumerate([1, 2, 99, 120, 200]):
        rows = [Seen("a", 3, 2 * number), Seen("a", 2, 2 * number + 1)] if watermark < 200 else []
        rig.epoch(rows, watermark=watermark, clock=1000 + 4 * number)
        given_out += [value for row in told(rig) for value in row["all"]]
        rig.fold()
    assert given_out == list(range(8))


def test_sums_of_decimals_have_all_their_digits() -> None:
    spec = WindowSpec(Sliding(10, 5), aggs={"total": hr.sum("money"), "mean": hr.avg("money")})
    rig = rig_of(PaneOperator, spec)
    large, small = Decimal("12345678901234567890.5"), Decimal("0.000000000000000001")
    rig.epoch([Seen("a", 1, money=large), Seen("a", 2, money=small), Seen("a", 3)], watermark=0)
    rig.epoch([Seen("a", 6, money=-large)], watermark=100)
    found = {row["window_start"]: (str(row["total"]), row["mean"]) for row in told(rig)}
    assert found[-5] == ("12345678901234567890.500000000000000001", Decimal("6172839450617283945.250000000000000001"))
    assert found[0] == ("1E-18", Decimal(0))


def test_a_sum_of_decimals_that_is_too_long_stops_the_step_and_names_it() -> None:
    rig = rig_of(PaneOperator, WindowSpec(Tumbling(10), aggs={"total": hr.sum("money")}))
    with pytest.raises(FunctionFailed, match="step seen: the sum 'total' leaves 38 digits"):
        rig.epoch([Seen("a", 1, money=Decimal(6 * 10**19)), Seen("a", 1, money=Decimal(6 * 10**19))], watermark=10)


KINDS: dict[str, Any] = {
    "count_distinct": hr.count_distinct("text"),
    "quantile": hr.quantile("real", 0.5),
    "collect": hr.collect("whole"),
    "top": hr.top("whole", 2),
    "sum": hr.sum("money"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("back", [False, True], ids=["into columns", "out of them"])
def test_windows_that_were_kept_in_the_other_way_are_refused_in_words(name: str, back: bool) -> None:
    spec = WindowSpec(Tumbling(10), aggs={"x": KINDS[name]})
    kinds: Sequence[Any] = (PaneOperator, WindowOperator) if back else (WindowOperator, PaneOperator)
    rig = rig_of(kinds[0], spec)
    rig.epoch([Seen("a", 1, 1, 1.0, text="x", money=Decimal(1))], watermark=1)
    rig.take_over(kinds[1](spec, info_of(dict(spec.aggs))))
    with pytest.raises(StoreError, match="what this step keeps was stored as another kind of state") as caught:
        rig.epoch([Seen("a", 1)], watermark=1)
    assert "step seen" in str(caught.value)
    assert "give the step another name" in str(caught.value)


def test_an_aggregate_of_another_type_under_the_same_name_is_refused() -> None:
    rig = rig_of(PaneOperator, WindowSpec(Tumbling(10), aggs={"x": hr.collect("text")}))
    rig.epoch([Seen("a", 1, text="word")], watermark=1)
    rig.take_over(PaneOperator(WindowSpec(Tumbling(10), aggs={"x": hr.collect("whole")}), info_of({"x": hr.count()})))
    with pytest.raises(StoreError, match="'x' was stored with another type"):
        rig.epoch([Seen("a", 1, 1)], watermark=10)


@pytest.mark.parametrize("by", [None, "real"])
def test_a_top_of_fewer_values_than_before_gives_no_more_of_open_windows(by: str | None) -> None:
    specs = [WindowSpec(Tumbling(10), aggs={"x": hr.top("whole", n, by=by)}) for n in (4, 2, 3)]
    rig = rig_of(PaneOperator, specs[0])
    rig.epoch([Seen(key, 1, n, float(n)) for key in "ab" for n in (1, 4, 2, 3)], watermark=1)
    rig.take_over(PaneOperator(specs[1], info_of(dict(specs[1].aggs))))
    rig.epoch([Seen("a", 2, 5, 5.0)], watermark=2)
    rig.take_over(PaneOperator(specs[2], info_of(dict(specs[2].aggs))))
    rig.epoch(watermark=20)
    assert [row["x"] for row in told(rig)] == [[5, 4, 3], [4, 3, 2]]


def test_a_list_that_came_later_has_seen_nothing_of_open_windows() -> None:
    rig = rig_of(PaneOperator, WindowSpec(Tumbling(10), aggs={"n": hr.count()}))
    rig.epoch([Seen("a", 1, 7)], watermark=1)
    aggs = {
        "n": hr.count(),
        "all": hr.collect("whole"),
        "kinds": hr.count_distinct("whole"),
        "half": hr.quantile("whole", 0.5),
    }
    rig.take_over(PaneOperator(WindowSpec(Tumbling(10), aggs=aggs), info_of(aggs)))
    rig.epoch([Seen("a", 2, 8), Seen("b", 2)], watermark=10)
    assert [(row["n"], row["all"], row["kinds"]) for row in told(rig)] == [(2, [8], 1), (1, [], 0)]
    assert told(rig)[1]["half"] is None
