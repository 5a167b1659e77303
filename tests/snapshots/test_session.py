"""SQL over a store: which tables there are, which epoch a statement is of, and what it may not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import NoSuchMoment, StatementFailed
from headrace.snapshots.column_memory import ColumnMemory
from headrace.snapshots.database import Database
from headrace.snapshots.session import Engine, SqlSession
from headrace.snapshots.sources import StoreSnapshots
from headrace.snapshots.table import StateTable
from headrace.state.savepoints import create_savepoint
from headrace.state.store import open_store
from tests.serve.archived import Job
from tests.serve.kinds import make_kinds
from tests.serve.tweets import Tweets

HOUR = "2024-01-01 12:00:00+00"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of the tweets; the first is kept by a savepoint."""
    path = tmp_path_factory.mktemp("sql") / "store"
    with Tweets(path) as tweets:
        tweets.push(("a", "12:01", 1), ("b", "12:02", 2), ("a", "12:10", 5))
        create_savepoint(open_store(str(path)), name="before-v2")
        tweets.push(("a", "12:31", 1), ("c", "12:32", 2), watermark="13:10")
    return path


@pytest.fixture
def session(path: Path) -> Iterator[SqlSession]:
    session = Engine().session(StoreSnapshots(hr.Store(path)))
    yield session
    session.close()


def rows(session: SqlSession, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    table = session.run(statement, parameters).table()
    return [tuple(row.values()) for row in table.to_pylist()]


def test_every_state_is_a_table_and_a_state_with_a_name_stands_in_the_schema_of_its_step(session: SqlSession) -> None:
    tables = [name for (name,) in rows(session, "SHOW TABLES")]
    assert tables == [
        "by_pair", "by_size", "hourly", "last", "totals", "watch.raw", "watch.recent", "watch.seen", "watch.sizes"
    ]  # fmt: skip


def test_a_window_is_a_row_with_the_name_of_its_key_its_bounds_and_its_results(session: SqlSession) -> None:
    answer = session.run("SELECT * FROM hourly ORDER BY tweet")
    assert answer.schema.names == ["tweet", "window_start", "window_end", "impressions"]
    assert [(row["tweet"], row["impressions"]) for row in answer.table().to_pylist()] == [("a", 7), ("b", 2), ("c", 2)]
    assert rows(session, f"SELECT count(*) FROM hourly WHERE window_start = '{HOUR}'") == [(3,)]


def test_entries_of_maps_and_elements_of_lists_are_rows(session: SqlSession) -> None:
    assert rows(session, "SELECT * FROM watch.sizes WHERE key = 'a' ORDER BY entry") == [("a", 1, 2), ("a", 5, 1)]
    assert rows(session, "SELECT * FROM watch.recent WHERE key = 'a'") == [("a", 0, 1), ("a", 1, 5), ("a", 2, 1)]


def test_states_can_be_joined(session: SqlSession) -> None:
    found = rows(
        session,
        "SELECT t.tweet, t.views, sum(s.entry * s.value) FROM totals t JOIN watch.sizes s ON s.key = t.tweet "
        "GROUP BY ALL ORDER BY 1",
    )
    assert found == [("a", 3, 7), ("b", 1, 2), ("c", 1, 2)]


def test_parts_of_a_key_are_columns(session: SqlSession) -> None:
    assert rows(session, "SELECT views FROM by_pair WHERE tweet = 'a' AND n = 1") == [(2,)]
    assert rows(session, "SELECT views FROM by_pair WHERE tweet = $1 AND n = $2", "a", 5) == [(1,)]


def test_a_statement_is_of_the_newest_epoch_a_savepoint_or_a_time_as_it_was_set(session: SqlSession) -> None:
    views = "SELECT views FROM totals WHERE tweet = 'a'"
    assert rows(session, views) == [(3,)]
    for moment in ("SET epoch = 0", "SET at = 'before-v2'", "SET headrace.at TO '0'"):
        session.run(moment)
        assert rows(session, views) == [(2,)] and session.epoch == 0
        assert rows(session, "SHOW epoch") == [(0,)]
    session.run("RESET at")
    assert rows(session, views) == [(3,)] and session.epoch == 1
    with pytest.raises(NoSuchMoment):
        session.run("SET epoch = 99")
    assert rows(session, views) == [(3,)]


def test_a_transaction_stays_with_the_epoch_of_its_first_statement(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        session = Engine().session(StoreSnapshots(hr.Store(tmp_path / "store")))
        session.run("BEGIN")
        assert rows(session, "SELECT views FROM totals") == [(1,)]
        tweets.push(("a", "12:02", 1))
        assert rows(session, "SELECT views FROM totals") == [(1,)]
        with pytest.raises(StatementFailed, match="stays with its epoch"):
            session.run("SET epoch = 1")
        session.run("COMMIT")
        assert rows(session, "SELECT views FROM totals") == [(2,)]
        session.close()


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("INSERT INTO totals VALUES ('z', 1, 1.0)", "25006"),
        ("CREATE TABLE mine (a INT)", "25006"),
        ("COPY totals TO 'out.csv'", "25006"),
        ("SET memory_limit = '100GB'", "25006"),
        ("INSTALL httpfs", "25006"),
        ("ATTACH 'other.db'", "25006"),
        ("SELECT * FROM read_csv('pyproject.toml')", "42501"),
        ("SELECT * FROM read_text('pyproject.toml')", "42501"),
        ("SELECT * FROM glob('*')", "42501"),
        ("SELECT * FROM 'pyproject.toml'", "42P01"),
        ("SELECT * FROM nothing_here", "42P01"),
        ("SELECT nope FROM totals", "42703"),
        ("SELECT no_function(1)", "42883"),
        ("SELEC 1", "42601"),
        ("SELECT 1; SELECT 2", "42601"),
        ("SELECT 'x'::INT", "22P02"),
    ],
)
def test_what_is_no_reading_of_state_is_refused_with_a_code(session: SqlSession, statement: str, code: str) -> None:
    with pytest.raises(StatementFailed) as failed:
        session.run(statement).table()
    assert failed.value.code == code


def test_an_error_points_at_the_character(session: SqlSession) -> None:
    with pytest.raises(StatementFailed) as failed:
        session.run("SELECT tweet,\n  nope FROM totals")
    assert failed.value.place == 16
    assert failed.value.where == "line 2, column 3"
    assert "tweet" in failed.value.expected


def test_a_variable_of_python_is_no_table(session: SqlSession) -> None:
    hidden = {"a": [1]}
    with pytest.raises(StatementFailed):
        session.run("SELECT * FROM hidden")
    assert hidden


def test_a_state_that_may_not_be_read_is_not_there(path: Path) -> None:
    session = Engine().session(StoreSnapshots(hr.Store(path)), lambda address: address == "totals", "totals only")
    assert rows(session, "SHOW TABLES") == [("totals",)]
    with pytest.raises(StatementFailed) as failed:
        session.run("SELECT * FROM hourly")
    assert failed.value.code == "42P01"
    session.close()


@pytest.mark.parametrize(
    "where",
    [
        "tweet = 'a'",
        "tweet IN ('a', 'c')",
        "tweet = 'a' OR tweet = 'c'",
        "'a' = tweet AND views > 1",
    ],
)
def test_an_equal_key_is_looked_up_and_the_table_is_not_read(
    session: SqlSession, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    expected = rows(session, f"SELECT tweet, views FROM (SELECT * FROM totals LIMIT 100) WHERE {where} ORDER BY 1")
    monkeypatch.setattr(ColumnMemory, "frames", _never)
    assert rows(session, f"SELECT tweet, views FROM totals WHERE {where} ORDER BY 1") == expected


def _never(*_: object) -> Any:
    raise AssertionError("the whole table is read")


def test_a_scan_reads_only_the_columns_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    frames = ColumnMemory.frames

    def spy(self: ColumnMemory, table: StateTable, names: list[str]) -> Any:
        asked.append(list(names))
        return frames(self, table, names)

    monkeypatch.setattr(ColumnMemory, "frames", spy)
    session = Engine().session(StoreSnapshots(hr.Store(path)))
    assert rows(session, "SELECT sum(views) FROM totals WHERE mean > 0") == [(5,)]
    assert [set(names) for names in asked] == [{"views", "mean"}]
    session.close()


def test_columns_are_read_once_while_their_step_stays_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Engine().session(StoreSnapshots(hr.Store(path)))
    first = rows(session, "SELECT tweet, views FROM totals ORDER BY 1")
    for name, table in session.tables().items():
        monkeypatch.setattr(table, "batches", _never)
        assert name in session.tables()
    assert rows(session, "SELECT tweet, views FROM totals ORDER BY 1") == first
    session.close()


def test_a_table_beyond_the_memory_for_columns_is_given_out_in_pieces(path: Path) -> None:
    engine = Engine(kept_bytes=1)
    session = engine.session(StoreSnapshots(hr.Store(path)))
    assert rows(session, "SELECT tweet, views FROM totals ORDER BY 1") == [("a", 3), ("b", 1), ("c", 1)]
    assert engine.kept.held_bytes == 0
    session.close()


def test_a_statement_that_takes_too_long_is_canceled(path: Path) -> None:
    session = Engine(statement_s=0.05).session(StoreSnapshots(hr.Store(path)))
    with pytest.raises(StatementFailed) as failed:
        session.run("SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range * b.range = 7").table()
    assert failed.value.code == "57014"
    assert rows(session, "SELECT 1") == [(1,)]
    session.close()


def test_a_statement_that_needs_too_much_memory_fails_and_the_session_goes_on(path: Path) -> None:
    session = Engine(memory_mb=50).session(StoreSnapshots(hr.Store(path)))
    with pytest.raises(StatementFailed) as failed:
        session.run("SELECT list(range::VARCHAR || 'long enough to need memory') FROM range(2000000)").table()
    assert failed.value.code == "53200"
    assert rows(session, "SELECT 1") == [(1,)]
    session.close()


def test_databases_are_shared_by_epochs_with_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    init = Database.__init__

    def counting(self: Database, *args: Any, **options: Any) -> None:
        made.append(self)
        init(self, *args, **options)

    monkeypatch.setattr(Database, "__init__", counting)
    engine = Engine()
    for moment in ("0", "newest", "before-v2"):
        session = engine.session(StoreSnapshots(hr.Store(path)))
        session.run(f"SET at = '{moment}'")
        rows(session, "SELECT * FROM totals")
        session.close()
    assert len(made) == 1


def test_a_store_of_which_nobody_says_the_types_can_be_asked_too(tmp_path: Path) -> None:
    store = hr.Store(make_kinds(tmp_path / "store").path)
    assert store.sql("SELECT key, value FROM count.views ORDER BY value").rows() == [
        {"key": "a", "value": 1}, {"key": "b", "value": 2}, {"key": "ü:x y", "value": 3}
    ]  # fmt: skip
    assert store.sql("SELECT sum(value) AS n FROM fraud.shops").rows() == [{"n": 12}]
    assert store.sql("SELECT key_0, key_1 FROM pairs").rows() == [{"key_0": "mill", "key_1": 3}]
    assert store.sql("SELECT n FROM last WHERE tweet = 'a'").rows() == [{"n": 3}]
    assert store.sql("SELECT key FROM count.brief ORDER BY 1").to_polars()["key"].to_list() == ["ever", "soon"]


def test_a_pinned_store_answers_of_its_moment(path: Path) -> None:
    answer = hr.Store(f"{path}@before-v2").sql("SELECT views FROM totals WHERE tweet = $1", ["a"])
    assert (answer.epoch, answer.rows(), answer.columns, len(answer)) == (0, [{"views": 2}], ["views"], 1)
    assert hr.Store(path).sql("SELECT views FROM totals WHERE tweet = 'a'").to_pandas()["views"].tolist() == [3]


def test_closed_windows_are_a_table_of_their_own_as_the_epoch_knows_them(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with job.h:
        job.hours(0, 1, 2, 3)
        store = hr.Store(job.store)
        answer = store.sql("SELECT tweet, extract(hour FROM window_start) AS hour, n FROM hourly.archive ORDER BY hour")
        assert answer.rows() == [{"tweet": "a", "hour": hour, "n": hour} for hour in (0, 1, 2)]
        assert store.sql("SELECT n FROM hourly").rows() == [{"n": 3}]
        both = "SELECT sum(n) AS n FROM (SELECT n FROM hourly UNION ALL SELECT n FROM hourly.archive)"
        assert store.sql(both).rows() == [{"n": 6}]
        before = hr.Store(job.store).at(store.epoch - 1)
        assert before.sql("SELECT count(*) AS n FROM hourly.archive").rows() == [{"n": 2}]
