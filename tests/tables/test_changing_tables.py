"""Tables of DDL whose rows replace each other: Debezium's changes, and topics of upserts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.graph import ReadNode
from headrace.errors import HeadraceError
from tests.tables.running import source_rows

ACCOUNTS = """
CREATE TABLE accounts (
    id BIGINT, region STRING, cents BIGINT NOT NULL, at TIMESTAMP(3), PRIMARY KEY (id) NOT ENFORCED,
    WATERMARK FOR at AS at
) WITH ('connector' = 'items', 'format' = 'debezium-json', 'rows' = '[
    {"before": null, "after": {"id": 1, "region": "n", "cents": 50, "at": "2024-01-01T00:00:01Z"}, "op": "r"},
    {"before": null, "after": {"id": 2, "region": "n", "cents": 70, "at": "2024-01-01T00:00:02Z"}, "op": "c"},
    {"before": {"id": 1}, "after": {"id": 1, "region": "s", "cents": 60, "at": "2024-01-01T00:00:03Z"}, "op": "u"},
    {"before": {"id": 1}, "after": {"id": 1, "region": "s", "cents": 60, "at": "2024-01-01T00:00:03Z"}, "op": "u"},
    {"before": {"id": 2}, "after": null, "op": "d"}
]')
"""


def source(app: Any, name: str) -> Any:
    (node,) = [node for node in app.nodes if isinstance(node, ReadNode) and node.name == name]
    return hr.Stream(app, node)


def held(changes: list[tuple[str, Any]]) -> Counter[tuple[Any, ...]]:
    """The rows that hold behind some changes."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for op, row in changes:
        rows[tuple(getattr(row, name) for name in row.__struct_fields__)] += 1 if op in ("+I", "+U") else -1
    return +rows


@pytest.mark.parametrize("row_by_row", [True, False])
def test_changes_of_debezium_are_the_rows_of_their_table(row_by_row: bool) -> None:
    app = hr.App("bank")
    app.sql(ACCOUNTS)
    rows: Any = app.sql("SELECT id, region, cents FROM accounts")
    sums: Any = app.sql("SELECT region, SUM(cents) AS s, COUNT(*) AS n FROM accounts GROUP BY region", name="sums")
    assert str(rows.node.kind) == "changelog by id"
    changes = source(app, "accounts")
    with hr.testing.Harness(app) as h:
        given = source_rows(changes.node)
        for part in [[row] for row in given] if row_by_row else [given]:
            h.push(changes, *part)
            h.epoch()
        assert held(h.take_changes(rows)) == {(1, "s", 60): 1}
        assert held(h.take_changes(sums)) == {("s", 60, 1): 1}


def test_a_topic_of_upserts_is_a_table_and_tombstones_take_its_rows_away() -> None:
    app = hr.App("people")
    app.sql("""
        CREATE TABLE users (id BIGINT, name STRING NOT NULL, PRIMARY KEY (id) NOT ENFORCED)
        WITH ('connector' = 'upsert-kafka', 'topic' = 'users', 'brokers' = 'localhost:1')
    """)
    users: Any = app.sql("SELECT * FROM users")
    counts: Any = app.sql("SELECT name, COUNT(*) AS n FROM users GROUP BY name", name="counts")
    topic = source(app, "users")
    message = topic.node.codec.type
    assert (topic.node.source.parts.key, topic.node.source.tombstones) == ("message_key", "keep")
    with hr.testing.Harness(app) as h:
        h.push(topic, message(id=1, name="ann", message_key="1", message_value=b"{}"))
        h.push(topic, message(name="ann", message_key="2", message_value=b"{}"))
        h.epoch()
        h.push(topic, message(id=1, name="bob", message_key="1", message_value=b"{}"), message(message_key="2"))
        h.epoch()
        h.push(topic, message(message_key="9"))
        h.epoch()
        assert held(h.take_changes(users)) == {(1, "bob"): 1}
        assert held(h.take_changes(counts)) == {("bob", 1): 1}


def test_the_columns_of_a_key_of_several_come_out_of_its_json() -> None:
    app = hr.App("people")
    app.sql("""
        CREATE TABLE seats (room STRING, place BIGINT, name STRING, PRIMARY KEY (room, place) NOT ENFORCED)
        WITH ('connector' = 'upsert-kafka', 'topic' = 'seats', 'brokers' = 'localhost:1', 'key.format' = 'json')
    """)
    assert str(app.table("seats").node.kind) == "changelog by room, place"
    assert any("get_json_object" in str(getattr(node, "exprs", ())) for node in app.nodes)


REFUSED = {
    "(id BIGINT) WITH ('connector' = 'upsert-kafka', 'topic' = 't')": "nothing says by what",
    "(id BIGINT, PRIMARY KEY (id) NOT ENFORCED, k BIGINT AS id + 1) "
    "WITH ('connector' = 'upsert-kafka', 'topic' = 't')": "is not expected here",
    "(id BIGINT, PRIMARY KEY (id) NOT ENFORCED, k AS id + 1) WITH ('connector' = 'upsert-kafka', 'topic' = 't')": (
        "no computed columns"
    ),
    "(id BIGINT, PRIMARY KEY (id) NOT ENFORCED, o BIGINT METADATA FROM 'offset') "
    "WITH ('connector' = 'kafka', 'topic' = 't', 'format' = 'debezium-json')": "no METADATA columns",
    "(a BIGINT, b BIGINT, PRIMARY KEY (a, b) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', 'topic' = 't')": (
        "not known so"
    ),
}


@pytest.mark.parametrize("columns", REFUSED)
def test_what_rows_cannot_be_known_by_is_refused(columns: str) -> None:
    app = hr.App("people")
    with pytest.raises(HeadraceError) as raised:
        app.sql(f"CREATE TABLE t {columns}")
        app.sql("SELECT * FROM t")
    assert REFUSED[columns] in raised.value.what
    assert "^" in raised.value.found
