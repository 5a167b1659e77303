from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.dataflow.graph import BatchNode, CallNode, ExprNode, ReadNode, TapNode, UnionNode, WriteNode
from headrace.errors import ExpressionError, ProgramError

if TYPE_CHECKING:
    import polars as pl


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int = 0
    note: str | None = None


class Alert(hr.Record):
    card: str
    at: hr.Timestamp


class Click(hr.Record, tag=True):
    user: str


class Scroll(hr.Record, tag=True):
    user: str
    lines: int


def app_with_tx() -> tuple[hr.App, hr.Stream[Tx]]:
    app = hr.App("fraud")
    return app, app.read("tx", hr.source.items([]), Tx, time=Tx.at, out_of_order="5s", idle="30s")


@pytest.fixture
def tx() -> hr.Stream[Tx]:
    return app_with_tx()[1]


def mistake(call: Callable[[], Any], *parts: str) -> ProgramError:
    """Run something wrong; the error must name this file and hold these words."""
    with pytest.raises(ProgramError) as caught:
        call()
    text = str(caught.value)
    assert "test_streams.py:" in caught.value.where, text
    for part in parts:
        assert part in text
    return caught.value


# -- read --------------------------------------------------------------------------------------------------------


def test_a_read_knows_its_source_type_and_times(tx: hr.Stream[Tx]) -> None:
    node = tx.node
    assert isinstance(node, ReadNode)
    assert (node.name, node.time, node.out_of_order_us, node.idle_us) == ("tx", "at", 5_000_000, 30_000_000)
    assert node.codec.type is Tx
    assert "test_streams.py:" in node.site


@pytest.mark.parametrize("time", ["at", "`at`", "AT", hr.col("at"), Tx.at, "at + INTERVAL '1' HOUR"])
def test_event_time_is_a_field_a_name_or_sql(time: Any) -> None:
    stream = hr.App("a").read("tx", hr.source.items([]), Tx, time=time)
    assert isinstance(stream.node, ReadNode)
    assert stream.node.time


def test_event_time_has_to_be_a_timestamp() -> None:
    app = hr.App("a")
    mistake(lambda: app.read("tx", hr.source.items([]), Tx, time=Tx.cents), "timestamp_millis(cents)")
    mistake(lambda: app.read("tx", hr.source.items([]), Tx, time="card"), "has to be a timestamp")
    mistake(lambda: app.read("tx", hr.source.items([]), Tx, time="att"), "no column 'att'", "at")


def test_out_of_order_and_idle_need_event_time() -> None:
    app = hr.App("a")
    mistake(lambda: app.read("tx", hr.source.items([]), Tx, out_of_order="5s"), "time=")
    mistake(lambda: app.read("tx", hr.source.items([]), Tx, idle="5s"), "time=")
    mistake(lambda: app.read("tx", hr.source.items([]), Tx, time=Tx.at, idle="soon"), "idle", '"500ms"')


@pytest.mark.parametrize("name", ["", "Tx", "1tx", "tx-1", "tx.a", "tx 1", "_tx", "ü", "a" * 101, None])
def test_names_are_small_letters_digits_and_underscores(name: Any) -> None:
    mistake(lambda: hr.App(name), "cannot be the name of an app")
    app = hr.App("a")
    mistake(lambda: app.read(name, hr.source.items([]), Tx), "cannot be the name of a source")


def test_a_bad_name_gets_a_proposal() -> None:
    mistake(lambda: hr.App("My-App 2"), "call it 'my_app_2'")


def test_what_is_no_source_or_sink_is_refused(tx: hr.Stream[Tx]) -> None:
    mistake(lambda: tx.app.read("b", "events/", Tx), "this is no source")  # type: ignore[arg-type]
    mistake(lambda: tx.write("out/"), "this is no sink")  # type: ignore[arg-type]


def test_a_type_that_cannot_travel_is_refused_where_it_is_read() -> None:
    class Odd(hr.Record):
        number: complex

    app = hr.App("a")
    mistake(lambda: app.read("odd", hr.source.items([]), Odd), "Odd.number is complex")


# -- expressions -------------------------------------------------------------------------------------------------


def test_where_keeps_the_type_and_the_text(tx: hr.Stream[Tx]) -> None:
    for condition in ("cents > 0", hr.col("cents") > 0):
        node = tx.where(condition).node
        assert isinstance(node, ExprNode)
        assert node.op == "where"
        assert node.exprs[0][0] == ""
        assert "cents > 0" in node.exprs[0][1]
        assert node.codec is tx.node.codec


def test_an_unknown_column_is_found_with_its_nearest_names(tx: hr.Stream[Tx]) -> None:
    error = mistake(lambda: tx.where("sents > 0"), "no column 'sents'", "cents")
    assert isinstance(error, ExpressionError)
    mistake(lambda: tx.select("crad"), "'crad'", "card")
    mistake(lambda: tx.select(total="sents + 1"), "'sents'")
    mistake(lambda: tx.select(Alert, at="time"), "'time'")
    mistake(lambda: tx.key_by("crad"), "'crad'", "card")


def test_text_that_is_no_sql_is_refused(tx: hr.Stream[Tx]) -> None:
    mistake(lambda: tx.where("cents >"))
    mistake(lambda: tx.where(lambda t: t.cents > 0), "not a column", "the function <lambda>", "filter(…)")  # type: ignore[arg-type]


def test_a_condition_has_to_be_a_condition(tx: hr.Stream[Tx]) -> None:
    mistake(lambda: tx.where("cents + 1"), "true or false")


def test_select_into_a_type_takes_columns_by_name(tx: hr.Stream[Tx]) -> None:
    node = tx.select(Alert, at="at + INTERVAL '1' HOUR").node
    assert isinstance(node, ExprNode)
    assert node.exprs == (("card", "card"), ("at", "at + INTERVAL '1' HOUR"))
    assert node.codec.type is Alert


def test_select_into_a_type_fills_in_defaults_and_casts(tx: hr.Stream[Tx]) -> None:
    class Wide(hr.Record):
        card: str
        amount: float
        limit: int = 5
        tags: list[str] = []

    node = tx.select(Wide, amount="cents").node
    assert isinstance(node, ExprNode)
    assert node.exprs == (
        ("card", "card"),
        ("amount", "CAST(cents AS DOUBLE)"),
        ("limit", "CAST(5 AS BIGINT)"),
        ("tags", "CAST(NULL AS ARRAY<STRING>)"),
    )


def test_select_into_a_type_misses_nothing(tx: hr.Stream[Tx]) -> None:
    class Other(hr.Record):
        card: str
        total: int

    mistake(lambda: tx.select(Other), "'total' of Other", 'add total="…"')
    mistake(lambda: tx.select(Other, totl="cents"), "no field 'totl'", "did you mean total")
    mistake(lambda: tx.select(Other, total="card"), "BIGINT", "CAST(card AS BIGINT)")


def test_select_without_a_type_makes_rows(tx: hr.Stream[Tx]) -> None:
    stream = tx.select("card", Tx.at, total="cents * 2")
    row_type = stream.node.codec.type
    assert issubclass(row_type, hr.Row)
    assert stream.node.codec.annotations == {"card": str, "at": hr.Timestamp, "total": int | None}
    assert row_type("a", 1, 2).total == 2
    mistake(lambda: tx.select("cents * 2"), "needs a name")
    mistake(tx.select, "without columns")


def test_with_columns_adds_and_replaces(tx: hr.Stream[Tx]) -> None:
    node = tx.with_columns(cents="cents + 1", double="cents * 2").node
    assert isinstance(node, ExprNode)
    assert node.codec.names == ["card", "at", "cents", "note", "double"]
    assert dict(node.exprs)["cents"] == "cents + 1"
    assert tx.with_columns(Tx, cents="cents + 1").node.codec.type is Tx


# -- Python ------------------------------------------------------------------------------------------------------


def to_alert(row: Tx) -> Alert:
    return Alert(row.card, row.at)


def many(row: Tx) -> Iterator[Alert]:
    yield Alert(row.card, row.at)


class Adder:
    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, row: Tx) -> Tx:
        return row.replace(cents=row.cents + self.n)

    def method(self, row: Tx) -> Alert:
        return Alert(row.card, row.at)


def with_limit(limit: int, row: Tx) -> Alert:
    return Alert(row.card, row.at)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [(to_alert, Alert), (Adder(1), Tx), (Adder(1).method, Alert), (partial(with_limit, 5), Alert)],
)
def test_the_output_type_of_map_comes_from_annotations(tx: hr.Stream[Tx], fn: Any, expected: Any) -> None:
    node = tx.map(fn).node
    assert isinstance(node, CallNode)
    assert (node.op, node.fn, node.codec.type) == ("map", fn, expected)


def test_the_output_type_may_be_given(tx: hr.Stream[Tx]) -> None:
    assert tx.map(lambda t: t.card, output=str).node.codec.type is str
    assert tx.flat_map(lambda t: [t], output=Tx).node.codec.type is Tx


def test_the_item_type_of_flat_map_comes_from_any_iterable(tx: hr.Stream[Tx]) -> None:
    def as_list(row: Tx) -> list[Alert]:
        return []

    def as_generator(row: Tx) -> Generator[Alert, None, None]:
        yield from ()

    def as_iterable(row: Tx) -> Iterable[Alert] | None:
        return None

    for fn in (many, as_list, as_generator, as_iterable):
        assert tx.flat_map(fn).node.codec.type is Alert  # type: ignore[arg-type]


def test_annotations_may_name_classes_of_the_same_function(tx: hr.Stream[Tx]) -> None:
    class Local(hr.Record):
        card: str

    def localize(row: Tx) -> Local:
        return Local(row.card)

    assert tx.map(localize).node.codec.type is Local


def test_a_missing_output_type_is_an_error_with_the_line_that_fixes_it(tx: hr.Stream[Tx]) -> None:
    def silent(row):  # type: ignore[no-untyped-def]
        return row

    def vague(row: Tx) -> Any:
        return row

    mistake(lambda: tx.map(lambda t: t.card), "map(lambda row: …, output=Out)")
    mistake(lambda: tx.map(silent), "def silent(row: In) -> Out")
    mistake(lambda: tx.map(vague), "is not known")
    mistake(lambda: tx.flat_map(silent), "Iterator[Out]")
    mistake(lambda: tx.flat_map(to_alert), "is not known")  # type: ignore[arg-type]


def test_map_cannot_give_none(tx: hr.Stream[Tx]) -> None:
    def sometimes(row: Tx) -> Alert | None:
        return None

    mistake(lambda: tx.map(sometimes), "use flat_map")


def test_what_is_no_function_is_refused(tx: hr.Stream[Tx]) -> None:
    async def later(row: Tx) -> Alert:
        return Alert(row.card, row.at)

    mistake(lambda: tx.filter("cents > 0"), "text is SQL")  # type: ignore[arg-type]
    mistake(lambda: tx.map(later), "cannot await")


def test_state_on_a_step_without_a_key_is_refused(tx: hr.Stream[Tx]) -> None:
    class Fraud(hr.Process[Tx, Alert, str]):
        small: hr.ValueState[bool]

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    class Sneaky:
        seen: hr.MapState[str, int]

        def __call__(self, row: Tx) -> Alert:
            return Alert(row.card, row.at)

    for verb in (tx.map, tx.flat_map, tx.filter):
        mistake(lambda verb=verb: verb(Fraud()), "key_by(…).process(Fraud")  # type: ignore[misc]
    mistake(lambda: tx.map(Sneaky()), "cannot keep state")


def test_keyed_verbs_on_a_stream_without_a_key_say_so(tx: hr.Stream[Tx]) -> None:
    for verb in ("process", "reduce", "aggregate", "latest"):
        mistake(lambda verb=verb: getattr(tx, verb), f"{verb} needs a key")  # type: ignore[misc]
    mistake(lambda: tx.wher("x"), "did you mean where")  # type: ignore[attr-defined]
    mistake(lambda: tx.key_by("card").map(to_alert), "before key_by")  # type: ignore[attr-defined]
    assert not hasattr(tx, "process")
    assert not hasattr(tx, "_ipython_display_")


def test_only_takes_members_of_the_union() -> None:
    app = hr.App("a")
    events: hr.Stream[Any] = app.read("events", hr.source.items([]), Click | Scroll)
    node = events.only(Click).node
    assert isinstance(node, CallNode)
    assert (node.op, node.fn, node.codec.type) == ("only", Click, Click)
    mistake(lambda: events.only(Tx), "one of Click, Scroll")


def test_map_batches_reads_its_form_from_the_annotation(tx: hr.Stream[Tx]) -> None:
    def arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def polars(frame: pl.DataFrame) -> pl.DataFrame:
        return frame

    def pandas(frame: pd.DataFrame) -> pd.DataFrame:  # type: ignore[name-defined] # noqa: F821
        return frame

    forms = {}
    for fn in (arrow, polars, pandas, lambda batch: batch):
        node = tx.map_batches(fn, Tx).node
        assert isinstance(node, BatchNode)
        forms[fn.__name__] = node.form
    assert forms == {"arrow": "arrow", "polars": "polars", "pandas": "pandas", "<lambda>": "arrow"}
    node = tx.map_batches(arrow, output=Tx, form="polars").node
    assert isinstance(node, BatchNode)
    assert node.form == "polars"


# -- other ways out ----------------------------------------------------------------------------------------------


def test_union_takes_streams_of_one_type_and_one_app(tx: hr.Stream[Tx]) -> None:
    node = tx.union(tx.where("cents > 0"), tx.filter(lambda t: True)).node
    assert isinstance(node, UnionNode)
    assert len(node.inputs) == 3
    mistake(lambda: tx.union(tx.map(to_alert)), "one type", "Alert")  # type: ignore[arg-type]
    mistake(lambda: tx.union(app_with_tx()[1]), "two apps")
    mistake(lambda: tx.union("tx"), "takes streams")  # type: ignore[arg-type]


def test_errors_are_one_tap_however_often_they_are_asked_for(tx: hr.Stream[Tx]) -> None:
    first, second = tx.errors, tx.errors
    assert isinstance(first.node, TapNode)
    assert first.node is second.node
    assert first.node.codec.type is hr.Failed
    assert tx.map(to_alert).errors.node.inputs[0].verb == "map"
    mistake(lambda: tx.where("cents > 0").errors, "no errors of its own")


def test_writing_binds_the_sink_to_a_named_output(tx: hr.Stream[Tx]) -> None:
    alerts = tx.map(to_alert)
    alerts.write(hr.sink.files("a/"))
    alerts.write(hr.sink.files("b/"))
    alerts.write(hr.sink.files("c/"), name="alerts")
    tx.errors.write(hr.sink.files("d/"))
    writes = [node for node in tx.app.nodes if isinstance(node, WriteNode)]
    assert outputs(tx) == ["tx_files_a", "tx_files_b", "alerts", "tx_errors_files_d"]
    assert all(node.sink.output == node.name and node.sink.codec is node.codec for node in writes)
    mistake(lambda: alerts.write(hr.sink.files("e/"), name="alerts"), "two outputs are named 'alerts'")
    mistake(lambda: alerts.write(hr.sink.files("e/"), name="A"), "cannot be the name of an output")


def outputs(stream: hr.Stream[Any]) -> list[str | None]:
    return [node.name for node in stream.app.nodes if isinstance(node, WriteNode)]


def announce(rows: list[Tx], epoch: int) -> None: ...


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        (lambda: hr.sink.files("/data/jobs/Daily totals/"), "tx_files_daily_totals"),
        (lambda: hr.sink.files("s3://bucket"), "tx_files_bucket"),
        (lambda: hr.sink.files("数据"), "tx_files_67677b3d"),
        (lambda: hr.sink.files("x" * 100), f"tx_files_{'x' * 62}_7b191691"),
        (lambda: hr.sink.spark("jdbc", dbtable="shop.sales"), "tx_spark_jdbc_shop_sales"),
        (lambda: hr.sink.spark("delta", path="/data/sales"), "tx_spark_delta_sales"),
        (lambda: hr.sink.call(announce), "tx_call_announce"),
        (hr.sink.console, "tx_console"),
    ],
)
def test_an_output_is_named_by_its_step_and_its_sink(tx: hr.Stream[Tx], sink: Any, name: str) -> None:
    tx.where("cents > 0").write(sink())
    assert outputs(tx) == [name]


def test_one_more_output_renames_no_other() -> None:
    def written(*sinks: hr.Sink) -> list[str | None]:
        stream = app_with_tx()[1]
        for sink in sinks:
            stream.write(sink)
        return outputs(stream)

    few = written(hr.sink.files("b/"), hr.sink.call(announce), hr.sink.console())
    many = written(
        hr.sink.files("a/"), hr.sink.files("b/"), hr.sink.call(print), hr.sink.call(announce), hr.sink.console()
    )
    assert set(few) < set(many)


def test_outputs_that_nothing_tells_apart_are_to_be_named(tx: hr.Stream[Tx]) -> None:
    tx.where("cents > 0").write(hr.sink.files("jobs/out/"))
    mistake(lambda: tx.write(hr.sink.files("other/out/")), "two outputs would be named 'tx_files_out'", "name=")
    tx.write(hr.sink.files("other/out/"), name="tx_other")
    tx.show()
    tx.show()
    assert outputs(tx) == ["tx_files_out", "tx_other", "tx_console", "tx_console_2"]


def test_show_writes_to_the_console(tx: hr.Stream[Tx]) -> None:
    tx.show(5)
    write = tx.app.nodes[-1]
    assert isinstance(write, WriteNode)
    assert write.sink.kind == "console"


def test_queryable_needs_state(tx: hr.Stream[Tx]) -> None:
    mistake(tx.queryable, "has no state to query")


def test_named_returns_the_same_stream(tx: hr.Stream[Tx]) -> None:
    where = tx.where("cents > 0")
    assert where.named("positive") is where
    assert where.node.name == "positive"
    mistake(lambda: where.named("x", was="x"), "was= names the step itself", "leave was= out")
