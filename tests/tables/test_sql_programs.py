"""Programs of statements, run in the harness: what comes in through CREATE TABLE and goes out by INSERT INTO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.graph import ReadNode, WriteNode
from headrace.errors import HeadraceError, ProgramError
from tests.tables.running import fields, output, rows_of, script

SENSORS = """
CREATE TABLE sensors (
  room STRING, celsius DOUBLE NOT NULL, at TIMESTAMP(3),
  kelvin AS celsius + 273.0,
  WATERMARK FOR at AS at - INTERVAL '5' SECOND
) WITH ('connector' = 'items', 'rows' = '[{"room": "hall", "celsius": 20.5, "at": "2024-01-01T12:00:00Z"},
  {"room": "attic", "celsius": 30}, {"celsius": 19}]');
"""


def written(app: hr.App, name: str) -> list[Any]:
    """The rows that a program wrote to an output, run to its end."""
    rows: list[Any] = rows_of(app, output(app, name))
    return rows


def test_rows_go_from_table_to_table_in_the_columns_that_were_declared(tmp_path: Path) -> None:
    app = script(
        tmp_path,
        SENSORS
        + """CREATE TABLE hot (place STRING, k DOUBLE) WITH ('connector' = 'collect');
        INSERT INTO hot SELECT room, kelvin FROM sensors WHERE celsius > 20;""",
    )
    assert app.name == "rooms"
    assert sorted(fields(written(app, "hot"))) == [("attic", 303.0), ("hall", 293.5)]


def test_what_is_not_given_is_null_and_columns_may_be_named(tmp_path: Path) -> None:
    app = script(
        tmp_path,
        SENSORS
        + """CREATE TABLE hot (place STRING, k DOUBLE, note STRING) WITH ('connector' = 'blackhole');
        INSERT INTO hot (k, place) SELECT kelvin, coalesce(room, 'none') FROM sensors WHERE celsius < 20;""",
    )
    assert fields(written(app, "hot")) == [("none", 292.0, None)]


def test_views_are_queries_by_name_with_columns_of_their_own(tmp_path: Path) -> None:
    app = script(
        tmp_path,
        SENSORS
        + """CREATE VIEW warm (place, k) AS SELECT room, kelvin FROM sensors WHERE celsius > 20;
        CREATE TABLE out (k DOUBLE) WITH ('connector' = 'collect');
        INSERT INTO out SELECT k FROM warm WHERE place = 'hall';""",
    )
    assert fields(written(app, "out")) == [(293.5,)]


def test_several_inserts_share_one_source_and_have_outputs_of_their_own(tmp_path: Path) -> None:
    app = script(
        tmp_path,
        SENSORS
        + """CREATE TABLE a (room STRING) WITH ('connector' = 'collect');
        BEGIN STATEMENT SET;
        INSERT INTO a SELECT room FROM sensors;
        INSERT INTO a SELECT 'second' FROM sensors WHERE room = 'hall';
        END;""",
    )
    assert len([node for node in app.nodes if isinstance(node, ReadNode)]) == 1
    assert len(written(app, "a")) == 3
    assert fields(written(app, "a_2")) == [("second",)]


def test_a_query_alone_is_shown(tmp_path: Path) -> None:
    app = script(tmp_path, SENSORS + "SELECT room FROM sensors;")
    (node,) = [node for node in app.nodes if isinstance(node, WriteNode)]
    assert node.sink.kind == "console"


def test_python_and_sql_share_tables_in_both_directions() -> None:
    app = hr.App("mixed")
    app.sql(SENSORS)
    loud = app.table("sensors").where("celsius > 25").named("loud")
    result = app.sql("SELECT upper(room) AS room FROM loud")
    app.sql("CREATE VIEW quiet AS SELECT room FROM sensors WHERE celsius < 20")
    upper, few, cold = rows_of(app, result, loud, app.table("quiet"))
    assert (fields(upper), len(few), fields(cold)) == ([("ATTIC",)], 1, [(None,)])


def test_a_computed_column_can_be_the_event_time() -> None:
    app = hr.App("times")
    app.sql("""CREATE TABLE t (ms BIGINT, at AS timestamp_millis(ms), WATERMARK FOR at AS at - INTERVAL '2' MINUTE)
      WITH ('connector' = 'items', 'rows' = '[{"ms": 1000}]')""")
    app.table("t")
    (node,) = [node for node in app.nodes if isinstance(node, ReadNode)]
    assert node.time == "timestamp_millis(ms)"
    assert node.marking.out_of_order_us == 120_000_000


def test_settings_of_a_program_beat_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headrace.toml").write_text('epoch = "9s"\nparallelism = 7\n')
    monkeypatch.chdir(tmp_path)
    said = "SET 'execution.checkpointing.interval' = '2 min'; SET 'pipeline.name' = 'shop'; SET 'spark.ui.port' = '1';"
    app = script(tmp_path, said + SENSORS)
    assert app.name == "shop"
    settings = app.settings()
    assert (settings.epoch, settings.parallelism, settings.spark["spark.ui.port"]) == ("2m", 7, "1")
    assert app.settings(epoch="3s").epoch == "3s"
    monkeypatch.setenv("HEADRACE_EPOCH", "4s")
    assert app.settings().epoch == "4s"


def test_a_secret_is_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    monkeypatch.setenv("PG_DSN", "postgresql://u:hunter2@db/shop")
    app = script(
        tmp_path,
        SENSORS
        + """CREATE TABLE k (room STRING) WITH ('connector' = 'kafka', 'topic' = 't', 'format' = 'json',
          'properties.sasl.username' = 'ann', 'properties.sasl.mechanism' = 'PLAIN',
          'properties.sasl.password' = SECRET('KAFKA_PASSWORD'));
        CREATE TABLE p (room STRING, PRIMARY KEY (room) NOT ENFORCED)
          WITH ('connector' = 'postgres', 'dsn' = SECRET('PG_DSN'), 'table' = 'rooms');
        INSERT INTO k SELECT room FROM sensors; INSERT INTO p SELECT room FROM sensors;""",
    )
    sinks = {node.name: node.sink for node in app.nodes if isinstance(node, WriteNode)}
    assert repr(sinks["p"].dsn) == "<secret PG_DSN>"  # type: ignore[attr-defined]
    shown = app.explain() + str(vars(sinks["p"])) + str(vars(sinks["k"]))
    assert "hunter2" not in shown
    assert sinks["p"].changelog_key == ("room",)


def test_a_missing_secret_stops_the_start_and_nothing_before(tmp_path: Path) -> None:
    app = script(tmp_path, SENSORS + """CREATE TABLE p (room STRING)
        WITH ('connector' = 'postgres', 'dsn' = SECRET('NO_SUCH_DSN'), 'table' = 'rooms');
        INSERT INTO p SELECT room FROM sensors;""")  # fmt: skip
    assert "postgres rooms" in app.explain()
    with pytest.raises(HeadraceError, match="NO_SUCH_DSN"):
        app._check_runnable("stopped")


MISTAKES = [
    (
        "CREATE TABLE t (a INT) WITH ('connector' = 'kafak')",
        "2:32",
        ["there is no connector 'kafak'", "did you mean kafka"],
    ),
    ("CREATE TABLE t (a INT) WITH ('path' = 'x')", "2:3", ["has no connector"]),
    (
        "CREATE TABLE t (a INT) WITH ('connector' = 'files', 'pth' = 'x'); SELECT a FROM t",
        "2:55",
        ["no option 'pth'", "path"],
    ),
    (
        "CREATE TABLE t (a INT) WITH ('connector' = 'files'); SELECT a FROM t",
        "2:3",
        ["needs the option 'path'"],
    ),
    ("CREATE TABLE t (a INT, A INT) WITH ('connector' = 'print')", "2:26", ["two columns are called 'A'"]),
    ("CREATE TABLE t (a INT, WATERMARK FOR b AS b) WITH ('connector' = 'print')", "2:3", ["no column 'b'"]),
    ("CREATE TABLE t (a INT, WATERMARK FOR a AS a) WITH ('connector' = 'print')", "2:19", ["a holds no time"]),
    (
        "CREATE TABLE t (a TIMESTAMP, WATERMARK FOR a AS greatest(a)) WITH ('connector' = 'print')",
        "2:51",
        ["cannot be read"],
    ),
    (
        "CREATE TABLE t (a INT METADATA FROM 'offset') WITH ('connector' = 'files', 'path' = 'x')",
        "2:19",
        ["no metadata 'offset'"],
    ),
    (
        "CREATE TABLE t (a INT) WITH ('connector' = 'print'); SELECT a FROM t",
        "2:3",
        ["only writes"],
    ),
    (
        "CREATE TABLE t (a INT) WITH ('connector' = 'datagen', 'rows-per-second' = 'x'); SELECT a FROM t",
        "2:57",
        ["a number"],
    ),
    (
        "CREATE TABLE t (a INT) WITH ('connector' = 'datagen', 'fields.b.min' = '1'); SELECT a FROM t",
        "2:57",
        ["no such column"],
    ),
    ("INSERT INTO nowhere SELECT room FROM sensors", "2:15", ["no table 'nowhere'"]),
    ("INSERT INTO sensors SELECT 'a', 1.0, at FROM sensors", "2:15", ["only reads"]),
    (
        "CREATE TABLE o (a INT, b INT) WITH ('connector' = 'print'); INSERT INTO o SELECT 1 FROM sensors",
        "2:75",
        ["gives 1 columns, and 2"],
    ),
    (
        "CREATE TABLE o (a INT) WITH ('connector' = 'print'); INSERT INTO o (x) SELECT 1 FROM sensors",
        "2:68",
        ["no column 'x'"],
    ),
    (
        "CREATE TABLE o (a INT NOT NULL, b INT) WITH ('connector' = 'print'); INSERT INTO o (b) SELECT 1 FROM sensors",
        "2:84",
        ["a cannot be left out"],
    ),
    (
        "CREATE TABLE o (a INT) WITH ('connector' = 'print'); INSERT INTO o SELECT room FROM sensors",
        "2:70",
        ["a"],
    ),
    ("CREATE TABLE sensors (a INT) WITH ('connector' = 'print')", "2:3", ["there is a table 'sensors' already"]),
    ("SET 'epcoh' = '1s'", "2:7", ["no setting 'epcoh'", "did you mean epoch"]),
    ("SET 'execution.runtime-mode' = 'batch'", "2:7", ["--until drained"]),
    ("DROP TABLE sensor", "2:14", ["there is no table 'sensor'", "did you mean sensors"]),
]


@pytest.mark.parametrize(("text", "place", "parts"), MISTAKES, ids=[text[:60] for text, _, _ in MISTAKES])
def test_a_mistake_points_at_its_character(tmp_path: Path, text: str, place: str, parts: list[str]) -> None:
    one_line = " ".join(SENSORS.split())
    with pytest.raises(HeadraceError) as caught:
        script(tmp_path, f"{one_line}\n  {text};")
    assert caught.value.where.endswith(f"rooms.sql:{place}"), str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_a_mistake_in_a_query_points_at_its_character(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError) as caught:
        script(tmp_path, SENSORS + "\nSELECT room,\n  celsus FROM sensors;")
    assert caught.value.where.endswith("rooms.sql:10:3")
    assert "did you mean celsius" in str(caught.value)


def test_an_empty_file_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no statement"):
        script(tmp_path, "-- nothing;\n")


@pytest.mark.parametrize(
    "windows",
    [
        "FROM TABLE(TUMBLE(TABLE ticks, DESCRIPTOR(p), INTERVAL '10' SECOND)) GROUP BY room, window_start, window_end",
        "FROM ticks GROUP BY room, TUMBLE(p, INTERVAL '10' SECOND)",
        "FROM TABLE(TUMBLE(TABLE seen, DESCRIPTOR(now), INTERVAL '10' SECOND)) GROUP BY room, window_start, window_end",
    ],
)
def test_windows_over_proctime_go_by_the_wall_clock(windows: str) -> None:
    app = hr.App("clock")
    app.sql("""CREATE TABLE ticks (room STRING, p AS PROCTIME()) WITH ('connector' = 'datagen');
      CREATE VIEW seen AS SELECT *, PROCTIME() AS now FROM ticks""")
    rows = app.table("ticks")
    counts = app.sql(f"SELECT room, count(*) AS n {windows}", name="counts")
    assert rows.node.codec.names == ["room"]
    with hr.testing.Harness(app, start="2024-01-01T12:00:01") as h:
        h.push(rows, rows.node.codec.type(room="hall"), rows.node.codec.type(room="hall"))
        h.epoch()
        assert h.take(counts) == []
        h.epoch(clock="2024-01-01T12:00:11")
        assert fields(h.take(counts)) == [("hall", 2)]


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("", ["all rows of both sides, not bounded by time", "warning: state that time does not end"]),
        ("SET 'table.exec.state.ttl' = '2 days';", ["rows of both sides, for 2d, bounded"]),
        ("SET 'state.ttl' = '2 days'; RESET 'state.ttl';", ["all rows of both sides, not bounded by time"]),
    ],
)
def test_a_time_to_live_bounds_joins_without_a_limit(said: str, lines: list[str]) -> None:
    app = hr.App("ttl")
    app.sql(f"""CREATE TABLE a (id BIGINT, x BIGINT) WITH ('connector' = 'datagen');
      CREATE TABLE b (id BIGINT, y BIGINT) WITH ('connector' = 'datagen'); {said}""")
    text = str(app.sql("EXPLAIN SELECT a.id, x, y FROM a JOIN b ON a.id = b.id"))
    for line in lines:
        assert line in text


def test_rows_that_are_written_down_are_inserted_without_a_push(tmp_path: Path) -> None:
    text = """
        CREATE TABLE out (a STRING, b DOUBLE) WITH ('connector' = 'collect');
        INSERT INTO out VALUES ('x', 1.5), ('y', 2);
        INSERT INTO out (b, a) VALUES (3, 'z');
    """
    app = script(tmp_path, text, "written.sql")
    with hr.testing.Harness(app) as h:
        h.epoch()
        assert sorted(fields(h.take(output(app, "out")))) == [("x", 1.5), ("y", 2.0)]
        h.restart()
        h.drain()
        assert fields(h.take(output(app, "out_2"))) == [("z", 3.0)]
        assert h.take(output(app, "out")) == []
