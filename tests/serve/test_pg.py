"""State over Postgres' protocol, asked by psql and psycopg: real clients, a real socket."""

from __future__ import annotations

import shutil
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace.net.access import add_user
from headrace.serve.pg.encoding import column_of, plain_values
from headrace.serve.pg.parameters import read_parameter
from headrace.serve.pg.statements import Answering
from headrace.snapshots.session import Engine
from tests.serve.certificates import make_certificate
from tests.serve.pg_served import PgServed
from tests.serve.tweets import Tweets

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
psql_is_here = pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of the tweets."""
    path = tmp_path_factory.mktemp("pg") / "store"
    with Tweets(path) as tweets:
        tweets.push(("a", "12:01", 1), ("b", "12:02", 2), ("a", "12:10", 5))
        tweets.push(("a", "12:31", 1), ("c", "12:32", 2), watermark="13:10")
    return path


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[PgServed]:
    with PgServed(path) as served:
        served.wait_for(1)
        yield served


@pytest.fixture
def client(server: PgServed) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        yield connection


def psql(server: PgServed, *commands: str, env: dict[str, str] | None = None, options: str = "") -> str:
    words = [word for command in commands for word in ("-c", command)]
    line = ["psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", f"{server.dsn} {options}", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=env, check=False)
    return done.stdout if done.returncode == 0 else done.stderr


# --- psql


@psql_is_here
def test_psql_reads_state(server: PgServed) -> None:
    assert psql(server, "SELECT tweet, views FROM totals WHERE tweet = 'a'") == "a|3\n"
    assert psql(server, "SELECT tweet, window_start, impressions FROM hourly ORDER BY 1 LIMIT 1") == (
        "a|2024-01-01 12:00:00+00|7\n"
    )
    assert psql(server, "SELECT 1; SELECT 2;") == "1\n2\n"


@psql_is_here
def test_psql_lists_and_describes_tables(server: PgServed) -> None:
    assert "public|hourly|table|headrace" in psql(server, r"\dt")
    assert "watch|sizes|table|headrace" in psql(server, r"\dt watch.*")
    described = psql(server, r"\d hourly")
    assert "tweet|text||not null|" in described and "window_end|timestamp with time zone||not null|" in described
    assert "impressions|bigint|||" in described
    assert "entry|bigint||not null|" in psql(server, r"\d watch.sizes")
    assert "mean|double precision" in psql(server, r"\d+ totals")


@psql_is_here
@pytest.mark.parametrize("command", [r"\d", r"\l", r"\dn", r"\du", r"\df", r"\dv", r"\di", r"\dT", r"\z", r"\dx"])
def test_other_lists_of_psql_are_no_errors(server: PgServed, command: str) -> None:
    assert "ERROR" not in psql(server, command)


@psql_is_here
def test_psql_points_at_a_mistake(server: PgServed) -> None:
    answer = psql(server, "SELECT tweet, nope FROM totals")
    assert "LINE 1: SELECT tweet, nope FROM totals" in answer and "nope" in answer


# --- psycopg


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_reads_every_type(client: psycopg.Connection[Any], binary: bool) -> None:
    cursor = client.cursor(binary=binary)
    assert cursor.execute("SELECT * FROM totals WHERE tweet = %s", ["a"]).fetchall() == [("a", 3, pytest.approx(7 / 3))]
    assert cursor.execute("SELECT * FROM hourly WHERE tweet = %s", ["b"]).fetchall() == [
        ("b", NOON, NOON.replace(hour=13), 2)
    ]
    assert cursor.execute("SELECT value FROM watch.raw WHERE key = 'a'").fetchone() == (b"\x00\xff",)
    found = cursor.execute(
        "SELECT sum(views), count(*) > 1, list(n ORDER BY n), max(n)::SMALLINT, DATE '2024-02-29', NULL, "
        "TIMESTAMP '2024-01-01 00:00:00.5', -12345.678::DECIMAL(10,3), {'a': 1}, 'infinity'::DOUBLE, INTERVAL '90 s' "
        "FROM by_size"
    ).fetchone()
    assert found is not None
    assert found[:5] == (Decimal(5), True, [1, 2, 5], 5, datetime(2024, 2, 29).date())
    assert found[5:9] == (None, datetime(2024, 1, 1, 0, 0, 0, 500_000), Decimal("-12345.678"), {"a": 1})
    assert found[9] == float("inf") and found[10].total_seconds() == 90


def test_parameters_of_any_type_are_compared_as_the_column_is(client: psycopg.Connection[Any]) -> None:
    for value in (2, "2", 2.0, Decimal(2)):
        found = client.execute("SELECT views FROM totals WHERE views > %s", [value]).fetchall()
        assert found == [(3,)], value
    found = client.execute("SELECT tweet FROM hourly WHERE window_start >= %s AND tweet < %s", [NOON, "b"]).fetchall()
    assert found == [("a",)]
    assert client.execute("SELECT %s, %s", ["it's $1", None]).fetchone() == ("it's $1", None)


def test_a_statement_prepared_by_the_server_follows_the_epochs(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        with PgServed(tmp_path / "store") as server, psycopg.connect(server.dsn, autocommit=True) as client:
            server.wait_for(0)
            for views in (1, 2, 3):
                for query in ("SELECT views FROM totals WHERE tweet = %s", "SELECT max(views) FROM totals"):
                    values = ["a"] if "%s" in query else None
                    assert client.execute(query, values, prepare=True).fetchall() == [(views,)]
                tweets.push(("a", "12:02", 1))
                server.wait_for(views)
            with client.transaction():
                before = client.execute("SELECT views FROM totals").fetchall()
                tweets.push(("a", "12:03", 1))
                server.wait_for(4)
                assert client.execute("SELECT views FROM totals").fetchall() == before
                assert client.execute("SELECT views FROM totals WHERE tweet = 'a'").fetchall() == before
            assert client.execute("SELECT views FROM totals").fetchall() == [(5,)]


def test_a_point_question_answers_what_duckdb_answers(server: PgServed, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = [
        "SELECT * FROM totals WHERE tweet = 'a'",
        "SELECT views AS n, tweet FROM totals WHERE 'a' = tweet",
        "SELECT t.mean FROM totals t WHERE t.tweet = 'nobody'",
        "SELECT * FROM by_pair WHERE n = 1 AND tweet = 'a'",
        "SELECT * FROM by_size WHERE n = 5",
        "SELECT * FROM hourly WHERE tweet = 'a'",
        "SELECT * FROM watch.sizes WHERE key = 'a'",
        "SELECT entry, value FROM watch.sizes WHERE key = 'a'",
        "SELECT \"at\", n FROM last WHERE key = 'b'",
        "SELECT value FROM watch.raw WHERE key = 'a'",
    ]
    for binary in (False, True):
        with psycopg.connect(server.dsn, autocommit=True) as client:
            quick = [client.execute(each, binary=binary).fetchall() for each in statements]
        with monkeypatch.context() as patch:
            patch.setattr(Answering, "way", lambda self, prepared: None)
            with psycopg.connect(server.dsn, autocommit=True) as client:
                assert [client.execute(each, binary=binary).fetchall() for each in statements] == quick


def test_rows_come_some_at_a_time(server: PgServed) -> None:
    with psycopg.connect(server.dsn) as client:
        pulled = client.cursor()
        rows = list(pulled.stream("SELECT range FROM range(50000) ORDER BY 1"))
        assert len(rows) == 50_000 and rows[-1] == (49_999,)


def test_an_error_ends_a_transaction_until_it_is_rolled_back(server: PgServed) -> None:
    with psycopg.connect(server.dsn) as client:
        with pytest.raises(psycopg.errors.UndefinedColumn):
            client.execute("SELECT nope FROM totals")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.execute("SELECT 1")
        client.rollback()
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_state_is_read_only(client: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        client.execute("DELETE FROM totals")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("SELECT * FROM read_csv('pyproject.toml')")


def test_a_past_epoch_is_said_by_a_setting_or_with_the_database(server: PgServed) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as client:
        client.execute("SET epoch = 0")
        assert client.execute("SELECT views FROM totals WHERE tweet = 'a'").fetchone() == (2,)
        client.execute("RESET at")
        assert client.execute("SELECT views FROM totals WHERE tweet = 'a'").fetchone() == (3,)
    with psycopg.connect(server.dsn.replace("tweets", "tweets@0"), autocommit=True) as client:
        assert client.execute("SELECT views FROM totals WHERE tweet = 'a'").fetchone() == (2,)


def test_settings_of_clients_are_taken_note_of(client: psycopg.Connection[Any]) -> None:
    client.execute("SET application_name TO 'dashboard'")
    assert client.execute("SHOW application_name").fetchone() == ("dashboard",)
    assert client.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)
    assert client.info.server_version == 160000
    with pytest.raises(psycopg.errors.UndefinedObject):
        client.execute("SHOW no_such_setting")


def test_a_client_cancels_its_statement(server: PgServed) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as client:
        canceling = threading.Timer(0.3, client.cancel_safe)
        canceling.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute("SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range * b.range = 7")
        canceling.join()
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_statement_that_takes_too_long_is_canceled(path: Path) -> None:
    with (
        PgServed(path, engine=Engine(statement_s=0.1)) as server,
        psycopg.connect(server.dsn) as client,
        pytest.raises(psycopg.errors.QueryCanceled),
    ):
        client.execute("SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range * b.range = 7")


# --- who may read


def test_a_user_reads_the_states_of_the_token_and_sees_no_others(path: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("totals", "watch.*"))
    with PgServed(path, users=users) as server:
        server.wait_for(1)
        dsn = server.dsn.replace("user=me", "user=web")
        with psycopg.connect(f"{dsn} password={token}", autocommit=True) as client:
            assert client.execute("SELECT count(*) FROM totals").fetchone() == (3,)
            with pytest.raises(psycopg.errors.UndefinedTable):
                client.execute("SELECT * FROM hourly")
            tables = client.execute("SELECT tablename FROM pg_tables ORDER BY 1").fetchall()
            assert [name for (name,) in tables] == ["raw", "recent", "seen", "sizes", "totals"]
        for wrong in (f"{dsn} password=hr_wrong", f"{server.dsn} password={token}"):
            with pytest.raises(psycopg.OperationalError, match="no token"):
                psycopg.connect(wrong)


def test_a_server_with_tls_lets_nobody_in_without_it(path: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with PgServed(path, tls=context) as server:
        server.wait_for(1)
        with psycopg.connect(f"{server.dsn} sslmode=require") as client:
            assert client.execute("SELECT count(*) FROM totals").fetchone() == (3,)
            assert client.pgconn.ssl_in_use
        with pytest.raises(psycopg.OperationalError, match="TLS is needed"):
            psycopg.connect(f"{server.dsn} sslmode=disable")


# --- values


@pytest.mark.parametrize(
    "text", ["0", "1", "-1", "9999", "10000", "12345678901234567890", "0.5", "-0.0001", "100.010", "1E+5"]
)
def test_numerics_in_binary_come_back_as_they_were(text: str) -> None:
    column = column_of(pa.decimal128(38, 6))
    written = column.binary(Decimal(text))
    assert read_parameter(written, column.oid, True) == Decimal(text)


def test_times_are_written_to_the_microsecond() -> None:
    array = pa.array([NOON.replace(microsecond=1)], pa.timestamp("us", "UTC"))
    column = column_of(array.type)
    [value] = plain_values(array)
    assert column.text(value) == b"2024-01-01 12:00:00.000001+00"
    assert read_parameter(column.binary(value), column.oid, True) == NOON.replace(microsecond=1)
    assert struct.unpack(">q", column.binary(value))[0] == 757_425_600_000_001 - 0
