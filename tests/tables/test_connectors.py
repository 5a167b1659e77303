"""Each connector of DDL makes the source or sink that a program in Python would make, with the same words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.sink_contract import Sink
from headrace.connectors.source_contract import Source
from headrace.dataflow.graph import ReadNode, WriteNode
from headrace.errors import HeadraceError
from headrace.tables.connectors import CONNECTORS

COLUMNS = "(id BIGINT NOT NULL, shop STRING, at TIMESTAMP(3), PRIMARY KEY (id) NOT ENFORCED)"


def options(text: str) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in (each.split("=", 1) for each in text.split(" | ")))


def source_of(text: str, columns: str = COLUMNS) -> Source:
    """The source of a table with these options."""
    app = hr.App("shop")
    app.sql(f"CREATE TABLE t {columns} WITH ({options(text)})")
    app.table("t")
    (node,) = [node for node in app.nodes if isinstance(node, ReadNode)]
    return node.source


def sink_of(text: str, columns: str = COLUMNS, more: str = "") -> Sink:
    """The sink of a table with these options."""
    app = hr.App("shop")
    app.sql("CREATE TABLE rows_in (id BIGINT NOT NULL, shop STRING, at TIMESTAMP(3)) WITH ('connector' = 'datagen')")
    app.sql(f"CREATE TABLE t {columns} {more} WITH ({options(text)}); INSERT INTO t SELECT id, shop, at FROM rows_in")
    (node,) = [node for node in app.nodes if isinstance(node, WriteNode)]
    return node.sink


def words(made: Any) -> dict[str, Any]:
    """What a source or sink was given, without what it holds while it runs."""
    plain = (str, int, float, bool, tuple, list, dict, type(None))
    given = {name: value for name, value in vars(made).items() if name[0] != "_" and name != "output"}
    return {name: value for name, value in given.items() if type(value) in plain}


SOURCES = [
    ("connector=files | path=in/ | format=csv | csv.field-delimiter=; | glob=*.csv | max-files-per-epoch=3",
     lambda: hr.source.files("in/", format="csv", delimiter=";", glob="*.csv", max_files_per_epoch=3)),
    ("connector=filesystem | path=in/ | format=csv | header=false",
     lambda: hr.source.files("in/", format="csv", header=False, names=["id", "shop", "at"])),
    ("connector=kafka | topic=a;b | properties.bootstrap.servers=k:9092 | scan.startup.mode=latest-offset | "
     "properties.client.id=me | properties.group.id=gone | format=json",
     lambda: hr.source.kafka(["a", "b"], brokers="k:9092", start="latest", client_id="me")),
    ("connector=kafka | topic-pattern=a.* | scan.startup.mode=timestamp | scan.startup.timestamp-millis=1000",
     lambda: hr.source.kafka(pattern="a.*", start=datetime.fromtimestamp(1, UTC))),
    ("connector=kafka | topic=a | scan.startup.mode=specific-offsets | "
     "scan.startup.specific-offsets=partition:0,offset:42;partition:1,offset:7",
     lambda: hr.source.kafka("a", start={0: 42, 1: 7})),
    ("connector=jdbc | url=jdbc:postgresql://db/shop | table-name=s.orders | scan.partition.column=id | "
     "scan.partition.num=2",
     lambda: hr.source.table("s.orders", dsn="postgresql://db/shop", split_by="id", partitions=2)),
    ("connector=redis-stream | stream=orders | url=redis://r:1 | start=latest | time-as=at",
     lambda: hr.source.redis_stream(["orders"], url="redis://r:1", start="latest", time_as="at")),
    ("connector=ingest | log=./log | max-per-epoch=5", lambda: hr.source.ingest("./log", stream="t", max_per_epoch=5)),
    ("connector=spark | format=rate | rowsPerSecond=7", lambda: hr.source.spark("rate", rowsPerSecond="7")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "twin"), SOURCES, ids=[text.split(" | ")[0] + str(i) for i, (text, _) in enumerate(SOURCES)]
)
def test_a_source_is_what_python_would_make(text: str, twin: Any) -> None:
    made = source_of(text)
    app = hr.App("twin")
    app.read("t", twin(), app_row(made, text))
    (node,) = [node for node in app.nodes if isinstance(node, ReadNode)]
    assert type(made) is type(node.source)
    assert words(made) == words(node.source)


def app_row(made: Source, text: str) -> Any:
    app = hr.App("row")
    app.sql(f"CREATE TABLE t {COLUMNS} WITH ({options(text)})")
    return app.table("t").node.codec.type


SINKS = [
    ("connector=files | path=out/ | format=parquet | sink.rolling-policy.rollover-interval=15 min | roll-size=128MB",
     lambda: hr.sink.files("out/", format="parquet", roll_every="15m", roll_size="128MB")),
    ("connector=kafka | topic=t | properties.bootstrap.servers=k:1 | sink.delivery-guarantee=at-least-once",
     lambda: hr.sink.kafka("t", brokers="k:1", guarantee="at_least_once", key=["id"])),
    ("connector=upsert-kafka | topic=t | create=true | partitions=4 | properties.compression.type=zstd",
     lambda: hr.sink.kafka("t", key=["id"], create=True, partitions=4, compression_type="zstd")),
    ("connector=postgres | dsn=postgresql://db/shop | table=s.t | undo=1 h",
     lambda: hr.sink.postgres("s.t", dsn="postgresql://db/shop", key=("id",), undo="1h")),
    ("connector=redis | as=hash | ttl=10 min", lambda: hr.sink.redis(key="t:{id}", as_="hash", ttl="10m")),
    ("connector=delta | path=lake/t | schema-mode=merge | storage.region=eu",
     lambda: hr.sink.delta("lake/t", schema_mode="merge", storage_options={"region": "eu"})),
    ("connector=print | rows=5", lambda: hr.sink.console(5)),
    ("connector=blackhole", hr.sink.discard),
    ("connector=collect", hr.sink.collect),
    ("connector=spark | format=jdbc | url=jdbc:x | dbtable=t",
     lambda: hr.sink.spark("jdbc", url="jdbc:x", dbtable="t")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "twin"), SINKS, ids=[text.split(" | ")[0] for text, _ in SINKS])
def test_a_sink_is_what_python_would_make(text: str, twin: Any) -> None:
    made, other = sink_of(text), twin()
    assert type(made) is type(other)
    # What binding to the rows fills in is no word of the user.
    bound = {name for name, value in words(made).items() if getattr(other, name, None) is None and value is not None}
    assert {name: value for name, value in words(made).items() if name not in bound} == {
        name: value for name, value in words(other).items() if name not in bound
    }
    assert made.describe() == other.describe()


def test_partitioned_by_makes_folders() -> None:
    sink = sink_of("connector=files | path=out/", "(id BIGINT, shop STRING, at TIMESTAMP)", "PARTITIONED BY (shop)")
    assert sink.describe() == hr.sink.files("out/", partition_by=["shop"]).describe()


def test_metadata_columns_are_parts_of_messages() -> None:
    columns = """(id BIGINT, who STRING METADATA FROM 'key', at TIMESTAMP(3) METADATA FROM 'timestamp',
      part INT METADATA FROM 'partition' VIRTUAL)"""
    source = source_of("connector=kafka | topic=a", columns)
    assert source.parts[:3] == ("who", None, "at")  # type: ignore[attr-defined]
    assert source.parts.partition == "part"  # type: ignore[attr-defined]
    app = hr.App("shop")
    app.sql(f"CREATE TABLE t {columns} WITH ('connector' = 'kafka', 'topic' = 'a', 'key.fields' = 'who')")
    app.sql(
        "CREATE TABLE r (a BIGINT, b STRING, c TIMESTAMP) WITH ('connector' = 'datagen'); INSERT INTO t SELECT * FROM r"
    )
    (node,) = [node for node in app.nodes if isinstance(node, WriteNode)]
    assert (node.sink.timestamp, node.sink.key) == ("at", ("who",))  # type: ignore[attr-defined]
    assert "part" not in node.codec.names


def test_a_source_or_sink_of_ones_own_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import headrace as hr\nsink = hr.sink.collect()\ndef source(): return hr.source.files('in/')\nnothing = 5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_of("connector=python | object=mine:source").kind == "files"
    assert sink_of("connector=python | object=mine:sink").kind == "collect"
    with pytest.raises(HeadraceError, match="this is no source"):
        source_of("connector=python | object=mine:nothing")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("connector=kafka | topic=t | scan.startup.mode=group-offsets", "not in a consumer group"),
        ("connector=kafka | format=json", "needs the option 'topic'"),
        ("connector=files | path=x | max-files-per-epoch=many", "a whole number"),
        ("connector=datagen | fields.id.kind=sequenze", "kind is random or sequence"),
    ],
)
def test_what_a_connector_cannot_do_is_said(text: str, part: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        source_of(text)
    assert part in str(caught.value)


def test_the_guide_names_every_connector() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "sql-programs.md").read_text()
    assert [name for name in CONNECTORS if f"`{name}`" not in page] == []
