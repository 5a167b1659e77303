"""`source.files` and `source.spark` as Spark reads them: good rows typed, bad rows told apart with their text."""

from __future__ import annotations

import gzip
import json
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import source
from headrace.connectors.source_contract import BadInput, Source, SparkRead
from headrace.errors import ProgramError
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Duration, Timestamp, timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Kind(Enum):
    WEB = "web"
    APP = "app"


class View(Record):
    tweet: str
    at: Timestamp
    n: int = 1


class Point(Record):
    x: float
    y: float = 0.0


class Wide(Record):
    name: str
    at: Timestamp
    count: int
    ratio: float
    ok: bool
    day: date
    price: Decimal
    blob: bytes
    kind: Kind
    span: Duration
    tags: list[str]
    sizes: dict[str, int]
    where: Point
    note: str | None = None
    since: Timestamp = timestamp("2020-01-01T00:00:00.000001Z")
    labels: list[str] = msgspec.field(default_factory=lambda: ["it's", 'a "b" \\ c'])
    home: Point = Point(1.5)
    raw: bytes = b"\x00'"
    step: Duration = Duration(7)
    from_: Kind = Kind.APP


WIDE = Wide(
    name="it's",
    at=timestamp("2024-01-01T12:00:00.123456Z"),
    count=-(2**63),
    ratio=0.1,
    ok=True,
    day=date(2024, 2, 29),
    price=Decimal("12.5"),
    blob=b"\x00\xff",
    kind=Kind.WEB,
    span=Duration(5),
    tags=["a", "b"],
    sizes={"s": 1},
    where=Point(1.0, 2.0),
)
A_LINE = '{"tweet": "a", "at": "2024-01-01T12:00:00.5Z", "n": 3}'


def apply(frame: DataFrame, read: SparkRead) -> tuple[DataFrame, DataFrame]:
    """Good and bad rows, as the ``spark`` room makes them."""
    if read.prepare:
        frame = frame.selectExpr("*", *read.prepare)
    if read.keep is not None:
        frame = frame.where(read.keep)
    columns = [f"{sql} AS `{name}`" for name, sql in read.columns.items()]
    bad = read.bad or "false"
    return frame.where(f"NOT ({bad})").selectExpr(*columns), frame.where(bad).selectExpr(f"{read.raw or 'NULL'} AS raw")


def load(spark: SparkSession, read: SparkRead) -> DataFrame:
    reader: Any = spark.read.format(read.format).options(**read.options)
    if read.schema_ddl is not None:
        reader = reader.schema(read.schema_ddl)
    return reader.load(read.load_path)  # type: ignore[no-any-return]


def read_all(spark: SparkSession, made: Source, row_type: Any) -> tuple[list[Any], list[BadInput]]:
    codec = codec_of(row_type)
    source_read = made.bind(codec).spark(codec)
    good, bad = apply(load(spark, source_read), source_read)
    wanted = spark.createDataFrame([], codec.spark_ddl).schema
    assert [f.dataType for f in good.schema] == [f.dataType for f in wanted], "columns have the codec's types"
    table = good.toArrow()
    rows = codec.to_objects([column.combine_chunks() for column in table.columns])
    return rows, [made.explain_bad(codec, row.raw) for row in bad.collect()]


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_json_lines_become_typed_rows_and_defaults_fill_in(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.json", A_LINE, "", '{"at": "2024-01-01T13:00:00+01:00", "tweet": "b", "extra": [1]}', "  ")
    rows, bad = read_all(spark, source.files(tmp_path), View)
    assert rows == [View("a", timestamp("2024-01-01T12:00:00.5"), 3), View("b", timestamp("2024-01-01T12:00:00"), 1)]
    assert bad == []


def test_json_carries_every_type_of_field_and_every_default(spark: SparkSession, tmp_path: Path) -> None:
    given = json.loads(next(iter(codec_of(Wide).to_json([WIDE]))))
    required = {name: given[name] for name in codec_of(Wide).required}
    written(tmp_path / "a.json", json.dumps(given), json.dumps(required))
    rows, bad = read_all(spark, source.files(tmp_path), Wide)
    assert bad == []
    assert rows == [WIDE, WIDE]


BAD_LINES = {
    "not json": "",
    '{"tweet": "a"': "",
    '{"tweet": "a", "at": "2024-01-01T12:00:00Z", "n": "many"}': "$.n",
    '{"tweet": "a", "at": "2024-01-01T12:00:00Z", "n": 1.5}': "$.n",
    '{"tweet": "a", "at": "yesterday"}': "",
    '{"tweet": "a", "at": 1704110400}': "at is not an ISO time: 1704110400",
    '{"at": "2024-01-01T12:00:00Z"}': "tweet",
    '{"tweet": null, "at": "2024-01-01T12:00:01Z"}': "$.tweet",
    "null": "",
    "5": "",
}


def test_every_kind_of_bad_json_is_told_with_file_line_and_reason(spark: SparkSession, tmp_path: Path) -> None:
    path = written(tmp_path / "with space.json", A_LINE, *BAD_LINES)
    rows, bad = read_all(spark, source.files(tmp_path), View)
    assert len(rows) == 1
    assert [b.text for b in bad] == list(BAD_LINES)
    assert [b.where for b in bad] == [f"{path}:{line}" for line in range(2, 2 + len(BAD_LINES))]
    for told, part in zip(bad, BAD_LINES.values(), strict=True):
        assert part in told.reason, told


def test_an_array_on_a_line_is_as_many_rows_as_it_has_objects(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.json", f"[{A_LINE}, {A_LINE}]")
    rows, bad = read_all(spark, source.files(tmp_path), View)
    assert len(rows) == 2 and bad == []


def test_gzipped_json_is_read_and_its_lines_are_found(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(f"{A_LINE}\noops\n".encode()))
    rows, bad = read_all(spark, source.files(tmp_path), View)
    assert len(rows) == 1 and bad[0].where == f"{path}:2"


def test_renamed_fields_are_read_by_their_json_names(spark: SparkSession, tmp_path: Path) -> None:
    class Renamed(Record, rename="camel"):
        user_name: str

    written(tmp_path / "a.json", '{"userName": "ann"}', '{"user_name": "bob"}')
    rows, bad = read_all(spark, source.files(tmp_path), Renamed)
    assert rows == [Renamed("ann")] and len(bad) == 1


class Left(Record, tag=True):
    a: int


class Right(Record, tag=True):
    b: str


def test_a_union_is_read_by_its_tag(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.json", '{"type": "Left", "a": 1}', '{"type": "Right", "b": "x"}', '{"b": "x"}')
    rows, bad = read_all(spark, source.files(tmp_path), Left | Right)
    assert rows == [Left(1), Right("x")] and len(bad) == 1


def test_csv_is_read_by_the_names_in_its_header(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "n,at,other,tweet", '3,2024-01-01T12:00:00.5Z,x,"say ""hi"", ok"', ",2024-01-01,,b")
    rows, bad = read_all(spark, source.files(tmp_path, format="csv"), View)
    assert rows == [View('say "hi", ok', timestamp("2024-01-01T12:00:00.5"), 3), View("b", timestamp("2024-01-01"), 1)]
    assert bad == []


class Flat(Record):
    name: str
    at: Timestamp
    count: int
    ratio: float
    ok: bool
    day: date
    price: Decimal
    blob: bytes
    kind: Kind
    note: str | None = None
    more: int = 4


def test_csv_carries_every_flat_type(spark: SparkSession, tmp_path: Path) -> None:
    written(
        tmp_path / "a.csv",
        "name,at,count,ratio,ok,day,price,blob,kind,note",
        "it's,2024-01-01T12:00:00.123456Z,-9223372036854775808,1e-3,true,2024-02-29,12.5,AP8=,web,",
        ',2024-01-01,0,-1,false,2024-01-01,0,"",app,""',
    )
    rows, bad = read_all(spark, source.files(tmp_path, format="csv"), Flat)
    at, day = timestamp("2024-01-01T12:00:00.123456Z"), date(2024, 2, 29)
    assert bad == []
    assert rows[0] == Flat("it's", at, -(2**63), 0.001, True, day, Decimal("12.5"), b"\x00\xff", Kind.WEB)
    assert rows[1].name == "" and rows[1].note == "" and rows[1].blob == b"" and rows[1].more == 4


def test_bad_csv_rows_are_told_with_file_line_and_reason(spark: SparkSession, tmp_path: Path) -> None:
    lines = {
        "b,noon,1": "at is not an ISO time: noon",
        '"c, d",2024-01-01,many': "n is not BIGINT: many",
        "e,,1": "at is missing",
        "f": "not 3 cells",
        "g,2024-01-01,1,9": "not 3 cells",
        "h,1704110400000,1": "at is not an ISO time",
    }
    path = written(tmp_path / "a.csv", "tweet,at,n", "a,2024-01-01,1", *lines)
    rows, bad = read_all(spark, source.files(tmp_path, format="csv"), View)
    assert rows == [View("a", timestamp("2024-01-01"), 1)]
    assert [b.where for b in bad] == [f"{path}:{number}" for number in range(3, 3 + len(lines))]
    for told, part in zip(bad, lines.values(), strict=True):
        assert part in told.reason, told


def test_csv_without_a_header_goes_by_the_order_of_fields_or_of_names(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "a;2024-01-01;5")
    rows, _ = read_all(spark, source.files(tmp_path, format="csv", header=False, delimiter=";"), View)
    assert rows == [View("a", timestamp("2024-01-01"), 5)]
    names = ("tweet", "at", "ignored")
    rows, _ = read_all(spark, source.files(tmp_path, format="csv", header=False, delimiter=";", names=names), View)
    assert rows == [View("a", timestamp("2024-01-01"), 1)]


def test_a_csv_file_with_another_header_stops_the_job(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "tweet,at,n", "a,2024-01-01,1")
    written(tmp_path / "b.csv", "at,tweet,n", "2024-01-01,a,1")
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        read_all(spark, source.files(tmp_path, format="csv"), View)


def test_a_header_without_a_required_column_is_refused_at_start(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "tweet,n", "a,1")
    with pytest.raises(ProgramError, match="no column at"):
        source.files(tmp_path, format="csv").spark(codec_of(View))


def test_parquet_is_read_with_defaults_and_tells_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    at = pa.array([1, 2], pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"tweet": ["a", None], "at": at, "other": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": pa.array([5], pa.int32()), "tweet": ["b"], "at": at[:1]}), tmp_path / "b.parquet")
    rows, bad = read_all(spark, source.files(tmp_path, format="parquet"), View)
    assert sorted(rows, key=lambda r: r.tweet) == [View("a", Timestamp(1), 1), View("b", Timestamp(1), 5)]
    assert [(b.where, b.reason) for b in bad] == [(str(tmp_path / "a.parquet"), "tweet is missing")]


def test_new_files_are_picked_up_epoch_by_epoch_and_old_ones_are_not_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    import os

    folder = tmp_path / "in"
    folder.mkdir()
    written(folder / "a.json", A_LINE)
    made = source.files(folder, max_files_per_epoch=1, glob="*.json")
    assert _stream(spark, made, tmp_path) == [["a"]]
    old = written(folder / "b.json", A_LINE.replace('"a"', '"b"'))
    os.utime(old, (1_000_000_000, 1_000_000_000))
    written(folder / "c.json", A_LINE.replace('"a"', '"c"'))
    written(folder / "d.txt", "not looked at")
    written(folder / ".e.json", "not looked at")
    assert sorted(_stream(spark, made, tmp_path)) == [["b"], ["c"]]


def _stream(spark: SparkSession, made: Source, tmp_path: Path) -> list[list[str]]:
    """Reads what is there now and returns the tweets of each epoch."""
    codec = codec_of(View)
    read = made.spark(codec)
    assert read.schema_ddl is not None
    reader = spark.readStream.format(read.format).options(**read.options).schema(read.schema_ddl).name("views")
    frame = reader.load(read.load_path)
    good, _ = apply(frame, read)
    epochs: list[list[str]] = []

    def keep(batch: DataFrame, _: int) -> None:
        epochs.append([row.tweet for row in batch.collect()])

    query = good.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    return epochs


def test_a_single_file_can_be_named(spark: SparkSession, tmp_path: Path) -> None:
    path = written(tmp_path / "a[1].json", A_LINE)
    written(tmp_path / "a1.json", "another file")
    assert _stream(spark, source.files(path), tmp_path) == [["a"]]


def test_a_pattern_can_be_given_for_the_path(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("x1", "x2", "y"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "a.json", A_LINE.replace('"a"', f'"{folder}"'))
    (epoch,) = _stream(spark, source.files(tmp_path / "x*"), tmp_path)
    assert sorted(epoch) == ["x1", "x2"]


class Tick(Record):
    n: int
    at: Timestamp
    even: bool


def test_any_source_of_spark_is_read_through_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    made = source.spark("rate-micro-batch", columns={"n": "value", "even": "value % 2 = 0", "at": "timestamp"},
                        split="value % 2", rowsPerBatch=10)  # fmt: skip
    codec = codec_of(Tick)
    read = made.bind(codec).spark(codec)
    frame = spark.readStream.format(read.format).options(**read.options).name("ticks").load()
    good, bad = apply(frame, read)
    assert [f.dataType.simpleString() for f in good.schema] == ["bigint", "timestamp", "boolean"]
    assert bad.schema[0].dataType.simpleString() == "string"


def test_values_that_cannot_be_cast_are_bad_rows(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.json", '{"n": "1", "at": "2024-01-01", "even": "true"}', '{"n": "x", "even": "no"}')
    made = source.spark("json", path=str(tmp_path), schema="n STRING, at STRING, even STRING")
    rows, bad = read_all(spark, made, Tick)
    assert rows == [Tick(1, timestamp("2024-01-01"), True)]
    assert bad[0].reason == "n is not BIGINT: x" and "__" not in bad[0].text and '"n":"x"' in bad[0].text


class Box(Record):
    blob: bytes
    tags: list[str]
    where: Point


def test_nested_and_binary_columns_pass_through_any_source(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "a.json", '{"b": "AP8=", "tags": ["x"], "where": {"x": 1, "y": 2}}', '{"b": "AP8="}')
    schema = "b BINARY, tags ARRAY<STRING>, where STRUCT<x: INT, y: DOUBLE>"
    made = source.spark("json", path=str(tmp_path), schema=schema, columns={"blob": "b"})
    rows, bad = read_all(spark, made, Box)
    assert rows == [Box(b"\x00\xff", ["x"], Point(1.0, 2.0))]
    assert [b.reason for b in bad] == ["tags is missing"]


class Inner(Record, rename="camel"):
    made_at: Timestamp
    said_by: str = "nobody"


class Item(Record):
    sku: str
    qty: int = 1
    first: Inner | None = None
    seen: list[Timestamp] = []


class Order(Record):
    id: str
    items: list[Item] = []
    by_shop: dict[str, Item] = {}
    main: Item | None = None


NOON = timestamp("2024-01-01T12:00:00Z")
GOOD_ORDERS = {
    '{"id": "a"}': Order("a"),
    '{"id": "b", "items": [{"sku": "x"}, {"sku": "y", "qty": 3, "first": null}]}': Order(
        "b", [Item("x"), Item("y", 3)]
    ),
    '{"id": "c", "main": {"sku": "x", "first": {"madeAt": "2024-01-01T13:00:00+01:00"}}}': Order(
        "c", main=Item("x", first=Inner(NOON))
    ),
    '{"id": "d", "by_shop": {"s": {"sku": "x", "seen": ["2024-01-01T12:00:00Z"]}}}': Order(
        "d", by_shop={"s": Item("x", seen=[NOON])}
    ),
    '{"id": "e", "items": [{"sku": "x", "first": {"madeAt": "2024-01-01T12:00:00Z", "saidBy": "ann"}}]}': Order(
        "e", [Item("x", first=Inner(NOON, "ann"))]
    ),
}
BAD_ORDERS = {
    '{"id": "a", "items": [{"sku": "x"}, {"qty": 3}]}': "sku",
    '{"id": "b", "main": {"sku": null}}': "sku",
    '{"id": "c", "by_shop": {"s": {"sku": "x", "seen": [1704110400]}}}': "by_shop lacks a field, or has a time",
    '{"id": "d", "items": [{"sku": "x", "first": {"saidBy": "ann"}}]}': "madeAt",
    '{"id": "e", "items": [{"sku": "x", "first": {"madeAt": 5}}]}': "items lacks a field, or has a time",
}


def test_what_is_absent_inside_of_a_field_takes_its_default_or_makes_the_row_bad(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = written(tmp_path / "orders.json", *GOOD_ORDERS, *BAD_ORDERS)
    rows, bad = read_all(spark, source.files(lines), Order)
    assert rows == list(GOOD_ORDERS.values())
    assert rows == [codec_of(Order).from_json(line.encode()) for line in GOOD_ORDERS], "as anybody reads JSON"
    assert [told.text for told in bad] == list(BAD_ORDERS)
    for told, part in zip(bad, BAD_ORDERS.values(), strict=True):
        assert part in told.reason, told

    item = "STRUCT<sku STRING, qty BIGINT, first STRUCT<made_at TIMESTAMP, said_by STRING>, seen ARRAY<TIMESTAMP>>"
    schema = f"id STRING, items ARRAY<{item}>, by_shop MAP<STRING, {item}>, main {item}"
    texts = ['{"id": "p", "items": [{"sku": "x"}], "main": {"sku": "y", "first": {"made_at": "2024-01-01T12:00:00Z"}}}']
    texts.append('{"id": "q", "items": [{"qty": 2}]}')
    written(tmp_path / "typed.json", *texts)
    spark.read.schema(schema).json(str(tmp_path / "typed.json")).write.parquet(str(tmp_path / "parquet"))
    for made in (
        source.files(tmp_path / "parquet", format="parquet"),
        source.spark("parquet", path=str(tmp_path / "parquet"), schema=schema),
    ):
        rows, bad = read_all(spark, made, Order)
        assert rows == [Order("p", [Item("x")], main=Item("y", first=Inner(NOON)))]
        assert len(bad) == 1 and "items" in bad[0].reason


class Loose(Record):
    i: int
    what: int | str = 7


def test_the_default_of_a_packed_field_is_filled_in(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": [1]}), tmp_path / "a.parquet")
    assert read_all(spark, source.files(tmp_path, format="parquet"), Loose) == ([Loose(1, 7)], [])
