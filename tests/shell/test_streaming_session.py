"""The shell over streams: statements that need no Spark, and queries that run on it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace.cli import app as cli
from headrace.cli.shell.printing import OutputFormat, Printer
from headrace.cli.shell.session import LiveAnswer, ShellAnswer
from headrace.cli.shell.shell import Shell
from headrace.cli.shell.streaming_session import RunPace, StreamingSession
from headrace.errors import HeadraceError

SENSORS = """CREATE TABLE sensors (room STRING, celsius DOUBLE NOT NULL, at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '5' SECOND, PRIMARY KEY (room) NOT ENFORCED)
  WITH ('connector' = 'datagen', 'number-of-rows' = '100')"""


def rows(answer: ShellAnswer | LiveAnswer) -> list[tuple[str, ...]]:
    assert isinstance(answer, ShellAnswer)
    return [tuple(row.values()) for batch in answer.batches for row in batch.to_pylist()]


@pytest.fixture
def session() -> StreamingSession:
    made = StreamingSession()
    made.execute(SENSORS)
    made.execute("CREATE VIEW warm AS SELECT room, celsius FROM sensors WHERE celsius > 50")
    made.execute("CREATE MATERIALIZED VIEW means AS SELECT room, avg(celsius) AS mean FROM sensors GROUP BY room")
    return made


def test_tables_views_and_columns_are_known(session: StreamingSession) -> None:
    assert rows(session.execute("SHOW TABLES")) == [("sensors",)]
    assert rows(session.execute("SHOW VIEWS")) == [("means",), ("warm",)]
    assert list(session.tables()) == ["sensors", "means", "warm"]
    assert [tuple(column) for column in session.columns("sensors")] == [
        ("room", "STRING", "key"),
        ("celsius", "DOUBLE NOT NULL", ""),
        ("at", "TIMESTAMP(3)", "event time, watermark at - INTERVAL '5' SECOND"),
    ]
    assert [column[:2] for column in session.columns("warm")] == [("room", "STRING"), ("celsius", "DOUBLE")]
    assert session.columns("means")[0].note == "key"
    assert "avg" in session.functions()


def test_describing_a_view_leaves_nothing_behind(session: StreamingSession) -> None:
    before = session._program.app.nodes
    session.columns("warm")
    session.execute("EXPLAIN SELECT room, max(celsius) AS hottest FROM warm GROUP BY room")
    assert session._program.app.nodes == before


def test_show_create_gives_the_statement_back(session: StreamingSession) -> None:
    answer = session.execute("SHOW CREATE TABLE sensors")
    assert isinstance(answer, ShellAnswer)
    assert answer.message == SENSORS


@pytest.mark.parametrize(
    ("query", "lines"),
    [
        ("SELECT room FROM sensors", ["result: append", "state: none"]),
        (
            "SELECT room, count(*) AS n FROM sensors GROUP BY room",
            [
                "result: upsert by room",
                "state: query: a result for each key, not bounded by time",
                "warning: ",
            ],
        ),
        (
            "SELECT room, count(*) AS n FROM TABLE(TUMBLE(TABLE sensors, DESCRIPTOR(at), INTERVAL '1' MINUTE)) "
            "GROUP BY room, window_start, window_end",
            ["result: append", "state: query: windows, until they are closed, bounded"],
        ),
    ],
)
def test_explain_says_kind_key_state_and_whether_it_is_bounded(
    session: StreamingSession, query: str, lines: list[str]
) -> None:
    answer = session.execute(f"EXPLAIN {query}")
    assert isinstance(answer, ShellAnswer)
    for line in lines:
        assert line in answer.message


def test_a_mistake_changes_nothing(session: StreamingSession) -> None:
    with pytest.raises(HeadraceError, match="no column 'celsus'"):
        session.execute("CREATE MATERIALIZED VIEW v AS SELECT room, max(celsus) AS m FROM sensors GROUP BY room")
    session.execute("CREATE MATERIALIZED VIEW v AS SELECT room, max(celsius) AS m FROM sensors GROUP BY room")
    assert "v" in session.tables()


def test_settings_are_asked_and_set(session: StreamingSession) -> None:
    session.execute("SET 'result' = 'changelog'")
    session.execute("SET 'epoch' = '2 s'")
    assert rows(session.execute("SET")) == [("epoch", "2s"), ("result", "changelog")]
    session.execute("RESET 'result'")
    assert rows(session.execute("SET")) == [("epoch", "2s")]


def test_the_command_runs_files_and_statements_without_spark(tmp_path: Path) -> None:
    (tmp_path / "tables.sql").write_text(SENSORS + ";\nSHOW TABLES;\n")
    result = CliRunner().invoke(
        cli, ["sql", "-f", str(tmp_path / "tables.sql"), "-e", "DESCRIBE sensors", "--format", "json"]
    )
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[0]) == {"table": "sensors"}
    result = CliRunner().invoke(cli, ["sql", "-f", str(tmp_path / "tables.sql"), "-e", "SELECT rom FROM sensors"])
    assert result.exit_code == 1
    assert "did you mean room" in result.stderr


def test_a_rate_is_of_the_epochs_that_were_seen() -> None:
    pace = RunPace(iter([0.0, 2.0]).__next__)
    assert pace.text() == "starting Spark"


@pytest.mark.spark
def test_on_spark_queries_give_their_rows_and_the_next_one_shares_the_session(spark: object) -> None:
    session, out = StreamingSession({"parallelism": 1}), io.StringIO()

    def answer(text: str, format: OutputFormat) -> list[str]:
        out.truncate(out.seek(0))
        Shell(session, Printer(format, console=Console(file=out), out=out)).run_text(text)
        return out.getvalue().splitlines()

    session.execute(SENSORS)
    assert len(answer("SELECT room, celsius FROM sensors", "csv")) == 101
    changes = answer("SELECT room, count(*) AS n FROM sensors GROUP BY room", "csv")
    assert changes[0] == "op,room,n"
    held: dict[str, int] = {}
    for op, room, n in (change.split(",") for change in changes[1:]):
        if op == "-U":
            assert held.pop(room) == int(n)
        else:
            assert room not in held
            held[room] = int(n)
    assert sum(held.values()) == 100
    session.close()
